"""Between the contract's messages and the store's values. What comes in is checked; errors name the field.

Enumerations map by name: `ATTEMPT_STATE_NODE_FAILURE` ↔ "node_failure". A state that this version does not know
becomes OTHER, from which nothing is ever concluded.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import cache, lru_cache
from typing import Any, TypeVar

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from advisor.core.model import ExitStatus, Signal, Unavailable
from advisor.core.words import Action, AttemptState, Category, Mode, NodeState, UnavailableReason
from advisor.service.errors import BadRequestError
from advisor.store.records import (
    AgentMode,
    AttemptRef,
    Milestone,
    MilestoneKind,
    Notice,
    ObservedJob,
    ObservedNode,
    Reconciliation,
    ReconciliationReason,
    ReconciliationStatus,
)
from advisor.v1 import agent_pb2, common_pb2

NAME_MAX = 256
TEXT_MAX = 4096
RULES_MAX = 32_768
NODES_MAX = 100_000
ATTEMPT_MAX = 2**31 - 1  # what the database's column holds
LISTED_MAX = 1_000_000
WAITS_MAX = 1000
GPUS_MAX = 1_000_000  # of one job: more than any cluster has
_CLUSTER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_JOB_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,63}")
_WAITED = re.compile(_JOB_ID.pattern + r"|[A-Za-z0-9][A-Za-z0-9.+-]{0,61}_\*")
_NODE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")

Word = TypeVar("Word", bound=StrEnum)

_WORDS: dict[type[StrEnum], tuple[Any, str]] = {
    AttemptState: (common_pb2.AttemptState, "ATTEMPT_STATE_"),
    Action: (common_pb2.Action, "ACTION_"),
    Mode: (common_pb2.Mode, "MODE_"),
    ReconciliationStatus: (common_pb2.ReconciliationStatus, "RECONCILIATION_STATUS_"),
    ReconciliationReason: (common_pb2.ReconciliationReason, "RECONCILIATION_REASON_"),
    MilestoneKind: (common_pb2.MilestoneKind, "MILESTONE_KIND_"),
    AgentMode: (agent_pb2.AgentMode, "AGENT_MODE_"),
    Notice: (agent_pb2.Notice, "NOTICE_"),
    NodeState: (agent_pb2.NodeState, "NODE_STATE_"),
}


def to_wire(word: StrEnum) -> Any:
    """The contract's number for one of our words."""
    enumeration, prefix = _WORDS[type(word)]
    return enumeration.Value(f"{prefix}{word.name}")


def from_wire(kind: type[Word], number: int, field: str, *, otherwise: Word | None = None) -> Word:
    """Our word for a number; `otherwise` stands for unset and for numbers of a newer contract."""
    word: Word | None = _words_of(kind).get(number)
    if word is not None:
        return word
    if otherwise is None:
        raise BadRequestError(f"{field}: {number} is not one of {', '.join(kind)}")
    return otherwise


@cache
def _words_of(kind: type[Word]) -> Mapping[int, Word]:
    enumeration, prefix = _WORDS[kind]
    named = {value: name.removeprefix(prefix) for name, value in enumeration.items()}
    return {value: kind[name] for value, name in named.items() if name in kind.__members__}


def stamp(moment: datetime | None) -> Timestamp | None:
    """None stays unset on the wire."""
    if moment is None:
        return None
    message = Timestamp()
    message.FromDatetime(moment)
    return message


def moment_of(message: Any, name: str, field: str) -> datetime | None:
    """The time in `message.name`, aware UTC; None when unset."""
    if not message.HasField(name):
        return None
    value: Timestamp = getattr(message, name)
    if not (0 <= value.nanos < 1_000_000_000) or not (0 <= value.seconds < 4_102_444_800):
        raise BadRequestError(f"{field}.{name}: not a time between 1970 and 2100")
    return _moment(value.seconds, value.nanos)


