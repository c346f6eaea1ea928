"""Pauses, canaries and isolations through the service: what an agent is told, and what an operator sees and does."""

import asyncio
import getpass
from datetime import timedelta
from pathlib import Path

import grpc
import pytest

from advisor.core.modes import in_share
from advisor.service.wire import stamp
from advisor.v1 import agent_pb2, audit_pb2, common_pb2, operator_pb2
from tests.integration.service.test_unstored import ACCEPT, REFUSE, sql
from tests.integration.service.world import CLUSTER, WAIT_SECONDS, World, configuration, now, world_of

pytestmark = pytest.mark.postgres

_POLICY = (
    "isolate = true\nisolate_dry_run = false\nisolations_percent_max = 50.0\nisolations_max = 2\n"
    "isolation_settle_seconds = 1.0\n"
    "[settle_seconds]\ngpu_hardware = 0.2\n"
)


async def _autonomous(world: World, **fields: object) -> None:
    setting = operator_pb2.ModeSetting(mode=common_pb2.MODE_AUTONOMOUS, why="test", **fields)  # type: ignore[arg-type]
    await world.operator.SetMode(operator_pb2.SetModeRequest(setting=setting))


async def _told(world: World) -> agent_pb2.WatchAdviceResponse:
    """What the stream says first."""
    stream = world.agent.WatchAdvice(agent_pb2.WatchAdviceRequest(cluster=CLUSTER, session=world.session))
    try:
        async for message in stream:
            return message
    finally:
        stream.cancel()
    raise AssertionError("the stream ended")


async def test_while_paused_advice_says_so_and_afterwards_no_longer(folder: Path) -> None:
    """The same advice, with the pause's end while it lasts; nothing is closed or lost by it."""
    async with world_of(folder) as world:
        await _autonomous(world)
        until = now() + timedelta(hours=1)
        request = operator_pb2.PauseRequest(cluster=CLUSTER, until=stamp(until), why="firmware")
        assert not (await world.operator.Pause(request)).notes
        forgetful = agent_pb2.RegisterRequest(
            cluster=CLUSTER, host="ctl", version="1", mode=agent_pb2.AGENT_MODE_ACT, scheduler="slurm"
        )
        forgetful.job_memory.FromSeconds(300)
        world.session = (await world.agent.Register(forgetful)).session
        paused = await world.operator.Pause(request)
        assert "after 300 s (MinJobAge)" in paused.notes[0]
        await world.fail_on_node2()
        (advice,) = await world.advice_where(lambda found: any(item.HasField("paused_until") for item in found))
        assert advice.mode == common_pb2.MODE_AUTONOMOUS
        pauses = await world.operator.ListPauses(operator_pb2.ListPausesRequest())
        assert [item.why for item in pauses.pauses] == ["firmware"]
        await world.operator.Resume(operator_pb2.ResumeRequest(cluster=CLUSTER, why="done"))
        await world.advice_where(lambda found: bool(found) and not any(i.HasField("paused_until") for i in found))
        with pytest.raises(grpc.aio.AioRpcError, match="no pause") as caught:
            await world.operator.Resume(operator_pb2.ResumeRequest(cluster=CLUSTER, why="done"))
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND


async def test_what_cannot_be_meant_is_refused(folder: Path) -> None:
    """A pause in the past, for ever, or without a reason; a share of monitor, of nobody, of everybody, of one job."""
    autonomous = common_pb2.MODE_AUTONOMOUS
    shares = (
        operator_pb2.ModeSetting(mode=common_pb2.MODE_MONITOR, percent=10, why="x"),
        operator_pb2.ModeSetting(mode=autonomous, percent=0, why="x"),
        operator_pb2.ModeSetting(mode=autonomous, percent=100, why="x"),
        operator_pb2.ModeSetting(mode=autonomous, percent=10, job_id="7", why="x"),
    )
    async with world_of(folder) as world:
        for hours in (-1, 24 * 40):
            request = operator_pb2.PauseRequest(until=stamp(now() + timedelta(hours=hours)), why="x")
            with pytest.raises(grpc.aio.AioRpcError, match="until: a time from now on"):
                await world.operator.Pause(request)
        silent = operator_pb2.PauseRequest(until=stamp(now() + timedelta(hours=1)), why=" ")
        with pytest.raises(grpc.aio.AioRpcError, match="why: say why"):
            await world.operator.Pause(silent)
        for setting in shares:
            with pytest.raises(grpc.aio.AioRpcError, match=r"setting\.percent"):
                await world.operator.SetMode(operator_pb2.SetModeRequest(setting=setting))


