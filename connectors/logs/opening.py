"""Opening a file whose path somebody else chose, without being led astray and without ever blocking.

A job's user chooses where its output goes, so the path may name a FIFO, a device, a link into somebody else's files,
or nothing at all; and the advisor reads by its own rights, which may be wider than the user's. Therefore: the path is
resolved once, with `O_PATH` (which opens nothing), the thing found is judged by `fstat`, and only that very thing is
then opened for reading. There is no moment at which a second look-up of the name could find something else.

What this process may not open is asked of the root log reader, where the site runs one (`Handing`).

Errors: `RefusedError` (this module's only one) carries the reason and what an operator can do about it.
"""

import errno
import os
import pwd
import re
import shlex
import stat
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Protocol

from advisor.core.words import UnavailableReason

PATH_BYTES_MAX = 4095  # PATH_MAX without the closing zero
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
NULL_DEVICE = "/dev/null"  # holds nothing by definition, so it is never missing from what was read


class RefusedError(Exception):
    """A file that will not be read, why, and what to do about it."""

    def __init__(self, reason: UnavailableReason, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason
        self.detail = detail


class Handing(Protocol):
    """Somebody with other rights than ours who opens a file as its user and hands the descriptor over."""

    def open(self, path: str) -> int:
        """A read-only descriptor, the caller's to close. Raises `RefusedError`."""
        ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """Whose files may be read.

    `sealed` is for sources that are trusted because only root can write them: no link as the last part, nobody but
    the owner may write the file, and nobody but an owner may put another file in its place.
    """

    owners: frozenset[int]
    owner_name: str
    sealed: bool = False
    handing: Handing | None = None  # asked for what we may not open ourselves


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """A regular file, open for reading. Use as a context manager."""

    fd: int
    path: str
    stat: os.stat_result

    def __enter__(self) -> "Opened":
        return self

    def __exit__(self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None) -> None:
        os.close(self.fd)


def printable(path: str) -> str:
    """The path for people: bytes that are no text and control characters are shown as escapes."""
    text = os.fsencode(path).decode("utf-8", "backslashreplace")
    return "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in text[:300])


def check_path(path: str) -> None:
    """Raises `RefusedError` for a path that no honest scheduler hands out, before the file system hears of it."""
    why = ""
    if not path.startswith("/"):
        why = "it is not absolute"
    elif _CONTROL.search(path):
        why = "it holds a control character"
    elif ".." in path.split("/"):
        why = "it holds '..'"
    elif len(os.fsencode(path)) > PATH_BYTES_MAX:
        why = f"it is longer than {PATH_BYTES_MAX} bytes"
    if why:
        raise RefusedError(UnavailableReason.REFUSED, f"path {printable(path)!r} refused: {why}")


def open_regular(path: str, access: Access) -> Opened:
    """Open `path` for reading if it is a regular file of one of `access.owners`; raise `RefusedError` otherwise."""
    attempt = _open_sealed if access.sealed else _open_plain
    try:
        return attempt(path, access)
    except OSError as error:
        if error.errno == errno.ESTALE:  # another host replaced it since its name was looked up: the name is good again
            try:
                return attempt(path, access)
            except OSError as again:
                raise refusal(again, path) from again
        if error.errno == errno.EACCES and access.handing is not None:
            return _handed(access.handing, path, access, error)
        raise refusal(error, path) from error


def _open_plain(path: str, access: Access) -> Opened:
    handle = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        return _reopen(handle, path, access)
    finally:
        os.close(handle)


def _handed(handing: Handing, path: str, access: Access, own: OSError) -> Opened:
    """What the reader gives is judged like what we open ourselves: it may be another program that listens there."""
    try:
        fd = handing.open(path)
    except RefusedError as why:
        if why.reason is UnavailableReason.PERMISSION:
            raise RefusedError(why.reason, f"{why.detail}; {refusal(own, path).detail}") from own
        raise
    try:
        found = os.fstat(fd)
        _judge(found, printable(path), access)
        return Opened(fd=fd, path=path, stat=found)
    except BaseException:
        os.close(fd)
        raise


def _open_sealed(path: str, access: Access) -> Opened:
    folder = os.open(str(Path(path).parent), os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        held = os.fstat(folder)
        if held.st_uid not in access.owners or held.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise RefusedError(
                UnavailableReason.REFUSED,
                f"{printable(str(Path(path).parent))} is not trusted: others than {access.owner_name} could put a "
                f"file there (owner uid {held.st_uid}, mode {stat.S_IMODE(held.st_mode):04o}); make it owned by "
                f"{access.owner_name} and not writable by group or others",
            )
        handle = os.open(Path(path).name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
        try:
            return _reopen(handle, path, access)
        finally:
            os.close(handle)
    finally:
        os.close(folder)


def _reopen(handle: int, path: str, access: Access) -> Opened:
    """Judge what `handle` (O_PATH) is, then open that very thing. O_NONBLOCK: a lease on the file must not hold us."""
    _judge(os.fstat(handle), printable(path), access)
    fd = os.open(f"/proc/self/fd/{handle}", os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        return Opened(fd=fd, path=path, stat=os.fstat(fd))
    except BaseException:
        os.close(fd)
        raise


def _judge(found: os.stat_result, shown: str, access: Access) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise RefusedError(UnavailableReason.NOT_REGULAR, f"{shown} is {_kind(found.st_mode)}, not a regular file")
    if found.st_uid not in access.owners:
        raise RefusedError(
            UnavailableReason.REFUSED if access.sealed else UnavailableReason.PERMISSION,
            f"{shown} belongs to uid {found.st_uid}, not to {access.owner_name}: not read on that one's behalf",
        )
    if access.sealed and found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise RefusedError(
            UnavailableReason.REFUSED,
            f"{shown} is not trusted: others than its owner can write it (mode {stat.S_IMODE(found.st_mode):04o}); "
            f"chmod go-w {shlex.quote(shown)}",
        )


def _kind(mode: int) -> str:
    kinds = (
        (stat.S_ISFIFO, "a FIFO"),
        (stat.S_ISDIR, "a folder"),
        (stat.S_ISLNK, "a symbolic link"),
        (stat.S_ISSOCK, "a socket"),
        (stat.S_ISCHR, "a character device"),
        (stat.S_ISBLK, "a block device"),
    )
    return next((name for test, name in kinds if test(mode)), "of an unknown kind")


_REASONS = {
    errno.ENOENT: UnavailableReason.MISSING,
    errno.ENOTDIR: UnavailableReason.MISSING,
    errno.EACCES: UnavailableReason.PERMISSION,
    errno.EPERM: UnavailableReason.PERMISSION,
    errno.ELOOP: UnavailableReason.NOT_REGULAR,
    errno.ENXIO: UnavailableReason.NOT_REGULAR,
    errno.ESTALE: UnavailableReason.STALE,
    errno.ETIMEDOUT: UnavailableReason.TIMEOUT,
    errno.EHOSTDOWN: UnavailableReason.TIMEOUT,
    errno.EAGAIN: UnavailableReason.TIMEOUT,  # somebody holds a lease on the file
    errno.EMFILE: UnavailableReason.LIMIT,
    errno.ENFILE: UnavailableReason.LIMIT,
}


def refusal(error: OSError, path: str) -> RefusedError:
    """What an operating system error on `path` means for who asked."""
    reason = _REASONS.get(error.errno or 0, UnavailableReason.REFUSED)
    if reason is UnavailableReason.PERMISSION:
        return RefusedError(reason, f"{printable(path)}: permission denied; {permission_advice(path)}")
    return RefusedError(reason, f"{printable(path)}: {error.strerror or error}")


def permission_advice(path: str) -> str:
    """The command that lets this process read `path`: by ACL, for it alone, without a wider group."""
    me = _own_name()
    for folder in reversed(Path(path).parents):
        if not os.access(folder, os.X_OK):
            quoted = shlex.quote(printable(str(folder)))
            return (
                f"user {me} may not enter {printable(str(folder))}: run as its owner `setfacl -m u:{me}:x {quoted}`, "
                f"share a group with {me}, or run the root log reader (docs/sources.md)"
            )
    quoted, folder_quoted = shlex.quote(printable(path)), shlex.quote(printable(str(Path(path).parent)))
    return (
        f"user {me} may not read it: run as its owner `setfacl -m u:{me}:r {quoted}` and, for files to come, "
        f"`setfacl -d -m u:{me}:rX {folder_quoted}`, share a group with {me}, or run the root log reader "
        "(docs/sources.md)"
    )


def _own_name() -> str:
    uid = os.geteuid()
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
