"""One real Postgres per test session, one migrated database per test."""

import asyncio
import fcntl
import os
import shutil
import tempfile
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from datetime import datetime
from pathlib import Path

import psycopg
import pytest

from advisor.core.policy import Policy
from advisor.core.words import NodeState
from advisor.store.embedded import EmbeddedPostgres
from advisor.store.migrate import migrate
from advisor.store.months import later, month_of
from advisor.store.records import ObservedNode
from advisor.store.store import Store
from advisor.store.tables import MONTHLY
from tests.integration.store.worlds import CLUSTER, T0, at

_TEMPLATE = "migrated"
_ISOLATING = Policy(
    isolate=True,
    isolations_max=2,
    isolations_percent_max=50.0,
    isolations_per_day_max=3,
    isolation_settle_seconds=0.0,
    isolation_time_to_live_hours=1.0,
)


@pytest.fixture(scope="session")
def open_folder() -> Iterator[Path]:
    """A temporary folder that other users can enter. What a killed session left behind is removed first."""
    parent = Path(tempfile.gettempdir()) / f"advisor-store-tests-{os.geteuid()}"
    parent.mkdir(mode=0o755, exist_ok=True)
    for other in parent.iterdir():
        if _abandoned(other):
            shutil.rmtree(other, ignore_errors=True)
    folder = Path(tempfile.mkdtemp(dir=parent))
    folder.chmod(0o755)
    with (folder / "alive").open("w") as alive:
        fcntl.flock(alive, fcntl.LOCK_EX)
        yield folder
        shutil.rmtree(folder)
    with suppress(OSError):
        parent.rmdir()  # unless another session uses it


def _abandoned(folder: Path) -> bool:
    try:
        with (folder / "alive").open("r+") as alive:
            fcntl.flock(alive, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False  # just being made
    except BlockingIOError:
        return False
    return True


@pytest.fixture
def data_folder(open_folder: Path) -> Iterator[Path]:
    """A data folder of the test's own."""
    folder = Path(tempfile.mkdtemp(dir=open_folder))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="session")
def postgres(open_folder: Path) -> Iterator[EmbeddedPostgres]:
    """A running server with a migrated template database."""
    folder = open_folder / "shared"
    with EmbeddedPostgres(folder) as server:
        execute(server, "ALTER SYSTEM SET fsync = off")  # nothing here outlives the session
        execute(server, "SELECT pg_reload_conf()")
        execute(server, f"CREATE DATABASE {_TEMPLATE}")
        asyncio.run(migrate(server.url_of(_TEMPLATE)))
        _cut_months(server.url_of(_TEMPLATE), later(month_of(T0), 1))
        yield server


def _cut_months(url: str, first: datetime) -> None:
    """The parts begin with that month whenever the tests run: the migration begins with the month after its own."""
    with psycopg.connect(url.replace("+psycopg", "")) as connection:
        for table in MONTHLY:
            found = connection.execute(
                "SELECT relname FROM pg_inherits JOIN pg_class ON oid = inhrelid WHERE inhparent = %s::regclass",
                (table,),
            )
            [was] = {str(name) for (name,) in found} - {f"{table}_old", f"{table}_rest"}
            month = f"{table}_{first:%Y_%m}"
            connection.execute(f"ALTER TABLE {table} DETACH PARTITION {was}")
            connection.execute(f"ALTER TABLE {table} DETACH PARTITION {table}_old")
            if was != month:
                connection.execute(f"ALTER TABLE {was} RENAME TO {month}")
            for part, bounds in (
                (f"{table}_old", f"FROM (MINVALUE) TO ('{first}')"),
                (month, f"FROM ('{first}') TO ('{later(first, 1)}')"),
            ):
                connection.execute(f"ALTER TABLE {table} ATTACH PARTITION {part} FOR VALUES {bounds}")


def execute(server: EmbeddedPostgres, statement: str) -> None:
    with psycopg.connect(server.url_of("postgres").replace("+psycopg", ""), autocommit=True) as connection:
        connection.execute(statement)


@pytest.fixture
def empty_url(postgres: EmbeddedPostgres) -> Iterator[str]:
    """A database without any table."""
    name = f"test_{uuid.uuid1().hex}"
    execute(postgres, f"CREATE DATABASE {name}")
    yield postgres.url_of(name)
    execute(postgres, f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
def url(postgres: EmbeddedPostgres) -> Iterator[str]:
    """A migrated database."""
    name = f"test_{uuid.uuid1().hex}"
    execute(postgres, f"CREATE DATABASE {name} TEMPLATE {_TEMPLATE}")
    yield postgres.url_of(name)
    execute(postgres, f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
async def store(url: str) -> AsyncIterator[Store]:
    opened = await Store.open(url)
    yield opened
    await opened.close()


@pytest.fixture
async def other(url: str, store: Store) -> AsyncIterator[Store]:
    """Another replica over the same database."""
    opened = await Store.open(url)
    yield opened
    await opened.close()


@pytest.fixture
async def isolating(url: str) -> AsyncIterator[Store]:
    """A store under a policy that isolates, with eight nodes."""
    opened = await Store.open(url, policy=_ISOLATING)
    nodes = [ObservedNode(name=f"node{i}", state=NodeState.UP, observed_at=at(0)) for i in range(1, 9)]
    await opened.record_observations(CLUSTER, (), nodes, complete=False, now=at(0))
    yield opened
    await opened.close()
