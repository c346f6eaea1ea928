# ruff: noqa: N802 - gRPC methods have the names of the contract.
"""What an operator sees and changes. Every change is audited with the account that the kernel vouches for."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import grpc
import structlog

from advisor.board import Board
from advisor.core.modes import ModeSetting
from advisor.core.words import Category, Mode
from advisor.ports import Clock
from advisor.service import wire
from advisor.service.errors import BadRequestError
from advisor.service.gate import Caller
from advisor.store.records import StoredAgent
from advisor.store.store import Store
from advisor.v1 import operator_pb2, operator_pb2_grpc

log = structlog.get_logger(__name__)

Context = grpc.aio.ServicerContext[Any, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceHealth:
    """How one source answered last."""

    name: str
    kind: str
    available: bool
    reason: str = ""
    detail: str = ""
    newest_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorServices:
    store: Store
    board: Board
    clock: Clock
    version: str
    started_at: datetime
    sources: Callable[[], Sequence[SourceHealth]]


class OperatorServicer(operator_pb2_grpc.OperatorServiceServicer):
    def __init__(self, services: OperatorServices, caller: Caller) -> None:
        self._services = services
        self._caller = caller

    async def ListModes(
        self, request: operator_pb2.ListModesRequest, context: Context
    ) -> operator_pb2.ListModesResponse:
        settings = await self._services.store.modes()
        return operator_pb2.ListModesResponse(settings=[_mode_message(setting) for setting in settings])

    async def SetMode(self, request: operator_pb2.SetModeRequest, context: Context) -> operator_pb2.ModeSetting:
        given = request.setting
        why = wire.text_of(given.why, "setting.why").strip()
        if not why:
            raise BadRequestError("setting.why: say why, it is kept with the setting")
        if given.category and given.category not in list(Category):
            raise BadRequestError(f"setting.category: {given.category[:64]!r} is not one of {', '.join(Category)}")
        setting = ModeSetting(
            mode=wire.from_wire(Mode, given.mode, "setting.mode"),
            cluster=wire.text_of(given.cluster, "setting.cluster", most=wire.NAME_MAX),
            partition=wire.text_of(given.partition, "setting.partition", most=wire.NAME_MAX),
            job_id=wire.text_of(given.job_id, "setting.job_id", most=wire.NAME_MAX),
            category=given.category,
        )
        stored = await self._services.store.set_mode(
            setting, who=self._caller.name, why=why, origin="unix socket", now=self._services.clock.now()
        )
        log.info("mode_set", mode=stored.mode, who=self._caller.name, cluster=stored.cluster, job=stored.job_id)
        self._services.board.wake.set()
        return _mode_message(stored)

    async def GetStatus(self, request: operator_pb2.GetStatusRequest, context: Context) -> operator_pb2.Status:
        services, pulse = self._services, self._services.board.pulse
        return operator_pb2.Status(
            version=services.version,
            incarnation=services.store.incarnation,
            started_at=wire.stamp(services.started_at),
            ticks=pulse.ticks,
            tick_age=wire.duration(pulse.age_seconds),
            tick_took=wire.duration(pulse.took_seconds),
            watched_jobs=pulse.watched,
            open_incidents=await services.store.open_incident_count(),
            sources=[_source_message(source) for source in services.sources()],
            agents=[_agent_message(agent) for agent in await services.store.agents()],
        )


def _mode_message(setting: ModeSetting) -> operator_pb2.ModeSetting:
    return operator_pb2.ModeSetting(
        cluster=setting.cluster,
        partition=setting.partition,
        job_id=setting.job_id,
        category=setting.category,
        mode=wire.to_wire(setting.mode),
        set_by=setting.set_by,
        why=setting.why,
        set_at=wire.stamp(setting.set_at),
    )


def _source_message(source: SourceHealth) -> operator_pb2.SourceStatus:
    return operator_pb2.SourceStatus(
        name=source.name,
        kind=source.kind,
        available=source.available,
        reason=source.reason,
        detail=wire.clean(source.detail),
        newest_at=wire.stamp(source.newest_at),
    )


def _agent_message(agent: StoredAgent) -> operator_pb2.AgentStatus:
    return operator_pb2.AgentStatus(
        cluster=agent.cluster,
        host=agent.host,
        mode=agent.mode,
        scheduler=agent.scheduler,
        last_seen_at=wire.stamp(agent.last_seen_at),
        requeue_delay=wire.duration(agent.requeue_delay) if agent.requeue_delay is not None else None,
        missing_rights=agent.missing_rights,
    )
