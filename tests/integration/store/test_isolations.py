"""Isolations and pauses as the store keeps them: opened under caps, reconciled, ended in every way, and audited."""

from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.exc import OperationalError
from sqlalchemy.ext.asyncio import create_async_engine

from advisor.core.modes import Pause
from advisor.core.node_isolation import Want
from advisor.core.policy import Policy
from advisor.core.words import Category, IsolationEnd, NodeState
from advisor.store.errors import NotFound
from advisor.store.forgotten_drains import Adopting
from advisor.store.records import (
    AttemptRef,
    NodeReconciliation,
    ObservedNode,
    ReconciliationReason,
    ReconciliationStatus,
    StoredIsolation,
)
from advisor.store.store import Store
from tests.integration.store.worlds import CLUSTER, at, running

pytestmark = pytest.mark.postgres


async def wants(store: Store, *nodes: str, seconds: float = 20, acts: bool = True) -> list[Want]:
    (key,) = await store.resolve((AttemptRef(cluster=CLUSTER, job_id="7", number=0, user="ada", submitted_at=at(0)),))
    key = key or await running(store)
    return [
        Want(
            node=node,
            category=Category.GPU_HARDWARE,
            why="its GPU fell off the bus",
            evidence_at=at(seconds),
            job_key=key.job_key,
            number=key.number,
            job_id="7",
            acts=acts,
        )
        for node in nodes
    ]


async def isolated(store: Store, node: str = "node2", **changes: Any) -> StoredIsolation:
    await store.isolate(CLUSTER, await wants(store, node, **changes), now=at(30))
    (row,) = await store.isolations(cluster=CLUSTER, node=node)
    return row


async def says(
    store: Store,
    row: StoredIsolation,
    status: ReconciliationStatus,
    reason: ReconciliationReason = ReconciliationReason.OBSERVED,
    seconds: float = 40,
) -> StoredIsolation:
    news = NodeReconciliation(generation=row.generation, status=status, reason=reason, at=at(seconds))
    return await store.record_node_reconciliation(row.isolation_id, news, cluster=CLUSTER, who="agent")


async def audited(url: str) -> list[tuple[str, str]]:
    engine = create_async_engine(url)
    async with engine.connect() as connection:
        found = await connection.execute(
            text("SELECT what, who FROM audit WHERE what LIKE '%isolation%' OR what LIKE 'node%' ORDER BY seq")
        )
        rows = [(row.what, row.who) for row in found]
    await engine.dispose()
    return rows


async def test_an_isolation_lives_from_want_to_repair(isolating: Store, url: str) -> None:
    """Opened once however often it is wanted, seen drained, ended by the repair, and every step audited."""
    row = await isolated(isolating)
    again = await isolating.isolate(CLUSTER, await wants(isolating, "node2"), now=at(31))
    assert again.opens == ()
    assert (row.generation, row.dry_run, row.drained_at) == (1, False, None)
    drained = await says(isolating, row, ReconciliationStatus.VERIFIED)
    assert drained.drained_at == at(40)
    ended = await says(
        isolating, row, ReconciliationStatus.ALREADY_SATISFIED, ReconciliationReason.REPAIR_SEEN, seconds=50
    )
    assert (ended.ended_by, ended.ended_at, ended.open) == (IsolationEnd.REPAIR_SEEN, at(50), False)
    assert await isolating.open_isolations(CLUSTER) == ()
    assert [what for what, _ in await audited(url)] == [
        "isolation_opened",
        "isolation_reconciled",
        "isolation_reconciled",
        "isolation_ended",
    ]
    stale = await isolating.isolate(CLUSTER, await wants(isolating, "node2", seconds=45), now=at(60))
    assert stale.opens == ()  # evidence from before the repair
    fresh = await isolating.isolate(CLUSTER, await wants(isolating, "node2", seconds=55), now=at(60))
    assert [want.node for want in fresh.opens] == ["node2"]


async def test_an_operator_ends_it_and_the_drain_is_undone_by_a_new_generation(isolating: Store) -> None:
    """It stays open, as one to be undone, until the agent has seen it undone; words about the old one are ignored."""
    row = await isolated(isolating)
    await says(isolating, row, ReconciliationStatus.VERIFIED)
    ended = await isolating.end_isolation(CLUSTER, "node2", who="root", why="DIMM replaced", now=at(50))
    assert (ended.generation, ended.open, ended.ended_by) == (2, True, IsolationEnd.OPERATOR)
    assert (await says(isolating, row, ReconciliationStatus.VERIFIED, seconds=51)).open
    with pytest.raises(NotFound, match="no isolation of node node2"):
        await isolating.end_isolation(CLUSTER, "node2", who="root", why="again", now=at(52))
    assert not (await says(isolating, ended, ReconciliationStatus.VERIFIED, seconds=53)).open


