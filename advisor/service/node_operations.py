"""What operators do about nodes and pauses, and what agents are told of nodes: requests checked, rows as messages."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import structlog

from advisor.board import Board
from advisor.core.modes import Pause
from advisor.ports import Clock
from advisor.service import wire
from advisor.service.callers import Caller
from advisor.service.errors import BadRequestError, NotFoundError, TooLateError
from advisor.store import errors as store_errors
from advisor.store.records import NodeReconciliation, StoredBreaker, StoredIsolation
from advisor.store.store import Store
from advisor.v1 import agent_pb2, operator_pb2

log = structlog.get_logger(__name__)

NODE_ADVICE_SECONDS = 30.0  # every message of the stream says it again; an agent that hears nothing soon stops acting
PAUSE_MAX = timedelta(days=31)


class NodeOperations:
    """The part of the operators' service that is about nodes and pauses. One per caller."""

    def __init__(self, store: Store, board: Board, clock: Clock, caller: Caller) -> None:
        self._store = store
        self._board = board
        self._clock = clock
        self._caller = caller
        self._who = caller.name

    async def pause(self, request: operator_pb2.PauseRequest) -> operator_pb2.PauseInForce:
        now = self._clock.now()
        until = wire.needed_moment(request, "until", "request")
        if not now < until <= now + PAUSE_MAX:
            raise BadRequestError(f"until: a time from now on, at most {PAUSE_MAX.days} days ahead")
        wanted = Pause(cluster=_cluster(request), until=until, why=why_of(request.why))
        made = await self._store.pause(wanted, who=self._who, origin=self._caller.origin, now=now)
        log.warning("advisor_paused", cluster=made.cluster or "all", until=made.until.isoformat(), who=self._who)
        await self._board.refresh()
        message = pause_message(made)
        for agent in await self._store.agents():
            memory = agent.job_memory
            if made.cluster in {"", agent.cluster} and memory is not None and timedelta() < memory < until - now:
                message.notes.append(
                    f"{agent.cluster} forgets an ended job after {memory.total_seconds():.0f} s (MinJobAge): one that "
                    "ends during the pause and is forgotten before its end cannot be restarted"
                )
        return message

    async def resume(self, request: operator_pb2.ResumeRequest) -> operator_pb2.PauseInForce:
        try:
            ended = await self._store.resume(
                _cluster(request),
                who=self._who,
                why=why_of(request.why),
                origin=self._caller.origin,
                now=self._clock.now(),
            )
        except store_errors.NotFound as error:
            raise NotFoundError(f"there is {error}") from None
        log.warning("advisor_resumed", cluster=ended.cluster or "all", who=self._who)
        await self._board.refresh()
        self._board.stir()
        return pause_message(ended)

    async def list_pauses(self) -> operator_pb2.ListPausesResponse:
        found = await self._store.pauses(self._clock.now())
        return operator_pb2.ListPausesResponse(pauses=[pause_message(item) for item in found])

    async def list_isolations(self, request: operator_pb2.ListIsolationsRequest) -> operator_pb2.ListIsolationsResponse:
        cluster = _cluster(request)
        node = wire.text_of(request.node, "node", most=wire.NAME_MAX)
        if request.HasField("node") and not node.strip():
            raise BadRequestError("node: given but empty; leave it out to mean all")
        found = await self._store.isolations(cluster=cluster, node=node, ended=request.ended)
        tripped = [item for item in await self._store.breakers() if cluster in {"", item.cluster}]
        return operator_pb2.ListIsolationsResponse(
            isolations=[isolation_message(item) for item in found],
            tripped=[breaker_message(item) for item in tripped],
            orphaned=[
                operator_pb2.OrphanedDrain(cluster=where, node=name, reason=wire.clean(reason))
                for where, name, reason in await self._store.orphaned_drains(cluster=cluster)
            ],
        )

    async def isolate(self, request: operator_pb2.IsolateNodeRequest) -> operator_pb2.NodeIsolation:
        cluster, node = wire.cluster_of(request.cluster), _node(request.node)
        try:
            row, changed = await self._store.isolate_by_hand(
                cluster,
                node,
                force=request.force,
                who=self._who,
                why=why_of(request.why),
                origin=self._caller.origin,
                now=self._clock.now(),
            )
        except store_errors.NotFound as error:
            raise NotFoundError(f"there is {error}") from None
        except store_errors.TooLate as error:
            raise TooLateError(str(error)) from None
        if changed:
            log.warning("isolation_opened", node=node, cluster=cluster, by="operator", who=self._who)
            await self._board.refresh((cluster,))
        return isolation_message(row)

    async def reinstate(self, request: operator_pb2.ReinstateRequest) -> operator_pb2.NodeIsolation:
        cluster, node = wire.cluster_of(request.cluster), _node(request.node)
        try:
            ended = await self._store.end_isolation(
                cluster,
                node,
                who=self._who,
                why=why_of(request.why),
                origin=self._caller.origin,
                now=self._clock.now(),
            )
        except store_errors.NotFound as error:
            raise NotFoundError(f"there is {error}") from None
        log.warning("isolation_ended", node=node, cluster=cluster, by="operator", who=self._who)
        await self._board.refresh((cluster,))
        return isolation_message(ended)

    async def report_probe(self, request: operator_pb2.ReportProbeRequest) -> operator_pb2.NodeIsolation:
        cluster, node = wire.cluster_of(request.cluster), _node(request.node)
        try:
            row = await self._store.record_probe(
                cluster,
                node,
                passed=request.passed,
                who=self._who,
                why=why_of(request.why),
                origin=self._caller.origin,
                now=self._clock.now(),
            )
        except store_errors.NotFound as error:
            raise NotFoundError(f"there is {error}") from None
        log.warning("node_probed", node=node, cluster=cluster, passed=request.passed, who=self._who)
        await self._board.refresh((cluster,))
        return isolation_message(row)

    async def reset_breaker(self, request: operator_pb2.ResetBreakerRequest) -> operator_pb2.Breaker:
        cluster = wire.cluster_of(request.cluster)
        try:
            reset = await self._store.reset_breaker(
                cluster,
                who=self._who,
                why=why_of(request.why),
                origin=self._caller.origin,
                now=self._clock.now(),
            )
        except store_errors.NotFound as error:
            raise NotFoundError(f"there is {error}") from None
        log.warning("isolation_breaker_reset", cluster=cluster, who=self._who)
        self._board.stir()
        return breaker_message(reset)


