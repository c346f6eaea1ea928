"""NVRx's attribution service beside ours, through the whole service: its opinion is kept, replayed and not obeyed."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from advisor.commands.doctor import look_at_opinions
from advisor.commands.doctor_checks import State
from advisor.config import Config
from advisor.core import codec
from advisor.replay import Packed, reproduce
from advisor.v1 import audit_pb2, common_pb2, operator_pb2
from tests.contract.stores.front import Asked, Front, Told, says
from tests.integration.service.world import World, configuration, world_of

pytestmark = pytest.mark.postgres

ARGUMENTS = "usage: train.py [-h]\ntrain.py: error: unrecognized arguments: --learning-rat 3e-4\n"
OPINION = {
    "result": {"decision": "RESTART", "justification": "RuntimeError: CUDA error: uncorrectable ECC error encountered"},
    "status": "completed",
    "recommendation": {"action": "RESTART", "reason": "", "source": "nvrx-default"},
}


async def _service(asked: Asked) -> Told:
    return Told(body=json.dumps({"submitted": True} if asked.raw else OPINION).encode())


@asynccontextmanager
async def beside(folder: Path) -> AsyncIterator[tuple[World, Front, Config]]:
    front = Front(_service)
    await front.start()
    policy = folder / "policy.toml"
    policy.write_text("[settle_seconds]\napplication = 3.0\n")
    text = f'policy_file = "{policy}"\n[[attribution]]\nurl = "{front.url}"\n'
    config = configuration(folder, text)
    try:
        async with world_of(folder, config) as world:
            yield world, front, config
    finally:
        await front.stop()


async def stopped(world: World) -> audit_pb2.Decision:
    world.log().write_text(ARGUMENTS)
    await world.report(world.job("FAILED"))
    (advice,) = await world.advice_where(lambda found: any(a.action == common_pb2.ACTION_STOP for a in found))
    return await world.audit.GetDecision(audit_pb2.GetDecisionRequest(decision_id=advice.advice_id))


def attribution(decision: audit_pb2.Decision) -> dict[str, Any]:
    read: dict[str, Any] = json.loads(decision.analysis_json)
    found: dict[str, Any] = read["attribution"]
    return found


async def test_an_opinion_is_told_stored_and_not_obeyed(folder: Path) -> None:
    """It would restart for broken hardware; the arguments stay wrong, and the decision replays with it, bit for bit."""
    async with beside(folder) as (world, front, config):
        decision = await stopped(world)
        found = attribution(decision)
        assert found["category"] == "application"
        (other,) = [item for item in found["alternatives"] if "outside opinion" in item["why_not"]]
        assert (other["category"], "nvrx: nvrx-default would RESTART" in other["root_cause"]) == ("gpu_hardware", True)
        assert found["sources"]["nvrx"]["available"]
        request = audit_pb2.GetDecisionInputsRequest(decision_id=decision.advice.advice_id)
        stored = await world.audit.GetDecisionInputs(request)
        packed = Packed(inputs=stored.inputs, rules=stored.rules, policy=stored.policy)
        assert codec.encode(reproduce(packed)) == stored.decision
        assert b"nvrx-default would RESTART" in stored.inputs
        posted = [json.loads(asked.raw) for asked in front.asked if asked.raw]
        assert [(item["job_id"], item["cycle_id"]) for item in posted] == [("17", 0)]
        assert [check.state for check in await look_at_opinions(config)] == [State.OK]


async def test_a_dead_service_is_told_and_changes_nothing(folder: Path) -> None:
    """Verdict and status say why it has no opinion, and doctor does."""
    async with beside(folder) as (world, front, config):
        front.always = says(503, "maximum jobs reached")
        found = attribution(await stopped(world))
        assert (found["category"], found["sources"]["nvrx"]["available"]) == ("application", False)
        assert "503" in found["sources"]["nvrx"]["detail"]
        status = await world.operator.GetStatus(operator_pb2.GetStatusRequest())
        (source,) = [item for item in status.sources if item.name == "nvrx"]
        assert (source.available, source.kind, "503" in source.detail) == (False, "external, not trusted", True)
        assert [check.state for check in await look_at_opinions(config)] == [State.WARN]
