"""Rows as seals see them: which can be sealed, and what they are to the byte.

Transactions commit in another order than they take serial numbers, so a row may appear below one that has been there
for long. It cannot any more once every transaction has ended that wrote to the table when the highest number was looked
up: who holds a number also holds the table's lock for writers, from before the number was taken until it has ended. So
nothing waits for the sealer, and the sealer waits for those few.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass

import psycopg
from psycopg import AsyncConnection as Driver
from psycopg import sql
from sqlalchemy import text
from sqlalchemy.exc import OperationalError
from sqlalchemy.ext.asyncio import AsyncConnection

from advisor.seals.leaves import Leaf, LeafMaker
from advisor.store.tables import SEALED, metadata

# How COPY spells values; what the server's or the role's settings are does not matter.
_SPELLING = (
    "SET LOCAL timezone = 'UTC'; SET LOCAL datestyle = 'ISO, MDY'; SET LOCAL bytea_output = 'hex'; "
    "SET LOCAL extra_float_digits = 1; SET LOCAL intervalstyle = 'postgres'; SET LOCAL client_encoding = 'UTF8'"
)
_WRITING = ("RowExclusiveLock", "ShareRowExclusiveLock", "ExclusiveLock", "AccessExclusiveLock")


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """`highest`: of each table, the highest serial number that has been given out. `writers`: who may still use one."""

    highest: Mapping[str, int]
    writers: frozenset[str]


def columns_of(table: str) -> tuple[str, ...]:
    """The serial number first: a row's line begins with it."""
    return ("seq", *(column.name for column in metadata.tables[table].columns if column.name != "seq"))


async def bounds(connection: AsyncConnection) -> Bounds:
    """Numbers first, writers after: who took one of those numbers and has not ended is among them."""
    given = await given_out(connection)
    return Bounds(
        highest={table: value or 0 for table, value in given.items()},
        writers=await writers(connection),
    )


async def given_out(connection: AsyncConnection) -> Mapping[str, int | None]:
    """Of each table, the highest serial number so far, at this very moment. None: this account may not look."""
    chosen = ", ".join(
        f"CASE WHEN has_sequence_privilege(pg_get_serial_sequence('{table}', 'seq'), 'USAGE, SELECT') "
        f"THEN coalesce(pg_sequence_last_value(pg_get_serial_sequence('{table}', 'seq')), 0) END"
        for table in SEALED
    )
    row = (await connection.execute(text(f"SELECT {chosen}"))).one()
    return dict(zip(SEALED, row, strict=True))


async def writers(connection: AsyncConnection) -> frozenset[str]:
    """Transactions, other than this one, that have locked one of the tables or its months for writing."""
    found = await connection.execute(
        text(
            "SELECT DISTINCT virtualtransaction FROM pg_locks WHERE locktype = 'relation' AND granted "
            "AND database = (SELECT oid FROM pg_database WHERE datname = current_database()) "
            "AND mode = any(cast(:modes AS text[])) AND pid IS DISTINCT FROM pg_backend_pid() "
            "AND relation IN (SELECT p.relid FROM unnest(cast(:tables AS text[])) AS t, pg_partition_tree(t) AS p "
            "UNION SELECT unnest(cast(:tables AS text[]))::regclass)"
        ),
        {"tables": list(SEALED), "modes": list(_WRITING)},
    )
    return frozenset(found.scalars())


async def leaves(
    connection: AsyncConnection,
    table: str,
    columns: Sequence[str],
    *,
    after: int | None,
    upto: int | None,
    most: int | None = None,
    part: str | None = None,
    only: Sequence[int] | None = None,
) -> AsyncIterator[Leaf]:
    """Of rows with serial numbers above `after` up to `upto`, ascending. None: no such bound.

    `part`: only rows in this part of the table. `only`: rows with these numbers.
    """
    conditions: list[sql.Composable] = []
    if after is not None:
        conditions.append(sql.SQL("seq > {}").format(after))
    if upto is not None:
        conditions.append(sql.SQL("seq <= {}").format(upto))
    if only is not None:
        conditions.append(sql.SQL("seq = ANY({})").format(list(only)))
    query = sql.SQL("COPY (SELECT {columns} FROM {table} WHERE {where} ORDER BY seq{limit}) TO STDOUT").format(
        columns=sql.SQL(", ").join(map(sql.Identifier, columns)),
        table=sql.Identifier(part or table),
        where=sql.SQL(" AND ").join(conditions or [sql.SQL("true")]),
        limit=sql.SQL(" LIMIT {}").format(most) if most is not None else sql.SQL(""),
    )
    maker = LeafMaker(table, columns)
    async for line in _lines(connection, query):
        yield maker.leaf(line)


async def _lines(connection: AsyncConnection, query: sql.Composed) -> AsyncIterator[bytes]:
    """In the caller's transaction. Within a line COPY writes no line end."""
    await connection.execute(text(_SPELLING))
    driver = (await connection.get_raw_connection()).driver_connection
    if not isinstance(driver, Driver):
        raise TypeError("the store talks to Postgres through psycopg")
    rest = b""
    try:
        async with driver.cursor() as cursor, cursor.copy(query) as copy:
            async for block in copy:
                *whole, rest = (rest + bytes(block)).split(b"\n")
                for line in whole:
                    yield line
    except psycopg.Error as error:  # like every other error of the database
        raise OperationalError("COPY", None, error) from error
