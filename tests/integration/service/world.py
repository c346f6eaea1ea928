"""A whole service in this process, and an agent that is only a script: for the tests of this folder."""

import asyncio
import atexit
import functools
import getpass
import os
import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import grpc
import psycopg
import structlog

from advisor.app import Running, Service
from advisor.clock import SystemClock
from advisor.config import Config, load
from advisor.ports import Clock, LogSource
from advisor.service.wire import stamp
from advisor.store.embedded import EmbeddedPostgres
from advisor.store.migrate import migrate
from advisor.v1 import agent_pb2, agent_pb2_grpc, audit_pb2, audit_pb2_grpc, common_pb2, operator_pb2, operator_pb2_grpc
from connectors.kernel.files import KernelFileLogs
from connectors.logs.files import JobFileLogs

# The rich form prints local variables of every frame.
structlog.configure(
    processors=[
        structlog.processors.add_log_level,
        structlog.dev.ConsoleRenderer(colors=False, exception_formatter=structlog.dev.plain_traceback),
    ]
)

CLUSTER = "test"
NODES = ("node1", "node2", "node3", "node4")
WAIT_SECONDS = 20.0


def iteration(step: int) -> str:
    return f"iteration {step:>8}/ 1000 | elapsed time per iteration (ms): 100.0 | loss: 1.0\n"


def database(folder: Path) -> "psycopg.Connection[tuple[Any, ...]]":
    """What a service in this folder has stored; closed by who asked for it."""
    return psycopg.connect(
        host=str(folder / "data/postgres/sockets"), user="advisor", dbname="advisor", autocommit=True
    )


XID_79 = "kernel: NVRM: Xid (PCI:0000:4e:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.\n"


def now() -> datetime:
    return SystemClock().now()


@contextmanager
def short_folder() -> Iterator[Path]:
    """Short (sun_path holds 107 bytes) and passable for the database's own user."""
    folder = Path(tempfile.mkdtemp(prefix="adv-"))
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def configuration(folder: Path, text: str = "") -> Config:
    """A configuration under `folder` in which this user is agent and operator."""
    for name in ("kernel", "logs"):
        (folder / name).mkdir(exist_ok=True)
    path = folder / "advisor.toml"
    path.write_text(
        f"""
        {text}
        [service]
        socket = "{folder}/run/advisor.sock"
        data_dir = "{folder}/data"
        agent_users = ["{getpass.getuser()}"]
        keepalive_seconds = 0.2
        [tick]
        interval_seconds = 0.2
        [[kernel]]
        path = "{folder}/kernel/%n.log"
        """
    )
    return load(path, {}).config


def own_sources(config: Config, clock: Clock) -> Sequence[LogSource]:
    """The shipped connectors, with this user in root's place as the owner of kernel logs."""
    return (
        JobFileLogs("job-output", clock=clock, grace_seconds=0.5),
        KernelFileLogs("kernel", clock=clock, path=config.kernel[0].path, owners=(0, os.geteuid())),
    )


