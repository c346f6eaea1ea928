"""When a state was saved is written no more, since nobody reads it: builds that write it still may.

The column goes with a migration of a later release that names this schema as `oldest_code`: then nobody writes it.
"""

from collections.abc import Sequence

from alembic import op

revision: str = "0019"
down_revision: str | None = "0018"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.alter_column("detector_states", "saved_at", nullable=True)


def downgrade() -> None:
    op.execute("UPDATE detector_states SET saved_at = now() WHERE saved_at IS NULL")
    op.alter_column("detector_states", "saved_at", nullable=False)
