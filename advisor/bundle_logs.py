"""Log files as a bundle or a person hands them over: plain or gzip, and whether there is any text in them at all."""

import gzip
import io
import os
import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from advisor.bundle_facts import BundleError, open_regular

READ_BYTES = 1 << 20
UNPACKED_BYTES_MAX = 1 << 30  # of one gzip file: a small file may unpack to anything
SAMPLE_BYTES = 64 << 10

_GZIP = b"\x1f\x8b"
_KINDS = (
    (b"\x7fELF", "a program (ELF)"),
    (b"PK\x03\x04", "a zip archive: unpack it first"),
    (b"\x28\xb5\x2f\xfd", "compressed with zstd: unpack it first"),
    (b"\xfd7zXZ", "compressed with xz: unpack it first"),
    (b"BZh", "compressed with bzip2: unpack it first"),
    (b"\xff\xfe", "UTF-16: convert it to UTF-8 first"),
    (b"\xfe\xff", "UTF-16: convert it to UTF-8 first"),
)
# What text does not hold. NUL runs are left out before: a log that was truncated while it was written has such holes.
_ODD = bytes(code for code in (*range(0x20), 0x7F) if code not in b"\t\n\v\f\r\b\a\x1b")
_HOLE = re.compile(rb"\0{16,}")


class Unpacking(io.RawIOBase):
    """A gzip file's text, bounded. A file that stops in the middle (it was still being written) ends there."""

    def __init__(self, packed: IO[bytes], path: Path, *, most: int = UNPACKED_BYTES_MAX) -> None:
        self._file = gzip.GzipFile(fileobj=packed, mode="rb")
        self._path = path
        self._most = self._left = most

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1, /) -> bytes:
        try:
            data = self._file.read1(READ_BYTES if size < 0 else size)
        except EOFError:
            return b""
        except (OSError, zlib.error) as error:
            raise BundleError(f"{self._path}: broken gzip: {error}") from None
        self._left -= len(data)
        if self._left < 0:
            raise BundleError(f"{self._path}: unpacks to more than {self._most >> 20} MiB")
        return data


@contextmanager
def opened_log(path: Path) -> Iterator[IO[bytes] | Unpacking]:
    """A regular file's text from its beginning, unpacked where it is gzip. Raises `BundleError`."""
    with os.fdopen(open_regular(path), "rb", buffering=0) as file:
        packed = file.read(len(_GZIP)) == _GZIP
        file.seek(0)
        yield Unpacking(file, path) if packed else file


def require_text(path: Path) -> None:
    """Refuse a file in which nobody could have seen a failure. Raises `BundleError` in one line."""
    first = b""
    with opened_log(path) as file:
        while data := file.read(READ_BYTES):
            first = first or data[:SAMPLE_BYTES]
            sample = _HOLE.sub(b"", data)[:SAMPLE_BYTES]
            if sample.strip():
                break
        else:
            raise BundleError(f"{path}: is empty" if not first else f"{path}: is empty but for blanks and zero bytes")
    for magic, kind in _KINDS:
        if first.startswith(magic):
            raise BundleError(f"{path}: is not text: {kind}")
    if not _is_text(sample):
        raise BundleError(f"{path}: is not text: binary data")


def _is_text(sample: bytes) -> bool:
    odd = len(sample) - len(sample.translate(None, _ODD))
    undecodable = sample.decode("utf-8", "replace").count("\ufffd")
    return odd * 10 <= len(sample) and (odd + undecodable) * 10 <= 3 * len(sample)
