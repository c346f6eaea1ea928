"""Listening for HTTP: uvicorn inside our event loop, on sockets that we own, with connections counted.

uvicorn's protocol does not show an application who is at the other end of a Unix socket, so ours asks the kernel when
the connection is made and passes that on in the scope's state. Signals stay with the service.
"""

import asyncio
import contextlib
import socket
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import h11
import structlog
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from advisor.service.http.identity import Connection
from advisor.service.limits import Seldom
from advisor.service.owned_socket import peer_uid

log = structlog.get_logger(__name__)

HEAD_BYTES_MAX = 32 * 1024  # request line and headers
KEEP_ALIVE_SECONDS = 15
HEAD_SECONDS = 20.0  # for a connection to say what it wants
CLOSE_SECONDS = 2
ACCEPT_BACKLOG = 128
ACCEPTS_TOGETHER = 4


class _Quiet(uvicorn.Server):
    """Signals are the service's business."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.listening = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.listening.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class HttpServer:
    """`start`, `stop`. One per Unix socket; what comes by TLS is relayed to one (`advisor.service.tls_door`).

    An account gets a quarter of the connections at most, and all accounts that are not of the staff together three.
    """

    def __init__(
        self,
        app: ASGIApp,
        listener: socket.socket,
        *,
        connections_max: int,
        is_staff: Callable[[int | None], bool] = lambda uid: True,
    ) -> None:
        self._listener = listener
        config = uvicorn.Config(
            app,
            http=_protocol(connections_max, is_staff),
            ws="none",
            lifespan="off",
            loop="asyncio",
            interface="asgi3",
            log_config=None,
            log_level="critical",  # `answers` logs what goes wrong in a call; bad HTTP is its sender's affair
            access_log=False,
            proxy_headers=False,
            server_header=False,
            backlog=ACCEPTS_TOGETHER,
            h11_max_incomplete_event_size=HEAD_BYTES_MAX,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=CLOSE_SECONDS,
        )
        self._server = _Quiet(config)
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Returns when it listens."""
        self._task = asyncio.create_task(self._server.serve(sockets=[self._listener]))
        listening = asyncio.create_task(self._server.listening.wait())
        await asyncio.wait((self._task, listening), return_when=asyncio.FIRST_COMPLETED)
        listening.cancel()
        if self._task.done():
            self._task.result()
        else:
            # asyncio accepts as many as its backlog says before anything else is done: few, while many may wait.
            self._listener.listen(ACCEPT_BACKLOG)

    async def stop(self) -> None:
        """Accept nothing more; what is being answered gets a moment to end."""
        if self._task is None:
            self._listener.close()
            return
        self._server.should_exit = True
        await self._task
        self._task = None


def _protocol(connections_max: int, is_staff: Callable[[int | None], bool]) -> type[H11Protocol]:
    per_peer_max = max(connections_max // 4, 2)
    others_max = connections_max - connections_max // 4
    per_peer: Counter[int | None] = Counter()
    capping = Seldom()

    class Protocol(H11Protocol):
        """Knows who connected; closes what is too many, and what does not say in time what it wants."""

        peer: Connection | None = None
        head_timer: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as uvicorn's own
            peer = _connection(transport)
            if len(self.connections) >= connections_max or (not peer.name and self._too_many(peer.uid)):
                if capping.due():
                    log.warning("connections_capped", uid=peer.uid, most=connections_max)
                transport.abort()
                return
            super().connection_made(transport)
            self.peer = peer
            per_peer[peer.uid] += 1
            self.app_state = {**self.app_state, "connection": peer}
            self._time_head()

        def _too_many(self, uid: int | None) -> bool:
            others = sum(count for one, count in per_peer.items() if not is_staff(one))
            return per_peer[uid] >= per_peer_max or (not is_staff(uid) and others >= others_max)

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if self.conn.their_state is h11.IDLE:
                self._time_head()
            elif self.head_timer is not None:
                self.head_timer.cancel()
                self.head_timer = None

        def _time_head(self) -> None:
            if self.head_timer is None:
                self.head_timer = self.loop.call_later(HEAD_SECONDS, self.transport.close)

        def connection_lost(self, exc: Exception | None) -> None:
            if self.peer is None:
                return
            per_peer[self.peer.uid] -= 1
            if not per_peer[self.peer.uid]:
                del per_peer[self.peer.uid]
            if self.head_timer is not None:
                self.head_timer.cancel()
            super().connection_lost(exc)

    return Protocol


def _connection(transport: asyncio.Transport) -> Connection:
    connected: Any = transport.get_extra_info("socket")
    name = transport.get_extra_info("peername")
    ours = name[1:].decode("ascii", "replace") if isinstance(name, bytes) and name.startswith(b"\0") else ""
    return Connection(uid=peer_uid(connected), name=ours)
