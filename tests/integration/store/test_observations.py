"""What is known of an attempt after many reports: it only moves forward."""

import asyncio
from dataclasses import replace

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine

from advisor.core.model import Attempt, ExitStatus
from advisor.core.words import AttemptState, NodeState
from advisor.store.records import (
    AttemptKey,
    AttemptRef,
    DetectorState,
    Notice,
    ObservedJob,
    ObservedNode,
    StoredAttempt,
)
from advisor.store.store import Store
from tests.integration.store.worlds import CLUSTER, T0, at, pending, report, running, seen

pytestmark = pytest.mark.postgres

RUNNING, COMPLETING, FAILED = AttemptState.RUNNING, AttemptState.COMPLETING, AttemptState.FAILED
CANCELLED, PENDING = AttemptState.CANCELLED, AttemptState.PENDING
_WAITING = text("SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'")


async def loaded(store: Store, key: AttemptKey) -> StoredAttempt:
    return (await store.load([key], now=at(1000)))[key]


async def after(store: Store, *jobs: ObservedJob) -> Attempt:
    """The attempt of the first of `jobs`, after all of them were reported one by one."""
    for job in jobs:
        await report(store, job, complete=False)
    ref = AttemptRef(cluster=CLUSTER, job_id=jobs[0].job_id, number=0, user="ada", submitted_at=T0)
    key = (await store.resolve([ref]))[0]
    assert key is not None
    return (await loaded(store, key)).attempt


FAILED_AT_60 = seen(FAILED, observed_at=at(60), ended_at=at(59), exit=ExitStatus(code=1), nodes=())
HOOK_AT_58 = seen(
    COMPLETING,
    notice=Notice.HOOK,
    observed_at=at(58),
    exit=ExitStatus(code=0, signal=9),
    nodes=None,
    submitted_at=None,
    started_at=None,
)


async def test_same_report_changes_nothing(store: Store) -> None:
    """A report that is sent twice, or that says the same later, names no changed attempt."""
    await report(store, FAILED_AT_60)
    assert (await report(store, FAILED_AT_60)).changed == ()
    assert (await report(store, replace(FAILED_AT_60, observed_at=at(90)))).changed == ()


async def test_busy_reasons_wake_nobody(store: Store) -> None:
    """A new pending reason or another number of fitting nodes is kept, and is no reason to look at the attempt."""
    key = (await report(store, pending())).changed[0]
    recorded = await report(store, pending(observed_at=at(11), pending_reason="Priority", nodes_fitting=3))
    assert recorded.changed == ()
    stored = await loaded(store, key)
    assert (stored.attempt.pending_reason, stored.nodes_fitting) == ("Priority", 3)


@pytest.mark.parametrize(
    "late",
    [
        seen(RUNNING, observed_at=at(30)),
        seen(COMPLETING, observed_at=at(59)),
        seen(RUNNING, observed_at=at(70)),
        seen(CANCELLED, observed_at=at(80), ended_at=at(79)),
        seen(AttemptState.OTHER, observed_at=at(80)),
    ],
    ids=["older", "just older", "newer running", "another outcome", "unknown state"],
)
async def test_an_outcome_is_final(store: Store, late: ObservedJob) -> None:
    """Once the outcome is visible no report changes it, neither an older nor a newer one."""
    attempt = await after(store, seen(), FAILED_AT_60, late)
    assert (attempt.state, attempt.ended_at, attempt.exit) == (FAILED, at(59), ExitStatus(code=1))


async def test_an_older_outcome_still_counts(store: Store) -> None:
    """An outcome that arrives after a newer report of the running attempt is believed."""
    attempt = await after(store, seen(observed_at=at(61)), FAILED_AT_60)
    assert attempt.state is FAILED


async def test_never_backwards(store: Store) -> None:
    """An attempt that ran does not wait again, whatever a report says."""
    attempt = await after(store, seen(), pending(observed_at=at(20)))
    assert (attempt.state, attempt.nodes) == (RUNNING, ("node1", "node2", "node3", "node4"))


async def test_unknown_state_concludes_nothing(store: Store) -> None:
    """A state that this version does not know leaves a running attempt running."""
    assert (await after(store, seen(), seen(AttemptState.OTHER, observed_at=at(20)))).state is RUNNING


async def test_hook_then_outcome(store: Store) -> None:
    """A hook's time and exit stand until the scheduler shows the outcome, and then its own do."""
    attempt = await after(store, seen(), HOOK_AT_58)
    assert (attempt.state, attempt.ended_at, attempt.exit) == (RUNNING, at(58), ExitStatus(code=0, signal=9))
    attempt = await after(store, FAILED_AT_60)
    assert (attempt.state, attempt.ended_at, attempt.exit) == (FAILED, at(59), ExitStatus(code=1))


