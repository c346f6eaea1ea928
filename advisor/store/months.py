"""The parts of the big tables: one per month (UTC), made before it begins, dropped whole when it is too old.

`<table>_old` holds what there was before the tables had parts, `<table>_rest` what fits in no month: rows dated far
ahead by a wrong clock. A month that cannot be made because the rest holds rows of it stays in the rest.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from advisor.store.tables import MONTHLY

AHEAD = 2
_LOCK = "advisor months"
_LATEST = datetime.max.replace(tzinfo=UTC)
_UPPER = re.compile(r" TO \('([^']+)'\)$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One part of a table. `until`: it holds what is before; None for the rest."""

    table: str
    name: str
    until: datetime | None


def month_of(moment: datetime) -> datetime:
    return moment.astimezone(UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0)


def later(month: datetime, months: int) -> datetime:
    """The first of the month so many months on, or back."""
    number = month.year * 12 + month.month - 1 + months
    return month.replace(year=number // 12, month=number % 12 + 1)


async def parts(connection: AsyncConnection) -> tuple[Part, ...]:
    """All of them, the oldest of each table first, its rest last."""
    found = await connection.execute(
        text(
            "SELECT p.relname AS parent, c.relname AS name, pg_get_expr(c.relpartbound, c.oid) AS bound "
            "FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid JOIN pg_class p ON p.oid = i.inhparent "
            "WHERE i.inhparent IN (SELECT unnest(cast(:tables AS text[]))::regclass)"
        ),
        {"tables": list(MONTHLY)},
    )
    # One whose bound is not known any more was dropped while this was asked.
    known = [Part(table=row.parent, name=row.name, until=_until(row.bound)) for row in found if row.bound is not None]
    return tuple(sorted(known, key=lambda part: (part.table, part.until is None, part.until or _LATEST)))


async def spans(connection: AsyncConnection, table: str) -> tuple[tuple[datetime | None, datetime | None], ...]:
    """The time that each of a table's parts holds, newest first; all of time together."""
    cuts = sorted({part.until for part in await parts(connection) if part.table == table and part.until is not None})
    return tuple(zip([*reversed(cuts), None], [None, *reversed(cuts)], strict=True))


def _until(bound: str) -> datetime | None:
    match = _UPPER.search(bound)
    # Sessions of the store show times in UTC.
    return None if match is None else datetime.fromisoformat(match[1]).astimezone(UTC)


async def missing(connection: AsyncConnection, now: datetime) -> tuple[tuple[str, datetime], ...]:
    """(table, month) of this month and the next ones that have no part yet."""
    known = await parts(connection)
    found: list[tuple[str, datetime]] = []
    for table in MONTHLY:
        until = max((part.until for part in known if part.table == table and part.until is not None), default=None)
        found.extend((table, month) for month in _missing(until, now))
    return tuple(found)


async def make(connection: AsyncConnection, table: str, month: datetime) -> str:
    """In a transaction of its own: it locks the table's rest, and whoever holds two such locks waits in circles.

    Returns the part's name, "" when another replica made it, or when the rest holds rows of that month.
    """
    await connection.execute(text("SELECT pg_advisory_xact_lock(hashtextextended(:lock, 0))"), {"lock": _LOCK})
    # The part's foreign key needs this lock, and every tick holds attempts while it comes to decisions: the same order.
    await connection.execute(text("LOCK TABLE attempts IN SHARE ROW EXCLUSIVE MODE"))
    name = f"{table}_{month:%Y_%m}"
    if name in {part.name for part in await parts(connection)} or not await _fits(connection, table, month):
        return ""
    await _make(connection, table, name, month)
    return name


def _missing(until: datetime | None, now: datetime) -> Iterator[datetime]:
    month = month_of(now) if until is None else until
    while month <= later(month_of(now), AHEAD):
        yield month
        month = later(month, 1)


async def _fits(connection: AsyncConnection, table: str, month: datetime) -> bool:
    """Whether the rest holds no row of that month."""
    time = MONTHLY[table]
    found = await connection.execute(
        text(f"SELECT EXISTS (SELECT FROM {table}_rest WHERE {time} >= :first AND {time} < :next)"),  # noqa: S608 - ours
        {"first": month, "next": later(month, 1)},
    )
    return not found.scalar_one()


async def _make(connection: AsyncConnection, table: str, name: str, month: datetime) -> None:
    """Like its neighbours: with their statistics and storage parameters, which a part does not inherit."""
    options = await connection.scalar(
        text("SELECT array_to_string(reloptions, ', ') FROM pg_class WHERE oid = CAST(:rest AS regclass)"),
        {"rest": f"{table}_rest"},
    )
    await connection.execute(
        text(
            f"CREATE TABLE {name} (LIKE {table} INCLUDING DEFAULTS INCLUDING STORAGE INCLUDING STATISTICS)"
            + (f" WITH ({options})" if options else "")
        )
    )
    bounds = f"FROM ('{month.isoformat()}') TO ('{later(month, 1).isoformat()}')"
    await connection.execute(text(f"ALTER TABLE {table} ATTACH PARTITION {name} FOR VALUES {bounds}"))
    await connection.execute(
        text(
            f"CREATE TRIGGER append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON {name} "
            "FOR EACH STATEMENT EXECUTE FUNCTION refuse_change()"
        )
    )
