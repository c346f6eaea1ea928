"""The Unix socket gate: who is calling, asked of the kernel, before a byte reaches gRPC.

gRPC on a Unix socket does not show the peer's credentials, and a second gRPC server binding the same path silently
takes it over. So the public socket is ours: it is bound once under a file lock, every connection's SO_PEERCRED is
read, and its bytes are relayed to an inner gRPC server of exactly that user, in a folder only we can enter. The
inner server therefore knows its caller; callers without a role get one that refuses each call with a sentence.
"""

import asyncio
import contextlib
import fcntl
import os
import pwd
import shutil
import socket
import stat
import struct
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import Flag, auto
from pathlib import Path
from typing import Protocol, TypeAlias

import structlog

from advisor.ports import Clock
from advisor.service.errors import SocketTakenError

log = structlog.get_logger(__name__)

RELAY_BYTES = 64 * 1024
STRANGER_CONNECTIONS_MAX = 8
NAMES_KEPT_SECONDS = 30.0
ACCEPT_BACKLOG = 128


class Role(Flag):
    NONE = 0
    AGENT = auto()
    OPERATOR = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """The user behind a connection, as the kernel says. Equal callers share one inner server."""

    uid: int
    name: str
    roles: Role


class InnerServer(Protocol):
    """One gRPC server for one caller."""

    async def stop(self, grace: float | None) -> None: ...


StartInner: TypeAlias = Callable[[Caller, Path], Awaitable[InnerServer]]


class Callers:
    """Uid → caller. Account names are looked up again after a while: directory services come and go."""

    def __init__(self, *, agent_users: tuple[str, ...], operator_users: tuple[str, ...], clock: Clock) -> None:
        self._agents = agent_users
        self._operators = operator_users
        self._clock = clock
        self._known: dict[int, tuple[float, Caller]] = {}

    async def find(self, uid: int) -> Caller:
        kept = self._known.get(uid)
        if kept is not None and self._clock.monotonic() - kept[0] < NAMES_KEPT_SECONDS:
            return kept[1]
        caller = await asyncio.to_thread(self._look_up, uid)
        if len(self._known) > 1024:
            self._known.clear()
        self._known[uid] = (self._clock.monotonic(), caller)
        return caller

    def _look_up(self, uid: int) -> Caller:
        roles = Role.NONE
        if uid in {0, os.geteuid()} or uid in _uids(self._operators):
            roles |= Role.OPERATOR
        if uid in _uids(self._agents):
            roles |= Role.AGENT
        try:
            name = pwd.getpwuid(uid).pw_name
        except KeyError:
            name = f"uid {uid}"
        return Caller(uid=uid, name=name, roles=roles)


def _uids(names: tuple[str, ...]) -> frozenset[int]:
    found = set()
    for name in names:
        with contextlib.suppress(KeyError):
            found.add(pwd.getpwnam(name).pw_uid)
    return frozenset(found)


class Gate:
    """Owns the public socket: `reserve`, `open`, `close`, `release`. Closed and released it leaves nothing behind."""

    def __init__(self, path: Path, *, callers: Callers, connections_max: int) -> None:
        self._path = path
        self._folder = path.with_name(f"{path.name}.d")
        self._lock_path = path.with_name(f"{path.name}.lock")
        self._callers = callers
        self._start_inner: StartInner | None = None
        self._connections_max = connections_max
        self._lock_fd = -1
        self._inode = (0, 0)
        self._server: asyncio.Server | None = None
        self._inner: dict[tuple[int, Role], InnerServer] = {}
        self._starting = asyncio.Lock()
        self._connections: set[asyncio.Task[None]] = set()
        self._per_role: Counter[bool] = Counter()
        self.refused = 0

    def reserve(self) -> None:
        """Take the socket's lock, so that nobody else can serve it. Raises `SocketTakenError`."""
        if self._lock_fd < 0:
            if not self._path.parent.is_dir():
                self._path.parent.mkdir(parents=True, exist_ok=True)
                self._path.parent.chmod(0o755)  # whatever the umask: agents of other users must pass
            self._take_lock()

    async def open(self, start_inner: StartInner) -> None:
        """Listen; `start_inner` makes the server of a caller at his first connection."""
        self.reserve()
        self._start_inner = start_inner
        self._remove_stale()
        self._folder.mkdir(mode=0o700)
        self._server = await self._listen()
        log.info("gate_opened", socket=str(self._path))

    async def _listen(self) -> asyncio.Server:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            listener.setblocking(False)
            listener.bind(str(self._path))
            # Everybody may connect; who may call is decided by credentials, and strangers get a reason.
            self._path.chmod(0o666)
            found = self._path.lstat()
            self._inode = (found.st_dev, found.st_ino)
            return await asyncio.start_unix_server(self._accept, sock=listener, backlog=ACCEPT_BACKLOG)
        except BaseException:
            listener.close()
            raise

    def _take_lock(self) -> None:
        path = self._lock_path
        while True:
            try:
                fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            except OSError as error:
                raise SocketTakenError(f"{path}: {error.strerror}") from None
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                os.close(fd)
                raise SocketTakenError(
                    f"{self._path} is served already: stop that service or choose another socket"
                ) from None
            # The owner before us removes the file while it holds the lock: then ours is a lock on nothing.
            with contextlib.suppress(FileNotFoundError):
                if path.lstat().st_ino == os.fstat(fd).st_ino:
                    self._lock_fd = fd
                    return
            os.close(fd)

    def _remove_stale(self) -> None:
        """What a killed service left. The lock is ours, so whatever lies there has no owner."""
        with contextlib.suppress(FileNotFoundError):
            found = self._path.lstat()
            if not stat.S_ISSOCK(found.st_mode):
                raise SocketTakenError(f"{self._path} is not a socket: remove it or choose another socket")
            self._path.unlink()
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
        uid = struct.unpack("3i", peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))[1]
        caller = await self._callers.find(uid)
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
        if self._lock_fd < 0:
            return
        with contextlib.suppress(FileNotFoundError):
            found = self._path.lstat()
            if (found.st_dev, found.st_ino) == self._inode:
                self._path.unlink()
        shutil.rmtree(self._folder, ignore_errors=True)

    def release(self) -> None:
        """Let another service have the socket: after everything of ours is closed."""
        if self._lock_fd < 0:
            return
        with contextlib.suppress(FileNotFoundError):
            self._lock_path.unlink()
        os.close(self._lock_fd)
        self._lock_fd = -1


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
