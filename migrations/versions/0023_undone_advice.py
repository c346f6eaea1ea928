"""That a scheduler has forgotten what came of an advice: of each one, where the withdrawn attempt told up to which."""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0023"
down_revision: str | None = "0022"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.add_column("advice", sa.Column("undone", sa.Boolean(), nullable=False, server_default=sa.text("false")))
    op.execute(
        """
        UPDATE advice SET undone = true FROM attempts
        WHERE attempts.withdrawn_generation IS NOT NULL AND attempts.job_key = advice.job_key
          AND (attempts.number = advice.number
               OR (attempts.number = advice.number + 1 AND advice.generation <= attempts.withdrawn_generation))
        """
    )


def downgrade() -> None:
    op.drop_column("advice", "undone")
