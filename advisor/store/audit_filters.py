"""How a filter becomes conditions, and a query one page, for every list of the audit.

A page's keys are found first, along an index that starts with a filtered column and ends with the list's order; what
belongs to those rows is fetched then. Where two filters meet, the planner chooses; statistics of which values come
together (migration 0009) keep it from walking far for what is not there.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, TypeAlias, TypeVar

from sqlalchemy import ColumnElement, Select, func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from advisor.store.errors import FilterRefused
from advisor.store.ids import as_id
from advisor.store.paging import Filter, Position, older_than, write_cursor
from advisor.store.records import AuditFilter, EventFilter, SignalFilter
from advisor.store.sql import AnyRow, storable, text_array
from advisor.store.tables import jobs

Row = TypeVar("Row")
FEW = 4000
Order: TypeAlias = tuple[ColumnElement[Any], ...]
Filtered = TypeVar("Filtered", AuditFilter, EventFilter)
# Newest first; together they are all of time. A bound that is None is none.
Spans: TypeAlias = tuple[tuple[datetime | None, datetime | None], ...]
ALWAYS: Spans = ((None, None),)

# What a filter by a key that cannot be one is answered with.
NOBODY = "00000000-0000-0000-0000-000000000000"


def of_row(
    wanted: AuditFilter, columns: Any, time: ColumnElement[Any], nodes: ColumnElement[Any]
) -> list[ColumnElement[bool]]:
    """Conditions on columns that every listed table has."""
    conditions = equal(
        (wanted.cluster, columns.cluster),
        (wanted.job_id, columns.job_id),
        (wanted.user, columns.user_name),
        (wanted.partition, columns.partition),
        (wanted.account, columns.account),
    )
    conditions += of_array(wanted, columns)
    if wanted.job_key:
        conditions.append(columns.job_key == (as_id(wanted.job_key) or NOBODY))
    if wanted.node:
        conditions.append(nodes.contains(text_array([storable(wanted.node)])))
    return conditions + within(wanted, time)


def within(wanted: Filter, time: ColumnElement[Any]) -> list[ColumnElement[bool]]:
    since, until = _times(wanted)
    return [
        *([time >= since] if since is not None else []),
        *([time < until] if until is not None else []),
    ]


def _times(wanted: Filter) -> tuple[datetime | None, datetime | None]:
    chosen = wanted.incidents if isinstance(wanted, SignalFilter) else wanted
    return chosen.since, chosen.until


def narrowed(wanted: AuditFilter) -> bool:
    """Whether anything is filtered by but what came of it and when."""
    return replace(wanted, status=None, since=None, until=None) != AuditFilter()


async def are_few(connection: AsyncConnection, query: Select[Any], wanted: AuditFilter) -> bool:
    """Whether this finds so little that all of it can be looked at: counted, and no further than that.

    Two tables meet where a list is filtered by what came of advice, and nothing tells the planner which of their values
    come together. It would guess, and read both from end to end. A node is looked for in an index that is in no order:
    the planner prefers to walk months for one that is in few rows.
    """
    if not narrowed(wanted):
        return False
    counted = select(func.count()).select_from(query.limit(FEW + 1).subquery())
    return (await connection.execute(counted)).scalar_one() <= FEW


def of_array(wanted: AuditFilter, columns: Any) -> list[ColumnElement[bool]]:
    """Jobs of one array, by the jobs' own index: an array has few enough of them. Raises `FilterRefused`."""
    if not wanted.array_job_id:
        if wanted.array_task is not None:
            raise FilterRefused("array_task is of an array: give array_job_id, too")
        return []
    keys = select(jobs.c.key).where(jobs.c.array_job_id == storable(wanted.array_job_id), jobs.c.array_job_id != "")
    if wanted.array_task is not None:
        keys = keys.where(jobs.c.array_task == wanted.array_task)
    return [columns.job_key.in_(keys)]


def equal(*pairs: tuple[str | None, ColumnElement[Any]]) -> list[ColumnElement[bool]]:
    return [column == storable(str(value)) for value, column in pairs if value]


def refuse(wanted: AuditFilter, names: Sequence[str], kind: str) -> None:
    """Raises `FilterRefused` when a field is set that this list cannot answer."""
    for name in names:
        if getattr(wanted, name) not in {None, ""}:
            raise FilterRefused(f"{kind} cannot be filtered by {name}: decisions can")


def page_of(query: Select[Any], order: Order, position: Position | None, size: int) -> Select[Any]:
    """The keys of one page and one row more, found first: what belongs to them is then fetched for these few only."""
    if position is not None:
        query = query.where(older_than(order, position))
    return query.order_by(*(column.desc() for column in order)).limit(size + 1)


async def month_by_month(
    connection: AsyncConnection,
    build: Callable[[Filtered, Position | None, int], Select[Any]],
    wanted: Filtered,
    position: Position | None,
    size: int,
    spans: Spans,
) -> Sequence[AnyRow]:
    """One page and one row more, asked of the newest month first and of older ones only until it is full.

    Asked of all months at once, Postgres would look for the first row of each of them, and read a month from end to end
    where there is none. Months are taken one, one, two, four, eight at a time: what is rare is not asked for often.
    """
    found: list[AnyRow] = []
    for since, until in _doubling(spans):
        low = max((at for at in (wanted.since, since) if at is not None), default=None)
        high = min((at for at in (wanted.until, until) if at is not None), default=None)
        gone = position is not None and low is not None and position.at < low
        if gone or (low is not None and high is not None and low >= high):
            continue
        query = build(replace(wanted, since=low, until=high), position, size - len(found))
        found += (await connection.execute(query)).all()
        if len(found) > size:
            break
    return found


def _doubling(spans: Spans) -> Iterator[tuple[datetime | None, datetime | None]]:
    at, count = 0, 1
    while at < len(spans):
        together = spans[at : at + count]
        yield together[-1][0], together[0][1]
        count = 1 if at == 0 else 2 * count
        at += len(together)


def cut(
    rows: Sequence[Row], size: int, kind: str, wanted: Filter, position: Callable[[Any], Position]
) -> tuple[Sequence[Row], str]:
    """One row more than asked for was read: it tells whether there is another page."""
    if len(rows) <= size:
        return rows, ""
    kept = rows[:size]
    return kept, write_cursor(kind, wanted, position(kept[-1]))
