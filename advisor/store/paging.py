"""Pages of a list that grows at its head: newest first, by a key that never changes, so no row is seen twice or missed.

A cursor is the key of the last row that was given out, with the list and the filter it belongs to. It is opaque and
not secret: a forged one can only ask for rows that the caller may ask for anyway.
"""

import base64
import binascii
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from typing import Any, TypeAlias

from sqlalchemy import BigInteger, ColumnElement, Integer, Uuid, literal, tuple_
from sqlalchemy.types import TypeEngine

from advisor.store.errors import CursorRefused, PageRefused
from advisor.store.ids import as_id
from advisor.store.records import PAGE_SIZE_DEFAULT, PAGE_SIZE_MAX, AuditFilter, EventFilter, Page, SignalFilter
from advisor.store.sql import storable

Filter: TypeAlias = AuditFilter | SignalFilter | EventFilter

_CURSOR_CHARACTERS_MAX = 2000
_NOT_OURS = "the cursor is not one of ours: use next_cursor of the last page as it is"


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """Where the next page starts: after the row with this time and these ids. `first`: the head of the first page."""

    at: datetime
    ids: tuple[str | int, ...]
    first: tuple[datetime, tuple[str | int, ...]] | None = None


def page_size(page: Page) -> int:
    """Raises `PageRefused`."""
    if not 0 <= page.size <= PAGE_SIZE_MAX:
        raise PageRefused(f"page_size is {page.size}, and must be 1 to {PAGE_SIZE_MAX} (0: {PAGE_SIZE_DEFAULT})")
    return page.size or PAGE_SIZE_DEFAULT


def write_cursor(kind: str, wanted: Filter, position: Position) -> str:
    document = [kind, _fingerprint(wanted), _time(position.at), list(position.ids)]
    if position.first is not None:
        document += [_time(position.first[0]), list(position.first[1])]
    return base64.urlsafe_b64encode(json.dumps(document, separators=(",", ":")).encode()).decode().rstrip("=")


def read_cursor(kind: str, wanted: Filter, page: Page, id_kinds: Sequence[type]) -> Position | None:
    """None for the first page. Raises `CursorRefused`."""
    if not page.cursor:
        return None
    try:
        if len(page.cursor) > _CURSOR_CHARACTERS_MAX:
            raise CursorRefused("the cursor is longer than any of ours")
        padded = page.cursor + "=" * (-len(page.cursor) % 4)
        document = json.loads(base64.b64decode(padded.encode("ascii"), altchars=b"-_", validate=True))
        found_kind, fingerprint, at, ids, *first = document
        position = Position(at=_read_time(at), ids=_read_ids(ids, id_kinds))
        if first:
            position = Position(
                at=position.at, ids=position.ids, first=(_read_time(first[0]), _read_ids(first[1], id_kinds))
            )
    except (ValueError, TypeError, IndexError, OverflowError, binascii.Error, RecursionError) as error:
        raise CursorRefused(_NOT_OURS) from error
    if (found_kind, fingerprint) != (kind, _fingerprint(wanted)):
        raise CursorRefused("the cursor belongs to another list or filter: start again without a cursor")
    return position


def older_than(columns: Sequence[ColumnElement[Any]], position: Position) -> ColumnElement[bool]:
    """Rows after `position`, newest first; `columns` are the time and the ids."""
    found: ColumnElement[bool] = tuple_(*columns) < _like(columns, (position.at, *position.ids))
    return found


def not_newer_than(
    columns: Sequence[ColumnElement[Any]], head: tuple[datetime, tuple[str | int, ...]]
) -> ColumnElement[bool]:
    """The row at `head`, and rows after it."""
    found: ColumnElement[bool] = tuple_(*columns) <= _like(columns, (head[0], *head[1]))
    return found


def _like(columns: Sequence[ColumnElement[Any]], values: Sequence[object]) -> Any:
    """Raises `CursorRefused`: a forged cursor can name what its column cannot hold."""
    if not all(_fits(column.type, value) for column, value in zip(columns, values, strict=True)):
        raise CursorRefused(_NOT_OURS)
    # Postgres compares a uuid with a uuid only: each value takes its column's type.
    return tuple_(*(literal(value, type_=column.type) for value, column in zip(values, columns, strict=True)))


def _fits(kind: TypeEngine[Any], value: object) -> bool:
    if isinstance(value, str):
        if isinstance(kind, Integer):
            return False
        return as_id(value) is not None if isinstance(kind, Uuid) else value == storable(value)
    if isinstance(value, int):
        return 0 <= value < (2**63 if isinstance(kind, BigInteger) else 2**31)
    return True


def _fingerprint(wanted: Filter) -> str:
    values = [str(getattr(wanted, item.name)) for item in fields(wanted)]
    return hashlib.sha256(json.dumps(values).encode()).hexdigest()[:12]


def _time(at: datetime) -> int:
    # Microseconds are what Postgres keeps; a float would lose the last of them.
    delta = at.astimezone(UTC) - _EPOCH
    return (delta.days * 86_400 + delta.seconds) * 1_000_000 + delta.microseconds


def _read_time(value: object) -> datetime:
    if not isinstance(value, int) or isinstance(value, bool):
        raise CursorRefused("the cursor's time is not a number")
    if not 0 <= value <= _LAST_MICROSECOND:
        raise CursorRefused("the cursor's time is out of range")
    seconds, microseconds = divmod(value, 1_000_000)
    return datetime.fromtimestamp(seconds, UTC).replace(microsecond=microseconds)


def _read_ids(values: object, kinds: Sequence[type]) -> tuple[str | int, ...]:
    if not isinstance(values, list) or [type(value) for value in values] != list(kinds):
        raise CursorRefused("the cursor's ids are not of this list")
    return tuple(values)


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LAST_MICROSECOND = 250_000_000_000 * 1_000_000  # in the year 9892
