"""Operators' orders through the service: what an agent is told of them, what comes of them, and what is answered."""

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from advisor.core import codec
from advisor.replay import Packed, reproduce
from advisor.service.wire import stamp
from advisor.v1 import agent_pb2, audit_pb2, common_pb2, operator_pb2
from tests.integration.service.programs import advisor
from tests.integration.service.world import CLUSTER, World, configuration, database, now, world_of

pytestmark = pytest.mark.postgres

RESTART, STOP, NONE = common_pb2.ACTION_RESTART, common_pb2.ACTION_STOP, common_pb2.ACTION_NONE
OF_17 = operator_pb2.JobTarget(cluster=CLUSTER, job_id="17")
IN_FORCE, UNCONFIRMED = operator_pb2.ORDER_EFFECT_IN_FORCE, operator_pb2.ORDER_EFFECT_UNCONFIRMED
APPLIED = common_pb2.RECONCILIATION_STATUS_APPLIED
SATISFIED = common_pb2.RECONCILIATION_STATUS_ALREADY_SATISFIED


@asynccontextmanager
async def autonomous_world(folder: Path, more: str = "") -> AsyncIterator[World]:
    policy = folder / "policy.toml"
    policy.write_text(f"{more}[settle_seconds]\ngpu_hardware = 0.2\nunknown = 0.2\n")
    config = configuration(folder, f'policy_file = "{policy}"')
    async with world_of(folder, config) as world:
        setting = operator_pb2.ModeSetting(mode=common_pb2.MODE_AUTONOMOUS, why="test")
        await world.operator.SetMode(operator_pb2.SetModeRequest(setting=setting))
        yield world


async def restart_advised(world: World) -> common_pb2.Advice:
    await world.fail_on_node2()
    (advice,) = await world.advice_where(lambda found: [item.action for item in found] == [RESTART])
    return advice


@asynccontextmanager
async def an_agent(world: World, holding: common_pb2.Advice, *, accepted: bool) -> AsyncIterator[None]:
    """Says of the next generation what it does about it, after it has finished what it was doing about `holding`."""

    async def answer() -> None:
        found = await world.advice_where(lambda open_: any(item.generation > holding.generation for item in open_))
        if accepted:
            await world.reconcile(holding, APPLIED)
        await world.reconcile(found[0], SATISFIED)

    task = asyncio.create_task(answer())
    yield
    await task


async def decision(world: World, answer: operator_pb2.OrderAnswer) -> audit_pb2.Decision:
    return await world.audit.GetDecision(audit_pb2.GetDecisionRequest(decision_id=answer.decision_id))


async def refused(call: Any) -> str:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    return str(caught.value.details())


async def test_a_veto_before_anything_happens_holds_until_it_is_lifted(folder: Path) -> None:
    """Said of a live attempt: its failure is recorded and nothing is advised; lifted, the restart is."""
    async with autonomous_world(folder) as world:
        await world.report(world.job("RUNNING"))
        vetoed = await world.operator.Veto(operator_pb2.VetoRequest(target=OF_17, why="debugging it"))
        assert (vetoed.effect, vetoed.order.kind, vetoed.decision_id != "") == (IN_FORCE, "veto", True)
        await world.fail_on_node2()
        await world.ticks(4)
        newest = (await world.decisions(job_id="17"))[0]
        assert (newest.advice.action, newest.advice.reason) == (NONE, "vetoed")
        assert "vetoed by" in newest.advice.explanation
        again = await world.operator.Veto(operator_pb2.VetoRequest(target=OF_17, why="debugging it"))
        assert again.effect == operator_pb2.ORDER_EFFECT_UNCHANGED
        order_id = vetoed.order.order_id
        lifted = await world.operator.LiftOrder(operator_pb2.LiftOrderRequest(order_id=order_id, why="done"))
        assert lifted.order.lifted_why == "done"
        (advice,) = await world.advice_where(lambda found: [item.action for item in found] == [RESTART])
        await replays(world, advice.advice_id)
        await replays(world, newest.advice.advice_id)


async def replays(world: World, decision_id: str) -> None:
    stored = await world.audit.GetDecisionInputs(audit_pb2.GetDecisionInputsRequest(decision_id=decision_id))
    packed = Packed(inputs=stored.inputs, rules=stored.rules, policy=stored.policy)
    assert codec.encode(reproduce(packed)) == stored.decision


