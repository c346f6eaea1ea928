"""A flood of reports while the database does not answer: memory stays bounded, and afterwards all is as before."""

import asyncio
from contextlib import ExitStack
from pathlib import Path

import grpc
import pytest

from advisor.v1 import agent_pb2
from tests.integration.postgres_trouble.processes import scripted_agent, serving
from tests.integration.postgres_trouble.servers import Gate, Server

pytestmark = [pytest.mark.postgres, pytest.mark.long]

SENDERS = 64
JOBS_PER_REPORT = 2_000
SECONDS = 20.0
GROWTH_MB_MAX = 250.0


def _memory_mb(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise AssertionError("no VmRSS")


def _threads(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/task").iterdir()))


async def test_a_flood_before_a_database_that_does_not_answer(place: Path, server: Server) -> None:
    """Sixty-four senders of megabytes for twenty seconds: each is told to come again, and nothing piles up."""
    async with Gate(server.port) as gate:
        with ExitStack() as stack:
            # In threads: the gate is a task of this loop.
            process = await asyncio.to_thread(stack.enter_context, serving(place, server.url(port=gate.port)))
            async with scripted_agent(place) as agent:
                await agent.say(agent.world.job("RUNNING"))
                await agent.until(lambda: bool(agent.incarnations))
                before, threads = _memory_mb(process.pid), _threads(process.pid)
                gate.hold()
                world = agent.world
                jobs = [world.job("RUNNING", job=f"{1000 + at}", name="x" * 400) for at in range(JOBS_PER_REPORT)]
                told: dict[object, int] = {}
                peak = before
                until = asyncio.get_running_loop().time() + SECONDS

                async def send() -> None:
                    while asyncio.get_running_loop().time() < until:
                        code: object = None
                        try:
                            await world.agent.ReportObservations(
                                agent_pb2.ReportObservationsRequest(cluster="test", session=world.session, jobs=jobs),
                                timeout=5,
                            )
                        except grpc.aio.AioRpcError as error:
                            code = error.code()
                        told[code] = told.get(code, 0) + 1

                senders = [asyncio.create_task(send()) for _ in range(SENDERS)]
                while not all(sender.done() for sender in senders):
                    peak = max(peak, _memory_mb(process.pid))
                    await asyncio.sleep(0.2)
                await asyncio.gather(*senders)
                age = agent.tick_age
                gate.release()
                seconds = await agent.say(world.job("FAILED"))
                await agent.until(lambda: [advice.attempt.job_id for advice in agent.open] == ["17"])
                print(
                    f"{before:.0f} MB before, {peak:.0f} MB at most; told: {told}; tick age {age:.1f} s; "
                    f"reports taken {seconds:.1f} s after the database answered; "
                    f"threads {threads} before, {_threads(process.pid)} after"
                )
                assert None not in told
                assert told[grpc.StatusCode.RESOURCE_EXHAUSTED] > SENDERS
                assert peak - before < GROWTH_MB_MAX
                assert age > SECONDS / 2
                assert _threads(process.pid) <= threads + 8
            await asyncio.to_thread(stack.close)
