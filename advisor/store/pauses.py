"""Pauses: until when no advice of a cluster, or of any, is acted on. The audit log keeps every change."""

from datetime import datetime
from functools import cache
from typing import Any

from sqlalchemy import Select, delete, select
from sqlalchemy.dialects.postgresql import insert as upsert
from sqlalchemy.ext.asyncio import AsyncConnection

from advisor.core.modes import Pause
from advisor.store.audit_log import append
from advisor.store.errors import NotFound
from advisor.store.records import AuditEvent
from advisor.store.sql import AnyRow, storable, time_given
from advisor.store.tables import pauses

_PAUSES_MAX = 1000


async def list_pauses(connection: AsyncConnection, now: datetime) -> tuple[Pause, ...]:
    """Those in force."""
    return tuple(_pause(row) for row in await connection.execute(_in_force(), {"now": now}))


async def all_pauses(connection: AsyncConnection) -> tuple[Pause, ...]:
    """Also those that are over: by a clock that is set back they are not."""
    return tuple(_pause(row) for row in await connection.execute(_all()))


@cache
def _all() -> Select[Any]:
    return select(pauses).order_by(pauses.c.until.desc(), pauses.c.cluster).limit(_PAUSES_MAX)


@cache
def _in_force() -> Select[Any]:
    return select(pauses).where(pauses.c.until > time_given("now")).order_by(pauses.c.cluster).limit(_PAUSES_MAX)


async def pause(connection: AsyncConnection, wanted: Pause, *, who: str, origin: str, now: datetime) -> Pause:
    """Set or replace the pause of one cluster, or of all."""
    values = {
        "cluster": storable(wanted.cluster),
        "until": wanted.until,
        "set_by": storable(who),
        "why": storable(wanted.why),
        "set_at": now,
    }
    statement = upsert(pauses).values(**values)
    changing = {name: statement.excluded[name] for name in values if name != "cluster"}
    found = await connection.execute(
        statement.on_conflict_do_update(index_elements=["cluster"], set_=changing).returning(pauses)
    )
    made = _pause(found.one())
    await _audit(connection, made, "paused", who, made.why, origin, now)
    return made


async def resume(connection: AsyncConnection, cluster: str, *, who: str, why: str, origin: str, now: datetime) -> Pause:
    """End the pause of exactly this cluster, or of all ("" ends the one of all). Raises `NotFound`."""
    found = await connection.execute(
        delete(pauses).where(pauses.c.cluster == storable(cluster), pauses.c.until > now).returning(pauses)
    )
    row = found.one_or_none()
    if row is None:
        raise NotFound(f"no pause of {f'cluster {storable(cluster)}' if cluster else 'all clusters'}")
    ended = _pause(row)
    await _audit(connection, ended, "resumed", who, why, origin, now)
    return ended


async def _audit(
    connection: AsyncConnection, item: Pause, what: str, who: str, why: str, origin: str, now: datetime
) -> None:
    event = AuditEvent(
        at=now,
        who=who,
        what=what,
        why=why,
        origin=origin,
        cluster=item.cluster,
        subject=item.cluster or "*",
        detail={"until": item.until.isoformat()},
    )
    await append(connection, event)


def _pause(row: AnyRow) -> Pause:
    return Pause(cluster=row.cluster, until=row.until, set_by=row.set_by, why=row.why, set_at=row.set_at)
