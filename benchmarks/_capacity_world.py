"""What stands around the service in the capacity benchmark: processes, their cost, and an agent that is a script.

The agent speaks the contract as the real one does: everything the scheduler holds every five seconds in parts of as
many jobs, what changed meanwhile at once, heartbeats, and an open stream of advice.
"""

import asyncio
import getpass
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.timestamp_pb2 import Timestamp

from advisor.v1 import agent_pb2, agent_pb2_grpc, common_pb2
from benchmarks._capacity_store import FIRST_JOB, node_name
from benchmarks._processes import end
from slurm_plugin.agent import ALL_NODES_SECONDS, COMPLETE_REPORT_SECONDS
from slurm_plugin.link import JOBS_PER_REPORT

CLUSTER = "bench"
USERS = 40
MESSAGE_BYTES_MAX = 64 * 1024 * 1024
RPC_SECONDS = 60.0


def now() -> float:
    return time.time()  # noqa: TID251 - the harness's own clock


def stamp(at: float) -> Timestamp:
    made = Timestamp()
    made.FromNanoseconds(int(at * 1e9))
    return made


def spin(seconds: float = 1.0) -> float:
    """Thousands of small JSON documents read and written per second by one core: what this machine gives just now."""
    value = {"steps": list(range(50)), "name": "x" * 100, "nested": {str(n): n / 7 for n in range(20)}}
    count, began = 0, time.perf_counter()
    while time.perf_counter() - began < seconds:
        for _ in range(50):
            json.loads(json.dumps(value, sort_keys=True))
        count += 50
    return count / (time.perf_counter() - began) / 1000


@dataclass(slots=True, kw_only=True)
class Replica:
    """One service in a process of its own."""

    process: subprocess.Popen[bytes]
    socket: Path
    ticks_file: Path

    def ticks(self, since: float, until: float) -> list[dict[str, Any]]:
        told = []
        for line in self.ticks_file.read_text().splitlines():
            with suppress(ValueError):
                told.append(json.loads(line))
        return [tick for tick in told if since <= tick["at"] < until]


@contextmanager
def replica(folder: Path, number: int, url: str, logs: str, python: Sequence[str] = ()) -> Iterator[Replica]:
    """`python`: what runs it, a profiler say. Its own log goes to `replica-N.log`."""
    own = folder / f"r{number}"
    own.mkdir()
    (own / "dsn").write_text(url)
    (own / "dsn").chmod(0o600)
    config = own / "advisor.toml"
    config.write_text(
        f"""
default_mode = "autonomous"
[service]
socket = "{own}/a.sock"
data_dir = "{own}/data"
agent_users = ["{getpass.getuser()}"]
observations_max = 100000
message_bytes_max = {MESSAGE_BYTES_MAX}
[store]
dsn_file = "{own}/dsn"
{logs}
"""
    )
    ticks_file, log_file = own / "ticks", folder / f"replica-{number}.log"
    with ticks_file.open("wb") as ticks, log_file.open("wb") as said:
        command = [*(python or (sys.executable,)), "-m", "benchmarks._capacity_replica", str(config)]
        process = subprocess.Popen(command, stdout=ticks, stderr=said)
    try:
        deadline = time.monotonic() + 60
        while not (own / "a.sock").exists():
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the service did not start: {log_file.read_text()[-2000:]}")
            time.sleep(0.05)
        yield Replica(process=process, socket=own / "a.sock", ticks_file=ticks_file)
    finally:
        end(process, 20)


