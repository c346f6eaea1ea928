"""Digests of rows, and their list as a seal keeps it.

A leaf is SHA-256 over the table's name, the names of its columns and the row as `COPY (SELECT …) TO STDOUT` writes it
(text form; UTC, ISO dates, bytes in hexadecimal): anybody with psql and sha256sum can make it again. The list tells
afterwards which row is wrong; a seal holds only the list's digest.
"""

import hashlib
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

_ITEM = struct.Struct(">q32s")


@dataclass(frozen=True, slots=True)
class Leaf:
    """One row: its serial number within the table, and its digest."""

    seq: int
    digest: bytes


class LeafMaker:
    """Leaves of one table. `columns` begin with `seq`, which makes the first field of a line its serial number."""

    def __init__(self, table: str, columns: Sequence[str]) -> None:
        if not columns or columns[0] != "seq":
            raise ValueError("a row begins with its serial number")
        self._prefix = hashlib.sha256(b"advisor row 1\0")
        self._prefix.update("\0".join((table, *columns)).encode() + b"\0\0")

    def leaf(self, line: bytes) -> Leaf:
        """`line`: as COPY wrote it, with or without its end."""
        line = line.rstrip(b"\n")
        digest = self._prefix.copy()
        digest.update(line)
        return Leaf(int(line.partition(b"\t")[0]), digest.digest())


def pack(leaves: Iterable[Leaf]) -> bytes:
    """Forty bytes each, in the order of their serial numbers."""
    return b"".join(_ITEM.pack(leaf.seq, leaf.digest) for leaf in leaves)


def unpack(data: bytes) -> Iterator[Leaf]:
    """Raises ValueError for what no `pack` can have written."""
    if len(data) % _ITEM.size:
        raise ValueError("not a list of leaves")
    return (Leaf(seq, digest) for seq, digest in _ITEM.iter_unpack(data))


def digest_of(packed: bytes) -> str:
    return hashlib.sha256(packed).hexdigest()


class Ranges:
    """The fewest [first, last] that hold every number that was dropped and none that was kept, fed ascending."""

    def __init__(self) -> None:
        self._found: list[tuple[int, int]] = []
        self._open = False

    def add(self, number: int, *, dropped: bool) -> None:
        if dropped and self._open:
            self._found[-1] = (self._found[-1][0], number)
        elif dropped:
            self._found.append((number, number))
        self._open = dropped

    def all(self) -> tuple[tuple[int, int], ...]:
        return tuple(self._found)
