"""The agent's connection: what is in flight when it ends is lost, and nothing more."""

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import pytest

from advisor.v1 import agent_pb2, common_pb2
from slurm_plugin.clock import SystemClock
from slurm_plugin.guard import Advice
from slurm_plugin.link import TRIES_MAX, Link, Pulse
from slurm_plugin.reach import Reach
from tests.unit.slurm_plugin.test_agent import FakeAdvisor, until


class SlowAdvisor(FakeAdvisor):
    """Takes a report and never answers."""

    async def ReportObservations(  # noqa: N802
        self, request: agent_pb2.ReportObservationsRequest, context: object
    ) -> agent_pb2.ReportObservationsResponse:
        self.reports.append(request)
        await asyncio.sleep(600)
        raise AssertionError("nobody waits for so long")


@dataclass
class Heard:
    """Nothing is done with what the advisor says."""

    connections: int = 0
    renewed: asyncio.Event = field(default_factory=asyncio.Event)

    def connected(self) -> None:
        self.connections += 1
        if self.connections > 1:
            self.renewed.set()

    def advice_heard(self, open_advice: Sequence[Advice]) -> None: ...

    def nodes_heard(self, nodes: Sequence[agent_pb2.NodeAdvice]) -> None: ...

    def pulse_heard(self, pulse: Pulse) -> None: ...


@pytest.fixture
async def folder() -> AsyncIterator[Path]:
    made = Path(tempfile.mkdtemp(prefix="link-"))  # short: a socket's path has at most 107 bytes
    yield made
    shutil.rmtree(made)


async def test_a_report_in_flight_when_the_connection_is_renewed_is_lost_and_not_the_agent(folder: Path) -> None:
    """gRPC cancels the calls of a channel that is closed; whoever waits for one must not take that for its own end."""
    advisor, heard, said = SlowAdvisor(), Heard(), ["first"]
    await advisor.start(folder / "a.sock")

    def registration() -> agent_pb2.RegisterRequest:
        return agent_pb2.RegisterRequest(cluster="c", version=said[0])

    link = Link((Reach(target=f"unix:{folder}/a.sock"),), "c", registration, heard, SystemClock())
    running = asyncio.create_task(link.run())
    try:
        async with asyncio.timeout(20):
            await until(lambda: heard.connections)
            report = asyncio.create_task(link.report((), (), complete=False, unavailable=()))
            await until(lambda: advisor.reports)
            said[0] = "second"
            link.check_registration()
            assert await report is False
            await heard.renewed.wait()
        second = asyncio.create_task(link.report((), (), complete=False, unavailable=(common_pb2.Unavailable(),)))
        await until(lambda: len(advisor.reports) == 2)
        second.cancel()
        with pytest.raises(asyncio.CancelledError):
            await second
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await advisor.stop()


class FailingAdvisor(FakeAdvisor):
    """Fails on one report whenever it comes, as for a defect of its own; an older one does not serve it at all."""

    code = grpc.StatusCode.INTERNAL

    async def ReportReconciliation(  # noqa: N802
        self, request: agent_pb2.ReportReconciliationRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> agent_pb2.ReportReconciliationResponse:
        if request.advice_id == "poison":
            await context.abort(self.code, "see its log")
        return await super().ReportReconciliation(request, context)


@pytest.mark.parametrize(
    ("code", "connections"), [(grpc.StatusCode.INTERNAL, TRIES_MAX), (grpc.StatusCode.UNIMPLEMENTED, 1)]
)
async def test_a_report_that_the_advisor_fails_on_does_not_hold_up_the_others(
    folder: Path, code: grpc.StatusCode, connections: int
) -> None:
    """Tried a few times, told, and left out: otherwise the link would begin anew for ever, a storm for both sides."""
    advisor, heard = FailingAdvisor(), Heard()
    advisor.code = code
    await advisor.start(folder / "a.sock")
    link = Link((Reach(target=f"unix:{folder}/a.sock"),), "c", agent_pb2.RegisterRequest, heard, SystemClock())
    for name in ("first", "poison", "last"):
        link.put(agent_pb2.ReportReconciliationRequest(cluster="c", advice_id=name))
    running = asyncio.create_task(link.run())
    await until(lambda: [item.advice_id for item in advisor.reconciled] == ["first", "last"])
    assert heard.connections == connections
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await advisor.stop()


class FrozenAdvisor(FakeAdvisor):
    """As a process that was stopped: connections stand, and nothing comes over them any more."""

    frozen = False

    async def Heartbeat(  # noqa: N802
        self, request: agent_pb2.HeartbeatRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> agent_pb2.HeartbeatResponse:
        if self.frozen:
            await asyncio.sleep(600)
        return await super().Heartbeat(request, context)

    async def Register(  # noqa: N802
        self, request: agent_pb2.RegisterRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> agent_pb2.RegisterResponse:
        if self.frozen:
            await asyncio.sleep(600)
        return await super().Register(request, context)


async def test_the_next_replica_is_gone_to_when_one_is_lost_or_falls_silent(folder: Path) -> None:
    """Nobody at the first address: the second at once. A frozen one: the other within seconds, and with all reports."""
    one, two, heard = FrozenAdvisor(), FakeAdvisor(), Heard()
    await one.start(folder / "one.sock")
    await two.start(folder / "two.sock")
    targets = tuple(Reach(target=f"unix:{folder}/{name}.sock") for name in ("gone", "one", "two"))
    link = Link(targets, "c", lambda: agent_pb2.RegisterRequest(cluster="c"), heard, SystemClock())
    running = asyncio.create_task(link.run())
    try:
        async with asyncio.timeout(20):
            await until(lambda: heard.connections == 1)
            assert await link.report((), (), complete=False, unavailable=())
            assert (len(one.reports), len(two.reports)) == (1, 0)
            one.frozen = True
            await until(lambda: heard.connections == 2)
            assert await link.report((), (), complete=False, unavailable=())
            assert (len(one.reports), len(two.reports)) == (1, 1)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await one.stop()
        await two.stop()
