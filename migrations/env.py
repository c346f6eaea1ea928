"""Alembic's entry: runs on the connection that `advisor.store.migrate` hands over, inside its lock."""

from alembic import context
from sqlalchemy import text

from advisor.store.tables import metadata

connection = context.config.attributes.get("connection")
if connection is None:
    raise SystemExit("run migrations with `advisor store migrate`: it takes the lock that they need")
parts = frozenset(connection.scalars(text("SELECT relname FROM pg_class WHERE relispartition")))
context.configure(
    connection=connection,
    target_metadata=metadata,
    compare_type=True,
    compare_server_default=True,
    include_name=lambda name, kind, _parents: kind != "table" or name not in parts,
)
with context.begin_transaction():
    context.run_migrations()
