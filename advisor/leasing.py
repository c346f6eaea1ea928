"""This process as one of any number of replicas: joins, lives on by renewing, takes its turn, and leaves.

The tick asks for its turn, which says what may be ticked and by which fence it is written; renewing goes on beside it,
so that a long tick loses nothing. What others must be told is hinted (`store.hints`) and looked for all the same every
second, for a hint may be lost. With one replica there is nobody to tell and nothing to look for.
"""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import datetime, timedelta

import structlog
from sqlalchemy.exc import SQLAlchemyError

from advisor.board import Board, Elsewhere, SchedulerView
from advisor.clock import ClockSet, FollowingClock
from advisor.core.leases import renew_seconds, stuck_seconds
from advisor.instruments import Instruments
from advisor.plain_text import error_text
from advisor.store.errors import LeaseLost, SchemaMismatch, StoreError
from advisor.store.hints import ADVICE, TICK
from advisor.store.ids import new_id
from advisor.store.leases import Fence, Newcomer, StoredReplica, Turn
from advisor.store.records import AttemptKey
from advisor.store.store import Store

log = structlog.get_logger(__name__)

LOOK_SECONDS = 1.0  # at what others have changed, and how they are
REFUSED_SECONDS = 60.0  # for so long what we cannot read is left to others
FREE_SECONDS = 3.0  # a job that is nobody's for so long makes the tick old: a turn comes every second


