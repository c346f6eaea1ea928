"""What a child of the reader does: become the job's user for the file system, open files, judge them.

Runs in a forked, short-lived process. Only the *effective* ids change: that is what the file system (and an NFS server
with root_squash) looks at, and it takes every capability over files away. The real and saved user stay root, so the
user whose files these are can neither signal nor trace the process, while its parent can end it.

A path is resolved once, with `O_PATH`, which opens nothing; what was found is judged; and that very thing is opened.
"""

import errno
import os
import pwd
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

PATH_BYTES_MAX = 4095
NO_GROUP = 65534  # for users whom this host does not know: then only what they own counts
_KERNELS_OWN = ("/proc", "/sys", "/dev")


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """Why a path is not handed over. `reason` is a word of `advisor.core.words.UnavailableReason`."""

    reason: str
    detail: str


_REASONS = {
    errno.ENOENT: "missing",
    errno.ENOTDIR: "missing",
    errno.EACCES: "permission",
    errno.EPERM: "permission",
    errno.ELOOP: "not_regular",
    errno.ENXIO: "not_regular",
    errno.ESTALE: "stale",
    errno.ETIMEDOUT: "timeout",
    errno.EHOSTDOWN: "timeout",
    errno.EAGAIN: "timeout",
}


def check_path(path: str) -> Refused | None:
    """What no honest scheduler hands out is refused before the file system hears of it."""
    try:
        raw = os.fsencode(path)
    except UnicodeEncodeError:
        return Refused(reason="refused", detail="it is not a path")
    if len(raw) > PATH_BYTES_MAX:
        return Refused(reason="refused", detail=f"longer than {PATH_BYTES_MAX} bytes")
    if not path.startswith("/") or ".." in path.split("/"):
        return Refused(reason="refused", detail="not absolute, or with '..'")
    if any(byte < 0x20 or byte == 0x7F for byte in raw):
        return Refused(reason="refused", detail="it holds a control character")
    return None


def become(uid: int) -> None:
    """Effective user, group and supplementary groups of `uid`, as this host's user database knows them."""
    try:
        entry = pwd.getpwuid(uid)
        group, groups = entry.pw_gid, os.getgrouplist(entry.pw_name, entry.pw_gid)
    except KeyError:
        group, groups = NO_GROUP, []
    os.setgroups([number for number in groups if number != 0])
    os.setegid(group if group != 0 else NO_GROUP)
    os.seteuid(uid)
    if os.geteuid() != uid or os.getegid() == 0 or 0 in os.getgroups():
        raise PermissionError(errno.EPERM, "the user was not taken on")


def open_as(uid: int, path: str, *, under: Sequence[str], devices: frozenset[int]) -> int | Refused:
    """A read-only descriptor of a regular file of `uid`. Call after `become(uid)`; never blocks on what it opens.

    `under`: if given, only below these. `devices`: `kernels_devices()`, from before.
    """
    wrong = check_path(path)
    if wrong is not None:
        return wrong
    try:
        handle = os.open(path, os.O_PATH | os.O_CLOEXEC)
        try:
            return _judged(uid, handle, under, devices) or os.open(
                f"/proc/self/fd/{handle}", os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
            )
        finally:
            os.close(handle)
    except OSError as error:
        return Refused(reason=_REASONS.get(error.errno or 0, "refused"), detail=error.strerror or "")


def _judged(uid: int, handle: int, under: Sequence[str], devices: frozenset[int]) -> Refused | None:
    found = os.fstat(handle)
    if not stat.S_ISREG(found.st_mode):
        return Refused(reason="not_regular", detail="not a regular file")
    if found.st_uid != uid:
        return Refused(reason="permission", detail=f"belongs to uid {found.st_uid}, not to the job's user {uid}")
    where = os.readlink(f"/proc/self/fd/{handle}")  # noqa: PTH115 - a Path costs more than the call
    if _within(where, _KERNELS_OWN) or found.st_dev in devices:
        return Refused(reason="not_regular", detail="not a file on disk")
    if under and not _within(where, under):
        return Refused(reason="refused", detail=f"outside of {', '.join(under)}")
    return None


def _within(path: str, folders: Sequence[str]) -> bool:
    return any(path == folder or path.startswith(f"{folder.rstrip('/')}/") for folder in folders)


def kernels_devices() -> frozenset[int]:
    """What the kernel's own files are on, wherever else they may be mounted."""
    return frozenset(Path(folder).stat().st_dev for folder in _KERNELS_OWN[:2])
