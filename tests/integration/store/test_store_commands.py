"""`advisor store` beside a Postgres that knows accounts by their socket: who is refused is told what to do."""

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from advisor.commands import store as commands
from advisor.commands.output import CommandError
from advisor.store.embedded import EmbeddedPostgres
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
