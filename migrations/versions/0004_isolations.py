"""Isolated nodes and their breaker, pauses, and modes by account and by share of jobs."""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision: str = "0004"
down_revision: str | None = "0003"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

_TIME = postgresql.TIMESTAMP(timezone=True)
_PLACE = ["cluster", "partition", "job_id", "category"]


def _text(name: str, *, nullable: bool = False) -> sa.Column[str]:
    return sa.Column(name, sa.Text(), nullable=nullable)


def _time(name: str, *, nullable: bool = False) -> sa.Column[object]:
    return sa.Column(name, _TIME, nullable=nullable)


def upgrade() -> None:
    op.add_column("mode_settings", sa.Column("account", sa.Text(), server_default=sa.text("''"), nullable=False))
    op.alter_column("mode_settings", "account", server_default=None)
    op.add_column("mode_settings", sa.Column("percent", sa.Integer(), nullable=True))
    op.drop_constraint("mode_settings_pkey", "mode_settings", type_="primary")
    op.create_primary_key("mode_settings_pkey", "mode_settings", [*_PLACE, "account"])
    op.create_table(
        "pauses",
        _text("cluster"),
        _time("until"),
        _text("set_by"),
        _text("why"),
        _time("set_at"),
        sa.PrimaryKeyConstraint("cluster", name="pauses_pkey"),
    )
    op.create_table(
        "isolation_breakers",
        _text("cluster"),
        _time("tripped_at"),
        _text("why"),
        sa.PrimaryKeyConstraint("cluster", name="isolation_breakers_pkey"),
    )
    _create_isolations()


def _create_isolations() -> None:
    op.create_table(
        "isolations",
        sa.Column("id", sa.Uuid(as_uuid=False), nullable=False),
        _text("cluster"),
        _text("node"),
        sa.Column("generation", sa.BigInteger(), nullable=False),
        sa.Column("dry_run", sa.Boolean(), nullable=False),
        _text("category"),
        _text("why"),
        sa.Column("job_key", sa.Uuid(as_uuid=False), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        _text("job_id"),
        _time("opened_at"),
        _time("expires_at"),
        sa.Column("open", sa.Boolean(), nullable=False),
        _text("status"),
        _text("reason"),
        _text("detail"),
        _time("drained_at", nullable=True),
        _time("ended_at", nullable=True),
        _text("ended_by", nullable=True),
        _text("ended_why", nullable=True),
        _time("probed_at", nullable=True),
        sa.Column("probe_passed", sa.Boolean(), nullable=True),
        sa.PrimaryKeyConstraint("id", name="isolations_pkey"),
        sa.ForeignKeyConstraint(
            ["job_key", "number"],
            ["attempts.job_key", "attempts.number"],
            name="isolations_job_key_number_fkey",
        ),
    )
    for columns in (["cluster", "opened_at", "id"], ["cluster", "node", "opened_at", "id"], ["opened_at", "id"]):
        op.create_index(f"isolations_{'_'.join(columns)}_idx", "isolations", columns)
    open_only = sa.text("open")
    op.create_index(
        "isolations_one_open_idx", "isolations", ["cluster", "node"], unique=True, postgresql_where=open_only
    )
    op.create_index("isolations_expiry_idx", "isolations", ["expires_at"], postgresql_where=open_only)


def downgrade() -> None:
    op.drop_table("isolations")
    op.drop_table("isolation_breakers")
    op.drop_table("pauses")
    # Settings by account or for a share of jobs have no place in the former table: monitor holds there again.
    op.execute("DELETE FROM mode_settings WHERE account <> '' OR percent IS NOT NULL")
    op.drop_constraint("mode_settings_pkey", "mode_settings", type_="primary")
    op.create_primary_key("mode_settings_pkey", "mode_settings", _PLACE)
    op.drop_column("mode_settings", "percent")
    op.drop_column("mode_settings", "account")
