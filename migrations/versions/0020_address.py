"""Where a replica answers, for people: two on one host differ by nothing else that they know."""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0020"
down_revision: str | None = "0019"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.add_column("replicas", sa.Column("address", sa.Text(), nullable=True))


def downgrade() -> None:
    op.drop_column("replicas", "address")
