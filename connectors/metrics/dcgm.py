"""dcgm-exporter read directly, node by node, for sites without Prometheus; node_exporter in the same way.

There is no past: what an exporter shows is what holds now, so that nothing is known of the time before the first look.
Each node is its own server: one that does not answer is left alone by itself, and no other waits for it.
"""

import asyncio
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from advisor.core.columns import Sample
from advisor.core.hostlist import short
from advisor.core.measured import FIELDS, HOST
from advisor.core.model import Unavailable
from advisor.core.words import Trust, UnavailableReason
from advisor.ports import Clock, MetricsBatch, MetricsRequest, MetricsSeen
from connectors.metrics.exposition import ExpositionError, read
from connectors.metrics.names import NODE_LABELS, NOT_ANSWERING, NOTHING_SHOWN, address_of, unit_of
from connectors.web.pacing import Breaker
from connectors.web.server import AskError, Host, Server

AT_ONCE = 64
ANSWER_BYTES_MAX = 8 * 1024 * 1024
PROBLEMS_MAX = 4
PAUSE_SECONDS_FIRST = 2.0
PAUSE_SECONDS_MAX = 120.0
_NUMBER = re.compile(r"\d+")
_ZEROS = re.compile(r"(?<!\d)0+(?=\d)")  # `gpu01` is also called `gpu1`
_SAFE = re.compile(r"[A-Za-z0-9_.-]{1,253}")


@dataclass(frozen=True, slots=True)
class Shown:
    """What one node's exporters show. `gpus`: indices by bus and device."""

    samples: tuple[Sample, ...]
    gpus: Mapping[str, int]


class DcgmExporters:
    """`urls`: one or more addresses per node, with `%n` for its name. `server` says how all of them are reached.

    `pauses`: for how long one that failed is left alone, at first and at most, in seconds.
    """

    trust = Trust.TELEMETRY

    def __init__(
        self,
        name: str,
        server: Server,
        *,
        clock: Clock,
        urls: Sequence[str],
        interval_seconds: float,
        collect_seconds: float = 0.0,
        pauses: tuple[float, float] = (PAUSE_SECONDS_FIRST, PAUSE_SECONDS_MAX),
    ) -> None:
        if not urls or any("%n" not in url for url in urls):
            raise ValueError("each url must hold %n, the node's name")
        self.name = name
        self.server = server
        self.interval_seconds = interval_seconds
        self.blur_seconds = collect_seconds
        self._clock = clock
        self._urls = tuple(urls)
        self._pauses = pauses
        self._hosts: dict[str, Host] = {}

    async def read(self, requests: Sequence[MetricsRequest]) -> Mapping[str, MetricsBatch | Unavailable]:
        nodes = list(dict.fromkeys(node for request in requests for node in request.nodes))
        at_once = asyncio.Semaphore(AT_ONCE)
        found: dict[str, Shown] = {}
        absent: dict[str, Unavailable] = {}

        async def look(node: str) -> None:
            async with at_once:
                try:
                    found[node] = await self._node(node)
                except AskError as error:
                    absent[node] = Unavailable(source=self.name, reason=error.reason, detail=f"{node}: {error.detail}")

        await asyncio.gather(*(look(node) for node in nodes))
        return {request.key: self._batch(request, found, absent) for request in requests}

    async def look(self, nodes: Sequence[str]) -> MetricsSeen | Unavailable:
        if not nodes:
            text = "no node is known to ask: give a job's id, or run this where Slurm's tools work"
            return Unavailable(source=self.name, reason=UnavailableReason.NOT_CONFIGURED, detail=text)
        now = self._clock.now()
        request = MetricsRequest(key="look", nodes=tuple(nodes), since=now, until=now)
        answer = (await self.read([request]))["look"]
        if isinstance(answer, Unavailable):
            return answer
        return MetricsSeen(
            nodes=tuple(sorted({sample.node for sample in answer.samples})),
            gpus=len({(sample.node, sample.gpu) for sample in answer.samples if sample.gpu != HOST}),
            fields=frozenset(sample.field for sample in answer.samples),
            newest_at=max((sample.at for sample in answer.samples), default=None),
        )

    async def close(self) -> None:
        await self.server.close()

    async def _node(self, node: str) -> Shown:
        """What the node's exporters show. With several, one that answers is enough."""
        if not _SAFE.fullmatch(node):
            raise AskError(UnavailableReason.NOT_CONFIGURED, "not a host name")
        samples: list[Sample] = []
        gpus: dict[str, int] = {}
        errors: list[AskError] = []
        for url in self._urls:
            host = self._hosts.get(url.replace("%n", node))
            if host is None:
                breaker = Breaker(self._clock, first_seconds=self._pauses[0], max_seconds=self._pauses[1])
                host = self._hosts[url.replace("%n", node)] = Host(url.replace("%n", node), breaker)
            try:
                data = await self.server.fetch("", {}, method="GET", host=host, bytes_max=ANSWER_BYTES_MAX)
                shown = samples_of(data, node, self._clock.now())
                samples.extend(shown.samples)
                gpus.update(shown.gpus)
            except AskError as error:
                errors.append(error)
        if len(errors) == len(self._urls):
            raise errors[0]
        return Shown(samples=tuple(samples), gpus=gpus)

    def _batch(
        self,
        request: MetricsRequest,
        found: Mapping[str, Shown],
        absent: Mapping[str, Unavailable],
    ) -> MetricsBatch | Unavailable:
        own = [found[node] for node in request.nodes if node in found]
        silent = tuple(node for node in request.nodes if node not in found or not found[node].samples)
        why = [absent[node] for node in silent if node in absent]
        if request.nodes and len(silent) == len(request.nodes):
            if why:
                return why[0]
            text = "its nodes' exporters show none of the fields that matter: are they dcgm-exporters?"
            return Unavailable(source=self.name, reason=UnavailableReason.MISSING, detail=text)
        return MetricsBatch(
            samples=tuple(sample for shown in own for sample in shown.samples),
            until=request.until,
            silent=silent,
            silent_why={node: NOT_ANSWERING if node in absent else NOTHING_SHOWN for node in silent},
            gpus={
                f"{node}/{bus}": gpu for node in request.nodes if node in found for bus, gpu in found[node].gpus.items()
            },
            problems=tuple(item.detail for item in why[:PROBLEMS_MAX]),
        )


