"""Migrations: once, by whoever comes first, to exactly the tables that the code speaks of."""

import asyncio

import pytest
from alembic import command
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import create_async_engine

from advisor.core.words import AttemptState
from advisor.store.errors import SchemaMismatch
from advisor.store.migrate import alembic_config, migrate, require_server
from advisor.store.store import Store
from advisor.store.tables import APPEND_ONLY, metadata
from tests.integration.store.worlds import at, healthy, pending, record, report, restored, running, seen

pytestmark = pytest.mark.postgres


async def test_concurrent_migrators(empty_url: str) -> None:
    """Three replicas that start at once end with one migrated schema and no error."""
    await asyncio.gather(*(migrate(empty_url) for _ in range(3)))
    await (await Store.open(empty_url)).close()


async def test_metadata_is_what_migrations_create(url: str) -> None:
    """Alembic finds nothing to add or change between the migrated schema and the tables in code."""
    engine = create_async_engine(url)
    async with engine.connect() as connection:
        await connection.run_sync(lambda plain: command.check(alembic_config(plain)))
    await engine.dispose()


async def test_down_and_up_again(url: str) -> None:
    """The first migration can be undone without a trace, and done again."""
    engine = create_async_engine(url)
    async with engine.connect() as connection:
        await connection.run_sync(lambda plain: command.downgrade(alembic_config(plain), "base"))
        await connection.commit()
        left = await connection.execute(text("SELECT tablename FROM pg_tables WHERE schemaname = 'public'"))
        assert left.scalars().all() == ["alembic_version"]
    await engine.dispose()
    await migrate(url)


def test_an_old_server_is_refused() -> None:
    """A Postgres whose parts cannot share serial numbers is refused in one line; a newer one is not."""
    require_server(170_000)
    with pytest.raises(SchemaMismatch, match="this is Postgres 16, and 17 or newer"):
        require_server(160_009)


async def test_unmigrated_database_is_refused(empty_url: str) -> None:
    """A store does not open on a database without its tables, and says what to do."""
    with pytest.raises(SchemaMismatch, match="`advisor store migrate` for an empty store"):
        await Store.open(empty_url)


@pytest.mark.parametrize("statement", ["UPDATE {} SET {} = {}", "DELETE FROM {}", "TRUNCATE {} CASCADE"])
async def test_append_only(store: Store, url: str, statement: str) -> None:
    """History cannot be changed, deleted or emptied, not even by the table's owner."""
    await store.commit_decision(record(await running(store)))
    engine = create_async_engine(url)
    async with engine.connect() as connection:
        for table in APPEND_ONLY:
            column = next(name for name in reversed(metadata.tables[table].columns.keys()) if name != "seq")
            with pytest.raises(DBAPIError, match=f"table {table} is append-only"):
                await connection.execute(text(statement.format(table, column, column)))
            await connection.rollback()
    await engine.dispose()


async def test_every_table_but_the_append_only_ones_can_change(store: Store, url: str) -> None:
    """The list in code names exactly the tables that the database protects."""
    engine = create_async_engine(url)
    async with engine.connect() as connection:
        found = await connection.execute(
            text(
                "SELECT tgrelid::regclass::text FROM pg_trigger WHERE tgname = 'append_only' "
                "AND NOT (SELECT relispartition FROM pg_class WHERE oid = tgrelid) ORDER BY 1"
            )
        )
        assert found.scalars().all() == sorted(APPEND_ONLY)
    await engine.dispose()


async def test_parts_are_append_only_too(url: str) -> None:
    """Whoever names one month instead of the whole table is refused as well."""
    engine = create_async_engine(url)
    async with engine.connect() as connection:
        parts = (
            await connection.execute(text("SELECT relname FROM pg_class WHERE relispartition AND relkind = 'r'"))
        ).scalars()
        for part in parts:
            with pytest.raises(DBAPIError, match=f"table {part} is append-only"):
                await connection.execute(text(f"DELETE FROM {part}"))
            await connection.rollback()
    await engine.dispose()


