"""The outbox of notices: what is to be told to whom, and what was."""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision: str = "0007"
down_revision: str | None = "0006"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

_TIME = postgresql.TIMESTAMP(timezone=True)


def upgrade() -> None:
    op.create_table(
        "notifications",
        sa.Column("channel", sa.Text(), nullable=False),
        sa.Column("decision_id", sa.Uuid(as_uuid=False), nullable=False),
        sa.Column("job_key", sa.Uuid(as_uuid=False), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("created_at", _TIME, nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("message_key", sa.Uuid(as_uuid=False), nullable=True),
        sa.Column("claimed_at", _TIME, nullable=True),
        sa.Column("due_at", _TIME, nullable=True),
        sa.Column("tries", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("uncertain", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("sent_at", _TIME, nullable=True),
        sa.Column("error", sa.Text(), server_default=sa.text("''"), nullable=False),
        sa.PrimaryKeyConstraint("channel", "decision_id", name="notifications_pkey"),
        sa.ForeignKeyConstraint(["decision_id"], ["decisions.id"], name="notifications_decision_id_fkey"),
    )
    still_open = sa.text("state IN ('waiting', 'sending')")
    op.create_index("notifications_open_idx", "notifications", ["channel", "created_at"], postgresql_where=still_open)
    op.create_index("notifications_message_key_idx", "notifications", ["message_key"])
    op.create_index("notifications_channel_job_key_number_idx", "notifications", ["channel", "job_key", "number"])
    op.create_index("notifications_channel_claimed_at_idx", "notifications", ["channel", "claimed_at"])


def downgrade() -> None:
    op.drop_table("notifications")
