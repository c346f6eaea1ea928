"""Which database of its server the store is: a dump that is restored beside it, in the same server, is another one."""

from collections.abc import Sequence

from alembic import op

revision: str = "0015"
down_revision: str | None = "0014"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

_HERE = "SELECT oid::bigint FROM pg_database WHERE datname = current_database()"


def upgrade() -> None:
    # As a default that is taken away again: rows that are there get it, and none of them is written.
    op.execute(f"""
        DO $$ BEGIN
            EXECUTE format('ALTER TABLE incarnations ADD COLUMN database_oid bigint DEFAULT %s', ({_HERE}));
        END $$
    """)
    op.execute("ALTER TABLE incarnations ALTER COLUMN database_oid DROP DEFAULT")


def downgrade() -> None:
    op.drop_column("incarnations", "database_oid")
