"""By how much the clock of an agent's host is behind the replicas' time."""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0021"
down_revision: str | None = "0020"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.add_column("agents", sa.Column("clock_behind_seconds", sa.Double(), nullable=True))


def downgrade() -> None:
    op.drop_column("agents", "clock_behind_seconds")
