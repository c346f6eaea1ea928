"""Which life of the store this is. Generations of different incarnations do not compare.

A database that was restored from a backup has forgotten generations that agents have seen. Postgres tells two kinds of
restore by itself (a dump has another system identifier, a recovery to a point in time another timeline); a data folder
copied back while it was shut down looks untouched, so whoever restores one says so (`Store.new_incarnation`).
"""

from datetime import datetime

from sqlalchemy import func, insert, select, text
from sqlalchemy.ext.asyncio import AsyncConnection

from advisor.store.audit_log import append
from advisor.store.ids import new_id
from advisor.store.records import AuditEvent
from advisor.store.tables import incarnations

_LOCK = "advisor incarnation"


async def current_incarnation(connection: AsyncConnection) -> str:
    """The store's incarnation; a new one for a new store, and for one that Postgres says was restored."""
    await connection.execute(select(func.pg_advisory_xact_lock(func.hashtextextended(_LOCK, 0))))
    system_identifier, timeline, now = await _server(connection)
    newest = (await connection.execute(select(incarnations).order_by(incarnations.c.seq.desc()).limit(1))).one_or_none()
    if newest is None:
        return await _begin(connection, "advisor", "a new store", now)
    if (newest.system_identifier, newest.timeline) != (system_identifier, timeline):
        return await _begin(connection, "advisor", "another server or timeline: restored from a backup", now)
    found: str = newest.id
    return found


async def begin_incarnation(connection: AsyncConnection, *, who: str, why: str, now: datetime) -> str:
    await connection.execute(select(func.pg_advisory_xact_lock(func.hashtextextended(_LOCK, 0))))
    return await _begin(connection, who, why, now)


async def _begin(connection: AsyncConnection, who: str, why: str, now: datetime) -> str:
    system_identifier, timeline, _ = await _server(connection)
    incarnation = new_id(now)
    await connection.execute(
        insert(incarnations).values(
            id=incarnation, created_at=now, why=why, system_identifier=system_identifier, timeline=timeline
        )
    )
    await append(connection, AuditEvent(at=now, who=who, what="incarnation_began", why=why, subject=incarnation))
    return incarnation


async def _server(connection: AsyncConnection) -> tuple[str, int, datetime]:
    row = (
        await connection.execute(
            text(
                "SELECT s.system_identifier::text, c.timeline_id, now() "
                "FROM pg_control_system() AS s, pg_control_checkpoint() AS c"
            )
        )
    ).one()
    return row[0], row[1], row[2]