def samples_of(data: bytes, node: str, at: datetime) -> Shown:
    """One node's samples: the most of series alike, for a GPU of several jobs is told several times. Devices of the
    node itself (links, file systems) are added up. Raises `AskError`; also where the exporter says that it is another
    node's, for a name may lead to a neighbour. What it is called in a container is no node's name.
    """
    values: dict[tuple[int, str], float] = {}
    host: dict[str, float] = {}
    gpus: dict[str, int] = {}
    told: dict[str, None] = {}
    try:
        for name, labels, value in read(data, FIELDS):
            told.update(dict.fromkeys(labels[label] for label in NODE_LABELS if label in labels))
            unit = unit_of(labels, name)
            if unit is None or not math.isfinite(value):
                continue
            if unit == HOST:
                host[name] = host.get(name, 0.0) + value
            else:
                if bus := address_of(labels):
                    gpus[bus] = unit
                values[unit, name] = max(values.get((unit, name), value), value)
    except ExpositionError as error:
        raise AskError(UnavailableReason.GARBLED, str(error)) from error
    own, names = _ZEROS.sub("", short(node)), [_ZEROS.sub("", short(name)) for name in told]
    others = [name for name in names if _NUMBER.sub("0", name) == _NUMBER.sub("0", own)]
    if others and own not in names:
        raise AskError(UnavailableReason.GARBLED, f"its address leads to {others[0][:80]}: look at the host names")
    made = [Sample(at=at, node=node, gpu=unit, field=name, value=value) for (unit, name), value in values.items()]
    made += [Sample(at=at, node=node, gpu=HOST, field=name, value=value) for name, value in host.items()]
    return Shown(samples=tuple(made), gpus=gpus)
