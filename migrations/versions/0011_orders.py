"""What operators order about jobs, which orders a decision has seen, and nodes that were isolated by hand."""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision: str = "0011"
down_revision: str | None = "0010"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

_TIME = postgresql.TIMESTAMP(timezone=True)


def _text(name: str, *, nullable: bool = False) -> sa.Column[str]:
    return sa.Column(name, sa.Text(), nullable=nullable)


def _truth(name: str) -> sa.Column[bool]:
    return sa.Column(name, sa.Boolean(), server_default=sa.false(), nullable=False)


def upgrade() -> None:
    for name in ("orders", "orders_decided"):
        op.add_column("attempts", sa.Column(name, sa.BigInteger(), server_default=sa.text("0"), nullable=False))
    op.create_table(
        "orders",
        sa.Column("id", sa.Uuid(as_uuid=False), nullable=False),
        _text("kind"),
        _text("cluster"),
        sa.Column("job_key", sa.Uuid(as_uuid=False), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        _text("job_id"),
        _text("user_name"),
        sa.Column("decision_id", sa.Uuid(as_uuid=False), nullable=True),
        _text("action", nullable=True),
        _text("category", nullable=True),
        _text("node"),
        _truth("ends_live"),
        _truth("ceiling"),
        _text("set_by"),
        _text("why"),
        _text("origin"),
        sa.Column("set_at", _TIME, nullable=False),
        sa.Column("lifted_at", _TIME, nullable=True),
        _text("lifted_by", nullable=True),
        _text("lifted_why", nullable=True),
        sa.PrimaryKeyConstraint("id", name="orders_pkey"),
        sa.ForeignKeyConstraint(
            ["job_key", "number"], ["attempts.job_key", "attempts.number"], name="orders_job_key_number_fkey"
        ),
    )
    op.create_index("orders_in_force_idx", "orders", ["job_key"], postgresql_where=sa.text("lifted_at IS NULL"))
    for columns in (["set_at", "id"], ["cluster", "set_at", "id"], ["job_id", "set_at", "id"]):
        op.create_index(f"orders_{'_'.join(columns)}_idx", "orders", columns)
    op.add_column("isolations", sa.Column("opened_by", sa.Text(), server_default=sa.text("''"), nullable=False))
    op.alter_column("isolations", "job_key", nullable=True)
    op.alter_column("isolations", "number", nullable=True)


def downgrade() -> None:
    # An isolation by hand has no job to stand for it.
    op.execute("DELETE FROM isolations WHERE job_key IS NULL")
    op.alter_column("isolations", "number", nullable=False)
    op.alter_column("isolations", "job_key", nullable=False)
    op.drop_column("isolations", "opened_by")
    op.drop_table("orders")
    op.drop_column("attempts", "orders_decided")
    op.drop_column("attempts", "orders")