async def test_hook_never_overrides_an_outcome(store: Store) -> None:
    """A hook's notice that arrives after the outcome changes neither state, time nor exit."""
    attempt = await after(store, seen(), FAILED_AT_60, HOOK_AT_58)
    assert (attempt.state, attempt.ended_at, attempt.exit) == (FAILED, at(59), ExitStatus(code=1))


async def test_time_limit_is_not_an_end(store: Store) -> None:
    """The end time of a running job is its time limit, and the start time of a waiting one a guess."""
    assert (await after(store, seen(ended_at=at(86400)))).ended_at is None
    waiting = replace(pending(job_id="8"), started_at=at(500))
    assert (await after(store, waiting)).started_at is None


async def test_allocation_stays_known(store: Store) -> None:
    """The nodes that an attempt had are kept when the scheduler no longer shows them."""
    attempt = await after(store, seen(), FAILED_AT_60)
    assert attempt.nodes == ("node1", "node2", "node3", "node4")


async def test_unknown_allocation_is_not_an_empty_one(store: Store) -> None:
    """Nodes that an observer could not tell are unknown; nodes of a waiting attempt are none."""
    assert (await after(store, seen(nodes=None))).nodes is None
    assert (await after(store, pending(job_id="8"))).nodes == ()


async def test_ranks_are_tasks_only_where_tasks_are_many(store: Store) -> None:
    """One task per node may be a launcher: then the number of ranks is not known."""
    attempt = await after(store, seen(tasks=32))
    assert (attempt.world_size, attempt.tasks_per_node) == (32, 8)
    attempt = await after(store, seen(job_id="8", tasks=4))
    assert (attempt.world_size, attempt.tasks_per_node) == (None, None)


async def test_clock_set_back_does_not_blind(store: Store) -> None:
    """After the observer's clock was set back by an hour its reports count; a report 30 s late does not."""
    key = (await report(store, pending(held=False, observed_at=at(4000)))).changed[0]
    await report(store, pending(held=True, observed_at=at(3970)), complete=False)
    assert not (await loaded(store, key)).attempt.held
    await report(store, pending(held=True, observed_at=at(400)), complete=False)
    assert (await loaded(store, key)).attempt.held


async def test_successor_ends_the_attempt(store: Store) -> None:
    """An attempt that has a successor is over although its end was never visible, and both are worth a look."""
    key = await running(store)
    recorded = await report(store, pending(attempt=1, submitted_at=at(61), observed_at=at(62)))
    assert set(recorded.changed) == {key, AttemptKey(job_key=key.job_key, number=1)}
    stored = await loaded(store, key)
    assert (stored.attempt.state, stored.attempt.ended_at) == (COMPLETING, at(61))


async def test_waiting_for_the_old_allocation_is_not_running(store: Store) -> None:
    """While the old allocation goes away, its nodes and times are not those of the next attempt."""
    key = await running(store)
    await report(store, seen(COMPLETING, attempt=1, submitted_at=T0, observed_at=at(30)))
    second = await loaded(store, AttemptKey(job_key=key.job_key, number=1))
    assert (second.attempt.nodes, second.attempt.started_at) == (None, None)
    first = await loaded(store, key)
    assert (first.attempt.ended_at, first.successor and first.successor.state) == (at(30), COMPLETING)
    await report(store, pending(attempt=1, submitted_at=at(40), observed_at=at(41)))
    second = await loaded(store, AttemptKey(job_key=key.job_key, number=1))
    assert (second.attempt.state, second.attempt.submitted_at, second.attempt.nodes) == (PENDING, at(40), ())


async def test_changed_successor_wakes_the_attempt_before(store: Store) -> None:
    """The tick of attempt N decides about N+1, so a change of N+1 names N."""
    key = await running(store)
    waiting = pending(attempt=1, submitted_at=at(61), observed_at=at(62))
    await report(store, waiting)
    recorded = await report(store, replace(waiting, observed_at=at(63), excluded_nodes=("node2",)))
    assert key in recorded.changed


async def test_the_states_of_excluded_nodes_outside_the_allocation(store: Store) -> None:
    """They come with the attempt, of its own cluster only; nodes that nobody excludes do not."""
    key = await running(store, excluded_nodes=("node9", "node8", "node2"))
    for cluster, state in ((CLUSTER, NodeState.DOWN), ("other", NodeState.UP)):
        seen_nodes = [ObservedNode(name=f"node{n}", state=state, observed_at=at(20)) for n in (2, 7, 9)]
        await store.record_observations(cluster, (), seen_nodes, complete=False, now=at(20))
    other = (await loaded(store, key)).other_nodes
    assert [(fact.name, fact.state) for fact in other] == [("node9", NodeState.DOWN)]