@lru_cache(maxsize=4096)  # of thousands of nodes in one report, all have been looked at in the same moment
def _moment(seconds: int, nanos: int) -> datetime:
    return Timestamp(seconds=seconds, nanos=nanos).ToDatetime(UTC)


def needed_moment(message: Any, name: str, field: str) -> datetime:
    moment = moment_of(message, name, field)
    if moment is None:
        raise BadRequestError(f"{field}.{name}: must be set")
    return moment


def duration(span: timedelta | float) -> Duration:
    message = Duration()
    message.FromTimedelta(span if isinstance(span, timedelta) else timedelta(seconds=span))
    return message


def span_of(message: Any, name: str, field: str) -> timedelta | None:
    if not message.HasField(name):
        return None
    value: Duration = getattr(message, name)
    if not (0 <= value.seconds <= 86_400 * 366) or not (0 <= value.nanos < 1_000_000_000):
        raise BadRequestError(f"{field}.{name}: not a duration between 0 and a year")
    return value.ToTimedelta()


def text_of(value: str, field: str, *, most: int = TEXT_MAX) -> str:
    """Text that a database can keep: bounded, without NUL (nothing else can be wrong with a protobuf string)."""
    if len(value) > most:
        raise BadRequestError(f"{field}: longer than {most} characters")
    if "\0" in value:
        raise BadRequestError(f"{field}: holds a NUL character")
    return value


def category_of(value: str, field: str) -> str:
    """ "" where none is meant. One that is none would match nothing, and look like good news."""
    if value and value not in list(Category):
        raise BadRequestError(f"{field}: {value[:64]!r} is not one of {', '.join(Category)}")
    return value


def attempt_number(value: int, field: str) -> int:
    if value > ATTEMPT_MAX:
        raise BadRequestError(f"{field}: {value}, at most {ATTEMPT_MAX}")
    return value


def _matching(pattern: re.Pattern[str], value: str, field: str, what: str) -> str:
    if not pattern.fullmatch(value):
        raise BadRequestError(f"{field}: {value[:64]!r} is not {what}")
    return value


def cluster_of(value: str, field: str = "cluster") -> str:
    return _matching(_CLUSTER, value, field, "a cluster name")


@lru_cache(maxsize=131_072)  # every report names the same ones again
def _is_node_name(value: str) -> bool:
    return _NODE.fullmatch(value) is not None


def node_names(values: Sequence[str], field: str) -> tuple[str, ...]:
    if len(values) > NODES_MAX:
        raise BadRequestError(f"{field}: more than {NODES_MAX} nodes")
    if all(map(_is_node_name, values)):
        return tuple(values)
    return tuple(_matching(_NODE, value, f"{field}[{at}]", "a node name") for at, value in enumerate(values))


def job_ids(values: Sequence[str], field: str) -> tuple[str, ...]:
    if len(values) > LISTED_MAX:
        raise BadRequestError(f"{field}: more than {LISTED_MAX} jobs")
    return tuple(_matching(_JOB_ID, value, f"{field}[{at}]", "a job id") for at, value in enumerate(values))


def path_of(value: str, field: str) -> str:
    if value and not value.startswith("/"):
        raise BadRequestError(f"{field}: not an absolute path")
    return text_of(value, field)


def attempt_ref(message: common_pb2.AttemptRef, cluster: str, field: str) -> AttemptRef:
    """Which attempt the agent means. Its cluster must be the one it speaks for."""
    if message.cluster and message.cluster != cluster:
        raise BadRequestError(f"{field}.cluster: {message.cluster[:64]!r} in a report of cluster {cluster!r}")
    return AttemptRef(
        cluster=cluster,
        job_id=_matching(_JOB_ID, message.job_id, f"{field}.job_id", "a job id"),
        number=message.attempt,
        user=text_of(message.user, f"{field}.user", most=NAME_MAX),
        submitted_at=moment_of(message, "submitted_at", field),
        job_key=text_of(message.job_key, f"{field}.job_key", most=NAME_MAX),
    )


