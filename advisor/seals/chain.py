"""The chain of seals, checked from its first to its last, and against a copy that was kept elsewhere.

The rows themselves are compared by `advisor.store.seal_verify`, with what is learned here.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from advisor.core.codec import CodecError
from advisor.seals import documents
from advisor.seals.documents import NewKey, SealDocument, StoredSeal, TableSeal
from advisor.seals.keys import PublicKey, announced


class Wrong(StrEnum):
    ROW_CHANGED = "row_changed"
    ROW_MISSING = "row_missing"
    ROW_INSERTED = "row_inserted"
    ROWS_UNSEALED = "rows_unsealed"
    LEAVES_CHANGED = "leaves_changed"
    LEAVES_MISSING = "leaves_missing"
    SEAL_CHANGED = "seal_changed"
    SEAL_MISSING = "seal_missing"
    SEAL_UNSIGNED = "seal_unsigned"
    WRONG_KEY = "wrong_key"
    COPY_DIFFERS = "copy_differs"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that is wrong: of what kind, with which seal, table and row, and in words."""

    wrong: Wrong
    detail: str
    seal: int | None = None
    table: str = ""
    row: int | None = None

    def __str__(self) -> str:
        where = ", ".join(
            part
            for part in (
                f"table {self.table}" if self.table else "",
                f"row {self.row}" if self.row is not None else "",
                f"seal {self.seal}" if self.seal is not None else "",
            )
            if part
        )
        return f"{self.wrong}: {where + ': ' if where else ''}{self.detail}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sealed:
    """Rows of one table in one seal."""

    seal: int
    rows: TableSeal


