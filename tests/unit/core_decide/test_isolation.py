"""Exclusions: only what may be blamed, never more than the job can spare, and a reason for everything left out."""

from dataclasses import replace
from typing import Any

import pytest

from advisor.core.isolation import isolate, without_room
from advisor.core.model import Attribution, Isolation, NodeFact, OpenAdvice, Order, Withheld
from advisor.core.policy import Policy
from advisor.core.words import (
    Action,
    AttemptState,
    Category,
    IncidentKind,
    NodeState,
    OrderKind,
    Reason,
    Trust,
    WithheldReason,
)
from tests.unit.core_decide.worlds import (
    LATER,
    attempt,
    attribution,
    bad_gpu,
    implication,
    incident,
    job,
    past,
    snapshot,
)

FAILED = AttemptState.FAILED
WIDE = tuple(f"n{i:02}" for i in range(20))
BESIDE = "nodes that fit the job beside those that it excludes itself"


def _isolate(
    cause: Attribution, policy: Policy | None = None, kind: IncidentKind = IncidentKind.CRASH, **changes: Any
) -> Isolation:
    return isolate(snapshot(**changes), incident(kind), cause, policy or Policy(), LATER)


def _reasons(isolation: Isolation) -> dict[str, WithheldReason]:
    return {item.node: item.reason for item in isolation.withheld}


def test_an_implicated_node_of_the_allocation_is_excluded() -> None:
    """By trusted and by log evidence alike: an exclusion is for this job only."""
    for trust in (Trust.KERNEL, Trust.LOG):
        assert _isolate(bad_gpu("node2", trust=trust)) == Isolation(
            exclude_for_job=("node2",), suspects=("node2",) if trust.trusted else ()
        )


def test_a_node_outside_the_allocation_is_never_excluded() -> None:
    """A line that names somebody else's node reaches nobody."""
    isolation = _isolate(bad_gpu("node2", "node9"))
    assert isolation.exclude_for_job == ("node2",)
    assert _reasons(isolation) == {"node9": WithheldReason.NOT_IN_ALLOCATION}


def test_live_an_unknown_allocation_excludes_nobody() -> None:
    """Not knowing the allocation is not the same as knowing that a node is in it; earlier exclusions stay."""
    unknown = attempt(FAILED, nodes=None)
    isolation = _isolate(bad_gpu("node2"), attempt=unknown, past=(past(0, excluded_nodes=("node7",)),))
    assert isolation.exclude_for_job == ("node7",)
    assert _reasons(isolation) == {"node2": WithheldReason.ALLOCATION_UNKNOWN}
    assert _isolate(bad_gpu("node2"), attempt=unknown, offline=True).exclude_for_job == ("node2",)


def test_nothing_is_excluded_when_nothing_failed() -> None:
    """A healthy attempt has no one to blame; what earlier attempts excluded stays excluded."""
    isolation = _isolate(bad_gpu("node2"), kind=IncidentKind.NONE, past=(past(0, excluded_nodes=("node7",)),))
    assert isolation.exclude_for_job == ("node7",)


def test_exclusions_survive_every_requeue() -> None:
    """Most certain first: trusted before log-only, the recent before the old, each node once."""
    history = (
        past(0, excluded_nodes=("a", "b"), implicated_nodes=("a",), trusted=True),
        past(1, excluded_nodes=("a", "b", "c")),
        past(2, excluded_nodes=("d",)),
    )
    assert _isolate(bad_gpu("node2"), past=history).exclude_for_job == ("node2", "a", "d", "b", "c")
    by_log = _isolate(bad_gpu("node2", trust=Trust.LOG), past=history)
    assert by_log.exclude_for_job == ("a", "node2", "d", "b", "c")


def test_the_users_own_exclusions_are_not_made_ours() -> None:
    """Undoing ours must not take away what the user asked for."""
    isolation = _isolate(bad_gpu("node2"), user_excluded=("node7",), past=(past(0, excluded_nodes=("node7", "node8")),))
    assert isolation.exclude_for_job == ("node2", "node8")


def test_too_many_nodes_at_once_are_not_the_nodes_fault() -> None:
    """Over the bound per incident or over half the allocation, none is excluded and all are reported."""
    wide = attempt(FAILED, nodes=WIDE)
    assert len(_isolate(bad_gpu(*WIDE[:4]), attempt=wide).exclude_for_job) == 4
    five = _isolate(bad_gpu(*WIDE[:5]), attempt=wide)
    assert five.exclude_for_job == ()
    assert set(_reasons(five).values()) == {WithheldReason.MANY_NODES}
    assert len(five.withheld) == 5
    assert _isolate(bad_gpu("node1", "node2")).exclude_for_job == ("node1", "node2")
    assert _isolate(bad_gpu("node1", "node2", "node3")).exclude_for_job == ()
    pair = attempt(FAILED, nodes=("node1", "node2"))
    assert _isolate(bad_gpu("node1", "node2"), attempt=pair).exclude_for_job == ("node1", "node2")


