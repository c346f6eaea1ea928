import os
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.contract.stores.world import BINARIES, KINDS, STORES, World, start_real, world_of


@pytest.fixture(scope="session")
def real_servers() -> Iterator[dict[str, str]]:
    """The addresses of the real servers that the environment names programs for."""
    urls, processes = {}, []
    with tempfile.TemporaryDirectory(prefix="ra-stores-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        for kind, variable in BINARIES.items():
            if os.environ.get(variable):
                place = Path(folder) / kind
                place.mkdir()
                process, urls[kind] = start_real(kind, os.environ[variable], place)
                processes.append(process)
        yield urls
        for process in processes:
            process.kill()
            process.wait()


@pytest.fixture(params=KINDS)
async def anywhere(request: pytest.FixtureRequest, real_servers: dict[str, str]) -> AsyncIterator[World]:
    """Each kind of log source."""
    async with world_of(request.param, real_servers) as world:
        yield world


@pytest.fixture(params=STORES)
async def stored(request: pytest.FixtureRequest, real_servers: dict[str, str]) -> AsyncIterator[World]:
    """Each kind of log store."""
    async with world_of(request.param, real_servers) as world:
        yield world


@pytest.fixture
async def loki(real_servers: dict[str, str]) -> AsyncIterator[World]:
    async with world_of("loki", real_servers) as world:
        yield world


@pytest.fixture
async def victorialogs(real_servers: dict[str, str]) -> AsyncIterator[World]:
    async with world_of("victorialogs", real_servers) as world:
        yield world
