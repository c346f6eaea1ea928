"""Leases in the database: who holds what, and that nobody writes what another has taken. No process, no tick."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from advisor.board import Board
from advisor.clock import FollowingClock, SystemClock
from advisor.core.leases import SLACK_JOBS
from advisor.core.model import Progress
from advisor.core.words import AttemptState
from advisor.instruments import Instruments
from advisor.leasing import Leasing
from advisor.store.errors import LeaseLost
from advisor.store.ids import new_id
from advisor.store.leases import Newcomer, Turn
from advisor.store.records import AttemptKey, DetectorState
from advisor.store.store import Store
from tests.integration.store.worlds import CLUSTER, at, record, report, seen

pytestmark = pytest.mark.postgres

LEASE = timedelta(seconds=60)
STATE = DetectorState(state=b"{}", progress=Progress(), signals=(), foreign=0)


@dataclass(slots=True, kw_only=True)
class Replica:
    """What a process does with the store, step by step."""

    store: Store
    name: str
    held: Turn | None = None
    most: int | None = None

    async def join(self, place: str = "") -> None:
        newcomer = Newcomer(replica_id=self.name, host="h", pid=1, place=place, version="1", build="b", schema="0014")
        await self.store.replicas.join(newcomer, lease=LEASE)

    async def turn(self, seconds: float = 30.0) -> set[str]:
        known = self.held.fence.epochs if self.held is not None else {}
        self.held = await self.store.replicas.take_turn(
            self.name, known, now=at(seconds), lease=LEASE, attempts_max=self.most
        )
        return set(self.held.fence.epochs)

    async def write(self, *keys: AttemptKey) -> None:
        assert self.held is not None
        await self.store.save_states(dict.fromkeys(keys, STATE), fence=self.held.fence)

    async def renew(self, *, stuck: bool = False) -> bool:
        most = self.held.jobs_max if self.held is not None else self.most
        done = await self.store.replicas.renew(self.name, lease=LEASE, tick_age=timedelta(), stuck=stuck, jobs_max=most)
        return done is not None


@pytest.fixture
async def engine(url: str) -> AsyncIterator[AsyncEngine]:
    made = create_async_engine(url)
    yield made
    await made.dispose()


async def replica(store: Store, place: str = "", most: int | None = None) -> Replica:
    made = Replica(store=store, name=new_id(at(0)), most=most)
    await made.join(place)
    return made


async def run_out(engine: AsyncEngine, who: Replica) -> None:
    """Its lease has run out, whatever it thinks."""
    async with engine.begin() as connection:
        await connection.execute(
            text("UPDATE replicas SET until = clock_timestamp() - interval '1 s' WHERE id = :id"), {"id": who.name}
        )


async def somebody_waits(engine: AsyncEngine) -> None:
    """Until a lock is waited for."""
    waits = text(
        "SELECT count(*) FROM pg_locks WHERE NOT granted AND database = (SELECT oid FROM pg_database "
        "WHERE datname = current_database()) OR NOT granted AND locktype = 'transactionid'"
    )
    async with asyncio.timeout(30), engine.connect() as looking:
        while not (await looking.execute(waits)).scalar_one():  # noqa: ASYNC110 -- the database tells nobody
            await asyncio.sleep(0.01)


async def jobs(store: Store, count: int) -> list[AttemptKey]:
    recorded = await report(store, *(seen(job_id=str(100 + at)) for at in range(count)), complete=False)
    return sorted(recorded.changed)


async def test_one_replica_holds_everything_and_ended_jobs_leave_nothing(store: Store, engine: AsyncEngine) -> None:
    """Alone it takes all there is at its first turn; the lease of a job that is done with is removed."""
    keys = await jobs(store, 5)
    alone = await replica(store)
    assert await alone.turn() == {key.job_key for key in keys}
    await report(store, seen(AttemptState.CANCELLED, job_id="100", ended_at=at(20), observed_at=at(20)), complete=False)
    assert len(await alone.turn(seconds=30.0 + 2 * 3600)) == 4
    async with engine.connect() as connection:
        assert (await connection.execute(text("SELECT count(*) FROM leases"))).scalar_one() == 4


async def test_two_share_and_a_leaving_one_gives_all_up_at_once(store: Store) -> None:
    """The first gives up its surplus at its next turn, the second takes it; who leaves is replaced without waiting."""
    keys = {key.job_key for key in await jobs(store, 10)}
    one = await replica(store)
    await one.turn()
    two = await replica(store)
    assert await two.turn() == set()
    assert len(await one.turn()) == 5
    assert await two.turn() | await one.turn() == keys
    assert len(await two.turn()) == 5
    await store.replicas.leave(one.name)
    assert await two.turn() == keys


async def test_a_dead_replicas_jobs_are_taken_over_once_its_lease_has_run_out(
    store: Store, engine: AsyncEngine
) -> None:
    """Not before; then by whoever comes, with a higher epoch, and what the dead one still wants to write is refused."""
    keys = await jobs(store, 4)
    dead, heir = await replica(store), await replica(store)
    await dead.turn()
    await heir.turn()
    before = dict(dead.held.fence.epochs) if dead.held is not None else {}
    assert len(await heir.turn()) + len(before) == 4
    await run_out(engine, dead)
    with pytest.raises(LeaseLost):
        await dead.write(*[key for key in keys if key.job_key in before])
    assert await heir.turn() == {key.job_key for key in keys}
    assert heir.held is not None
    assert all(heir.held.fence.epochs[job] > epoch for job, epoch in before.items())
    await heir.write(*keys)
    assert not await dead.renew(), "a life whose jobs are all with others is over"
    with pytest.raises(LeaseLost):
        await dead.turn()


async def test_a_lease_that_ran_out_untaken_is_renewed(store: Store, engine: AsyncEngine) -> None:
    """Whom nobody missed goes on where he was: same jobs, same epochs."""
    keys = await jobs(store, 2)
    one = await replica(store)
    await one.turn()
    assert one.held is not None
    before = one.held.fence
    await run_out(engine, one)
    with pytest.raises(LeaseLost):
        await one.turn()
    assert await one.renew()
    await one.turn()
    assert one.held.fence == before
    await one.write(*keys)


async def test_a_write_in_flight_keeps_others_from_taking_over(store: Store, engine: AsyncEngine, url: str) -> None:
    """Whoever has checked and not yet committed is waited for, though his lease has run out meanwhile."""
    await jobs(store, 2)
    one, two = await replica(store), await replica(store)
    mine = await one.turn()
    async with engine.begin() as writing:
        await writing.execute(text("SELECT id FROM replicas WHERE id = :id FOR KEY SHARE"), {"id": one.name})
        await run_out(engine, one)
        assert not mine & await two.turn()
    assert mine <= await two.turn()


async def test_a_writer_that_waits_for_an_heir_is_refused(store: Store, engine: AsyncEngine) -> None:
    """The check is made on the row as the heir leaves it, not as it was when the writer began to wait."""
    keys = await jobs(store, 2)
    one = await replica(store)
    await one.turn()
    async with engine.begin() as taking:
        await taking.execute(text("SELECT id FROM replicas WHERE id = :id FOR UPDATE"), {"id": one.name})
        await taking.execute(text("UPDATE replicas SET ended_at = clock_timestamp() WHERE id = :id"), {"id": one.name})
        writing = asyncio.create_task(one.write(*keys))
        await somebody_waits(engine)
    with pytest.raises(LeaseLost):
        await writing


async def test_what_is_not_held_is_not_written(store: Store) -> None:
    """A living replica writes about its own jobs only."""
    await jobs(store, 6)
    one, two = await replica(store), await replica(store)
    mine, others = await one.turn(), await two.turn()
    assert mine
    assert others
    with pytest.raises(LeaseLost, match="not ours"):
        await one.write(*[AttemptKey(job_key=job, number=0) for job in others])


async def test_an_heir_takes_all_and_gives_up_what_is_over_its_share(store: Store, engine: AsyncEngine) -> None:
    """Nobody's jobs wait for a second heir: the first to come inherits all, and what is over his share is free."""
    keys = {key.job_key for key in await jobs(store, 12)}
    dead = await replica(store)
    await dead.turn()
    heirs = [await replica(store) for _ in range(3)]
    await run_out(engine, dead)
    assert len(await heirs[0].turn()) == 4
    assert len(await heirs[1].turn()) == 4
    assert await heirs[2].turn() | await heirs[0].turn() | await heirs[1].turn() == keys