def test_many_log_names_do_not_hide_a_trusted_one() -> None:
    """One kernel record among a crowd of log-only names still excludes its node."""
    crowd = tuple(implication(node, Trust.LOG, 0.3) for node in WIDE[1:9])
    cause = bad_gpu(*WIDE[:9], trusted=True, implications=(implication(WIDE[0]), *crowd))
    isolation = _isolate(cause, attempt=attempt(FAILED, nodes=WIDE))
    assert isolation.exclude_for_job == (WIDE[0],)
    assert set(_reasons(isolation)) == set(WIDE[1:9])


def test_shared_storage_excludes_nobody() -> None:
    """Every node sees a file system that is away; none of them is to blame."""
    cause = attribution(Category.STORAGE, nodes=("node2",), transient_storage=True)
    isolation = _isolate(cause)
    assert isolation.exclude_for_job == ()
    assert _reasons(isolation) == {"node2": WithheldReason.MANY_NODES}


def test_an_implication_that_needs_a_repeat_is_reported() -> None:
    """What evidence names without being enough to blame is visible as withheld."""
    isolation = _isolate(bad_gpu("node2", implications=(implication("node2"), implication("node3", Trust.LOG, 0.2))))
    assert isolation.exclude_for_job == ("node2",)
    assert _reasons(isolation) == {"node3": WithheldReason.NEEDS_REPEAT}


def test_one_job_avoids_a_bounded_number_of_nodes() -> None:
    """The least certain go first, and say so."""
    history = tuple(past(n, excluded_nodes=(f"x{n}",)) for n in range(8))
    isolation = _isolate(bad_gpu("node2"), past=history)
    assert isolation.exclude_for_job == ("node2", "x7", "x6", "x5", "x4", "x3", "x2", "x1")
    assert isolation.withheld == (Withheld(node="x0", reason=WithheldReason.CAP_PER_JOB, detail="at most 8 per job"),)


@pytest.mark.parametrize(
    ("fitting", "users", "facts", "kept"),
    [
        (None, (), (), ("node2", "x", "y")),
        (7, (), (), ("node2", "x", "y")),
        (6, (), (), ("node2", "x")),
        (6, ("z",), (), ("node2",)),
        (6, ("z",), (NodeFact(name="z", state=NodeState.DOWN),), ("node2", "x")),
        (6, ("z",), (NodeFact(name="z", state=NodeState.NOT_RESPONDING),), ("node2", "x")),
        (5, (), (NodeFact(name="y", state=NodeState.DRAINED),), ("node2", "y")),
        (5, (), (NodeFact(name="node2", state=NodeState.DOWN),), ("node2", "x")),
        (3, (), (), ()),
    ],
)
def test_exclusions_leave_the_job_enough_nodes(
    fitting: int | None, users: tuple[str, ...], facts: tuple[NodeFact, ...], kept: tuple[str, ...]
) -> None:
    """A job that asks for four nodes keeps four to start on; nodes out of service cost nothing to avoid."""
    history = (past(0, excluded_nodes=("y",)), past(1, excluded_nodes=("x",)))
    isolation = _isolate(bad_gpu("node2"), nodes_fitting=fitting, user_excluded=users, nodes=facts, past=history)
    assert isolation.exclude_for_job == kept
    assert set(_reasons(isolation)) == {"node2", "x", "y"} - set(kept)
    assert set(_reasons(isolation).values()) <= {WithheldReason.CAPACITY}


@pytest.mark.parametrize(
    ("fitting", "users", "detail"),
    [
        (4, (), "nodes that fit the job: 4; it needs 4"),
        (3, (), "nodes that fit the job: 3; it needs 4"),
        (5, ("z",), f"{BESIDE}: 4; it needs 4, so its own list leaves no other"),
        (4, ("z",), f"{BESIDE}: 3; it needs 4"),  # without its list there would be no other, either
        (5, ("z", "y", "x", "w", "v", "u"), f"{BESIDE}: 0; it needs 4, so its own list leaves no other"),
        (4, ("down",), "nodes that fit the job: 4; it needs 4"),  # is not among them
    ],
)
def test_why_a_node_cannot_be_spared_counts_what_the_job_excludes_itself(
    fitting: int, users: tuple[str, ...], detail: str
) -> None:
    """A user whose own list leaves the bad node only must not be told that four fit."""
    down = NodeFact(name="down", state=NodeState.DOWN)
    isolation = _isolate(bad_gpu("node2"), nodes_fitting=fitting, user_excluded=users, other_nodes=(down,))
    assert [(item.node, item.detail) for item in isolation.withheld] == [("node2", detail)]


