"""Which replica ticks which job, by leases that are fenced by the database.

A replica's row says until when it lives; all that it holds is in force as long as that, so that renewing is one row
whatever the number of jobs. Whoever inherits from a dead one locks its row for update, takes all its jobs and ends it
in one transaction; from a row that has not ended nobody takes anything. Every write of a tick first locks its own row
FOR KEY SHARE and looks whether it lives: then nobody can inherit from it until it has committed, and all that it knew
to be its own still is. One row is looked at, whatever the number of jobs; and a process that was stopped in the middle
is waited for, or its session is ended by the database (`core.leases.idle_seconds`), before others write in its place.

Renewing takes a lock that does not wait for KEY SHARE: a long write does not keep its own replica from living on.
"""

import zlib
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import cache
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Select,
    Text,
    Uuid,
    and_,
    bindparam,
    case,
    cast,
    delete,
    func,
    insert,
    literal,
    or_,
    select,
    update,
)
from sqlalchemy.dialects.postgresql import ARRAY, TIMESTAMP
from sqlalchemy.dialects.postgresql import insert as upsert
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.sql.dml import ReturningUpdate

from advisor.core.leases import Standing, fitting, to_give, to_take
from advisor.store.errors import LeaseLost, SchemaMismatch
from advisor.store.hints import TICK, hint
from advisor.store.records import AttemptKey
from advisor.store.sql import any_id, id_given, span_given, storable
from advisor.store.tables import lease_epochs, leases, replicas, schema_support
from advisor.store.watching import Patience, by_importance, watched

_AHEAD = timedelta(seconds=5)  # of the database's clock: it was set back since
_KEPT_FOR = timedelta(days=1)  # rows of replicas that have ended, to be looked at
_REPLICAS_MAX = 1000
_BOOT, _SOCKET = 1, 4  # words of a place
_MISSED_FOR = timedelta(hours=6)  # so long a replica that died and was not replaced is told of


@dataclass(frozen=True, slots=True, kw_only=True)
class Newcomer:
    """What a process says of itself.

    `place`: only one process at a time can say it (it holds a lock). Words: the host's boot, the lock's device and
    inode, and what names the socket also after the host was started again; or "". `address`: where it answers, for
    people.
    """

    replica_id: str
    host: str
    pid: int
    place: str
    version: str
    build: str
    schema: str
    jobs_max: int | None = None
    address: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fence:
    """What a write of a tick must still find: this replica alive. `epochs`: of the jobs that it holds, by job key."""

    replica_id: str
    epochs: Mapping[str, int] = field(default_factory=dict)
    incarnation: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """What a replica may tick now. `came`: jobs that it did not hold at its last turn, or holds anew.

    `free`: jobs that nobody held after it. `unwatched`: attempts that nobody ticks, since nobody has room. `jobs_max`:
    how many jobs it can tick, for others.
    """

    keys: tuple[AttemptKey, ...]
    fence: Fence
    live: int
    came: frozenset[str]
    given: int
    taken_over: int
    free: frozenset[str] = frozenset()
    unwatched: int = 0
    jobs_max: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredReplica:
    """`tick_age`, `alive`: by the database's clock, when this was read. `lost_since`: it died in the last hours, was
    last heard of then, and nobody has begun a life at its place. `ahead`: it was heard at a time that is to come.
    `jobs_max`: how many jobs it can tick, None where it does not say; so `address`, which is "" then.
    """

    replica_id: str
    host: str
    pid: int
    version: str
    build: str
    schema: str
    started_at: datetime
    ended_at: datetime | None
    alive: bool
    tick_age: timedelta
    jobs: int
    lost_since: datetime | None = None
    ahead: bool = False
    jobs_max: int | None = None
    address: str = ""

    @property
    def full(self) -> bool:
        return self.jobs_max is not None and self.jobs >= self.jobs_max


def _clock() -> ColumnElement[datetime]:
    return func.clock_timestamp(type_=TIMESTAMP(timezone=True))


def _set_back() -> ColumnElement[bool]:
    """A replica's row tells of a time that has not come yet: the database's clock was set back since it was heard."""
    return replicas.c.ticked_at > _clock() + _AHEAD


