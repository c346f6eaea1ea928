"""That an agent's stop file is there, by its last heartbeat: people looked at the service, which did not know of it."""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0021"
down_revision: str | None = "0020"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.add_column("agents", sa.Column("stopped_why", sa.Text(), nullable=True))
    op.add_column("agents", sa.Column("stopped_since", sa.DateTime(timezone=True), nullable=True))


def downgrade() -> None:
    op.drop_column("agents", "stopped_since")
    op.drop_column("agents", "stopped_why")