@pytest.mark.parametrize("accepted", [False, True])
async def test_a_withdrawal_while_the_agent_holds_the_advice_is_told_exactly(folder: Path, accepted: bool) -> None:
    """Either the agent had not acted, and never will, or the answer says that Slurm had accepted it."""
    async with autonomous_world(folder) as world:
        held = await restart_advised(world)
        async with an_agent(world, held, accepted=accepted):
            target = operator_pb2.JobTarget(decision_id=held.advice_id[:13])
            answer = await world.operator.Withdraw(operator_pb2.WithdrawRequest(target=target, why="wrong node"))
        assert answer.effect == (operator_pb2.ORDER_EFFECT_OVERTAKEN if accepted else IN_FORCE), answer
        assert ("the scheduler accepted the restart" in answer.says) is accepted
        after = await decision(world, answer)
        assert (after.advice.action, after.advice.reason) == (NONE, "withdrawn")
        if not accepted:
            stated = await world.audit.GetDecision(audit_pb2.GetDecisionRequest(decision_id=held.advice_id))
            assert stated.reconciliations[-1].reason == common_pb2.RECONCILIATION_REASON_OPERATOR
            again = await world.operator.Withdraw(operator_pb2.WithdrawRequest(target=OF_17, why="wrong node"))
            assert again.effect == operator_pb2.ORDER_EFFECT_UNCHANGED


async def test_an_override_is_a_generation_of_its_own_that_names_its_author(folder: Path) -> None:
    """A restart becomes a stop only when that is confirmed; the audit and the decision say whose word it was."""
    async with autonomous_world(folder) as world:
        held = await restart_advised(world)
        unsaid = operator_pb2.OverrideRequest(target=OF_17, action=STOP, why="enough")
        with pytest.raises(grpc.aio.AioRpcError, match="confirm"):
            await world.operator.Override(unsaid)
        async with an_agent(world, held, accepted=False):
            answer = await world.operator.Override(
                operator_pb2.OverrideRequest(target=OF_17, action=STOP, why="enough", confirm=True)
            )
        assert (answer.effect, answer.action, answer.generation) == (IN_FORCE, STOP, held.generation + 1)
        made = await decision(world, answer)
        assert (made.advice.action, made.advice.reason, made.advice.mode) == (
            STOP,
            "operator",
            common_pb2.MODE_AUTONOMOUS,
        )
        assert f"ordered by {answer.order.set_by} (enough)" in made.advice.explanation
        await replays(world, answer.decision_id)


WITHHELD, MONITOR = common_pb2.RECONCILIATION_STATUS_WITHHELD, common_pb2.MODE_MONITOR


@asynccontextmanager
async def watching_agent(world: World) -> AsyncIterator[None]:
    """Withholds whatever it is told in monitor mode, as an agent does."""

    async def answer() -> None:
        while True:
            (item, *_) = await world.advice_where(lambda found: any(each.mode == MONITOR for each in found), 60.0)
            await world.reconcile(item, WITHHELD, common_pb2.RECONCILIATION_REASON_MONITOR_MODE)

    task = asyncio.create_task(answer())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def time_passes(world: World) -> int:
    """Ten minutes since the end was seen. How many attempts are watched then."""
    await world.ticks(3)
    with database(world.folder) as connection:
        connection.execute("UPDATE attempts SET over_seen_at = over_seen_at - interval '10 minutes'")
    await world.ticks(5)
    return world.running.board.pulse.watched


async def test_an_override_in_monitor_mode_is_carried_out_once_the_mode_lets_it(folder: Path) -> None:
    """A job that failed in monitor mode is done with soon, and no switch of the mode restarts it. What an operator
    orders about it waits for the switch, stands in the list, and does not speak of a live attempt."""
    async with autonomous_world(folder) as world:
        autonomous = operator_pb2.ModeSetting(mode=common_pb2.MODE_AUTONOMOUS, why="test")
        watching = operator_pb2.ModeSetting(mode=MONITOR, why="looking into something")
        await world.operator.SetMode(operator_pb2.SetModeRequest(setting=watching))
        async with watching_agent(world):
            await world.fail_on_node2()
            assert await time_passes(world) == 0
            narrow = operator_pb2.ModeSetting(mode=common_pb2.MODE_AUTONOMOUS, why="test", partition="train")
            said = await world.operator.SetMode(operator_pb2.SetModeRequest(setting=narrow))
            assert any("not restarted by this: 17;" in note for note in said.notes), said.notes
            other = operator_pb2.ModeSetting(mode=common_pb2.MODE_AUTONOMOUS, why="test", category="storage")
            said = await world.operator.SetMode(operator_pb2.SetModeRequest(setting=other))
            assert not any("not restarted" in note for note in said.notes)
            await world.ticks(3)
            newest = (await world.decisions(job_id="17"))[0]
            assert newest.advice.mode == MONITOR
            await world.operator.SetMode(operator_pb2.SetModeRequest(setting=watching))
            request = operator_pb2.OverrideRequest(target=OF_17, why="by hand", action=RESTART)
            answer = await world.operator.Override(request)
            assert [note for note in answer.notes if "live" in note] == []
            assert [note for note in answer.notes if "its mode is monitor" in note]
            assert await time_passes(world) == 1
        listed = await world.operator.ListOrders(operator_pb2.ListOrdersRequest())
        assert [item.kind for item in listed.orders] == ["override"]
        await world.operator.SetMode(operator_pb2.SetModeRequest(setting=autonomous))
        (advice,) = await world.advice_where(lambda found: [item.action for item in found] == [RESTART])
        assert (advice.mode, advice.reason) == (common_pb2.MODE_AUTONOMOUS, "operator")