async def test_decisions_of_whoever_lost_the_job_are_not_stored_and_the_heirs_name_him(
    store: Store, engine: AsyncEngine
) -> None:
    """One decision, by the heir, whose audit row holds replica and epoch."""
    (key,) = await jobs(store, 1)
    dead, heir = await replica(store), await replica(store)
    await dead.turn()
    assert dead.held is not None
    await run_out(engine, dead)
    await heir.turn()
    assert heir.held is not None
    with pytest.raises(LeaseLost):
        await store.commit_decisions([record(key)], fence=dead.held.fence)
    await store.commit_decisions([record(key)], fence=heir.held.fence)
    assert not (await store.due(at(30))).advice
    assert (await store.due(at(9000))).advice
    with pytest.raises(LeaseLost):
        await store.expire_advice(at(9000), fence=dead.held.fence)
    assert await store.expire_advice(at(9000), fence=heir.held.fence) == 1
    async with engine.connect() as connection:
        found = await connection.execute(
            text(
                "SELECT detail::json ->> 'replica', detail::json ->> 'epoch' FROM audit "
                "WHERE what = 'decision_committed'"
            )
        )
        assert [tuple(row) for row in found] == [(heir.name, str(heir.held.fence.epochs[key.job_key]))]


async def test_whoever_has_the_place_of_a_dead_one_does_not_wait_for_its_lease(store: Store) -> None:
    """The next process on the same socket holds its lock: the one before is dead, whatever its row says."""
    keys = {key.job_key for key in await jobs(store, 3)}
    dead = await replica(store, place="boot 1 2")
    await dead.turn()
    other = await replica(store, place="boot 1 3")
    assert await other.turn() == set()
    heir = await replica(store, place="boot 1 2")
    assert await heir.turn() | await other.turn() | await heir.turn() == keys


