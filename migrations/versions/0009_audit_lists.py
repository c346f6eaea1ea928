"""What the audit's lists are served by: accounts, arrays, what came of advice, and what people did."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import sqlalchemy as sa
from alembic import op

revision: str = "0009"
down_revision: str | None = "0008"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

_BY_ACCOUNT = {
    "decisions": ("created_at", "id"),
    "incidents": ("opened_at", "id"),
    "attempts": ("submitted_at", "job_key", "number"),
}
# Which values come together, for the planner: two filters that never meet are then known not to. At most eight columns.
_TOGETHER = "category, action, reason, mode, partition, cluster"
# Wide columns (the decision, its analysis) go beside the table: what is filtered lies twenty rows to a page.
_ROW_BYTES = 512
_PEOPLE = "what NOT IN ('decision_committed', 'advice_reconciled', 'agent_registered')"


@contextmanager
def _changing(table: str) -> Iterator[None]:
    """Rows that are already there get a value for a column that is new: the one change that append-only allows."""
    held = table != "attempts" and table != "incidents"
    if held:
        op.execute(f"ALTER TABLE {table} DISABLE TRIGGER append_only")
    yield
    if held:
        op.execute(f"ALTER TABLE {table} ENABLE TRIGGER append_only")


def upgrade() -> None:
    for table, order in _BY_ACCOUNT.items():
        op.add_column(table, sa.Column("account", sa.Text(), server_default=sa.text("''"), nullable=False))
        with _changing(table):
            op.execute(
                f"UPDATE {table} AS t SET account = jobs.account FROM jobs "  # noqa: S608 - names of ours
                "WHERE jobs.key = t.job_key AND jobs.account <> ''"
            )
        name = "_".join((table, "account", *order, "idx"))
        op.create_index(name, table, ["account", *order])
    op.add_column("reconciliations", sa.Column("decided_at", sa.TIMESTAMP(timezone=True), nullable=True))
    with _changing("reconciliations"):
        op.execute(
            "UPDATE reconciliations AS t SET decided_at = decisions.created_at FROM decisions "
            "WHERE decisions.id = t.decision_id"
        )
    for column in ("status", "reason"):
        op.create_index(
            f"reconciliations_{column}_decided_at_decision_id_seq_idx",
            "reconciliations",
            [column, "decided_at", "decision_id", "seq"],
        )
    op.create_index(
        "jobs_array_idx", "jobs", ["array_job_id", "array_task"], postgresql_where=sa.text("array_job_id <> ''")
    )
    op.create_index("audit_people_idx", "audit", ["at", "id"], postgresql_where=sa.text(_PEOPLE))
    op.execute(f"CREATE STATISTICS decisions_together (mcv) ON {_TOGETHER} FROM decisions")
    op.execute("ALTER STATISTICS decisions_together SET STATISTICS 1000")
    op.execute(f"ALTER TABLE decisions SET (toast_tuple_target = {_ROW_BYTES})")


def downgrade() -> None:
    op.execute("ALTER TABLE decisions RESET (toast_tuple_target)")
    op.execute("DROP STATISTICS decisions_together")
    op.drop_index("audit_people_idx", table_name="audit")
    op.drop_index("jobs_array_idx", table_name="jobs")
    for column in ("reason", "status"):
        op.drop_index(f"reconciliations_{column}_decided_at_decision_id_seq_idx", table_name="reconciliations")
    op.drop_column("reconciliations", "decided_at")
    for table in _BY_ACCOUNT:
        op.drop_column(table, "account")
