"""What the SDK gives: frozen values with aware UTC times and plain words, one class per kind of thing.

Each keeps the contract's message it was made from in `message`, for what it does not show itself.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from google.protobuf.timestamp_pb2 import Timestamp

from advisor.client.words import action_name, milestone_name, mode_name, reason_name, state_name, status_name
from advisor.v1 import audit_pb2, common_pb2


def moment(stamp: Timestamp) -> datetime | None:
    """None for a time that is not set."""
    if not stamp.seconds and not stamp.nanos:
        return None
    found: datetime = stamp.ToDatetime(UTC)
    return found


def _at(stamp: Timestamp) -> datetime:
    found: datetime = stamp.ToDatetime(UTC)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    rule: str
    role: str
    trust: str
    category: str
    at: datetime | None
    node: str
    rank: int | None
    gpu: int | None
    file: str
    line: int
    text: str
    count: int

    @classmethod
    def of(cls, item: common_pb2.Evidence) -> "Evidence":
        return cls(
            rule=item.rule,
            role=item.role,
            trust=item.trust,
            category=item.category,
            at=moment(item.at),
            node=item.node,
            rank=item.rank if item.HasField("rank") else None,
            gpu=item.gpu if item.HasField("gpu") else None,
            file=item.file,
            line=item.line,
            text=item.text,
            count=item.count,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    decision_id: str
    at: datetime
    cluster: str
    job_id: str
    job_key: str
    attempt: int
    user: str
    partition: str
    action: str
    reason: str
    category: str
    mode: str
    status: str  # what came of it
    generation: int
    excluded_nodes: tuple[str, ...]
    explanation: str
    incident_id: str
    in_scope: bool | None
    undone: bool  # the scheduler has forgotten what came of it
    build: str
    milestones: Mapping[str, datetime]
    evidence: tuple[Evidence, ...] = field(repr=False)
    message: audit_pb2.Decision = field(repr=False, compare=False)

    @property
    def analysis(self) -> dict[str, Any]:
        """The whole document, schema `advisor.analysis/1`."""
        found: dict[str, Any] = json.loads(self.message.analysis_json) if self.message.analysis_json else {}
        return found

    @classmethod
    def of(cls, item: audit_pb2.Decision) -> "Decision":
        advice, ref = item.advice, item.advice.attempt
        return cls(
            decision_id=advice.advice_id,
            at=_at(advice.created_at),
            cluster=ref.cluster,
            job_id=ref.job_id,
            job_key=ref.job_key,
            attempt=ref.attempt,
            user=ref.user,
            partition=item.partition,
            action=action_name(advice.action),
            reason=advice.reason,
            category=advice.category,
            mode=mode_name(advice.mode),
            status=status_name(item.status),
            generation=advice.generation,
            excluded_nodes=tuple(advice.exclude_nodes),
            explanation=advice.explanation,
            incident_id=item.incident_id,
            in_scope=item.in_scope if item.HasField("in_scope") else None,
            undone=item.undone,
            build=item.build,
            milestones={milestone_name(reached.kind): _at(reached.at) for reached in item.milestones},
            evidence=tuple(Evidence.of(one) for one in advice.evidence),
            message=item,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Incident:
    incident_id: str
    cluster: str
    job_id: str
    attempt: int
    user: str
    kind: str
    category: str
    root_cause: str
    opened_at: datetime
    closed_at: datetime | None
    implicated_nodes: tuple[str, ...]
    evidence: tuple[Evidence, ...] = field(repr=False)
    message: audit_pb2.Incident = field(repr=False, compare=False)

    @classmethod
    def of(cls, item: audit_pb2.Incident) -> "Incident":
        return cls(
            incident_id=item.incident_id,
            cluster=item.attempt.cluster,
            job_id=item.attempt.job_id,
            attempt=item.attempt.attempt,
            user=item.attempt.user,
            kind=item.kind,
            category=item.category,
            root_cause=item.root_cause,
            opened_at=_at(item.opened_at),
            closed_at=moment(item.closed_at),
            implicated_nodes=tuple(item.implicated_nodes),
            evidence=tuple(Evidence.of(one) for one in item.evidence),
            message=item,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    cluster: str
    job_id: str
    job_key: str
    attempt: int
    user: str
    partition: str
    name: str
    state: str
    submitted_at: datetime | None
    started_at: datetime | None
    ended_at: datetime | None
    nodes: tuple[str, ...]
    first_step: int | None
    last_step: int | None
    checkpoint_step: int | None
    in_job_restarts: int
    in_scope: bool
    requeue_forgotten: bool  # by the scheduler: it never ran
    milestones: Mapping[str, datetime]
    message: audit_pb2.Attempt = field(repr=False, compare=False)

    @classmethod
    def of(cls, item: audit_pb2.Attempt) -> "Attempt":
        ref = item.attempt
        return cls(
            cluster=ref.cluster,
            job_id=ref.job_id,
            job_key=ref.job_key,
            attempt=ref.attempt,
            user=ref.user,
            partition=item.partition,
            name=item.name,
            state=state_name(item.state),
            submitted_at=moment(ref.submitted_at),
            started_at=moment(item.started_at),
            ended_at=moment(item.ended_at),
            nodes=tuple(item.nodes),
            first_step=item.first_step if item.HasField("first_step") else None,
            last_step=item.last_step if item.HasField("last_step") else None,
            checkpoint_step=item.checkpoint_step if item.HasField("checkpoint_step") else None,
            in_job_restarts=item.in_job_restarts,
            in_scope=item.in_scope,
            requeue_forgotten=item.requeue_forgotten,
            milestones={milestone_name(reached.kind): _at(reached.at) for reached in item.milestones},
            message=item,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Signal:
    incident_id: str
    cluster: str
    job_id: str
    attempt: int
    user: str
    partition: str
    rule: str
    role: str
    trust: str
    category: str
    at: datetime | None
    seen_at: datetime
    nodes: tuple[str, ...]
    rank: int | None
    text: str
    message: audit_pb2.Signal = field(repr=False, compare=False)

    @classmethod
    def of(cls, item: audit_pb2.Signal) -> "Signal":
        seen = Evidence.of(item.evidence)
        return cls(
            incident_id=item.incident_id,
            cluster=item.attempt.cluster,
            job_id=item.attempt.job_id,
            attempt=item.attempt.attempt,
            user=item.attempt.user,
            partition=item.partition,
            rule=seen.rule,
            role=seen.role,
            trust=seen.trust,
            category=seen.category,
            at=seen.at,
            seen_at=_at(item.seen_at),
            nodes=tuple(item.nodes),
            rank=seen.rank,
            text=seen.text,
            message=item,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """What came of one advice, as it was told once."""

    decision_id: str
    cluster: str
    job_id: str
    attempt: int
    user: str
    partition: str
    advised: str
    category: str
    mode: str
    decided_at: datetime
    at: datetime
    status: str
    reason: str
    detail: str
    excluded_nodes: tuple[str, ...]
    message: audit_pb2.ActionTaken = field(repr=False, compare=False)

    @classmethod
    def of(cls, item: audit_pb2.ActionTaken) -> "Action":
        return cls(
            decision_id=item.decision_id,
            cluster=item.attempt.cluster,
            job_id=item.attempt.job_id,
            attempt=item.attempt.attempt,
            user=item.attempt.user,
            partition=item.partition,
            advised=action_name(item.action),
            category=item.category,
            mode=mode_name(item.mode),
            decided_at=_at(item.decided_at),
            at=_at(item.outcome.at),
            status=status_name(item.outcome.status),
            reason=reason_name(item.outcome.reason),
            detail=item.outcome.detail,
            excluded_nodes=tuple(item.outcome.excluded_nodes),
            message=item,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    cluster: str
    name: str
    score: float
    suspect: bool
    last_implicated_at: datetime | None
    implications: int  # shown with the node, a hundred at most
    message: audit_pb2.Node = field(repr=False, compare=False)

    @classmethod
    def of(cls, item: audit_pb2.Node) -> "Node":
        return cls(
            cluster=item.cluster,
            name=item.name,
            score=item.score,
            suspect=item.suspect,
            last_implicated_at=moment(item.last_implicated_at),
            implications=len(item.implications),
            message=item,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditRecord:
    at: datetime
    who: str
    what: str
    why: str
    origin: str
    cluster: str
    subject: str
    detail: Mapping[str, str]
    record_id: str

    @classmethod
    def of(cls, item: audit_pb2.AuditRecord) -> "AuditRecord":
        return cls(
            at=_at(item.at),
            who=item.who,
            what=item.what,
            why=item.why,
            origin=item.origin,
            cluster=item.cluster,
            subject=item.subject,
            detail=dict(item.detail),
            record_id=item.record_id,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One moment in the life of a job or a node."""

    at: datetime
    kind: str
    text: str
    word: str
    reason: str
    attempt: int | None
    job_id: str
    node: str
    who: str
    detail: str
    decision_id: str
    incident_id: str
    isolation_id: str

    @classmethod
    def of(cls, item: audit_pb2.Event) -> "Event":
        known = item.HasField("attempt")
        return cls(
            at=_at(item.at),
            kind=item.kind,
            text=item.text,
            word=item.word,
            reason=item.reason,
            attempt=item.attempt.attempt if known else None,
            job_id=item.attempt.job_id if known else "",
            node=item.node,
            who=item.who,
            detail=item.detail,
            decision_id=item.decision_id,
            incident_id=item.incident_id,
            isolation_id=item.isolation_id,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """A job across its attempts, oldest first."""

    attempts: tuple[Attempt, ...]
    events: tuple[Event, ...]
    truncated: bool
