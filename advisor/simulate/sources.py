"""The world's logs and telemetry behind the ports of connectors, so that the real pipeline reads them as any other."""

import json
from collections.abc import Mapping, Sequence
from zlib import crc32

from advisor.core.columns import Sample
from advisor.core.measured import POWER, TENSOR, UTILISATION, XID
from advisor.core.model import Unavailable
from advisor.core.words import Trust, UnavailableReason
from advisor.ports import LogBatch, LogChunk, LogRequest, MetricsBatch, MetricsRequest, MetricsSeen
from advisor.simulate.catalogue import Shape
from advisor.simulate.cluster import Cluster
from advisor.simulate.printing import EPOCH, Printer, Stream, moment

LATE_SECONDS = 30.0  # a kernel's records are read for so long after the attempt
PEERS = 4  # healthy nodes whose telemetry is shown beside the one that matters
SCRAPE_SECONDS = 15.0


class JobOutputs:
    """The output files of jobs. A cursor is a byte offset."""

    name = "job-output"
    trust = Trust.LOG

    def __init__(self, printer: Printer) -> None:
        self._printer = printer

    async def read(self, requests: Sequence[LogRequest]) -> Mapping[str, LogBatch | Unavailable]:
        return {request.key: self._one(request) for request in requests}

    def _one(self, request: LogRequest) -> LogBatch | Unavailable:
        out = self._printer.output(request.job_id, request.attempt)
        if out is None:
            return Unavailable(source=self.name, reason=UnavailableReason.MISSING, detail="no file yet")
        begin = int(json.loads(request.cursor)["offset"]) if request.cursor else 0
        data = out.stream.read(begin, request.bytes_max)
        chunk = LogChunk(file=f"{request.job_id}.out", offset=begin, data=data, fresh=begin == 0)
        more = begin + len(data) < out.stream.end
        return LogBatch(
            chunks=(chunk,) if data else (),
            cursor=json.dumps({"offset": begin + len(data)}),
            more=more,
            final=out.over and not more and not out.stream.waiting,
        )

    async def close(self) -> None:
        pass


class KernelLogs:
    """The kernel log of each node, as a collector that only root can feed delivers it."""

    name = "kernel"
    trust = Trust.KERNEL

    def __init__(self, cluster: Cluster, printer: Printer) -> None:
        self._cluster = cluster
        self._printer = printer
        self._index = {cluster.world.name_of(node.index): node.index for node in cluster.nodes}
        self._begun: dict[str, dict[str, int]] = {}

    async def read(self, requests: Sequence[LogRequest]) -> Mapping[str, LogBatch | Unavailable]:
        return {request.key: self._one(request) for request in requests}

    def _one(self, request: LogRequest) -> LogBatch:
        offsets: dict[str, int] = dict(json.loads(request.cursor)) if request.cursor else {}
        started = (request.started_at - EPOCH).total_seconds() if request.started_at is not None else 0.0
        chunks = []
        for name in request.nodes if len(self._printer.kernels) else ():
            stream = self._printer.kernels.get(self._index.get(name, -1))
            if stream is None:
                continue
            self._printer.kernel(self._index[name])
            begin = offsets.get(name)
            if begin is None:
                begin = _since(stream, started)
            data = bytes(stream.kept[max(begin - stream.offset, 0) :])
            if data:
                chunks.append(LogChunk(file=name, offset=begin, data=data, node=name))
            offsets[name] = begin + len(data)
        over = request.ended_at is not None and self._cluster.now >= (
            (request.ended_at - EPOCH).total_seconds() + LATE_SECONDS
        )
        return LogBatch(chunks=tuple(chunks), cursor=json.dumps(offsets), final=over)

    async def close(self) -> None:
        pass


def _since(stream: Stream, started: float) -> int:
    """Where the records of this attempt begin: those before its start are another one's."""
    stamp = f"{moment(started - 5.0):%Y-%m-%dT%H:%M:%S}".encode()
    place = stream.offset
    for line in bytes(stream.kept).splitlines(keepends=True):
        if line[: len(stamp)] >= stamp:
            break
        place += len(line)
    return place


