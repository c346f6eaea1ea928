"""Replicas as processes over one database, and an agent that is only a script: for the tests of this folder."""

import asyncio
import getpass
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, cast

import grpc
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from advisor.app import Running
from advisor.service.wire import stamp
from tests.integration.service.world import CLUSTER, World, iteration, now

PROJECT = Path(__file__).resolve().parents[3]
LEASE_SECONDS = 3.0
WAIT_SECONDS = 60.0
FAILURE = (
    "node1:4711:1 [0] transport/net_ib.cc:93 NCCL WARN NET/IB : mlx5_0:1 Got async event : port error\n"
    "[rank0]: torch.distributed.DistBackendError: NCCL error: remote process exited or there was a network error\n"
)

Rows = list[tuple[Any, ...]]


@dataclass(slots=True, kw_only=True)
class Process:
    """One replica's process, by its name."""

    name: str
    folder: Path
    process: "subprocess.Popen[bytes]"

    @property
    def socket(self) -> Path:
        return self.folder / "advisor.sock"

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        self.process.wait()


@dataclass(slots=True, kw_only=True)
class Fleet:
    folder: Path
    url: str
    processes: dict[str, Process] = field(default_factory=dict)
    submitted: datetime = field(default_factory=lambda: now().replace(microsecond=0) - timedelta(seconds=30))
    _engine: AsyncEngine | None = None
    _channels: list[grpc.aio.Channel] = field(default_factory=list)

    async def open(self) -> None:
        for name in ("kernel", "logs"):
            (self.folder / name).mkdir(exist_ok=True)
        (self.folder / "dsn").write_text(self.url)
        (self.folder / "dsn").chmod(0o600)
        self._engine = create_async_engine(self.url)

    async def close(self) -> None:
        for channel in self._channels:
            await channel.close()
        for process in self.processes.values():
            if process.process.poll() is None:
                process.process.kill()
            process.process.wait()
        if self._engine is not None:
            await self._engine.dispose()

    # processes

    def spawn(
        self, name: str, *, skew: float = 0.0, tree: Path = PROJECT, extra: str = "", attempts_max: int = 5000
    ) -> Process:
        """A replica begins to start; `tree`: the code that it runs."""
        folder = self.folder / name
        folder.mkdir(exist_ok=True)
        config = folder / "advisor.toml"
        config.write_text(
            f"""
            default_mode = "autonomous"
            {extra}
            [store]
            dsn_file = "{self.folder}/dsn"
            [replicas]
            lease_seconds = {LEASE_SECONDS}
            [service]
            socket = "{folder}/advisor.sock"
            data_dir = "{folder}/data"
            agent_users = ["{getpass.getuser()}"]
            keepalive_seconds = 0.2
            [tick]
            interval_seconds = 0.2
            attempts_max = {attempts_max}
            [[kernel]]
            path = "{self.folder}/kernel/%n.log"
            """
        )
        with (folder / "log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.integration.replicas.serve", str(config), "--skew", str(skew)],
                cwd=tree,
                env={**os.environ, "PYTHONPATH": str(tree)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self.processes[name] = Process(name=name, folder=folder, process=process)
        return self.processes[name]

    async def start(self, *names: str, **how: Any) -> list[Process]:
        begun = [self.spawn(name, **how) for name in names]
        for process in begun:
            await self.serving(process)
        return begun

    async def serving(self, process: Process) -> None:
        before = process.log.count("serving\n")

        async def up() -> bool:
            assert process.process.poll() is None, process.log[-3000:]
            return process.log.count("serving\n") > 0 and process.socket.exists()

        assert before >= 0
        await self.until(up, lambda: process.log[-3000:])

    async def until(self, met: Callable[[], Awaitable[bool]], why: Callable[[], str] = str) -> float:
        """Wait for a condition; returns how long it took. The deadline says what was seen instead."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        while not await met():
            assert loop.time() - began < WAIT_SECONDS, why()
            await asyncio.sleep(0.05)
        return loop.time() - began

    # the database

    async def rows(self, statement: str, **values: Any) -> Rows:
        assert self._engine is not None
        async with self._engine.connect() as connection:
            return [tuple(row) for row in await connection.execute(text(statement), values)]

    @asynccontextmanager
    async def locked(self, statement: str) -> Any:
        """A transaction of the test's own that holds what the statement locks."""
        assert self._engine is not None
        async with self._engine.begin() as connection:
            await connection.execute(text(statement))
            yield connection

    async def held(self) -> dict[str, int]:
        """How many jobs each living process holds, by its name."""
        found = await self.rows(
            "SELECT r.pid, count(l.job_key) FROM replicas r LEFT JOIN leases l ON l.replica_id = r.id "
            "WHERE r.ended_at IS NULL GROUP BY r.pid"
        )
        names = {process.process.pid: name for name, process in self.processes.items()}
        return {names[pid]: count for pid, count in found if pid in names}

    async def jobs_of(self, name: str) -> list[str]:
        """Ids of the jobs that a process holds."""
        found = await self.rows(
            "SELECT j.job_id FROM replicas r JOIN leases l ON l.replica_id = r.id JOIN jobs j ON j.key = l.job_key "
            "WHERE r.pid = :pid AND r.ended_at IS NULL ORDER BY 1",
            pid=self.processes[name].process.pid,
        )
        return [row[0] for row in found]

    async def shared(self, total: int, *names: str) -> dict[str, int]:
        """Wait until these processes, and nobody else, hold all jobs, none of them more than two beyond another."""
        seen: dict[str, int] = {}

        async def met() -> bool:
            nonlocal seen
            seen = await self.held()
            counts = [seen.get(name, 0) for name in names]
            others = sum(count for name, count in seen.items() if name not in names)
            return sum(counts) == total and not others and max(counts) - min(counts) <= 2

        await self.until(met, lambda: f"{total} jobs over {names}: {seen}")
        return seen

    async def decisions(self) -> Rows:
        """(job id, attempt, generation, action, replica, epoch), as they were committed."""
        return await self.rows(
            "SELECT d.job_id, d.number, d.generation, d.action, a.detail::json ->> 'replica', "
            "(a.detail::json ->> 'epoch')::bigint "
            "FROM decisions d JOIN audit a ON a.subject = d.id::text AND a.what = 'decision_committed' ORDER BY d.seq"
        )

    async def check_decisions(self) -> Rows:
        """Generations follow each other, each once; epochs of a job never go back; nobody decided after his end."""
        found = await self.decisions()
        generations: Counter[tuple[str, int]] = Counter()
        epochs: dict[str, int] = {}
        for job, number, generation, _action, _replica, epoch in found:
            generations[job, number] += 1
            assert generation == generations[job, number], found
            assert epoch >= epochs.get(job, 0), f"job {job}: decided by an older lease: {found}"
            epochs[job] = epoch
        late = await self.rows(
            "SELECT d.id FROM decisions d JOIN audit a ON a.subject = d.id::text AND a.what = 'decision_committed' "
            "JOIN replicas r ON r.id::text = a.detail::json ->> 'replica' "
            "WHERE r.ended_at < d.created_at - interval '1 s'"
        )
        assert late == []
        return found

    # the agent

    async def agent(self, name: str) -> World:
        """A scripted agent that is connected to this replica."""
        channel = grpc.aio.insecure_channel(f"unix:{self.processes[name].socket}")
        self._channels.append(channel)
        world = World(folder=self.folder, running=cast(Running, None), channel=channel, submitted=self.submitted)
        await world.register()
        return world

    def write(self, world: World, job: str, steps: Iterable[int]) -> None:
        with world.log(job).open("a") as file:
            file.writelines(iteration(step) for step in steps)

    async def run_jobs(self, world: World, jobs: Iterable[str], *, steps: int = 10) -> None:
        jobs = list(jobs)
        for job in jobs:
            self.write(world, job, range(1, steps))
        await world.report(*(world.job("RUNNING", job=job) for job in jobs))

    async def fail(self, world: World, *jobs: str) -> None:
        """A fabric's error in the log, then the end, as the scheduler tells it."""
        for job in jobs:
            with world.log(job).open("a") as file:
                file.write(FAILURE)
        await world.report(*(world.job("FAILED", job=job, ended_at=stamp(now())) for job in jobs))

    async def advised(self, *jobs: str) -> float:
        """Wait until each of these jobs has a decision to restart."""
        missing: set[str] = set(jobs)

        async def met() -> bool:
            nonlocal missing
            missing = set(jobs) - {row[0] for row in await self.decisions() if row[3] == "restart"}
            return not missing

        return await self.until(met, lambda: f"no restart advised for {sorted(missing)}")


__all__ = ["CLUSTER", "LEASE_SECONDS", "Fleet", "Process"]
