"""The Unix socket gate: who is calling, asked of the kernel, before a byte reaches gRPC.

gRPC on a Unix socket does not show the peer's credentials, and a second gRPC server binding the same path silently
takes it over. So the public socket is ours: it is bound once under a file lock, every connection's SO_PEERCRED is
read, and its bytes are relayed to an inner gRPC server of exactly that user, in a folder only we can enter. The
inner server therefore knows its caller; callers without a role get one that refuses each call with a sentence.
"""

import asyncio
import contextlib
import shutil
import socket
import stat
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Protocol, TypeAlias

import structlog

from advisor.service.callers import Caller, Callers, Role
from advisor.service.errors import SocketTakenError
from advisor.service.owned_socket import OwnedSocket, peer_uid

log = structlog.get_logger(__name__)

RELAY_BYTES = 64 * 1024
STRANGER_CONNECTIONS_MAX = 8
ACCEPT_BACKLOG = 128


class InnerServer(Protocol):
    """One gRPC server for one caller."""

    async def stop(self, grace: float | None) -> None: ...


StartInner: TypeAlias = Callable[[Caller, Path], Awaitable[InnerServer]]


class Gate:
    """Owns the public socket: `reserve`, `open`, `close`, `release`. Closed and released it leaves nothing behind."""

    def __init__(self, path: Path, *, callers: Callers, connections_max: int) -> None:
        self._socket = OwnedSocket(path)
        self._folder = path.with_name(f"{path.name}.d")
        self._callers = callers
        self._start_inner: StartInner | None = None
        self._connections_max = connections_max
        self._server: asyncio.Server | None = None
        self._inner: dict[tuple[int, Role], InnerServer] = {}
        self._starting = asyncio.Lock()
        self._connections: set[asyncio.Task[None]] = set()
        self._per_role: Counter[bool] = Counter()
        self.refused = 0

    def reserve(self) -> None:
        """Take the socket's lock, so that nobody else can serve it. Raises `SocketTakenError`."""
        self._socket.reserve()

    async def open(self, start_inner: StartInner) -> None:
        """Listen; `start_inner` makes the server of a caller at his first connection."""
        self.reserve()
        self._start_inner = start_inner
        listener = self._socket.bind()
        try:
            self._remove_stale_folder()
            self._folder.mkdir(mode=0o700)
            self._server = await asyncio.start_unix_server(self._accept, sock=listener, backlog=ACCEPT_BACKLOG)
        except BaseException:
            listener.close()
            raise
        log.info("gate_opened", socket=str(self._socket.path))

    def _remove_stale_folder(self) -> None:
        """What a killed service left. The lock is ours, so whatever lies there has no owner."""
        with contextlib.suppress(FileNotFoundError):
            if not stat.S_ISDIR(self._folder.lstat().st_mode):
                raise SocketTakenError(f"{self._folder} is in the way: remove it")
            shutil.rmtree(self._folder)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 -- asyncio runs this callback in a task
        self._connections.add(task)
        try:
            await self._serve(reader, writer)
        except (OSError, asyncio.IncompleteReadError) as error:
            log.debug("connection_lost", error=str(error))
        except asyncio.CancelledError:
            pass  # the gate is closing; asyncio's own callback would log this as an error
        finally:
            self._connections.discard(task)
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer: socket.socket = writer.get_extra_info("socket")
        caller = await self._callers.find(peer_uid(peer))
        stranger = caller.roles is Role.NONE
        most = STRANGER_CONNECTIONS_MAX if stranger else self._connections_max
        if stranger:
            self.refused += 1
            log.warning("caller_refused", uid=caller.uid, user=caller.name)
        if self._per_role[stranger] >= most:
            log.warning("connections_capped", uid=caller.uid, user=caller.name, most=most)
            return
        self._per_role[stranger] += 1
        try:
            inner = await self._inner_path(caller)
            inner_reader, inner_writer = await asyncio.open_unix_connection(str(inner))
            try:
                await _relay_both(reader, writer, inner_reader, inner_writer)
            finally:
                inner_writer.close()
        finally:
            self._per_role[stranger] -= 1

    async def _inner_path(self, caller: Caller) -> Path:
        """The caller's own inner socket; started at his first connection. All strangers share one."""
        key = (caller.uid, caller.roles) if caller.roles is not Role.NONE else (-1, Role.NONE)
        name = "refused.sock" if key[0] < 0 else f"{caller.uid}.{caller.roles.value}.sock"
        path = self._folder / name
        async with self._starting:
            if key not in self._inner and self._start_inner is not None:
                self._inner[key] = await self._start_inner(caller, path)
        return path

    async def close(self, grace: float = 1.0) -> None:
        """Refuse new connections, let calls end, remove socket and folder."""
        if self._server is not None:
            self._server.close()
            self._server = None
        servers = list(self._inner.values())
        self._inner.clear()
        await asyncio.gather(*(server.stop(grace) for server in servers))
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
