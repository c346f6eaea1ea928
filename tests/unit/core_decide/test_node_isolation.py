"""Isolations of a cluster: what opens, what is refused, and what trips the breaker."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from advisor.core.model import Attribution, Decision, Incident, Isolation, Signal
from advisor.core.node_isolation import Cluster, Held, Want, plan, wants_of
from advisor.core.policy import Policy
from advisor.core.words import Action, Category, IncidentKind, Mode, Reason, Role, Trust

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
LATER = NOW + timedelta(minutes=5)
POLICY = Policy(
    isolate=True, isolate_dry_run=False, isolations_max=3, isolations_percent_max=50.0, isolations_per_day_max=4
)


def want(node: str, *, acts: bool = True, at: datetime = NOW) -> Want:
    return Want(
        node=node,
        category=Category.GPU_HARDWARE,
        why="its GPU fell off the bus",
        evidence_at=at,
        job_key="k",
        number=0,
        job_id="7",
        acts=acts,
    )


def cluster(*held: str, nodes: int = 100, today: int = 0, tripped: bool = False) -> Cluster:
    found = tuple(Held(node=node, dry_run=False) for node in held)
    return Cluster(nodes=nodes, held=found, released={}, opened_today=today, tripped=tripped)


def decision(*signals: Signal, mode: Mode = Mode.AUTONOMOUS, settled: bool = True) -> Decision:
    return Decision(
        action=Action.RESTART,
        reason=Reason.NODES_IMPLICATED,
        incident=Incident(kind=IncidentKind.CRASH, signals=signals),
        attribution=Attribution(category=Category.GPU_HARDWARE, root_cause="its GPU fell off the bus", confidence=0.9),
        isolation=Isolation(isolate_for_cluster=("n1",)),
        mode=mode,
        settled=settled,
    )


def signal(trust: Trust = Trust.KERNEL) -> Signal:
    return Signal(
        id="s", rule="xid", trust=trust, source="kernel", seen_at=NOW, at=NOW, nodes=("n1",), role=Role.INITIATING
    )


def test_evidence_settles_before_it_isolates() -> None:
    """Young evidence waits, and counts: an event that hits one node after the other isolates none of them."""
    first = plan([want("n1")], cluster(), POLICY, NOW + timedelta(seconds=29))
    assert (first.opens, first.young) == ((), (want("n1"),))
    assert plan([want("n1")], cluster(), POLICY, NOW + timedelta(seconds=30)).opens == (want("n1"),)
    event = [want(f"n{i}", at=NOW + timedelta(seconds=5 * i)) for i in range(4)]
    done = plan(event, cluster(), POLICY, NOW + timedelta(seconds=30))
    assert (done.opens, done.young) == ((), ())
    assert done.trips


def test_one_bad_node_is_isolated() -> None:
    """Within the caps a want opens an isolation, once per node however many jobs want it."""
    assert [item.node for item in plan([want("n1"), want("n1")], cluster(), POLICY, LATER).opens] == ["n1"]


def test_what_is_held_is_not_opened_again() -> None:
    """Of a node that is isolated nothing new is wanted; one that is on paper begins to act when a want does."""
    assert plan([want("n1")], cluster("n1"), POLICY, LATER).opens == ()
    on_paper = replace(cluster(), held=(Held(node="n1", dry_run=True),))
    assert [item.node for item in plan([want("n1")], on_paper, POLICY, LATER).acts_now] == ["n1"]
    assert plan([want("n1", acts=False)], on_paper, POLICY, LATER).acts_now == ()


def test_a_new_fault_while_the_last_drain_is_being_undone_is_not_lost() -> None:
    """The agent was away when the isolation ended, and the node failed again: asked again when the drain is gone."""
    ending = replace(cluster(), held=(Held(node="n1", dry_run=False, releasing=True),))
    done = plan([want("n1")], ending, POLICY, LATER)
    assert (done.opens, done.refused, done.young) == ((), (), (want("n1"),))
    spent = replace(ending, released={"n1": LATER})
    assert plan([want("n1")], spent, POLICY, LATER).young == ()
    assert plan([want("n1"), want("n2")], replace(ending, tripped=True), POLICY, LATER).young == (want("n1"),)


def test_more_nodes_than_the_cap_isolate_none_and_trip_the_breaker() -> None:
    """Four at once with a cap of three are not the nodes' fault; neither is a fourth after three."""
    for wants, held in (([want(f"n{i}") for i in range(4)], ()), ([want("n9")], ("n1", "n2", "n3"))):
        done = plan(wants, cluster(*held), POLICY, LATER)
        assert done.opens == ()
        assert "at most 3 of 100" in done.trips
        assert done.refused == tuple(wants)