@dataclass(slots=True, kw_only=True)
class World:
    """A running service with one connection to it."""

    folder: Path
    running: Running
    channel: grpc.aio.Channel
    submitted: datetime
    session: str = ""
    refused: list[str] = field(default_factory=list)

    @property
    def agent(self) -> "agent_pb2_grpc.AgentServiceAsyncStub":
        return agent_pb2_grpc.AgentServiceStub(self.channel)

    @property
    def audit(self) -> "audit_pb2_grpc.AuditServiceAsyncStub":
        return audit_pb2_grpc.AuditServiceStub(self.channel)

    @property
    def operator(self) -> "operator_pb2_grpc.OperatorServiceAsyncStub":
        return operator_pb2_grpc.OperatorServiceStub(self.channel)

    def log(self, job: str = "17") -> Path:
        return self.folder / "logs" / f"{job}.out"

    def kernel(self, node: str, text: str) -> None:
        """One kernel line of a node, stamped now."""
        moment = now().astimezone()
        with (self.folder / "kernel" / f"{node}.log").open("a") as file:
            file.write(f"{moment.isoformat(timespec='microseconds')} {node} {text}")

    def job(self, state: str, *, job: str = "17", attempt: int = 0, **fields: Any) -> agent_pb2.JobObservation:
        """What an agent would report of a job on four nodes."""
        seen = now()
        started = fields.pop("started", self.submitted + timedelta(seconds=1 + 10 * attempt))
        base: dict[str, Any] = {
            "attempt": common_pb2.AttemptRef(
                cluster=CLUSTER,
                job_id=job,
                attempt=attempt,
                submitted_at=stamp(self.submitted + timedelta(seconds=10 * attempt)),
                user=getpass.getuser(),
            ),
            "user_id": os.geteuid(),
            "state": common_pb2.AttemptState.Value(f"ATTEMPT_STATE_{state}"),
            "notice": agent_pb2.NOTICE_POLL,
            "observed_at": stamp(seen),
            "partition": "train",
            "batch": True,
            "requeueable": True,
            "in_scope": True,
            "nodes_requested": 4,
            "tasks": 4,
            "nodes_fitting": 8,
        }
        if state != "PENDING":
            base |= {
                "started_at": stamp(started),
                "nodes": NODES,
                "nodes_known": True,
                "stdout_path": str(self.log(job)),
                "stderr_path": str(self.log(job)),
            }
        if state in {"FAILED", "COMPLETED", "CANCELLED"}:
            base["ended_at"] = stamp(seen)
            base["exit"] = agent_pb2.ExitStatus(code=0 if state == "COMPLETED" else 1)
        return agent_pb2.JobObservation(**(base | fields))

    async def report(self, *jobs: agent_pb2.JobObservation, **fields: Any) -> agent_pb2.ReportObservationsResponse:
        nodes = [
            agent_pb2.NodeObservation(
                name=name, state=agent_pb2.NODE_STATE_UP, observed_at=stamp(now()), partitions=["train"]
            )
            for name in (*NODES, "node5", "node6", "node7", "node8")
        ]
        return await self.agent.ReportObservations(
            agent_pb2.ReportObservationsRequest(cluster=CLUSTER, session=self.session, jobs=jobs, nodes=nodes, **fields)
        )

    async def register(self) -> None:
        answer = await self.agent.Register(
            agent_pb2.RegisterRequest(
                cluster=CLUSTER, host="ctl", version="1", mode=agent_pb2.AGENT_MODE_ACT, scheduler="slurm 22.05.8"
            )
        )
        self.session = answer.session

    async def reconcile(
        self,
        advice: common_pb2.Advice,
        status: int,
        reason: int = common_pb2.RECONCILIATION_REASON_OBSERVED,
        **fields: Any,
    ) -> None:
        """As an agent that saw in the scheduler what came of it."""
        await self.agent.ReportReconciliation(
            agent_pb2.ReportReconciliationRequest(
                cluster=CLUSTER,
                session=self.session,
                advice_id=advice.advice_id,
                attempt=advice.attempt,
                generation=advice.generation,
                status=status,  # type: ignore[arg-type]  # a number of the contract
                reason=reason,  # type: ignore[arg-type]  # a number of the contract
                at=stamp(now()),
                **fields,
            )
        )

    async def advice_where(
        self, wanted: Callable[[Sequence[common_pb2.Advice]], bool], seconds: float = WAIT_SECONDS
    ) -> list[common_pb2.Advice]:
        """Watch the stream until what is open fits; the deadline shows what was open instead."""
        stream = self.agent.WatchAdvice(agent_pb2.WatchAdviceRequest(cluster=CLUSTER, session=self.session))
        seen: list[common_pb2.Advice] = []
        try:
            async with asyncio.timeout(seconds):
                async for message in stream:
                    seen = list(message.open)
                    if wanted(seen):
                        return seen
        except TimeoutError:
            raise AssertionError(f"not within {seconds} s; open: {seen}") from None
        finally:
            stream.cancel()
        raise AssertionError("the stream ended")

    async def ticks(self, count: int) -> None:
        """Wait until so many more ticks have been completed."""
        board = self.running.board
        until = board.pulse.ticks + count
        async with asyncio.timeout(WAIT_SECONDS):
            while board.pulse.ticks < until:  # noqa: ASYNC110 -- the board tells listeners of advice, not of ticks
                await asyncio.sleep(0.02)

    async def decisions(self, **filters: Any) -> list[audit_pb2.Decision]:
        answer = await self.audit.ListDecisions(
            audit_pb2.ListDecisionsRequest(filter=audit_pb2.Filter(cluster=CLUSTER, **filters))
        )
        return list(answer.decisions)

    async def fail_on_node2(self, job: str = "17") -> None:
        """A job that made progress, lost node2's GPU, and ended with the others' time-outs in its log."""
        lines = [
            f"iteration {step:>8}/ 1000 | elapsed time per iteration (ms): 100.0 | loss: 1.0\n" for step in range(1, 20)
        ]
        self.log(job).write_text("".join(lines))
        await self.report(self.job("RUNNING", job=job))
        await self.ticks(2)
        self.kernel("node2", XID_79)
        with self.log(job).open("a") as file:
            file.write(
                "[rank0]: [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE, "
                "NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600001 milliseconds before timing out.\n"
                "srun: error: node2: task 1: Exited with exit code 1\n"
            )
        await self.report(self.job("COMPLETING", job=job, notice=agent_pb2.NOTICE_HOOK, ended_at=stamp(now())))
        await self.report(self.job("FAILED", job=job))


