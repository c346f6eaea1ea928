"""Which table the store's identity stands in: a dump that is restored in place makes the tables anew."""

from collections.abc import Sequence

from alembic import op

revision: str = "0017"
down_revision: str | None = "0016"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    # As a default that is taken away again: rows that are there get it, and none of them is written.
    op.execute("""
        DO $$ BEGIN
            EXECUTE format(
                'ALTER TABLE incarnations ADD COLUMN table_oid bigint DEFAULT %s', 'incarnations'::regclass::oid::bigint
            );
        END $$
    """)
    op.execute("ALTER TABLE incarnations ALTER COLUMN table_oid DROP DEFAULT")


def downgrade() -> None:
    op.drop_column("incarnations", "table_oid")