def test_the_smaller_bound_holds() -> None:
    """Half of four nodes is two, although three would be allowed; of one node none is, and nothing trips."""
    small = plan([want("n1"), want("n2"), want("n3")], cluster(nodes=4), POLICY, LATER)
    assert small.opens == ()
    assert "at most 2 of 4" in small.trips
    tiny = plan([want("n1")], cluster(nodes=1), POLICY, LATER)
    assert (tiny.opens, tiny.trips) == ((), "")
    assert tiny.refused == (want("n1"),)


def test_too_many_within_a_day_trip_the_breaker() -> None:
    """Also when each came alone and was reinstated in between."""
    assert plan([want("n5")], cluster(today=3), POLICY, LATER).opens != ()
    done = plan([want("n5")], cluster(today=4), POLICY, LATER)
    assert done.opens == ()
    assert "within a day" in done.trips


def test_a_tripped_breaker_refuses_everything() -> None:
    """Until an operator resets it, and without tripping again."""
    done = plan([want("n1")], cluster(tripped=True), POLICY, LATER)
    assert (done.opens, done.trips, done.refused) == ((), "", (want("n1"),))


@pytest.mark.parametrize(("seconds", "opens"), [(-1, 0), (0, 0), (1, 1)])
def test_evidence_from_before_the_repair_is_spent(seconds: int, opens: int) -> None:
    """The same incident does not isolate a node again that was reinstated since; a new fault does."""
    repaired = replace(cluster(), released={"n1": NOW})
    done = plan([want("n1", at=NOW + timedelta(seconds=seconds))], repaired, POLICY, LATER)
    assert (len(done.opens), done.refused) == (opens, ())


def test_our_own_drain_is_no_evidence() -> None:
    """The scheduler shows the node drained after we drained it: the evidence stays as old as the kernel's."""
    drained = replace(signal(Trust.SCHEDULER), id="d", at=NOW + timedelta(minutes=5))
    assert [item.evidence_at for item in wants_of(decision(signal(), drained), "k", 0, "7", POLICY)] == [NOW]


def test_wants_need_a_settled_decision_and_a_trusted_fact() -> None:
    """Off by policy, unsettled, or with nothing but a log's word: nothing is wanted of the cluster."""
    assert [item.node for item in wants_of(decision(signal()), "k", 0, "7", POLICY)] == ["n1"]
    assert wants_of(decision(signal()), "k", 0, "7", Policy()) == ()
    assert wants_of(decision(signal(), settled=False), "k", 0, "7", POLICY) == ()
    assert wants_of(decision(signal(Trust.LOG)), "k", 0, "7", POLICY) == ()
    assert wants_of(decision(signal(Trust.SCHEDULER)), "k", 0, "7", POLICY) == ()
    assert wants_of(decision(), "k", 0, "7", POLICY) == ()


@pytest.mark.parametrize(
    ("dry", "mode", "acts"),
    [(False, Mode.AUTONOMOUS, True), (True, Mode.AUTONOMOUS, False), (False, Mode.MONITOR, False)],
)
def test_only_an_acting_policy_in_autonomous_mode_acts(dry: bool, mode: Mode, acts: bool) -> None:
    """Anything else stays on paper."""
    policy = replace(POLICY, isolate_dry_run=dry)
    assert [item.acts for item in wants_of(decision(signal(), mode=mode), "k", 0, "7", policy)] == [acts]