async def test_two_takers_at_once_take_each_job_once(store: Store, engine: AsyncEngine) -> None:
    """Five that come for the same free and orphaned jobs at once: every job is held by one of them, and nobody has more
    than his share and the slack (he may have taken by a count that was a moment old, and keeps what is within it).
    """
    keys = {key.job_key for key in await jobs(store, 40)}
    dead = await replica(store)
    await dead.turn()
    await jobs(store, 60)
    await run_out(engine, dead)
    others = [await replica(store) for _ in range(5)]
    most = 60 // len(others) + SLACK_JOBS
    held: list[Mapping[str, int]] = []
    for _ in range(20):  # two that want the same one leave another to the next turn, by chance
        await asyncio.gather(*(one.turn() for one in others))
        held = [one.held.fence.epochs for one in others if one.held is not None]
        if sum(map(len, held)) == 60 and max(map(len, held)) <= most:
            break
    assert sum(map(len, held)) == 60
    assert max(map(len, held)) <= most
    assert keys <= {job for some in held for job in some}
    epochs = [epoch for some in held for epoch in some.values()]
    assert len(epochs) == len(set(epochs))


async def test_a_job_that_another_takes_at_the_same_moment_is_his(store: Store, engine: AsyncEngine) -> None:
    """Seen free, and taken by another before it could be: whoever is late has nothing."""
    (key,) = await jobs(store, 1)
    one, two = await replica(store), await replica(store)
    async with engine.begin() as taking:
        taken = "INSERT INTO leases VALUES (:job, :id, nextval('lease_epochs'), clock_timestamp())"
        await taking.execute(text(taken), {"job": key.job_key, "id": one.name})
        turning = asyncio.create_task(two.turn())
        await somebody_waits(engine)
    assert await turning == set()
    assert await one.turn() == {key.job_key}


async def test_a_stuck_replica_lives_on_only_while_it_is_alone(store: Store) -> None:
    """A tick that does not get on keeps its jobs from nobody who could look at them."""
    stuck = await replica(store)
    assert await stuck.renew(stuck=True)
    await replica(store)
    assert not await stuck.renew(stuck=True)
    assert await stuck.renew(stuck=False)


async def test_the_board_is_known_to_have_changed(store: Store) -> None:
    """The token differs after a decision, and is the same while nothing happens."""
    (key,) = await jobs(store, 1)
    before = await store.replicas.board_token()
    assert await store.replicas.board_token() == before
    await store.commit_decision(record(key))
    assert await store.replicas.board_token() != before


