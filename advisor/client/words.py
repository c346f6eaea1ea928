"""The contract's enumerations as the words that people write: `ACTION_RESTART` is "restart"."""

from collections.abc import Sequence

from advisor.v1 import common_pb2


def action_name(action: int) -> str:
    return _word(common_pb2.Action.items(), action, "ACTION_")


def mode_name(mode: int) -> str:
    return _word(common_pb2.Mode.items(), mode, "MODE_")


def status_name(status: int) -> str:
    return _word(common_pb2.ReconciliationStatus.items(), status, "RECONCILIATION_STATUS_")


def reason_name(reason: int) -> str:
    return _word(common_pb2.ReconciliationReason.items(), reason, "RECONCILIATION_REASON_")


def milestone_name(kind: int) -> str:
    return _word(common_pb2.MilestoneKind.items(), kind, "MILESTONE_KIND_")


def state_name(state: int) -> str:
    return _word(common_pb2.AttemptState.items(), state, "ATTEMPT_STATE_")


def _word(items: Sequence[tuple[str, int]], number: int, prefix: str) -> str:
    """The word of an enumeration as people write it; a number that this version does not know stays a number."""
    name = next((name for name, value in items if value == number), f"{prefix}{number}")
    word = name.removeprefix(prefix).lower()
    return "" if word == "unspecified" else word