@dataclass(slots=True)
class Chain:
    """What the seals say, while they are read in order."""

    trusted: Mapping[str, PublicKey] = field(default_factory=dict)
    allow_unsigned: bool = False
    seals: int = 0
    signed: int = 0
    last: int = 0
    last_at: datetime | None = None
    sealed: dict[str, list[Sealed]] = field(default_factory=dict)
    dropped: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    emptied: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    dropped_rows: int = 0
    keys: dict[str, PublicKey] = field(default_factory=dict)  # that signed, in the order of their first seal
    _previous: str | None = ""
    _key: str = ""
    _sure: set[str] = field(default_factory=set)
    _unsure: list[Finding] = field(default_factory=list)  # keys before the first trusted one

    def read(self, seal: StoredSeal) -> Iterator[Finding]:
        """The next seal. What is wrong with it or before it."""
        if seal.number != self.last + 1:
            first, last = self.last + 1, seal.number - 1
            span = f"seal {first} is" if first == last else f"seals {first} to {last} are"
            yield Finding(wrong=Wrong.SEAL_MISSING, seal=first, detail=f"{span} not there")
            self._previous = None
        try:
            document = documents.read(seal.document)
        except CodecError as error:
            yield Finding(wrong=Wrong.SEAL_CHANGED, seal=seal.number, detail=f"it cannot be read: {error}")
            self._after(seal)
            return
        yield from self._linked(seal, document)
        yield from self._signed(seal, document)
        yield from self._covered(document)
        self.last_at = document.at
        self._after(seal)

    def end(self) -> Iterator[Finding]:
        """After the last one."""
        yield from self._unsure
        if self.trusted and self.seals and not self.signed and not self.allow_unsigned:
            yield Finding(wrong=Wrong.SEAL_UNSIGNED, detail="a key is given, and no seal is signed")

    def _after(self, seal: StoredSeal) -> None:
        self.seals += 1
        self.last = seal.number
        self._previous = seal.digest

    def _linked(self, seal: StoredSeal, document: SealDocument) -> Iterator[Finding]:
        if document.number != seal.number:
            detail = f"it says that it is seal {document.number}"
            yield Finding(wrong=Wrong.SEAL_CHANGED, seal=seal.number, detail=detail)
        if self._previous is not None and document.previous != self._previous:
            detail = "it does not follow the seal before it: one of the two was replaced"
            yield Finding(wrong=Wrong.SEAL_CHANGED, seal=seal.number, detail=detail)

    def _signed(self, seal: StoredSeal, document: SealDocument) -> Iterator[Finding]:
        if not document.key:
            if self._key and not self.allow_unsigned:
                yield Finding(
                    wrong=Wrong.SEAL_UNSIGNED, seal=seal.number, detail="it is not signed, and seals before it are"
                )
            return
        if document.new_key is not None or document.key not in self.keys:
            problem = self._take_key(document)
            if problem:
                finding = Finding(wrong=Wrong.WRONG_KEY, seal=seal.number, detail=problem)
                if self.trusted and not self._sure:
                    self._unsure.append(finding)
                else:
                    yield finding
        self._key = document.key
        key = self.keys.get(document.key)
        if seal.signature is None:
            yield Finding(wrong=Wrong.SEAL_CHANGED, seal=seal.number, detail="its signature was removed")
        elif key is not None and not key.signed(seal.document, seal.signature):
            detail = f"its signature is not of key {document.key}"
            yield Finding(wrong=Wrong.SEAL_CHANGED, seal=seal.number, detail=detail)
        elif key is not None:
            self.signed += 1
            if document.key in self._sure:
                self._unsure.clear()  # whoever holds a trusted key signed that these came before

    def _take_key(self, document: SealDocument) -> str:
        """Remember the key that signs from here on. Returns what is wrong with it."""
        notice = document.new_key
        key = announced(notice) if notice is not None else self.trusted.get(document.key)
        if key is None or key.fingerprint != document.key:
            return f"it names key {document.key}, which no seal announces"
        self.keys[document.key] = key
        first = not self.trusted and not self._key  # believed when nobody says which key it is
        if first or document.key in self.trusted or (notice is not None and self._endorsed(key, notice)):
            self._sure.add(document.key)
            return ""
        former = f"key {self._key}, which signed before," if self._key else "no key that you gave"
        return f"it begins with key {document.key}: {former} does not vouch for it"

    def _endorsed(self, key: PublicKey, notice: NewKey) -> bool:
        """By a key that is trusted, or that such a one vouches for."""
        by = notice.endorsed_by
        former = self.trusted.get(by) or (self.keys.get(by) if by in self._sure else None)
        try:
            return former is not None and former.endorsed(key, bytes.fromhex(notice.endorsement))
        except ValueError:
            return False

    def _covered(self, document: SealDocument) -> Iterator[Finding]:
        for table, rows in document.tables.items():
            before = self.sealed.setdefault(table, [])
            upto = before[-1].rows.upto if before else 0
            if rows.after != upto and self._previous is not None:
                detail = f"it begins after row {rows.after}, and row {upto} was the last one sealed"
                yield Finding(wrong=Wrong.SEAL_CHANGED, seal=document.number, table=table, detail=detail)
            before.append(Sealed(seal=document.number, rows=rows))
        for table, upto in document.heads.items():
            known = self.sealed.get(table, ())
            if self._previous is not None and upto != (known[-1].rows.upto if known else 0):
                detail = f"it says that row {upto} is the last one sealed"
                yield Finding(wrong=Wrong.SEAL_CHANGED, seal=document.number, table=table, detail=detail)
        for table, dropped in document.dropped.items():
            self.dropped.setdefault(table, []).extend(dropped.ranges)
            self.emptied.setdefault(table, []).extend(dropped.emptied)
            self.dropped_rows += dropped.rows


def compare_copies(stored: Iterable[StoredSeal], kept: Sequence[StoredSeal]) -> Iterator[Finding]:
    """Seals of the database, in order, against those of an exported file."""
    wanted = {seal.number: seal for seal in kept}
    for seal in stored:
        copy = wanted.pop(seal.number, None)
        if copy is not None and (copy.document != seal.document or copy.signature != seal.signature):
            detail = "it is not the one that was exported"
            yield Finding(wrong=Wrong.COPY_DIFFERS, seal=seal.number, detail=detail)
    if wanted:
        first, last = min(wanted), max(wanted)
        yield Finding(
            wrong=Wrong.SEAL_MISSING,
            seal=first,
            detail=f"{len(wanted)} exported seals ({first} to {last}) are not there: the end was cut off, or the "
            "database was restored from a backup of before",
        )


def within(seq: int, ranges: Sequence[tuple[int, int]]) -> bool:
    """Whether one of a few ranges, both ends included, holds it."""
    return any(first <= seq <= last for first, last in ranges)
