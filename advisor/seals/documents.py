"""What a seal says: one canonical JSON document per seal, each naming the digest of the one before it.

The signature is made over the document's bytes. Rows are sealed once they can no longer change in number: see
`advisor.store.seal_rows` for when that is.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from advisor.core import codec


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSeal:
    """Rows of one table: `rows` of them, with serial numbers above `after` up to `upto`; gaps are rolled-back writes.

    `digest` is of their leaves' list, made over `columns` in that order.
    """

    after: int
    upto: int
    rows: int
    columns: tuple[str, ...]
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NewKey:
    """Seals are signed with this key from here on. Endorsed: the former key vouches for it."""

    public: str  # 32 bytes in hexadecimal
    endorsed_by: str = ""
    endorsement: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DroppedRows:
    """Rows of one table that retention took away: all that were sealed in `ranges` of serial numbers, both included.

    `emptied`: numbers of seals, first and last, of which no row of this table is left. `digest` is of the leaves' list.
    """

    part: str
    rows: int
    ranges: tuple[tuple[int, int], ...]
    emptied: tuple[tuple[int, int], ...]
    digest: str
    oldest: datetime | None = None
    newest: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SealDocument:
    """`key`: fingerprint of the key that signs it, "" while there is none. `summary`: what dropped rows came to.

    `heads`: of every table that has been sealed, the last serial number up to here.
    """

    number: int
    previous: str  # digest of the document before, "" for the first
    at: datetime
    incarnation: str
    key: str = ""
    new_key: NewKey | None = None
    tables: Mapping[str, TableSeal] = field(default_factory=dict)
    heads: Mapping[str, int] = field(default_factory=dict)
    dropped: Mapping[str, DroppedRows] = field(default_factory=dict)
    summary: Mapping[str, int] = field(default_factory=dict)
    version: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredSeal:
    """A seal as it is kept and exported."""

    number: int
    document: bytes
    signature: bytes | None

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.document).hexdigest()


def write(document: SealDocument) -> bytes:
    return codec.encode(document)


def read(data: bytes) -> SealDocument:
    """Raises `codec.CodecError`."""
    return codec.decode(SealDocument, data)
