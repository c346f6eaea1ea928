# ruff: noqa: N802 - gRPC methods have the names of the contract.
"""Who decided what, why, from which evidence, and what came of it. Reads only."""

from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import grpc

from advisor.core.words import Action, Mode
from advisor.ports import Clock
from advisor.service import outgoing, outgoing_audit, wire
from advisor.service.errors import BadRequestError, NotFoundError
from advisor.store import errors as store_errors
from advisor.store.records import (
    PAGE_SIZE_MAX,
    AuditFilter,
    EventFilter,
    LemonsWanted,
    Page,
    ReconciliationStatus,
    SignalFilter,
)
from advisor.store.store import Store
from advisor.v1 import audit_pb2, audit_pb2_grpc

Context = grpc.aio.ServicerContext[Any, Any]
Found = TypeVar("Found")

TIMELINE_ATTEMPTS = 20
TIMELINE_ATTEMPTS_MAX = 100
_HELD_MAX = 64


class AuditServicer(audit_pb2_grpc.AuditServiceServicer):
    def __init__(self, *, store: Store, clock: Clock, evidence_max: int, suspect_score: float) -> None:
        self._store = store
        self._clock = clock
        self._evidence_max = evidence_max
        self._suspect_score = suspect_score

    async def GetDecision(self, request: audit_pb2.GetDecisionRequest, context: Context) -> audit_pb2.Decision:
        row = await _found(self._store.audit.decision(_id(request.decision_id)), f"decision {request.decision_id!r}")
        return outgoing.decision_message(row, incarnation=self._store.incarnation, evidence_max=self._evidence_max)

    async def ListDecisions(
        self, request: audit_pb2.ListDecisionsRequest, context: Context
    ) -> audit_pb2.ListDecisionsResponse:
        async with _refusals_told():
            listing = await self._store.audit.decisions(_filter(request.filter), _page(request.page))
        incarnation = self._store.incarnation
        return audit_pb2.ListDecisionsResponse(
            decisions=[
                outgoing.decision_message(row, incarnation=incarnation, evidence_max=self._evidence_max)
                for row in listing.rows
            ],
            next_cursor=listing.next_cursor,
        )

    async def GetDecisionInputs(
        self, request: audit_pb2.GetDecisionInputsRequest, context: Context
    ) -> audit_pb2.DecisionInputs:
        held = [wire.text_of(name, "held", most=wire.NAME_MAX) for name in request.held[:_HELD_MAX]]
        found = self._store.audit.decision_inputs(_id(request.decision_id), held=held)
        return outgoing.inputs_message(await _found(found, f"decision {request.decision_id!r}"))

    async def GetIncident(self, request: audit_pb2.GetIncidentRequest, context: Context) -> audit_pb2.Incident:
        row = await _found(self._store.audit.incident(_id(request.incident_id)), f"incident {request.incident_id!r}")
        return outgoing.incident_message(row)

    async def ListIncidents(
        self, request: audit_pb2.ListIncidentsRequest, context: Context
    ) -> audit_pb2.ListIncidentsResponse:
        async with _refusals_told():
            listing = await self._store.audit.incidents(
                _filter(request.filter), _page(request.page), only_open=request.open
            )
        return audit_pb2.ListIncidentsResponse(
            incidents=[outgoing.incident_message(row) for row in listing.rows], next_cursor=listing.next_cursor
        )

    async def GetAttempt(self, request: audit_pb2.GetAttemptRequest, context: Context) -> audit_pb2.Attempt:
        if not request.job_key and not (request.cluster and request.job_id):
            raise BadRequestError("give job_key, or cluster and job_id")
        wanted = self._store.audit.attempt(
            cluster=wire.text_of(request.cluster, "cluster", most=wire.NAME_MAX),
            job_id=wire.text_of(request.job_id, "job_id", most=wire.NAME_MAX),
            number=wire.attempt_number(request.attempt, "attempt"),
            job_key=wire.text_of(request.job_key, "job_key", most=wire.NAME_MAX),
        )
        row = await _found(wanted, f"attempt {request.attempt} of job {request.job_id or request.job_key!r}")
        return outgoing.attempt_message(row)

    async def ListAttempts(
        self, request: audit_pb2.ListAttemptsRequest, context: Context
    ) -> audit_pb2.ListAttemptsResponse:
        async with _refusals_told():
            listing = await self._store.audit.attempts(_filter(request.filter), _page(request.page))
        return audit_pb2.ListAttemptsResponse(
            attempts=[outgoing.attempt_message(row) for row in listing.rows], next_cursor=listing.next_cursor
        )

    async def GetNode(self, request: audit_pb2.GetNodeRequest, context: Context) -> audit_pb2.Node:
        cluster = wire.cluster_of(request.cluster)
        name = wire.node_names([request.name], "name")[0]
        row = await _found(
            self._store.audit.node(cluster, name, now=self._clock.now()), f"node {name!r} in {cluster!r}"
        )
        return outgoing.node_message(row, suspect_score=self._suspect_score)

    async def ListNodes(self, request: audit_pb2.ListNodesRequest, context: Context) -> audit_pb2.ListNodesResponse:
        async with _refusals_told():
            listing = await self._store.audit.nodes(_filter(request.filter), _page(request.page), now=self._clock.now())
        return audit_pb2.ListNodesResponse(
            nodes=[outgoing.node_message(row, suspect_score=self._suspect_score) for row in listing.rows],
            next_cursor=listing.next_cursor,
        )

    async def ListSignals(
        self, request: audit_pb2.ListSignalsRequest, context: Context
    ) -> audit_pb2.ListSignalsResponse:
        wanted = SignalFilter(
            incidents=_filter(request.filter),
            rule=wire.text_of(request.rule, "rule", most=wire.NAME_MAX),
            trust=wire.text_of(request.trust, "trust", most=wire.NAME_MAX),
            role=wire.text_of(request.role, "role", most=wire.NAME_MAX),
        )
        async with _refusals_told():
            listing = await self._store.audit.signals(wanted, _page(request.page))
        return audit_pb2.ListSignalsResponse(
            signals=[outgoing_audit.signal_message(row) for row in listing.rows], next_cursor=listing.next_cursor
        )

    async def ListActions(
        self, request: audit_pb2.ListActionsRequest, context: Context
    ) -> audit_pb2.ListActionsResponse:
        async with _refusals_told():
            listing = await self._store.audit.actions(_filter(request.filter), _page(request.page))
        return audit_pb2.ListActionsResponse(
            actions=[outgoing_audit.action_message(row) for row in listing.rows], next_cursor=listing.next_cursor
        )

    async def ListAudit(self, request: audit_pb2.ListAuditRequest, context: Context) -> audit_pb2.ListAuditResponse:
        wanted = EventFilter(
            **{
                name: wire.text_of(getattr(request, name), name, most=wire.NAME_MAX)
                for name in ("cluster", "who", "what", "subject")
            },
            since=wire.moment_of(request, "since", "request"),
            until=wire.moment_of(request, "until", "request"),
            everything=request.everything,
        )
        async with _refusals_told():
            listing = await self._store.audit.records(wanted, _page(request.page))
        return audit_pb2.ListAuditResponse(
            records=[outgoing_audit.record_message(row) for row in listing.rows], next_cursor=listing.next_cursor
        )

    async def GetJobTimeline(self, request: audit_pb2.GetJobTimelineRequest, context: Context) -> audit_pb2.JobTimeline:
        if not request.job_key and not (request.cluster and request.job_id):
            raise BadRequestError("give job_key, or cluster and job_id")
        if request.attempts_max > TIMELINE_ATTEMPTS_MAX:
            raise BadRequestError(f"attempts_max: {request.attempts_max}, at most {TIMELINE_ATTEMPTS_MAX}")
        wanted = self._store.audit.job_timeline(
            cluster=wire.text_of(request.cluster, "cluster", most=wire.NAME_MAX),
            job_id=wire.text_of(request.job_id, "job_id", most=wire.NAME_MAX),
            job_key=wire.text_of(request.job_key, "job_key", most=wire.NAME_MAX),
            attempts_max=request.attempts_max or TIMELINE_ATTEMPTS,
        )
        return outgoing_audit.timeline_message(await _found(wanted, f"job {request.job_id or request.job_key!r}"))

    async def GetNodeHistory(self, request: audit_pb2.GetNodeHistoryRequest, context: Context) -> audit_pb2.NodeHistory:
        cluster = wire.cluster_of(request.cluster)
        name = wire.node_names([request.name], "name")[0]
        wanted = EventFilter(
            since=wire.moment_of(request, "since", "request"), until=wire.moment_of(request, "until", "request")
        )
        asked = self._store.audit.node_history(cluster, name, wanted, _page(request.page), now=self._clock.now())
        async with _refusals_told():
            found = await _found(asked, f"node {name!r} in {cluster!r}")
        return outgoing_audit.history_message(found, suspect_score=self._suspect_score)

    async def ListLemons(self, request: audit_pb2.ListLemonsRequest, context: Context) -> audit_pb2.ListLemonsResponse:
        if request.limit > PAGE_SIZE_MAX:
            raise BadRequestError(f"limit: {request.limit}, at most {PAGE_SIZE_MAX}")
        plain = LemonsWanted()
        wanted = LemonsWanted(
            cluster=wire.text_of(request.cluster, "cluster", most=wire.NAME_MAX),
            node=wire.text_of(request.node, "node", most=wire.NAME_MAX),
            failures_min=request.failures_min or plain.failures_min,
            limit=request.limit or plain.limit,
        )
        found = await self._store.audit.lemons(wanted, now=self._clock.now())
        return audit_pb2.ListLemonsResponse(
            lemons=[outgoing.lemon_message(row) for row in found.rows], capped=found.capped
        )