def _alive() -> ColumnElement[bool]:
    return and_(replicas.c.ended_at.is_(None), replicas.c.until > _clock())


async def join(connection: AsyncConnection, newcomer: Newcomer, *, lease: timedelta) -> datetime:
    """Begin a life. Whoever was at its place is dead, whatever its lease says. Returns the database's time.

    Raises `SchemaMismatch` when the schema is no longer for code as old as this.
    """
    oldest = await connection.scalar(select(schema_support.c.oldest).with_for_update(read=True))
    if oldest is not None and oldest > newcomer.schema:
        raise SchemaMismatch(f"the database was migrated, and is for builds of schema {oldest} or newer: run one")
    await connection.execute(
        update(replicas)
        .where(replicas.c.place == newcomer.place, replicas.c.ended_at.is_(None), replicas.c.place != "")
        .values(until=func.least(replicas.c.until, _clock()))
    )
    await connection.execute(delete(replicas).where(replicas.c.ended_at < _clock() - _KEPT_FOR))
    await connection.execute(
        delete(leases).where(leases.c.replica_id.is_(None), leases.c.changed_at < _clock() - _KEPT_FOR)
    )
    made = await connection.execute(
        insert(replicas)
        .values(
            id=newcomer.replica_id,
            host=storable(newcomer.host),
            pid=newcomer.pid,
            place=storable(newcomer.place),
            version=newcomer.version,
            build=newcomer.build,
            schema=newcomer.schema,
            jobs_max=newcomer.jobs_max,
            address=storable(newcomer.address),
            started_at=_clock(),
            until=_clock() + lease,
            ticked_at=_clock(),
        )
        .returning(replicas.c.started_at)
    )
    began: datetime = made.scalar_one()
    return began


async def renew(
    connection: AsyncConnection,
    replica_id: str,
    *,
    lease: timedelta,
    tick_age: timedelta,
    stuck: bool,
    jobs_max: int | None = None,
) -> datetime | None:
    """Live on, to the database's time. None: others have what was ours, or may have it now.

    A lease that has run out is in force again where nobody has inherited. `stuck`: live on only while nobody else is
    there. `jobs_max`: as its last turn told.
    """
    given = {"replica": replica_id, "lease": lease, "tick_age": tick_age, "most": jobs_max}
    found = await connection.execute(_renewing(stuck=stuck), given)
    return found.scalar_one_or_none()


@cache
def _renewing(*, stuck: bool) -> ReturningUpdate[datetime]:
    others = replicas.alias("others")
    somebody = (
        select(others.c.id)
        .where(others.c.id != id_given("replica"), others.c.ended_at.is_(None), others.c.until > _clock())
        .exists()
    )
    mine = [replicas.c.id == id_given("replica"), replicas.c.ended_at.is_(None), *([~somebody] if stuck else [])]
    return (
        update(replicas)
        .where(*mine)
        .values(
            until=_clock() + span_given("lease"),
            ticked_at=_clock() - span_given("tick_age"),
            jobs_max=bindparam("most", type_=replicas.c.jobs_max.type),
        )
        .returning(_clock())
    )


async def bury(connection: AsyncConnection, gone: Collection[str]) -> None:
    """The leases of these have run out, whatever they say: they do not renew, and the clock was set back since."""
    await connection.execute(
        update(replicas)
        .where(replicas.c.id == any_id(list(gone)), replicas.c.ended_at.is_(None), _set_back())
        .values(until=_clock())
    )


async def leave(connection: AsyncConnection, replica_id: str) -> None:
    """End a life, and give up everything: others take it at once.

    Its end and the end of its lease are the same moment, and of nobody else (`_died`).
    """
    await connection.execute(
        update(replicas).where(replicas.c.id == replica_id).values(until=func.now(), ended_at=func.now())
    )
    await _free(connection, leases.c.replica_id == replica_id)
    await hint(connection, TICK, replica_id)