@dataclass(slots=True, kw_only=True)
class Site:
    """The jobs as the scheduler shows them."""

    jobs: list[agent_pb2.JobObservation]
    nodes: list[agent_pb2.NodeObservation]

    @classmethod
    def of(
        cls, jobs: int, ranks: int, ranks_per_node: int, started: float, stdout: Mapping[int, str] | None = None
    ) -> "Site":
        per_job = -(-ranks // ranks_per_node)
        made, nodes = [], []
        for number in range(jobs):
            names = [node_name(number, place) for place in range(per_job)]
            ref = common_pb2.AttemptRef(
                cluster=CLUSTER,
                job_id=str(FIRST_JOB + number),
                attempt=0,
                submitted_at=stamp(started - 60),
                user=f"user{number % USERS}" if stdout is None else getpass.getuser(),
            )
            made.append(
                agent_pb2.JobObservation(
                    attempt=ref,
                    notice=agent_pb2.NOTICE_POLL,
                    state=common_pb2.ATTEMPT_STATE_RUNNING,
                    started_at=stamp(started),
                    eligible_at=stamp(started - 60),
                    nodes=names,
                    nodes_known=True,
                    nodes_requested=per_job,
                    nodes_fitting=jobs * per_job + 8,
                    tasks=ranks,
                    partition="train",
                    account="research",
                    name=f"train-{number}",
                    requeueable=True,
                    batch=True,
                    in_scope=True,
                    stdout_path=(stdout or {}).get(number, f"/nowhere/{number}.out"),
                    user_id=os.geteuid() if stdout is not None else 20_000 + number % USERS,
                )
            )
            nodes += [
                agent_pb2.NodeObservation(name=name, state=agent_pb2.NODE_STATE_UP, partitions=["train"])
                for name in names
            ]
        return cls(jobs=made, nodes=nodes)

    def look(self) -> None:
        at = stamp(now())
        for job in self.jobs:
            job.observed_at.CopyFrom(at)
        for node in self.nodes:
            node.observed_at.CopyFrom(at)

    def fail(self) -> None:
        at = stamp(now())
        for job in self.jobs:
            job.state = common_pb2.ATTEMPT_STATE_FAILED
            job.ended_at.CopyFrom(at)
            job.exit.code = 1


@dataclass(kw_only=True)
class Agent:
    """Speaks to one replica. `open`: all open advice as it was last heard, by job; `heard`: when it came first."""

    site: Site
    socket: Path
    open: dict[str, common_pb2.Advice] = field(default_factory=dict)
    heard: dict[str, float] = field(default_factory=dict)
    report_seconds: list[float] = field(default_factory=list)
    tick_age_max: float = 0.0
    _nodes_due: float = 0.0
    _tasks: list["asyncio.Task[None]"] = field(default_factory=list)
    _wake: asyncio.Event = field(default_factory=asyncio.Event)
    _told: asyncio.Event = field(default_factory=asyncio.Event)

    async def __aenter__(self) -> "Agent":
        options = [("grpc.max_receive_message_length", MESSAGE_BYTES_MAX)]
        self._channel = grpc.aio.insecure_channel(f"unix:{self.socket}", options=options)
        self._stub = agent_pb2_grpc.AgentServiceStub(self._channel)
        request = agent_pb2.RegisterRequest(
            cluster=CLUSTER, host="bench", version="1", mode=agent_pb2.AGENT_MODE_ACT, scheduler="slurm"
        )
        request.requeue_delay.FromSeconds(121)
        request.job_memory.FromSeconds(300)
        # On a busy machine the socket is there before anybody listens.
        self._session = (await self._stub.Register(request, timeout=RPC_SECONDS, wait_for_ready=True)).session
        await self._report()
        self._tasks = [asyncio.create_task(work) for work in (self._reports(), self._beats(), self._watch())]
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._channel.close()

    async def tell(self) -> None:
        """Everything, now."""
        self._told.clear()
        self._wake.set()
        await self._told.wait()

    async def _report(self) -> None:
        self.site.look()
        began, jobs, nodes = time.monotonic(), self.site.jobs, list[agent_pb2.NodeObservation]()
        if began >= self._nodes_due:
            nodes, self._nodes_due = self.site.nodes, began + ALL_NODES_SECONDS
        parts = [jobs[at : at + JOBS_PER_REPORT] for at in range(0, len(jobs), JOBS_PER_REPORT)]
        for at, part in enumerate(parts):
            last = at == len(parts) - 1
            request = agent_pb2.ReportObservationsRequest(
                cluster=CLUSTER,
                session=self._session,
                jobs=part,
                nodes=nodes if at == 0 else (),
                complete=last,
                listed=[job.attempt.job_id for job in jobs] if last and len(parts) > 1 else (),
            )
            await self._stub.ReportObservations(request, timeout=RPC_SECONDS)
        self.report_seconds.append(time.monotonic() - began)

    async def _reports(self) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(COMPLETE_REPORT_SECONDS):
                    await self._wake.wait()
            self._wake.clear()
            await self._report()
            self._told.set()

    async def _beats(self) -> None:
        request = agent_pb2.HeartbeatRequest(cluster=CLUSTER, session=self._session, mode=agent_pb2.AGENT_MODE_ACT)
        while True:
            told = await self._stub.Heartbeat(request, timeout=RPC_SECONDS)
            self.tick_age_max = max(self.tick_age_max, told.tick_age.seconds + told.tick_age.nanos / 1e9)
            await asyncio.sleep(0.25)

    async def _watch(self) -> None:
        request = agent_pb2.WatchAdviceRequest(cluster=CLUSTER, session=self._session)
        async for told in self._stub.WatchAdvice(request):
            at = time.monotonic()
            self.open = {item.attempt.job_id: item for item in told.open}
            for job in self.open:
                self.heard.setdefault(job, at)


@contextmanager
def store(options: Mapping[str, object]) -> Iterator[tuple[int, str]]:
    """The made-up log store: its process and its address."""
    command = [sys.executable, "-m", "benchmarks._capacity_store", json.dumps(options)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdin is not None
    try:
        yield process.pid, f"http://127.0.0.1:{int(process.stdout.readline())}"
    finally:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()