async def test_an_override_of_what_is_done_with_can_be_given_again(folder: Path) -> None:
    """The agent withheld it for good: told once more it is meant, where "ordered already" led nowhere."""
    async with autonomous_world(folder) as world:
        advice = await restart_advised(world)
        await world.reconcile(advice, WITHHELD, common_pb2.RECONCILIATION_REASON_SCHEDULER_REFUSED)
        assert await time_passes(world) == 0
        request = operator_pb2.OverrideRequest(target=OF_17, why="by hand", action=RESTART)
        await world.operator.Override(request)
        (first,) = await world.advice_where(lambda found: [item.action for item in found] == [RESTART])
        await world.reconcile(first, WITHHELD, common_pb2.RECONCILIATION_REASON_SCHEDULER_REFUSED)
        assert await time_passes(world) == 0
        again = await world.operator.Override(request)
        assert again.effect != operator_pb2.ORDER_EFFECT_UNCHANGED
        (second,) = await world.advice_where(lambda found: [item.action for item in found] == [RESTART])
        assert second.generation > first.generation


async def test_what_slurm_has_accepted_is_refused_and_what_nobody_confirmed_is_not_called_so(folder: Path) -> None:
    """A restart that was accepted is not ordered away; without the agent's word an order is in force all the same."""
    async with autonomous_world(folder) as world:
        held = await restart_advised(world)
        vetoed = await world.operator.Veto(operator_pb2.VetoRequest(target=OF_17, why="wait"))
        assert vetoed.effect == UNCONFIRMED
        assert held.advice_id not in {item.advice_id for item in await world.advice_where(lambda found: True)}
        order_id = vetoed.order.order_id
        await world.operator.LiftOrder(operator_pb2.LiftOrderRequest(order_id=order_id, why="go"))
        (again,) = await world.advice_where(lambda found: [item.action for item in found] == [RESTART])
        await world.reconcile(again, APPLIED)
        for call in (
            world.operator.Veto(operator_pb2.VetoRequest(target=OF_17, why="x")),
            world.operator.Withdraw(operator_pb2.WithdrawRequest(target=OF_17, why="x")),
            world.operator.Override(operator_pb2.OverrideRequest(target=OF_17, action=RESTART, why="x")),
        ):
            assert "too late: the scheduler accepted its restart at" in await refused(call)


async def test_an_override_that_slurm_has_accepted_is_not_taken_back(folder: Path) -> None:
    """As its veto is: what has happened is said; nor is an attempt taken that no database can hold."""
    async with autonomous_world(folder) as world:
        await restart_advised(world)
        given = await world.operator.Override(operator_pb2.OverrideRequest(target=OF_17, action=RESTART, why="now"))
        found = await world.advice_where(lambda open_: any(item.generation >= given.generation for item in open_))
        await world.reconcile(found[0], APPLIED)
        withdrawing = world.operator.Withdraw(operator_pb2.WithdrawRequest(target=OF_17, why="no"))
        assert "the scheduler accepted its restart at" in await refused(withdrawing)
        lifting = operator_pb2.LiftOrderRequest(order_id=given.order.order_id, why="no")
        lifted = await world.operator.LiftOrder(lifting)
        assert lifted.effect == operator_pb2.ORDER_EFFECT_OVERTAKEN
        assert "but the scheduler had accepted the restart at" in lifted.says
        far = operator_pb2.JobTarget(cluster=CLUSTER, job_id="17", attempt=2**31)
        with pytest.raises(grpc.aio.AioRpcError, match=r"target\.attempt: 2147483648, at most"):
            await world.operator.Veto(operator_pb2.VetoRequest(target=far, why="no"))


