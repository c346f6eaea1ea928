"""One primary per module at most, and folders that its user can enter."""

import asyncio
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from advisor.store.migrate import migrate
from tests.integration.postgres_trouble.servers import Server
from tests.integration.service.world import short_folder


@pytest.fixture
def place() -> Iterator[Path]:
    with short_folder() as folder:
        yield folder


@pytest.fixture(scope="session")
def pattern() -> Iterator[Server]:
    """A server that is stopped, with a migrated database `advisor`."""
    with short_folder() as folder, Server(folder=folder / "pattern") as server:
        server.create()
        server.start()
        server.query("CREATE DATABASE advisor", database="postgres")
        asyncio.run(migrate(server.url()))
        server.stop()
        yield server


@pytest.fixture(scope="session")
def shared(pattern: Server) -> Iterator[Server]:
    with short_folder() as folder, Server(folder=folder / "shared") as server:
        server.like(pattern)
        server.start()
        yield server


@pytest.fixture
def server(shared: Server) -> Iterator[Server]:
    """A migrated database of the test's own, in a server that goes on."""
    name = f"test_{uuid.uuid1().hex}"
    shared.query(f"CREATE DATABASE {name} TEMPLATE advisor", database="postgres")
    yield replace(shared, database=name)
    shared.query(f"DROP DATABASE {name} WITH (FORCE)", database="postgres")


@pytest.fixture
def primary(place: Path, pattern: Server) -> Iterator[Server]:
    """A running server with a migrated database `advisor`."""
    with Server(folder=place / "first") as server:
        server.like(pattern)
        server.start()
        yield server


@pytest.fixture
def standby(place: Path, primary: Server) -> Iterator[Server]:
    """Streaming from `primary`."""
    with Server(folder=place / "second") as server:
        server.copy_of(primary)
        server.start()
        primary.wait(lambda: primary.query("SELECT state FROM pg_stat_replication") == [("streaming",)])
        yield server
