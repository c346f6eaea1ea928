"""Which server, timeline and database a connection leads to.

Postgres tells apart what could have forgotten committed rows: a dump that was restored into another server has another
system identifier, one that was restored beside it another database number, one that was restored in place has tables
made anew, with other numbers, and a promoted standby or a recovery to a point in time has another timeline. That is
read from the log's position: what `pg_control_checkpoint` shows is the old one until the first checkpoint after a
promotion.
"""

from dataclasses import dataclass
from typing import Any

# One statement that a standby answers too: `timeline` is NULL there.
LOOK = (
    "SELECT s.system_identifier::text, "
    "CASE WHEN pg_is_in_recovery() THEN NULL "
    "ELSE ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::int END, "
    "(SELECT oid::bigint FROM pg_database WHERE datname = current_database()), "
    "current_setting('synchronous_commit'), now(), to_regclass('incarnations')::oid::bigint "
    "FROM pg_control_system() AS s"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Life:
    """What stays the same for as long as no committed row can have been forgotten.

    `database`: the database's number (oid) within its server; `table`: that of the table `incarnations` within it,
    which no dump brings along. None where an older build wrote it down; `table` also where a database has none.
    """

    system_identifier: str
    timeline: int
    database: int | None
    table: int | None

    def same_as(self, other: "Life") -> bool:
        return self.timeline == other.timeline and self.same_tables_as(other)

    def same_tables_as(self, other: "Life") -> bool:
        """On whichever timeline."""
        return (
            self.system_identifier == other.system_identifier
            and _same(self.database, other.database)
            and _same(self.table, other.table)
        )

    def change_to(self, other: "Life") -> str:
        """What became of it, in words for an operator; "" for the same."""
        if self.system_identifier != other.system_identifier:
            return "another server: a dump was restored there, or the server was made anew"
        if not _same(self.database, other.database):
            return "another database of the same server: a dump was restored"
        if not _same(self.table, other.table):
            return "its tables were made anew: a dump was restored in place"
        if self.timeline != other.timeline:
            return f"timeline {other.timeline} after {self.timeline}: a standby was promoted, or a backup restored"
        return ""


def _same(one: int | None, other: int | None) -> bool:
    return None in {one, other} or one == other


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What one connection shows. `life` is None on a standby: it is read-only, and knows what it was sent."""

    life: Life | None
    waits_for_disk: bool  # whether an acknowledged commit survives a crash of the server


def look_of(row: "tuple[Any, ...] | Any") -> Look:
    """From a row of `LOOK`."""
    identifier, timeline, database, commits, _, table = row
    life = None
    if timeline is not None:
        life = Life(system_identifier=identifier, timeline=timeline, database=database, table=table)
    return Look(life=life, waits_for_disk=commits != "off")
