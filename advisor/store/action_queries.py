"""Audit: what came of advice, told by agents and by us, and who did what, when, why and from where. Newest first."""

import json
from collections.abc import Mapping
from typing import Any

from sqlalchemy import Boolean, ColumnElement, Select, and_, literal_column, select
from sqlalchemy.ext.asyncio import AsyncConnection

from advisor.store.audit_filters import Order, cut, equal, of_row
from advisor.store.open_advice import reference, reference_columns
from advisor.store.paging import Position, older_than, page_size, read_cursor
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


def actions_statement(wanted: AuditFilter, position: Position | None, size: int) -> Select[Any]:
    """Newest decision first, and of one decision what was told last first.

    Filtered by what came of it, the reconciliations' own index is walked; otherwise the decisions'.
    """
    conditions = of_row(wanted, decisions.c, decisions.c.created_at, decisions.c.nodes)
    conditions += equal(
        (wanted.category, decisions.c.category),
        (wanted.action, decisions.c.action),
        (wanted.mode, decisions.c.mode),
        (wanted.status, reconciliations.c.status),
        (wanted.reason, reconciliations.c.reason),
    )
    if wanted.status or wanted.reason:
        walked: Order = (reconciliations.c.decided_at, reconciliations.c.decision_id)
        if wanted.since is not None:
            conditions.append(reconciliations.c.decided_at >= wanted.since)
        if wanted.until is not None:
            conditions.append(reconciliations.c.decided_at < wanted.until)
    else:
        walked = (decisions.c.created_at, decisions.c.id)
    order = (*walked, reconciliations.c.seq)
    if position is not None:
        conditions.append(older_than(order, position))
        if not (wanted.status or wanted.reason):
            # The row comparison spans two tables: this half of it is what an index of one can be entered by.
            at, decision_id, _ = position.at, *position.ids
            conditions.append(_not_after(walked, Position(at=at, ids=(decision_id,))))
    page = (
        select(decisions.c.id, decisions.c.created_at, reconciliations.c.seq)
        .join(reconciliations, _of_decision())
        .where(*conditions)
        .order_by(*(column.desc() for column in order))
        .limit(size + 1)
        .cte("page")
    )
    told = decisions.c
    return (
        select(
            reconciliations,
            *(told.partition, told.generation, told.action, told.category, told.mode, told.created_at),
            told.reason.label("decision_reason"),
            *reference_columns(),
        )
        .select_from(page)
        .join(
            reconciliations,
            and_(reconciliations.c.seq == page.c.seq, reconciliations.c.decided_at == page.c.created_at),
        )
        .join(decisions, and_(told.id == page.c.id, told.created_at == page.c.created_at))
        .join(attempts, of_attempt(attempts, decisions))
        .order_by(told.created_at.desc(), told.id.desc(), reconciliations.c.seq.desc())
    )


def _of_decision() -> ColumnElement[bool]:
    """The times, too, are the same: they tell in which parts of the tables the rows lie."""
    return and_(reconciliations.c.decision_id == decisions.c.id, reconciliations.c.decided_at == decisions.c.created_at)


def _not_after(columns: Order, position: Position) -> ColumnElement[bool]:
    head = columns[0] <= position.at
    return and_(head, older_than(columns, position) | (columns[1] == position.ids[0]))


async def list_actions(connection: AsyncConnection, wanted: AuditFilter, page: Page) -> Listing[ActionRow]:
    size = page_size(page)
    position = read_cursor("actions", wanted, page, (str, int))
    rows = (await connection.execute(actions_statement(wanted, position, size))).all()
    kept, cursor = cut(
        rows, size, "actions", wanted, lambda row: Position(at=row.created_at, ids=(row.decision_id, row.seq))
    )
    return Listing(rows=tuple(_action(row) for row in kept), next_cursor=cursor)


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
    if wanted.since is not None:
        conditions.append(audit.c.at >= wanted.since)
    if wanted.until is not None:
        conditions.append(audit.c.at < wanted.until)
    order = (audit.c.at, audit.c.id)
    if position is not None:
        conditions.append(older_than(order, position))
    return select(audit).where(*conditions).order_by(*(column.desc() for column in order)).limit(size + 1)


async def list_audit(connection: AsyncConnection, wanted: EventFilter, page: Page) -> Listing[AuditRecord]:
    size = page_size(page)
    position = read_cursor("audit", wanted, page, (str,))
    rows = (await connection.execute(audit_statement(wanted, position, size))).all()
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
