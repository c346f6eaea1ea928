"""Where many jobs take steps, what is not urgent of it waits for its turn: no failure does, and nothing is lost."""

import asyncio
from collections import Counter
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import pytest

from advisor import pipeline
from advisor.core.decide import decide
from advisor.core.model import Decision, Snapshot
from advisor.core.policy import Policy
from advisor.core.rules import RuleSet
from advisor.oldest_first import AT_ONCE
from tests.integration.service.world import WAIT_SECONDS, World, database, iteration, world_of

pytestmark = pytest.mark.postgres

JOBS = tuple(str(number) for number in range(100, 100 + 3 * AT_ONCE))


def asked(folder: Path, query: str) -> list[tuple[object, ...]]:
    with database(folder) as connection:
        return connection.execute(query).fetchall()  # type: ignore[call-overload, no-any-return]  # a literal


def all_saved(folder: Path, step: int) -> Callable[[], bool]:
    query = f"SELECT count(*) FROM attempts WHERE last_step = {step}"
    return lambda: asked(folder, query) == [(len(JOBS),)]


async def until(world: World, reached: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_SECONDS):
        while not reached():
            await world.ticks(1)


def print_step(world: World, step: int) -> None:
    for job in JOBS:
        with world.log(job).open("a") as file:
            file.write(iteration(step))


async def running(world: World) -> None:
    for step in range(1, 4):
        print_step(world, step)
    await world.report(*(world.job("RUNNING", job=job) for job in JOBS))
    await until(world, all_saved(world.folder, 3))
    await world.ticks(3)


async def test_a_tick_saves_and_decides_some_of_many_and_all_in_their_turn(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decided: list[tuple[datetime, str, int]] = []

    def noted(snapshot: Snapshot, rules: RuleSet, policy: Policy, now: datetime) -> Decision:
        decided.append((now, snapshot.job.job_id, len(snapshot.signals)))
        return decide(snapshot, rules, policy, now)

    async with world_of(folder) as world:
        await running(world)
        monkeypatch.setattr(pipeline, "decide", noted)
        print_step(world, 4)
        with world.log(JOBS[-1]).open("a") as file:
            file.write("[rank0]: RuntimeError: CUDA error: an illegal memory access was encountered\n")
        await until(world, all_saved(folder, 4))
        saved = asked(folder, "SELECT count(*) FROM detector_states GROUP BY xmin")
        assert len(saved) >= 3
        # The one with an error is saved at once, beside those whose turn it is.
        assert max(int(str(count)) for (count,) in saved) <= AT_ONCE + 1
        await until(world, lambda: {job for _, job, _ in decided} == set(JOBS))
        by_tick = Counter(now for now, _, _ in decided)
        assert len(by_tick) >= 3
        assert max(by_tick.values()) <= AT_ONCE + 1
        urgent = min(now for now, job, signals in decided if job == JOBS[-1] and signals)
        read_whole = min(now for now, job, _ in decided if job != JOBS[-1])
        assert sum(read_whole <= now < urgent for now in by_tick) <= 1  # the tick that read it may have begun before


async def test_what_waits_to_be_saved_is_read_again_by_the_next_service(folder: Path) -> None:
    async with world_of(folder) as world:
        submitted = world.submitted
        await running(world)
        print_step(world, 4)
        await world.ticks(2)
        print_step(world, 5)
        await world.ticks(1)
        assert not all_saved(folder, 5)()
    async with world_of(folder, submitted=submitted) as world:
        await until(world, all_saved(folder, 5))
        first = asked(folder, "SELECT DISTINCT first_step, in_job_restarts FROM attempts")
        assert first == [(1, 0)]
        assert not await world.decisions()
