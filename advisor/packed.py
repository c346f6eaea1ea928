"""Documents of many parts, packed part by part: who changes one of thousands packs that one again and no other.

A packed document is `MARK` and one deflate stream. Every part of it is flushed so that nothing refers back to what was
before it, so parts that were packed at different times make one stream when put one after the other.
"""

import hashlib
import zlib
from collections.abc import Iterable

from advisor.core.codec import CodecError

MARK = b"\x00packed1"
_RAW = -15
_LEVEL = 1
_PIECE_BYTES = 1 << 20


def pack(part: bytes) -> bytes:
    """One part of a document."""
    packer = zlib.compressobj(_LEVEL, zlib.DEFLATED, _RAW)
    return packer.compress(part) + packer.flush(zlib.Z_FULL_FLUSH)


_END = zlib.compressobj(_LEVEL, zlib.DEFLATED, _RAW).flush(zlib.Z_FINISH)


def joined(parts: Iterable[bytes]) -> bytes:
    """The packed document of packed parts."""
    return b"".join((MARK, *parts, _END))


def plain(data: bytes) -> bytes:
    """The document itself, whether it is packed or not. Raises `CodecError`."""
    return b"".join(_pieces(data)) if data.startswith(MARK) else data


def plain_hash(data: bytes) -> str:
    """What `codec.content_hash` says of the document itself, without holding all of it."""
    digest = hashlib.sha256()
    for piece in _pieces(data) if data.startswith(MARK) else (data,):
        digest.update(piece)
    return digest.hexdigest()


def _pieces(data: bytes) -> Iterable[bytes]:
    unpacker = zlib.decompressobj(_RAW)
    rest = data[len(MARK) :]
    try:
        while not unpacker.eof:
            piece = unpacker.decompress(rest, _PIECE_BYTES)
            rest = unpacker.unconsumed_tail
            if not piece and not rest:
                break
            yield piece
    except zlib.error as error:
        raise CodecError(f"a document that was packed otherwise: {error}") from error
    if not unpacker.eof:
        raise CodecError("a packed document without its end")