async def test_an_exclusion_by_hand_is_in_the_next_advice_and_one_cleared_stays_out(folder: Path) -> None:
    """Also against the evidence, for which there is room for one only, as is said; a misspelt node is refused."""
    async with autonomous_world(folder, "exclusions_per_job_max = 1\nexclusions_per_incident_max = 1\n") as world:
        first = await restart_advised(world)
        assert list(first.exclude_nodes) == ["node2"]
        await world.report(world.job("RUNNING", job="18", excluded_nodes=["node6"]))
        of_18 = operator_pb2.JobTarget(cluster=CLUSTER, job_id="18")
        theirs = world.operator.Spare(operator_pb2.SpareRequest(target=of_18, node="node6", why="x"))
        assert "excluded by the job's user" in await refused(theirs)
        misspelt = world.operator.Exclude(operator_pb2.ExcludeRequest(target=OF_17, node="nodde6", why="smells"))
        with pytest.raises(grpc.aio.AioRpcError, match="there is no node nodde6 in cluster"):
            await misspelt
        given = await world.operator.Exclude(operator_pb2.ExcludeRequest(target=OF_17, node="node6", why="smells"))
        assert list(given.notes) == ["no room is left to avoid node2 too: at most 1 per job"]
        await world.operator.Spare(operator_pb2.SpareRequest(target=OF_17, node="node2", why="checked"))
        await world.advice_where(
            lambda found: [list(item.exclude_nodes) for item in found if item.attempt.job_id == "17"] == [["node6"]]
        )
        listed = await world.operator.ListOrders(operator_pb2.ListOrdersRequest(job_id="17"))
        assert [(item.kind, item.node) for item in listed.orders] == [("spare", "node2"), ("exclude", "node6")]
        for name in ("17_3", "17+1", "99"):
            target = operator_pb2.JobTarget(cluster=CLUSTER, job_id=name)
            with pytest.raises(grpc.aio.AioRpcError, match="there is no job"):
                await world.operator.Veto(operator_pb2.VetoRequest(target=target, why="x"))


async def test_a_reset_budget_says_that_it_restarts_a_job_that_has_ended(folder: Path) -> None:
    """A job that was given up runs again at once: whoever resets its budget hears it, and what holds it up."""
    low = "restarts_ceiling = 1\nrestarts_per_root_cause = 1\nrestarts_ceiling_per_1000_node_days = 0\n"
    async with autonomous_world(folder, low) as world:
        first = await restart_advised(world)
        await world.reconcile(first, common_pb2.RECONCILIATION_STATUS_VERIFIED)
        await world.report(world.job("PENDING", attempt=1))
        await world.report(world.job("RUNNING", attempt=1))
        await world.ticks(2)
        early = await world.operator.ResetBudget(operator_pb2.ResetBudgetRequest(target=OF_17, why="in advance"))
        assert (early.effect, "put into the queue" in early.says) == (operator_pb2.ORDER_EFFECT_RECORDED, False)
        with world.log("17").open("a") as file:
            file.write("srun: error: node3: task 2: Exited with exit code 1\n")
        await world.report(world.job("FAILED", attempt=1))
        await world.advice_where(lambda found: [item.action for item in found] == [STOP])
        reset = operator_pb2.ResetBudgetRequest(target=OF_17, ceiling=True, why="the fabric was bad")
        answer = await world.operator.ResetBudget(reset)
        assert (answer.effect, answer.action) == (operator_pb2.ORDER_EFFECT_RECORDED, RESTART)
        assert answer.says == (
            "budget and ceiling of job 17 count from attempt 1; decided now: restart (nodes_implicated): "
            "the job has ended, and is put into the queue again"
        )
        assert list(answer.notes) == ["advisor veto 17 keeps it from that, if it comes before the agent has acted"]
        again = await world.operator.ResetBudget(reset)
        assert (again.effect, list(again.notes)) == (operator_pb2.ORDER_EFFECT_UNCHANGED, [])


async def test_a_node_isolated_by_hand_reaches_the_agent(folder: Path) -> None:
    """Although isolation is switched off, and also under monitor: a person named it. Reinstating undoes it."""
    async with world_of(folder) as world:
        await world.report()
        request = operator_pb2.IsolateNodeRequest(cluster=CLUSTER, node="node3", why="fan", force=True)
        made = await world.operator.IsolateNode(request)
        assert (made.dry_run, made.category, made.opened_by != "") == (False, "operator", True)
        stream = world.agent.WatchAdvice(agent_pb2.WatchAdviceRequest(cluster=CLUSTER, session=world.session))
        message = await anext(aiter(stream))
        stream.cancel()
        assert [(item.node, item.dry_run) for item in message.nodes] == [("node3", False)]
        ended = await world.operator.Reinstate(operator_pb2.ReinstateRequest(cluster=CLUSTER, node="node3", why="ok"))
        assert ended.ended_by == "operator"


