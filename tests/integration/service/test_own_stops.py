"""A job that we stop ourselves, on an operator's word: never anybody else's cancel, whoever sees it first."""

import json
from datetime import timedelta
from pathlib import Path

import pytest

from advisor.core import codec
from advisor.replay import Packed, reproduce
from advisor.service.wire import stamp
from advisor.v1 import agent_pb2, audit_pb2, common_pb2, operator_pb2
from tests.integration.service.world import CLUSTER, World, next_one, now, restarted_world

pytestmark = pytest.mark.postgres

RESTART, STOP, NONE = common_pb2.ACTION_RESTART, common_pb2.ACTION_STOP, common_pb2.ACTION_NONE
APPLIED = common_pb2.RECONCILIATION_STATUS_APPLIED
SATISFIED = common_pb2.RECONCILIATION_STATUS_ALREADY_SATISFIED
UNREPORTED = common_pb2.RECONCILIATION_REASON_STOP_UNREPORTED
SHORT = "advice_time_to_live_seconds = 3"
OF_17 = operator_pb2.JobTarget(cluster=CLUSTER, job_id="17")


async def stop_ordered(world: World) -> common_pb2.Advice:
    await world.operator.Override(operator_pb2.OverrideRequest(target=OF_17, action=STOP, why="enough", confirm=True))
    found = await world.advice_where(lambda open_: any(item.action == STOP for item in open_))
    return next(item for item in found if item.action == STOP)


async def told_of(world: World) -> dict[int, list[audit_pb2.Decision]]:
    """By attempt, oldest first; each of them is made again from what was stored with it."""
    found: dict[int, list[audit_pb2.Decision]] = {}
    for item in await world.decisions(job_id="17"):
        stored = await world.audit.GetDecisionInputs(
            audit_pb2.GetDecisionInputsRequest(decision_id=item.advice.advice_id)
        )
        packed = Packed(inputs=stored.inputs, rules=stored.rules, policy=stored.policy)
        assert codec.encode(reproduce(packed)) == stored.decision
        found.setdefault(item.advice.attempt.attempt, []).insert(0, item)
    return found


async def test_a_waiting_restart_that_an_operator_has_stopped_is_nobodys_cancel(folder: Path) -> None:
    """Its end is visible before the agent has said that it did it: the order stands, and keeps its outcome."""
    async with restarted_world(folder) as world:
        advice = await stop_ordered(world)
        assert advice.attempt.attempt == 0
        await world.report(next_one(world, "COMPLETING", notice=agent_pb2.NOTICE_HOOK, ended_at=stamp(now())))
        await world.ticks(2)
        await world.report(next_one(world, "CANCELLED"))
        await world.ticks(3)
        await world.reconcile(advice, APPLIED)
        await world.ticks(4)
        found = await told_of(world)
        assert [(item.advice.action, item.advice.reason) for item in found[0]][-1:] == [(STOP, "operator")]
        assert found[0][-1].status == APPLIED
        assert [(item.advice.action, item.advice.reason) for item in found[1]] == [(NONE, "stopped")]
        assert f"stopped by order of {advice_by(found[0][-1])} (enough)" in found[1][0].advice.explanation


async def test_a_running_restart_that_an_operator_has_stopped_is_nobodys_cancel(folder: Path) -> None:
    """Neither is its own decision replaced, nor is the restart before it decided again."""
    async with restarted_world(folder) as world:
        world.log().write_text("")
        await world.report(next_one(world, "RUNNING"))
        await world.ticks(2)
        before = await told_of(world)
        advice = await stop_ordered(world)
        assert (advice.attempt.attempt, advice.may_end_live_attempt) == (1, True)
        await world.report(next_one(world, "COMPLETING", notice=agent_pb2.NOTICE_HOOK, ended_at=stamp(now())))
        await world.ticks(2)
        await world.reconcile(advice, APPLIED)
        await world.ticks(2)
        await world.report(next_one(world, "CANCELLED"))
        await world.ticks(4)
        found = await told_of(world)
        assert [item.advice.advice_id for item in found[0]] == [item.advice.advice_id for item in before[0]]
        assert (found[1][-1].advice.action, found[1][-1].advice.reason) == (STOP, "operator")
        assert (found[1][-1].advice.advice_id, found[1][-1].status) == (advice.advice_id, APPLIED)


