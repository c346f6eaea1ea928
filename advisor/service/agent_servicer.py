# ruff: noqa: N802 - gRPC methods have the names of the contract.
"""What the agent beside the scheduler says and hears."""

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import grpc
import structlog

from advisor.board import Board
from advisor.instruments import Instruments
from advisor.ports import Clock
from advisor.service import wire
from advisor.service.callers import Caller
from advisor.service.errors import BadRequestError, NotFoundError
from advisor.service.limits import Queues
from advisor.service.node_operations import node_advice, node_reconciliation
from advisor.service.outgoing import advice_message
from advisor.service.reported import Reported
from advisor.store import errors as store_errors
from advisor.store.records import AgentMode, AttemptKey, Milestone, StopFile
from advisor.store.store import Store
from advisor.v1 import agent_pb2, agent_pb2_grpc

log = structlog.get_logger(__name__)

REFUSALS_MAX = 100
MILESTONES_MAX = 10_000
RIGHTS_MAX = 50
STREAMS_PER_CALLER_MAX = 16

Context = grpc.aio.ServicerContext[Any, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentServices:
    """What the servicers of all callers share."""

    store: Store
    board: Board
    clock: Clock
    keepalive_seconds: float
    observations_max: int
    evidence_max: int
    instruments: Instruments
    queues: Queues = field(default_factory=Queues)
    reported: Reported = field(default_factory=Reported)


class AgentServicer(agent_pb2_grpc.AgentServiceServicer):
    """One per caller. Every method checks its whole message before it stores anything of it."""

    def __init__(self, services: AgentServices, caller: Caller) -> None:
        self._services = services
        self._caller = caller
        self._streams = 0

    async def Register(self, request: agent_pb2.RegisterRequest, context: Context) -> agent_pb2.RegisterResponse:
        if len(request.missing_rights) > RIGHTS_MAX:
            raise BadRequestError(f"missing_rights: more than {RIGHTS_MAX}")
        store = self._services.store
        agent = await store.register_agent(
            cluster=wire.cluster_of(request.cluster),
            host=wire.text_of(request.host, "host", most=wire.NAME_MAX),
            version=wire.text_of(request.version, "version", most=wire.NAME_MAX),
            mode=wire.from_wire(AgentMode, request.mode, "mode"),
            scheduler=wire.text_of(request.scheduler, "scheduler", most=wire.NAME_MAX),
            requeue_delay=wire.span_of(request, "requeue_delay", "request"),
            job_memory=wire.span_of(request, "job_memory", "request"),
            missing_rights=[
                wire.text_of(right, f"missing_rights[{at}]") for at, right in enumerate(request.missing_rights)
            ],
            now=self._services.clock.now(),
        )
        log.info("agent_registered", cluster=agent.cluster, host=agent.host, mode=agent.mode, user=self._caller.name)
        return agent_pb2.RegisterResponse(
            session=agent.session,
            incarnation=store.incarnation,
            keepalive=wire.duration(self._services.keepalive_seconds),
        )

    async def Heartbeat(self, request: agent_pb2.HeartbeatRequest, context: Context) -> agent_pb2.HeartbeatResponse:
        known = await self._services.store.heartbeat(
            cluster=wire.cluster_of(request.cluster),
            session=wire.text_of(request.session, "session", most=wire.NAME_MAX),
            mode=wire.from_wire(AgentMode, request.mode, "mode"),
            now=self._services.clock.now(),
            stop_file=_stop_file(request),
        )
        if not known:
            raise NotFoundError("session: not known, register again")
        self._services.board.heard(request.cluster)
        self._services.instruments.scheduler_asked(request.cluster, request.session, request.scheduler_rpcs)
        board = self._services.board
        return agent_pb2.HeartbeatResponse(
            incarnation=self._services.store.incarnation,
            tick_age=wire.duration(board.tick_age_seconds),
            ticks=board.pulse.ticks,
        )

    async def ReportObservations(
        self, request: agent_pb2.ReportObservationsRequest, context: Context
    ) -> agent_pb2.ReportObservationsResponse:
        """One bad observation is refused by name; the others count, but then the report is not `complete`."""
        cluster = wire.cluster_of(request.cluster)
        most = self._services.observations_max
        for name, given in (("jobs", request.jobs), ("nodes", request.nodes), ("unavailable", request.unavailable)):
            if len(given) > most:
                raise BadRequestError(f"{name}: {len(given)} entries, at most {most} in one report")
        if request.listed and not request.complete:
            raise BadRequestError("listed: only the report that makes a listing complete names all of it")
        listed = wire.job_ids(request.listed, "listed")
        async with self._services.queues.turn(cluster):
            report = await self._services.reported.read(request, cluster, self._services.clock.now())
            jobs, nodes, refused = report.jobs, report.nodes, report.refused
            missing = tuple(wire.unavailable(item, f"unavailable[{at}]") for at, item in enumerate(request.unavailable))
            recorded = await self._services.store.record_observations(
                cluster,
                jobs,
                nodes,
                complete=request.complete and not refused and not missing,
                listed=listed,
                now=self._services.clock.now(),
            )
        if self._services.board.heard(cluster, missing, request.session):
            await self._services.store.agent_says(cluster=cluster, session=request.session, unavailable=missing)
        for key in recorded.withdrawn:
            log.warning("requeue_forgotten", cluster=cluster, attempt=str(key))
        if recorded.changed:
            self._services.board.stir()
        refused.extend(recorded.refused)
        if refused:
            log.warning("observations_refused", cluster=cluster, count=len(refused), first=refused[0])
        return agent_pb2.ReportObservationsResponse(accepted=recorded.accepted, refused=refused[:REFUSALS_MAX])

    async def WatchAdvice(
        self, request: agent_pb2.WatchAdviceRequest, context: Context
    ) -> AsyncIterator[agent_pb2.WatchAdviceResponse]:
        """All open advice at once, on every change, and at least once per keepalive."""
        cluster = wire.cluster_of(request.cluster)
        if self._streams >= STREAMS_PER_CALLER_MAX:
            raise BadRequestError(f"more than {STREAMS_PER_CALLER_MAX} advice streams at once")
        board = self._services.board
        self._streams += 1
        try:
            while not board.closed:
                version = board.version
                yield await self._open_advice(cluster)
                await board.wait_beyond(version, self._services.keepalive_seconds)
        finally:
            self._streams -= 1

    async def _open_advice(self, cluster: str) -> agent_pb2.WatchAdviceResponse:
        services = self._services
        incarnation = ""
        while incarnation != services.store.incarnation:  # what is said under its name was read under it
            incarnation = services.store.incarnation
            rows = await services.board.open_for(cluster)
            nodes = await services.board.nodes_for(cluster)
        paused = services.board.paused_until(cluster)
        now = services.clock.now()
        return agent_pb2.WatchAdviceResponse(
            incarnation=incarnation,
            open=[
                advice_message(
                    row, incarnation=incarnation, now=now, evidence_max=services.evidence_max, paused_until=paused
                )
                for row in rows
            ],
            nodes=node_advice(nodes),
            tick_age=wire.duration(services.board.tick_age_seconds),
            ticks=services.board.pulse.ticks,
        )

    async def ReportReconciliation(
        self, request: agent_pb2.ReportReconciliationRequest, context: Context
    ) -> agent_pb2.ReportReconciliationResponse:
        cluster = wire.cluster_of(request.cluster)
        wire.attempt_ref(request.attempt, cluster, "attempt")
        advice_id = wire.text_of(request.advice_id, "advice_id", most=wire.NAME_MAX)
        outcome = wire.reconciliation(request)
        try:
            key = await self._services.store.record_reconciliation(
                advice_id, outcome, who=f"agent {cluster} ({self._caller.name})"
            )
        except store_errors.NotFound:
            raise NotFoundError(f"advice_id: there is no advice {advice_id!r}") from None
        log.info(
            "advice_reconciled",
            advice=advice_id,
            attempt=str(key),
            job=request.attempt.job_id,
            status=outcome.status,
            reason=outcome.reason,
        )
        self._services.instruments.reconciled(outcome.status, outcome.reason)
        self._services.board.refresh_soon(cluster)
        return agent_pb2.ReportReconciliationResponse()

    async def ReportNodeReconciliation(
        self, request: agent_pb2.ReportNodeReconciliationRequest, context: Context
    ) -> agent_pb2.ReportNodeReconciliationResponse:
        cluster = wire.cluster_of(request.cluster)
        key = wire.text_of(request.isolation_id, "isolation_id", most=wire.NAME_MAX)
        news = node_reconciliation(request, self._services.clock.now())
        who = f"agent {cluster} ({self._caller.name})"
        try:
            row = await self._services.store.record_node_reconciliation(key, news, cluster=cluster, who=who)
        except store_errors.NotFound:
            raise NotFoundError(f"isolation_id: there is no isolation {key!r}") from None
        log.info("node_reconciled", node=row.node, isolation=key, status=news.status, reason=news.reason)
        await self._services.board.refresh((cluster,))  # few and slow: unlike jobs they are told at once
        return agent_pb2.ReportNodeReconciliationResponse()

    async def ReportMilestones(
        self, request: agent_pb2.ReportMilestonesRequest, context: Context
    ) -> agent_pb2.ReportMilestonesResponse:
        cluster = wire.cluster_of(request.cluster)
        if len(request.milestones) > MILESTONES_MAX:
            raise BadRequestError(f"milestones: more than {MILESTONES_MAX}")
        refs, milestones = [], []
        for at, item in enumerate(request.milestones):
            refs.append(wire.attempt_ref(item.attempt, cluster, f"milestones[{at}].attempt"))
            milestones.append(wire.milestone(item, f"milestones[{at}]"))
        keys = await self._services.store.resolve(refs)
        found: dict[AttemptKey, list[Milestone]] = {}
        for key, milestone in zip(keys, milestones, strict=True):
            if key is not None:
                found.setdefault(key, []).append(milestone)
        if None in keys:
            log.info("milestones_unknown", cluster=cluster, count=sum(key is None for key in keys))
        await self._services.store.record_milestones(found)
        return agent_pb2.ReportMilestonesResponse()


def _stop_file(request: agent_pb2.HeartbeatRequest) -> StopFile | None:
    if not request.HasField("stop_file"):
        return None
    return StopFile(
        why=wire.text_of(request.stop_file.why, "stop_file.why"),
        since=wire.moment_of(request.stop_file, "since", "stop_file"),
    )
