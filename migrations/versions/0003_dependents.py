"""Which jobs a job waited for: it must not run beside them."""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision: str = "0003"
down_revision: str | None = "0002"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.add_column(
        "jobs",
        sa.Column("waits_for", postgresql.ARRAY(sa.Text()), server_default=sa.text("'{}'::text[]"), nullable=False),
    )
    op.add_column("jobs", sa.Column("singleton", sa.Boolean(), server_default=sa.text("false"), nullable=False))
    op.create_index(
        "jobs_dependent_idx",
        "jobs",
        ["cluster"],
        postgresql_where=sa.text("forgotten_at IS NULL AND (singleton OR waits_for <> '{}'::text[])"),
    )


def downgrade() -> None:
    op.drop_index("jobs_dependent_idx", table_name="jobs")
    op.drop_column("jobs", "singleton")
    op.drop_column("jobs", "waits_for")
