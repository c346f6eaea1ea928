"""Prometheus (or what speaks its API: Thanos, Mimir, VictoriaMetrics) as a `MetricsSource`.

What was measured on real servers and shapes this module:

* A new Xid is a new *series* (`err_code` is a label), and N jobs of one GPU make N series alike (`hpc_job`). So all
  labels but node and GPU are taken off by the server (`max by`), which also makes answers a third as large.
* A GPU that is sick has no value and is left out: what is missing is told (`silent`), never taken for well.
* One question is about many nodes and many fields. How many it may be about follows from how many points the last
  answers held, so that a first look at a large job comes in several answers.
* A range is closed at both ends in 2.x, open at its start in 3.x: asked in steps from after `since`, both are alike.
"""

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import orjson

from advisor.core.columns import Sample
from advisor.core.measured import FIELDS, HOST_FIELDS, UTILISATION
from advisor.core.model import Unavailable
from advisor.core.words import Trust, UnavailableReason
from advisor.ports import MetricsBatch, MetricsRequest, MetricsSeen
from connectors.metrics.names import (
    INSTANCE,
    NODE_LABELS,
    NOT_ANSWERING,
    NOT_SCRAPED,
    NOTHING_SHOWN,
    SEVERAL,
    address_of,
    host_of,
    node_of,
    unit_of,
)
from connectors.web.server import AskError, Server

