"""Jobs: attempts in a list, and one job across its attempts."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from advisor.service.dashboard.views.curve import Curve, curve_of
from advisor.service.dashboard.views.decisions import JobName, ListedDecision, job_name, listed
from advisor.service.dashboard.views.incidents import courses_of
from advisor.service.dashboard.views.shown import Chip, few, time_of, words
from advisor.v1 import audit_pb2, common_pb2

_TONE_OF_STATE = {
    "running": "info",
    "completed": "good",
    "failed": "bad",
    "node_failure": "bad",
    "out_of_memory": "bad",
    "launch_failure": "bad",
    "time_limit": "warn",
    "requeue_forgotten": "warn",
}
# Events of a timeline by the part they play: for colour and for the eye, beside their words.
_TONE_OF_EVENT = {
    "requeue_forgotten": "warn",
    "incident_opened": "bad",
    "decision": "info",
    "action": "info",
    "operator": "warn",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedAttempt:
    job: JobName
    name: str
    partition: str
    state: Chip
    submitted_at: datetime | None
    started_at: datetime | None
    ended_at: datetime | None
    ran: timedelta | None
    nodes: int
    some_nodes: str
    first_step: int | None
    last_step: int | None
    unread: bool  # it runs, and none of its lines is known as progress
    checkpoint_step: int | None
    in_scope: bool
    in_job_restarts: int
    foreign: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedEvent:
    at: datetime
    kind: str
    tone: str
    attempt: int | None
    text: str
    detail: str
    who: str
    href: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPage:
    job: JobName
    name: str
    partition: str
    in_scope: bool
    curve: Curve | None
    attempts: tuple[ListedAttempt, ...]  # newest first
    events: tuple[ListedEvent, ...]  # newest first
    truncated: bool
    decisions: tuple[ListedDecision, ...]


def listed_attempt(attempt: audit_pb2.Attempt, now: datetime) -> ListedAttempt:
    state = common_pb2.AttemptState.Name(attempt.state).removeprefix("ATTEMPT_STATE_").lower()
    if attempt.requeue_forgotten:
        state = "requeue_forgotten"
    started, ended = time_of(attempt, "started_at"), time_of(attempt, "ended_at")
    return ListedAttempt(
        job=job_name(attempt.attempt),
        name=attempt.name,
        partition=attempt.partition,
        state=Chip(text=words(state), tone=_TONE_OF_STATE.get(state, "plain")),
        submitted_at=time_of(attempt.attempt, "submitted_at"),
        started_at=started,
        ended_at=ended,
        ran=(ended or now) - started if started is not None else None,
        nodes=len(attempt.nodes),
        some_nodes=few(attempt.nodes, 4),
        first_step=attempt.first_step if attempt.HasField("first_step") else None,
        last_step=attempt.last_step if attempt.HasField("last_step") else None,
        unread=state == "running" and not attempt.HasField("last_step"),
        checkpoint_step=attempt.checkpoint_step if attempt.HasField("checkpoint_step") else None,
        in_scope=attempt.in_scope,
        in_job_restarts=attempt.in_job_restarts,
        foreign=attempt.foreign_evidence,
    )


def listed_event(event: audit_pb2.Event) -> ListedEvent:
    href = ""
    if event.decision_id:
        href = f"/decisions/{event.decision_id}"
    elif event.incident_id:
        href = f"/incidents/{event.incident_id}"
    return ListedEvent(
        at=event.at.ToDatetime(UTC),
        kind=words(event.kind),
        tone=_TONE_OF_EVENT.get(event.kind, "plain"),
        attempt=event.attempt.attempt if event.HasField("attempt") else None,
        text=event.text,
        detail=event.detail,
        who=event.who,
        href=href,
    )


def job_page(timeline: audit_pb2.JobTimeline, decisions: Sequence[audit_pb2.Decision], now: datetime) -> JobPage:
    """Of a job that has at least one attempt; its newest one speaks for it."""
    newest = timeline.attempts[-1]
    return JobPage(
        job=job_name(newest.attempt),
        name=newest.name,
        partition=newest.partition,
        in_scope=newest.in_scope,
        curve=curve_of(courses_of(timeline.attempts, decisions), now),
        attempts=tuple(listed_attempt(item, now) for item in reversed(timeline.attempts)),
        events=tuple(listed_event(item) for item in reversed(timeline.events)),
        truncated=timeline.truncated,
        decisions=tuple(listed(item) for item in decisions),
    )