class Exporters:
    """DCGM's series of the nodes that matter and of a few peers, at each scrape, some scrapes missing."""

    name = "dcgm"
    trust = Trust.TELEMETRY
    interval_seconds = SCRAPE_SECONDS
    blur_seconds = SCRAPE_SECONDS

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._index = {cluster.world.name_of(node.index): node.index for node in cluster.nodes}
        self._xids: dict[tuple[int, int], int] = {}

    async def read(self, requests: Sequence[MetricsRequest]) -> Mapping[str, MetricsBatch | Unavailable]:
        return {request.key: self._one(request) for request in requests}

    def _one(self, request: MetricsRequest) -> MetricsBatch:
        since = (request.since - EPOCH).total_seconds()
        until = min((request.until - EPOCH).total_seconds(), self._cluster.now)
        indices = [self._index[name] for name in request.nodes if name in self._index]
        shown = [index for index in indices if self._cluster.nodes[index].failures][:PEERS]
        shown += [index for index in indices if index not in shown][: max(PEERS - len(shown), 2)]
        samples: list[Sample] = []
        first = int(since // SCRAPE_SECONDS) + 1
        scrapes = range(max(first, int(until // SCRAPE_SECONDS) - 40), int(until // SCRAPE_SECONDS) + 1)
        missing = self._cluster.world.scenario.noise.scrapes_missing
        for index in shown:
            for scrape in scrapes:
                if _share(self._cluster.world.seed, index, scrape) >= missing:
                    samples.extend(self._scraped(index, scrape * SCRAPE_SECONDS))
        return MetricsBatch(samples=tuple(samples), until=moment(until))

    def _scraped(self, index: int, at: float) -> list[Sample]:
        """What one exporter shows: sticky Xids, and whether the GPUs compute, spin or idle."""
        node, name = self._cluster.nodes[index], self._cluster.world.name_of(index)
        job = node.job
        attempt = job.last if job is not None else None
        begun = self._cluster.first_step_at(attempt) if attempt is not None else None
        trains = begun is not None and at >= begun
        stands = attempt is not None and attempt.failed_at is not None and at > attempt.failed_at
        fault = attempt.fault if attempt is not None else None
        struck = fault is not None and index in fault.nodes and stands and attempt is not None and not attempt.silent
        found: list[Sample] = []
        for gpu in range(self._cluster.world.scenario.gpus_per_node):
            xid = self._xids.get((index, gpu), 0)
            if struck and fault is not None and fault.gpu == gpu and (code := _xid_of(fault.cause.kernel)):
                xid = self._xids[index, gpu] = code
            spins = stands and fault is not None and fault.cause.shape is Shape.HANG
            values = {
                XID: float(xid),
                UTILISATION: 100.0 if trains else 0.0,
                TENSOR: 0.0 if spins or not trains else 0.42,
                POWER: 180.0 if spins else 640.0 if trains else 90.0,
            }
            found.extend(
                Sample(at=moment(at), node=name, gpu=gpu, field=field, value=value) for field, value in values.items()
            )
        return found

    async def look(self, nodes: Sequence[str]) -> MetricsSeen | Unavailable:
        return Unavailable(source=self.name, reason=UnavailableReason.NOT_CONFIGURED, detail="a world has no doctor")

    async def close(self) -> None:
        pass


def _share(seed: int, index: int, scrape: int) -> float:
    """A number from 0 to 1 of this scrape alone: cheaper than a stream of its own for each of millions."""
    return crc32(f"{seed}/{index}/{scrape}".encode()) / 2**32


def _xid_of(lines: Sequence[str]) -> int:
    for line in lines:
        _, found, rest = line.partition(":00): ")
        if found and "Xid" in line:
            return int(rest.split(",")[0])
    return 0
