"""What is said of a decision whose exclusions were not all taken."""

from advisor.v1 import audit_pb2, common_pb2
from advisor.wording import outcome, to_do


def decision(*dropped: str) -> audit_pb2.Decision:
    return audit_pb2.Decision(
        advice=common_pb2.Advice(
            action=common_pb2.ACTION_RESTART, exclude_nodes=["node3", "node33"], mode=common_pb2.MODE_AUTONOMOUS
        ),
        status=common_pb2.RECONCILIATION_STATUS_VERIFIED,
        reconciliations=[
            audit_pb2.Reconciliation(status=common_pb2.RECONCILIATION_STATUS_VERIFIED, dropped_nodes=dropped)
        ],
    )


def test_a_node_that_slurm_would_not_exclude_is_named() -> None:
    """Nobody is told that a job avoids a node which it does not avoid."""
    assert outcome(decision("node33")) == "applied; the scheduler shows it, but node33 could not be excluded"
    assert to_do(decision("node33")).endswith("but node33 could not be excluded")


def test_what_was_done_whole_is_said_to_be() -> None:
    """Without a word of nodes; one that another decision wanted does not matter here."""
    assert outcome(decision()) == "applied; the scheduler shows it"
    assert outcome(decision("node9")) == "applied; the scheduler shows it"
