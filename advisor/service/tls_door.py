"""The door for callers from afar: TLS ends here, and what comes in is passed on to a server of ours.

Connections are counted when they are accepted, in all and per address, before a handshake costs anything; what is
known of the caller by then, his certificate or only his address, goes with the connection.
"""

import asyncio
import socket
import ssl
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import structlog

from advisor.service.callers import Caller
from advisor.service.certificates import ServerTls
from advisor.service.errors import ServiceError
from advisor.service.limits import Seldom
from advisor.service.relaying import Peers, relay

log = structlog.get_logger(__name__)

HANDSHAKE_SECONDS = 10.0
ACCEPT_BACKLOG = 128
CLOSE_SECONDS = 10.0
REST_SECONDS = 0.2  # when the process has no more file descriptors


class DoorError(ServiceError):
    """The address cannot be listened on; one sentence that says why."""


class TlsDoor:
    """`open`, `close`. `who` tells the caller from the verified certificate (DER, None for none) and the address."""

    def __init__(
        self,
        address: str,
        *,
        tls: ServerTls,
        who: Callable[[bytes | None, str], Caller],
        to: Callable[[Caller], Path],
        peers: Peers,
        connections_max: int,
    ) -> None:
        self._address = address
        self._tls = tls
        self._who = who
        self._to = to
        self._peers = peers
        self._most = connections_max
        self._per_address: Counter[str] = Counter()
        self._connections: set[asyncio.Task[None]] = set()
        self._listener: socket.socket | None = None
        self._accepting: asyncio.Task[None] | None = None

    async def open(self) -> tuple[str, int]:
        """Listen; returns address and port. Raises `DoorError`."""
        host, _, port = self._address.rpartition(":")
        host = host.strip("[]")
        try:
            found = socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
            self._listener = socket.create_server(found[0][4][:2], family=found[0][0], backlog=ACCEPT_BACKLOG)
        except OSError as error:
            raise DoorError(f"{self._address} cannot be listened on: {error.strerror}") from None
        self._listener.setblocking(False)
        self._accepting = asyncio.create_task(self._accept_all(self._listener))
        bound = self._listener.getsockname()
        log.info("door_opened", address=bound[0], port=bound[1])
        return bound[0], bound[1]

    async def close(self) -> None:
        if self._accepting is not None:
            self._accepting.cancel()
            await asyncio.gather(self._accepting, return_exceptions=True)
            self._accepting = None
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        for task in list(self._connections):
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _accept_all(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        capped = Seldom()
        while True:
            try:
                connection, peer = await loop.sock_accept(listener)
            except OSError as error:
                log.warning("connection_not_accepted", error=error.strerror)
                await asyncio.sleep(REST_SECONDS)
                continue
            address = str(peer[0])
            if len(self._connections) >= self._most or self._per_address[address] >= max(self._most // 4, 4):
                connection.close()
                if capped.due():
                    log.warning("connections_capped", peer=address, most=self._most)
                continue
            task = asyncio.create_task(self._serve(connection, address))
            self._per_address[address] += 1
            self._connections.add(task)
            task.add_done_callback(partial(self._ended, address))

    def _ended(self, address: str, task: asyncio.Task[None]) -> None:
        self._connections.discard(task)
        self._per_address[address] -= 1
        if not self._per_address[address]:
            del self._per_address[address]

    async def _serve(self, connection: socket.socket, address: str) -> None:
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader()
        protocol = asyncio.StreamReaderProtocol(reader)
        try:
            transport, _ = await loop.connect_accepted_socket(
                lambda: protocol, connection, ssl=self._tls.context, ssl_handshake_timeout=HANDSHAKE_SECONDS
            )
        except (OSError, ssl.SSLError) as error:
            connection.close()
            log.debug("handshake_failed", peer=address, error=str(error))
            return
        writer = asyncio.StreamWriter(transport, protocol, reader, loop)
        try:
            secured: Any = transport.get_extra_info("ssl_object")
            caller = self._who(secured.getpeercert(binary_form=True), address)
            await relay(reader, writer, self._to(caller), self._peers, caller)
        except (OSError, asyncio.IncompleteReadError) as error:
            log.debug("connection_lost", peer=address, error=str(error))
        finally:
            await _let_go(writer)


async def _let_go(writer: asyncio.StreamWriter) -> None:
    """What has been answered is sent to the end, but not for ever."""
    writer.close()
    try:
        async with asyncio.timeout(CLOSE_SECONDS):
            await writer.wait_closed()
    except (OSError, ssl.SSLError, TimeoutError):
        writer.transport.abort()