class MovedClock(SystemClock):
    """On which time passes when the test says so, too."""

    passed = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.passed


def of_process(
    store: Store, *, own: SystemClock | None = None, attempts_max: int | None = None
) -> tuple[Leasing, Board]:
    """What a process has: its life among others, and the board that its agents see."""
    clock = FollowingClock(own or SystemClock())
    board = Board(store, clock)
    newcomer = Newcomer(replica_id=new_id(at(0)), host="h", pid=1, place="here", version="1", build="b", schema="0014")
    leasing = Leasing(
        store=store,
        board=board,
        clock=clock,
        newcomer=newcomer,
        lease_seconds=LEASE.total_seconds(),
        attempts_max=attempts_max,
        tell=lambda _: None,
        instruments=Instruments(clock),
    )
    return leasing, board


async def test_who_finds_twice_that_his_life_is_over_begins_one(store: Store, engine: AsyncEngine) -> None:
    """The tick and the renewal of a process that wakes up both notice: two lives would halve its share for a lease."""
    leasing, _ = of_process(store)
    await leasing.join()
    async with engine.begin() as connection:
        await connection.execute(text("UPDATE replicas SET ended_at = clock_timestamp(), until = clock_timestamp()"))
    turns = await asyncio.gather(leasing.turn(), leasing.turn(), return_exceptions=True)
    assert [type(turn) for turn in turns] == [LeaseLost, LeaseLost]
    assert [item.replica_id for item in await store.replicas.known() if item.ended_at is None] == [leasing.replica_id]


async def test_what_ended_while_a_lease_was_lost_leaves_no_lease(store: Store, engine: AsyncEngine) -> None:
    """A replica that lost its turn and nobody inherited from holds on, but not to what is done with by then."""
    await jobs(store, 3)
    one = await replica(store)
    await one.turn()
    await run_out(engine, one)
    with pytest.raises(LeaseLost):
        await one.turn()
    one.held = None  # nothing that it knew counts
    assert await one.renew()
    await report(store, seen(AttemptState.CANCELLED, job_id="100", ended_at=at(20), observed_at=at(20)), complete=False)
    assert len(await one.turn(seconds=30.0 + 2 * 3600)) == 2
    async with engine.connect() as connection:
        assert (await connection.execute(text("SELECT count(*) FROM leases"))).scalar_one() == 2


async def test_what_a_dead_one_decided_last_is_shown_by_its_heir(store: Store, engine: AsyncEngine) -> None:
    """It died before anybody heard of it, and the heir decides nothing new: its agents see that advice all the same."""
    (key,) = await jobs(store, 1)
    heir, board = of_process(store)
    await heir.join()
    dead = await replica(store)
    await dead.turn()
    assert await board.open_for(CLUSTER) == ()
    assert dead.held is not None
    now = SystemClock().now()
    await store.commit_decisions([record(key, created_at=now)], fence=dead.held.fence)
    await run_out(engine, dead)
    version = board.version
    assert await heir.turn() == (key,)
    await board.wait_beyond(version, 20.0)
    assert [row.generation for row in await board.open_for(CLUSTER)] == [1]


async def test_what_an_older_build_cannot_read_goes_to_others(store: Store, engine: AsyncEngine) -> None:
    """Half-way through an upgrade: whoever cannot read an attempt gives its job up and does not take it again."""
    keys = [key.job_key for key in await jobs(store, 4)]
    older, _ = of_process(store)
    await older.join()
    assert len(await older.turn()) == 4, "alone it holds whatever there is"
    older.refuse(keys[:1])
    assert len(await older.turn()) == 4, "and nobody else could do better"
    newer = await replica(store)
    await older.turn()
    assert keys[0] not in {key.job_key for key in await older.turn()}
    assert keys[0] in await newer.turn()
    await store.replicas.leave(newer.name)
    assert len(await older.turn()) == 4, "nobody else is there any more"


async def test_a_refused_job_that_is_beyond_everybodys_share_is_taken_all_the_same(
    store: Store, engine: AsyncEngine
) -> None:
    """Who is short of his share cannot read it, and the others have theirs: after a lease they take it, and keep it."""
    await jobs(store, 4)
    older, _ = of_process(store)
    await older.join()
    await older.turn()
    newer = await replica(store)
    await older.turn()
    assert len(await newer.turn()) == 2
    refused = (await older.turn())[0].job_key
    older.refuse([refused])
    assert len(await older.turn()) == 1
    assert refused not in await newer.turn(), "it may yet be somebody's who is short"
    async with engine.begin() as connection:
        await connection.execute(
            text("UPDATE leases SET changed_at = changed_at - interval '61 s' WHERE replica_id IS NULL")
        )
    assert refused in await newer.turn()
    assert len(await older.turn()) == 1
    assert refused in await newer.turn()


