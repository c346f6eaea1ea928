"""The Postgres of the store's tests, and replicas of the service as processes over a database of it."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.integration.replicas.fleet import Fleet
from tests.integration.service.world import short_folder
from tests.integration.store.conftest import empty_url, open_folder, postgres, url

__all__ = ["empty_url", "open_folder", "postgres", "url"]


@pytest.fixture
def folder() -> Iterator[Path]:
    with short_folder() as path:
        yield path


@pytest.fixture
async def fleet(folder: Path, url: str) -> AsyncIterator[Fleet]:
    made = Fleet(folder=folder, url=url)
    await made.open()
    yield made
    await made.close()
