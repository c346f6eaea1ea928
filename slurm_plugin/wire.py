"""Between the contract's messages and the values of this package. Enumerations match by name."""

from dataclasses import replace
from datetime import UTC, datetime

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from advisor.v1 import agent_pb2, common_pb2
from slurm_plugin import guard, squeue

_REASONS = {
    "timeout": "timeout",
    "refused": "refused",
    "garbled": "garbled",
    "missing": "missing",
    "permission": "permission",
    "not_configured": "not_configured",
}
# A wrong clock on the other side must not become an endless lease.
TIME_TO_LIVE_SECONDS_MAX = 3600.0
NODES_MAX = 1024


class BadAdviceError(ValueError):
    """Advice that cannot be understood; it is never half applied."""


def state(phase: guard.Phase) -> common_pb2.AttemptState.ValueType:
    return common_pb2.AttemptState.Value(f"ATTEMPT_STATE_{phase.name}")


def status(value: guard.Status) -> common_pb2.ReconciliationStatus.ValueType:
    return common_pb2.ReconciliationStatus.Value(f"RECONCILIATION_STATUS_{value.name}")


def reason(value: guard.Reason) -> common_pb2.ReconciliationReason.ValueType:
    return common_pb2.ReconciliationReason.Value(f"RECONCILIATION_REASON_{value.name}")


def node_state(node: squeue.NodeRow) -> agent_pb2.NodeState.ValueType:
    """Down wins over not responding: a node that Slurm has given up is not merely silent."""
    if node.state in {"down", "fail", "failing", "error", "powered_down", "powering_down"}:
        return agent_pb2.NODE_STATE_DOWN
    if not node.responding:
        return agent_pb2.NODE_STATE_NOT_RESPONDING
    if node.state == "draining":
        return agent_pb2.NODE_STATE_DRAINING
    if node.state == "drained":
        return agent_pb2.NODE_STATE_DRAINED
    if node.state in {"idle", "allocated", "mixed", "completing", "planned", "reserved", "maint", "blocked"}:
        return agent_pb2.NODE_STATE_UP
    return agent_pb2.NODE_STATE_OTHER


def stamp(epoch: float | None) -> Timestamp | None:
    if epoch is None:
        return None
    made = Timestamp()
    made.FromDatetime(datetime.fromtimestamp(epoch, UTC))
    return made


def duration(seconds: float) -> Duration:
    made = Duration()
    made.FromNanoseconds(int(seconds * 1e9))
    return made


def seconds(span: Duration) -> float:
    return span.seconds + span.nanos / 1e9


def clean(text: str, most: int) -> str:
    """Text of a user as a message can carry it: valid UTF-8, no NUL, bounded."""
    return text.encode("utf-8", "replace").decode("utf-8", "replace").replace("\x00", "")[:most]


def unavailable(source: str, error: squeue.SlurmError) -> common_pb2.Unavailable:
    return common_pb2.Unavailable(
        source=source, reason=_REASONS.get(error.problem, "refused"), detail=clean(error.detail, 1000)
    )


def advice(message: common_pb2.Advice, *, received_monotonic: float) -> guard.Advice:
    """One advice as the guard needs it, its time to live counted from `received_monotonic`.

    Raises BadAdviceError for anything that a sound advisor does not send.
    """
    actions = {
        common_pb2.ACTION_RESTART: guard.Action.RESTART,
        common_pb2.ACTION_STOP: guard.Action.STOP,
        common_pb2.ACTION_NONE: guard.Action.NONE,
    }
    ref = message.attempt
    if message.action not in actions:
        raise BadAdviceError(f"action {message.action} is unknown")
    if not message.advice_id or not ref.job_id.isdigit() or not ref.job_key or not ref.HasField("submitted_at"):
        raise BadAdviceError("advice without id, job id, job key or submit time names nobody")
    if len(message.exclude_nodes) > NODES_MAX:
        raise BadAdviceError(f"more than {NODES_MAX} nodes to exclude")
    order = {node: at for at, node in enumerate(message.exclude_order)}
    nodes = sorted(dict.fromkeys(message.exclude_nodes), key=lambda node: order.get(node, len(order)))
    live = min(seconds(message.time_to_live), TIME_TO_LIVE_SECONDS_MAX)
    return guard.Advice(
        advice_id=message.advice_id,
        incarnation=message.incarnation,
        job_key=ref.job_key,
        job_id=ref.job_id,
        attempt=ref.attempt,
        submitted_at=ref.submitted_at.seconds,
        user=ref.user,
        generation=message.generation,
        action=actions[message.action],
        exclude=tuple(nodes),
        autonomous=message.mode == common_pb2.MODE_AUTONOMOUS,
        may_end_live_attempt=message.may_end_live_attempt,
        start_not_before=_epoch(message, "start_not_before"),
        decision_deadline=_epoch(message, "decision_deadline"),
        delay_until=_epoch(message, "delay_until"),
        paused=message.HasField("paused_until"),
        save_until=_epoch(message, "save_until"),
        dead_nodes=tuple(dict.fromkeys(message.dead_nodes))[:NODES_MAX],
        resume_step=message.resume_step if message.HasField("resume_step") else None,
        cause=message.reason,
        explanation=clean(message.explanation, 1000),
        expires_monotonic=received_monotonic + live,
    )


def _epoch(message: common_pb2.Advice, name: str) -> int | None:
    if not message.HasField(name):  # type: ignore[arg-type]  # the stubs want literals
        return None
    value: Timestamp = getattr(message, name)
    return value.seconds + (1 if value.nanos else 0)


def expiring(value: guard.Advice, until_monotonic: float) -> guard.Advice:
    """The same advice, valid until then."""
    return replace(value, expires_monotonic=until_monotonic)
