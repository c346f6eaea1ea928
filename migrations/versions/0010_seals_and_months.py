# ruff: noqa: S608 - names of ours in SQL
"""Seals over the append-only tables, a serial number for each of their rows, and months that can be dropped.

What was one table becomes its first partition, as it lies: no row is moved or rewritten but for the new column. See
docs/decisions/0007.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import sqlalchemy as sa
from alembic import op

revision: str = "0010"
down_revision: str | None = "0009"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Monthly:
    """A table by month. Unique columns must hold its time; `before`: what they were in one plain table."""

    table: str
    time: str
    primary: tuple[str, ...]
    unique: tuple[tuple[str, ...], ...] = ()
    primary_before: tuple[str, ...]
    unique_before: tuple[tuple[str, ...], ...] = ()


MONTHLY = (
    _Monthly(
        table="decisions",
        time="created_at",
        primary=("id", "created_at"),
        unique=(("job_key", "number", "generation", "created_at"),),
        primary_before=("id",),
        unique_before=(("job_key", "number", "generation"),),
    ),
    _Monthly(table="reconciliations", time="decided_at", primary=("seq", "decided_at"), primary_before=("seq",)),
    _Monthly(table="attempt_states", time="recorded_at", primary=("seq", "recorded_at"), primary_before=("seq",)),
    _Monthly(
        table="audit",
        time="at",
        primary=("seq", "at"),
        unique=(("id", "at"),),
        primary_before=("seq",),
        unique_before=(("id",),),
    ),
)
NUMBERED = ("blobs", "decisions", "milestones", "shadow_records", "corrections")
NEWLY_APPEND_ONLY = ("node_changes", "shadow_records", "corrections")
_REFERENCES = (
    ("advice", ("decision_id",), "decisions", ("id",)),
    ("notifications", ("decision_id",), "decisions", ("id",)),
    ("reconciliations", ("decision_id",), "decisions", ("id",)),
    ("decisions", ("inputs_hash",), "blobs", ("hash",)),
    ("decisions", ("rules_hash",), "blobs", ("hash",)),
    ("decisions", ("policy_hash",), "blobs", ("hash",)),
    ("decisions", ("job_key", "number"), "attempts", ("job_key", "number")),
)
# Only retention asks for the second form, within its own transaction, for what no partition can be made of.
_REFUSE = """
    CREATE OR REPLACE FUNCTION refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        {door}RAISE EXCEPTION 'table % is append-only: % refused', TG_TABLE_NAME, TG_OP
            USING ERRCODE = 'integrity_constraint_violation';
    END
    $$
