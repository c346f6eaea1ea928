"""Audit: what came of advice, told by agents and by us, and who did what, when, why and from where. Newest first."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from sqlalchemy import (
    ARRAY,
    BigInteger,
    Boolean,
    ColumnElement,
    Select,
    cast,
    func,
    literal,
    literal_column,
    select,
    true,
)
from sqlalchemy.ext.asyncio import AsyncConnection

from advisor.store.audit_filters import (
    ALWAYS,
    Spans,
    are_few,
    cut,
    equal,
    month_by_month,
    narrowed,
    of_row,
    page_of,
    within,
)
from advisor.store.open_advice import reference, reference_columns
from advisor.store.paging import Position, not_newer_than, older_than, page_size, read_cursor
from advisor.store.records import (
    ActionRow,
    AuditEvent,
    AuditFilter,
    AuditRecord,
    EventFilter,
    Listing,
    Page,
    Reconciliation,
    ReconciliationReason,
    ReconciliationStatus,
)
from advisor.store.sql import AnyRow, of_attempt
from advisor.store.tables import PEOPLE, attempts, audit, decisions, reconciliations


def _conditions(wanted: AuditFilter) -> list[ColumnElement[bool]]:
    """Those on the decision. `status` and `reason` are the action's."""
    return of_row(wanted, decisions.c, decisions.c.created_at, decisions.c.nodes) + equal(
        (wanted.category, decisions.c.category), (wanted.action, decisions.c.action), (wanted.mode, decisions.c.mode)
    )


def actions_statement(wanted: AuditFilter, position: Position | None, size: int, *, few: bool = False) -> Select[Any]:
    """Keys of one page, newest decision first, and of one decision what was told last first.

    Filtered by what came of it the actions are walked and their decisions asked for one by one, else the other way
    round; so, too, when what is filtered but for that is `few`.
    """
    if _by_outcome(wanted) and not few:
        return _told(wanted, position, size)
    return _decided(wanted, position, size, few=few)


def _whole(found: Sequence[AnyRow]) -> Select[Any]:
    told, own = reconciliations.c, decisions.c
    times = [row.created_at for row in found]
    return (
        select(
            reconciliations,
            *(own.partition, own.generation, own.action, own.category, own.mode, own.created_at),
            own.reason.label("decision_reason"),
            *reference_columns(),
        )
        .join(decisions, own.id == told.decision_id)
        .join(attempts, of_attempt(attempts, decisions))
        .where(
            told.seq == func.any(cast([row.seq for row in found], ARRAY(BigInteger()))),
            told.decided_at.between(min(times), max(times)),
            own.created_at.between(min(times), max(times)),
        )
    )


def _by_outcome(wanted: AuditFilter) -> bool:
    return bool(wanted.status or wanted.reason)


def _told(wanted: AuditFilter, position: Position | None, size: int) -> Select[Any]:
    told, own = reconciliations.c, decisions.c
    order = (told.decided_at, told.decision_id, told.seq)
    walked = select(told.decided_at.label("created_at"), told.decision_id.label("id"), told.seq).where(
        *equal((wanted.status, told.status), (wanted.reason, told.reason)), *within(wanted, told.decided_at)
    )
    if not narrowed(_but_outcome(wanted)):
        return page_of(walked, order, position, size)
    if position is not None:
        walked = walked.where(older_than(order, position))
    found = walked.subquery("found")
    asked = (
        select(literal(1))
        .where(own.id == found.c.id, own.created_at == found.c.created_at, *_conditions(wanted))
        .offset(0)
        .lateral("asked")
    )
    columns = (found.c.created_at, found.c.id, found.c.seq)
    return page_of(select(*columns).select_from(found).join(asked, true()), columns, position, size)


