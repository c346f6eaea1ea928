"""One real Slurm for all tests of this tier. Missing parts fail loudly: `-m "not slurm"` leaves the tier out."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from advisor.demo.cluster import Cluster
from advisor.demo.namespace import Runtime, require
from advisor.demo.training import KernelLogWriter, install


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.slurm)


@pytest.fixture(scope="session")
def runtime() -> Runtime:
    return require()


@pytest.fixture(scope="session")
def cluster(runtime: Runtime) -> Iterator[Cluster]:
    cluster = Cluster(runtime=runtime)
    try:
        cluster.start()
        install(cluster)
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture(scope="session")
def kernel(cluster: Cluster) -> Iterator[KernelLogWriter]:
    writer = KernelLogWriter(cluster)
    writer.start()
    yield writer
    writer.stop()
