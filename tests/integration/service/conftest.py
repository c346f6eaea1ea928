"""Where a service of these tests lives."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.service.world import short_folder


@pytest.fixture
def folder() -> Iterator[Path]:
    with short_folder() as path:
        yield path
