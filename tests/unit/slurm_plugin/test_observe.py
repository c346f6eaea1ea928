"""Which attempt a row is about, which nodes it had, and that a late listing does not overwrite a later look."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace

from advisor.v1 import common_pb2
from slurm_plugin.config import AgentConfig
from slurm_plugin.looks import Looks
from slurm_plugin.observe import Attempt, Memory
from slurm_plugin.squeue import JobRow, Slurm
from tests.unit.slurm_plugin.fake_slurm import FakeJob, FakeSlurm

RUNNING = JobRow(
    job_id="17",
    shown_id="17",
    state="RUNNING",
    restarts=0,
    submit=1000,
    start=1001,
    user="alice",
    user_id=1,
    nodes=("node1", "node2"),
)
REQUEUEING = replace(RUNNING, state="COMPLETING", restarts=1, nodes=("node2",))
FIRST, SECOND = Attempt(number=0, submit=1000), Attempt(number=1, submit=2000)


def test_a_job_being_requeued_still_is_its_old_attempt() -> None:
    """Also for an agent that has just started and remembers nothing."""
    assert Memory().learn(REQUEUEING) == FIRST
    memory = Memory()
    memory.learn(RUNNING)
    assert memory.learn(REQUEUEING) == FIRST
    assert memory.learn(replace(RUNNING, state="PENDING", restarts=1, submit=2000)) == SECOND


def test_a_job_cancelled_while_being_requeued_never_was_a_second_attempt() -> None:
    """The count went up, the submit time did not."""
    memory = Memory()
    memory.learn(RUNNING)
    assert memory.learn(replace(REQUEUEING, state="CANCELLED", end=1500)) == FIRST


def test_after_a_dead_node_the_next_attempt_keeps_the_submit_time() -> None:
    """Slurm does not rewrite it then; a running attempt counts by its number."""
    memory = Memory()
    memory.learn(RUNNING)
    memory.learn(REQUEUEING)
    second = replace(RUNNING, restarts=1, nodes=("node3", "node4"))
    assert memory.learn(second) == Attempt(number=1, submit=1000)
    ended = replace(second, state="FAILED", end=1900)
    assert memory.learn(ended) == Attempt(number=1, submit=1000)
    assert memory.allocation(ended, Attempt(number=1, submit=1000)) == ("node3", "node4")


def test_the_allocation_of_a_completing_attempt_is_the_whole_one_or_not_known() -> None:
    """Slurm lists only the nodes that have not been returned yet."""
    completing = replace(RUNNING, state="COMPLETING", end=1500, nodes=("node2",))
    assert Memory().allocation(completing, FIRST) is None
    memory = Memory()
    memory.learn(RUNNING)
    memory.learn(completing)
    assert memory.allocation(completing, FIRST) == ("node1", "node2")
    assert memory.allocation(replace(RUNNING, state="FAILED", end=1500), FIRST) == ("node1", "node2")
    assert memory.allocation(replace(RUNNING, state="PENDING", nodes=()), FIRST) == ()


def test_memory_is_bounded_by_what_slurm_holds() -> None:
    """What Slurm has forgotten is forgotten here."""
    memory = Memory()
    memory.learn(RUNNING)
    memory.forget([replace(RUNNING, job_id="18")])
    assert (memory.attempts, memory.nodes) == ({}, {})


@dataclass
class Steps:
    """A clock that goes on by one at every reading."""

    now: float = 0.0

    def wall(self) -> float:
        self.now += 1.0
        return self.now

    monotonic = boot = wall


async def test_a_listing_that_began_earlier_does_not_overwrite_a_later_look() -> None:
    """The full listing is slow; a look at one job that began meanwhile knows better."""
    world = FakeSlurm()
    job = world.add(FakeJob(state="COMPLETING", end=1100))
    config = AgentConfig(cluster="c", socket="/s", tick_file="/t", hook_socket="/h")
    looks = Looks(Slurm(run=world), config, Steps())
    await looks.all()
    inner: list[JobRow | None] = []

    def during(argv: Sequence[str]) -> None:
        if "-j" not in argv and "%A" in argv[-1]:  # the listing has its rows already
            world.before = lambda argv: None
            job.state = "FAILED"
            inner.append(asyncio.run(looks.one("17")))

    world.before = during
    await looks.all()
    assert [row.state if row else None for row in inner] == ["FAILED"]
    assert looks.rows["17"].state == "FAILED"
    seen = looks.observation(looks.rows["17"])
    assert seen.state == common_pb2.ATTEMPT_STATE_FAILED
