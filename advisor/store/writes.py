"""Whether the database would take what the service has to write, before there is anything.

An idle service writes one row, in its place, again and again: that goes on where nothing else could be written.
"""

from sqlalchemy import text
from sqlalchemy.exc import OperationalError
from sqlalchemy.ext.asyncio import AsyncConnection

from advisor.plain_text import said
from advisor.store.tables import metadata

_DISK_FULL = "53100"
# A megabyte that the server must put on its disk, in a file of its own that is gone with the question. No table grows.
# Of few long rows: as many short ones cost it twenty times as much.
_SPILL = text(
    "SELECT count(*) FROM (SELECT n FROM generate_series(1, 128) AS n "
    "ORDER BY n::text || repeat('x', 8192) COLLATE \"C\") AS sorted"
)
_KEPT_FROM = text(
    "SELECT string_agg(relname, ', ' ORDER BY relname) FROM pg_class WHERE relname = ANY(:names) "
    "AND pg_table_is_visible(oid) AND NOT has_table_privilege(oid, 'INSERT')"
)


async def refused(connection: AsyncConnection) -> str:
    """Why not, in words; "" where it would. What keeps every question from being answered passes through."""
    tables = await connection.scalar(_KEPT_FROM, {"names": list(metadata.tables)})
    if tables is not None:
        return f"no permission to write to {tables}"
    await connection.execute(text("SET LOCAL work_mem = '64kB'"))
    try:
        await connection.execute(_SPILL)
    except OperationalError as error:
        if getattr(error.orig, "sqlstate", None) != _DISK_FULL:
            raise
        return said(error)
    return ""