async def test_who_died_is_missed_until_somebody_is_in_its_place(store: Store, engine: AsyncEngine) -> None:
    """Lost redundancy is told after the heir has everything; a clean end is not missed, nor what was started again."""
    heir, left, dead = await replica(store, "1"), await replica(store, "2"), await replica(store, "3")
    await store.replicas.leave(left.name)
    await run_out(engine, dead)
    await heir.turn()
    found = {item.replica_id: item for item in await store.replicas.known()}
    assert {name for name, item in found.items() if item.lost_since is not None} == {dead.name}
    assert found[dead.name].ended_at is not None
    await replica(store, "3")
    assert [item.replica_id for item in await store.replicas.known() if item.lost_since is not None] == []


async def rounds(*replicas: Replica, count: int = 3) -> list[set[str]]:
    """Turns of each, renewed in between as each does every second; what each holds after the last."""
    for _ in range(count):
        for one in replicas:
            await one.turn()
            await one.renew()
    return [await one.turn() for one in replicas]


def unwatched(*replicas: Replica) -> list[int]:
    return [one.held.unwatched for one in replicas if one.held is not None]


async def test_one_replica_holds_no_more_than_it_can_tick(store: Store) -> None:
    """The rest is nobody's and is said; the most important is held, also when it comes last."""
    await jobs(store, 6)
    alone = await replica(store, most=4)
    assert len(await alone.turn()) == 4
    assert unwatched(alone) == [2]
    recorded = await report(store, seen(job_id="900", user="zoe", nodes_requested=512), complete=False)
    (large,) = recorded.changed
    assert large.job_key in await alone.turn()
    assert len(await alone.turn()) == 4
    assert unwatched(alone) == [3]


async def test_what_one_replica_has_no_room_for_others_take(store: Store, engine: AsyncEngine) -> None:
    """Beyond an equal share, and nothing goes to and fro: a job that ends gives the small one room for another."""
    keys = {key.job_key for key in await jobs(store, 12)}
    small, large = await replica(store, most=3), await replica(store, most=100)
    held = await rounds(small, large)
    assert [len(some) for some in held] == [3, 9]
    assert held[0] | held[1] == keys
    assert unwatched(small, large) == [0, 0]
    for _ in range(3):
        assert await rounds(small, large, count=1) == held
    more = {key.job_key for key in await jobs(store, 30)} - keys
    held = await rounds(small, large)
    assert [len(some) for some in held] == [3, 27]
    assert more <= held[0] | held[1]


async def test_where_nobody_has_room_the_most_important_are_held_and_the_rest_is_nobodys(
    store: Store, engine: AsyncEngine
) -> None:
    """All full: what is left is told by each, no tick waits for it, and it comes to rest; a larger job finds its place,
    and a replica that joins takes what was left."""
    recorded = await report(
        store, *(seen(job_id=str(200 + n), nodes_requested=n) for n in range(1, 11)), complete=False
    )
    one, two = await replica(store, most=3), await replica(store, most=4)
    held = await rounds(one, two)
    assert [len(some) for some in held] == [3, 4]
    assert unwatched(one, two) == [3, 3]
    async with engine.connect() as connection:
        found = await connection.execute(
            text("SELECT j.nodes_requested FROM leases l JOIN jobs j ON j.key = l.job_key WHERE replica_id IS NOT NULL")
        )
        assert sorted(found.scalars()) == [4, 5, 6, 7, 8, 9, 10]
    assert all(item.full for item in await store.replicas.known())
    assert await rounds(one, two, count=1) == held
    (large,) = (await report(store, seen(job_id="900", nodes_requested=512), complete=False)).changed
    assert large.job_key in set().union(*await rounds(one, two))
    three = await replica(store, most=100)
    held = await rounds(one, two, three)
    assert set().union(*held) == {large.job_key, *(key.job_key for key in recorded.changed)}
    assert unwatched(one, two, three) == [0, 0, 0]


