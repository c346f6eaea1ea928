"""What an attempt's first step followed: that need not be the step before the first one that it printed."""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0024"
down_revision: str | None = "0023"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.add_column("attempts", sa.Column("resumed_step", sa.BigInteger(), nullable=True))


def downgrade() -> None:
    op.drop_column("attempts", "resumed_step")
