"""What the replicas add to this database's clock (`core.steady`), and what their hosts told when they were heard."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, func, select, update
from sqlalchemy.dialects.postgresql import TIMESTAMP
from sqlalchemy.ext.asyncio import AsyncConnection

from advisor.core.steady import ClockCorrection, Uptime, Witness
from advisor.store.sql import AnyRow, storable
from advisor.store.tables import clock_correction, replicas

_AHEAD = timedelta(seconds=5)  # of the database's clock: it was set back since


def database_clock() -> ColumnElement[datetime]:
    return func.clock_timestamp(type_=TIMESTAMP(timezone=True))


def answered() -> tuple[ColumnElement[Any], ...]:
    """To be returned by any statement: the database's clock, and the correction of it that holds."""
    names = ("version", "seconds", "since", "shrinking")
    parts = (select(clock_correction.c[name]).scalar_subquery().label(f"clock_{name}") for name in names)
    return (database_clock().label("clock"), *parts)


def correction_of(row: AnyRow) -> ClockCorrection:
    """Of a statement that returned `answered`."""
    if row.clock_version is None:
        return ClockCorrection()
    return ClockCorrection(
        version=row.clock_version, seconds=row.clock_seconds, since=row.clock_since, shrinking=row.clock_shrinking
    )


async def correct(
    connection: AsyncConnection, correction: ClockCorrection, *, replica_id: str, witness: Witness
) -> bool:
    """Whether it is the next version; if not, somebody else was quicker. `witness`: of it, for `replica_id`'s row."""
    found = await connection.execute(
        update(clock_correction)
        .where(clock_correction.c.version == correction.version - 1)
        .values(
            version=correction.version,
            seconds=correction.seconds,
            since=correction.since,
            shrinking=correction.shrinking,
        )
        .returning(clock_correction.c.version)
    )
    if found.scalar_one_or_none() is None:
        return False
    await connection.execute(update(replicas).where(replicas.c.id == replica_id).values(**witness_values(witness)))
    return True


def witness_values(witness: Witness | None) -> Mapping[str, Any]:
    """For the row of the replica that tells it."""
    if witness is None:
        return {}
    return {
        "heard_at": witness.clock,
        "own_at": witness.own,
        "boot": storable(witness.uptime.boot),
        "uptime_seconds": witness.uptime.seconds,
        "clock_version": witness.version,
    }


async def last_witness(connection: AsyncConnection, boot: str) -> Witness | None:
    """Of whoever lived last under the correction that holds; rather one of this run of this host's kernel."""
    found = await connection.execute(
        select(
            replicas.c.heard_at, replicas.c.clock_version, replicas.c.own_at, replicas.c.boot, replicas.c.uptime_seconds
        )
        .join(clock_correction, clock_correction.c.version == replicas.c.clock_version)
        .where(replicas.c.heard_at.is_not(None))
        .order_by((replicas.c.boot == storable(boot)).desc(), replicas.c.heard_at.desc())
        .limit(1)
    )
    row = found.one_or_none()
    if row is None:
        return None
    uptime = Uptime(boot=row.boot, seconds=row.uptime_seconds)
    return Witness(clock=row.heard_at, version=row.clock_version, own=row.own_at, uptime=uptime)


def set_back() -> ColumnElement[bool]:
    """A replica's row tells of a time that has not come yet: the clock was set back since it was heard."""
    return replicas.c.ticked_at > database_clock() + _AHEAD
