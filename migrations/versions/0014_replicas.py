"""Replicas: who lives, which job is whose, and which builds may run on this schema."""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision: str = "0014"
down_revision: str | None = "0013"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

_TIME = postgresql.TIMESTAMP(timezone=True)


def upgrade() -> None:
    op.create_table(
        "replicas",
        sa.Column("id", sa.Uuid(as_uuid=False), nullable=False),
        sa.Column("host", sa.Text(), nullable=False),
        sa.Column("pid", sa.BigInteger(), nullable=False),
        sa.Column("place", sa.Text(), nullable=False),
        sa.Column("version", sa.Text(), nullable=False),
        sa.Column("build", sa.Text(), nullable=False),
        sa.Column("schema", sa.Text(), nullable=False),
        sa.Column("started_at", _TIME, nullable=False),
        sa.Column("until", _TIME, nullable=False),
        sa.Column("ticked_at", _TIME, nullable=False),
        sa.Column("ended_at", _TIME, nullable=True),
        sa.PrimaryKeyConstraint("id", name="replicas_pkey"),
    )
    op.create_table(
        "leases",
        sa.Column("job_key", sa.Uuid(as_uuid=False), nullable=False),
        sa.Column("replica_id", sa.Uuid(as_uuid=False), nullable=True),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("changed_at", _TIME, nullable=False),
        sa.PrimaryKeyConstraint("job_key", name="leases_pkey"),
    )
    op.create_index("leases_replica_id_idx", "leases", ["replica_id"])
    op.execute("CREATE SEQUENCE lease_epochs")
    op.create_table(
        "schema_support",
        sa.Column("one", sa.Boolean(), nullable=False),
        sa.Column("oldest", sa.Text(), nullable=False),
        sa.CheckConstraint("one", name="schema_support_one_check"),
        sa.PrimaryKeyConstraint("one", name="schema_support_pkey"),
    )
    op.execute("INSERT INTO schema_support VALUES (true, '0014')")
    op.add_column("agents", sa.Column("unavailable", sa.LargeBinary(), nullable=True))


def downgrade() -> None:
    op.drop_column("agents", "unavailable")
    op.drop_table("schema_support")
    op.drop_table("leases")
    op.execute("DROP SEQUENCE lease_epochs")
    op.drop_table("replicas")
