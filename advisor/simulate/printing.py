"""What jobs and kernels print in a world, and when it can be read: some of it never, some late, by clocks that differ.

Progress is made when somebody reads: one line per step of the first rank, as long as the attempt lives. Around a
failure the ranks of the culprit speak, and a sample of the others. A kernel prints into its node's own log.
"""

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from random import Random

from advisor.simulate.catalogue import ALARMING, Place, Shape
from advisor.simulate.cluster import Cluster, SimAttempt, SimJob, SimNode
from advisor.simulate.world import Fault

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
OTHERS_PRINT = 24  # ranks elsewhere that are heard, of thousands that say the same
FULL_TEXT_NODES_MAX = 4  # of jobs in which every rank prints every step
CULPRITS_PRINT = 4  # nodes of one event whose ranks speak
WATCHDOG = (
    "[rank{rank}]:[E{day} {clock}.481920233 ProcessGroupNCCL.cpp:632] [Rank {rank}] Watchdog caught collective "
    "operation timeout: WorkNCCL(SeqNum={sequence}, OpType=ALLREDUCE, NumelIn=4194304, NumelOut=4194304, "
    "Timeout(ms)=600000) ran for 600{gpu}21 milliseconds before timing out."
)


def moment(seconds: float) -> datetime:
    return EPOCH + timedelta(seconds=seconds)


@dataclass(slots=True)
class Stream:
    """One file: what was written, in the order in which it becomes readable. `offset`: of the first byte kept."""

    kept: bytearray = field(default_factory=bytearray)
    offset: int = 0
    waiting: list[tuple[float, int, str]] = field(default_factory=list)  # readable at, order, line

    def write(self, readable_at: float, line: str) -> None:
        self.waiting.append((readable_at, len(self.waiting), line))

    def settle(self, now: float) -> None:
        """What has become readable takes its place in the file."""
        ready = sorted(item for item in self.waiting if item[0] <= now)
        if ready:
            self.waiting = [item for item in self.waiting if item[0] > now]
            self.kept += "".join(f"{line}\n" for _, _, line in ready).encode()

    def read(self, begin: int, most: int) -> bytes:
        """Bytes from `begin` on; what lies before them will not be asked for again."""
        cut = max(begin - self.offset, 0)
        del self.kept[:cut]
        self.offset += cut
        return bytes(self.kept[:most])

    @property
    def end(self) -> int:
        return self.offset + len(self.kept)


@dataclass(slots=True, kw_only=True)
class Output:
    """The output of one attempt."""

    job: SimJob
    attempt: SimAttempt
    random: Random
    stream: Stream = field(default_factory=Stream)
    printed_to: int = 0  # step

    @property
    def over(self) -> bool:
        return self.attempt.ended_at is not None


