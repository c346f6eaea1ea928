"""Decisions: one line in a list, and one whole."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from advisor.client import action_name, milestone_name, mode_name, reason_name, status_name
from advisor.service.dashboard.views.shown import Chip, few, percent_text, plural, span_text, time_of, words
from advisor.v1 import audit_pb2, common_pb2
from advisor.wording import OUTCOMES, TO_DO_ABOUT, outcome, to_do, who

ID_CHARACTERS = 8
_TONE_OF_ACTION = {"restart": "info", "stop": "bad"}
_TONE_OF_STATUS = {
    "verified": "good",
    "already_satisfied": "good",
    "applied": "good",
    "withheld": "warn",
    "expired": "warn",
    "abandoned": "warn",
}
# The advice may still be carried out, or somebody is to do it by hand.
_OPEN_STATUSES = frozenset({"", "pending", "applied"})
_WAITS_FOR = frozenset({"paused", "maintenance", "stop_file", "saving", "capacity", "cap_requeues"})


@dataclass(frozen=True, slots=True, kw_only=True)
class JobName:
    """A job's attempt, as people say it, and what its links need."""

    job_id: str
    attempt: int
    user: str
    cluster: str
    job_key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedDecision:
    decision_id: str
    short_id: str
    at: datetime
    job: JobName
    partition: str
    action: Chip
    excluded: str
    category: str
    reason: str
    outcome: str
    outcome_tone: str
    to_do: str
    waits: bool  # something is still to be done about it


