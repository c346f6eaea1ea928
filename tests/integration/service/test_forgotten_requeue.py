"""A slurmctld that was killed has forgotten a requeue that we had seen: its job failed, and nobody runs it again."""

from pathlib import Path
from typing import Any

import pytest

from advisor.service.wire import stamp
from advisor.v1 import agent_pb2, common_pb2, operator_pb2
from tests.integration.service.world import World, next_one, now, restarted_world

pytestmark = pytest.mark.postgres

RESTART = common_pb2.ACTION_RESTART
VERIFIED = common_pb2.RECONCILIATION_STATUS_VERIFIED


def failed_before(world: World, **fields: Any) -> agent_pb2.JobObservation:
    """The attempt that had failed, as a scheduler shows it which has not heard of its requeue."""
    return world.job("FAILED", **fields)


async def verified(world: World) -> common_pb2.Advice:
    """Our restart, seen in the scheduler: nothing of it is open any more."""
    (decision, *_) = await world.decisions(job_id="17")
    await world.reconcile(decision.advice, VERIFIED)
    await world.advice_where(lambda found: not found)
    return decision.advice


async def test_a_requeue_that_was_forgotten_is_advised_again_and_can_be_verified(folder: Path) -> None:
    """Once, with the same exclusions, in a newer generation; and the attempt that comes of it is the next one."""
    async with restarted_world(folder) as world:
        first = await verified(world)
        await world.report(failed_before(world), complete=True)
        (again,) = await world.advice_where(lambda found: len(found) == 1)
        assert again.action == RESTART
        assert (again.attempt.attempt, again.generation) == (0, first.generation + 1)
        assert again.exclude_nodes == first.exclude_nodes == ["node2"]
        await world.ticks(5)
        assert (await world.decisions(job_id="17"))[0].advice.generation == again.generation
        later = stamp(now())
        ref = common_pb2.AttemptRef()
        ref.CopyFrom(next_one(world, "PENDING").attempt)
        ref.submitted_at.CopyFrom(later)
        await world.reconcile(again, VERIFIED)
        successor = world.job("PENDING", attempt=1, marked_generation=2, marked_attempt=0)
        successor.attempt.CopyFrom(ref)
        await world.report(successor, complete=True)
        await world.advice_where(lambda found: not found)
        running = world.job("RUNNING", attempt=1, marked_generation=2, marked_attempt=0, started=now())
        running.attempt.CopyFrom(ref)
        await world.report(running, complete=True)
        await world.ticks(4)
        found = await world.decisions(job_id="17")
        assert {item.advice.attempt.job_key for item in found} == {first.attempt.job_key}
        # The next one may be decided about too: it writes into the same file.
        assert max(item.advice.generation for item in found if item.advice.attempt.attempt == 0) == again.generation


async def test_what_accounting_tells_of_a_past_attempt_undoes_no_requeue(folder: Path) -> None:
    """It is told after a silence, of what the scheduler does not show any more: the next attempt may well wait."""
    async with restarted_world(folder) as world:
        first = await verified(world)
        await world.report(failed_before(world, notice=agent_pb2.NOTICE_ACCOUNTING))
        await world.ticks(4)
        assert (await world.decisions(job_id="17"))[0].advice.advice_id == first.advice_id


async def test_a_listing_from_before_the_requeue_undoes_nothing(folder: Path) -> None:
    """It was under way for longer than what was seen after it."""
    async with restarted_world(folder) as world:
        before = failed_before(world)
        await world.report(next_one(world, "PENDING"), complete=True)
        first = await verified(world)
        before.observed_at.FromSeconds(int(now().timestamp()) - 20)
        await world.report(before, complete=True)
        await world.ticks(4)
        assert (await world.decisions(job_id="17"))[0].advice.advice_id == first.advice_id


async def test_in_monitor_mode_a_forgotten_requeue_is_done_by_nobody(folder: Path) -> None:
    """What is told then is told on paper, once."""
    async with restarted_world(folder) as world:
        first = await verified(world)
        setting = operator_pb2.ModeSetting(mode=common_pb2.MODE_MONITOR, why="test")
        await world.operator.SetMode(operator_pb2.SetModeRequest(setting=setting))
        await world.ticks(2)
        await world.report(failed_before(world), complete=True)
        await world.ticks(5)
        found = await world.decisions(job_id="17")
        later = [item for item in found if item.advice.generation > first.generation]
        assert [item.advice.mode for item in later] in ([], [common_pb2.MODE_MONITOR])


async def test_an_attempt_whose_end_was_forgotten_too_runs_again_until_it_ends(folder: Path) -> None:
    """What was advised for its end is not advised while it runs, and is again, newer, when it has ended once more."""
    async with restarted_world(folder) as world:
        first = await verified(world)
        await world.report(world.job("RUNNING"), complete=True)
        await world.ticks(3)
        (newest, *_) = await world.decisions(job_id="17")
        assert newest.advice.generation == first.generation + 1
        assert (newest.advice.action, newest.advice.reason) == (common_pb2.ACTION_NONE, "awaiting_exit")
        await world.report(failed_before(world), complete=True)
        (again,) = await world.advice_where(lambda found: [item.action for item in found] == [RESTART])
        assert again.attempt.attempt == 0
        assert again.generation == newest.advice.generation + 1
        assert again.exclude_nodes == first.exclude_nodes


async def test_where_it_is_requeued_by_its_scheduler_then_the_exclusions_follow(folder: Path) -> None:
    """Nobody runs the job any more, which its scheduler finds out by itself."""
    async with restarted_world(folder) as world:
        first = await verified(world)
        await world.report(world.job("RUNNING"), complete=True)
        await world.ticks(3)
        successor = world.job("PENDING", attempt=1)
        successor.attempt.submitted_at.CopyFrom(stamp(now()))
        await world.report(successor, complete=True)
        (again,) = await world.advice_where(lambda found: [item.action for item in found] == [RESTART])
        assert again.attempt.attempt == 0
        assert again.generation > first.generation
        assert again.exclude_nodes == first.exclude_nodes


async def test_where_others_requeue_it_first_the_exclusions_follow_too(folder: Path) -> None:
    """Before anything could be said again: what was undone is no reason to leave the attempt of others as it is."""
    async with restarted_world(folder) as world:
        first = await verified(world)
        successor = world.job("PENDING", attempt=1)
        successor.attempt.submitted_at.CopyFrom(stamp(now()))
        await world.report(failed_before(world), successor, complete=True)
        (again,) = await world.advice_where(lambda found: [item.action for item in found] == [RESTART])
        assert (again.attempt.attempt, again.generation) == (0, first.generation + 1)
        assert again.exclude_nodes == first.exclude_nodes
