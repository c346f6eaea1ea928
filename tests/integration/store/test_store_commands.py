"""`advisor store`: what is no store is not dumped, what is no dump of one is not restored over one; and beside a
Postgres that knows accounts by their socket who is refused is told what to do.
"""

import asyncio
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from alembic import command
from sqlalchemy import create_engine, make_url

from advisor.commands import store as commands
from advisor.commands.output import CommandError
from advisor.store.binaries import find_binaries
from advisor.store.embedded import EmbeddedPostgres
from advisor.store.migrate import alembic_config, migrate, newest_revision
from advisor.store.server_user import ServerUser
from tests.integration.service.world import short_folder

pytestmark = pytest.mark.postgres


def _wait_until_refused(url: str) -> None:
    until = time.monotonic() + 20
    while time.monotonic() < until:
        try:
            psycopg.connect(url).close()
        except psycopg.OperationalError:
            return
        time.sleep(0.05)
    raise AssertionError("still let in")


@pytest.fixture(scope="module")
def refusing() -> Iterator[Path]:
    """A file with the DSN of a database that lets in another account, and not who runs this; and a dump."""
    with short_folder() as folder, EmbeddedPostgres(folder) as server:
        asyncio.run(migrate(server.url))
        url = server.url.replace("+psycopg", "")
        (folder / "dsn").write_text(url)
        (folder / "dsn").chmod(0o600)
        commands.dump(folder / "given.dump", dsn_file=folder / "dsn")
        with psycopg.connect(url, autocommit=True) as connection:
            row = connection.execute("SHOW hba_file").fetchone()
            assert row is not None
            Path(row[0]).write_text("local all all peer\n")
            connection.execute("SELECT pg_reload_conf()")
        _wait_until_refused(url)
        yield folder


@pytest.mark.parametrize(
    "command",
    [
        lambda folder, dsn: commands.show(dsn_file=dsn),
        lambda folder, dsn: commands.dump(folder / "made.dump", dsn_file=dsn),
        lambda folder, dsn: commands.restore(folder / "given.dump", yes=True, dsn_file=dsn),
        lambda folder, dsn: commands.new_incarnation(why="test", pause=True, dsn_file=dsn),
    ],
    ids=["incarnations", "dump", "restore", "new-incarnation"],
)
def test_who_the_database_does_not_let_in_is_told_as_whom_to_run_it(
    refusing: Path, command: Callable[[Path, Path], Any]
) -> None:
    """With what Postgres said; root is not above this."""
    with pytest.raises(CommandError, match=r"Peer authentication failed for user \"advisor\"") as caught:
        command(refusing, refusing / "dsn")
    assert "run this as the service's user: sudo -u advisor advisor" in str(caught.value)


@pytest.mark.skipif(os.geteuid() != 0, reason="about root")
def test_an_account_without_a_role_is_told_the_same(refusing: Path) -> None:
    """A DSN that names no user means who runs the command."""
    dsn = refusing / "own"
    dsn.write_text((refusing / "dsn").read_text().replace("advisor@", ""))
    dsn.chmod(0o600)
    with pytest.raises(CommandError, match=r"role \"root\" does not exist.* run this as the service's user: sudo"):
        commands.dump(refusing / "made.dump", dsn_file=dsn)
    assert not (refusing / "made.dump").exists()


