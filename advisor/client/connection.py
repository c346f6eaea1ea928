"""The one connection to the service that everything of ours uses: the command line, the SDK, the tests.

Errors: `ClientError` with a sentence that says what to do. Everything returned is a message of the contract.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar

import grpc

from advisor.client.channels import settled, unix_channel
from advisor.client.errors import BadRequest, ClientError, NoReplica, NotFound, Refused, Unreachable
from advisor.client.replicas import NOT_AN_ADVISOR, ReplicaChannel
from advisor.plain_text import STORE_SILENT
from advisor.v1 import (
    agent_pb2_grpc,
    audit_pb2,
    audit_pb2_grpc,
    operator_pb2,
    operator_pb2_grpc,
    report_pb2,
    report_pb2_grpc,
)

CALL_SECONDS = 20.0
HELLO_SECONDS = 5.0  # for the first sign of life; a call may take longer
PAGE_SIZE = 100
_AGAIN_SECONDS = 0.25
_HELD_MAX = 32

# The service's own sentence says all there is to say.
_SAID_PLAINLY = frozenset(
    {
        grpc.StatusCode.NOT_FOUND,
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.PERMISSION_DENIED,
        grpc.StatusCode.FAILED_PRECONDITION,
    }
)


class _ListResponse(Protocol):
    @property
    def next_cursor(self) -> str: ...


Answer = TypeVar("Answer")
Listed = TypeVar("Listed", bound=_ListResponse)


_KINDS: Mapping[grpc.StatusCode, type[ClientError]] = {
    grpc.StatusCode.NOT_FOUND: NotFound,
    grpc.StatusCode.PERMISSION_DENIED: Refused,
    grpc.StatusCode.UNAUTHENTICATED: Refused,
    grpc.StatusCode.INVALID_ARGUMENT: BadRequest,
    grpc.StatusCode.UNAVAILABLE: Unreachable,
    grpc.StatusCode.DEADLINE_EXCEEDED: Unreachable,
}


class Client:
    """One connection. `with Client(socket) as client: client.decision("…")`.

    `channel`: reach it another way, called `where` in errors. `patience_seconds`: how long reads are tried again while
    the service is away, say because it is restarted; nothing that changes something is ever done twice.
    `hello_seconds`: after so long without a sign of life nobody is waited for any more.
    """

    def __init__(
        self,
        socket: Path,
        *,
        seconds: float = CALL_SECONDS,
        channel: grpc.Channel | None = None,
        where: str = "",
        patience_seconds: float = 0.0,
        hello_seconds: float = HELLO_SECONDS,
    ) -> None:
        self._named = where or str(socket)
        self._seconds = seconds
        self._patience = patience_seconds
        self._hello = min(hello_seconds, seconds)
        self._greeted = isinstance(channel, ReplicaChannel)  # that one looks by itself
        self._held: dict[str, bytes] = {}  # rules and policies by hash, the last used last
        self._channel = channel if channel is not None else unix_channel(socket)
        self.agents = agent_pb2_grpc.AgentServiceStub(self._channel)
        self.audit = audit_pb2_grpc.AuditServiceStub(self._channel)
        self.operators = operator_pb2_grpc.OperatorServiceStub(self._channel)
        self.reports = report_pb2_grpc.ReportServiceStub(self._channel)

    @property
    def _where(self) -> str:
        return self._channel.where if isinstance(self._channel, ReplicaChannel) else self._named

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._channel.close()

    def call(self, method: Callable[..., Answer], request: object) -> Answer:
        """One unary call with a deadline; `ClientError` on any failure."""
        self._greet()
        try:
            return method(request, timeout=self._seconds)
        except grpc.RpcError as error:
            status: Any = error
            raise _KINDS.get(status.code(), ClientError)(self._explain(error)) from None

    def _greet(self) -> None:
        """Once: whoever never says hello is not given the time that an answer may take."""
        if self._greeted:
            return
        connected = settled(self._channel, self._hello)
        if connected is None:
            raise Unreachable(
                f"no sign of life on {self._where} for {self._hello:g} s: its process is frozen or stopped, or its "
                "host cannot be reached"
            )
        self._greeted = connected

    def read(self, method: Callable[..., Answer], request: object) -> Answer:
        """A call that changes nothing: tried again while nobody answers, as long as we are patient."""
        until, others = time.monotonic() + self._patience, isinstance(self._channel, ReplicaChannel)
        while True:
            try:
                return self.call(method, request)
            except Unreachable as error:
                if others and not isinstance(error, NoReplica):
                    others = False  # another replica may answer at once
                    continue
                if time.monotonic() + _AGAIN_SECONDS > until:
                    raise
            time.sleep(_AGAIN_SECONDS)

    def _explain(self, error: grpc.RpcError) -> str:
        status: Any = error
        code, detail = status.code(), status.details() or ""
        if code is grpc.StatusCode.UNAVAILABLE:
            if detail == STORE_SILENT:
                return f"{self._where} answers, and its store does not: try again, and see `advisor status`"
            for mark, sentence in NOT_AN_ADVISOR.items():
                if mark in detail:
                    return f"{self._where} {sentence}"
            return f"no answer on {self._where} ({detail[:200]}): is `advisor serve` running?"
        if code is grpc.StatusCode.DEADLINE_EXCEEDED:
            return f"no answer on {self._where} within {self._seconds:g} s: see the service's log"
        if code in _SAID_PLAINLY:
            return str(detail)
        return f"{code.name.lower()}: {detail}"

    def decision(self, decision_id: str) -> audit_pb2.Decision:
        return self.read(self.audit.GetDecision, audit_pb2.GetDecisionRequest(decision_id=decision_id))

    def decision_inputs(self, decision_id: str) -> audit_pb2.DecisionInputs:
        """Rules and policy are a quarter of a megabyte, and the same for most decisions: each is fetched once."""
        request = audit_pb2.GetDecisionInputsRequest(decision_id=decision_id, held=list(self._held))
        found = self.read(self.audit.GetDecisionInputs, request)
        found.rules = self._hold(found.rules_hash, found.rules)
        found.policy = self._hold(found.policy_hash, found.policy)
        while len(self._held) > _HELD_MAX:
            del self._held[next(iter(self._held))]
        return found

    def _hold(self, name: str, data: bytes) -> bytes:
        known = self._held.pop(name, data)
        if name:  # an advisor of an earlier version names none
            self._held[name] = known
        return known

    def decisions(self, chosen: audit_pb2.Filter, *, most: int) -> Iterator[audit_pb2.Decision]:
        """Newest first, `most` at most, fetched page by page."""
        for page in self._pages(self.audit.ListDecisions, audit_pb2.ListDecisionsRequest(filter=chosen), most):
            yield from page.decisions

    def attempts(self, chosen: audit_pb2.Filter, *, most: int) -> Iterator[audit_pb2.Attempt]:
        for page in self._pages(self.audit.ListAttempts, audit_pb2.ListAttemptsRequest(filter=chosen), most):
            yield from page.attempts

    def nodes(self, chosen: audit_pb2.Filter, *, most: int) -> Iterator[audit_pb2.Node]:
        for page in self._pages(self.audit.ListNodes, audit_pb2.ListNodesRequest(filter=chosen), most):
            yield from page.nodes

    def incidents(
        self, chosen: audit_pb2.Filter, *, most: int, open_only: bool = False
    ) -> Iterator[audit_pb2.Incident]:
        request = audit_pb2.ListIncidentsRequest(filter=chosen, open=open_only)
        for page in self._pages(self.audit.ListIncidents, request, most):
            yield from page.incidents

    def actions(self, chosen: audit_pb2.Filter, *, most: int) -> Iterator[audit_pb2.ActionTaken]:
        """What came of advice, as it was told, newest first."""
        for page in self._pages(self.audit.ListActions, audit_pb2.ListActionsRequest(filter=chosen), most):
            yield from page.actions

    def audit_records(self, request: audit_pb2.ListAuditRequest, *, most: int) -> Iterator[audit_pb2.AuditRecord]:
        for page in self._pages(self.audit.ListAudit, request, most):
            yield from page.records

    def lemons(self, request: audit_pb2.ListLemonsRequest) -> audit_pb2.ListLemonsResponse:
        return self.read(self.audit.ListLemons, request)

    def _pages(self, method: Callable[..., Listed], request: Any, most: int) -> Iterator[Listed]:
        while most > 0:
            request.page.page_size = min(PAGE_SIZE, most)
            answer = self.read(method, request)
            yield answer
            most -= request.page.page_size
            if not answer.next_cursor:
                return
            request.page.cursor = answer.next_cursor

    def modes(self) -> operator_pb2.ListModesResponse:
        """Settings, what was earned, and what holds beside them: all as of one moment, by the service itself."""
        return self.read(self.operators.ListModes, operator_pb2.ListModesRequest())

    def set_mode(self, setting: operator_pb2.ModeSetting) -> operator_pb2.ModeSetting:
        return self.call(self.operators.SetMode, operator_pb2.SetModeRequest(setting=setting))

    def unset_mode(self, setting: operator_pb2.ModeSetting) -> operator_pb2.ModeSetting:
        return self.call(self.operators.UnsetMode, operator_pb2.UnsetModeRequest(setting=setting))

    def pause(self, request: operator_pb2.PauseRequest) -> operator_pb2.PauseInForce:
        return self.call(self.operators.Pause, request)

    def resume(self, request: operator_pb2.ResumeRequest) -> operator_pb2.PauseInForce:
        return self.call(self.operators.Resume, request)

    def pauses(self) -> list[operator_pb2.PauseInForce]:
        return list(self.read(self.operators.ListPauses, operator_pb2.ListPausesRequest()).pauses)

    def isolations(self, request: operator_pb2.ListIsolationsRequest) -> operator_pb2.ListIsolationsResponse:
        return self.read(self.operators.ListIsolations, request)

    def reinstate(self, request: operator_pb2.ReinstateRequest) -> operator_pb2.NodeIsolation:
        return self.call(self.operators.Reinstate, request)

    def report_probe(self, request: operator_pb2.ReportProbeRequest) -> operator_pb2.NodeIsolation:
        return self.call(self.operators.ReportProbe, request)

    def reset_breaker(self, request: operator_pb2.ResetBreakerRequest) -> operator_pb2.Breaker:
        return self.call(self.operators.ResetBreaker, request)

    def shadow_report(self, request: report_pb2.GetShadowReportRequest) -> report_pb2.ShadowReport:
        return self.read(self.reports.GetShadowReport, request)

    def record_shadow(self, request: report_pb2.RecordShadowRequest) -> report_pb2.ShadowRecord:
        return self.call(self.reports.RecordShadow, request)

    def reliability(self, request: report_pb2.GetReliabilityRequest) -> report_pb2.ReliabilityReport:
        return self.read(self.reports.GetReliability, request)

    def cluster_or_only(self, given: str) -> str:
        """The cluster that was named, or the only one that has an agent."""
        if given:
            return given
        known = sorted({agent.cluster for agent in self.status().agents})
        if len(known) != 1:
            raise ClientError(f"name the cluster: --cluster, one of {', '.join(known) or 'none that has an agent'}")
        return known[0]

    def status(self) -> operator_pb2.Status:
        return self.read(self.operators.GetStatus, operator_pb2.GetStatusRequest())
