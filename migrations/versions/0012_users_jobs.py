"""A user's jobs by time: what may have been submitted in another one's place."""

from collections.abc import Sequence

from alembic import op

revision: str = "0012"
down_revision: str | None = "0011"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.create_index("jobs_cluster_user_name_first_seen_at_idx", "jobs", ["cluster", "user_name", "first_seen_at"])


def downgrade() -> None:
    op.drop_index("jobs_cluster_user_name_first_seen_at_idx", "jobs")
