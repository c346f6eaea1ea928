"""Databases are emptied, changed and restored beside a service that runs: it stands still, and goes on by itself."""

import asyncio
import json
import shutil
import signal
from datetime import UTC
from functools import partial
from pathlib import Path

import httpx
import psycopg
import pytest
from alembic import command
from sqlalchemy import create_engine

from advisor.commands import store as commands
from advisor.store.migrate import alembic_config, migrate
from tests.integration.postgres_trouble.processes import scripted_agent, serving, write_dsn
from tests.integration.postgres_trouble.servers import Server
from tests.integration.service import programs
from tests.integration.service.world import configuration

pytestmark = pytest.mark.postgres

LACKING = (
    "the database has no schema of ours: where it is the right one, `advisor store restore`, or `advisor store "
    "migrate` for an empty store"
)


async def test_a_service_that_runs_notices_the_backup_in_its_place(place: Path, primary: Server) -> None:
    """Agents are told the new incarnation within ticks, and everything is paused."""
    dsn = place / "restored-dsn"
    dsn.write_text(primary.url())
    dsn.chmod(0o600)
    with serving(place, primary.url().replace("+psycopg", "")):
        async with scripted_agent(place) as agent:
            await agent.say(agent.world.job("RUNNING", job="5"))
            await agent.until(lambda: bool(agent.incarnations))
            dump = place / "advisor.dump"
            await asyncio.to_thread(commands.dump, dump, dsn_file=dsn, configuration=None)
            await asyncio.to_thread(commands.restore, dump, yes=True, dsn_file=dsn, configuration=None)
            await agent.until(lambda: len(agent.incarnations) == 2)
            assert primary.query("SELECT set_by, cluster FROM pauses") == [("advisor", "")]


async def test_the_pause_after_a_restore_names_the_newest_of_the_dump(place: Path, primary: Server) -> None:
    """Also where it is of a moment before the restore, with the service running all the time."""
    dump = place / "advisor.dump"
    write_dsn(place, _url(primary))
    with serving(place, _url(primary)):
        async with scripted_agent(place) as agent:
            await agent.until(lambda: bool(agent.incarnations))
            set_ = await asyncio.to_thread(programs.advisor, place, "mode", "set", "monitor", "--why", "the newest")
            assert set_.returncode == 0, set_.stderr
            ((newest,),) = primary.query("SELECT date_trunc('second', max(at)) FROM audit")
            await asyncio.to_thread(commands.dump, dump, dsn_file=place / "dsn", configuration=None)
            await asyncio.to_thread(commands.restore, dump, yes=True, dsn_file=place / "dsn", configuration=None)
            await agent.until(lambda: len(agent.incarnations) == 2)
            ((why,),) = primary.query("SELECT why FROM pauses")
    assert f"what was ordered after {newest.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC may be forgotten" in why


def _url(server: Server, database: str = "") -> str:
    return server.url(database).replace("+psycopg", "")


async def _ready(place: Path) -> bool:
    """As a load balancer would ask."""
    transport = httpx.AsyncHTTPTransport(uds=f"{place}/run/advisor-http.sock")
    async with httpx.AsyncClient(transport=transport, base_url="http://advisor", timeout=20) as client:
        return (await client.get("/readyz")).status_code == 200


async def test_who_has_read_a_sequence_and_wants_a_table_is_let_by(place: Path, primary: Server) -> None:
    """As the sealer does: neither it nor the restore is ended as a deadlock."""
    write_dsn(place, _url(primary))
    dump = place / "advisor.dump"
    commands.dump(dump, dsn_file=place / "dsn", configuration=None)
    (found,) = primary.query("SELECT min(oid::regclass::text) FROM pg_class WHERE relkind = 'S'")
    with psycopg.connect(_url(primary)) as sealer:
        sealer.execute(f"SELECT last_value FROM {found[0]}".encode())
        restoring = asyncio.create_task(
            asyncio.to_thread(commands.restore, dump, yes=True, dsn_file=place / "dsn", configuration=None)
        )
        waits = "SELECT 1 FROM pg_locks WHERE NOT granted AND mode = 'AccessExclusiveLock'"
        await asyncio.to_thread(primary.wait, lambda: primary.query(waits) == [(1,)])
        await asyncio.to_thread(sealer.execute, "SELECT count(*) FROM jobs")
    await restoring


async def test_a_service_that_is_given_an_empty_database_waits_for_the_backup(place: Path, primary: Server) -> None:
    """The database is lost and the DSN names an empty one, step by step as told: nothing ends and nothing is written
    there before somebody says so; each restore is found, as is the empty store of a migration."""
    log = place / "log"
    dump = place / "advisor.dump"
    with serving(place, _url(primary)) as service:
        async with scripted_agent(place) as agent:
            await agent.say(agent.world.job("RUNNING", job="5"))
            await agent.until(lambda: bool(agent.incarnations))
            await asyncio.to_thread(commands.dump, dump, dsn_file=place / "dsn", configuration=None)
            for at, fill in enumerate((partial(commands.restore, dump, yes=True), commands.migrate), 1):
                former, new = ("advisor", f"new{at}") if at == 1 else (f"new{at - 1}", f"new{at}")
                primary.query(f"CREATE DATABASE {new}", database="postgres")
                begun = log.stat().st_size
                write_dsn(place, _url(primary, new))
                _drop(primary, former)
                await agent.until(lambda begun=begun: b"schema_absent" in log.read_bytes()[begun:])
                assert not await _ready(place)
                assert primary.query("SELECT to_regclass('incarnations')", database=new) == [(None,)]
                assert service.poll() is None
                await asyncio.to_thread(fill, dsn_file=place / "dsn", configuration=None)
                await agent.until(lambda at=at: len(agent.incarnations) == at + 1)
                await agent.until(lambda: agent.tick_age < 2)
                assert await _ready(place)
        service.send_signal(signal.SIGTERM)
        assert service.wait(20) == 0
    assert not any(line.startswith("Traceback") for line in log.read_text().splitlines())


