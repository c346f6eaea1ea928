"""Which life of the store this is. Generations of different incarnations do not compare.

A database that was restored from a backup, or served by a standby that was promoted, may have forgotten generations
that agents have seen. Postgres tells those by itself (`advisor.store.lives`), so a new incarnation begins without
anybody's doing: when the store is opened, and while it is open as soon as the first connection shows another life. A
data folder that was copied back while the server was shut down looks untouched: an agent that has seen a higher
generation than the store gives that away (`open_advice.record_reconciliation`), and whoever restores one may say so
(`advisor store new-incarnation`).

With a new incarnation nothing that was decided before is acted on any more: all open advice is closed, and every
attempt that it was about is decided anew. After a restore nothing is acted on at all before somebody has looked, for a
bounded time: what operators ordered since the backup is forgotten too, a veto among it.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta

import structlog
from sqlalchemy import ColumnElement, Text, func, insert, literal_column, select, text
from sqlalchemy.ext.asyncio import AsyncConnection

from advisor.core.modes import Pause
from advisor.store.audit_log import append
from advisor.store.errors import STANDBY, NotPrimary
from advisor.store.ids import as_id, new_id
from advisor.store.leases import settle_former
from advisor.store.lives import LOOK, Life, look_of
from advisor.store.open_advice import close_all
from advisor.store.pauses import list_pauses, pause
from advisor.store.records import AttemptKey, AuditEvent
from advisor.store.sql import AnyRow
from advisor.store.tables import agents, audit, decisions, incarnations, replicas

_log = structlog.get_logger(__name__)

_LOCK = "advisor incarnation"
ADVISOR = "advisor"
# For so long nothing is acted on after a restore, unless somebody resumes: `advisor resume`.
RESTORED_PAUSE = timedelta(hours=1)
# A promotion loses moments. What lay still for longer on another timeline is taken for a recovery to a point in time.
_PROMOTION_MAX = timedelta(minutes=30)
# What is written carries the time at which it was begun to be written.
_UNDER_WAY = timedelta(minutes=1)
# With the number of the table that the row stands in.
_NEWEST = (
    select(incarnations, literal_column("incarnations.tableoid::bigint").label("stands_in"))
    .order_by(incarnations.c.seq.desc())
    .limit(1)
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Incarnation:
    id: str
    life: Life


async def current_incarnation(connection: AsyncConnection, *, sure_at: datetime | None = None) -> Incarnation:
    """The store's incarnation; a new one for a new store, and for one that may have forgotten something.

    `sure_at`: when the store was last seen to be what it was, where it was open.
    """
    await connection.execute(select(func.pg_advisory_xact_lock(func.hashtextextended(_LOCK, 0))))
    life, now = await _server(connection)
    newest = (await connection.execute(_NEWEST)).one_or_none()
    if newest is None and sure_at is None:
        return await _begin(connection, life, ADVISOR, "a new store", now)
    if newest is None:
        return await _begin_empty(connection, life, now)
    former = _life_of(newest)
    if former.same_as(life):
        return Incarnation(id=newest.id, life=life)
    why = former.change_to(life)
    known = await _known_until(connection, now if sure_at is None else sure_at - _UNDER_WAY)
    began = await _begin(connection, life, ADVISOR, why, now)
    heard_at = await connection.scalar(select(func.max(agents.c.last_seen_at)))
    _log.warning("incarnation_began", incarnation=began.id, why=why, known_until=str(known))
    promoted = former.same_tables_as(life) and (heard_at is None or now - heard_at < _PROMOTION_MAX)
    if not promoted:
        await settle_former(connection)
        await _pause(connection, why, known or newest.created_at, now)
    return began


async def _begin_empty(connection: AsyncConnection, life: Life, now: datetime) -> Incarnation:
    """In a store that was open, and is empty now: every mode, pause and veto is forgotten."""
    why = "the store is empty, and was not before"
    began = await _begin(connection, life, ADVISOR, why, now)
    _log.warning("incarnation_began", incarnation=began.id, why=why, known_until="")
    await _pause(connection, why, None, now)
    return began


async def newest_incarnation(connection: AsyncConnection, life: Life) -> str | None:
    """Whichever is current by now: an operator or another replica may have begun one. None: of another life, since a
    connection goes on while a dump is restored in place.
    """
    newest = (await connection.execute(_NEWEST)).one_or_none()
    if newest is None or newest.stands_in != life.table:
        return None
    found: str = newest.id
    return found if _life_of(newest).same_as(life) else None


def _life_of(row: AnyRow) -> Life:
    return Life(
        system_identifier=row.system_identifier,
        timeline=row.timeline,
        database=row.database_oid,
        table=row.table_oid,
    )


async def begin_incarnation(
    connection: AsyncConnection, *, who: str, why: str, now: datetime, paused: bool
) -> Incarnation:
    """Because somebody says so. `paused`: and nothing is acted on, as after every other restore."""
    await connection.execute(select(func.pg_advisory_xact_lock(func.hashtextextended(_LOCK, 0))))
    life, _ = await _server(connection)
    known = await _known_until(connection, await _started_at(connection))
    began = await _begin(connection, life, who, why, now)
    await settle_former(connection)
    if paused:
        await _pause(connection, why, known or now, now, who=who)
    return began


async def after_forgetting(
    connection: AsyncConnection, key: AttemptKey, *, advice_id: str, seen: int, who: str, now: datetime
) -> Incarnation:
    """An agent has seen a generation of this incarnation that is not there: it was committed, and forgotten.

    It says so of each of its jobs. What is said of advice of a former incarnation is known by then.
    """
    await connection.execute(select(func.pg_advisory_xact_lock(func.hashtextextended(_LOCK, 0))))
    newest = (await connection.execute(select(incarnations).order_by(incarnations.c.seq.desc()).limit(1))).one()
    decided_in = await connection.scalar(select(decisions.c.incarnation).where(decisions.c.id == as_id(advice_id)))
    if decided_in is not None and decided_in != newest.id:
        return Incarnation(id=newest.id, life=_life_of(newest))
    why = f"{who} has seen generation {seen} of attempt {key}: a backup was restored"
    began = await begin_incarnation(connection, who=ADVISOR, why=why, now=now, paused=True)
    _log.warning("incarnation_began", incarnation=began.id, why=why)
    return began


async def _begin(connection: AsyncConnection, life: Life, who: str, why: str, now: datetime) -> Incarnation:
    incarnation = new_id(now)
    await connection.execute(
        insert(incarnations).values(
            id=incarnation,
            created_at=now,
            why=why,
            system_identifier=life.system_identifier,
            timeline=life.timeline,
            database_oid=life.database,
            table_oid=life.table,
        )
    )
    closed = await close_all(connection, f"a new incarnation of the store began: {why}", now)
    detail = {"advice_closed": str(closed)} if closed else {}
    event = AuditEvent(at=now, who=who, what="incarnation_began", why=why, subject=incarnation, detail=detail)
    await append(connection, event)
    return Incarnation(id=incarnation, life=life)


async def _known_until(connection: AsyncConnection, before: datetime) -> datetime | None:
    """The newest that the store tells of, of what was written before that moment: so old is the backup, at most.

    What was written since, by whoever had it open, tells nothing of the backup. A row that is written over and over
    may be of since; then others, which are only added to, are older than the backup, and never newer.
    """
    told = [
        select(func.max(column).filter(column <= before)).scalar_subquery()
        for column in (agents.c.last_seen_at, replicas.c.ticked_at)
    ]
    told.append(select(func.max(audit.c.at)).where(audit.c.at <= before).scalar_subquery())
    # What one transaction wrote together with the store's lives is the dump's, however new it is: `advisor store
    # restore` writes all in one.
    written: ColumnElement[str] = literal_column("audit.xmin", Text())
    lives: ColumnElement[str] = literal_column("incarnations.xmin", Text())
    by = select(lives).select_from(incarnations).order_by(incarnations.c.seq.desc()).limit(1).scalar_subquery()
    told.append(select(func.max(audit.c.at)).where(audit.c.at > before, written == by).scalar_subquery())
    found: datetime | None = await connection.scalar(select(func.greatest(*told)))
    return found


async def _started_at(connection: AsyncConnection) -> datetime:
    """When the server was started: a data folder that was copied back was so before."""
    started: datetime = (await connection.execute(select(func.pg_postmaster_start_time()))).scalar_one()
    return started


async def _pause(
    connection: AsyncConnection, why: str, known: datetime | None, now: datetime, *, who: str = ADVISOR
) -> None:
    """Nothing is acted on, so that modes, pauses and orders that were forgotten can be given again."""
    until = now + RESTORED_PAUSE
    if any(not held.cluster and held.until >= until for held in await list_pauses(connection, now)):
        return
    since = f" after {known:%Y-%m-%d %H:%M:%S} UTC" if known is not None else ""
    forgotten = f"what was ordered{since} may be forgotten"
    wanted = Pause(cluster="", until=until, set_by=who, why=f"{why}; {forgotten}", set_at=now)
    await pause(connection, wanted, who=who, origin="store", now=now)


async def _server(connection: AsyncConnection) -> tuple[Life, datetime]:
    row = (await connection.execute(text(LOOK))).one()
    look = look_of(row)
    if look.life is None:
        raise NotPrimary(STANDBY)
    return look.life, row[4]