"""
_DOOR = """IF TG_OP = 'DELETE' AND current_setting('advisor.dropping', true) = TG_TABLE_NAME THEN
            RETURN NULL;
        END IF;
        """


def upgrade() -> None:
    op.execute(_REFUSE.format(door=_DOOR))
    for table, columns, _, _ in _REFERENCES:
        op.drop_constraint(f"{table}_{'_'.join(columns)}_fkey", table, type_="foreignkey")
    for table in NUMBERED:
        op.execute(f"ALTER TABLE {table} ADD COLUMN seq bigint GENERATED ALWAYS AS IDENTITY")
        if table != "decisions":
            op.create_index(f"{table}_seq_idx", table, ["seq"], unique=True)
    op.create_index("decisions_seq_idx", "decisions", ["seq"])
    for table in NEWLY_APPEND_ONLY:
        _protect(table)
    _fill_decided_at()
    for monthly in MONTHLY:
        _partition(monthly)
    _create_seals()


def _fill_decided_at() -> None:
    op.execute("ALTER TABLE reconciliations DISABLE TRIGGER append_only")
    op.execute("UPDATE reconciliations SET decided_at = at WHERE decided_at IS NULL")
    op.execute("ALTER TABLE reconciliations ENABLE TRIGGER append_only")
    op.alter_column("reconciliations", "decided_at", nullable=False)


def _protect(table: str) -> None:
    op.execute(
        f"CREATE TRIGGER append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON {table} "
        "FOR EACH STATEMENT EXECUTE FUNCTION refuse_change()"
    )


def _partition(monthly: _Monthly) -> None:
    """The table as it is becomes `<table>_old`, for all that comes before the next month."""
    table, old = monthly.table, f"{monthly.table}_old"
    connection = op.get_bind()
    last = connection.scalar(sa.text(f"SELECT coalesce(pg_sequence_last_value('{table}_seq_seq'), 0)")) or 0
    op.execute(f"ALTER TABLE {table} ALTER COLUMN seq DROP IDENTITY")
    for name in _constraints(table):
        op.execute(f'ALTER TABLE {table} DROP CONSTRAINT "{name}"')
    indexes = _indexes(table)
    for name, _ in indexes:
        op.execute(f'ALTER INDEX "{name}" RENAME TO "{name[:59]}_old"')
    statistics = _statistics(table)
    for name, _, _ in statistics:
        op.execute(f'ALTER STATISTICS "{name}" RENAME TO "{name}_old"')
    op.rename_table(table, old)
    op.execute(
        f"CREATE TABLE {table} (LIKE {old} INCLUDING DEFAULTS INCLUDING STORAGE) PARTITION BY RANGE ({monthly.time})"
    )
    _create_statistics(statistics)
    op.execute(f"ALTER TABLE {table} ALTER COLUMN seq ADD GENERATED ALWAYS AS IDENTITY (START {last + 1})")
    op.create_primary_key(f"{table}_pkey", table, list(monthly.primary))
    for columns in monthly.unique:
        op.create_unique_constraint(f"{table}_{'_'.join(columns)}_key", table, list(columns))
    for _, definition in indexes:
        op.execute(definition)
    cut, after = connection.execute(
        sa.text(
            "SELECT next, next + interval '1 month' FROM (SELECT date_trunc('month', "
            f"greatest(now(), max({monthly.time})) AT TIME ZONE 'UTC') + interval '1 month' AS next FROM {old}) AS cut"
        )
    ).one()
    op.execute(f"ALTER TABLE {table} ATTACH PARTITION {old} FOR VALUES FROM (MINVALUE) TO ('{cut}+00')")
    options = _options(old)
    for part, bounds in (
        (f"{table}_{cut:%Y_%m}", f"FOR VALUES FROM ('{cut}+00') TO ('{after}+00')"),
        (f"{table}_rest", "DEFAULT"),
    ):
        op.execute(
            f"CREATE TABLE {part} (LIKE {table} INCLUDING DEFAULTS INCLUDING STORAGE INCLUDING STATISTICS){options}"
        )
        op.execute(f"ALTER TABLE {table} ATTACH PARTITION {part} {bounds}")
        _protect(part)
    _protect(table)


def _constraints(table: str) -> list[str]:
    found = op.get_bind().execute(
        sa.text(
            f"SELECT conname FROM pg_constraint WHERE conrelid = '{table}'::regclass AND contype IN ('p', 'u', 'f')"
        )
    )
    return list(found.scalars())


def _indexes(table: str) -> list[tuple[str, str]]:
    """Name and definition of the indexes that no constraint needs."""
    found = op.get_bind().execute(
        sa.text(
            "SELECT indexrelid::regclass::text, replace(pg_get_indexdef(indexrelid), ' ON ONLY ', ' ON ') "
            f"FROM pg_index WHERE indrelid = '{table}'::regclass "
            "AND NOT EXISTS (SELECT FROM pg_constraint WHERE conindid = indexrelid) ORDER BY 1"
        )
    )
    return [(row[0], row[1]) for row in found]


def _statistics(table: str) -> list[tuple[str, str, int]]:
    """Name, definition and size of the statistics over several columns."""
    found = op.get_bind().execute(
        sa.text(
            "SELECT stxname, pg_get_statisticsobjdef(oid), coalesce(stxstattarget, -1) FROM pg_statistic_ext "
            f"WHERE stxrelid = '{table}'::regclass ORDER BY 1"
        )
    )
    return [(row[0], row[1], row[2]) for row in found]


def _create_statistics(statistics: list[tuple[str, str, int]]) -> None:
    for name, definition, target in statistics:
        op.execute(definition)
        op.execute(f'ALTER STATISTICS "{name}" SET STATISTICS {target}')


def _options(table: str) -> str:
    """As the end of a CREATE TABLE: storage parameters, which a parted table itself cannot have."""
    options = op.get_bind().scalar(
        sa.text(f"SELECT array_to_string(reloptions, ', ') FROM pg_class WHERE oid = '{table}'::regclass")
    )
    return f" WITH ({options})" if options else ""


def _create_seals() -> None:
    op.create_table(
        "seals",
        sa.Column("number", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("document", sa.LargeBinary(), nullable=False),
        sa.Column("signature", sa.LargeBinary(), nullable=True),
        sa.PrimaryKeyConstraint("number", name="seals_pkey"),
    )
    op.create_table(
        "seal_leaves",
        sa.Column("number", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("table_name", sa.Text(), nullable=False),
        sa.Column("after", sa.BigInteger(), nullable=False),
        sa.Column("upto", sa.BigInteger(), nullable=False),
        sa.Column("leaves", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("number", "table_name", name="seal_leaves_pkey"),
    )
    op.create_index("seal_leaves_table_name_upto_idx", "seal_leaves", ["table_name", "upto"])
    for table in ("seals", "seal_leaves"):
        _protect(table)


def downgrade() -> None:
    op.drop_table("seal_leaves")
    op.drop_table("seals")
    for monthly in MONTHLY:
        _unite(monthly)
    op.alter_column("reconciliations", "decided_at", nullable=True)
    for table in NEWLY_APPEND_ONLY:
        op.execute(f"DROP TRIGGER append_only ON {table}")
    for table in NUMBERED:
        op.drop_index(f"{table}_seq_idx", table_name=table)
        op.drop_column(table, "seq")
    for table, columns, other, others in _REFERENCES:
        op.create_foreign_key(f"{table}_{'_'.join(columns)}_fkey", table, other, list(columns), list(others))
    op.execute(_REFUSE.format(door=""))


def _unite(monthly: _Monthly) -> None:
    """One plain table again. Rows are copied: an older build knows no partitions."""
    table = monthly.table
    connection = op.get_bind()
    last = connection.scalar(sa.text(f"SELECT coalesce(pg_sequence_last_value('{table}_seq_seq'), 0)")) or 0
    indexes, statistics, options = _indexes(table), _statistics(table), _options(f"{table}_rest")
    op.execute(f"CREATE TABLE {table}_whole (LIKE {table} INCLUDING DEFAULTS INCLUDING STORAGE){options}")
    op.execute(f"INSERT INTO {table}_whole SELECT * FROM {table}")
    op.drop_table(table)
    op.rename_table(f"{table}_whole", table)
    op.execute(f"ALTER TABLE {table} ALTER COLUMN seq ADD GENERATED ALWAYS AS IDENTITY (START {last + 1})")
    _create_statistics(statistics)
    op.create_primary_key(f"{table}_pkey", table, list(monthly.primary_before))
    for columns in monthly.unique_before:
        op.create_unique_constraint(f"{table}_{'_'.join(columns)}_key", table, list(columns))
    for _, definition in indexes:
        op.execute(definition)
    _protect(table)