async def test_who_isolates_by_hand_is_told_that_the_agent_does_not_drain(folder: Path) -> None:
    """Recorded is not drained: the answer and the list say what the agent made of it, and nothing that is not so."""
    async with world_of(folder) as world:
        await world.report()
        isolate = ("nodes", "isolate", "node3", "--force", "--why", "loud")
        asked = asyncio.create_task(asyncio.to_thread(advisor, folder, *isolate))
        stream = world.agent.WatchAdvice(agent_pb2.WatchAdviceRequest(cluster=CLUSTER, session=world.session))
        async for message in stream:
            if message.nodes:
                break
        stream.cancel()
        (wanted,) = message.nodes
        await _node_says(
            world,
            wanted,
            status=common_pb2.RECONCILIATION_STATUS_WITHHELD,
            reason=common_pb2.RECONCILIATION_REASON_AGENT_OBSERVES,
            detail="[isolation] mode is off in agent.toml",
        )
        done = await asked
        assert (done.returncode, "is isolated" in done.stdout) == (0, False), done.stdout
        assert "node3: isolation is recorded, until" in done.stdout
        assert "the agent does not drain node3: [isolation] mode is off in agent.toml" in done.stderr
        listed = await asyncio.to_thread(advisor, folder, "nodes", "isolations")
        assert ("wanted" in listed.stdout, "drained" in listed.stdout) == (True, False), listed.stdout
        await _node_says(
            world,
            wanted,
            status=common_pb2.RECONCILIATION_STATUS_VERIFIED,
            reason=common_pb2.RECONCILIATION_REASON_OBSERVED,
        )
        listed = await asyncio.to_thread(advisor, folder, "nodes", "isolations")
        assert "drained" in listed.stdout
        again = await asyncio.to_thread(advisor, folder, *isolate)
        assert (again.stderr, "the agent has drained it" in again.stdout) == ("", True)


async def _node_says(world: World, wanted: agent_pb2.NodeAdvice, **said: Any) -> None:
    await world.agent.ReportNodeReconciliation(
        agent_pb2.ReportNodeReconciliationRequest(
            cluster=CLUSTER,
            session=world.session,
            isolation_id=wanted.isolation_id,
            generation=wanted.generation,
            node=wanted.node,
            at=stamp(now()),
            **said,
        )
    )


async def test_a_corrected_verdict_is_kept_beside_the_wrong_one(folder: Path) -> None:
    """The newest one holds, saying it twice is saying it once, and a node that is cleared is suspected no more."""
    async with autonomous_world(folder) as world:
        held = await restart_advised(world)
        request = operator_pb2.CorrectVerdictRequest(
            decision_id=held.advice_id, category="application", nodes=operator_pb2.NodeNames(), why="a bad loader"
        )
        made = await world.operator.CorrectVerdict(request)
        assert (made.category, made.was_category, list(made.was_nodes)) == ("application", "gpu_hardware", ["node2"])
        assert (await world.operator.CorrectVerdict(request)).correction_id == made.correction_id
        listed = await world.operator.ListCorrections(operator_pb2.ListCorrectionsRequest())
        assert [(item.correction_id, item.HasField("nodes")) for item in listed.corrections] == [
            (made.correction_id, True)
        ]
        await exported(folder)
        node = await world.audit.GetNode(audit_pb2.GetNodeRequest(cluster=CLUSTER, name="node2"))
        assert node.score == 0
        with pytest.raises(grpc.aio.AioRpcError, match="say what was wrong"):
            await world.operator.CorrectVerdict(
                operator_pb2.CorrectVerdictRequest(decision_id=held.advice_id, why="hm")
            )


async def exported(folder: Path) -> None:
    """What the command makes of it: a bundle that can be analysed, and the right verdict beside it."""
    argv = [sys.executable, "-m", "advisor", "corrections", "export", str(folder / "cases"), "--redact"]
    argv += ["--config", str(folder / "advisor.toml")]
    done = await asyncio.to_thread(subprocess.run, argv, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    (truth,) = [json.loads(line) for line in (folder / "cases" / "truth.jsonl").read_text().splitlines()]
    assert (truth["category"], truth["nodes"], truth["action"]) == (["application"], [], ["restart"])
    bundle = folder / "cases" / "attribution" / truth["id"]
    assert (bundle / "job.json").exists()
    assert "node2" not in (bundle / "job.json").read_text()
