"""Converters between the contract and the store."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from advisor.core.model import ExitStatus, Signal
from advisor.core.words import Action, AttemptState, Mode, NodeState, Trust
from advisor.service import wire
from advisor.service.errors import BadRequestError
from advisor.service.node_operations import node_reconciliation
from advisor.store.records import AgentMode, MilestoneKind, Notice, ReconciliationReason, ReconciliationStatus
from advisor.v1 import agent_pb2, common_pb2

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


def _job(**fields: Any) -> agent_pb2.JobObservation:
    ref = common_pb2.AttemptRef(job_id="17", attempt=1, user="alice", submitted_at=wire.stamp(NOW))
    base: dict[str, Any] = {"attempt": ref, "observed_at": wire.stamp(NOW), "state": common_pb2.ATTEMPT_STATE_FAILED}
    return agent_pb2.JobObservation(**(base | fields))


@pytest.mark.parametrize(
    "kind",
    [
        AttemptState,
        Action,
        Mode,
        ReconciliationStatus,
        ReconciliationReason,
        MilestoneKind,
        AgentMode,
        Notice,
        NodeState,
    ],
)
def test_every_word_has_a_number_and_comes_back(kind: Any) -> None:
    """No word of ours is missing in the contract: each survives the way out and back."""
    for word in kind:
        assert wire.from_wire(kind, wire.to_wire(word), "field") is word


def test_an_unknown_state_becomes_other() -> None:
    """A state of a newer contract is OTHER, from which nothing is concluded."""
    assert wire.observed_job(_job(state=99), "c", "jobs[0]").state is AttemptState.OTHER


def test_an_observation_keeps_what_it_says() -> None:
    """Nodes, exit status, paths and optional fields arrive as given."""
    job = wire.observed_job(
        _job(
            nodes=["node1", "node2"],
            nodes_known=True,
            exit=agent_pb2.ExitStatus(code=1, signal=9),
            stdout_path="/home/alice/out",
            job_rules='[{"name": "a"}]',
            array_task=0,
        ),
        "c",
        "jobs[0]",
    )
    assert job.nodes == ("node1", "node2")
    assert job.exit == ExitStatus(code=1, signal=9)
    assert job.stdout_path == "/home/alice/out"
    assert job.job_rules == '[{"name": "a"}]'
    assert job.array_task == 0
    assert job.restarts_max is None


@pytest.mark.parametrize(("known", "nodes"), [(True, ()), (False, None)])
def test_no_nodes_is_not_the_same_as_unknown_nodes(known: bool, nodes: tuple[str, ...] | None) -> None:
    """An empty allocation that is known is empty; one that is not known is None."""
    assert wire.observed_job(_job(nodes_known=known), "c", "jobs[0]").nodes == nodes


@pytest.mark.parametrize(
    ("fields", "place"),
    [
        ({"attempt": common_pb2.AttemptRef(job_id="", attempt=1)}, "jobs[3].attempt.job_id"),
        ({"attempt": common_pb2.AttemptRef(job_id="1; rm", attempt=1)}, "jobs[3].attempt.job_id"),
        ({"attempt": common_pb2.AttemptRef(job_id="1", cluster="other")}, "jobs[3].attempt.cluster"),
        ({"observed_at": None}, "jobs[3].observed_at"),
        ({"nodes": ["node1", "../etc"]}, "jobs[3].nodes[1]"),
        ({"stdout_path": "relative"}, "jobs[3].stdout_path"),
        ({"name": "a\0b"}, "jobs[3].name"),
        ({"job_rules": "x" * 40_000}, "jobs[3].job_rules"),
        ({"name": "x" * 5000}, "jobs[3].name"),
        ({"marked_generation": 2**64 - 1}, "jobs[3].marked_generation"),
    ],
)
def test_a_bad_field_is_refused_by_its_place(fields: dict[str, Any], place: str) -> None:
    """The refusal names the field inside the message."""
    with pytest.raises(BadRequestError, match="^" + place.replace("[", r"\[").replace("]", r"\]")):
        wire.observed_job(_job(**fields), "c", "jobs[3]")


def test_a_time_outside_the_calendar_is_refused() -> None:
    """A timestamp that no datetime can hold is bad input, not a crash."""
    message = _job()
    message.observed_at.seconds = 2**60
    with pytest.raises(BadRequestError, match="observed_at"):
        wire.observed_job(message, "c", "jobs[0]")


def test_evidence_with_broken_bytes_can_travel() -> None:
    """Surrogate escapes from a log are shown as escapes; protobuf takes UTF-8 only."""
    signal = Signal(
        id="s", rule="r", trust=Trust.LOG, source="log", seen_at=NOW, text="bad \udcff byte", file="/x\udcfe"
    )
    message = wire.evidence_message(signal)
    assert message.text == "bad \\udcff byte"
    assert message.SerializeToString()


def test_decisive_evidence_comes_first_and_is_bounded() -> None:
    """Evidence follows the attribution's order, then the rest, within the bound."""
    signals = [Signal(id=name, rule="r", trust=Trust.LOG, source="log", seen_at=NOW) for name in "abcd"]
    chosen = wire.evidence_of(signals, ("c", "a", "gone"), 3)
    assert [item.signal_id for item in chosen] == ["c", "a", "b"]


def test_a_clock_that_is_ahead_says_nothing_of_the_future() -> None:
    """An agent's clock was years ahead for a moment: what is seen of a node afterwards counts, and so does its next
    fault, which is later than the repair.
    """
    ahead, behind = NOW + timedelta(days=900), NOW - timedelta(seconds=5)
    for given, kept in ((ahead, NOW), (behind, behind)):
        node = agent_pb2.NodeObservation(name="n1", state=agent_pb2.NODE_STATE_UP, observed_at=wire.stamp(given))
        assert wire.observed_node(node, "nodes[0]", NOW).observed_at == kept
        repair = agent_pb2.ReportNodeReconciliationRequest(
            status=common_pb2.RECONCILIATION_STATUS_ALREADY_SATISFIED,
            reason=common_pb2.RECONCILIATION_REASON_REPAIR_SEEN,
            at=wire.stamp(given),
        )
        assert node_reconciliation(repair, NOW).at == kept
