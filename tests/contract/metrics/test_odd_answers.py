"""Answers of metrics servers that are well formed and mean less than they seem to."""

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

import pytest

from advisor.core.model import Unavailable
from advisor.ports import MetricsBatch, MetricsRequest
from connectors.metrics.dcgm import samples_of
from connectors.metrics.names import SEVERAL
from connectors.metrics.prometheus import PrometheusMetrics
from connectors.web.access import Access
from connectors.web.server import AskError, Server
from tests.contract.stores.front import Asked, Front, Told
from tests.contract.world import StandingClock

UTIL = "DCGM_FI_DEV_GPU_UTIL"
NOW = datetime(2026, 11, 29, 3, 0, tzinfo=UTC)


@asynccontextmanager
async def prometheus(*series: tuple[Mapping[str, str], str]) -> AsyncIterator[PrometheusMetrics]:
    """One whose every series has one value, now; none of hosts."""

    async def answers(asked: Asked) -> Told:
        ranged = asked.path.endswith("query_range")
        found = [
            {"metric": labels, "values": [[NOW.timestamp(), value]]} if ranged else {}
            for labels, value in series
            if ranged and UTIL in asked.form["query"]
        ]
        data = {"resultType": "matrix" if ranged else "vector", "result": found}
        return Told(body=json.dumps({"status": "success", "data": data}).encode())

    front = Front(answers)
    await front.start()
    source = PrometheusMetrics("metrics", Server(Access(url=front.url), clock=StandingClock()), interval_seconds=15)
    try:
        yield source
    finally:
        await source.close()
        await front.stop()


async def asked(source: PrometheusMetrics, *nodes: str) -> MetricsBatch | Unavailable:
    request = MetricsRequest(key="j/0", nodes=nodes, since=NOW - timedelta(seconds=15), until=NOW)
    return (await source.read([request]))["j/0"]


def util(host: str, value: str) -> tuple[Mapping[str, str], str]:
    return {"__name__": UTIL, "Hostname": host, "gpu": "0"}, value


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-Inf"])
async def test_what_is_no_number_is_no_value(value: str) -> None:
    """A node of which nothing else is told is silent, and not well."""
    async with prometheus(util("node1", value), util("node2", "1")) as source:
        answer = await asked(source, "node1", "node2")
    assert isinstance(answer, MetricsBatch)
    assert (answer.silent, [sample.node for sample in answer.samples]) == (("node1",), ["node2"])
    assert samples_of(f'{UTIL}{{gpu="0"}} {value}\n'.encode(), "node1", NOW).samples == ()


async def test_a_node_is_not_blamed_for_another_clusters_of_its_name() -> None:
    """Two clusters in one server and no selector: neither counts, for whose is whose cannot be told; that is."""
    two = (util("node1.a.example.com", "1"), util("node1.b.example.com", "99"), util("node2.a.example.com", "2"))
    async with prometheus(*two) as source:
        answer = await asked(source, "node1", "node2")
        alone = await asked(source, "node1")
    assert isinstance(answer, MetricsBatch)
    assert [(sample.node, sample.value) for sample in answer.samples] == [("node2", 2.0)]
    assert (answer.silent, answer.silent_why["node1"]) == (("node1",), SEVERAL)
    assert isinstance(alone, Unavailable)
    assert alone.detail == SEVERAL


async def test_a_node_with_and_without_its_domain_is_one() -> None:
    """Two exporters of a node need not spell it alike."""
    async with prometheus(util("node1.a.example.com", "1"), util("node1", "1"), util("node1:9400", "1")) as source:
        answer = await asked(source, "node1")
    assert isinstance(answer, MetricsBatch)
    assert (answer.silent, len(answer.samples)) == ((), 3)


@pytest.mark.parametrize("label", ["Hostname", "hostname"])
def test_an_exporter_that_is_another_nodes_tells_nothing(label: str) -> None:
    """A name that leads to a neighbour, by a wrong entry in DNS, must not blame the node for the neighbour's GPUs."""
    shown = f'{UTIL}{{gpu="0",{label}="node2.example.com"}} 1\n'.encode()
    with pytest.raises(AskError, match="leads to node2"):
        samples_of(shown, "node1", NOW)
    assert len(samples_of(shown, "node2", NOW).samples) == 1


@pytest.mark.parametrize("name", ["node1", "node01", "node1.example.com", "3f2a9c81d7e4", "dcgm-exporter-x7k2p"])
def test_an_exporter_in_a_container_is_the_nodes_that_was_asked(name: str) -> None:
    """Without the host's network it knows its container's name only."""
    assert len(samples_of(f'{UTIL}{{gpu="0",Hostname="{name}"}} 1\n'.encode(), "node1", NOW).samples) == 1