@functools.cache
def _made_database() -> Path:
    """A database that no service has used yet, made once: initdb and fifteen migrations cost a second of processor."""
    folder = Path(tempfile.mkdtemp(prefix="adv-made-"))
    folder.chmod(0o755)
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    with EmbeddedPostgres(folder) as server:
        with psycopg.connect(server.url.replace("+psycopg", ""), autocommit=True) as connection:
            connection.execute("ALTER SYSTEM SET fsync = off")  # no test takes the machine's power away
        with ThreadPoolExecutor(1) as thread:  # a loop may run in this one
            thread.submit(asyncio.run, migrate(server.url)).result()
    return folder / "postgres" / "data"


def _give_database(config: Config) -> None:
    home = config.service.data_dir / "postgres"
    if config.store.dsn_file is not None or home.exists():
        return
    home.mkdir(parents=True)
    for folder in (home.parent, home):
        folder.chmod(0o755)
    subprocess.run(["cp", "-a", str(_made_database()), str(home / "data")], check=True)


@asynccontextmanager
async def world_of(
    folder: Path,
    config: Config | None = None,
    make_sources: Callable[[Config, Clock], Sequence[LogSource]] = own_sources,
    submitted: datetime | None = None,
) -> AsyncIterator[World]:
    """A service that has an agent. `submitted`: when its jobs were, for a world that goes on from an earlier one."""
    config = config or configuration(folder)
    _give_database(config)
    async with (
        Service(config, make_sources=make_sources) as running,
        grpc.aio.insecure_channel(f"unix:{running.socket}") as channel,
    ):
        submitted = submitted or now().replace(microsecond=0) - timedelta(seconds=30)
        world = World(folder=folder, running=running, channel=channel, submitted=submitted)
        await world.register()
        yield world


@asynccontextmanager
async def restarted_world(folder: Path, rules: str = "", submitted: datetime | None = None) -> AsyncIterator[World]:
    """Its first attempt failed on a bad node, and our restart was accepted: the next one waits, with our mark."""
    policy = folder / "policy.toml"
    policy.write_text(f"{rules}\n[settle_seconds]\ngpu_hardware = 0.2\nunknown = 0.2\n")
    config = configuration(folder, f'policy_file = "{policy}"')
    async with world_of(folder, config, submitted=submitted) as world:
        setting = operator_pb2.ModeSetting(mode=common_pb2.MODE_AUTONOMOUS, why="test")
        await world.operator.SetMode(operator_pb2.SetModeRequest(setting=setting))
        await world.fail_on_node2()
        restart = common_pb2.ACTION_RESTART
        (advice,) = await world.advice_where(lambda found: [item.action for item in found] == [restart])
        await world.reconcile(advice, common_pb2.RECONCILIATION_STATUS_APPLIED)
        await world.report(next_one(world, "PENDING"))
        await world.ticks(2)
        yield world


def next_one(world: World, state: str, **fields: Any) -> agent_pb2.JobObservation:
    """The attempt that our restart has put into the queue."""
    return world.job(state, attempt=1, marked_generation=1, marked_attempt=0, **fields)
