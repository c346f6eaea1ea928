"""That a tick has looked at an attempt since its end is stored as such: clocks that were set told it wrongly."""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0016"
down_revision: str | None = "0015"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    # Attempts that are over and open are looked at once more, by the next tick.
    op.add_column("detector_states", sa.Column("seen_over", sa.Boolean(), nullable=False, server_default=sa.false()))


def downgrade() -> None:
    op.drop_column("detector_states", "seen_over")
