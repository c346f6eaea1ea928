"""Everything that listens: gRPC and HTTP, on Unix sockets always, over TLS where that is configured."""

from collections.abc import Iterable, Sequence
from contextlib import AsyncExitStack

from grpc_health.v1 import health
from starlette.routing import BaseRoute

from advisor.ports import Clock
from advisor.service.callers import Accounts, Callers
from advisor.service.calls import Calls
from advisor.service.gate import Gate
from advisor.service.http.application import compose
from advisor.service.http.identity import by_account
from advisor.service.http.serving import HttpServer
from advisor.service.owned_socket import OwnedSocket
from advisor.service.server import GrpcServing
from advisor.service_config import ServiceSection


class Front:
    """`reserve`, `open`, `close`, `release`. Closed and released it leaves nothing behind."""

    def __init__(self, section: ServiceSection, clock: Clock) -> None:
        self._section = section
        self._callers = Callers(_accounts(section), clock)
        self._gate = Gate(section.socket, callers=self._callers, connections_max=section.connections_max)
        self._http_socket = OwnedSocket(section.http_path)
        self._stack = AsyncExitStack()

    def reserve(self) -> None:
        """Take the locks of the sockets, so that a second service is refused. Raises `SocketTakenError`."""
        self._gate.reserve()
        self._http_socket.reserve()

    async def open(self, calls: Calls, routes: Iterable[Sequence[BaseRoute]]) -> None:
        """Listen, with the contract's methods over gRPC and these routes over HTTP."""
        section, stack = self._section, self._stack
        grpc = GrpcServing(calls=calls, health=health.aio.HealthServicer(), message_bytes_max=section.message_bytes_max)
        await grpc.set_serving()
        stack.push_async_callback(self._gate.close)
        await self._gate.open(grpc.start_inner)
        app = compose(routes, identify=by_account(self._callers), body_bytes_max=section.http_body_bytes_max)
        stack.callback(self._http_socket.remove)
        server = HttpServer(app, self._http_socket.bind(), connections_max=section.connections_max)
        stack.push_async_callback(server.stop)
        await server.start()

    async def close(self) -> None:
        """Refuse new connections, let calls end, remove the sockets."""
        await self._stack.aclose()

    def release(self) -> None:
        """Let another service have the sockets."""
        self._http_socket.release()
        self._gate.release()


def _accounts(section: ServiceSection) -> Accounts:
    return Accounts(
        agents=section.agent_users,
        viewers=section.viewer_users,
        operators=section.operator_users,
        admins=section.admin_users,
        own_jobs=section.own_jobs,
    )
