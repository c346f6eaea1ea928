"""The gate in front of gRPC: who is calling, before a byte reaches it.

gRPC on a Unix socket does not show the peer's credentials, and a second gRPC server binding the same path silently
takes it over. So the public socket is ours: it is bound once under a file lock, every connection's SO_PEERCRED is
read, and its bytes are relayed to the inner gRPC server in a folder that only we can enter. Each relay's own end has a
name that nobody can guess, which gRPC shows as the call's peer: by it the inner server knows the caller (`Peers`).
TLS ends here too (`advisor.service.tls`), with the client's certificate read before any call.
"""

import asyncio
import contextlib
import secrets
import shutil
import socket
import stat
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Protocol, TypeAlias

import structlog

from advisor.service.callers import NOBODY, Caller, Callers, Proof, Role
from advisor.service.errors import SocketTakenError
from advisor.service.owned_socket import OwnedSocket, peer_uid

log = structlog.get_logger(__name__)

RELAY_BYTES = 64 * 1024
STRANGER_CONNECTIONS_MAX = 8  # all together
USER_CONNECTIONS_MAX = 8  # each
ACCEPT_BACKLOG = 128


class InnerServer(Protocol):
    """The gRPC server behind the gate."""

    async def stop(self, grace: float | None) -> None: ...


class Peers:
    """Who is behind each relayed connection, by the name that gRPC shows of it."""

    def __init__(self) -> None:
        self._callers: dict[str, Caller] = {}

    def add(self, name: str, caller: Caller) -> None:
        self._callers[name] = caller

    def remove(self, name: str) -> None:
        self._callers.pop(name, None)

    def find(self, peer: str) -> Caller:
        """`peer` as `ServicerContext.peer()` tells it; a connection that did not come through the gate is nobody's."""
        return self._callers.get(peer.removeprefix("unix-abstract:"), NOBODY)


StartInner: TypeAlias = Callable[[Path, Peers], Awaitable[InnerServer]]
WhoConnected: TypeAlias = Callable[[asyncio.StreamWriter], Awaitable[Caller]]


class Gate:
    """Owns the public socket: `reserve`, `open`, `close`, `release`. Closed and released it leaves nothing behind."""

    def __init__(self, path: Path, *, callers: Callers, connections_max: int) -> None:
        self._socket = OwnedSocket(path)
        self._folder = path.with_name(f"{path.name}.d")
        self._callers = callers
        self._connections_max = connections_max
        self._servers: list[asyncio.Server] = []
        self._inner: InnerServer | None = None
        self._peers = Peers()
        self._connections: set[asyncio.Task[None]] = set()
        self._open: Counter[str] = Counter()
        self.refused = 0

    def reserve(self) -> None:
        """Take the socket's lock, so that nobody else can serve it. Raises `SocketTakenError`."""
        self._socket.reserve()

    async def open(self, start_inner: StartInner) -> None:
        """Start the inner server and listen."""
        self.reserve()
        listener = self._socket.bind()
        try:
            self._remove_stale_folder()
            self._folder.mkdir(mode=0o700)
            self._inner = await start_inner(self._inner_path, self._peers)
            accept = self._accepting(self._account_of)
            server = await asyncio.start_unix_server(accept, sock=listener, backlog=ACCEPT_BACKLOG)
        except BaseException:
            listener.close()
            raise
        self._servers.append(server)
        log.info("gate_opened", socket=str(self._socket.path))

    @property
    def _inner_path(self) -> Path:
        return self._folder / "inner.sock"

    def _remove_stale_folder(self) -> None:
        """What a killed service left. The lock is ours, so whatever lies there has no owner."""
        with contextlib.suppress(FileNotFoundError):
            if not stat.S_ISDIR(self._folder.lstat().st_mode):
                raise SocketTakenError(f"{self._folder} is in the way: remove it")
            shutil.rmtree(self._folder)

    async def _account_of(self, writer: asyncio.StreamWriter) -> Caller:
        return await self._callers.find(peer_uid(writer.get_extra_info("socket")))

    def _accepting(self, who: WhoConnected) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]:
        """What is done with each connection, whose caller `who` tells."""

        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None  # noqa: S101 -- asyncio runs this callback in a task
            self._connections.add(task)
            try:
                await self._serve(reader, writer, await who(writer))
            except (OSError, asyncio.IncompleteReadError) as error:
                log.debug("connection_lost", error=str(error))
            except asyncio.CancelledError:
                pass  # the gate is closing; asyncio's own callback would log this as an error
            finally:
                self._connections.discard(task)
                writer.close()

        return accept

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, caller: Caller) -> None:
        if caller.roles is Role.NONE and caller.proof is Proof.KERNEL:
            self.refused += 1
            log.warning("caller_refused", uid=caller.uid, user=caller.name)
        lane, most = self._lane(caller)
        if self._open[lane] >= most or self._open.total() >= 2 * self._connections_max:
            log.warning("connections_capped", uid=caller.uid, user=caller.name, peer=caller.peer, most=most)
            return
        self._open[lane] += 1
        try:
            await self._relay(reader, writer, caller)
        finally:
            self._open[lane] -= 1
            if not self._open[lane]:
                del self._open[lane]

    def _lane(self, caller: Caller) -> tuple[str, int]:
        """What a connection counts against: agents and operators find room, whoever else comes."""
        if caller.proof is Proof.KERNEL:
            if caller.roles is Role.NONE:
                return "strangers", STRANGER_CONNECTIONS_MAX
            if caller.roles is Role.USER:
                return f"user {caller.uid}", USER_CONNECTIONS_MAX
        elif caller.proof is Proof.NOTHING:
            return f"address {caller.peer}", max(self._connections_max // 4, 4)
        return "known", self._connections_max

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, caller: Caller) -> None:
        name = secrets.token_hex(16)
        inner = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._peers.add(name, caller)
        try:
            inner.setblocking(False)
            inner.bind(f"\0{name}")
            await asyncio.get_running_loop().sock_connect(inner, str(self._inner_path))
            inner_reader, inner_writer = await asyncio.open_unix_connection(sock=inner)
            try:
                await _relay_both(reader, writer, inner_reader, inner_writer)
            finally:
                inner_writer.close()
        finally:
            inner.close()
            self._peers.remove(name)

    async def close(self, grace: float = 1.0) -> None:
        """Refuse new connections, let calls end, remove socket and folder."""
        for server in self._servers:
            server.close()
        self._servers.clear()
        if self._inner is not None:
            await self._inner.stop(grace)
            self._inner = None
        for task in list(self._connections):
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        if self._socket.reserved:
            self._socket.remove()
            shutil.rmtree(self._folder, ignore_errors=True)

    def release(self) -> None:
        """Let another service have the socket: after everything of ours is closed."""
        self._socket.release()


async def _relay_both(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    inner_reader: asyncio.StreamReader,
    inner_writer: asyncio.StreamWriter,
) -> None:
    """Pass bytes until either side closes: gRPC has no use for a half-open connection."""
    directions = [
        asyncio.create_task(_relay(reader, inner_writer)),
        asyncio.create_task(_relay(inner_reader, writer)),
    ]
    try:
        await asyncio.wait(directions, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in directions:
            task.cancel()
        await asyncio.gather(*directions, return_exceptions=True)


async def _relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(RELAY_BYTES):
            writer.write(data)
            await writer.drain()
