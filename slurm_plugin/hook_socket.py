"""The listening end of the hooks: one datagram per ended attempt, drained at once, believed only as a nudge.

The kernel says who sent each datagram; only root, ourselves and SlurmUser count. Bursts beyond the kernel's queue are
lost, which polling makes good.
"""

import array
import fcntl
import json
import os
import socket
import stat
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

DATAGRAM_BYTES_MAX = 65536
DRAIN_MAX = 256
# A command that an agent was just starting when it ended holds its lock until that has become another program.
LOCK_SECONDS = 1.0
_CREDENTIALS = struct.Struct("iII")


class HookSocketError(Exception):
    """The socket cannot be listened on; one line says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HookNotice:
    """An attempt has ended. `restarts` is None where the hook's environment does not tell."""

    job_id: str
    restarts: int | None
    nodes: str


class HookSocket:
    """Owns the path: a lock beside it keeps a second agent out, also one whose socket file was removed."""

    def __init__(self, path: Path, *, trusted_users: frozenset[int]) -> None:
        self._path = path
        self._trusted = trusted_users
        self._lock = _locked(path.with_name(path.name + ".lock"))
        try:
            self._socket = self._bind()
        except OSError as error:
            os.close(self._lock)
            raise HookSocketError(f"{path}: {error.strerror}") from None

    def _bind(self) -> socket.socket:
        try:
            if stat.S_ISSOCK(self._path.lstat().st_mode):
                self._path.unlink()  # the lock is ours: nobody listens on it
        except FileNotFoundError:
            pass
        made = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        try:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
            made.bind(str(self._path))
            # Anybody may send; the credentials decide who is heard.
            self._path.chmod(0o666)
        except OSError:
            made.close()
            raise
        return made

    def fileno(self) -> int:
        return self._socket.fileno()

    def trust(self, user_id: int) -> None:
        """SlurmUser is only known once slurmctld has answered."""
        self._trusted |= {user_id}

    def drain(self, heard: Callable[[HookNotice], None]) -> int:
        """Hand over what has arrived, without waiting. Returns how many datagrams were not believed."""
        refused = 0
        for _ in range(DRAIN_MAX):
            try:
                data, ancillary, _, _ = self._socket.recvmsg(DATAGRAM_BYTES_MAX, socket.CMSG_SPACE(_CREDENTIALS.size))
            except (BlockingIOError, InterruptedError):
                break
            _close_descriptors(ancillary)
            notice = _parse(data) if _sender(ancillary) in self._trusted else None
            if notice is None:
                refused += 1
            else:
                heard(notice)
        return refused

    def close(self) -> None:
        self._socket.close()
        self._path.unlink(missing_ok=True)
        os.close(self._lock)


def _locked(path: Path) -> int:
    try:
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise HookSocketError(f"{path}: {error.strerror}") from None
    deadline = time.monotonic() + LOCK_SECONDS
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() < deadline:
                time.sleep(0.02)
                continue
            os.close(lock)
            raise HookSocketError(f"{path}: another agent holds it; one agent per hook socket") from None
        return lock


def _sender(ancillary: list[tuple[int, int, bytes]]) -> int | None:
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_CREDENTIALS and len(data) >= _CREDENTIALS.size:
            user_id: int = _CREDENTIALS.unpack_from(data)[1]
            return user_id
    return None


def _close_descriptors(ancillary: list[tuple[int, int, bytes]]) -> None:
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            descriptors = array.array("i")
            descriptors.frombytes(data[: len(data) - len(data) % descriptors.itemsize])
            for descriptor in descriptors:
                os.close(descriptor)


def _parse(data: bytes) -> HookNotice | None:
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict):
        return None
    job_id = value.get("SLURM_JOB_ID")
    count = value.get("SLURM_JOB_RESTART_COUNT", value.get("SLURM_RESTART_COUNT"))
    nodes = value.get("SLURM_JOB_NODELIST", "")
    if not isinstance(job_id, str) or not job_id.isascii() or not job_id.isdigit() or len(job_id) > 12:
        return None
    known = isinstance(count, str) and count.isascii() and count.isdigit() and len(count) < 10
    return HookNotice(
        job_id=job_id, restarts=int(count) if known and count else None, nodes=nodes if isinstance(nodes, str) else ""
    )
