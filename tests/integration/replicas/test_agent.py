"""A whole agent on a scripted Slurm, and replicas that die and freeze under it: no advice is lost or acted on twice."""

import asyncio
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from slurm_plugin.config import AgentConfig, SlurmSection
from tests.integration.replicas.fleet import Fleet
from tests.integration.service.world import now
from tests.unit.slurm_plugin.fake_slurm import FakeJob, FakeSlurm
from tests.unit.slurm_plugin.test_agent import Bench, FakeAdvisor

pytestmark = [pytest.mark.postgres, pytest.mark.long]


@dataclass
class FleetBench(Bench):
    """The agent goes to these sockets; its Slurm's time is now."""

    advisor: FakeAdvisor = field(default_factory=FakeAdvisor)
    sockets: tuple[Path, ...] = ()

    @property
    def config(self) -> AgentConfig:
        return AgentConfig(
            cluster="c",
            socket=str(self.sockets[0]),
            others=tuple(map(str, self.sockets[1:])),
            tick_file=str(self.folder / "tick.json"),
            hook_socket=str(self.folder / "hook.sock"),
            mode="act",
            poll_seconds=0.2,
            slurm=SlurmSection(),
        )


def running(slurm: FakeSlurm, job_id: str) -> FakeJob:
    at = int(now().timestamp())
    return slurm.add(FakeJob(job_id=job_id, state="RUNNING", submit=at - 60, eligible=at - 60, start=at - 50, end=None))


def fail(slurm: FakeSlurm, *jobs: FakeJob) -> None:
    slurm.now = now().timestamp()
    for job in jobs:
        job.state, job.end, job.reason = "FAILED", int(slurm.now), "NonZeroExitCode"


async def test_an_agent_goes_on_with_another_replica(fleet: Fleet, folder: Path) -> None:
    """One replica is killed as the first requeue is made, another freezes before the second: one requeue per job."""
    await fleet.start("a", "b")
    slurm = FakeSlurm(now=now().timestamp())
    first, second, third = (running(slurm, job_id) for job_id in ("17", "18", "19"))
    requeued: list[str] = []

    def seen(argv: object) -> None:
        words = list(argv) if isinstance(argv, list | tuple) else []
        if "requeue" in words:
            requeued.append(words[-1])
            if fleet.processes["a"].process.poll() is None and len(requeued) == 1:
                fleet.processes["a"].kill()

    slurm.before = seen
    bench = FleetBench(folder, slurm=slurm, sockets=tuple(fleet.processes[name].socket for name in ("a", "b")))
    bench.start()
    try:
        await fleet.until(lambda: _watched(fleet, 3))
        fail(slurm, first)
        await fleet.until(lambda: _true(lambda: first.restarts == 1), lambda: f"{requeued} {first}")
        await fleet.until(lambda: _told(fleet, "17"))
        await fleet.start("a")
        fail(slurm, second)
        await fleet.until(lambda: _true(lambda: second.restarts == 1), lambda: f"{requeued} {second}")
        fleet.processes["b"].signal(signal.SIGSTOP)
        fail(slurm, third)
        await fleet.until(lambda: _true(lambda: third.restarts == 1), lambda: f"{requeued} {third}")
        await fleet.until(lambda: _told(fleet, "19"))
        fleet.processes["b"].signal(signal.SIGCONT)
        await asyncio.sleep(2)
    finally:
        fleet.processes["b"].signal(signal.SIGCONT)
        await bench.stop()
    assert sorted(requeued) == ["17", "18", "19"], "each job was requeued once"
    assert [job.restarts for job in (first, second, third)] == [1, 1, 1]
    found = await fleet.check_decisions()
    restarts = [row[:3] for row in found if row[3] == "restart"]
    assert {(job, number) for job, number, _ in restarts} == {("17", 0), ("18", 0), ("19", 0)}


async def _true(condition: Callable[[], object]) -> bool:
    return bool(condition())


async def _watched(fleet: Fleet, count: int) -> bool:
    return sum((await fleet.held()).values()) == count


async def _told(fleet: Fleet, job: str) -> bool:
    """The agent has said that Slurm took it, to whichever replica."""
    found = await fleet.rows(
        "SELECT count(*) FROM advice a JOIN decisions d ON d.id = a.decision_id WHERE d.job_id = :job AND a.applied",
        job=job,
    )
    return bool(found[0][0])
