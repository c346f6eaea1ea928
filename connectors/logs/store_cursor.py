"""The cursor of a log-store source: how far one attempt was read, and which of the newest lines were delivered.

Lines reach a store late and out of order, so the newest stretch is asked for again and again, and what was delivered
of it must be known, also by another replica. A line is known by its nanosecond, its stream and a checksum of its text.
Older than `settled_ns` nothing is asked for any more, and nothing is remembered.
"""

import base64
import binascii
import json
import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from connectors.logs.cursor import CursorError, body_of

VERSION = 1
_ENTRY = struct.Struct("<QI")
_NS_MAX = 2**63

Known = frozenset[tuple[int, int]]  # of one stream: nanosecond and checksum


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """`read_ns`: all that the store showed of the time before was delivered. `settled_ns`: and is not asked for again.

    `swept_ns`: when the whole stretch between the two was read last. `streams`: what was delivered of it, by the hash
    of the stream. `alive`: the store has shown a line of the attempt, whether it was delivered or not.
    """

    read_ns: int = 0
    settled_ns: int = 0
    swept_ns: int = 0
    alive: bool = False
    streams: Mapping[str, Known] = field(default_factory=dict)


def stream_hash(name: str) -> str:
    return f"{zlib.crc32(name.encode('utf-8', 'surrogateescape')):08x}"


def line_sum(text: bytes, mark: int) -> int:
    """`mark`: see `connectors.logs.store.Line`."""
    return zlib.crc32(text) ^ mark


def encode(position: Position) -> str:
    """JSON text; equal positions give equal text."""
    streams = {}
    for name, known in sorted(position.streams.items()):
        packed = b"".join(_ENTRY.pack(ns, check) for ns, check in sorted(known))
        streams[name] = base64.b64encode(packed).decode("ascii")
    body: dict[str, Any] = {
        "v": VERSION,
        "store": {"r": position.read_ns, "s": position.settled_ns, "w": position.swept_ns, "a": position.alive},
    }
    if streams:
        body["streams"] = streams
    return json.dumps(body, separators=(",", ":"))


@lru_cache(maxsize=32_768)  # the cursors of all attempts are read at every look, and few have changed
def decode(text: str) -> Position:
    """Read what `encode` wrote; "" is the beginning. Raises `CursorError` with the place of what is wrong."""
    if not text:
        return Position()
    body = body_of(text, VERSION)
    place, streams = body.get("store"), body.get("streams", {})
    if not isinstance(place, dict) or not isinstance(streams, dict) or set(place) != {"r", "s", "w", "a"}:
        raise CursorError("cursor: store: expected r, s, w and a; streams: expected an object")
    for letter in "rsw":
        if not (type(place[letter]) is int and 0 <= place[letter] < _NS_MAX):
            raise CursorError(f"cursor: store.{letter}: expected a whole number")
    if type(place["a"]) is not bool:
        raise CursorError("cursor: store.a: expected true or false")
    return Position(
        read_ns=place["r"],
        settled_ns=place["s"],
        swept_ns=place["w"],
        alive=place["a"],
        streams={name: _known(name, value) for name, value in streams.items()},
    )


def _known(name: str, value: object) -> Known:
    where = f"cursor: streams[{name!r:.40}]"
    try:
        packed = base64.b64decode(value, validate=True) if isinstance(value, str) else None
    except (binascii.Error, ValueError):
        packed = None
    if packed is None or len(packed) % _ENTRY.size:
        raise CursorError(f"{where}: expected packed lines")
    return frozenset(_ENTRY.iter_unpack(packed))