def observed_job(message: agent_pb2.JobObservation, cluster: str, field: str) -> ObservedJob:
    """One job as the agent saw it. Raises `BadRequestError` with the place of the first problem."""
    ref = attempt_ref(message.attempt, cluster, f"{field}.attempt")
    nodes = node_names(message.nodes, f"{field}.nodes")
    return ObservedJob(
        job_id=ref.job_id,
        attempt=ref.number,
        submitted_at=ref.submitted_at,
        user=ref.user,
        state=from_wire(AttemptState, message.state, f"{field}.state", otherwise=AttemptState.OTHER),
        observed_at=needed_moment(message, "observed_at", field),
        notice=from_wire(Notice, message.notice, f"{field}.notice", otherwise=Notice.POLL),
        eligible_at=moment_of(message, "eligible_at", field),
        started_at=moment_of(message, "started_at", field),
        ended_at=moment_of(message, "ended_at", field),
        exit=ExitStatus(code=message.exit.code, signal=message.exit.signal) if message.HasField("exit") else None,
        nodes=nodes if message.nodes_known or nodes else None,
        nodes_requested=message.nodes_requested or None,
        tasks=message.tasks or None,
        excluded_nodes=node_names(message.excluded_nodes, f"{field}.excluded_nodes"),
        our_excluded_nodes=node_names(message.our_excluded_nodes, f"{field}.our_excluded_nodes"),
        partition=text_of(message.partition, f"{field}.partition", most=NAME_MAX),
        account=text_of(message.account, f"{field}.account", most=NAME_MAX),
        name=text_of(message.name, f"{field}.name"),
        array_job_id=text_of(message.array_job_id, f"{field}.array_job_id", most=NAME_MAX),
        array_task=message.array_task if message.HasField("array_task") else None,
        het_job_id=text_of(message.het_job_id, f"{field}.het_job_id", most=NAME_MAX),
        het_offset=message.het_offset if message.HasField("het_offset") else None,
        requeueable=message.requeueable,
        batch=message.batch,
        held=message.held,
        pending_reason=text_of(message.pending_reason, f"{field}.pending_reason"),
        stdout_path=path_of(message.stdout_path, f"{field}.stdout_path"),
        stderr_path=path_of(message.stderr_path, f"{field}.stderr_path"),
        job_rules=text_of(message.job_rules, f"{field}.job_rules", most=RULES_MAX),
        in_scope=message.in_scope,
        scope_reason=text_of(message.scope_reason, f"{field}.scope_reason"),
        restarts_max=message.restarts_max if message.HasField("restarts_max") else None,
        marked_generation=_whole(message.marked_generation, f"{field}.marked_generation"),
        marked_attempt=message.marked_attempt,
        nodes_fitting=message.nodes_fitting if message.HasField("nodes_fitting") else None,
        user_id=message.user_id,
        waits_for=_waited(message.waits_for, f"{field}.waits_for"),
        singleton=message.singleton,
        gpus=min(message.gpus, GPUS_MAX) if message.HasField("gpus") else None,
    )


def _waited(values: Sequence[str], field: str) -> tuple[str, ...]:
    if len(values) > WAITS_MAX:
        raise BadRequestError(f"{field}: more than {WAITS_MAX} jobs")
    return tuple(
        _matching(_WAITED, value, f"{field}[{at}]", "a job or a whole array") for at, value in enumerate(values)
    )


def _whole(value: int, field: str) -> int:
    if value >= 2**63:
        raise BadRequestError(f"{field}: larger than the store can hold")
    return value


