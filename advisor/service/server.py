"""The inner gRPC servers: which role may call what, and how errors become statuses.

Errors of `advisor.service.errors` become their status. Anything else is ours: it is logged and answered with
INTERNAL and no detail.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import grpc
import structlog
from google.protobuf.message import DecodeError
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from advisor.service.callers import Caller, Role
from advisor.service.errors import BadRequestError, FailureKind, failure_of
from advisor.service.gate import InnerServer
from advisor.v1 import (
    agent_pb2,
    agent_pb2_grpc,
    audit_pb2,
    audit_pb2_grpc,
    operator_pb2,
    operator_pb2_grpc,
    report_pb2,
    report_pb2_grpc,
)

log = structlog.get_logger(__name__)

AGENT_SERVICE = agent_pb2.DESCRIPTOR.services_by_name["AgentService"].full_name
AUDIT_SERVICE = audit_pb2.DESCRIPTOR.services_by_name["AuditService"].full_name
OPERATOR_SERVICE = operator_pb2.DESCRIPTOR.services_by_name["OperatorService"].full_name
REPORT_SERVICE = report_pb2.DESCRIPTOR.services_by_name["ReportService"].full_name

_ROLE_OF_SERVICE = {
    AGENT_SERVICE: Role.AGENT,
    AUDIT_SERVICE: Role.OPERATOR,
    OPERATOR_SERVICE: Role.OPERATOR,
    REPORT_SERVICE: Role.OPERATOR,
    "grpc.health.v1.Health": Role.AGENT | Role.OPERATOR,
    reflection.SERVICE_NAME: Role.AGENT | Role.OPERATOR,
}
# In plain words, for whoever only typed a command.
_WHAT_FOR = {
    "AuditService": " (may not read decisions)",
    "OperatorService": " (may not see or set modes)",
    "AgentService": " (may not act as the agent)",
}
_SETTING_OF_ROLE = {Role.AGENT: "service.agent_users", Role.OPERATOR: "service.operator_users"}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Malformed:
    """Stands for a message that protobuf could not read."""

    error: str


if TYPE_CHECKING:  # the stubs are generic, the classes are not
    Handler: TypeAlias = grpc.RpcMethodHandler[Any, Any]
else:
    Handler = grpc.RpcMethodHandler

Behaviour = Callable[[Any, Any], Awaitable[Any]]
Stream = Callable[[Any, Any], AsyncIterator[Any]]


class RoleGuard(grpc.aio.ServerInterceptor):
    """Lets a caller's role through to its services and turns errors into statuses."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler | None:
        method = handler_call_details.method
        service = method.strip("/").partition("/")[0]
        needed = _ROLE_OF_SERVICE.get(service, Role.NONE)
        if needed is not Role.NONE and not needed & self._caller.roles:
            return _refusal(self._sentence(service, needed))
        handler = await continuation(handler_call_details)
        if handler is None or handler.request_streaming:  # unknown method, or gRPC's own reflection
            return handler
        return _guarded(handler, method, self._caller)

    def _sentence(self, service: str, needed: Role) -> str:
        settings = " or ".join(text for role, text in _SETTING_OF_ROLE.items() if role & needed)
        who = "this user" if self._caller.roles is Role.NONE else f"user {self._caller.name}"
        doing = _WHAT_FOR.get(service, "")
        return f"{who} may not call {service}{doing}: add the user to {settings} in the advisor's configuration"


def _refusal(sentence: str) -> Handler:
    async def refuse(_requests: object, context: grpc.aio.ServicerContext[Any, Any]) -> AsyncIterator[bytes]:
        if sentence:
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, sentence)
        yield b""  # never reached: makes this a generator, which fits calls of every kind

    return grpc.stream_stream_rpc_method_handler(refuse)


