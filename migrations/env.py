"""Alembic's entry: runs on the connection that `advisor.store.migrate` hands over, inside its lock."""

from alembic import context

from advisor.store.tables import metadata

connection = context.config.attributes.get("connection")
if connection is None:
    raise SystemExit("run migrations with `python -m advisor.store.migrate URL`: it takes the lock that they need")
context.configure(connection=connection, target_metadata=metadata, compare_type=True, compare_server_default=True)
with context.begin_transaction():
    context.run_migrations()
