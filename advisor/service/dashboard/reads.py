"""What pages read, as one caller may: every message comes through the contract's own methods."""

import asyncio
from collections.abc import Awaitable
from typing import Any, TypeVar

from google.protobuf.message import Message

from advisor.service.access import may, require
from advisor.service.callers import Caller
from advisor.service.calls import Calls
from advisor.service.errors import NotFoundError
from advisor.v1 import audit_pb2, operator_pb2

Answer = TypeVar("Answer", bound=Message)

OPEN_SHOWN = 50
LATEST_LOOKED_AT = 60
OF_JOB_SHOWN = 50
EVENTS_SHOWN = 100


class Reads:
    """One caller's view. Raises what the contract's methods raise."""

    def __init__(self, calls: Calls, caller: Caller) -> None:
        self._calls = calls
        self.caller = caller

    def may(self, what: str) -> bool:
        return may(self.caller, what)

    def require(self, what: str) -> None:
        require(self.caller, what)

    async def ask(self, method: str, request: Message, answers: type[Answer]) -> Answer:
        return await self._calls.unary(self.caller, method, request, answers)

    async def status(self) -> operator_pb2.Status:
        return await self.ask("OperatorService/GetStatus", operator_pb2.GetStatusRequest(), operator_pb2.Status)

    async def modes(self) -> operator_pb2.ListModesResponse:
        """None for who may not see them."""
        if not self.may("OperatorService/ListModes"):
            return operator_pb2.ListModesResponse()
        request = operator_pb2.ListModesRequest()
        return await self.ask("OperatorService/ListModes", request, operator_pb2.ListModesResponse)

    async def pauses(self) -> list[operator_pb2.PauseInForce]:
        if not self.may("OperatorService/ListPauses"):
            return []
        request = operator_pb2.ListPausesRequest()
        answer = await self.ask("OperatorService/ListPauses", request, operator_pb2.ListPausesResponse)
        return list(answer.pauses)

    async def isolations(
        self, *, cluster: str = "", node: str = "", ended: bool = False
    ) -> operator_pb2.ListIsolationsResponse:
        if not self.may("OperatorService/ListIsolations"):
            return operator_pb2.ListIsolationsResponse()
        request = operator_pb2.ListIsolationsRequest(cluster=cluster or None, node=node or None, ended=ended)
        return await self.ask("OperatorService/ListIsolations", request, operator_pb2.ListIsolationsResponse)

    async def orders(self, *, cluster: str = "", job_id: str = "") -> list[operator_pb2.Order]:
        """Those in force."""
        if not self.may("OperatorService/ListOrders"):
            return []
        request = operator_pb2.ListOrdersRequest(cluster=cluster or None, job_id=job_id or None)
        answer = await self.ask("OperatorService/ListOrders", request, operator_pb2.ListOrdersResponse)
        return list(answer.orders)

    async def corrections(self, decision_id: str) -> list[operator_pb2.Correction]:
        if not self.may("OperatorService/ListCorrections"):
            return []
        request = operator_pb2.ListCorrectionsRequest(decision_id=decision_id)
        answer = await self.ask("OperatorService/ListCorrections", request, operator_pb2.ListCorrectionsResponse)
        return list(answer.corrections)

    async def incidents(
        self, chosen: audit_pb2.Filter, page: audit_pb2.Page, *, only_open: bool
    ) -> audit_pb2.ListIncidentsResponse:
        request = audit_pb2.ListIncidentsRequest(filter=chosen, page=page, open=only_open)
        return await self.ask("AuditService/ListIncidents", request, audit_pb2.ListIncidentsResponse)

    async def open_incidents(self) -> list[audit_pb2.Incident]:
        page = audit_pb2.Page(page_size=OPEN_SHOWN)
        return list((await self.incidents(audit_pb2.Filter(), page, only_open=True)).incidents)

    async def incident(self, incident_id: str) -> audit_pb2.Incident:
        request = audit_pb2.GetIncidentRequest(incident_id=incident_id)
        return await self.ask("AuditService/GetIncident", request, audit_pb2.Incident)

    async def decisions(self, chosen: audit_pb2.Filter, page: audit_pb2.Page) -> audit_pb2.ListDecisionsResponse:
        request = audit_pb2.ListDecisionsRequest(filter=chosen, page=page)
        return await self.ask("AuditService/ListDecisions", request, audit_pb2.ListDecisionsResponse)

    async def latest_decisions(self) -> list[audit_pb2.Decision]:
        page = audit_pb2.Page(page_size=LATEST_LOOKED_AT)
        return list((await self.decisions(audit_pb2.Filter(), page)).decisions)

    async def decisions_of(self, job_key: str) -> list[audit_pb2.Decision]:
        page = audit_pb2.Page(page_size=OF_JOB_SHOWN)
        return list((await self.decisions(audit_pb2.Filter(job_key=job_key), page)).decisions)

    async def decision(self, decision_id: str) -> audit_pb2.Decision:
        request = audit_pb2.GetDecisionRequest(decision_id=decision_id)
        return await self.ask("AuditService/GetDecision", request, audit_pb2.Decision)

    async def attempts(self, chosen: audit_pb2.Filter, page: audit_pb2.Page) -> audit_pb2.ListAttemptsResponse:
        request = audit_pb2.ListAttemptsRequest(filter=chosen, page=page)
        return await self.ask("AuditService/ListAttempts", request, audit_pb2.ListAttemptsResponse)

    async def attempts_of(self, job_key: str) -> list[audit_pb2.Attempt]:
        page = audit_pb2.Page(page_size=OF_JOB_SHOWN)
        return list((await self.attempts(audit_pb2.Filter(job_key=job_key), page)).attempts)

    async def timeline(self, job_key: str) -> audit_pb2.JobTimeline:
        """Raises `NotFoundError` where the job has no attempt."""
        request = audit_pb2.GetJobTimelineRequest(job_key=job_key)
        answer = await self.ask("AuditService/GetJobTimeline", request, audit_pb2.JobTimeline)
        if not answer.attempts:
            raise NotFoundError(f"there is no job {job_key!r}")
        return answer

    async def node_history(self, cluster: str, name: str, cursor: str) -> audit_pb2.NodeHistory:
        request = audit_pb2.GetNodeHistoryRequest(
            cluster=cluster, name=name, page=audit_pb2.Page(page_size=EVENTS_SHOWN, cursor=cursor)
        )
        return await self.ask("AuditService/GetNodeHistory", request, audit_pb2.NodeHistory)

    async def node(self, cluster: str, name: str) -> audit_pb2.Node:
        request = audit_pb2.GetNodeRequest(cluster=cluster, name=name)
        return await self.ask("AuditService/GetNode", request, audit_pb2.Node)

    async def audit(self, request: audit_pb2.ListAuditRequest) -> audit_pb2.ListAuditResponse:
        return await self.ask("AuditService/ListAudit", request, audit_pb2.ListAuditResponse)


async def together(*questions: Awaitable[Any]) -> tuple[Any, ...]:
    """Several questions at once: a page waits for the slowest of them, not for all."""
    return tuple(await asyncio.gather(*questions))