async def test_attempts_are_counted_and_jobs_are_held_whole(store: Store) -> None:
    """A job whose last attempt is still looked at beside its next one takes two places."""
    large = seen(job_id="100", nodes_requested=64)
    await report(store, large, seen(job_id="101"), complete=False)
    ended = replace(large, state=AttemptState.FAILED, ended_at=at(20), observed_at=at(20))
    again = replace(large, attempt=1, submitted_at=at(21), observed_at=at(25), started_at=at(24))
    await report(store, ended, complete=False)
    await report(store, again, complete=False)
    alone = await replica(store, most=2)
    assert len(await alone.turn()) == 1
    assert unwatched(alone) == [1]
    assert alone.held is not None
    assert len(alone.held.keys) == 2


async def test_jobs_that_nobody_has_room_for_make_no_tick_old(store: Store) -> None:
    """Where all are full, nobody need be taken for dead; where one has room and takes nothing, he must be."""
    await jobs(store, 4)
    clock = MovedClock()
    leasing, board = of_process(store, own=clock, attempts_max=1)
    await leasing.join()
    other = await replica(store, most=1)
    for _ in range(2):
        await leasing.turn()
        await leasing._renew(stuck=False)
        await rounds(other, count=1)

    async def seconds_free() -> float:
        for _ in range(2):
            await leasing.turn()
            await leasing._look()
            clock.passed += 4.0
        assert board.elsewhere is not None
        return board.elsewhere.free_seconds

    assert leasing.unwatched == 2
    assert await seconds_free() == 0.0
    await store.replicas.renew(other.name, lease=LEASE, tick_age=timedelta(), stuck=False, jobs_max=5)
    assert await seconds_free() >= 4.0


async def test_what_others_took_while_a_tick_takes_long_is_not_nobodys(store: Store) -> None:
    """The turn saw it free, and the next turn is far."""
    leasing, board, clock, other = await _beside_another(store)
    await jobs(store, 3)
    await leasing.turn()
    assert len(await other.turn()) == 1
    clock.passed += 4.0
    await leasing._look()
    assert board.elsewhere is not None
    assert board.elsewhere.free_seconds == 0.0


async def test_what_nobody_takes_makes_the_tick_old_also_where_no_turn_comes(store: Store) -> None:
    """Replicas that hold nothing, and whose ticks stand still, keep whoever comes now waiting."""
    leasing, board, clock, _ = await _beside_another(store)
    await jobs(store, 3)
    for _ in range(3):
        clock.passed += 4.0
        await leasing._look()
    assert not board.holds
    assert board.tick_age_seconds >= 4.0


async def _beside_another(store: Store) -> tuple[Leasing, Board, MovedClock, Replica]:
    clock = MovedClock()
    leasing, board = of_process(store, own=clock)
    await leasing.join()
    other = await replica(store)
    await other.turn()
    await leasing.turn()
    return leasing, board, clock, other


async def test_whoever_comes_back_with_its_host_is_not_missed(store: Store, engine: AsyncEngine) -> None:
    """A host that was started again has another boot and another lock, and the socket of before; what lives is not
    taken for its former self, whatever it is called."""
    one, two = await replica(store, "first 1 2 a"), await replica(store, "first 1 3 b")
    heir = await replica(store, "there 1 2 c")
    await run_out(engine, one)
    await heir.turn()
    await replica(store, "second 1 9 a")
    assert await lost(store) == set()
    assert (await two.turn()) == set()
    assert await two.renew(), "its lease runs, so it lives"
    await run_out(engine, two)
    await heir.turn()
    assert await lost(store) == {two.name}, "nobody is at its socket yet, only beside it"
    await replica(store, "second 1 10 b")
    assert await lost(store) == set()


async def test_another_host_of_the_same_name_replaces_nobody(store: Store, engine: AsyncEngine) -> None:
    """Cloned machines that live side by side: the one that was there already is no successor of the one that dies."""
    one, other = await replica(store, "first 1 2 a"), await replica(store, "second 1 2 a")
    assert await one.renew()
    await run_out(engine, one)
    await other.turn()
    assert await lost(store) == {one.name}


async def lost(store: Store) -> set[str]:
    return {item.replica_id for item in await store.replicas.known() if item.lost_since is not None}