async def test_a_canary_acts_for_its_share_of_jobs(folder: Path) -> None:
    """Which side a job is on is drawn from its key; promoted to all it acts, rolled back it does not, within a tick."""
    async with world_of(folder) as world:
        await _autonomous(world, partition="train", percent=50)
        await world.fail_on_node2()
        (advice,) = await world.advice_where(bool)
        expected = in_share(advice.attempt.job_key, 50)
        assert (advice.mode == common_pb2.MODE_AUTONOMOUS) is expected
        await _autonomous(world, partition="train")
        await world.advice_where(lambda found: any(item.mode == common_pb2.MODE_AUTONOMOUS for item in found))
        back = operator_pb2.ModeSetting(mode=common_pb2.MODE_MONITOR, partition="train", why="rolled back")
        await world.operator.SetMode(operator_pb2.SetModeRequest(setting=back))
        rows = await world.running.board.open_for(CLUSTER)  # at once
        assert not any(row.decision.mode == "autonomous" for row in rows)


async def test_a_bad_node_is_wanted_drained_until_it_is_reinstated(folder: Path) -> None:
    """The agent is told of it, says that it is drained, is told to undo it after the operator's word, and does."""
    policy = folder / "policy.toml"
    policy.write_text(_POLICY, encoding="utf-8")
    config = configuration(folder, f'policy_file = "{policy}"')
    async with world_of(folder, config) as world:
        await _autonomous(world)
        await world.fail_on_node2()
        await world.advice_where(bool)
        for _ in range(50):
            told = await _told(world)
            if told.nodes:
                break
            await world.ticks(1)
        (wanted,) = told.nodes
        assert (wanted.node, wanted.desired, wanted.dry_run) == ("node2", agent_pb2.NODE_DESIRE_DRAINED, False)
        assert wanted.category == "gpu_hardware"
        await _says(world, wanted)
        (seen,) = (await _told(world)).nodes
        assert seen.seen_drained
        # An operator's stop keeps what is drained, and drains nothing more.
        stop = operator_pb2.ModeSetting(mode=common_pb2.MODE_MONITOR, why="stop")
        await world.operator.SetMode(operator_pb2.SetModeRequest(setting=stop))
        assert (await _told(world)).nodes[0].dry_run
        reinstate = operator_pb2.ReinstateRequest(cluster=CLUSTER, node="node2", why="DIMM replaced")
        assert (await world.operator.Reinstate(reinstate)).ended_by == "operator"
        (undo,) = (await _told(world)).nodes
        assert (undo.desired, undo.generation) == (agent_pb2.NODE_DESIRE_NOT_DRAINED, 2)
        await _says(world, undo)
        assert not (await _told(world)).nodes
        await world.ticks(3)  # the same evidence does not isolate it again
        assert not (await _told(world)).nodes
        listed = await world.operator.ListIsolations(operator_pb2.ListIsolationsRequest(ended=True))
        assert [(item.node, item.ended_why) for item in listed.isolations] == [("node2", "DIMM replaced")]
        kept = await world.audit.ListAudit(audit_pb2.ListAuditRequest())
        done = {item.what: (item.who, item.why, item.origin) for item in kept.records if item.who == getpass.getuser()}
        assert done["isolation_ended"][1:] == ("DIMM replaced", done["mode_set"][2])
        assert done["mode_set"][2]


async def _says(world: World, wanted: agent_pb2.NodeAdvice) -> None:
    await world.agent.ReportNodeReconciliation(
        agent_pb2.ReportNodeReconciliationRequest(
            cluster=CLUSTER,
            session=world.session,
            isolation_id=wanted.isolation_id,
            generation=wanted.generation,
            node=wanted.node,
            status=common_pb2.RECONCILIATION_STATUS_VERIFIED,
            reason=common_pb2.RECONCILIATION_REASON_OBSERVED,
            at=stamp(now()),
        )
    )


async def test_no_node_is_drained_by_a_decision_that_was_not_stored(folder: Path) -> None:
    """Nobody could say later why it was; once it is stored, the node is."""
    policy = folder / "policy.toml"
    policy.write_text(_POLICY, encoding="utf-8")
    async with world_of(folder, configuration(folder, f'policy_file = "{policy}"')) as world:
        await _autonomous(world)
        sql(folder, REFUSE)
        await world.fail_on_node2()
        await world.ticks(12)
        told = await _told(world)
        assert (await world.decisions(), list(told.open), list(told.nodes)) == ([], [], [])
        sql(folder, ACCEPT)
        async with asyncio.timeout(WAIT_SECONDS):
            while not (nodes := (await _told(world)).nodes):
                await world.ticks(1)
        assert [(item.node, item.desired) for item in nodes] == [("node2", agent_pb2.NODE_DESIRE_DRAINED)]