@dataclass(frozen=True, slots=True, kw_only=True)
class EvidenceLine:
    at: datetime | None
    role: str
    trust: str
    trusted: bool
    rule: str
    node: str
    rank: int | None
    place: str
    text: str
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerUp:
    """What it could also have been, and why it was not that."""

    category: str
    root_cause: str
    confidence: str
    why_not: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceLine:
    name: str
    trust: str
    state: Chip
    told: str
    to_do: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """What the agent said came of it."""

    at: datetime
    told: str
    tone: str
    detail: str
    dropped: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One moment of a recovery. `from_share`, `bar_share`: of the whole, in per cent, as a bar is drawn."""

    name: str
    at: datetime
    since_before: str
    in_all: str
    from_share: float
    bar_share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionPage:
    listed: ListedDecision
    what: str
    who: str
    why: str
    reason: str
    confidence: str
    evidence: tuple[EvidenceLine, ...]
    alternatives: tuple[RunnerUp, ...]
    withheld: tuple[tuple[str, str], ...]  # nodes that are named and not excluded, and why
    sources: tuple[SourceLine, ...]
    said: tuple[Said, ...]
    stages: tuple[Stage, ...]
    incident_id: str
    generation: int
    mode: str
    build: str
    inputs_hash: str
    unreadable: str
    excluded: tuple[str, ...]
    nodes: tuple[str, ...]
    can_be_withdrawn: bool


def job_name(ref: common_pb2.AttemptRef) -> JobName:
    return JobName(job_id=ref.job_id, attempt=ref.attempt, user=ref.user, cluster=ref.cluster, job_key=ref.job_key)


def action_chip(action: int) -> Chip:
    name = action_name(action) or "none"
    return Chip(text=name, tone=_TONE_OF_ACTION.get(name, "plain"))


def listed(decision: audit_pb2.Decision) -> ListedDecision:
    advice = decision.advice
    status = status_name(decision.status)
    acted = advice.action != common_pb2.ACTION_NONE
    held = reason_name(decision.reconciliations[-1].reason) if decision.reconciliations else ""
    return ListedDecision(
        decision_id=advice.advice_id,
        short_id=advice.advice_id[:ID_CHARACTERS],
        at=advice.created_at.ToDatetime(UTC),
        job=job_name(advice.attempt),
        partition=decision.partition,
        action=action_chip(advice.action),
        excluded=few(advice.exclude_nodes, 4) if acted else "",
        category=words(advice.category),
        reason=words(advice.reason),
        outcome=outcome(decision).replace("_", " "),
        to_do=to_do(decision),
        outcome_tone=_TONE_OF_STATUS.get(status, "plain") if acted else "plain",
        waits=acted and (status in _OPEN_STATUSES or (status == "withheld" and held in _WAITS_FOR)),
    )


def decision_page(decision: audit_pb2.Decision) -> DecisionPage:
    advice = decision.advice
    analysis = analysis_of(decision)
    attribution = _mapping(analysis.get("attribution"))
    confidence = attribution.get("confidence")
    row = listed(decision)
    implicated = _mapping(attribution.get("implicated"))
    return DecisionPage(
        listed=row,
        what=str(attribution.get("root_cause") or "nothing failed"),
        who=who({**attribution, "category": words(str(attribution.get("category", "unknown")))}),
        why=advice.explanation or words(advice.reason),
        reason=words(advice.reason),
        confidence=percent_text(confidence) if isinstance(confidence, int | float) else "",
        evidence=evidence_lines(advice.evidence),
        alternatives=tuple(_runner_up(item) for item in attribution.get("alternatives") or () if _is_mapping(item)),
        withheld=tuple(
            (str(item.get("node", "")), words(str(item.get("detail") or item.get("reason", ""))))
            for item in _mapping(analysis.get("isolation")).get("withheld") or ()
            if _is_mapping(item)
        ),
        sources=tuple(_source(name, _mapping(source)) for name, source in _mapping(attribution.get("sources")).items()),
        said=tuple(_said(item) for item in decision.reconciliations),
        stages=stages_of(decision.milestones),
        incident_id=decision.incident_id,
        generation=advice.generation,
        mode=mode_name(advice.mode),
        build=decision.build,
        inputs_hash=decision.inputs_hash,
        unreadable=decision.unreadable,
        excluded=tuple(advice.exclude_nodes) if advice.action != common_pb2.ACTION_NONE else (),
        nodes=tuple(str(node) for node in implicated.get("nodes") or ()),
        can_be_withdrawn=row.waits,
    )


def analysis_of(decision: audit_pb2.Decision) -> Mapping[str, Any]:
    """The stored document; empty where there is none, or none that can be read."""
    try:
        return _mapping(json.loads(decision.analysis_json or "{}"))
    except ValueError:
        return {}


def evidence_lines(items: Sequence[common_pb2.Evidence]) -> tuple[EvidenceLine, ...]:
    return tuple(
        EvidenceLine(
            at=time_of(item, "at"),
            role=item.role,
            trust=item.trust,
            trusted=item.trust not in {"", "log"},
            rule=item.rule,
            node=item.node,
            rank=item.rank if item.HasField("rank") else None,
            place=f"{item.file}:{item.line}" if item.file else item.source,
            text=item.text,
            count=item.count,
        )
        for item in items
    )


def stages_of(milestones: Sequence[audit_pb2.MilestoneAt]) -> tuple[Stage, ...]:
    reached = sorted(milestones, key=lambda item: (item.at.ToNanoseconds(), item.kind))
    if not reached:
        return ()
    first, last = reached[0].at.ToNanoseconds(), reached[-1].at.ToNanoseconds()
    whole = max(last - first, 1)
    stages, before = [], first
    for item in reached:
        now = item.at.ToNanoseconds()
        stages.append(
            Stage(
                name=words(milestone_name(item.kind)),
                at=item.at.ToDatetime(UTC),
                since_before="" if item is reached[0] else f"+{span_text((now - before) / 1e9)}",
                in_all="" if item is reached[0] else span_text((now - first) / 1e9),
                from_share=round(100 * (before - first) / whole, 1),
                bar_share=round(max(100 * (now - before) / whole, 0.8), 1),
            )
        )
        before = now
    return tuple(stages)


def _runner_up(item: Mapping[str, Any]) -> RunnerUp:
    confidence = item.get("confidence")
    return RunnerUp(
        category=words(str(item.get("category", ""))),
        root_cause=str(item.get("root_cause", "")),
        confidence=percent_text(confidence) if isinstance(confidence, int | float) else "",
        why_not=str(item.get("why_not", "")),
    )


def _source(name: str, source: Mapping[str, Any]) -> SourceLine:
    lines = source.get("lines", 0)
    parts = [plural(lines, "line")] if isinstance(lines, int) and lines else []
    state, to_do_about = Chip(text="read", tone="good"), ""
    if not source.get("available", True):
        reason = str(source.get("reason") or "unavailable")
        state = Chip(text="partly read", tone="warn") if parts else Chip(text="not read", tone="bad")
        parts.append(f"not available: {words(reason)}")
        to_do_about = str(source.get("detail") or TO_DO_ABOUT.get(reason, ""))
    if source.get("foreign"):
        parts.append(f"{source['foreign']} named other nodes and do not count")
    if source.get("capped"):
        parts.append("more was there than is read")
    parts += [str(problem) for problem in source.get("problems") or ()]
    return SourceLine(
        name=name,
        trust=str(source.get("trust", "")),
        state=state,
        told="; ".join(parts) or "nothing new",
        to_do=to_do_about,
    )


def _said(item: audit_pb2.Reconciliation) -> Said:
    status, reason = status_name(item.status), reason_name(item.reason)
    told = OUTCOMES.get(reason, words(reason))
    shown = "applied" if status == "verified" else words(status)
    return Said(
        at=item.at.ToDatetime(UTC),
        told=f"{shown}: {told}" if told else shown,
        tone=_TONE_OF_STATUS.get(status, "plain"),
        detail=item.detail,
        dropped=few(item.dropped_nodes),
    )


def _is_mapping(value: object) -> bool:
    return isinstance(value, Mapping)


def _mapping(value: object) -> Mapping[str, Any]:
    """What another build stored may have another form: then there is nothing to show of it."""
    return value if isinstance(value, Mapping) else {}
