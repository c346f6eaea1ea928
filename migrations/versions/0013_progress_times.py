"""When an attempt progressed first and last, and what its checkpoints cost: reports ask for that of very many."""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision: str = "0013"
down_revision: str | None = "0012"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

_TIME = postgresql.TIMESTAMP(timezone=True)


def upgrade() -> None:
    op.add_column("attempts", sa.Column("first_progress_at", _TIME, nullable=True))
    op.add_column("attempts", sa.Column("last_progress_at", _TIME, nullable=True))
    op.add_column("attempts", sa.Column("save_seconds", postgresql.ARRAY(sa.Double()), nullable=True))


def downgrade() -> None:
    for name in ("save_seconds", "last_progress_at", "first_progress_at"):
        op.drop_column("attempts", name)
