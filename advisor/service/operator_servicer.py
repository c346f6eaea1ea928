# ruff: noqa: N802 - gRPC methods have the names of the contract.
"""What an operator sees and changes. Every change is audited with the account that the kernel vouches for."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import grpc
import structlog

from advisor.board import Board
from advisor.core.autonomy import Earned
from advisor.core.modes import ModeChange, ModeSetting
from advisor.core.words import Mode
from advisor.plain_text import said
from advisor.ports import Clock
from advisor.service import wire
from advisor.service.callers import Caller
from advisor.service.correction_operations import CorrectionOperations
from advisor.service.errors import BadRequestError, FailureKind, NotFoundError, kind_of
from advisor.service.node_operations import NodeOperations, why_of
from advisor.service.order_operations import OrderOperations
from advisor.store import errors as store_errors
from advisor.store.engines import SchemaAbsentError
from advisor.store.leases import StoredReplica
from advisor.store.records import AgentMode, StoredAgent
from advisor.store.store import Store
from advisor.v1 import common_pb2, operator_pb2, operator_pb2_grpc

_NAMED_MAX = 10

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


STORE = "store"  # the name under which it is among the sources while no tick completes, or it does not answer
SCHEMA_ABSENT = "schema_absent"  # it does not because the database is empty, or of another release


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorServices:
    store: Store
    board: Board
    clock: Clock
    version: str
    started_at: datetime
    default_mode: Mode
    sources: Callable[[], Sequence[SourceHealth]]


class OperatorServicer(operator_pb2_grpc.OperatorServiceServicer):
    def __init__(self, services: OperatorServices, caller: Caller) -> None:
        self._services = services
        self._caller = caller
        self._nodes = NodeOperations(services.store, services.board, services.clock, caller)
        self._orders = OrderOperations(services.store, services.board, services.clock, caller)
        self._corrections = CorrectionOperations(services.store, services.clock, caller)

    async def Pause(self, request: operator_pb2.PauseRequest, context: Context) -> operator_pb2.PauseInForce:
        return await self._nodes.pause(request)

    async def Resume(self, request: operator_pb2.ResumeRequest, context: Context) -> operator_pb2.PauseInForce:
        return await self._nodes.resume(request)

    async def ListPauses(
        self, request: operator_pb2.ListPausesRequest, context: Context
    ) -> operator_pb2.ListPausesResponse:
        return await self._nodes.list_pauses()

    async def ListIsolations(
        self, request: operator_pb2.ListIsolationsRequest, context: Context
    ) -> operator_pb2.ListIsolationsResponse:
        return await self._nodes.list_isolations(request)

    async def Reinstate(self, request: operator_pb2.ReinstateRequest, context: Context) -> operator_pb2.NodeIsolation:
        return await self._nodes.reinstate(request)

    async def ReportProbe(
        self, request: operator_pb2.ReportProbeRequest, context: Context
    ) -> operator_pb2.NodeIsolation:
        return await self._nodes.report_probe(request)

    async def ResetBreaker(self, request: operator_pb2.ResetBreakerRequest, context: Context) -> operator_pb2.Breaker:
        return await self._nodes.reset_breaker(request)

    async def Veto(self, request: operator_pb2.VetoRequest, context: Context) -> operator_pb2.OrderAnswer:
        return await self._orders.veto(request)

    async def Withdraw(self, request: operator_pb2.WithdrawRequest, context: Context) -> operator_pb2.OrderAnswer:
        return await self._orders.withdraw(request)

    async def Override(self, request: operator_pb2.OverrideRequest, context: Context) -> operator_pb2.OrderAnswer:
        return await self._orders.override(request)

    async def Exclude(self, request: operator_pb2.ExcludeRequest, context: Context) -> operator_pb2.OrderAnswer:
        return await self._orders.exclude(request)

    async def Spare(self, request: operator_pb2.SpareRequest, context: Context) -> operator_pb2.OrderAnswer:
        return await self._orders.spare(request)

    async def ResetBudget(self, request: operator_pb2.ResetBudgetRequest, context: Context) -> operator_pb2.OrderAnswer:
        return await self._orders.reset_budget(request)

    async def LiftOrder(self, request: operator_pb2.LiftOrderRequest, context: Context) -> operator_pb2.OrderAnswer:
        return await self._orders.lift(request)

    async def ListOrders(
        self, request: operator_pb2.ListOrdersRequest, context: Context
    ) -> operator_pb2.ListOrdersResponse:
        return await self._orders.list_orders(request)

    async def IsolateNode(
        self, request: operator_pb2.IsolateNodeRequest, context: Context
    ) -> operator_pb2.NodeIsolation:
        return await self._nodes.isolate(request)

    async def CorrectVerdict(
        self, request: operator_pb2.CorrectVerdictRequest, context: Context
    ) -> operator_pb2.Correction:
        return await self._corrections.correct(request)

    async def ListCorrections(
        self, request: operator_pb2.ListCorrectionsRequest, context: Context
    ) -> operator_pb2.ListCorrectionsResponse:
        return await self._corrections.list(request)

    async def ListModes(
        self, request: operator_pb2.ListModesRequest, context: Context
    ) -> operator_pb2.ListModesResponse:
        settings, earned = await self._services.store.modes(), await self._services.store.earned()
        return operator_pb2.ListModesResponse(
            settings=[_mode_message(setting) for setting in settings],
            earned=[_earned_message(item) for item in earned if item.held],
            default_mode=wire.to_wire(self._services.default_mode),
        )

    async def SetMode(self, request: operator_pb2.SetModeRequest, context: Context) -> operator_pb2.ModeSetting:
        setting = _place(request.setting, wire.from_wire(Mode, request.setting.mode, "setting.mode"))
        change = await self._services.store.set_mode(
            setting,
            who=self._caller.name,
            why=why_of(request.setting.why, "setting.why"),
            origin=self._caller.origin,
            now=self._services.clock.now(),
        )
        await self._changed("mode_set", change)
        notes = await self._notes(setting) if setting.mode is Mode.AUTONOMOUS else []
        return _change_message(change, notes)

    async def UnsetMode(self, request: operator_pb2.UnsetModeRequest, context: Context) -> operator_pb2.ModeSetting:
        place = _place(request.setting, Mode.MONITOR)
        try:
            change = await self._services.store.unset_mode(
                place,
                who=self._caller.name,
                why=why_of(request.setting.why, "setting.why"),
                origin=self._caller.origin,
                now=self._services.clock.now(),
            )
        except store_errors.NotFound as error:
            raise NotFoundError(f"setting: there is {error}") from None
        await self._changed("mode_unset", change)
        return _change_message(change, [])

    async def _changed(self, what: str, change: ModeChange) -> None:
        """Take back what may not be acted on any more before we answer, and decide again at once."""
        stopped = [item.where for item in change.no_longer_autonomous]
        setting = change.setting
        log.info(what, mode=setting.mode, where=setting.where, stopped=stopped, who=self._caller.name)
        await self._services.board.refresh()
        self._services.board.stir()

    async def _notes(self, setting: ModeSetting) -> list[str]:
        """Why nothing may be applied although it is autonomous. No error: the agent may come later."""
        store = self._services.store
        agents = [item for item in await store.agents() if setting.cluster in {"", item.cluster}]
        notes = [_observing(agent) for agent in agents if agent.mode is AgentMode.OBSERVE]
        if not agents:
            whose = f"of cluster {setting.cluster} " if setting.cluster else ""
            notes.append(f"no agent {whose}has ever reported: nothing will be applied until one runs")
        elif (setting.partition or setting.job_id) and not await store.ever_reported(
            cluster=setting.cluster, partition=setting.partition, job_id=setting.job_id
        ):
            where = replace(setting, category="").where
            notes.append(f"no agent has ever reported {where}: is it spelled as the scheduler does?")
        failed = await store.left_on_paper(setting, self._services.clock.now())
        if failed:
            named = ", ".join(failed[:_NAMED_MAX]) + (" and more" if len(failed) > _NAMED_MAX else "")
            notes.append(
                f"failed before, on paper, and not restarted by this: {named}; advisor override JOB restart does, for"
                " as long as the scheduler remembers the job"
            )
        return notes

    async def GetStatus(self, request: operator_pb2.GetStatusRequest, context: Context) -> operator_pb2.Status:
        """Also without a store, which is then named among the sources as what it is: absent."""
        services, pulse = self._services, self._services.board.pulse
        sources = list(services.sources())
        incidents, agents, replicas = 0, tuple[StoredAgent, ...](), tuple[StoredReplica, ...]()
        try:
            incidents, agents = await services.store.open_incident_count(), await services.store.agents()
            replicas = await services.store.replicas.known()
        except Exception as error:
            if kind_of(error) is not FailureKind.STORE_ABSENT:
                raise
            reason = SCHEMA_ABSENT if isinstance(error, SchemaAbsentError) else "failing"
            sources.append(_store_absent(said(error), reason))
        else:
            if why := services.board.failing or services.board.refused:
                sources.append(_store_absent(why))
        return operator_pb2.Status(
            version=services.version,
            incarnation=services.store.incarnation,
            started_at=wire.stamp(services.started_at),
            ticks=pulse.ticks,
            tick_age=wire.duration(services.board.tick_age_seconds or pulse.age_seconds),
            tick_took=wire.duration(pulse.took_seconds),
            watched_jobs=pulse.watched,
            unwatched_jobs=pulse.unwatched,
            open_incidents=incidents,
            sources=[_source_message(source) for source in sources],
            agents=[_agent_message(agent) for agent in agents],
            replicas=[
                _replica_message(item, pulse.age_seconds if item.replica_id == services.board.replica_id else None)
                for item in replicas
                if item.ended_at is None or item.lost_since is not None
            ],
        )


def _store_absent(why: str, reason: str = "failing") -> SourceHealth:
    return SourceHealth(name=STORE, kind="the advisor's own", available=False, reason=reason, detail=why)


def _place(given: operator_pb2.ModeSetting, mode: Mode) -> ModeSetting:
    """Which advice is meant. A field that is given and empty is a mistake: it would mean everything."""
    fields = {}
    for name in ("cluster", "partition", "account", "job_id", "category"):
        value = wire.text_of(getattr(given, name), f"setting.{name}", most=wire.NAME_MAX)
        if given.HasField(name) and not value.strip():
            raise BadRequestError(f"setting.{name}: given but empty; leave it out to mean all")
        fields[name] = value
    return ModeSetting(
        mode=mode,
        cluster=fields["cluster"],
        partition=fields["partition"],
        account=fields["account"],
        job_id=fields["job_id"],
        category=wire.category_of(fields["category"], "setting.category"),
        percent=_share(given, mode),
    )


def _share(given: operator_pb2.ModeSetting, mode: Mode) -> int | None:
    if not given.HasField("percent"):
        return None
    if mode is not Mode.AUTONOMOUS or given.HasField("job_id"):
        raise BadRequestError("setting.percent: a share of jobs can be autonomous, and not of one job")
    if not 1 <= given.percent <= 99:
        raise BadRequestError(f"setting.percent: {given.percent} is not from 1 to 99; leave it out to mean all jobs")
    return given.percent


def _observing(agent: StoredAgent) -> str:
    whose = f"the agent of {agent.cluster} on {agent.host} is in observe mode"
    if agent.missing_rights:
        return f"{whose}: nothing will be applied until it has these rights: {'; '.join(agent.missing_rights)}"
    return f'{whose}: nothing will be applied until its configuration says mode = "act"'


def _change_message(change: ModeChange, notes: Sequence[str]) -> operator_pb2.ModeSetting:
    message = _mode_message(change.setting)
    message.no_longer_autonomous.extend(_mode_message(item) for item in change.no_longer_autonomous)
    message.still_autonomous.extend(_mode_message(item) for item in change.still_autonomous)
    message.notes.extend(notes)
    return message


def _mode_message(setting: ModeSetting) -> operator_pb2.ModeSetting:
    return operator_pb2.ModeSetting(
        cluster=setting.cluster or None,
        partition=setting.partition or None,
        job_id=setting.job_id or None,
        category=setting.category or None,
        account=setting.account or None,
        percent=setting.percent,
        mode=wire.to_wire(setting.mode),
        set_by=setting.set_by,
        why=setting.why,
        set_at=wire.stamp(setting.set_at),
    )


def _earned_message(item: Earned) -> operator_pb2.ModeSetting:
    return operator_pb2.ModeSetting(
        cluster=item.cluster,
        category=item.category,
        mode=wire.to_wire(Mode.AUTONOMOUS),
        set_by="earned",
        why=f"{'restarts and stops' if item.with_stop else 'restarts only'}: {item.why}",
        set_at=wire.stamp(item.since),
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


def _replica_message(item: StoredReplica, own_age: float | None) -> operator_pb2.ReplicaStatus:
    """`own_age`: of the tick of the one that answers, which knows it better than the database does."""
    return operator_pb2.ReplicaStatus(
        replica_id=item.replica_id,
        host=wire.clean(item.host),
        pid=item.pid,
        version=item.version,
        build=item.build,
        schema=item.schema,
        started_at=wire.stamp(item.started_at),
        tick_age=wire.duration(item.tick_age if own_age is None else own_age),
        jobs=item.jobs,
        alive=item.alive,
        answering=own_age is not None,
        address=wire.clean(item.address),
        lost_since=wire.stamp(item.lost_since) if item.lost_since is not None else None,
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
        stop_file=None
        if agent.stop_file is None
        else common_pb2.StopFile(why=wire.clean(agent.stop_file.why), since=wire.stamp(agent.stop_file.since)),
    )
