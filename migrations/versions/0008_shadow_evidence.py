"""What people did and said, what became of nodes, how many GPUs a job holds, and autonomy that was earned."""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision: str = "0008"
down_revision: str | None = "0007"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

_TIME = postgresql.TIMESTAMP(timezone=True)
_NAMES = postgresql.ARRAY(sa.Text())


def _text(name: str, *, nullable: bool = False) -> sa.Column[str]:
    return sa.Column(name, sa.Text(), nullable=nullable)


def _time(name: str, *, nullable: bool = False) -> sa.Column[object]:
    return sa.Column(name, _TIME, nullable=nullable)


def _id(name: str) -> sa.Column[str]:
    return sa.Column(name, sa.Uuid(as_uuid=False), nullable=False)


def upgrade() -> None:
    op.add_column("attempts", sa.Column("gpus", sa.Integer(), nullable=True))
    op.create_table(
        "node_changes",
        sa.Column("seq", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        _text("cluster"),
        _text("name"),
        _text("before", nullable=True),
        _text("state"),
        _text("reason"),
        _time("at"),
        sa.PrimaryKeyConstraint("seq", name="node_changes_pkey"),
    )
    op.create_index("node_changes_cluster_at_idx", "node_changes", ["cluster", "at"])
    op.create_index("node_changes_cluster_name_at_idx", "node_changes", ["cluster", "name", "at"])
    op.create_table(
        "shadow_records",
        _id("id"),
        _id("job_key"),
        sa.Column("number", sa.Integer(), nullable=False),
        _text("cluster"),
        _text("did"),
        sa.Column("nodes", _NAMES, nullable=False),
        _time("did_at"),
        _text("who"),
        _text("why"),
        _text("origin"),
        _time("at"),
        sa.PrimaryKeyConstraint("id", name="shadow_records_pkey"),
        _of_attempt("shadow_records"),
    )
    op.create_index("shadow_records_job_key_number_at_idx", "shadow_records", ["job_key", "number", "at"])
    op.create_table(
        "corrections",
        _id("id"),
        _id("decision_id"),
        _id("job_key"),
        sa.Column("number", sa.Integer(), nullable=False),
        _text("cluster"),
        _text("category", nullable=True),
        _text("action", nullable=True),
        sa.Column("nodes", _NAMES, nullable=True),
        _text("who"),
        _text("why"),
        _text("origin"),
        _time("at"),
        sa.PrimaryKeyConstraint("id", name="corrections_pkey"),
        _of_attempt("corrections"),
    )
    op.create_index("corrections_job_key_number_at_idx", "corrections", ["job_key", "number", "at"])
    op.create_index("corrections_at_id_idx", "corrections", ["at", "id"])
    op.create_index("corrections_decision_id_at_idx", "corrections", ["decision_id", "at"])
    _create_earned()


def _create_earned() -> None:
    op.create_table(
        "earned_autonomy",
        _text("cluster"),
        _text("category"),
        sa.Column("held", sa.Boolean(), nullable=False),
        sa.Column("with_stop", sa.Boolean(), nullable=False),
        sa.Column("agreed", sa.Integer(), nullable=False),
        sa.Column("counted", sa.Integer(), nullable=False),
        sa.Column("lower", sa.Double(), nullable=False),
        _text("why"),
        _time("since"),
        sa.PrimaryKeyConstraint("cluster", "category", name="earned_autonomy_pkey"),
    )


def _of_attempt(table: str) -> sa.ForeignKeyConstraint:
    return sa.ForeignKeyConstraint(
        ["job_key", "number"], ["attempts.job_key", "attempts.number"], name=f"{table}_job_key_number_fkey"
    )


def downgrade() -> None:
    for table in ("earned_autonomy", "corrections", "shadow_records", "node_changes"):
        op.drop_table(table)
    op.drop_column("attempts", "gpus")
