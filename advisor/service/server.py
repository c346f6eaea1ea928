"""The gRPC server behind the gate: who calls, whether he may, and how errors become statuses.

Errors of `advisor.service.errors` become their status. Anything else is ours: it is logged and answered with
INTERNAL and no detail.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import grpc
import structlog
from google.protobuf.message import DecodeError, Message
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from advisor.service.access import require
from advisor.service.authentication import Authentication
from advisor.service.callers import NOBODY, Caller, Proof
from advisor.service.calls import Calls
from advisor.service.errors import BadRequestError, Failure, FailureKind, UnauthenticatedError, failure_of
from advisor.service.gate import InnerServer
from advisor.service.limits import RateLimits
from advisor.service.relaying import Peers
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

CALLER_SECONDS = 10.0  # a stream's caller is asked for again: a token may have been taken back

if TYPE_CHECKING:  # the stubs are generic, the classes are not
    Handler: TypeAlias = grpc.RpcMethodHandler[Any, Any]
    Context: TypeAlias = grpc.aio.ServicerContext[Any, Any]
else:
    Handler = grpc.RpcMethodHandler
    Context = grpc.aio.ServicerContext

Add: TypeAlias = Callable[[Any, grpc.aio.Server], None]
Identify: TypeAlias = Callable[[Context], Awaitable[Caller]]
Metadata: TypeAlias = Iterable[tuple[str, Any]] | None
Known: TypeAlias = Callable[[Metadata], Awaitable[bool]]

# Service of the contract → its full name, and how its methods are made known to gRPC. What they do is `Calls`' affair.
CONTRACT: Mapping[str, tuple[str, Any, Add]] = {
    "AgentService": (
        agent_pb2.DESCRIPTOR.services_by_name["AgentService"].full_name,
        agent_pb2_grpc.AgentServiceServicer,
        agent_pb2_grpc.add_AgentServiceServicer_to_server,
    ),
    "AuditService": (
        audit_pb2.DESCRIPTOR.services_by_name["AuditService"].full_name,
        audit_pb2_grpc.AuditServiceServicer,
        audit_pb2_grpc.add_AuditServiceServicer_to_server,
    ),
    "OperatorService": (
        operator_pb2.DESCRIPTOR.services_by_name["OperatorService"].full_name,
        operator_pb2_grpc.OperatorServiceServicer,
        operator_pb2_grpc.add_OperatorServiceServicer_to_server,
    ),
    "ReportService": (
        report_pb2.DESCRIPTOR.services_by_name["ReportService"].full_name,
        report_pb2_grpc.ReportServiceServicer,
        report_pb2_grpc.add_ReportServiceServicer_to_server,
    ),
}

STATUS_OF = {
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
class _Malformed:
    """Stands for a message that protobuf could not read."""

    error: str


class _Call:
    """One call until it is answered: `with` keeps what goes wrong in it for `abort`, as what its caller is told.

    gRPC keeps what ends a call in a circle with it, and so everything that its frames or the error's own frames hold:
    megabytes of every report that is sent away, until somebody looks for garbage. So the error is let go of here, and
    whoever aborts lets go of the request before.
    """

    def __init__(self, method: str, context: Context) -> None:
        self.caller = NOBODY
        self._method = method
        self._context = context
        self._failure: Failure | None = None

    def __enter__(self) -> "_Call":
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        if not isinstance(error, Exception) or isinstance(error, grpc.aio.AbortError):
            return False
        self._failure = failure_of(error)  # the boundary of the process: becomes a status
        if self._failure.kind is FailureKind.OURS:
            log.error("call_failed", method=self._method, user=self.caller.name, exc_info=error)
        return True

    def admit(self, caller: Caller, request: object) -> None:
        """Raises what keeps the caller from this method, or the message from being read."""
        self.caller = caller
        require(caller, self._method)
        if isinstance(request, _Malformed):
            raise BadRequestError(f"{self._method}: the message is not what the contract says: {request.error}")

    async def abort(self) -> None:
        """Ends the call by raising, where something went wrong in it."""
        failure = self._failure
        if failure is None:
            return
        if failure.retry_seconds is not None:
            self._context.set_trailing_metadata((("retry-after", f"{max(failure.retry_seconds, 1):.0f}"),))
        await self._context.abort(STATUS_OF[failure.kind], failure.text)


class Guard(grpc.aio.ServerInterceptor):
    """Stands before every method: finds the caller, asks the table, and turns errors into statuses."""

    def __init__(
        self,
        calls: Calls,
        identify: Identify,
        limits: RateLimits | None,
        known: Known | None,
        *,
        caller_seconds: float = CALLER_SECONDS,
    ) -> None:
        """`known`: asked with a call's metadata before its message is read; who is not known is not listened to."""
        self._calls = calls
        self._identify = identify
        self._limits = limits
        self._known = known
        self._caller_seconds = caller_seconds

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler | None:
        if self._known is not None and not await self._known(handler_call_details.invocation_metadata):
            return self._turned_away(handler_call_details.method.rpartition(".")[2])
        handler = await continuation(handler_call_details)
        method = handler_call_details.method.rpartition(".")[2]  # "AuditService/GetDecision"
        if handler is None:
            return None
        reading, writing = _reader(handler), handler.response_serializer
        ours = method.partition("/")[0] in CONTRACT
        if handler.request_streaming:  # gRPC's own reflection
            stream: Any = handler.stream_stream
            return grpc.stream_stream_rpc_method_handler(self._many(method, stream), reading, writing)
        if handler.response_streaming:
            stream = self._our_stream(method) if ours else handler.unary_stream
            return grpc.unary_stream_rpc_method_handler(self._many(method, stream), reading, writing)
        one: Any = self._our_call(method) if ours else handler.unary_unary
        return grpc.unary_unary_rpc_method_handler(self._one(method, one, ours=ours), reading, writing)

    def _turned_away(self, method: str) -> Handler:
        """Answers without reading any message: with what `identify` says about the caller, or that he is nobody."""

        async def refuse(_requests: object, context: Context) -> AsyncIterator[bytes]:
            with _Call(method, context) as call:
                await self._caller(context)
                raise UnauthenticatedError("nobody is known by this call: show a token or a client certificate")
            await call.abort()
            yield b""  # never reached: makes this a generator, which fits calls of every kind

        return grpc.stream_stream_rpc_method_handler(refuse)

    async def _caller(self, context: Context) -> Caller:
        """Who makes a call, which counts against his limit."""
        caller = await self._identify(context)
        if self._limits is not None:
            self._limits.take(caller)
        return caller

    def _our_call(self, method: str) -> Callable[..., Awaitable[Any]]:
        async def call(request: Any, context: Context, caller: Caller) -> Any:
            return await self._calls.unary(caller, method, request, Message, context)

        return call

    def _our_stream(self, method: str) -> Callable[..., AsyncIterator[Any]]:
        async def stream(request: Any, context: Context) -> AsyncIterator[Any]:
            caller = await self._identify(context)
            seen = asyncio.get_running_loop().time()
            async for response in self._calls.behaviour(caller, method)(request, context):
                yield response
                if asyncio.get_running_loop().time() - seen > self._caller_seconds:
                    seen = asyncio.get_running_loop().time()
                    require(await self._identify(context), method)

        return stream

    def _one(self, method: str, behaviour: Callable[..., Awaitable[Any]], *, ours: bool) -> Callable[..., Any]:
        async def answer(request: Any, context: Context) -> Any:
            with _Call(method, context) as call:
                call.admit(await self._caller(context), request)
                return await (behaviour(request, context, call.caller) if ours else behaviour(request, context))
            request = None  # see `_Call`
            return await call.abort()

        return answer

    def _many(self, method: str, stream: Callable[..., AsyncIterator[Any]]) -> Callable[..., AsyncIterator[Any]]:
        async def answer(request: Any, context: Context) -> AsyncIterator[Any]:
            with _Call(method, context) as call:
                call.admit(await self._caller(context), request)
                async for response in stream(request, context):
                    yield response
                return
            request = None  # see `_Call`
            await call.abort()

        return answer


