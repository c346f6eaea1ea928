"""A Unix socket that one process owns: locked, bound once, and gone when it is closed.

A second server that binds the same path silently takes it over. So a lock file beside the socket says who serves it;
what a killed service left is removed by the next one that holds the lock, and nothing that is not a socket ever is.
"""

import contextlib
import fcntl
import hashlib
import os
import socket
import stat
import struct
from pathlib import Path

from advisor.folders import refusal
from advisor.service.errors import SocketTakenError

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class OwnedSocket:
    """`reserve`, `bind`, `remove`, `release`; each can be called again without harm."""

    def __init__(self, path: Path, *, boot_id: Path = BOOT_ID) -> None:
        self.path = path
        self._boot_id = boot_id
        self._lock_path = path.with_name(f"{path.name}.lock")
        self._lock_fd = -1
        self._inode = (0, 0)

    @property
    def reserved(self) -> bool:
        return self._lock_fd >= 0

    @property
    def place(self) -> str:
        """Names the lock that we hold, among all of this host since it was started; "" while it is not held.

        The last word names the socket, also after the host was started again.
        """
        if not self.reserved:
            return ""
        held = os.fstat(self._lock_fd)
        try:
            boot = self._boot_id.read_text(encoding="ascii").strip()
        except OSError:
            # Our unit shows no more of /proc than processes. Nobody writes to the lock, so it is as old as its making:
            # a killed service leaves it, and a host's start, which empties /run, does not.
            boot = f"{held.st_mtime_ns}"
        machine = b""
        with contextlib.suppress(OSError):  # containers have none
            machine = Path("/etc/machine-id").read_bytes().strip()
        # Not for others to know: only its digest leaves the host.
        socket_id = hashlib.sha256(machine + b" " + os.fsencode(self.path.absolute())).hexdigest()[:16]
        return f"{boot} {held.st_dev} {held.st_ino} {socket_id}"

    def reserve(self) -> None:
        """Take the socket's lock, so that nobody else can serve it. Raises `SocketTakenError`."""
        if self.reserved:
            return
        folder = self.path.parent
        try:
            if not folder.is_dir():
                folder.mkdir(parents=True, exist_ok=True)
                folder.chmod(0o755)  # whatever the umask: agents of other users must pass
        except OSError as error:
            raise SocketTakenError(refusal(error, folder, "service.socket")) from None
        self._take_lock()

    def bind(self) -> socket.socket:
        """The listening end, not yet listening. Raises `SocketTakenError` if something else lies in the way."""
        self.reserve()
        with contextlib.suppress(FileNotFoundError):
            if not stat.S_ISSOCK(self.path.lstat().st_mode):
                raise SocketTakenError(f"{self.path} is not a socket: remove it or choose another socket")
            self.path.unlink()
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            listener.setblocking(False)
            listener.bind(str(self.path))
            # Everybody may connect; who may call is decided by credentials, and strangers get a reason.
            self.path.chmod(0o666)
            found = self.path.lstat()
        except BaseException:
            listener.close()
            raise
        self._inode = (found.st_dev, found.st_ino)
        return listener

    def remove(self) -> None:
        """Take the socket out of the file system, if it still is ours."""
        if not self.reserved:
            return
        with contextlib.suppress(FileNotFoundError):
            found = self.path.lstat()
            if (found.st_dev, found.st_ino) == self._inode:
                self.path.unlink()

    def release(self) -> None:
        """Let another service have the socket: after everything of ours is closed."""
        if not self.reserved:
            return
        with contextlib.suppress(FileNotFoundError):
            self._lock_path.unlink()
        os.close(self._lock_fd)
        self._lock_fd = -1

    def _take_lock(self) -> None:
        path = self._lock_path
        while True:
            try:
                fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            except OSError as error:
                raise SocketTakenError(refusal(error, path.parent, "service.socket")) from None
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                os.close(fd)
                raise SocketTakenError(
                    f"{self.path} is served already: stop that service or choose another socket"
                ) from None
            # The owner before us removes the file while it holds the lock: then ours is a lock on nothing.
            with contextlib.suppress(FileNotFoundError):
                if path.lstat().st_ino == os.fstat(fd).st_ino:
                    self._lock_fd = fd
                    return
            os.close(fd)


def peer_uid(connection: socket.socket) -> int:
    """The uid at the other end, as the kernel says."""
    size = struct.calcsize("3i")
    uid: int = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))[1]
    return uid