def _guarded(handler: Handler, method: str, caller: Caller) -> Handler:
    deserialize = handler.request_deserializer

    def read(data: bytes) -> object:
        try:
            return deserialize(data) if deserialize is not None else data
        except DecodeError as error:
            return _Malformed(error=str(error))

    async def abort(context: grpc.aio.ServicerContext[Any, Any], error: Exception) -> None:
        failure = failure_of(error)
        if failure.kind is FailureKind.OURS:
            log.exception("call_failed", method=method, user=caller.name)
        await context.abort(_STATUS_OF[failure.kind], failure.text)

    if handler.response_streaming:
        stream: Stream = handler.unary_stream  # type: ignore[assignment]  # as above

        async def answer_many(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> AsyncIterator[Any]:
            try:
                _check(request, method)
                async for response in stream(request, context):
                    yield response
            except grpc.aio.AbortError:
                raise
            except Exception as error:  # the boundary of the process: becomes a status
                await abort(context, error)

        return grpc.unary_stream_rpc_method_handler(answer_many, read, handler.response_serializer)

    unary: Behaviour = handler.unary_unary  # type: ignore[assignment]  # as above

    async def answer(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
        try:
            _check(request, method)
            return await unary(request, context)
        except grpc.aio.AbortError:
            raise
        except Exception as error:  # the boundary of the process: becomes a status
            return await abort(context, error)

    return grpc.unary_unary_rpc_method_handler(answer, read, handler.response_serializer)


def _check(request: object, method: str) -> None:
    if isinstance(request, _Malformed):
        raise BadRequestError(f"{method}: the message is not what the contract says: {request.error}")


_STATUS_OF = {
    FailureKind.BAD_REQUEST: grpc.StatusCode.INVALID_ARGUMENT,
    FailureKind.NOT_FOUND: grpc.StatusCode.NOT_FOUND,
    FailureKind.TOO_LATE: grpc.StatusCode.FAILED_PRECONDITION,
    FailureKind.UNAUTHENTICATED: grpc.StatusCode.UNAUTHENTICATED,
    FailureKind.FORBIDDEN: grpc.StatusCode.PERMISSION_DENIED,
    FailureKind.TOO_OFTEN: grpc.StatusCode.RESOURCE_EXHAUSTED,
    FailureKind.STORE_ABSENT: grpc.StatusCode.UNAVAILABLE,
    FailureKind.NOT_SERVED: grpc.StatusCode.UNIMPLEMENTED,
    FailureKind.OURS: grpc.StatusCode.INTERNAL,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Servicers:
    """What is served, made per caller so that every call knows who makes it."""

    agent: Callable[[Caller], agent_pb2_grpc.AgentServiceServicer]
    audit: Callable[[Caller], audit_pb2_grpc.AuditServiceServicer]
    operator: Callable[[Caller], operator_pb2_grpc.OperatorServiceServicer]
    report: Callable[[Caller], report_pb2_grpc.ReportServiceServicer]
    health: health.aio.HealthServicer
    message_bytes_max: int

    async def set_serving(self) -> None:
        """What health checks may ask for, and that it is there."""
        for name in ("", AGENT_SERVICE, AUDIT_SERVICE, OPERATOR_SERVICE, REPORT_SERVICE):
            await self.health.set(name, health_pb2.HealthCheckResponse.SERVING)

    async def start_inner(self, caller: Caller, path: Path) -> InnerServer:
        """A server for this caller alone, listening on `path` inside the gate's private folder."""
        size = self.message_bytes_max
        options: Sequence[tuple[str, int]] = (
            ("grpc.max_receive_message_length", size),
            ("grpc.max_send_message_length", 4 * size),
            ("grpc.max_metadata_size", 16 * 1024),
            ("grpc.so_reuseport", 0),
        )
        server = grpc.aio.server(interceptors=[RoleGuard(caller)], options=options)
        agent_pb2_grpc.add_AgentServiceServicer_to_server(self.agent(caller), server)
        audit_pb2_grpc.add_AuditServiceServicer_to_server(self.audit(caller), server)
        operator_pb2_grpc.add_OperatorServiceServicer_to_server(self.operator(caller), server)
        report_pb2_grpc.add_ReportServiceServicer_to_server(self.report(caller), server)
        health_pb2_grpc.add_HealthServicer_to_server(self.health, server)
        reflection.enable_server_reflection(
            (
                *(AGENT_SERVICE, AUDIT_SERVICE, OPERATOR_SERVICE, REPORT_SERVICE),
                *(health.SERVICE_NAME, reflection.SERVICE_NAME),
            ),
            server,
        )
        server.add_insecure_port(f"unix:{path}")
        await server.start()
        return server