def _reader(handler: Handler) -> Callable[[bytes], object] | None:
    deserialize = handler.request_deserializer
    if deserialize is None:
        return None

    def read(data: bytes) -> object:
        try:
            return deserialize(data)
        except DecodeError as error:
            return _Malformed(error=str(error))

    return read


@dataclass(frozen=True, slots=True, kw_only=True)
class GrpcServing:
    """What is served over gRPC, and with which bounds."""

    calls: Calls
    health: health.aio.HealthServicer
    message_bytes_max: int
    limits: RateLimits | None = None
    authentication: Authentication | None = None

    async def set_serving(self) -> None:
        """What health checks may ask for, and that it is there."""
        for name in ("", *(full for full, _, _ in CONTRACT.values())):
            await self.health.set(name, health_pb2.HealthCheckResponse.SERVING)

    async def start_inner(self, path: Path, peers: Peers) -> InnerServer:
        """A server for whoever is known by his connection, listening on `path`."""
        return await self._start(path, peers, known=None)

    async def start_outer(self, path: Path, peers: Peers) -> InnerServer:
        """One for connections that tell nothing: a message is read when the call's token is known, and not before."""

        async def known(metadata: Metadata) -> bool:
            return self.authentication is not None and await self.authentication.is_known(_authorization(metadata))

        return await self._start(path, peers, known=known)

    async def _start(self, path: Path, peers: Peers, known: Known | None) -> InnerServer:
        async def identify(context: Context) -> Caller:
            connected = peers.find(context.peer().removeprefix("unix-abstract:"))
            if self.authentication is None or connected.proof is Proof.KERNEL:
                return connected
            return await self.authentication.caller(connected, _authorization(context.invocation_metadata()))

        size = self.message_bytes_max
        options: Sequence[tuple[str, int]] = (
            ("grpc.max_receive_message_length", size),
            ("grpc.max_send_message_length", 4 * size),
            ("grpc.max_metadata_size", 24 * 1024),
            ("grpc.max_concurrent_streams", 256),
            ("grpc.max_connection_idle_ms", 600_000),
            ("grpc.so_reuseport", 0),
        )
        server = grpc.aio.server(interceptors=[Guard(self.calls, identify, self.limits, known)], options=options)
        for _, stand_in, add in CONTRACT.values():
            add(stand_in(), server)
        health_pb2_grpc.add_HealthServicer_to_server(self.health, server)
        names = [full for full, _, _ in CONTRACT.values()]
        reflection.enable_server_reflection((*names, health.SERVICE_NAME, reflection.SERVICE_NAME), server)
        server.add_insecure_port(f"unix:{path}")
        await server.start()
        return server


def _authorization(metadata: Metadata) -> str:
    """The one header that says who calls; given more than once it says nothing."""
    found = [value for key, value in metadata or () if key == "authorization"]
    return found[0] if len(found) == 1 and isinstance(found[0], str) else ""
