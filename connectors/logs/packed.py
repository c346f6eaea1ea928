"""What was not read yet of a log that logrotate has packed (`log.1.gz`), as if it were a plain file.

The unread end goes into a file in memory, at its own offsets: before it there is a hole as long as what was read, but
for the first bytes and the last ones, by which a content is known again. Bounded in what is unpacked and in what is
kept, so that a file of zeros costs a moment and no memory; what does not fit is lost as it was before, and said so.
"""

import gzip
import os
import zlib
from contextlib import suppress

from connectors.logs.cursor import HEAD_BYTES, TAIL_BYTES
from connectors.logs.opening import Opened

UNPACKED_BYTES_MAX = 512 * 1024 * 1024  # about two seconds
KEPT_BYTES_MAX = 64 * 1024 * 1024
_STEP = 1 << 20


def unpack(packed: Opened, offset: int) -> Opened | None:
    """The content from `offset` on; None if it is no gzip, is broken before its end, or exceeds the bounds."""
    fd = os.memfd_create("unpacked-log", os.MFD_CLOEXEC)
    try:
        with os.fdopen(os.dup(packed.fd), "rb") as raw, gzip.GzipFile(fileobj=raw) as stream:
            raw.seek(0)
            size = _copy(stream, fd, max(0, offset - TAIL_BYTES))
        if size is not None:
            os.ftruncate(fd, size)
            # The packed file's own number and times, and the size of what is in it.
            seen = packed.stat
            fields = (seen.st_mode, seen.st_ino, seen.st_dev, seen.st_nlink, seen.st_uid, seen.st_gid, size)
            times = (int(seen.st_atime), int(seen.st_mtime), int(seen.st_ctime))
            return Opened(fd=fd, path=packed.path, stat=os.stat_result((*fields, *times)))
    except (OSError, EOFError, zlib.error):
        pass  # no gzip, or still being written: then it is found at the next look, or its bytes are told as lost
    with suppress(OSError):
        os.close(fd)
    return None


def _copy(stream: gzip.GzipFile, fd: int, keep_from: int) -> int | None:
    at = 0
    while data := stream.read(_STEP):
        if at < HEAD_BYTES:
            os.pwrite(fd, data[: HEAD_BYTES - at], at)
        skip = max(0, keep_from - at)
        if skip < len(data):
            os.pwrite(fd, data[skip:], at + skip)
        at += len(data)
        if at > UNPACKED_BYTES_MAX or at - keep_from > KEPT_BYTES_MAX:
            return None
    return at