async def settle_former(connection: AsyncConnection) -> None:
    """In a store that was restored: replicas that do not live ended long ago. Nobody misses them, and their jobs are
    free. Whose lease still runs may live, and who writes under it does.
    """
    found = await connection.execute(
        select(replicas.c.id)
        .where(or_(replicas.c.ended_at.is_not(None), replicas.c.until <= _clock()))
        .order_by(replicas.c.id)
        .limit(_REPLICAS_MAX)
        .with_for_update(skip_locked=True)
    )
    former = list(found.scalars())
    ended = func.coalesce(replicas.c.ended_at, func.now())
    await connection.execute(
        update(replicas).where(replicas.c.id == any_id(former)).values(until=ended, ended_at=ended)
    )
    await _free(connection, leases.c.replica_id == any_id(former))


async def hold(connection: AsyncConnection, fence: Fence | None, jobs: Iterable[str] = ()) -> None:
    """To be called first in every transaction that writes for a tick. Raises `LeaseLost`.

    None: there are no replicas, as in a simulated world.
    """
    if fence is None:
        return
    strange = [job for job in jobs if job not in fence.epochs]
    if strange:
        raise LeaseLost(f"job {strange[0]} is not ours")
    found = await connection.execute(_holding(), {"replica": fence.replica_id})
    if found.one_or_none() is None:
        raise LeaseLost("the lease has run out")


@cache
def _holding() -> Select[str]:
    return (
        select(replicas.c.id)
        .where(replicas.c.id == id_given("replica"), _alive())
        .with_for_update(read=True, key_share=True)
    )


async def take_turn(
    connection: AsyncConnection,
    replica_id: str,
    known: Mapping[str, int],
    *,
    now: datetime,
    patience: Patience,
    lease: timedelta,
    refused: Collection[str] = (),
    attempts_max: int | None = None,
) -> Turn:
    """What there is to tick: what is held, less what is given up, and what was free or a dead replica's.

    `known`: epochs of the jobs held so far. `refused`: jobs that others must have, where there are any. No more
    attempts than `attempts_max` are held. Raises `LeaseLost` when the lease has run out.
    """
    others_most, dead, held = await _stand(connection, replica_id, lease)
    live = 1 + len(others_most)
    refused = refused if live > 1 else ()
    # All of them, at once: who is over his share then gives up the rest, and that is free for everybody.
    inherited = await _inherit(connection, replica_id) if dead else {}
    seen = await watched(connection, now, patience=patience, replica_id=replica_id)
    epochs = {item.key.job_key: item.epoch for item in seen if item.epoch is not None}
    mine = leases.c.replica_id == replica_id
    # Of what was held before a turn was lost nothing is known, and it may be done with since.
    before = (*known, *inherited) if known else (await connection.scalars(select(leases.c.job_key).where(mine))).all()
    over = [job for job in before if job not in epochs]
    if over:
        # They are done with.
        await connection.execute(delete(leases).where(mine, leases.c.job_key == any_id(over)))
    size = Counter(item.key.job_key for item in seen)
    free = sorted(size.keys() - epochs.keys() - set(refused))
    standing = Standing(
        held=held or len(epochs),
        free=len(free),
        mine=len(epochs),
        live=live,
        most=_jobs_max(attempts_max, epochs, size),
        others_most=others_most,
    )
    order = await _order(connection, size, now, attempts_max, live)
    wanted = free if standing.short else _chosen(free, replica_id, to_take(standing))
    if len(wanted) < len(free):
        wanted = sorted({*wanted, *await _left_alone(connection, free, lease)})
    candidates = epochs.keys() | set(wanted)
    room = set(fitting(filter(candidates.__contains__, order), size, attempts_max))
    clipped = len(room) < len(candidates)
    taken = await _take(connection, replica_id, [job for job in wanted if job in room])
    # Those that others must have first; they count among what is given up.
    given = sorted(epochs, key=lambda job: (job not in refused, -epochs[job]))
    given = given[: max(to_give(standing), len(epochs.keys() & set(refused)))]
    # Nor is anything held that cannot be ticked, beside what could be taken after all.
    room = set(fitting(filter((epochs.keys() | taken.keys()).__contains__, order), size, attempts_max))
    given = sorted({*given, *(epochs.keys() - room)})
    if given:
        await _free(connection, mine, leases.c.job_key == any_id(given))
    gone = frozenset(given)
    epochs = {job: epoch for job, epoch in {**epochs, **taken}.items() if job not in gone}
    most = len(epochs) if clipped else _jobs_max(attempts_max, epochs, size)
    nobody = live == 1 or replace(standing, most=most).short
    return Turn(
        keys=tuple(item.key for item in seen if item.key.job_key in epochs),
        fence=Fence(replica_id=replica_id, epochs=epochs),
        live=live,
        came=frozenset(job for job, epoch in epochs.items() if known.get(job) != epoch),
        given=len(given),
        taken_over=len(inherited),
        free=frozenset(size.keys() - epochs.keys()),
        unwatched=size.total() - sum(size[job] for job in epochs) if nobody else 0,
        jobs_max=most,
    )


