"""A thin synchronous client of the service over its Unix socket.

Errors: `ClientError` with a sentence that says what to do. Everything returned is a message of the contract.
"""

import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar

import grpc

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
MESSAGE_BYTES_MAX = 256 * 1024 * 1024
PAGE_SIZE = 100


# The service's own sentence says all there is to say.
_SAID_PLAINLY = frozenset(
    {
        grpc.StatusCode.NOT_FOUND,
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.PERMISSION_DENIED,
        grpc.StatusCode.FAILED_PRECONDITION,
    }
)


class ClientError(Exception):
    """The service could not be asked, or refused; the text says what to do."""


class _ListResponse(Protocol):
    @property
    def next_cursor(self) -> str: ...


Answer = TypeVar("Answer")
Listed = TypeVar("Listed", bound=_ListResponse)


class Client:
    """One connection. `with Client(socket) as client: client.decision("…")`."""

    def __init__(self, socket: Path, *, seconds: float = CALL_SECONDS) -> None:
        self._socket = socket
        self._seconds = seconds
        _check_socket(socket)
        self._channel = grpc.insecure_channel(
            f"unix:{socket}",
            options=[("grpc.max_receive_message_length", MESSAGE_BYTES_MAX), ("grpc.enable_retries", 0)],
        )
        self.agents = agent_pb2_grpc.AgentServiceStub(self._channel)
        self.audit = audit_pb2_grpc.AuditServiceStub(self._channel)
        self.operators = operator_pb2_grpc.OperatorServiceStub(self._channel)
        self.reports = report_pb2_grpc.ReportServiceStub(self._channel)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._channel.close()

    def call(self, method: Callable[..., Answer], request: object) -> Answer:
        """One unary call with a deadline; `ClientError` on any failure."""
        try:
            return method(request, timeout=self._seconds)
        except grpc.RpcError as error:
            raise ClientError(self._explain(error)) from None

    def _explain(self, error: grpc.RpcError) -> str:
        status: Any = error
        code, detail = status.code(), status.details() or ""
        if code is grpc.StatusCode.UNAVAILABLE:
            return f"no answer on {self._socket} ({detail[:200]}): is `advisor serve` running?"
        if code is grpc.StatusCode.DEADLINE_EXCEEDED:
            return f"no answer on {self._socket} within {self._seconds:g} s: see the service's log"
        if code in _SAID_PLAINLY:
            return str(detail)
        return f"{code.name.lower()}: {detail}"

    def decision(self, decision_id: str) -> audit_pb2.Decision:
        return self.call(self.audit.GetDecision, audit_pb2.GetDecisionRequest(decision_id=decision_id))

    def decision_inputs(self, decision_id: str) -> audit_pb2.DecisionInputs:
        return self.call(self.audit.GetDecisionInputs, audit_pb2.GetDecisionInputsRequest(decision_id=decision_id))

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

    def lemons(self, request: audit_pb2.ListLemonsRequest) -> audit_pb2.ListLemonsResponse:
        return self.call(self.audit.ListLemons, request)

    def _pages(self, method: Callable[..., Listed], request: Any, most: int) -> Iterator[Listed]:
        while most > 0:
            request.page.page_size = min(PAGE_SIZE, most)
            answer = self.call(method, request)
            yield answer
            most -= request.page.page_size
            if not answer.next_cursor:
                return
            request.page.cursor = answer.next_cursor

    def modes(self) -> list[operator_pb2.ModeSetting]:
        return list(self.call(self.operators.ListModes, operator_pb2.ListModesRequest()).settings)

    def set_mode(self, setting: operator_pb2.ModeSetting) -> operator_pb2.ModeSetting:
        return self.call(self.operators.SetMode, operator_pb2.SetModeRequest(setting=setting))

    def unset_mode(self, setting: operator_pb2.ModeSetting) -> operator_pb2.ModeSetting:
        return self.call(self.operators.UnsetMode, operator_pb2.UnsetModeRequest(setting=setting))

    def pause(self, request: operator_pb2.PauseRequest) -> operator_pb2.PauseInForce:
        return self.call(self.operators.Pause, request)

    def resume(self, request: operator_pb2.ResumeRequest) -> operator_pb2.PauseInForce:
        return self.call(self.operators.Resume, request)

    def pauses(self) -> list[operator_pb2.PauseInForce]:
        return list(self.call(self.operators.ListPauses, operator_pb2.ListPausesRequest()).pauses)

    def isolations(self, request: operator_pb2.ListIsolationsRequest) -> operator_pb2.ListIsolationsResponse:
        return self.call(self.operators.ListIsolations, request)

    def reinstate(self, request: operator_pb2.ReinstateRequest) -> operator_pb2.NodeIsolation:
        return self.call(self.operators.Reinstate, request)

    def report_probe(self, request: operator_pb2.ReportProbeRequest) -> operator_pb2.NodeIsolation:
        return self.call(self.operators.ReportProbe, request)

    def reset_breaker(self, request: operator_pb2.ResetBreakerRequest) -> operator_pb2.Breaker:
        return self.call(self.operators.ResetBreaker, request)

    def shadow_report(self, request: report_pb2.GetShadowReportRequest) -> report_pb2.ShadowReport:
        return self.call(self.reports.GetShadowReport, request)

    def record_shadow(self, request: report_pb2.RecordShadowRequest) -> report_pb2.ShadowRecord:
        return self.call(self.reports.RecordShadow, request)

    def reliability(self, request: report_pb2.GetReliabilityRequest) -> report_pb2.ReliabilityReport:
        return self.call(self.reports.GetReliability, request)

    def cluster_or_only(self, given: str) -> str:
        """The cluster that was named, or the only one that has an agent."""
        if given:
            return given
        known = sorted({agent.cluster for agent in self.status().agents})
        if len(known) != 1:
            raise ClientError(f"name the cluster: --cluster, one of {', '.join(known) or 'none that has an agent'}")
        return known[0]

    def status(self) -> operator_pb2.Status:
        return self.call(self.operators.GetStatus, operator_pb2.GetStatusRequest())


def _check_socket(path: Path) -> None:
    """Say early and plainly what gRPC would wrap in its own words."""
    try:
        found = path.stat()
    except FileNotFoundError:
        raise ClientError(f"nothing listens on {path}: start `advisor serve`, or give --socket") from None
    except OSError as error:
        raise ClientError(f"{path} cannot be reached ({error.strerror}): run this as an operator") from None
    if not stat.S_ISSOCK(found.st_mode):
        raise ClientError(f"{path} is not a socket: give --socket")
    if not os.access(path, os.W_OK):
        raise ClientError(f"{path} may not be opened by this user: run this as an operator")
