"""One world per metrics source for the suite that all of them pass: a real Prometheus, and exporters read directly.

Both show the same cluster. A front stands between source and server, for faults.
"""

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import httpx

from advisor.clock import SystemClock
from advisor.core.columns import Sample
from advisor.core.model import Unavailable
from advisor.ports import MetricsBatch, MetricsRequest, MetricsSource
from connectors.metrics.dcgm import DcgmExporters
from connectors.metrics.prometheus import PrometheusMetrics
from connectors.web.access import Access
from connectors.web.pacing import Breaker, Pace
from connectors.web.server import Server
from tests.contract.metrics.exporter import Cluster
from tests.contract.metrics.real import Prometheus
from tests.contract.stores.front import Asked, Front, Told

KINDS = ("prometheus", "dcgm")
INTERVAL_SECONDS = 1.0


class Behind:
    """The server behind the front: Prometheus itself, or the exporters."""

    def __init__(self, world: "MetricsWorld") -> None:
        self._world = world
        self._client = httpx.AsyncClient(timeout=20, trust_env=False)

    async def __call__(self, asked: Asked) -> Told:
        world = self._world
        if world.kind == "prometheus":
            got = await self._client.post(world.server.url + asked.path, data=dict(asked.form))
            return Told(status=got.status_code, body=got.content, kind=got.headers.get("content-type", ""))
        node = asked.path.strip("/").partition("/")[0]
        if node in world.shown.down or node not in world.shown.nodes:
            return Told(status=503, body=b"not here", kind="text/plain")
        return Told(body=world.shown.text(node), kind="text/plain")

    async def close(self) -> None:
        await self._client.aclose()


@dataclass
class MetricsWorld:
    kind: str
    shown: Cluster
    server: Prometheus
    clock: SystemClock = field(default_factory=SystemClock)
    front: Front | None = None
    sources: list[MetricsSource] = field(default_factory=list)

    def make(self, *, pace: Pace | None = None, selector: str = "", url: str = "", **access: Any) -> MetricsSource:
        assert self.front is not None
        values: dict[str, Any] = {"timeout_seconds": 10.0} | access
        base = url or self.front.url
        made: MetricsSource
        asking = Server(
            Access(url=base, **values),
            clock=self.clock,
            pace=pace or Pace(self.clock, per_second=1e6, burst=1e6),
            breaker=Breaker(self.clock, first_seconds=0.02, max_seconds=0.1),
        )
        if self.kind == "prometheus":
            made = PrometheusMetrics("metrics", asking, interval_seconds=INTERVAL_SECONDS, selector=selector)
        else:
            made = DcgmExporters(
                "metrics",
                asking,
                clock=self.clock,
                urls=[f"{base}/%n/metrics"],
                interval_seconds=INTERVAL_SECONDS,
                pauses=(0.02, 0.1),
            )
        self.sources.append(made)
        return made

    @property
    def nodes(self) -> tuple[str, ...]:
        return tuple(self.shown.nodes)

    def request(self, **changes: Any) -> MetricsRequest:
        now = self.clock.now()
        values: dict[str, Any] = {
            "key": "job/0",
            "nodes": self.nodes,
            "since": now - timedelta(seconds=INTERVAL_SECONDS),
            "until": now,
        }
        return MetricsRequest(**(values | changes))

    def shows(self) -> None:
        """Wait until what the exporters show now is what the source would tell."""
        if self.kind == "prometheus":
            self.server.scraped(1)

    async def ask(self, source: MetricsSource, **changes: Any) -> MetricsBatch | Unavailable:
        request = self.request(**changes)
        answers = await source.read([request])
        assert set(answers) == {request.key}
        return answers[request.key]

    async def batch(self, source: MetricsSource, **changes: Any) -> MetricsBatch:
        answer = await self.ask(source, **changes)
        assert isinstance(answer, MetricsBatch), answer
        return answer

    async def until(self, source: MetricsSource, wanted: Any, seconds: float = 10.0) -> MetricsBatch | Unavailable:
        """Ask until the answer is as wanted."""
        deadline = time.monotonic() + seconds
        while True:
            answer = await self.ask(source)
            if wanted(answer):
                return answer
            assert time.monotonic() < deadline, answer
            self.shows()


def newest(samples: tuple[Sample, ...]) -> dict[tuple[str, int, str], float]:
    """The last value of each field of each GPU."""
    return {(s.node, s.gpu, s.field): s.value for s in sorted(samples, key=lambda sample: sample.at)}


@asynccontextmanager
async def world_of(kind: str, shown: Cluster, server: Prometheus) -> AsyncIterator[MetricsWorld]:
    """All is well in it, whatever the last test left."""
    changed = shown.reset()
    world = MetricsWorld(kind=kind, shown=shown, server=server)
    behind = Behind(world)
    world.front = Front(behind)
    await world.front.start()
    if changed:
        world.shows()
    try:
        yield world
    finally:
        for source in world.sources:
            await source.close()
        await world.front.stop()
        await behind.close()
