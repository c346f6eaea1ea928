from collections.abc import AsyncIterator, Iterator

import pytest

from tests.contract.metrics.exporter import Cluster, cluster, exporting
from tests.contract.metrics.real import Prometheus, prometheus
from tests.contract.metrics.world import KINDS, MetricsWorld, world_of


@pytest.fixture(scope="session")
def shown() -> Iterator[Cluster]:
    made = cluster(nodes=4, gpus=2)
    with exporting(made):
        yield made


@pytest.fixture(scope="session")
def server(shown: Cluster) -> Iterator[Prometheus]:
    with prometheus(shown) as running:
        running.scraped()
        yield running


@pytest.fixture(params=KINDS)
async def measured(request: pytest.FixtureRequest, shown: Cluster, server: Prometheus) -> AsyncIterator[MetricsWorld]:
    """Each kind of metrics source."""
    async with world_of(request.param, shown, server) as world:
        yield world


@pytest.fixture
async def queried(shown: Cluster, server: Prometheus) -> AsyncIterator[MetricsWorld]:
    """A real Prometheus."""
    async with world_of("prometheus", shown, server) as world:
        yield world
