"""In which order the suite runs: files that mostly wait come first, those that are short end it.

Workers get one file after the other. A file that takes minutes, given out last, would leave all but one of them idle.
"""

import os
from pathlib import Path

import pytest

# Before anything imports gRPC: else each fork waits for its threads, now and then for ever.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

_LENGTHY = ("simulation", "slurm", "browser", "integration", "security")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent

    def turn(item: pytest.Item) -> int:
        tier = item.path.relative_to(here).parts[0]
        return _LENGTHY.index(tier) if tier in _LENGTHY else len(_LENGTHY)

    items.sort(key=turn)