async def test_what_is_only_on_paper_leaves_nothing_to_undo(isolating: Store) -> None:
    """A dry run that ends is done with at once; one that is wanted for real begins to act."""
    row = await isolated(isolating, acts=False)
    plan = await isolating.isolate(CLUSTER, await wants(isolating, "node2"), now=at(35))
    assert [want.node for want in plan.acts_now] == ["node2"]
    (acting,) = await isolating.open_isolations(CLUSTER)
    assert (acting.generation, acting.dry_run, row.dry_run) == (2, False, True)
    await isolated(isolating, "node3", acts=False)
    ended = await isolating.end_isolation(CLUSTER, "node3", who="root", why="no", now=at(50))
    assert not ended.open


async def test_its_time_to_live_ends_it_and_a_failed_probe_begins_it_anew(isolating: Store) -> None:
    """An hour after it began, or after the last test that failed."""
    await isolated(isolating)
    probed = at(30) + timedelta(minutes=30)
    row = await isolating.record_probe(CLUSTER, "node2", passed=False, who="root", why="diag", now=probed)
    assert (row.probe_passed, row.expires_at) == (False, probed + timedelta(hours=1))
    assert await isolating.expire_isolations(at(30) + timedelta(minutes=61)) == ()
    (ended,) = await isolating.expire_isolations(probed + timedelta(minutes=61))
    assert (ended.node, ended.ended_by) == ("node2", IsolationEnd.TIME_TO_LIVE)
    assert await isolating.expire_isolations(probed + timedelta(minutes=62)) == ()


async def test_a_passed_probe_reinstates(isolating: Store) -> None:
    """And is kept with the isolation; of a node that is not isolated there is nothing to report."""
    await isolated(isolating)
    row = await isolating.record_probe(CLUSTER, "node2", passed=True, who="root", why="diag", now=at(60))
    assert (row.ended_by, row.ended_why, row.probe_passed) == (IsolationEnd.PROBE_PASSED, "diag", True)
    with pytest.raises(NotFound):
        await isolating.record_probe(CLUSTER, "node9", passed=True, who="root", why="diag", now=at(60))


async def test_the_breaker_holds_until_an_operator_resets_it(isolating: Store, url: str) -> None:
    """Three of eight nodes where two may be: none of them, also not one by one, before the reset; and it is audited."""
    plan = await isolating.isolate(CLUSTER, await wants(isolating, "node1", "node2", "node3"), now=at(30))
    assert "at most 2 of 8" in plan.trips
    (breaker,) = await isolating.breakers()
    assert (breaker.cluster, breaker.tripped_at) == (CLUSTER, at(30))
    assert (await isolating.isolate(CLUSTER, await wants(isolating, "node1"), now=at(40))).opens == ()
    await isolating.reset_breaker(CLUSTER, who="root", why="the switch", now=at(50))
    with pytest.raises(NotFound, match="no tripped breaker"):
        await isolating.reset_breaker(CLUSTER, who="root", why="the switch", now=at(51))
    assert len((await isolating.isolate(CLUSTER, await wants(isolating, "node1"), now=at(60))).opens) == 1
    assert [item for item in await audited(url) if "breaker" in item[0]] == [
        ("isolation_breaker_tripped", "advisor"),
        ("isolation_breaker_reset", "root"),
    ]


async def test_a_pause_holds_until_its_time_or_its_end(store: Store) -> None:
    """One per cluster, replaced when set again; over by itself, or when somebody resumes."""
    await store.pause(Pause(cluster="", until=at(100), why="firmware"), who="root", origin="", now=at(0))
    await store.pause(Pause(cluster="", until=at(200), why="longer"), who="root", origin="", now=at(1))
    (found,) = await store.pauses(at(150))
    assert (found.until, found.why, found.set_by) == (at(200), "longer", "root")
    assert await store.pauses(at(201)) == ()
    with pytest.raises(NotFound, match="no pause of cluster alps"):
        await store.resume(CLUSTER, who="root", why="done", origin="", now=at(150))
    await store.resume("", who="root", why="done", origin="", now=at(150))
    assert await store.pauses(at(150)) == ()