async def _found(wanted: Awaitable[Found | None], what: str) -> Found:
    try:
        row = await wanted
    except store_errors.Ambiguous as error:
        raise BadRequestError(str(error)) from None
    if row is None:
        raise NotFoundError(f"there is no {what}")
    return row


@asynccontextmanager
async def _refusals_told() -> AsyncIterator[None]:
    """What a list cannot answer is the caller's mistake."""
    try:
        yield
    except (store_errors.CursorRefused, store_errors.FilterRefused, store_errors.PageRefused) as error:
        raise BadRequestError(str(error)) from None


def _id(text: str) -> str:
    if not text:
        raise BadRequestError("the id is empty")
    return wire.text_of(text, "id", most=wire.NAME_MAX)


def _page(page: audit_pb2.Page) -> Page:
    if page.page_size > PAGE_SIZE_MAX:
        raise BadRequestError(f"page.page_size: {page.page_size}, at most {PAGE_SIZE_MAX}")
    return Page(size=page.page_size, cursor=wire.text_of(page.cursor, "page.cursor"))


_TEXT_FILTERS = (*("cluster", "job_id", "job_key", "user", "account", "partition", "node", "reason", "array_job_id"),)


def _filter(message: audit_pb2.Filter) -> AuditFilter:
    texts = {name: wire.text_of(getattr(message, name), f"filter.{name}", most=wire.NAME_MAX) for name in _TEXT_FILTERS}
    status = message.status
    return AuditFilter(
        **texts,
        category=wire.category_of(message.category, "filter.category"),
        action=wire.from_wire(Action, message.action, "filter.action") if message.action else None,
        mode=wire.from_wire(Mode, message.mode, "filter.mode") if message.mode else None,
        status=wire.from_wire(ReconciliationStatus, status, "filter.status") if status else None,
        array_task=message.array_task if message.HasField("array_task") else None,
        since=wire.moment_of(message, "since", "filter"),
        until=wire.moment_of(message, "until", "filter"),
    )