def observed_node(message: agent_pb2.NodeObservation, field: str, now: datetime) -> ObservedNode:
    """Never later than `now`: a clock that was ahead for a moment must not outweigh all that is seen after it."""
    name = message.name
    return ObservedNode(
        name=name if _is_node_name(name) else _matching(_NODE, name, f"{field}.name", "a node name"),
        state=from_wire(NodeState, message.state, f"{field}.state", otherwise=NodeState.OTHER),
        observed_at=min(needed_moment(message, "observed_at", field), now),
        reason=text_of(message.reason, f"{field}.reason"),
        partitions=_partitions(tuple(message.partitions), field),
    )


def _partitions(names: tuple[str, ...], field: str) -> tuple[str, ...]:
    if not _are_partitions(names):
        for at, name in enumerate(names):
            text_of(name, f"{field}.partitions[{at}]", most=NAME_MAX)
    return names


@lru_cache(maxsize=4096)  # thousands of nodes are in the same ones
def _are_partitions(names: tuple[str, ...]) -> bool:
    return all(len(name) <= NAME_MAX and "\0" not in name for name in names)


def unavailable(message: common_pb2.Unavailable, field: str) -> Unavailable:
    words = list(UnavailableReason)
    return Unavailable(
        source=text_of(message.source, f"{field}.source", most=NAME_MAX),
        reason=UnavailableReason(message.reason) if message.reason in words else UnavailableReason.REFUSED,
        detail=text_of(message.detail[:TEXT_MAX], f"{field}.detail"),
    )


def status_and_reason(status: int, reason: int) -> tuple[ReconciliationStatus, ReconciliationReason]:
    known = from_wire(ReconciliationStatus, status, "status")
    return known, from_wire(ReconciliationReason, reason, "reason", otherwise=ReconciliationReason.UNSPECIFIED)


def reconciliation(message: agent_pb2.ReportReconciliationRequest) -> Reconciliation:
    status, reason = status_and_reason(message.status, message.reason)
    return Reconciliation(
        status=status,
        reason=reason,
        at=needed_moment(message, "at", "request"),
        detail=text_of(message.detail, "detail"),
        excluded_nodes=node_names(message.excluded_nodes, "excluded_nodes"),
        dropped_nodes=node_names(message.dropped_nodes, "dropped_nodes"),
    )


def milestone(message: agent_pb2.Milestone, field: str) -> Milestone:
    return Milestone(
        kind=from_wire(MilestoneKind, message.kind, f"{field}.kind"),
        at=needed_moment(message, "at", field),
        detail=text_of(message.detail, f"{field}.detail"),
    )


def ref_message(ref: AttemptRef) -> common_pb2.AttemptRef:
    return common_pb2.AttemptRef(
        job_key=ref.job_key,
        cluster=ref.cluster,
        job_id=ref.job_id,
        attempt=ref.number,
        submitted_at=stamp(ref.submitted_at),
        user=ref.user,
    )


def evidence_message(signal: Signal) -> common_pb2.Evidence:
    return common_pb2.Evidence(
        signal_id=signal.id,
        rule=signal.rule,
        role=signal.role,
        trust=signal.trust,
        category=signal.category,
        at=stamp(signal.at),
        rank=signal.rank if signal.rank is not None and signal.rank >= 0 else None,
        node=signal.nodes[0] if signal.nodes else "",
        gpu=signal.gpu if signal.gpu is not None and signal.gpu >= 0 else None,
        source=signal.source,
        file=clean(signal.file),
        line=signal.line,
        text=clean(signal.text),
        count=signal.count,
    )


def evidence_of(signals: Iterable[Signal], chosen: Sequence[str], most: int) -> list[common_pb2.Evidence]:
    """The signals named in `chosen`, in that order, then the others of the incident: `most` in all."""
    by_id = {signal.id: signal for signal in signals}
    first = [by_id.pop(name) for name in dict.fromkeys(chosen) if name in by_id]
    return [evidence_message(signal) for signal in (*first, *by_id.values())][:most]


def clean(text: str) -> str:
    """Surrogate escapes cannot travel as UTF-8: shown as they were escaped."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")
