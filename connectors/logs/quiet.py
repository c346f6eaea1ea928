"""Files that have not changed since they were read to their end: one `stat` instead of opening and reading them.

A job may write thousands of files, of which few grow between two looks. What is remembered lives in this process only
and changes nothing but the cost: a file is left alone while its cursor is the one that we gave and its inode, size and
both times are what they were *before* it was read to its end. A change in the same tick of the file system's clock
would not show, so a file is not left alone before it has been still for `STILL_SECONDS`.

Where `stat` may be old, that is not enough: an NFS client answers it from a cache of up to a minute and asks the
server only when the file is opened. There a file that looks unchanged is opened all the same, after `trusted_seconds`:
at every look if there are few, in turns if there are thousands. A file that we may not even `stat` is treated alike.
"""

import os
import zlib
from dataclasses import dataclass

from connectors.logs.cursor import Mark
from connectors.logs.tail import Tail

STILL_SECONDS = 0.1  # ten times the coarsest clock that a local file system dates changes by
FILES_MAX = 200_000
LATELY_SECONDS = 15.0  # in which the files of a slow file system have all had their turn

Sign = tuple[int, int, int, int, int]
UNSEEN: Sign = (0, 0, 0, 0, 0)  # of a file that only the root log reader may look at


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seen:
    mark: Mark
    sign: Sign
    at: float  # monotonic


class Quiet:
    """What is known of files by request key and path. Used by many threads, each on requests of its own."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, str], _Seen] = {}
        self._looked: dict[tuple[str, str], float] = {}

    def looked(self, key: str, tail: Tail, now: float) -> None:
        """It was read, or found unchanged."""
        if len(self._looked) >= FILES_MAX:
            self._looked.clear()
        self._looked[key, tail.path] = now

    def owes(self, key: str, tail: Tail) -> None:
        """It was read, and more is there: it does wait."""
        self._looked.pop((key, tail.path), None)

    def lately(self, key: str, tail: Tail, now: float) -> bool:
        """Its turn was so short ago that nobody is told that it waits."""
        at = self._looked.get((key, tail.path))
        return at is not None and now - at <= LATELY_SECONDS

    def look(self, tail: Tail) -> Sign | None:
        """What tells whether the file changed; None when it may not be asked or is never left alone."""
        if tail.over:
            return None
        try:
            found = os.stat(tail.path)  # noqa: PTH116 - a Path costs more than the call, and this runs for every file
        except PermissionError:
            return UNSEEN if tail.access.handing is not None else None
        except (OSError, ValueError):
            return None
        return (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)

    def unchanged(
        self, key: str, tail: Tail, mark: Mark, sign: Sign, *, now: float, trusted_seconds: float | None
    ) -> bool:
        """`trusted_seconds`: None where `stat` is never old. Half to one and a half of it, so that turns spread."""
        seen = self._seen.get((key, tail.path))
        if seen is None or seen.sign != sign or seen.mark != mark:
            return False
        if trusted_seconds is None:
            return True
        return now - seen.at < trusted_seconds * (0.5 + zlib.crc32(os.fsencode(tail.path)) / 2**32)

    def remember(self, key: str, tail: Tail, mark: Mark, sign: Sign, *, now: float) -> None:
        """After reading to the end. `sign` is from before that."""
        _, inode, size, modified, changed = sign
        still = tail.now.timestamp() - max(modified, changed) / 1e9 > STILL_SECONDS
        seen = sign == UNSEEN or (mark.inode == inode and mark.offset == size)
        whole = seen and not (mark.closed or mark.inherited or mark.fresh)
        if not (still and whole):
            self._seen.pop((key, tail.path), None)
            return
        if len(self._seen) >= FILES_MAX:
            self._seen.clear()
        self._seen[key, tail.path] = _Seen(mark=mark, sign=sign, at=now)
