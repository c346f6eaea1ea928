"""Incidents: one line in a list, and one whole with the job's course around it."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from advisor.service.dashboard.views.curve import Course, Curve, course_of, curve_of
from advisor.service.dashboard.views.decisions import (
    EvidenceLine,
    JobName,
    ListedDecision,
    Stage,
    analysis_of,
    evidence_lines,
    job_name,
    listed,
    stages_of,
)
from advisor.service.dashboard.views.shown import Chip, few, time_of, words
from advisor.v1 import audit_pb2

_TONE_OF_KIND = {"crash": "bad", "hang": "warn", "straggler": "warn", "divergence": "warn"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedIncident:
    incident_id: str
    job: JobName
    kind: Chip
    category: str
    root_cause: str
    opened_at: datetime | None
    closed_at: datetime | None
    nodes: str

    @property
    def open(self) -> bool:
        return self.closed_at is None


@dataclass(frozen=True, slots=True, kw_only=True)
class IncidentPage:
    listed: ListedIncident
    nodes: tuple[str, ...]
    evidence: tuple[EvidenceLine, ...]
    unreadable: str
    curve: Curve | None
    stages: tuple[Stage, ...]
    decisions: tuple[ListedDecision, ...]  # about this attempt, newest first


def listed_incident(incident: audit_pb2.Incident) -> ListedIncident:
    return ListedIncident(
        incident_id=incident.incident_id,
        job=job_name(incident.attempt),
        kind=Chip(text=incident.kind, tone=_TONE_OF_KIND.get(incident.kind, "plain")),
        category=words(incident.category),
        root_cause=incident.root_cause or "nothing is known of its cause",
        opened_at=time_of(incident, "opened_at"),
        closed_at=time_of(incident, "closed_at"),
        nodes=few(incident.implicated_nodes, 4),
    )


def incident_page(
    incident: audit_pb2.Incident,
    attempts: Sequence[audit_pb2.Attempt],
    decisions: Sequence[audit_pb2.Decision],
    now: datetime,
) -> IncidentPage:
    """`attempts` and `decisions` are of the incident's job, in any order."""
    number = incident.attempt.attempt
    own = next((item for item in attempts if item.attempt.attempt == number), None)
    return IncidentPage(
        listed=listed_incident(incident),
        nodes=tuple(incident.implicated_nodes),
        evidence=evidence_lines(incident.evidence),
        unreadable=incident.unreadable,
        curve=curve_of(courses_of(attempts, decisions), now),
        stages=stages_of(own.milestones) if own is not None else (),
        decisions=tuple(listed(item) for item in decisions if item.advice.attempt.attempt == number),
    )


def courses_of(attempts: Sequence[audit_pb2.Attempt], decisions: Sequence[audit_pb2.Decision]) -> tuple[Course, ...]:
    """Each attempt's course, oldest first, with the steps that decisions saw on the way."""
    seen: dict[int, list[tuple[datetime, int]]] = {}
    for decision in decisions:
        progress = analysis_of(decision).get("progress") or {}
        step, at = progress.get("last_step"), progress.get("last_at")
        if isinstance(step, int) and isinstance(at, str):
            seen.setdefault(decision.advice.attempt.attempt, []).append((_aware(at), step))
    ordered = sorted(attempts, key=lambda item: item.attempt.attempt)
    return tuple(course_of(item, seen.get(item.attempt.attempt, ())) for item in ordered)


def _aware(text: str) -> datetime:
    moment = datetime.fromisoformat(text)
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