async def _order(
    connection: AsyncConnection, size: Mapping[str, int], now: datetime, attempts_max: int | None, live: int
) -> tuple[str, ...]:
    """The jobs that are seen, the most important first; where some must be left out, in everybody's order."""
    if attempts_max is None or live <= 1 or sum(size.values()) <= attempts_max:
        return tuple(size)
    return tuple(job for job in await by_importance(connection, now) if job in size)


def _jobs_max(attempts_max: int | None, jobs: Collection[str], size: Mapping[str, int]) -> int | None:
    """How many jobs can be ticked, if others have as many attempts as these."""
    if attempts_max is None or not jobs:
        return attempts_max
    return max(attempts_max * len(jobs) // sum(size[job] for job in jobs), 1)


async def _stand(
    connection: AsyncConnection, replica_id: str, lease: timedelta
) -> tuple[tuple[int | None, ...], bool, int]:
    """How many jobs each other replica that ticks can have, whether a dead one has not been inherited yet, and, beside
    others, how many jobs are held in all. Ours is held from here."""
    row = (await connection.execute(_standing(), {"replica": replica_id, "lease": lease})).one_or_none()
    if row is None:
        raise LeaseLost("the lease has run out")
    return tuple(row.live or ()), row.dead, row.held


@cache
def _standing() -> Select[*tuple[Any, ...]]:
    others = replicas.alias("others")
    there = and_(
        others.c.ended_at.is_(None),
        others.c.until > _clock(),
        others.c.id != id_given("replica"),
        others.c.ticked_at > _clock() - span_given("lease"),
    )
    live = select(func.array_agg(others.c.jobs_max)).where(there).scalar_subquery()
    dead = select(others.c.id).where(others.c.ended_at.is_(None), others.c.until <= _clock()).exists()
    held = select(func.count()).select_from(leases).where(leases.c.replica_id.is_not(None)).scalar_subquery()
    alone = ~select(others.c.id).where(there).exists()
    return (
        select(live.label("live"), dead.label("dead"), case((alone, 0), else_=held).label("held"))
        .where(replicas.c.id == id_given("replica"), _alive())
        .with_for_update(read=True, key_share=True, of=replicas)
    )


async def _inherit(connection: AsyncConnection, replica_id: str) -> dict[str, int]:
    """All jobs of dead replicas. A row that is locked is somebody's: his write, or another heir's."""
    found = await connection.execute(
        select(replicas.c.id)
        .where(replicas.c.ended_at.is_(None), replicas.c.until <= _clock())
        .order_by(replicas.c.id)
        .limit(_REPLICAS_MAX)
        .with_for_update(skip_locked=True)
    )
    dead = list(found.scalars())
    if not dead:
        return {}
    moved = await connection.execute(
        update(leases)
        .where(leases.c.replica_id == any_id(dead))
        .values(replica_id=replica_id, epoch=lease_epochs.next_value(), changed_at=_clock())
        .returning(leases.c.job_key, leases.c.epoch)
    )
    inherited = {row.job_key: row.epoch for row in moved}
    await connection.execute(update(replicas).where(replicas.c.id == any_id(dead)).values(ended_at=_clock()))
    return inherited


def _chosen(jobs: Sequence[str], replica_id: str, most: int) -> list[str]:
    """Which of the jobs to take: of many, others take others, so that two seldom want the same."""
    if most >= len(jobs):
        return list(jobs)
    return sorted(sorted(jobs, key=lambda job: zlib.crc32(f"{replica_id} {job}".encode()))[:most])


async def _left_alone(connection: AsyncConnection, free: Sequence[str], lease: timedelta) -> list[str]:
    """Those that were given up and nobody has wanted for a lease: whoever is short of his share may not read them."""
    found = await connection.execute(
        select(leases.c.job_key).where(
            leases.c.job_key == any_id(free), leases.c.replica_id.is_(None), leases.c.changed_at < _clock() - lease
        )
    )
    return list(found.scalars())


async def _take(connection: AsyncConnection, replica_id: str, jobs: Sequence[str]) -> dict[str, int]:
    """Free jobs; in one order for all, so that two that want the same never wait in a circle."""
    if not jobs:
        return {}
    statement = upsert(leases)
    wanted = select(
        func.unnest(cast(list(jobs), ARRAY(Uuid(as_uuid=False)))),
        literal(replica_id, leases.c.replica_id.type),
        lease_epochs.next_value(),
        _clock(),
    )
    made = await connection.execute(
        statement.from_select(["job_key", "replica_id", "epoch", "changed_at"], wanted)
        .on_conflict_do_update(
            index_elements=["job_key"],
            set_={name: statement.excluded[name] for name in ("replica_id", "epoch", "changed_at")},
            where=leases.c.replica_id.is_(None),
        )
        .returning(leases.c.job_key, leases.c.epoch)
    )
    return {row.job_key: row.epoch for row in made}


async def _free(connection: AsyncConnection, *which: ColumnElement[bool]) -> None:
    await connection.execute(update(leases).where(*which).values(replica_id=None, changed_at=_clock()))


def _died() -> ColumnElement[bool]:
    """Ended by an heir, not by itself, not long ago; and nobody came after it at its place, or at the same socket of
    its host since that was started again. (Two hosts of one name: who comes after it was last heard of.)
    """
    later = replicas.alias("later")
    same_place = and_(later.c.place == replicas.c.place, later.c.started_at > replicas.c.started_at)
    same_socket = and_(
        _word(later.c.place, _SOCKET) == _word(replicas.c.place, _SOCKET),
        _word(later.c.place, _SOCKET) != "",
        _word(later.c.place, _BOOT) != _word(replicas.c.place, _BOOT),
        later.c.started_at > replicas.c.ticked_at,
    )
    replaced = (
        select(later.c.id)
        .where(later.c.host == replicas.c.host, later.c.place != "", or_(same_place, same_socket))
        .exists()
    )
    return and_(replicas.c.ended_at > _clock() - _MISSED_FOR, replicas.c.ended_at != replicas.c.until, ~replaced)


def _word(place: ColumnElement[str], number: int) -> ColumnElement[str]:
    return func.split_part(place, " ", number, type_=Text())


async def list_replicas(connection: AsyncConnection) -> tuple[StoredReplica, ...]:
    """Those that live, those that died and still have jobs, and those of the last day, newest first."""
    found = await connection.execute(_listed())
    return tuple(
        StoredReplica(
            replica_id=row.id,
            host=row.host,
            pid=row.pid,
            version=row.version,
            build=row.build,
            schema=row.schema,
            started_at=row.started_at,
            ended_at=row.ended_at,
            alive=row.alive,
            tick_age=max(row.tick_age, timedelta()),
            jobs=row.jobs,
            lost_since=row.lost_since,
            ahead=row.ahead,
            jobs_max=row.jobs_max,
            address=row.address or "",
        )
        for row in found
    )


@cache
def _listed() -> Select[*tuple[Any, ...]]:
    jobs = select(func.count()).select_from(leases).where(leases.c.replica_id == replicas.c.id).scalar_subquery()
    return (
        select(
            replicas,
            _alive().label("alive"),
            _set_back().label("ahead"),
            (_clock() - replicas.c.ticked_at).label("tick_age"),
            jobs.label("jobs"),
            case((_died(), replicas.c.ticked_at)).label("lost_since"),
        )
        .order_by(replicas.c.started_at.desc(), replicas.c.id)
        .limit(_REPLICAS_MAX)
    )