async def test_our_mark_and_the_users_exclusions(store: Store) -> None:
    """The user's exclusions are those that our mark does not claim, and the mark names the attempt it is for."""
    key = await running(store)
    marked = pending(
        attempt=1,
        submitted_at=at(61),
        observed_at=at(62),
        excluded_nodes=("node9", "node2"),
        our_excluded_nodes=("node2",),
        marked_generation=3,
        marked_attempt=0,
        eligible_at=at(182),
    )
    await report(store, marked)
    stored = await loaded(store, key)
    assert stored.user_excluded == ("node9",)
    assert stored.successor is not None
    assert (stored.successor.by_us, stored.successor.eligible_at) == (True, at(182))
    assert stored.successor.excluded_nodes == ("node9", "node2")
    await report(store, replace(marked, observed_at=at(63), marked_attempt=7))
    successor = (await loaded(store, key)).successor
    assert successor is not None
    assert not successor.by_us


@pytest.mark.parametrize(("back", "recorded"), [(1, False), (120, False), (121, True), (3600, True)])
async def test_a_clock_that_is_set_back_hides_no_change_of_a_node_for_as_long(
    store: Store, back: float, recorded: bool
) -> None:
    """A report that is a little older was under way for longer; none is for minutes."""
    (key,) = (await report(store, seen())).changed

    async def shown(state: NodeState, seconds: float) -> NodeState:
        node = ObservedNode(name="node2", state=state, observed_at=at(seconds))
        await store.record_observations(CLUSTER, [], [node], complete=False, now=at(seconds))
        nodes = (await store.load([key], now=at(seconds)))[key].nodes
        return next(fact.state for fact in nodes if fact.name == "node2")

    assert await shown(NodeState.UP, 5000) is NodeState.UP
    assert await shown(NodeState.DOWN, 5000 - back) is (NodeState.DOWN if recorded else NodeState.UP)


async def test_node_states(store: Store) -> None:
    """A node's state is what was seen last, since when it is so, and its attempts are worth a look when it changes."""
    key = await running(store)
    up = ObservedNode(name="node2", state=NodeState.UP, observed_at=at(0), partitions=("gpu",))
    down = ObservedNode(name="node2", state=NodeState.DOWN, observed_at=at(50), reason="not responding")

    async def told(*nodes: ObservedNode) -> tuple[AttemptKey, ...]:
        return (await store.record_observations(CLUSTER, (), nodes, complete=False, now=at(60))).changed

    assert await told(up) == ()
    assert await told(down) == (key,)
    assert await told(replace(down, observed_at=at(55)), replace(up, observed_at=at(52))) == ()
    assert await told(replace(up, observed_at=at(40))) == ()
    fact = next(fact for fact in (await loaded(store, key)).nodes if fact.name == "node2")
    assert (fact.state, fact.since) == (NodeState.DOWN, at(50))
    other = next(fact for fact in (await loaded(store, key)).nodes if fact.name == "node1")
    assert (other.state, other.since) == (NodeState.OTHER, None)


async def test_many_jobs_in_one_report(store: Store) -> None:
    """A listing of a thousand jobs is one report, and the same listing again changes nothing."""
    jobs = [seen(job_id=str(number), observed_at=at(10)) for number in range(1000)]
    assert len((await report(store, *jobs)).changed) == 1000
    assert (await report(store, *jobs)).changed == ()
    assert len(await store.watched(at(20))) == 1000


async def test_a_tick_saves_while_a_report_works_in_its_nodes(url: str, store: Store, other: Store) -> None:
    """There may be tens of thousands of them: rows of attempts, which ticks write too, are locked after that only."""
    key = await running(store)
    up = ObservedNode(name="node1", state=NodeState.UP, observed_at=at(11))
    await store.record_observations(CLUSTER, [], [up], complete=False, now=at(11))
    engine = create_async_engine(url)
    async with engine.begin() as connection:
        await connection.execute(text("SELECT 1 FROM node_states FOR UPDATE"))
        down = replace(up, state=NodeState.DOWN, observed_at=at(60))
        reporting = asyncio.create_task(
            store.record_observations(CLUSTER, [FAILED_AT_60], [down], complete=False, now=at(60))
        )
        await _somebody_waits(connection)
        async with asyncio.timeout(10):
            await other.save_states({key: DetectorState(state=b"1")})
    await reporting
    await engine.dispose()
    stored = await loaded(store, key)
    assert (stored.attempt.state, stored.detector_state) == (FAILED, b"1")


async def _somebody_waits(connection: AsyncConnection) -> None:
    async with asyncio.timeout(10):
        while not (await connection.execute(_WAITING)).all():  # noqa: ASYNC110 - nothing tells of it
            await asyncio.sleep(0.02)


async def test_a_requeue_does_not_move_the_start(store: Store) -> None:
    """Slurm shows the present moment as the start of a running job that is being requeued: how long it ran is kept."""
    attempt = await after(store, seen(), seen(COMPLETING, observed_at=at(600), started_at=at(599)))
    assert attempt.started_at == at(5)
