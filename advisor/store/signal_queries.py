"""Audit: signals, which are the evidence of incidents. Newest incident first, and within one by time.

They lie in their incident's row as one document. A page looks at so many incidents at most: with a filter that few
signals match it can be short, even empty, while there are more.
"""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Select, select
from sqlalchemy.ext.asyncio import AsyncConnection

from advisor.core.codec import CodecError
from advisor.core.model import Signal
from advisor.store.audit_filters import equal, of_row, page_of, refuse
from advisor.store.documents import unpack_signals
from advisor.store.open_advice import reference, reference_columns
from advisor.store.paging import Position, not_newer_than, page_size, read_cursor, write_cursor
from advisor.store.records import AuditFilter, Listing, Page, SignalFilter, SignalRow
from advisor.store.sql import AnyRow, of_attempt, storable
from advisor.store.tables import attempts, incidents

INCIDENTS_LOOKED_AT = 100
_UNANSWERABLE = ("action", "reason", "mode", "status")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LAST = 1 << 62  # behind every signal of an incident


def signals_statement(wanted: AuditFilter, position: Position | None, size: int) -> Select[Any]:
    """Incidents whose signals come next, that of the last page's last signal among them."""
    columns = incidents.c
    conditions = of_row(wanted, columns, columns.opened_at, attempts.c.nodes) + equal(
        (wanted.category, columns.category)
    )
    order = (columns.opened_at, columns.id)
    keys = select(columns.id)
    if wanted.node:  # a signal names nodes of its attempt's allocation only
        keys = keys.join(attempts, of_attempt(attempts, incidents))
    if position is not None:
        conditions.append(not_newer_than(order, (position.at, position.ids[:1])))
    found = page_of(keys.where(*conditions), order, None, size).cte("page")
    return (
        select(columns.id, columns.opened_at, columns.signals, columns.partition, *reference_columns())
        .select_from(found)
        .join(incidents, columns.id == found.c.id)
        .join(attempts, of_attempt(attempts, incidents))
        .order_by(*(column.desc() for column in order))
    )


async def list_signals(connection: AsyncConnection, wanted: SignalFilter, page: Page) -> Listing[SignalRow]:
    refuse(wanted.incidents, _UNANSWERABLE, "signals")
    size = page_size(page)
    position = read_cursor("signals", wanted, page, (str, int, str))
    # The incident where the last page stopped is read again.
    query = signals_statement(wanted.incidents, position, INCIDENTS_LOOKED_AT + 1)
    incidents_found = (await connection.execute(query)).all()
    looked_at = incidents_found[: INCIDENTS_LOOKED_AT + 1]
    rows: list[SignalRow] = []
    last: Position | None = None
    for row in looked_at:
        after = position.ids[1:] if position is not None and position.ids[0] == row.id else None
        for key, signal in _in_order(row, wanted):
            if after is not None and key <= after:
                continue
            if len(rows) == size:
                assert last is not None  # noqa: S101 -- a page holds one row at least
                return Listing(rows=tuple(rows), next_cursor=write_cursor("signals", wanted, last))
            rows.append(SignalRow(incident_id=row.id, attempt=reference(row), partition=row.partition, signal=signal))
            last = Position(at=row.opened_at, ids=(row.id, *key))
    if len(incidents_found) <= len(looked_at):
        return Listing(rows=tuple(rows), next_cursor="")
    # All of the incidents that were looked at are told: go on behind the last of them.
    end = looked_at[-1]
    behind = Position(at=end.opened_at, ids=(end.id, _LAST, ""))
    return Listing(rows=tuple(rows), next_cursor=write_cursor("signals", wanted, behind))


def _in_order(row: AnyRow, wanted: SignalFilter) -> Iterator[tuple[tuple[int, str], Signal]]:
    """By time, as (microseconds, id): what does not change when the incident gets more of them."""
    try:
        signals: Sequence[Signal] = unpack_signals(row.signals)
    except CodecError:
        return  # written by another build in a form of its own: its incident says so
    node = storable(wanted.incidents.node)
    keyed = [((_micros(item.at or item.seen_at), item.id), item) for item in signals if _matches(item, wanted, node)]
    yield from sorted(keyed, key=lambda pair: pair[0])


def _matches(signal: Signal, wanted: SignalFilter, node: str) -> bool:
    return (
        wanted.rule in {"", signal.rule}
        and wanted.trust in {"", signal.trust.value}
        and wanted.role in {"", signal.role.value}
        and (not node or node in signal.nodes)
    )


def _micros(at: datetime) -> int:
    delta = at - _EPOCH
    return (delta.days * 86_400 + delta.seconds) * 1_000_000 + delta.microseconds
