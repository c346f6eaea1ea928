"""`advisor serve` as a process, and an agent that is a script and tells all again when the store is another one."""

import asyncio
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import grpc

from advisor.app import Running
from advisor.v1 import agent_pb2, common_pb2
from tests.integration.service import programs
from tests.integration.service.world import CLUSTER, World, configuration, now


@contextmanager
def serving(folder: Path, dsn: str, more: str = "") -> "Iterator[subprocess.Popen[bytes]]":
    """The service over the database of `dsn`, once it is ready. Its output is `folder/log`."""
    write_dsn(folder, dsn)
    configuration(folder, f'{more}\n[store]\ndsn_file = "{folder}/dsn"')
    with programs.serving(folder, gently=True) as started:
        yield started


def write_dsn(folder: Path, dsn: str) -> None:
    path = folder / "dsn"
    aside = path.with_name("dsn.new")
    aside.write_text(dsn.replace("+psycopg", ""))
    aside.chmod(0o600)
    aside.replace(path)


@dataclass(slots=True, kw_only=True)
class ScriptedAgent:
    """Reports jobs until the service takes them, and keeps all that the advice stream ever said."""

    world: World
    jobs: dict[str, agent_pb2.JobObservation] = field(default_factory=dict)
    heard: list[tuple[str, common_pb2.Advice]] = field(default_factory=list)  # with the message's incarnation
    open: tuple[common_pb2.Advice, ...] = ()
    incarnations: list[str] = field(default_factory=list)
    failures: int = 0
    tick_age: float = 0.0

    async def say(self, job: agent_pb2.JobObservation) -> float:
        """Report it until it is taken. Returns how long that took."""
        self.jobs[job.attempt.job_id] = job
        return await self.again(job)

    async def again(self, *jobs: agent_pb2.JobObservation, complete: bool = False) -> float:
        began = time.monotonic()
        while True:
            try:
                async with asyncio.timeout(5):  # `wait_for` loses a cancel that comes with the answer (Python 3.11)
                    await self.world.report(*jobs, complete=complete)
            except (grpc.aio.AioRpcError, TimeoutError):
                self.failures += 1
                await asyncio.sleep(0.1)
            else:
                return time.monotonic() - began

    async def watch(self) -> None:
        """Until cancelled."""
        while True:
            stream = self.world.agent.WatchAdvice(agent_pb2.WatchAdviceRequest(cluster=CLUSTER, session="any"))
            try:
                async for message in stream:
                    self.open, self.tick_age = tuple(message.open), message.tick_age.ToNanoseconds() / 1e9
                    self.heard += [(message.incarnation, advice) for advice in message.open]
                    if self.incarnations[-1:] != [message.incarnation]:
                        self.incarnations.append(message.incarnation)
                        if len(self.incarnations) > 1:
                            await self.again(*self.jobs.values(), complete=True)
            except grpc.aio.AioRpcError:
                await asyncio.sleep(0.1)
            finally:
                stream.cancel()

    async def until(self, condition: Callable[[], bool], seconds: float = 60.0) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, (
                self.incarnations,
                self.open,
                (self.world.folder / "log").read_text()[-4000:],
            )
            await asyncio.sleep(0.05)


@asynccontextmanager
async def scripted_agent(folder: Path, **options: Any) -> AsyncIterator[ScriptedAgent]:
    """Connected to the service in `folder`, and listening."""
    async with grpc.aio.insecure_channel(f"unix:{folder}/run/advisor.sock") as channel:
        submitted = options.get("submitted") or now().replace(microsecond=0) - timedelta(seconds=30)
        world = World(folder=folder, running=cast(Running, None), channel=channel, submitted=submitted)
        await world.register()
        agent = ScriptedAgent(world=world)
        watching = asyncio.create_task(agent.watch())
        try:
            yield agent
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
