"""That a scheduler has forgotten a requeue: the attempt that it had made never was, and the one before is the last."""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0022"
down_revision: str | None = "0021"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.add_column("attempts", sa.Column("withdrawn_generation", sa.BigInteger(), nullable=True))


def downgrade() -> None:
    op.drop_column("attempts", "withdrawn_generation")
