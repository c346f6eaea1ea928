"""The whole service beside a real Prometheus: what only telemetry knows decides, and its absence is told."""

import asyncio
import json
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from advisor.config import Config
from advisor.service.wire import stamp
from advisor.v1 import agent_pb2, audit_pb2, common_pb2, operator_pb2
from tests.contract.metrics.exporter import Cluster, cluster, exporting
from tests.contract.metrics.real import Prometheus, prometheus
from tests.integration.service.world import World, configuration, iteration, now, world_of

pytestmark = pytest.mark.postgres

# A process that dies with its GPU prints no more than that: the log alone cannot tell whose fault it is.
LAUNCH_FAILURE = "[rank1]: RuntimeError: CUDA error: unspecified launch failure\n"


@pytest.fixture(scope="module")
def shown() -> Iterator[Cluster]:
    made = cluster(nodes=4, gpus=1)
    made.xid("node1", 0, 31)  # of last week, by another job: the gauge sticks
    with exporting(made):
        yield made


@pytest.fixture(scope="module")
def server(shown: Cluster) -> Iterator[Prometheus]:
    with prometheus(shown) as running:
        running.scraped()
        yield running


def configured(folder: Path, url: str) -> Config:
    """With metrics from `url`; "": without any."""
    (folder / "policy.toml").write_text("[settle_seconds]\napplication = 3.0\nunknown = 3.0\ngpu_hardware = 3.0\n")
    metrics = f'[[metrics]]\nurl = "{url}"\ninterval_seconds = 1.0' if url else ""
    return configuration(folder, f'policy_file = "{folder}/policy.toml"\n{metrics}')


async def fail(world: World) -> None:
    """The attempt ends with a line that does not say why."""
    with world.log().open("a") as file:
        file.write(LAUNCH_FAILURE)
        file.write("srun: error: node2: task 1: Exited with exit code 1\n")
    await world.report(world.job("COMPLETING", notice=agent_pb2.NOTICE_HOOK, ended_at=stamp(now())))
    await world.report(world.job("FAILED"))


def restarts(found: Sequence[common_pb2.Advice]) -> bool:
    return any(advice.action == common_pb2.ACTION_RESTART for advice in found)


async def analysis_of(world: World, advice: common_pb2.Advice) -> dict[str, Any]:
    decision = await world.audit.GetDecision(audit_pb2.GetDecisionRequest(decision_id=advice.advice_id))
    read: dict[str, Any] = json.loads(decision.analysis_json)
    return read


async def test_an_xid_that_only_telemetry_saw_implicates_its_node(
    folder: Path, shown: Cluster, server: Prometheus
) -> None:
    """A change of the gauge while the attempt ran: an incident with trusted evidence that names the metric."""
    async with world_of(folder, configured(folder, server.url)) as world:
        world.log().write_text("".join(map(iteration, range(1, 20))))
        await world.report(world.job("RUNNING"))
        await world.ticks(8)
        shown.xid("node2", 0, 79)
        server.scraped(2)
        await fail(world)
        (advice,) = await world.advice_where(restarts)
        assert (advice.category, list(advice.exclude_nodes)) == ("gpu_hardware", ["node2"])
        telemetry = [item for item in advice.evidence if item.trust == "telemetry"]
        assert [item.text for item in telemetry] == ["node2: GPU 0 shows Xid 79, before it 0 (DCGM_FI_DEV_XID_ERRORS)"]
        source = (await analysis_of(world, advice))["attribution"]["sources"]["metrics"]
        assert (source["available"], source["detail"]) == (True, "")
        status = await world.operator.GetStatus(operator_pb2.GetStatusRequest())
        seen = next(item for item in status.sources if item.name == "metrics")
        assert (seen.available, seen.kind) == (True, "telemetry, trusted")


async def test_a_dead_prometheus_is_told_and_changes_nothing_else(folder: Path) -> None:
    """The verdict is that of the log alone, and says that metrics were not available and why."""

    async def verdict(world: World) -> dict[str, Any]:
        world.log().write_text("".join(map(iteration, range(1, 20))))
        await world.report(world.job("RUNNING"))
        await world.ticks(3)
        await fail(world)
        (advice, *_) = await world.advice_where(restarts)
        return await analysis_of(world, advice)

    async with AsyncExitStack() as stack:
        worlds = []
        for name, url in (("dead", "http://127.0.0.1:9"), ("none", "")):
            inner = folder / name
            inner.mkdir(mode=0o755)
            worlds.append(await stack.enter_async_context(world_of(inner, configured(inner, url))))
        dead, none = await asyncio.gather(*map(verdict, worlds))
    metrics = dead["attribution"]["sources"].pop("metrics")
    assert (metrics["available"], metrics["reason"]) == (False, "refused")
    assert "cannot connect" in metrics["detail"]
    assert dead["advice"] == none["advice"]
    assert dead["isolation"] == none["isolation"]
    assert dead["attribution"]["sources"].keys() == none["attribution"]["sources"].keys()
