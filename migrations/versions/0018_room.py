"""How many jobs a replica can tick: others take what it has no room for."""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0018"
down_revision: str | None = "0017"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.add_column("replicas", sa.Column("jobs_max", sa.Integer(), nullable=True))


def downgrade() -> None:
    op.drop_column("replicas", "jobs_max")