def test_a_node_that_is_down_outside_the_allocation_costs_nothing_to_avoid() -> None:
    """What the user excludes and is drained takes no place that an exclusion of ours could have."""
    gone = NodeFact(name="z", state=NodeState.DRAINED)
    tight = {"nodes_fitting": 5, "user_excluded": ("z",)}
    assert _isolate(bad_gpu("node2"), **tight).exclude_for_job == ()
    assert _isolate(bad_gpu("node2"), **tight, other_nodes=(gone,)).exclude_for_job == ("node2",)


def test_the_allocation_stands_in_for_what_the_job_asked() -> None:
    """Where the number of nodes asked for is not known, the allocation tells it."""
    isolation = _isolate(bad_gpu("node2"), job=job(nodes_requested=None), nodes_fitting=4)
    assert _reasons(isolation) == {"node2": WithheldReason.CAPACITY}


def test_the_cluster_isolates_nothing_until_a_site_turns_it_on() -> None:
    """Off by default, also with perfect evidence."""
    assert _isolate(bad_gpu("node2"), nodes_fitting=1000).isolate_for_cluster == ()


ON = Policy(isolate=True)


def test_only_trusted_hardware_evidence_isolates() -> None:
    """A log line never takes a node from others, and neither does a failure that is not the hardware's."""
    assert _isolate(bad_gpu("node2"), ON, nodes_fitting=100).isolate_for_cluster == ("node2",)
    by_log = _isolate(bad_gpu("node2", trust=Trust.LOG), ON, nodes_fitting=100)
    assert by_log.isolate_for_cluster == ()
    assert _reasons(by_log) == {"node2": WithheldReason.UNTRUSTED_EVIDENCE}
    software = bad_gpu("node2", category=Category.SYSTEM_SOFTWARE)
    assert _isolate(software, ON, nodes_fitting=100).isolate_for_cluster == ()


def test_log_evidence_gains_no_trust_beside_trusted_evidence() -> None:
    """That the kernel blames node2 says nothing about node3, which only a log names."""
    cause = bad_gpu(
        "node2", "node3", trusted=True, implications=(implication("node2"), implication("node3", Trust.LOG, 0.3))
    )
    isolation = _isolate(cause, ON, nodes_fitting=1000)
    assert isolation.exclude_for_job == ("node2", "node3")
    assert isolation.isolate_for_cluster == ("node2",)


@pytest.mark.parametrize(("fitting", "isolated"), [(49, 0), (50, 1), (1000, 2), (None, 0)])
def test_isolation_is_bounded_by_number_and_by_share(fitting: int | None, isolated: int) -> None:
    """The smaller of two nodes and two percent; an unknown cluster size spares none."""
    wide = attempt(FAILED, nodes=WIDE)
    isolation = _isolate(bad_gpu(*WIDE[:3]), ON, attempt=wide, nodes_fitting=fitting, job=job(nodes_requested=1))
    assert len(isolation.isolate_for_cluster) == isolated
    assert list(_reasons(isolation).values()).count(WithheldReason.CAP_CLUSTER) == 3 - isolated


def test_history_with_other_jobs_makes_a_suspect() -> None:
    """One log-only hit does not; together with what other jobs saw it does, and the worst comes first."""
    cause = bad_gpu("node1", "node2", trust=Trust.LOG)
    assert _isolate(cause).suspects == ()
    facts = (
        NodeFact(name="node1", state=NodeState.UP, score=0.2),
        NodeFact(name="node2", state=NodeState.UP, score=0.9),
        NodeFact(name="node3", state=NodeState.UP, score=5.0),
    )
    assert _isolate(cause, nodes=facts).suspects == ("node2", "node1")


def test_isolation_is_the_same_for_the_same_facts() -> None:
    """The order in which implications arrive changes nothing."""
    one, two = implication("node1"), implication("node2", weight=0.95)
    cause = bad_gpu("node1", "node2", implications=(one, two))
    assert _isolate(cause) == _isolate(replace(cause, implications=(two, one)))


def test_what_an_exclusion_by_hand_costs_is_known_before_the_next_decision() -> None:
    """The least certain go: of what is advised now and was excluded before, beside what people say."""
    order = Order(id="o1", kind=OrderKind.EXCLUDE, node="node9", at=LATER, who="ada", why="smells", attempt=0)
    advice = OpenAdvice(
        generation=1,
        action=Action.RESTART,
        exclude_nodes=("node2",),
        category=Category.GPU_HARDWARE,
        reason=Reason.NODES_IMPLICATED,
        created_at=LATER,
        applied=False,
    )
    seen = snapshot(orders=(order,), advice=advice, past=(past(0, excluded_nodes=("node7",)),))
    assert without_room(seen, Policy()) == ()
    (lost,) = without_room(seen, replace(Policy(), exclusions_per_job_max=2))
    assert (lost.node, lost.reason) == ("node7", WithheldReason.CAP_PER_JOB)
