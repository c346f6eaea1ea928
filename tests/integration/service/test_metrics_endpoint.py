"""What `/metrics` says of a service in which a job has just failed."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from advisor.v1 import agent_pb2, common_pb2, operator_pb2
from tests.integration.service.world import configuration, world_of

pytestmark = pytest.mark.postgres

Values = dict[tuple[str, frozenset[tuple[str, str]]], float]


@asynccontextmanager
async def client_of(folder: Path) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.AsyncHTTPTransport(uds=str(configuration(folder).service.http_path))
    async with httpx.AsyncClient(transport=transport, base_url="http://advisor") as client:
        yield client


def values_of(text: str) -> Values:
    return {
        (sample.name.removeprefix("recovery_advisor_"), frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def summed(values: Values, name: str, **labels: str) -> float:
    return sum(value for (found, has), value in values.items() if found == name and labels.items() <= set(has))


async def test_a_failed_job_is_counted_from_its_signal_to_its_advice(folder: Path) -> None:
    """Tick, sources, incident, decision, detection latency and calls are all there, and nobody's name is a label."""
    async with world_of(folder) as world, client_of(folder) as client:
        await world.fail_on_node2()
        await world.advice_where(
            lambda advice: any(
                item.action == common_pb2.ACTION_RESTART and item.category == "gpu_hardware" for item in advice
            )
        )
        answer = await client.get("/metrics")
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/plain")
        values = values_of(answer.text)
    assert summed(values, "ticks_total", outcome="completed") > 2
    assert summed(values, "tick_stage_duration_seconds_count", stage="conclude") > 2
    assert summed(values, "source_read_bytes_total", source="job-output") > 1000
    assert summed(values, "source_up", source="kernel") == 1
    assert summed(values, "incidents_total", kind="crash") == 1
    assert summed(values, "decisions_total", action="restart", category="gpu_hardware") >= 1
    assert summed(values, "jobs_failed_total", cluster="test", state="failed") == 1
    assert summed(values, "jobs_fault_detection_latency_seconds_count") == 1
    assert 0 <= summed(values, "jobs_fault_detection_latency_seconds_sum") < 30
    assert summed(values, "open_incidents") == 1
    assert summed(values, "agent_may_act", cluster="test", host="ctl") == 1
    assert summed(values, "call_duration_seconds_count", method="AgentService/ReportObservations", code="ok") >= 3
    assert summed(values, "store_up") == 1
    assert "node2" not in answer.text


async def test_an_agents_stop_file_is_seen_from_the_service(folder: Path) -> None:
    """In the status and as a gauge, until a heartbeat no longer names it, as one of an older agent never does."""
    async with world_of(folder) as world, client_of(folder) as client:
        beat = agent_pb2.HeartbeatRequest(cluster="test", session=world.session, mode=agent_pb2.AGENT_MODE_ACT)
        stopped = agent_pb2.HeartbeatRequest()
        stopped.CopyFrom(beat)
        stopped.stop_file.why = "/etc/recovery-advisor/stop: fabric"
        stopped.stop_file.since.FromSeconds(1_700_000_000)
        for request, there in ((stopped, True), (beat, False)):
            await world.agent.Heartbeat(request)
            (agent,) = (await world.operator.GetStatus(operator_pb2.GetStatusRequest())).agents
            assert (agent.HasField("stop_file"), agent.stop_file) == (there, request.stop_file)
            values = values_of((await client.get("/metrics")).text)
            assert summed(values, "agent_stop_file", cluster="test", host="ctl") == there