async def test_what_modes_ask_of_its_job_is_told_with_it(isolating: Store) -> None:
    """So that a partition's or an account's monitor stops its drains too."""
    await isolated(isolating)
    (row,) = await isolating.open_isolations(CLUSTER)
    assert (row.partition, row.account) == ("gpu", "physics")


async def test_a_drain_that_nobody_accounts_for_is_shown(isolating: Store) -> None:
    """Ours by its reason, and no isolation of that name is open: neither a known one nor somebody else's drain."""
    row = await isolated(isolating)
    lost = "advisor: 01a2285d-d9dd-7aca-b195-2f157edd838d gpu_hardware : reboot issued"
    reasons = {"node2": f"advisor: {row.isolation_id} gpu_hardware", "node3": lost, "node4": "RMA 7"}
    nodes = [
        ObservedNode(name=name, state=NodeState.DRAINED, observed_at=at(35), reason=reason)
        for name, reason in reasons.items()
    ]
    await isolating.record_observations(CLUSTER, (), nodes, complete=False, now=at(35))
    assert await isolating.orphaned_drains() == ((CLUSTER, "node3", lost),)
    assert await isolating.orphaned_drains(cluster="other") == ()


async def test_a_drain_of_ours_that_was_forgotten_is_taken_over(isolating: Store) -> None:
    """A restored backup knows nothing of it: it is opened under the id that the node names, once, and ends in time."""
    forgotten = "01a229e2-8698-7a8d-885a-3d6e1c2af6d5"
    others = ObservedNode(name="node4", state=NodeState.DRAINED, reason="advisor: mine", observed_at=at(40))
    ours = ObservedNode(
        name="node3", state=NodeState.DRAINED, reason=f"advisor: {forgotten} gpu_hardware", observed_at=at(40)
    )
    await isolating.record_observations(CLUSTER, (), [ours, others], complete=False, now=at(40))
    for _ in range(2):
        assert await isolating.expire_isolations(at(41)) == ()
    (row,) = await isolating.isolations(cluster=CLUSTER)
    assert (row.isolation_id, row.node, row.dry_run, row.drained_at) == (forgotten, "node3", False, at(40))
    assert row.status is ReconciliationStatus.VERIFIED
    (ended,) = await isolating.expire_isolations(at(41) + timedelta(hours=1))
    assert ended.ended_by is IsolationEnd.TIME_TO_LIVE
    (wish,) = await isolating.open_isolations(CLUSTER)
    assert wish.ended_at is not None


async def test_a_look_for_forgotten_drains_that_fails_keeps_no_isolation_from_its_end(
    isolating: Store, url: str
) -> None:
    """It is taken again some seconds later; ticks go on meanwhile."""
    row = await isolated(isolating)
    engine = create_async_engine(url)
    async with engine.begin() as connection:
        await connection.execute(text("ALTER TABLE node_states RENAME TO gone"))
    with pytest.raises(OperationalError):
        await isolating.expire_isolations(row.expires_at)
    assert [item.node for item in await isolating.expire_isolations(row.expires_at)] == [row.node]
    await engine.dispose()


async def test_forgotten_drains_are_looked_for_often_at_first_and_now_and_then_for_good(
    isolating: Store, url: str
) -> None:
    """Also a drain that an agent tells of an hour later is taken over."""
    engine, seconds = create_async_engine(url), 0.0
    adopting = Adopting(clock=lambda: seconds)

    async def look() -> tuple[StoredIsolation, ...]:
        async with engine.begin() as connection:
            await adopting.look(connection, policy=Policy(), now=at(seconds))
        return await isolating.isolations(cluster=CLUSTER)

    looks = []
    for second in range(0, 3600, 5):
        seconds = float(second)
        if adopting.is_due:
            looks.append(second)
        assert await look() == ()
    assert looks == [*range(0, 610, 10), *range(1200, 3600, 600)]
    reason = "advisor: 01a229e2-8698-7a8d-885a-3d6e1c2af6d5 gpu_hardware"
    ours = ObservedNode(name="node3", state=NodeState.DRAINED, reason=reason, observed_at=at(3595))
    await isolating.record_observations(CLUSTER, (), [ours], complete=False, now=at(3595))
    assert await look() == ()
    seconds = 3600.0
    assert [row.node for row in await look()] == ["node3"]
    await engine.dispose()