class Printer:
    """A `Watcher` of the cluster. `alarms` are moments at which something looks wrong to a reader in a hurry."""

    def __init__(self) -> None:
        self.cluster: Cluster | None = None
        self.outputs: dict[tuple[str, int], Output] = {}
        self.kernels: dict[int, Stream] = {}
        self.lost = 0
        self.late = 0
        self._readable_at: list[float] = []  # a heap: when lines can be read that cannot be read yet

    @property
    def _cluster(self) -> Cluster:
        assert self.cluster is not None  # noqa: S101 -- set before the world begins
        return self.cluster

    # the cluster tells

    def started(self, job: SimJob, attempt: SimAttempt) -> None:
        world = self._cluster.world
        random = world.stream("print", job.spec.job_id, attempt.number)
        out = Output(job=job, attempt=attempt, random=random, printed_to=attempt.resume)
        self.outputs[job.spec.job_id, attempt.number] = out
        self.outputs.pop((job.spec.job_id, attempt.number - 2), None)
        now = self._cluster.now
        self._say(out, now + 1.0, f"training with {job.spec.nodes * world.scenario.gpus_per_node} ranks")
        first = now + world.scenario.initialise_seconds
        if attempt.resume:
            self._later(out, first - 5.0, f"successfully loaded checkpoint from /ckpt at iteration {attempt.resume}")
        if random.random() < world.scenario.noise.healthy_alarming:
            line = random.choice(ALARMING)
            self._later(out, first + random.uniform(30.0, 3600.0), self._filled(line, out, attempt.nodes[0], 0, 0))

    def failing(self, job: SimJob, attempt: SimAttempt, fault: Fault) -> None:
        out = self.outputs[job.spec.job_id, attempt.number]
        if attempt.silent:
            return
        random, now, cause = out.random, self._cluster.now, fault.cause
        places = [index for index in fault.nodes if index in attempt.nodes]
        for index in places[:CULPRITS_PRINT] if cause.place is not Place.STORAGE else ():
            for line in cause.kernel:
                self._kernel(index, now, self._filled(line, out, index, fault.gpu, 0), random)
        if cause.shape is Shape.NUMERICS:
            return
        speakers = places[:CULPRITS_PRINT] or [random.choice(attempt.nodes)]
        for index in speakers:
            rank, wait = self._rank(attempt, index, fault.gpu), self._wait_in_buffer(random)
            for number, line in enumerate(cause.culprit):
                text = self._filled(line, out, index, fault.gpu, rank)
                self._say(out, now + wait + 0.001 * number, text)
        if cause.others:
            self._others(out, cause.others, speakers[0], now)
        if cause.shape is Shape.HANG:
            limit = self._cluster.world.scenario.collective_timeout_seconds
            for _ in range(OTHERS_PRINT):
                index, gpu = random.choice(attempt.nodes), random.randrange(8)
                line = self._filled(WATCHDOG, out, index, gpu, self._rank(attempt, index, gpu), now + limit - 3.0)
                self._later(out, now + limit - random.uniform(0.5, 3.0), line)

    def ended(self, job: SimJob, attempt: SimAttempt) -> None:
        pass

    def requeued(self, job: SimJob, attempt: SimAttempt, by: str) -> None:
        pass

    def node_changed(self, node: SimNode) -> None:
        pass

    @property
    def next_readable(self) -> float:
        """When something can be read that cannot be read now."""
        while self._readable_at and self._readable_at[0] <= self._cluster.now:
            heapq.heappop(self._readable_at)
        return self._readable_at[0] if self._readable_at else float("inf")

    # readers ask

    def output(self, job_id: str, attempt: int) -> Output | None:
        """With everything printed up to now."""
        out = self.outputs.get((job_id, attempt))
        if out is not None:
            for at, line in self._progress(out):
                self._say(out, at, line)
            out.stream.settle(self._cluster.now)
        return out

    def kernel(self, index: int) -> Stream | None:
        stream = self.kernels.get(index)
        if stream is not None:
            stream.settle(self._cluster.now)
        return stream

    # inside

    def _progress(self, out: Output) -> Iterator[tuple[float, str]]:
        cluster, job, attempt = self._cluster, out.job, out.attempt
        if attempt.started_at is None:
            return
        until = cluster.steps(job, attempt, cluster.now)
        everybody = job.spec.full_text and job.spec.nodes <= FULL_TEXT_NODES_MAX
        for step in range(out.printed_to + 1, until + 1):
            at = cluster.time_of(job, attempt, step)
            spoiled = attempt.spoiled is not None and step > attempt.spoiled
            loss = "nan" if spoiled else f"{1.6 + 8.0 / (step + 1):.6E}"
            stamp = f"{moment(at):%Y-%m-%d %H:%M:%S}"
            yield (
                at,
                f" [{stamp}] iteration {step:8d}/ 5000000 | elapsed time per iteration (ms): "
                f"{job.spec.step_seconds * 1000:.1f} | lm loss: {loss} | grad norm: {loss if spoiled else 0.312} |",
            )
            for rank in range(job.spec.nodes * cluster.world.scenario.gpus_per_node if everybody else 0):
                yield (
                    at,
                    f"[rank{rank}]:[titan] {stamp},{rank:03d} - root - INFO - step: {step:3d}  loss: {loss}  "
                    "memory: 61.92GiB(78.31%)  tps: 3,912  mfu: 41.20%",
                )
            if (step - attempt.resume) % job.spec.save_every == 0:
                yield at, f"saving checkpoint at iteration {step:7d} to /ckpt in torch_dist format"
                saved_at = at + cluster.world.scenario.checkpoint_seconds
                if saved_at <= cluster.now and (attempt.failed_at is None or saved_at <= attempt.failed_at):
                    yield saved_at, f"  successfully saved checkpoint from iteration {step:7d} to /ckpt"
        out.printed_to = max(out.printed_to, until)

    def _others(self, out: Output, lines: tuple[str, ...], culprit: int, now: float) -> None:
        attempt, random = out.attempt, out.random
        peer = f"10.{culprit // 250}.{culprit % 250}.1<43211>"
        for _ in range(min(OTHERS_PRINT, len(attempt.nodes))):
            index, gpu = random.choice(attempt.nodes), random.randrange(8)
            if index == culprit:
                continue
            at, wait = now + random.uniform(0.5, 1.9), self._wait_in_buffer(random)
            for line in lines:
                text = self._filled(line.replace("{peer}", peer), out, index, gpu, self._rank(attempt, index, gpu), at)
                self._say(out, at + wait, text)

    def _rank(self, attempt: SimAttempt, index: int, gpu: int) -> int:
        return attempt.nodes.index(index) * self._cluster.world.scenario.gpus_per_node + gpu

    def _filled(self, line: str, out: Output, index: int, gpu: int, rank: int, at: float | None = None) -> str:
        shown = moment((self._cluster.now if at is None else at) + self._cluster.world.skews[index])
        return line.format(
            rank=rank,
            node=self._cluster.world.name_of(index),
            gpu=gpu,
            pid=40_000 + rank % 9000,
            tid=50_000 + rank % 9000,
            pci=f"{0x18 + gpu * 0x10:02x}",
            stamp=f"{shown:%Y-%m-%d %H:%M:%S}",
            day=f"{shown:%m%d}",
            clock=f"{shown:%H:%M:%S}",
            sequence=max(out.printed_to, 1) * 40,
            peer="10.0.0.1<43211>",
        )

    def _wait_in_buffer(self, random: Random) -> float:
        """Of one rank's lines, which keep their order among themselves."""
        return random.uniform(0.0, self._cluster.world.scenario.noise.reorder_seconds)

    def _say(self, out: Output, at: float, line: str) -> None:
        readable = self._readable(at, out.random)
        if readable is not None:
            out.stream.write(readable, line)

    def _later(self, out: Output, at: float, line: str) -> None:
        """Printed at a later time, if the attempt is still there then."""

        def print_it() -> None:
            if not out.over:
                self._say(out, self._cluster.now, line)

        self._cluster.at(at, print_it)

    def _kernel(self, index: int, at: float, line: str, random: Random) -> None:
        readable = self._readable(at, random)
        if readable is None:
            return
        world = self._cluster.world
        stamp = f"{moment(at + world.skews[index]):%Y-%m-%dT%H:%M:%S.%f}+00:00"
        self.kernels.setdefault(index, Stream()).write(readable, f"{stamp} {world.name_of(index)} kernel: {line}")

    def _readable(self, at: float, random: Random) -> float | None:
        noise = self._cluster.world.scenario.noise
        drawn = random.random()
        if drawn < noise.lines_lost:
            self.lost += 1
            return None
        if drawn < noise.lines_lost + noise.lines_late:
            self.late += 1
            at += random.uniform(0.0, noise.late_seconds_max)
        if at > self._cluster.now:
            heapq.heappush(self._readable_at, at)
        return at
