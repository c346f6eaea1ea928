"""What keeps a database from being written to is found without writing to it; a full disk is in `postgres_trouble`."""

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from advisor.store import writes
from advisor.store.database import Database

pytestmark = pytest.mark.postgres


async def test_tables_that_may_not_be_written_to_are_named(url: str) -> None:
    """A role that lost a privilege, or never had it, by whatever restored or hardened the database."""
    database = Database(url)
    await database.open()
    async with database.door.begin() as connection:
        assert await writes.refused(connection) == ""
        for statement in (
            "CREATE ROLE narrow",
            "GRANT USAGE ON SCHEMA public TO narrow",
            "GRANT SELECT, INSERT ON ALL TABLES IN SCHEMA public TO narrow",
            "SET LOCAL ROLE narrow",
        ):
            await connection.execute(text(statement))
        assert await writes.refused(connection) == ""
        await connection.execute(text("RESET ROLE"))
        await connection.execute(text("REVOKE INSERT ON decisions, advice FROM narrow"))
        await connection.execute(text("SET LOCAL ROLE narrow"))
        assert await writes.refused(connection) == "no permission to write to advice, decisions"
        await connection.rollback()
    await database.close()


async def test_a_megabyte_is_put_on_the_servers_disk(url: str) -> None:
    """Else a full one would not be found: a server that allows less for it refuses."""
    database = Database(url)
    await database.open()
    async with database.door.begin() as connection:
        await connection.execute(text("SET LOCAL temp_file_limit = '1000kB'"))
        with pytest.raises(DBAPIError, match="temporary file size exceeds"):
            await writes.refused(connection)
        await connection.rollback()
    await database.close()
