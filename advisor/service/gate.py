"""The gate in front of gRPC: who is calling, before a byte reaches it.

gRPC on a Unix socket does not show the peer's credentials, and a second gRPC server binding the same path silently
takes it over. So the public socket is ours: it is bound once under a file lock, every connection's SO_PEERCRED is
read, and its bytes are relayed to the inner gRPC server in a folder that only we can enter, which knows its callers by
`advisor.service.relaying`. What comes by TLS (`advisor.service.tls_door`) joins it there.
"""

import asyncio
import contextlib
import shutil
import stat
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Protocol, TypeAlias

import structlog

from advisor.service.callers import Caller, Callers, Role
from advisor.service.errors import SocketTakenError
from advisor.service.limits import Seldom
from advisor.service.owned_socket import OwnedSocket, peer_uid
from advisor.service.relaying import Peers, relay

log = structlog.get_logger(__name__)

STRANGER_CONNECTIONS_MAX = 8  # all together
USER_CONNECTIONS_MAX = 8  # each
KNOWN = "known"  # whoever has a role beyond his own jobs
ACCEPT_BACKLOG = 128  # who waits to be accepted
ACCEPTS_TOGETHER = 4  # before everything else that the event loop has to do has its turn


class InnerServer(Protocol):
    """The gRPC server behind the gate."""

    async def stop(self, grace: float | None) -> None: ...


StartInner: TypeAlias = Callable[[Path, Peers], Awaitable[InnerServer]]


class Gate:
    """Owns the public socket: `reserve`, `open`, `close`, `release`. Closed and released it leaves nothing behind."""

    def __init__(self, path: Path, *, callers: Callers, connections_max: int) -> None:
        self._socket = OwnedSocket(path)
        self._folder = path.with_name(f"{path.name}.d")
        self._callers = callers
        self._connections_max = connections_max
        self._server: asyncio.Server | None = None
        self._inner: InnerServer | None = None
        self.peers = Peers()
        self._connections: set[asyncio.Task[None]] = set()
        self._open: Counter[str] = Counter()
        self._refusing, self._capping = Seldom(), Seldom()
        self.refused = 0

    @property
    def place(self) -> str:
        return self._socket.place

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
            self._inner = await start_inner(self._inner_path, self.peers)
            # asyncio accepts as many as its backlog says before anything else is done.
            self._server = await asyncio.start_unix_server(self._accept, sock=listener, backlog=ACCEPTS_TOGETHER)
            listener.listen(ACCEPT_BACKLOG)
        except BaseException:
            listener.close()
            raise
        log.info("gate_opened", socket=str(self._socket.path))

    @property
    def _inner_path(self) -> Path:
        return self.inner("inner.sock")

    def inner(self, name: str) -> Path:
        """A path in the folder that only we can enter, for servers behind a door."""
        return self._folder / name

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
            await self._serve(reader, writer, await self._callers.find(peer_uid(writer.get_extra_info("socket"))))
        except (OSError, asyncio.IncompleteReadError) as error:
            log.debug("connection_lost", error=str(error))
        except asyncio.CancelledError:
            pass  # the gate is closing; asyncio's own callback would log this as an error
        finally:
            self._connections.discard(task)
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, caller: Caller) -> None:
        if caller.roles is Role.NONE:
            self.refused += 1
            if self._refusing.due():
                log.warning("caller_refused", uid=caller.uid, user=caller.name)
        lane, most = self._lane(caller)
        others = self._open.total() - self._open[KNOWN]
        if self._open[lane] >= most or (lane != KNOWN and others >= self._connections_max):
            if self._capping.due():
                log.warning("connections_capped", uid=caller.uid, user=caller.name, most=most)
            return
        self._open[lane] += 1
        try:
            await relay(reader, writer, self._inner_path, self.peers, caller)
        finally:
            self._open[lane] -= 1
            if not self._open[lane]:
                del self._open[lane]

    def _lane(self, caller: Caller) -> tuple[str, int]:
        """What a connection counts against: agents and operators find room, whoever else comes."""
        if caller.roles is Role.NONE:
            return "strangers", STRANGER_CONNECTIONS_MAX
        if caller.roles is Role.USER:
            return f"user {caller.uid}", USER_CONNECTIONS_MAX
        return KNOWN, self._connections_max

    async def close(self, grace: float = 1.0) -> None:
        """Refuse new connections, let calls end, remove socket and folder."""
        if self._server is not None:
            self._server.close()
            self._server = None
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
