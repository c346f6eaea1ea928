"""A job that hangs at the same step in every attempt, ended and requeued by us each time, as Slurm shows it."""

from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest

from advisor.service.wire import stamp
from advisor.v1 import common_pb2
from tests.integration.service.world import World, configuration, iteration, now, world_of

pytestmark = pytest.mark.postgres

POLICY = """
hang_seconds = 3.0
hang_floor_seconds = 1.0
hang_learning_seconds = 0.0
trusted_fatal_grace_seconds = 1.0
restarts_unexplained = 3
suspects_after = 0
[settle_seconds]
unknown = 0.2
"""
BANNER = "slurmstepd: error: *** JOB 17 ON node1 CANCELLED AT {at} DUE TO JOB REQUEUE ***\n"


@pytest.mark.parametrize("banner", [True, False], ids=["told in its log", "silent"])
async def test_a_job_that_hangs_each_time_is_stopped_when_its_budget_is_spent(folder: Path, banner: bool) -> None:
    """What Slurm prints of our requeue changes no cause and no count, though it is read before the requeue is told."""
    (folder / "policy.toml").write_text(POLICY)
    text = f'policy_file = "{folder}/policy.toml"\ndefault_mode = "autonomous"'
    async with world_of(folder, configuration(folder, text)) as world:
        restarts = 0
        for attempt in range(6):
            await hangs(world, attempt)
            (advice,) = acting(attempt, await world.advice_where(partial(acting, attempt)))
            if advice.action == common_pb2.ACTION_STOP:
                break
            restarts += 1
            await requeued(world, attempt, banner=banner)
        assert (restarts, advice.reason) == (3, "budget_exhausted")
        ours = [item.advice for item in await world.decisions() if item.advice.action == common_pb2.ACTION_RESTART]
        assert {(item.category, item.reason) for item in ours} == {("unknown", "hang")}
        assert {item.attempt.attempt for item in ours} == {0, 1, 2}


def acting(attempt: int, seen: Sequence[common_pb2.Advice]) -> list[common_pb2.Advice]:
    """What is to be done about this attempt."""
    actions = {common_pb2.ACTION_RESTART, common_pb2.ACTION_STOP}
    return [item for item in seen if item.action in actions and item.attempt.attempt == attempt]


async def hangs(world: World, attempt: int) -> None:
    """It runs, takes twenty steps, and no further one."""
    started = now()
    with world.log().open("a") as file:
        file.write("".join(map(iteration, range(1, 21))))
    await world.report(world.job("RUNNING", attempt=attempt, started=started))
    await world.ticks(2)


async def requeued(world: World, attempt: int, *, banner: bool) -> None:
    """The agent requeues it; Slurm's line is read first, then the job is seen to end, then the agent reports."""
    if banner:
        with world.log().open("a") as file:
            file.write(BANNER.format(at=f"{now():%Y-%m-%dT%H:%M:%S}"))
        await world.ticks(3)
    ending = world.job("COMPLETING", attempt=attempt, started=now() - timedelta(seconds=1))
    await world.report(ending)
    await world.ticks(3)
    submitted = stamp(world.submitted + timedelta(seconds=10 * (attempt + 1)))
    waiting = world.job("PENDING", attempt=attempt + 1)
    assert waiting.attempt.submitted_at == submitted
    await world.report(waiting)
    (newest,) = acting(attempt, await world.advice_where(partial(acting, attempt)))
    assert newest.action == common_pb2.ACTION_RESTART
    await world.reconcile(newest, common_pb2.RECONCILIATION_STATUS_VERIFIED)
    await world.ticks(3)
