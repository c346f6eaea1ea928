"""Modes as operators change them: the stop that stops, what stays, what is refused, and what is worth knowing."""

from collections.abc import Sequence
from pathlib import Path

import grpc
import pytest

from advisor.v1 import agent_pb2, common_pb2, operator_pb2
from tests.integration.service.world import CLUSTER, World, world_of

pytestmark = pytest.mark.postgres


async def _set(world: World, mode: common_pb2.Mode.ValueType, **fields: str) -> operator_pb2.ModeSetting:
    setting = operator_pb2.ModeSetting(mode=mode, why="test", **fields)
    return await world.operator.SetMode(operator_pb2.SetModeRequest(setting=setting))


def _acting(open_advice: Sequence[common_pb2.Advice]) -> bool:
    return any(advice.mode == common_pb2.MODE_AUTONOMOUS for advice in open_advice)


def _watching(open_advice: Sequence[common_pb2.Advice]) -> bool:
    return bool(open_advice) and not _acting(open_advice)


async def test_monitor_for_everything_takes_published_advice_back(folder: Path) -> None:
    """A narrower autonomous setting had published advice: after the stop none is open, and it comes back as monitor."""
    async with world_of(folder) as world:
        await _set(world, common_pb2.MODE_AUTONOMOUS, partition="train")
        await world.fail_on_node2()
        await world.advice_where(_acting)
        stopped = await _set(world, common_pb2.MODE_MONITOR)
        assert [item.partition for item in stopped.no_longer_autonomous] == ["train"]
        rows = await world.running.board.open_for(CLUSTER)  # at once, before any tick
        assert not any(row.decision.mode == "autonomous" for row in rows)
        advice = await world.advice_where(bool)
        assert _watching(advice)


async def test_a_narrower_monitor_takes_its_part_back(folder: Path) -> None:
    """Monitor for one job beats autonomous for everything, and names what still wins within it."""
    async with world_of(folder) as world:
        await _set(world, common_pb2.MODE_AUTONOMOUS)
        await _set(world, common_pb2.MODE_AUTONOMOUS, job_id="17", category="storage")
        await world.fail_on_node2()
        await world.advice_where(_acting)
        answer = await _set(world, common_pb2.MODE_MONITOR, job_id="17")
        assert [item.category for item in answer.still_autonomous] == ["storage"]
        await world.advice_where(_watching)


async def test_a_setting_is_removed_and_the_default_holds_again(folder: Path) -> None:
    """Unset by its exact fields; a second time there is none to remove."""
    async with world_of(folder) as world:
        await _set(world, common_pb2.MODE_AUTONOMOUS, partition="train")
        await world.fail_on_node2()
        await world.advice_where(_acting)
        request = operator_pb2.UnsetModeRequest(setting=operator_pb2.ModeSetting(partition="train", why="over"))
        removed = await world.operator.UnsetMode(request)
        assert removed.mode == common_pb2.MODE_AUTONOMOUS
        await world.advice_where(_watching)
        with pytest.raises(grpc.aio.AioRpcError, match="no setting for partition train") as caught:
            await world.operator.UnsetMode(request)
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND


@pytest.mark.parametrize("name", ["cluster", "partition", "job_id", "category"])
async def test_a_field_that_is_given_and_empty_is_refused(folder: Path, name: str) -> None:
    """It would mean everything: INVALID_ARGUMENT with the field, and nothing is set."""
    async with world_of(folder) as world:
        with pytest.raises(grpc.aio.AioRpcError, match=f"setting.{name}: given but empty") as caught:
            await _set(world, common_pb2.MODE_AUTONOMOUS, **{name: ""})
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert not (await world.operator.ListModes(operator_pb2.ListModesRequest())).settings


async def test_what_keeps_autonomous_from_doing_anything_is_told(folder: Path) -> None:
    """An agent that only observes, a cluster without an agent, and a partition that nobody has reported."""
    async with world_of(folder) as world:
        await world.report(world.job("RUNNING"))
        fine = await _set(world, common_pb2.MODE_AUTONOMOUS, cluster=CLUSTER, partition="train", job_id="17")
        assert not fine.notes
        unknown = await _set(world, common_pb2.MODE_AUTONOMOUS, partition="trian")
        assert "no agent has ever reported partition trian" in unknown.notes[0]
        elsewhere = await _set(world, common_pb2.MODE_AUTONOMOUS, cluster="other")
        assert "no agent of cluster other" in elsewhere.notes[0]
        await world.agent.Register(
            agent_pb2.RegisterRequest(
                cluster=CLUSTER, host="ctl", version="1", mode=agent_pb2.AGENT_MODE_OBSERVE, scheduler="slurm"
            )
        )
        observed = await _set(world, common_pb2.MODE_AUTONOMOUS, partition="train")
        assert "observe mode: nothing will be applied until" in observed.notes[0]