async def test_months_keep_what_was_there(empty_url: str) -> None:
    """A database of before has its rows afterwards, in their order, and a later row comes after them."""
    engine = create_async_engine(empty_url)
    row = "INSERT INTO audit (id, at, who, what, why, origin, cluster, subject, detail) VALUES "
    values = "(gen_random_uuid(), {at}, 'root', 'mode_set', '', '', '', '', '{{}}')"
    async with engine.connect() as connection:
        await connection.run_sync(lambda plain: command.upgrade(alembic_config(plain), "0009"))
        for when in ("now() - interval '1 year'", "now() + interval '2 months'"):
            await connection.execute(text(row + values.format(at=when)))
        await connection.commit()
    await migrate(empty_url)
    async with engine.connect() as connection:
        for when in ("now()", "now() + interval '3 months'", "now() + interval '9 years'"):
            await connection.execute(text(row + values.format(at=when)))
        await connection.commit()
        found = await connection.execute(text("SELECT seq FROM audit ORDER BY seq"))
        assert found.scalars().all() == [1, 2, 3, 4, 5]
        await connection.run_sync(lambda plain: command.downgrade(alembic_config(plain), "0009"))
        found = await connection.execute(text("SELECT seq FROM audit ORDER BY seq"))
        assert found.scalars().all() == [1, 2, 3, 4, 5]
    await engine.dispose()


async def test_what_was_withdrawn_before_stays_undone(url: str) -> None:
    """Builds of schema 0022 told by the generations alone which advice was."""
    store = await Store.open(url)
    key = await running(store)
    await store.commit_decision(record(key))
    await report(store, pending(attempt=1, submitted_at=at(30), observed_at=at(31)))
    assert (await report(store, seen(AttemptState.FAILED, ended_at=at(20), observed_at=at(40)))).withdrawn
    await store.commit_decision(record(key, 1, created_at=at(41)))
    engine = create_async_engine(url)
    async with engine.connect() as connection:
        await connection.run_sync(lambda plain: command.downgrade(alembic_config(plain), "0022"))
        await connection.commit()
        await migrate(url)
        found = await connection.execute(text("SELECT generation, undone FROM advice ORDER BY generation"))
        assert [tuple(row) for row in found] == [(1, True), (2, False)]
    await engine.dispose()
    await store.close()


async def test_incarnation_stays_until_a_restore(url: str) -> None:
    """The same store keeps its incarnation over restarts; after a restored backup it has another for good."""
    first = await Store.open(url)
    await first.close()
    second = await Store.open(url)
    assert second.incarnation == first.incarnation
    renewed = await restored(second, url)
    assert second.incarnation == renewed
    await second.close()
    third = await Store.open(url)
    assert third.incarnation == renewed != first.incarnation
    await third.close()


async def test_restore_on_another_server_is_noticed(url: str) -> None:
    """A store whose server is not the one it was written on begins a new incarnation by itself."""
    first = await Store.open(url)
    await first.close()
    engine = create_async_engine(url)
    async with engine.begin() as connection:
        written_there = await connection.execute(
            text(
                "INSERT INTO incarnations (id, created_at, why, system_identifier, timeline) "
                "SELECT gen_random_uuid(), created_at, why, '1', timeline FROM incarnations RETURNING id::text"
            )
        )
        elsewhere = written_there.scalar_one()
    await engine.dispose()
    second = await Store.open(url)
    assert second.incarnation not in {first.incarnation, elsewhere}
    await second.close()


async def test_generation_of_another_incarnation_has_another_id(store: Store, url: str) -> None:
    """The same decision of another incarnation is another decision."""
    first = await store.commit_decision(record(await running(store), decision=healthy()))
    await restored(store, url)
    other = await report(store, pending(job_id="8", observed_at=at(30)), complete=False)
    second = await store.commit_decision(record(other.changed[0], decision=healthy()))
    assert first.decision_id != second.decision_id