class Leasing:
    """One process' life among replicas; a life that is over is followed by another one."""

    def __init__(
        self,
        *,
        store: Store,
        board: Board,
        clock: FollowingClock,
        newcomer: Newcomer,
        lease_seconds: float,
        attempts_max: int | None = None,
        tell: Callable[[str], None],
        instruments: Instruments,
    ) -> None:
        self._store = store
        self._board = board
        self._clock = clock
        self._newcomer = newcomer
        self._lease_seconds = lease_seconds
        self._attempts_max = attempts_max
        self._lease = timedelta(seconds=lease_seconds)
        self._tell = tell
        self._instruments = instruments
        self._turn: Turn | None = None
        self._forgotten: list[Callable[[Iterable[str]], None]] = []
        self._live = 1
        self._refused: dict[str, float] = {}  # until when
        self._free_since: dict[str, float] = {}
        self._turned = float("-inf")
        self._ahead_since: dict[str, float] = {}
        self._token = ""
        self._failing = False
        self._stuck = False
        self._looked = 0.0
        self._renewing = asyncio.Lock()  # the tick and `run` may both find that a life is over: one begins the next
        board.hinted = self._hint

    @property
    def replica_id(self) -> str:
        return self._newcomer.replica_id

    @property
    def fence(self) -> Fence:
        """By which this tick writes."""
        if self._turn is None:
            raise LeaseLost("no turn was taken yet")
        return self._turn.fence

    @property
    def jobs(self) -> int:
        return len(self._turn.fence.epochs) if self._turn is not None else 0

    @property
    def unwatched(self) -> int:
        """Attempts that no replica has room to tick."""
        return self._turn.unwatched if self._turn is not None else 0

    @property
    def clock_set(self) -> ClockSet | None:
        """When somebody set the clock that is followed; None: nobody has, as long as it was looked at."""
        return self._clock.set

    def on_forgotten(self, forget: Callable[[Iterable[str]], None]) -> None:
        """Called with the keys of jobs of which nothing in memory may be believed any more."""
        self._forgotten.append(forget)

    def refuse(self, jobs: Iterable[str]) -> None:
        """Of these something is written that this build cannot read: where there are others, they must have them."""
        until = self._clock.monotonic() + REFUSED_SECONDS
        self._refused.update(dict.fromkeys(jobs, until))

    async def join(self) -> None:
        """Begin a life. Raises what the database raises."""
        before = self._clock.monotonic()
        began = await self._store.replicas.join(self._newcomer, lease=self._lease)
        self._follow(began, before)
        self._board.replica_id = self.replica_id
        log.info("replica_joined", replica=self.replica_id, place=self._newcomer.place)

    async def leave(self) -> None:
        """Give up everything, so that others need not wait for the lease to run out."""
        try:
            async with asyncio.timeout(self._lease_seconds):
                await self._store.replicas.leave(self.replica_id)
        except (SQLAlchemyError, StoreError, TimeoutError) as error:
            log.warning("replica_not_left", replica=self.replica_id, error=error_text(error))
            return
        log.info("replica_left", replica=self.replica_id)

    async def turn(self) -> tuple[AttemptKey, ...]:
        """What may be ticked now. Raises `LeaseLost` when nothing may: try again."""
        known = self._turn.fence.epochs if self._turn is not None else {}
        monotonic = self._clock.monotonic()
        self._refused = {job: until for job, until in self._refused.items() if until > monotonic}
        try:
            turn = await self._store.replicas.take_turn(
                self.replica_id,
                known,
                now=self._clock.now(),
                lease=self._lease,
                refused=frozenset(self._refused),
                attempts_max=self._attempts_max,
            )
        except LeaseLost:
            await self._renew(stuck=False)  # whoever comes for his turn has got on
            raise
        self._turn, self._live = turn, turn.live
        self._turned = self._clock.monotonic()
        self._are_free(turn.free)
        self._board.holds = bool(turn.fence.epochs)
        if turn.came:
            # What memory says of them may be from before others had them.
            self._forget(turn.came)
            # Nor what is shown: whoever had them may have decided, and died before anybody heard of it.
            self._board.refresh_all_soon()
        if turn.given:
            self._hint(TICK)
        if turn.given or turn.taken_over:
            log.info(
                "jobs_moved",
                replica=self.replica_id,
                held=len(turn.fence.epochs),
                given_up=turn.given,
                taken_over=turn.taken_over,
                live=turn.live,
            )
        self._instruments.turn_taken(held=len(turn.fence.epochs), live=turn.live, taken_over=turn.taken_over)
        return turn.keys

    def lost(self) -> None:
        """A turn or a write was refused: nothing that the tick had in hand counts."""
        log.warning("lease_lost", replica=self.replica_id, jobs=self.jobs)
        self._instruments.lease_lost()
        if self._turn is not None:
            self._forget(self._turn.fence.epochs)
        self._turn = None
        self._board.holds = False

    def _forget(self, jobs: Iterable[str]) -> None:
        for forget in self._forgotten:
            forget(jobs)

    async def run(self) -> None:
        """Renew, and look at what others do, until cancelled."""
        pause = renew_seconds(self._lease_seconds)
        while True:
            try:
                await self._renew(stuck=self._board.pulse.age_seconds > stuck_seconds(self._lease_seconds))
                if self._clock.monotonic() - self._looked >= LOOK_SECONDS:
                    await self._look()
                    self._looked = self._clock.monotonic()
                self._failing = False
            except SchemaMismatch:
                raise  # migrated, and no longer for code as old as this
            except (SQLAlchemyError, StoreError, TimeoutError, OSError) as error:
                if not self._failing:
                    log.warning("lease_not_renewed", replica=self.replica_id, error=error_text(error))
                self._failing = True
            await self._clock.sleep(pause)

    async def _renew(self, *, stuck: bool) -> None:
        async with self._renewing:
            await self._renew_now(stuck=stuck)

    async def _renew_now(self, *, stuck: bool) -> None:
        before, age = self._clock.monotonic(), self._board.pulse.age_seconds
        renewed = await self._store.replicas.renew(
            self.replica_id,
            lease=self._lease,
            tick_age=timedelta(seconds=age),
            stuck=stuck,
            jobs_max=self._turn.jobs_max if self._turn is not None else self._attempts_max,
        )
        if renewed is not None:
            self._follow(renewed, before)
            self._stuck = False
            return
        if stuck:
            if not self._stuck:
                log.error("replica_stuck", replica=self.replica_id, tick_age_seconds=round(age, 1))
            self._stuck = True
            return
        # Others have everything: a life of its own begins, with nothing.
        self._newcomer = replace(self._newcomer, replica_id=new_id(self._clock.now()))
        await self.join()

    def _follow(self, told: datetime, asked_at: float) -> None:
        before, counted_at = self._clock.now(), self._clock.monotonic()
        if not self._clock.follow(told, asked_at):
            return
        by = self._clock.now() - before - timedelta(seconds=self._clock.monotonic() - counted_at)
        log.warning("clock_set", replica=self.replica_id, by_seconds=round(by.total_seconds(), 1))
        if self._turn is not None:
            self._forget(self._turn.fence.epochs)

    async def _bury(self, others: Iterable[StoredReplica]) -> None:
        """Where the database's clock was set back, the lease of one that died right before seems to run for long."""
        now = self._clock.monotonic()
        ahead = [item.replica_id for item in others if item.ahead]
        self._ahead_since = {key: self._ahead_since.get(key, now) for key in ahead}
        gone = [key for key, since in self._ahead_since.items() if now - since > self._lease_seconds]
        if gone:
            await self._store.replicas.bury(gone)

    async def _look(self) -> None:
        """How others are, and whether what they did changes what is shown here."""
        replicas = await self._store.replicas.known()
        self._instruments.replicas_lost.set(sum(item.lost_since is not None for item in replicas))
        others = [item for item in replicas if item.replica_id != self.replica_id and item.ended_at is None]
        await self._bury(others)
        alone = not any(item.alive for item in others)
        # A job that nobody has room for waits for nobody's tick.
        full = all(item.full for item in replicas if item.alive)
        if not (alone or full) and self._clock.monotonic() - self._turned >= FREE_SECONDS:
            # The tick is long, or stands still: what its turn saw may be others' since, or more.
            self._are_free(await self._store.replicas.free_jobs(self._clock.now()))
        self._board.elsewhere = Elsewhere(
            tick_age_seconds=max((_age(item) for item in others), default=0.0),
            free_seconds=0.0 if alone or full else self._free_for(),
            seen_at=self._clock.monotonic(),
            views={} if alone else await self._views(),
            alone=alone,
        )
        token = "" if alone else await self._store.replicas.board_token()
        if token != self._token:
            self._token = token
            await self._board.refresh(hint=False)

    def _are_free(self, jobs: Iterable[str]) -> None:
        now = self._clock.monotonic()
        self._free_since = {job: self._free_since.get(job, now) for job in jobs}

    def _free_for(self) -> float:
        now = self._clock.monotonic()
        longest = now - min(self._free_since.values(), default=now)
        return longest if longest >= FREE_SECONDS else 0.0

    async def _views(self) -> dict[str, SchedulerView]:
        """What agents say that are connected to other replicas."""
        found: dict[str, SchedulerView] = {}
        for agent, unavailable in await self._store.agent_views():
            before = found.get(agent.cluster)
            if before is None or before.heard_at < agent.last_seen_at:
                found[agent.cluster] = SchedulerView(heard_at=agent.last_seen_at, unavailable=unavailable)
        return found

    def _hint(self, what: str) -> None:
        if self._live > 1 or not (self._board.elsewhere is None or self._board.elsewhere.alone):
            self._tell(what)

    def heard(self, what: str) -> None:
        """Another replica's hint."""
        if what == TICK:
            self._board.wake.set()
        elif what == ADVICE:
            self._board.refresh_all_soon()


def _age(replica: StoredReplica) -> float:
    """Of the tick by which its jobs are looked at; one without jobs keeps nobody waiting."""
    return replica.tick_age.total_seconds() if replica.jobs else 0.0


def newcomer_at(
    now: datetime,
    *,
    host: str,
    pid: int,
    place: str,
    address: str,
    version: str,
    build: str,
    schema: str,
    jobs_max: int,
) -> Newcomer:
    return Newcomer(
        replica_id=new_id(now),
        host=host,
        pid=pid,
        place=place,
        address=address,
        version=version,
        build=build,
        schema=schema,
        jobs_max=jobs_max,
    )
