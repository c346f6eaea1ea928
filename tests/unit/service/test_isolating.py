"""Wants on their way from decisions to the store: each judged once, young ones kept until they have settled."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import cast

from advisor.clock import SystemClock
from advisor.core.model import Attribution, Decision, Incident, Isolation, Signal
from advisor.core.node_isolation import Cluster, Held, Plan, Want, plan
from advisor.core.policy import Policy
from advisor.core.words import Action, Category, IncidentKind, Mode, Reason, Role, Trust
from advisor.instruments import Instruments
from advisor.isolating import Isolating
from advisor.store.store import Store
from advisor.verdicts import Verdict

NOW = datetime(2026, 5, 1, tzinfo=UTC)
POLICY = Policy(isolate=True, isolate_dry_run=False, isolations_max=1)


class Nodes:
    """Judges as the store does, in memory, and counts how often it is asked."""

    def __init__(self) -> None:
        self.held: tuple[Held, ...] = ()
        self.tripped = False
        self.asked: list[tuple[str, ...]] = []

    async def isolate(self, cluster: str, wants: Sequence[Want], *, now: datetime, fence: object = None) -> Plan:
        self.asked.append(tuple(want.node for want in wants))
        known = Cluster(nodes=100, held=self.held, released={}, tripped=self.tripped)
        done = plan(wants, known, POLICY, now)
        self.held += tuple(Held(node=want.node, dry_run=not want.acts) for want in done.opens)
        self.tripped |= bool(done.trips)
        return done


def verdict(node: str, at: datetime = NOW, job: str = "k") -> Verdict:
    signal = Signal(
        id="s", rule="xid", trust=Trust.KERNEL, source="kernel", seen_at=at, at=at, nodes=(node,), role=Role.INITIATING
    )
    decision = Decision(
        action=Action.RESTART,
        reason=Reason.NODES_IMPLICATED,
        incident=Incident(kind=IncidentKind.CRASH, signals=(signal,)),
        attribution=Attribution(category=Category.GPU_HARDWARE, root_cause="its GPU fell off the bus", confidence=0.9),
        isolation=Isolation(isolate_for_cluster=(node,)),
        mode=Mode.AUTONOMOUS,
    )
    item = SimpleNamespace(job=SimpleNamespace(cluster="c", key=job, job_id="7"))
    sighting = SimpleNamespace(item=item, key=SimpleNamespace(number=0))
    return cast(Verdict, SimpleNamespace(decision=decision, sighting=sighting))


async def test_young_evidence_is_kept_although_its_attempt_is_done_with() -> None:
    """The attempt is watched for one tick only; the node is isolated all the same when the evidence has settled."""
    nodes = Nodes()
    isolating = Isolating(cast(Store, nodes), POLICY, Instruments(SystemClock()))
    assert not await isolating.isolate([verdict("n1")], NOW + timedelta(seconds=5))
    assert not await isolating.isolate([], NOW + timedelta(seconds=20))
    assert await isolating.isolate([], NOW + timedelta(seconds=31))
    assert [item.node for item in nodes.held] == ["n1"]
    assert not await isolating.isolate([verdict("n1")], NOW + timedelta(seconds=40))
    assert nodes.asked == [("n1",)] * 3  # judged once, and not asked about again


async def test_an_event_that_comes_node_by_node_isolates_none() -> None:
    """A second node within the time in which the first settles: the breaker trips and nothing is held."""
    nodes = Nodes()
    isolating = Isolating(cast(Store, nodes), POLICY, Instruments(SystemClock()))
    await isolating.isolate([verdict("n1")], NOW + timedelta(seconds=5))
    await isolating.isolate([verdict("n2", NOW + timedelta(seconds=10), "k2")], NOW + timedelta(seconds=12))
    for seconds in (31, 60, 120):
        await isolating.isolate([], NOW + timedelta(seconds=seconds))
    assert nodes.held == ()
    assert nodes.tripped


async def test_a_want_is_dropped_when_later_evidence_speaks_for_its_node() -> None:
    """While it settles the same attempt's decision comes to name another node: the first is never isolated."""
    nodes = Nodes()
    isolating = Isolating(cast(Store, nodes), POLICY, Instruments(SystemClock()))
    await isolating.isolate([verdict("n1")], NOW + timedelta(seconds=5))
    await isolating.isolate([verdict("n2")], NOW + timedelta(seconds=20))
    assert await isolating.isolate([], NOW + timedelta(seconds=31))
    assert nodes.held == (Held(node="n2", dry_run=False),)
    assert not nodes.tripped


async def test_what_a_jobs_former_replica_wanted_is_dropped() -> None:
    """Whoever lost a job does not go on wanting what its evidence said then: the heir has newer evidence."""
    nodes = Nodes()
    isolating = Isolating(cast(Store, nodes), POLICY, Instruments(SystemClock()))
    await isolating.isolate([verdict("n1")], NOW + timedelta(seconds=5))
    isolating.forget(["k"])
    assert not await isolating.isolate([], NOW + timedelta(seconds=31))
    assert nodes.held == ()


async def test_an_isolation_that_the_store_forgot_is_opened_again() -> None:
    """A promoted standby may not know of it: what was judged in another incarnation is asked anew."""
    nodes = Nodes()
    known = nodes.held
    isolating = Isolating(cast(Store, nodes), POLICY, Instruments(SystemClock()))
    assert await isolating.isolate([verdict("n1")], NOW + timedelta(seconds=31))
    nodes.held = known
    isolating.begin_anew()
    assert await isolating.isolate([verdict("n1")], NOW + timedelta(seconds=40))
    assert nodes.held == (Held(node="n1", dry_run=False),)