def why_of(given: str, field: str = "why") -> str:
    why = wire.text_of(given, field).strip()
    if not why:
        raise BadRequestError(f"{field}: say why, it is kept")
    return why


def _cluster(request: Any) -> str:
    """ "" for all clusters. Given and empty is a mistake: it would mean all."""
    return wire.cluster_of(request.cluster) if request.HasField("cluster") else ""


def _node(name: str) -> str:
    return wire.node_names((name,), "node")[0]


def node_reconciliation(request: agent_pb2.ReportNodeReconciliationRequest, now: datetime) -> NodeReconciliation:
    """Never later than `now`: evidence from before a repair is spent, and what is yet to come is not from before."""
    said = wire.status_and_reason(request.status, request.reason)
    return NodeReconciliation(
        generation=request.generation,
        status=said[0],
        reason=said[1],
        at=min(wire.needed_moment(request, "at", "request"), now),
        detail=wire.text_of(request.detail, "detail"),
    )


def node_advice(rows: Sequence[StoredIsolation]) -> list[agent_pb2.NodeAdvice]:
    """What is wanted of nodes, as an agent hears it."""
    return [
        agent_pb2.NodeAdvice(
            isolation_id=row.isolation_id,
            node=row.node,
            generation=row.generation,
            desired=agent_pb2.NODE_DESIRE_DRAINED if row.ended_at is None else agent_pb2.NODE_DESIRE_NOT_DRAINED,
            dry_run=row.dry_run,
            category=row.category,
            why=wire.clean(row.why),
            time_to_live=wire.duration(NODE_ADVICE_SECONDS),
            seen_drained=row.drained_at is not None,
        )
        for row in rows
    ]


def pause_message(item: Pause) -> operator_pb2.PauseInForce:
    return operator_pb2.PauseInForce(
        cluster=item.cluster or None,
        until=wire.stamp(item.until),
        set_by=item.set_by,
        why=item.why,
        set_at=wire.stamp(item.set_at),
    )


def breaker_message(item: StoredBreaker) -> operator_pb2.Breaker:
    return operator_pb2.Breaker(cluster=item.cluster, tripped_at=wire.stamp(item.tripped_at), why=item.why)


def isolation_message(row: StoredIsolation) -> operator_pb2.NodeIsolation:
    return operator_pb2.NodeIsolation(
        isolation_id=row.isolation_id,
        cluster=row.cluster,
        node=row.node,
        generation=row.generation,
        dry_run=row.dry_run,
        category=row.category,
        why=wire.clean(row.why),
        job_id=row.job_id,
        opened_at=wire.stamp(row.opened_at),
        expires_at=wire.stamp(row.expires_at),
        status=wire.to_wire(row.status),
        reason=wire.to_wire(row.reason),
        detail=wire.clean(row.detail),
        drained_at=wire.stamp(row.drained_at),
        ended_at=wire.stamp(row.ended_at),
        ended_by=row.ended_by or "",
        ended_why=wire.clean(row.ended_why),
        probed_at=wire.stamp(row.probed_at),
        probe_passed=row.probe_passed,
        opened_by=row.opened_by,
    )