STEPS_MAX = 20  # of one question; a longer time is read in longer steps
POINTS_MAX = 400_000  # of one answer, as expected
NODES_MAX = 1_500  # of one question
QUESTIONS_MAX = 8  # of one read; who was not served comes first at the next
LOOK_SECONDS = 300
SERIES_PER_NODE = 120.0  # until the first answer tells
GPU_FIELDS = tuple(sorted(FIELDS - HOST_FIELDS))
_TOO_MUCH = re.compile(r"too many samples|exceeded maximum resolution|query timed out|limit")
_SAFE = re.compile(r"[A-Za-z0-9_.-]{1,253}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """Some nodes over some time. `requests` are those that it is about."""

    nodes: tuple[str, ...]
    start: datetime
    until: datetime
    step_seconds: float


@dataclass(slots=True)
class _Gathered:
    """Answers put together, by node."""

    samples: dict[str, list[Sample]] = field(default_factory=dict)
    present: set[str] = field(default_factory=set)
    several: set[str] = field(default_factory=set)  # names that hosts of more than one domain have
    why: dict[str, str] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    until: datetime | None = None


class PrometheusMetrics:
    """`selector`: matchers that every series must meet, `cluster="a"`; `node_label`: where it is not the usual one.

    `interval_seconds` is that of the scrapes, `collect_seconds` that at which exporters ask their GPUs.
    """

    trust = Trust.TELEMETRY

    def __init__(
        self,
        name: str,
        server: Server,
        *,
        interval_seconds: float,
        collect_seconds: float = 0.0,
        selector: str = "",
        node_label: str = "",
    ) -> None:
        self.name = name
        self.server = server
        self.interval_seconds = interval_seconds
        self.blur_seconds = interval_seconds + collect_seconds
        self._selector = selector.strip().strip("{}").strip().rstrip(",")
        self._node_label = node_label
        self._series_per_node = SERIES_PER_NODE
        self._gpus: dict[str, dict[str, int]] = {}  # by node: index by address
        self._points_max = float(POINTS_MAX)

    async def read(self, requests: Sequence[MetricsRequest]) -> Mapping[str, MetricsBatch | Unavailable]:
        answers: dict[str, MetricsBatch | Unavailable] = {}
        asked = 0
        # The longest unserved first: what a short budget leaves out is first in line at the next read.
        for group in self._groups(requests):
            if asked >= QUESTIONS_MAX:
                break
            got = _Gathered()
            wanted = tuple(dict.fromkeys(node for request in group for node in request.nodes if _SAFE.fullmatch(node)))
            try:
                for question in self._questions(wanted, group):
                    asked, got.until = asked + 2, question.until
                    await self._ask(question, got)
                asked += await self._beside(wanted, got)
            except AskError as error:
                if error.broken or _TOO_MUCH.search(error.detail):
                    self._points_max = max(self._points_max / 2, 10_000.0)
                absent = Unavailable(source=self.name, reason=error.reason, detail=error.detail)
                answers.update({request.key: absent for request in group})
                continue
            self._points_max = min(self._points_max * 2, float(POINTS_MAX))
            answers.update({request.key: self._batch(request, got) for request in group})
        for request in requests:
            answers.setdefault(request.key, MetricsBatch(samples=(), until=request.since))
        return answers

    async def look(self, nodes: Sequence[str]) -> MetricsSeen | Unavailable:
        more = f", {self._selector}" if self._selector else ""
        every = f'{{__name__=~"{"|".join(sorted(FIELDS))}"{more}}}'
        pulse = f'{{__name__="{UTILISATION}"{more}}}'
        by = ", ".join((*((self._node_label,) if self._node_label else NODE_LABELS), "gpu"))
        try:
            fields = {labels.get("__name__", "") for labels, _ in await self._now(f"count by (__name__) ({every})")}
            gpus = await self._now(f"max by ({by}) (timestamp({pulse}))")
            counted = await self._now(f"max(count_over_time({pulse}[{LOOK_SECONDS}s]))")
        except AskError as error:
            return Unavailable(source=self.name, reason=error.reason, detail=error.detail)
        found = {node for labels, _ in gpus if (node := node_of(labels, self._node_label))}
        newest = max((value for _, value in gpus), default=None)
        often = max((value for _, value in counted), default=0.0)
        return MetricsSeen(
            nodes=tuple(sorted(found)),
            gpus=len(gpus),
            fields=frozenset(fields),
            newest_at=datetime.fromtimestamp(newest, UTC) if newest is not None else None,
            interval_seconds=LOOK_SECONDS / often if often > 1 else None,
        )

    async def _now(self, query: str) -> list[tuple[dict[str, str], float]]:
        """An instant query's labels and values. Raises `AskError`."""
        body = decoded(await self.server.fetch("/api/v1/query", {"query": query}))
        try:
            found = {"vector": body["data"]}[body["data"]["resultType"]]["result"]
            return [(dict(item["metric"]), float(item["value"][1])) for item in found]
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise AskError(UnavailableReason.GARBLED, f"an answer without {str(error)[:100]}") from error

    async def close(self) -> None:
        await self.server.close()

    # Questions

    def _groups(self, requests: Iterable[MetricsRequest]) -> list[list[MetricsRequest]]:
        """Requests that one stretch of time serves, oldest first: as many groups as there are different pasts."""
        groups: list[list[MetricsRequest]] = []
        reach = timedelta(seconds=2 * self.interval_seconds)
        for request in sorted(requests, key=lambda item: (item.since, item.until)):
            first = groups[-1][0] if groups else None
            if first is not None and max(request.since - first.since, abs(request.until - first.until)) <= reach:
                groups[-1].append(request)
            else:
                groups.append([request])
        return groups

    def _questions(self, nodes: Sequence[str], group: Sequence[MetricsRequest]) -> Iterator[Question]:
        # Whole milliseconds are what the server keeps; rounded up, the last sample would be after the wish.
        until = max(request.until for request in group)
        since, until = group[0].since, until - timedelta(microseconds=until.microsecond % 1000)
        seconds = max((until - since).total_seconds(), 0.0)
        step = math.ceil(max(self.interval_seconds, seconds / STEPS_MAX) * 1000) / 1000
        steps = max(round(seconds / step) - 1, 0)  # before the last
        share = int(self._points_max / ((steps + 1) * self._series_per_node))
        size = max(1, min(NODES_MAX, share))
        for at in range(0, len(nodes), size):
            yield Question(
                nodes=tuple(nodes[at : at + size]),
                start=until - timedelta(seconds=steps * step),
                until=until,
                step_seconds=step,
            )

    def query(self, nodes: Sequence[str], *, host: bool) -> str:
        names = "|".join(sorted(HOST_FIELDS) if host else GPU_FIELDS)
        chosen = (self._node_label,) if self._node_label else (INSTANCE,) if host else NODE_LABELS
        pattern = _of_nodes(nodes)
        more = f", {self._selector}" if self._selector else ""
        parts = [f'{{__name__=~"{names}", {label}=~{_quoted(pattern)}{more}}}' for label in chosen]
        by = ", ".join(("__name__", *chosen, *(() if host else ("gpu",))))
        # A host's counters are those of several devices: one of them must not hide another.
        return f"{'sum' if host else 'max'} by ({by}) ({' or '.join(parts)})"

    async def _ask(self, question: Question, got: _Gathered) -> None:
        for host in (False, True):
            form = {
                "query": self.query(question.nodes, host=host),
                "start": f"{question.start.timestamp():.3f}",
                "end": f"{question.until.timestamp():.3f}",
                "step": f"{question.step_seconds:.3f}",
            }
            data = await self.server.fetch("/api/v1/query_range", form)
            series = self._take(data, question, got)
            if not host and series:
                self._series_per_node = max(8.0, series / len(question.nodes))

    async def _beside(self, nodes: Sequence[str], got: _Gathered) -> int:
        """What is good to know and no reason to do without the samples; how many questions it took."""
        try:
            return await self._explain(nodes, got) + await self._learn_gpus(got.present)
        except AskError as error:
            got.problems.append(f"silent nodes and GPUs' addresses not looked up: {error.detail[:200]}")
            return 2

    async def _explain(self, nodes: Sequence[str], got: _Gathered) -> int:
        """Of nodes without series: does their exporter not answer, is it not scraped, or have its series vanished? One
        question; where no target is called after its node nothing can be said.
        """
        silent = [node for node in nodes if node not in got.present][:NODES_MAX]
        if not silent:
            return 0
        label = self._node_label or INSTANCE
        more = f", {self._selector}" if self._selector else ""
        # Of some that are well, too: that these have targets tells that the others ought to.
        asked = [*silent, *sorted(got.present)[:4]]
        found = await self._now(f"min by ({label}) (up{{{label}=~{_quoted(_of_nodes(asked))}{more}}})")
        states = {node_of(labels, label): value for labels, value in found}
        if states:
            got.why = {
                node: NOT_SCRAPED if node not in states else NOTHING_SHOWN if states[node] else NOT_ANSWERING
                for node in silent
            }
        return 1

    async def _learn_gpus(self, nodes: Iterable[str]) -> int:
        """Which index the GPU at which address has: asked once for each node, for kernel lines know only addresses."""
        new = sorted(set(nodes) - self._gpus.keys())[:NODES_MAX]
        if not new:
            return 0
        more = f", {self._selector}" if self._selector else ""
        chosen = (self._node_label,) if self._node_label else NODE_LABELS
        parts = [f"{UTILISATION}{{{label}=~{_quoted(_of_nodes(new))}{more}}}" for label in chosen]
        by = ", ".join((*chosen, "gpu", "pci_bus_id"))
        found = await self._now(f"max by ({by}) ({' or '.join(parts)})")
        self._gpus.update({node: {} for node in new})
        for labels, _ in found:
            node, bus, unit = node_of(labels, self._node_label), address_of(labels), unit_of(labels, UTILISATION)
            if bus and unit is not None and node in self._gpus:
                self._gpus[node][bus] = unit
        return 1

    def _take(self, data: bytes, question: Question, got: _Gathered) -> int:
        """Into samples. Raises `AskError` for an answer that is not of the documented shape."""
        body = decoded(data)
        end = question.until.timestamp() - 0.0005
        try:
            times: dict[float, datetime] = {}
            domains: dict[str, str] = {}
            result = {"matrix": body["data"]}[body["data"]["resultType"]]["result"]
            for series in result:
                labels, values = series["metric"], series["values"]
                name = labels.get("__name__", "")
                node, unit = node_of(labels, self._node_label), unit_of(labels, name)
                if not node or unit is None or not values:
                    continue
                host = host_of(labels, self._node_label)
                if host != node and domains.setdefault(node, host) != host:
                    got.several.add(node)  # of another cluster: no word about this one's
                found = got.samples.setdefault(node, [])
                number = math.nan
                for at, value in values:
                    when = times.get(at)
                    if when is None:
                        when = times[at] = datetime.fromtimestamp(at, UTC)
                    number = float(value)
                    if math.isfinite(number):  # what is no number is no value
                        found.append(Sample(when, node, unit, name, number))
                if values[-1][0] >= end and math.isfinite(number):
                    got.present.add(node)
        except (KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError, OSError) as error:
            raise AskError(UnavailableReason.GARBLED, f"an answer without {str(error)[:100]}") from error
        warnings = body.get("warnings")
        if isinstance(warnings, list) and warnings:
            got.problems.append(f"the server warns: {str(warnings[0])[:200]}")
        return len(result)

    # Answers

    def _batch(self, request: MetricsRequest, got: _Gathered) -> MetricsBatch | Unavailable:
        # A little after the wish where others of the group wished for more.
        until = max(request.until, got.until or request.until)
        if not request.nodes:
            return MetricsBatch(samples=(), until=until)
        silent = tuple(node for node in request.nodes if node not in got.present or node in got.several)
        samples = tuple(
            sample
            for node in request.nodes
            if node not in got.several
            for sample in got.samples.get(node, ())
            if request.since < sample.at
        )
        if len(silent) == len(request.nodes) and not samples:
            text = (
                "no series of any of its nodes: are the exporters scraped, selector and node_label right, the tenant?"
                if got.several.isdisjoint(silent)
                else SEVERAL
            )
            return Unavailable(source=self.name, reason=UnavailableReason.MISSING, detail=text)
        return MetricsBatch(
            samples=samples,
            until=until,
            silent=silent,
            silent_why={
                node: SEVERAL if node in got.several else got.why[node]
                for node in silent
                if node in got.several or node in got.why
            },
            problems=tuple(got.problems),
            gpus={
                f"{node}/{bus}": gpu
                for node in request.nodes
                if node not in got.several
                for bus, gpu in self._gpus.get(node, {}).items()
            },
        )


def decoded(data: bytes) -> dict[str, Any]:
    """The JSON of an answer that succeeded. Raises `AskError`."""
    try:
        body = orjson.loads(data)
    except ValueError as error:
        text = f"an answer of {len(data)} bytes that is no JSON: {error}"
        raise AskError(UnavailableReason.GARBLED, text, broken=True) from error
    if not isinstance(body, dict) or body.get("status") != "success" or not isinstance(body.get("data"), dict):
        raise AskError(UnavailableReason.GARBLED, "an answer without success and without an error")
    return body


def _of_nodes(nodes: Iterable[str]) -> str:
    """A pattern for labels that name these nodes, with or without domain and port."""
    return f"(?:{'|'.join(re.escape(node) for node in nodes)})(?:[.:].*)?"


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