async def test_a_cancel_that_came_before_our_stop_is_the_users(folder: Path) -> None:
    """The agent says that it had nothing to do: then somebody else ended it, and so the restart before it is judged."""
    async with restarted_world(folder) as world:
        world.log().write_text("")
        await world.report(next_one(world, "RUNNING"))
        await world.ticks(2)
        advice = await stop_ordered(world)
        await world.report(next_one(world, "CANCELLED"))
        await world.ticks(3)
        assert (await told_of(world))[1][-1].advice.advice_id == advice.advice_id
        await world.reconcile(advice, SATISFIED)
        await world.ticks(4)
        found = await told_of(world)
        assert found[0][-1].advice.reason == "user_cancelled"
        stood = next(at for at, item in enumerate(found[1]) if item.advice.advice_id == advice.advice_id)
        assert found[1][stood].status == SATISFIED
        # A tick that had begun when the agent said so comes to the same of this one, too.
        assert {item.advice.reason for item in found[1][stood + 1 :]} <= {"user_cancelled"}


@pytest.mark.parametrize("how", ["unreported", "expired"])
async def test_a_stop_that_nobody_reported_is_neither_ours_nor_the_users(folder: Path, how: str) -> None:
    """The agent died over it: one that is back cannot tell, or none comes. Said so; the restart before it stands."""
    async with restarted_world(folder, SHORT if how == "expired" else "") as world:
        world.log().write_text("")
        await world.report(next_one(world, "RUNNING"))
        await world.ticks(2)
        before = await told_of(world)
        advice = await stop_ordered(world)
        await world.report(next_one(world, "CANCELLED"))
        await world.ticks(3)
        assert (await told_of(world))[1][-1].advice.advice_id == advice.advice_id
        if how == "unreported":
            await world.reconcile(advice, SATISFIED, reason=UNREPORTED)
        else:
            await world.advice_where(lambda found: not any(item.action == STOP for item in found))
        await world.ticks(4)
        found = await told_of(world)
        assert [item.advice.advice_id for item in found[0]] == [item.advice.advice_id for item in before[0]]
        last = found[1][-1]
        assert (last.advice.action, last.advice.reason, last.advice.category) == (NONE, "stop_unreported", "none")
        assert last.advice.explanation == (
            "Nothing to do: our stop was out, and not reported back: ended by it, or by somebody else; "
            f"ordered by {advice_by(last)} (enough)."
        )


async def test_a_waiting_restart_whose_stop_nobody_reported_is_not_undone_by_people(folder: Path) -> None:
    """Both attempts say that it is not known."""
    async with restarted_world(folder) as world:
        advice = await stop_ordered(world)
        await world.report(next_one(world, "CANCELLED"))
        await world.ticks(2)
        await world.reconcile(advice, SATISFIED, reason=UNREPORTED)
        await world.ticks(4)
        found = await told_of(world)
        assert [(item.advice.action, item.advice.reason) for item in (found[0][-1], found[1][-1])] == [
            (NONE, "stop_unreported"),
            (NONE, "stop_unreported"),
        ]


async def test_a_cancel_from_long_before_a_stop_is_the_users(folder: Path) -> None:
    """It was seen late, and no agent says a word: our stop cannot have been it."""
    async with restarted_world(folder, SHORT, submitted=now() - timedelta(minutes=10)) as world:
        world.log().write_text("")
        await world.report(next_one(world, "RUNNING"))
        await world.ticks(2)
        await stop_ordered(world)
        await world.report(next_one(world, "CANCELLED", ended_at=stamp(now() - timedelta(minutes=5))))
        await world.advice_where(lambda found: not any(item.action == STOP for item in found))
        await world.ticks(4)
        assert (await told_of(world))[1][-1].advice.reason == "user_cancelled"


def advice_by(decision: audit_pb2.Decision) -> str:
    return str(json.loads(decision.analysis_json)["advice"]["ordered_by"])
