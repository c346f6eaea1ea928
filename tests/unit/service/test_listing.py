"""The list of decisions: narrow, unambiguous, and plain about what came of each."""

import pytest

from advisor.commands.listing import listed, short_ids
from advisor.v1 import audit_pb2, common_pb2
from advisor.wording import outcome, to_do

IDS = (
    "019308f4-53a2-7abc-8000-000000000001",
    "019308f4-53a2-7abd-8000-000000000002",
    "019308f9-0000-7000-8000-000000000003",
)


def _decision(
    advice_id: str = IDS[0], action: common_pb2.Action.ValueType = common_pb2.ACTION_RESTART, **fields: bool
) -> audit_pb2.Decision:
    advice = common_pb2.Advice(
        advice_id=advice_id,
        attempt=common_pb2.AttemptRef(job_id="4711", attempt=2, user="alice"),
        action=action,
        exclude_nodes=["node2", "node7"],
        category="gpu_hardware",
        reason="nodes_implicated",
        mode=common_pb2.MODE_AUTONOMOUS,
    )
    advice.created_at.FromJsonString("2026-03-01T12:00:03Z")
    return audit_pb2.Decision(advice=advice, partition="train", **fields)


def _answered(decision: audit_pb2.Decision, status: str, reason: str) -> audit_pb2.Decision:
    decision.status = common_pb2.ReconciliationStatus.Value(f"RECONCILIATION_STATUS_{status}")
    decision.reconciliations.add(
        status=decision.status, reason=common_pb2.ReconciliationReason.Value(f"RECONCILIATION_REASON_{reason}")
    )
    return decision


def test_ids_are_as_short_as_they_can_be() -> None:
    """Eight characters, and more where two decisions share those. Each is a beginning of its id only."""
    short = short_ids(IDS)
    assert [short[name] for name in IDS] == ["019308f4-53a2-7abc", "019308f4-53a2-7abd", "019308f9"]
    assert all(sum(name.startswith(text) for name in IDS) == 1 for text in short.values())


@pytest.mark.parametrize("columns", [80, 50])
def test_the_list_fits_the_terminal(columns: int) -> None:
    """Nothing is cut, no line is wider, and each decision begins at the left with its id."""
    decisions = [_decision(name) for name in IDS]
    lines = list(listed(decisions, columns))
    assert max(map(len, lines)) <= columns
    begun = [line.split()[0] for line in lines if not line.startswith(" ")]
    assert begun == [short_ids(IDS)[name] for name in IDS]
    text = " ".join(line.strip() for line in lines)
    assert text.count("restart without node2,node7") == 3
    if columns == 80:
        assert len(lines) == 6


def test_a_pipe_gets_one_line_each() -> None:
    """What is not a terminal has no width."""
    (line,) = listed([_decision()], None)
    assert "  4711#2  " in line
    assert line.endswith("alice  gpu_hardware  nodes_implicated  pending")


def test_nothing_is_excluded_where_nothing_is_done() -> None:
    """Action none has no nodes to go without, whatever is implicated."""
    (line,) = listed([_decision(action=common_pb2.ACTION_NONE)], None)
    assert "node2" not in line
    assert line.endswith("nothing to do")


@pytest.mark.parametrize(
    ("status", "reason", "told"),
    [
        ("WITHHELD", "OUT_OF_SCOPE", "withheld: out_of_scope"),
        ("WITHHELD", "AGENT_OBSERVES", "withheld: agent_observes"),
        ("VERIFIED", "OBSERVED", "applied; the scheduler shows it"),
        ("EXPIRED", "TIME_TO_LIVE", "expired: time_to_live"),
    ],
)
def test_what_came_of_it_says_why(status: str, reason: str, told: str) -> None:
    """The agent's own reason stands beside the status."""
    assert outcome(_answered(_decision(), status, reason)) == told


@pytest.mark.parametrize(
    ("mode", "left"), [(common_pb2.MODE_AUTONOMOUS, "newer advice says it again"), (common_pb2.MODE_MONITOR, "yours")]
)
def test_what_the_scheduler_has_forgotten_is_not_told_as_done(mode: common_pb2.Mode, left: str) -> None:
    """Whatever came of it: in monitor mode, whoever had done it must do it again."""
    decision = _answered(_decision(), "VERIFIED" if mode == common_pb2.MODE_AUTONOMOUS else "WITHHELD", "OBSERVED")
    decision.undone, decision.advice.mode = True, mode
    assert outcome(decision) == "forgotten by the scheduler"
    assert left in to_do(decision)


@pytest.mark.parametrize(("in_scope", "told"), [(True, "would have acted"), (False, "out of scope")])
def test_monitor_mode_says_whether_it_would_have_acted(in_scope: bool, told: str) -> None:
    """Whether the job is one to act on is what an operator wants to know before going autonomous."""
    decision = _decision(in_scope=in_scope)
    decision.advice.mode = common_pb2.MODE_MONITOR
    assert outcome(decision) == f"monitor mode, pending ({told})"
    assert outcome(_answered(decision, "WITHHELD", "MONITOR_MODE")) == f"withheld: monitor_mode ({told})"