class Place:
    """A folder, DSN files of databases of the server, and the programs that came with it."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder = folder
        self._url = make_url(url)
        self.asked("postgres", "CREATE DATABASE used")
        self.asked("postgres", "CREATE DATABASE empty")
        asyncio.run(migrate(self._url.set(database="used").render_as_string()))
        much = "(SELECT string_agg(md5(i::text), '') FROM generate_series(1, 60000) i)"  # most of what a dump holds
        self.asked(
            "used", f"INSERT INTO incarnations VALUES (DEFAULT, gen_random_uuid(), now(), 'first' || {much}, '1', 1)"
        )

    def dsn(self, database: str) -> Path:
        file = self.folder / f"dsn-{database}"
        file.write_text(self._of(database))
        file.chmod(0o600)
        return file

    def asked(self, database: str, statement: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(self._of(database), autocommit=True) as connection:
            found = connection.execute(statement.encode())
            return found.fetchall() if found.description is not None else []

    def dumped(self, database: str, *how: str) -> Path:
        """By pg_dump itself."""
        file = self.folder / f"{database}{''.join(how)}.by-hand"
        program = find_binaries(self.folder, ServerUser(name="", uid=0, gid=0, switch=False)).folder / "pg_dump"
        with file.open("wb") as out:
            subprocess.run([program, "-Fc", *how, self._of(database)], stdout=out, check=True, timeout=60)
        return file

    def lives(self) -> list[tuple[Any, ...]]:
        return self.asked("used", "SELECT left(why, 5) FROM incarnations")

    def _of(self, database: str) -> str:
        return self._url.set(drivername="postgresql", database=database).render_as_string()


@pytest.fixture(scope="module")
def databases() -> Iterator[Place]:
    """`used` is a store with one incarnation, `empty` has nothing."""
    with short_folder() as folder, EmbeddedPostgres(folder) as server:
        yield Place(folder, server.url)


def test_what_holds_no_store_is_not_dumped(databases: Place) -> None:
    """Whatever the DSN names is said, and no file is left that looks like a backup."""
    file = databases.folder / "empty.dump"
    with pytest.raises(CommandError, match=r"holds no store \(.*dbname=empty.*\)") as caught:
        commands.dump(file, dsn_file=databases.dsn("empty"))
    assert (caught.value.code, file.exists()) == (2, False)


def test_a_dump_that_is_there_stays_as_it_is(databases: Place) -> None:
    file = databases.folder / "yesterday.dump"
    file.write_bytes(b"of yesterday")
    with pytest.raises(CommandError, match=r"yesterday\.dump cannot be made: File exists"):
        commands.dump(file, dsn_file=databases.dsn("empty"))
    assert file.read_bytes() == b"of yesterday"


@pytest.mark.parametrize("how", [("empty",), ("postgres",), ("used", "--schema-only"), ("used", "-T", "decisions")])
def test_a_dump_of_no_store_is_not_restored_over_one(databases: Place, how: tuple[str, ...]) -> None:
    """Before anything of what is there is touched."""
    file = databases.dumped(*how)
    with pytest.raises(CommandError, match=r"nothing was restored: .* is no dump of a store: no ") as caught:
        commands.restore(file, yes=True, dsn_file=databases.dsn("used"))
    assert (caught.value.code, databases.lives()) == (2, [("first",)])


@pytest.mark.parametrize("left", [0.05, 0.6])
def test_half_a_dump_is_not_restored(databases: Place, left: float) -> None:
    """While somebody has the tables, who need not let go for it."""
    whole = databases.dumped("used").read_bytes()
    file = databases.folder / "half.dump"
    file.write_bytes(whole[: int(len(whole) * left)])
    with psycopg.connect(databases.dsn("used").read_text()) as held:
        held.execute("SELECT count(*) FROM decisions")
        with pytest.raises(CommandError, match=r"nothing was restored: .*half\.dump is broken, or cut off: ") as caught:
            commands.restore(file, yes=True, dsn_file=databases.dsn("used"))
    assert (caught.value.code, databases.lives()) == (2, [("first",)])


def test_a_store_comes_back_by_its_dump(databases: Place) -> None:
    file = databases.folder / "used.dump"
    commands.dump(file, dsn_file=databases.dsn("used"))
    databases.asked("used", "INSERT INTO incarnations VALUES (DEFAULT, gen_random_uuid(), now(), 'again', '1', 1)")
    commands.restore(file, yes=True, dsn_file=databases.dsn("used"))
    assert databases.lives() == [("first",)]


def test_a_migration_says_from_what_to_what(databases: Place, capsys: pytest.CaptureFixture[str]) -> None:
    """An empty database is another thing than one of an older release, or of this one."""
    databases.asked("postgres", "CREATE DATABASE grown")
    newest = newest_revision()
    for _ in range(2):
        commands.migrate(dsn_file=databases.dsn("grown"))
    engine = create_engine(databases.dsn("grown").read_text().replace("postgresql:", "postgresql+psycopg:"))
    with engine.connect() as connection:
        command.downgrade(alembic_config(connection), "-1")
        connection.commit()
        older = connection.exec_driver_sql("SELECT version_num FROM alembic_version").scalar_one()
    engine.dispose()
    commands.migrate(dsn_file=databases.dsn("grown"))
    assert capsys.readouterr().out.splitlines() == [
        f"made an empty store, revision {newest}",
        f"nothing to do: the database is at revision {newest}",
        f"migrated from revision {older} to {newest}",
    ]