async def test_a_database_without_our_schema_is_told_as_that(place: Path, primary: Server) -> None:
    """The service answers, and says in one sentence what its database lacks; doctor does not look for agents there."""
    log = place / "log"
    with serving(place, _url(primary)):
        primary.query("CREATE DATABASE fresh", database="postgres")
        write_dsn(place, _url(primary, "fresh"))
        _drop(primary, "advisor")
        await asyncio.to_thread(primary.wait, lambda: "schema_absent" in log.read_text())
        seen = await asyncio.to_thread(programs.advisor, place, "doctor", "--format", "json")
        told = await asyncio.to_thread(programs.advisor, place, "status")
        asked = await asyncio.to_thread(programs.advisor, place, "mode", "get")
    found = {check["name"]: check for check in json.loads(seen.stdout)}
    assert (seen.returncode, found["service"]["state"], "agent" in found) == (1, "ok", False)
    assert found["store"] == {
        "name": "store",
        "state": "fail",
        "found": LACKING,
        "to_do": "do that, or put the right address into store.dsn_file; docs/runbook.md, schema_absent",
    }
    assert f"source store (the advisor's own): schema_absent: {LACKING}" in told.stdout
    assert "advisor.sock answers, and its store does not: try again" in asked.stderr
    assert "_Said" not in seen.stdout + told.stdout + asked.stderr


async def test_a_service_that_is_given_an_older_schema_waits_for_the_migration(place: Path, primary: Server) -> None:
    """A backup of the release before, put in place by hand: the service goes on as soon as it is migrated."""
    log = place / "log"
    with serving(place, _url(primary)) as service:
        async with scripted_agent(place) as agent:
            await agent.until(lambda: bool(agent.incarnations))
            primary.query("CREATE DATABASE older", database="postgres")
            await asyncio.to_thread(_migrate_to, primary.url("older"), "-1")
            write_dsn(place, _url(primary, "older"))  # the former one lives, and is not used any more
            await agent.until(lambda: "`advisor store migrate`, or run the build" in log.read_text())
            await asyncio.to_thread(commands.migrate, dsn_file=place / "dsn", configuration=None)
            await agent.until(lambda: len(agent.incarnations) == 2)
            assert service.poll() is None
    assert not any(line.startswith("Traceback") for line in log.read_text().splitlines())


async def test_a_service_whose_tables_are_taken_away_waits_for_others(place: Path, primary: Server) -> None:
    """The schema is emptied for somebody's own pg_restore: nothing comes between, whenever that begins."""
    log = place / "log"
    with serving(place, _url(primary)) as service:
        async with scripted_agent(place) as agent:
            await agent.until(lambda: bool(agent.incarnations))
            primary.wait(lambda: primary.query("DROP SCHEMA public CASCADE; CREATE SCHEMA public") == [])
            await agent.until(lambda: "schema_absent" in log.read_text())
            await asyncio.to_thread(commands.migrate, dsn_file=place / "dsn", configuration=None)
            await agent.until(lambda: len(agent.incarnations) == 2)
            assert service.poll() is None


async def test_an_older_schema_put_in_place_is_waited_with(place: Path, primary: Server) -> None:
    """The backup of an older release in the running service's own database: nothing of it is used before its time."""
    log = place / "log"
    dump = place / "older.dump"
    primary.query("CREATE DATABASE older", database="postgres")
    await asyncio.to_thread(_migrate_to, primary.url("older"), "-1")
    primary.run("pg_dump", *primary.address, "-Fc", "-f", str(primary.data / "dump"), "older")
    shutil.copy(primary.data / "dump", dump)
    with serving(place, _url(primary)) as service:
        async with scripted_agent(place) as agent:
            await agent.until(lambda: bool(agent.incarnations))
            await asyncio.to_thread(commands.restore, dump, yes=True, dsn_file=place / "dsn", configuration=None)
            await agent.until(lambda: "schema_absent" in log.read_text())
            assert service.poll() is None
            await asyncio.to_thread(commands.migrate, dsn_file=place / "dsn", configuration=None)
            await agent.until(lambda: len(agent.incarnations) == 2)


async def test_a_start_on_what_cannot_be_used_is_one_line(place: Path, primary: Server) -> None:
    """A database of a newer release: exit 1 and what to do, no trace of calls."""
    primary.query("UPDATE alembic_version SET version_num = '9999'; UPDATE schema_support SET oldest = '9999'")
    configuration(place, f'[store]\ndsn_file = "{place}/dsn"')
    write_dsn(place, _url(primary))
    done = await asyncio.to_thread(programs.advisor, place, "serve")
    assert done.returncode == 1
    assert "run a newer build" in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr


def _drop(server: Server, database: str) -> None:
    """Also where somebody is just connecting to it."""
    server.wait(lambda: server.query(f"DROP DATABASE IF EXISTS {database} WITH (FORCE)", database="postgres") == [])


def _migrate_to(url: str, revision: str) -> None:
    """The newest schema, less what the last migrations made."""
    asyncio.run(migrate(url))
    engine = create_engine(url)
    with engine.connect() as connection:
        command.downgrade(alembic_config(connection), revision)
        connection.commit()
    engine.dispose()
