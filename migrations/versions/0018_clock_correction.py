"""What the replicas add to this database's clock since somebody set it, and what their hosts told when heard."""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision: str = "0018"
down_revision: str | None = "0017"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

_TIME = postgresql.TIMESTAMP(timezone=True)


def upgrade() -> None:
    op.create_table(
        "clock_correction",
        sa.Column("one", sa.Boolean(), nullable=False),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.Column("seconds", sa.Double(), nullable=False),
        sa.Column("since", _TIME, nullable=False),
        sa.Column("shrinking", sa.Boolean(), nullable=False),
        sa.CheckConstraint("one", name="clock_correction_one_check"),
        sa.PrimaryKeyConstraint("one", name="clock_correction_pkey"),
    )
    op.execute("INSERT INTO clock_correction VALUES (true, 0, 0, clock_timestamp(), true)")
    op.add_column("replicas", sa.Column("heard_at", _TIME, nullable=True))
    op.add_column("replicas", sa.Column("own_at", _TIME, nullable=True))
    op.add_column("replicas", sa.Column("boot", sa.Text(), nullable=True))
    op.add_column("replicas", sa.Column("uptime_seconds", sa.Double(), nullable=True))
    op.add_column("replicas", sa.Column("clock_version", sa.BigInteger(), nullable=True))


def downgrade() -> None:
    for name in ("clock_version", "uptime_seconds", "boot", "own_at", "heard_at"):
        op.drop_column("replicas", name)
    op.drop_table("clock_correction")