def _decided(wanted: AuditFilter, position: Position | None, size: int, *, few: bool) -> Select[Any]:
    told, own = reconciliations.c, decisions.c
    walked = select(own.created_at, own.id).where(*_conditions(wanted))
    if position is not None:
        # Of the decision where the last page stopped there may be more.
        walked = walked.where(not_newer_than((own.created_at, own.id), (position.at, position.ids[:1])))
    found = (walked.offset(0) if few else walked).subquery("found")
    asked = (
        select(told.seq)
        .where(
            told.decision_id == found.c.id,
            told.decided_at == found.c.created_at,
            *equal((wanted.status, told.status), (wanted.reason, told.reason)),
        )
        .offset(0)
        .lateral("asked")
    )
    columns = (found.c.created_at, found.c.id, asked.c.seq)
    return page_of(select(*columns).select_from(found).join(asked, true()), columns, position, size)


def _but_outcome(wanted: AuditFilter) -> AuditFilter:
    return replace(wanted, status=None, reason="")


async def list_actions(
    connection: AsyncConnection, wanted: AuditFilter, page: Page, spans: Spans = ALWAYS
) -> Listing[ActionRow]:
    size = page_size(page)
    position = read_cursor("actions", wanted, page, (str, int))
    matching = select(decisions.c.id).where(*_conditions(wanted))
    asked_whole = _by_outcome(wanted) or bool(wanted.node)
    few = asked_whole and await are_few(connection, matching, _but_outcome(wanted))
    build = partial(actions_statement, few=few)
    found = await month_by_month(connection, build, wanted, position, size, ALWAYS if few else spans)
    kept, cursor = cut(found, size, "actions", wanted, lambda row: Position(at=row.created_at, ids=(row.id, row.seq)))
    if not kept:
        return Listing(rows=(), next_cursor="")
    whole = {row.seq: row for row in await connection.execute(_whole(kept))}
    return Listing(rows=tuple(_action(whole[row.seq]) for row in kept if row.seq in whole), next_cursor=cursor)


def _action(row: AnyRow) -> ActionRow:
    return ActionRow(
        seq=row.seq,
        decision_id=row.decision_id,
        attempt=reference(row),
        partition=row.partition,
        generation=row.generation,
        action=row.action,
        category=row.category,
        decision_reason=row.decision_reason,
        mode=row.mode,
        decided_at=row.created_at,
        outcome=reconciliation(row),
    )


def reconciliation(row: AnyRow) -> Reconciliation:
    return Reconciliation(
        status=ReconciliationStatus(row.status),
        reason=ReconciliationReason(row.reason),
        at=row.at,
        detail=row.detail,
        excluded_nodes=tuple(row.excluded_nodes),
        dropped_nodes=tuple(row.dropped_nodes),
    )


def audit_statement(wanted: EventFilter, position: Position | None, size: int) -> Select[Any]:
    conditions = equal(
        (wanted.cluster, audit.c.cluster),
        (wanted.who, audit.c.who),
        (wanted.what, audit.c.what),
        (wanted.subject, audit.c.subject),
    )
    if not wanted.everything:
        # As it stands in the index, or the planner does not see that it may use it.
        conditions.append(literal_column(f"({PEOPLE})", Boolean()))
    conditions += within(wanted, audit.c.at)
    order = (audit.c.at, audit.c.id)
    if position is not None:
        conditions.append(older_than(order, position))
    return select(audit).where(*conditions).order_by(*(column.desc() for column in order)).limit(size + 1)


async def list_audit(
    connection: AsyncConnection, wanted: EventFilter, page: Page, spans: Spans = ALWAYS
) -> Listing[AuditRecord]:
    size = page_size(page)
    position = read_cursor("audit", wanted, page, (str,))
    rows = await month_by_month(connection, audit_statement, wanted, position, size, spans)
    kept, cursor = cut(rows, size, "audit", wanted, lambda row: Position(at=row.at, ids=(row.id,)))
    return Listing(rows=tuple(_record(row) for row in kept), next_cursor=cursor)


def _record(row: AnyRow) -> AuditRecord:
    detail: Mapping[str, object] = json.loads(row.detail)
    event = AuditEvent(
        at=row.at,
        who=row.who,
        what=row.what,
        why=row.why,
        origin=row.origin,
        cluster=row.cluster,
        subject=row.subject,
        detail={name: str(value) for name, value in detail.items()},
    )
    return AuditRecord(record_id=row.id, event=event)
