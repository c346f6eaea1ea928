"""The one database followed through its life; how it goes away and comes back is in `postgres_trouble`."""

import asyncio

import psycopg
import pytest
from sqlalchemy import text
from structlog.testing import capture_logs

from advisor.store.database import Database
from advisor.store.engines import Door, SchemaAbsentError
from advisor.store.migrate import newest_revision
from advisor.store.records import AttemptKey
from tests.integration.store.worlds import at

pytestmark = pytest.mark.postgres


async def test_an_answer_of_before_does_not_bring_a_former_incarnation_back(url: str) -> None:
    """The tick's question is under way while an agent's word, or another connection, shows that a new one began."""
    database = Database(url)
    await database.open()
    former = database.incarnation
    async with database.door.look() as connection:
        shown = await database.glimpse(connection)
    assert shown.incarnation == former
    key = AttemptKey(job_key="0190a000-0000-7000-8000-000000000000", number=0)
    await database.has_forgotten(key, advice_id="", seen=2, who="agent", now=at(5))
    began = database.incarnation
    assert began != former
    await database.seen(shown, at(6))
    assert database.incarnation == began
    async with database.door.look() as connection:
        shown = await database.glimpse(connection)
    await database.seen(shown, at(7))
    assert database.incarnation == began
    await database.close()


async def test_the_dsn_is_read_once_a_second_for_all_connections(url: str) -> None:
    """Whatever they are for: it is one file, and leads to one place."""
    reads = 0

    def read() -> str:
        nonlocal reads
        reads += 1
        return url

    database = Database(url, read_url=read)
    await database.open()
    doors = (database.door, database.unhurried, database.asking, database.renewing)
    await _use(*doors)
    await asyncio.sleep(1.1)
    reads = 0
    await _use(*doors)
    assert reads == 1
    await database.close()


async def test_what_is_asked_in_every_tick_is_prepared_once(url: str) -> None:
    """Rolled back, a transaction that only read took all prepared statements with it: the server planned each anew, ten
    times what answering costs."""
    database = Database(url)
    await database.open()
    doors = (database.door.moment, database.door.begin, database.door.look, database.door.connect)
    for _ in range(10):
        for number, door in enumerate(doors):
            async with door() as connection:
                await connection.execute(text(f"SELECT count(*) + {number} FROM jobs"))
    async with database.door.look() as connection:
        prepared = await connection.execute(
            text("SELECT count(*) FROM pg_prepared_statements WHERE statement LIKE 'SELECT count(*) + %'")
        )
    assert prepared.scalar_one() == len(doors)
    await database.close()


@pytest.mark.parametrize(
    ("away", "back", "lacks"),
    [
        ("ALTER TABLE pauses RENAME TO gone", "ALTER TABLE gone RENAME TO pauses", 'relation "pauses" does not exist'),
        (
            "ALTER TABLE pauses RENAME why TO gone",
            "ALTER TABLE pauses RENAME gone TO why",
            'column "why" does not exist',
        ),
    ],
)
@pytest.mark.parametrize("revision", [newest_revision(), "0001"])
async def test_a_schema_that_lacks_something_is_told_as_what_it_is(
    url: str, away: str, back: str, lacks: str, revision: str
) -> None:
    """Once a minute, with its revision where that is another one; and all goes on when it is right again."""
    database = Database(url)
    await database.open()
    former = database.incarnation
    await _ask(database)
    with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as other, capture_logs() as told:
        other.execute(away)
        other.execute("UPDATE alembic_version SET version_num = %s", (revision,))
        with pytest.raises(SchemaAbsentError, match=lacks):
            await _ask(database)
        older = revision != newest_revision()
        for _ in range(3):
            with pytest.raises(SchemaAbsentError, match="the database is at revision 0001" if older else lacks):
                await _ask(database)
        assert [line["event"] for line in told] == ["schema_absent"] * (2 if older else 1)
        other.execute(back)
        other.execute("UPDATE alembic_version SET version_num = %s", (newest_revision(),))
    await _ask(database)
    assert database.incarnation == former
    await database.close()


async def test_each_thing_that_is_lacking_is_told_once_a_minute(url: str) -> None:
    """Whoever asks for one and whoever asks for the other take turns, several times a second."""
    database = Database(url)
    await database.open()
    with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as other, capture_logs() as told:
        other.execute("DROP TABLE pauses, leases CASCADE")
        for _ in range(3):
            for table in ("pauses", "leases"):
                with pytest.raises(SchemaAbsentError, match=f'"{table}" does not exist'):
                    await _ask(database, f"SELECT 1 FROM {table}")
    assert [line["event"] for line in told] == ["schema_absent"] * 2
    await database.close()


async def _ask(database: Database, question: str = "SELECT why FROM pauses") -> None:
    async with database.door.begin() as connection:
        await connection.execute(text(question))


async def _use(*doors: Door) -> None:
    for door in doors:
        async with door.look():
            pass
