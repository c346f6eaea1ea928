"""Advice after its decision is committed: what is open, what came of it, and its end."""

import re
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any

import structlog
from sqlalchemy import ColumnElement, Select, and_, insert, select, text, update
from sqlalchemy.ext.asyncio import AsyncConnection

from advisor.store.audit_log import append
from advisor.store.documents import unpack_decision
from advisor.store.errors import NotFound, Unreadable
from advisor.store.ids import as_id
from advisor.store.records import (
    AdviceRow,
    AttemptKey,
    AttemptRef,
    AuditEvent,
    Reconciliation,
    ReconciliationReason,
    ReconciliationStatus,
)
from advisor.store.sql import AnyRow, of_advice, of_attempt, storable, wanted_attempts
from advisor.store.tables import advice, attempts, decisions, incidents, jobs, reconciliations

_log = structlog.get_logger(__name__)

_OPEN_MAX = 10_000
_DETAIL_CHARACTERS_MAX = 2048
_NODES_MAX = 65_536
_EXPIRED, _SUPERSEDED = ReconciliationStatus.EXPIRED, ReconciliationStatus.SUPERSEDED
_SEEN = re.compile(r"generation (\d{1,9})", re.ASCII)  # as the agent's guard words it
# Sums of hashes: in whatever order the rows come, and without sorting them.
_TOKEN = text(
    """
    SELECT concat_ws(' ',
      (SELECT sum(hashtextextended(concat(decision_id, status, applied), 0)) FROM advice WHERE open),
      (SELECT sum(hashtextextended(isolations::text, 0)) FROM isolations WHERE open),
      (SELECT sum(hashtextextended(mode_settings::text, 0)) FROM mode_settings),
      (SELECT sum(hashtextextended(pauses::text, 0)) FROM pauses),
      (SELECT sum(hashtextextended(earned_autonomy::text, 0)) FROM earned_autonomy)
    )
    """
)
_ACCEPTED = frozenset({ReconciliationStatus.APPLIED, ReconciliationStatus.VERIFIED})


async def open_advice(connection: AsyncConnection, cluster: str, now: datetime) -> tuple[AdviceRow, ...]:
    """The newest generation of each attempt, unless it is final or past its time to live. Oldest first."""
    found = await connection.execute(
        select(
            advice.c.decision_id,
            advice.c.generation,
            advice.c.status,
            advice.c.applied,
            decisions.c.decision,
            decisions.c.build,
            decisions.c.created_at,
            decisions.c.expires_at,
            jobs.c.partition,
            jobs.c.account,
            *reference_columns(),
        )
        .join(decisions, of_advice(decisions, advice))
        .join(attempts, of_attempt(attempts, advice))
        .join(jobs, jobs.c.key == attempts.c.job_key)
        .where(advice.c.open, advice.c.cluster == cluster, advice.c.expires_at > now)
        .order_by(advice.c.created_at, advice.c.decision_id)
        .limit(_OPEN_MAX)
    )
    return tuple(item for row in found if (item := _readable(row)) is not None)


def _readable(row: AnyRow) -> AdviceRow | None:
    """None for what a newer build wrote in a form that this one does not know: its own replicas tell it."""
    try:
        decision = unpack_decision(row.decision_id, row.build, row.decision)
    except Unreadable as error:
        _log.warning("advice_unreadable", advice=row.decision_id, error=str(error)[:300])
        return None
    return AdviceRow(
        advice_id=row.decision_id,
        attempt=reference(row),
        generation=row.generation,
        decision=decision,
        created_at=row.created_at,
        expires_at=row.expires_at,
        status=ReconciliationStatus(row.status),
        applied=row.applied,
        partition=row.partition,
        account=row.account,
    )


async def token(connection: AsyncConnection) -> str:
    """Another one whenever what is open, isolated, set, paused or earned may have changed."""
    found = await connection.execute(_TOKEN)
    return str(found.scalar_one())


def reference_columns() -> tuple[ColumnElement[Any], ...]:
    """What `reference` reads, of `attempts`."""
    columns = attempts.c
    return (columns.cluster, columns.job_id, columns.job_key, columns.number, columns.user_name, columns.submitted_at)


def reference(row: AnyRow) -> AttemptRef:
    return AttemptRef(
        cluster=row.cluster,
        job_id=row.job_id,
        job_key=row.job_key,
        number=row.number,
        user=row.user_name,
        submitted_at=row.submitted_at,
    )


async def record_reconciliation(
    connection: AsyncConnection, advice_id: str, news: Reconciliation, *, who: str
) -> AttemptKey:
    """Append `news`, unless it says what the last one said. Raises `NotFound`."""
    decision_id = as_id(advice_id)
    row = None
    if decision_id is not None:
        found = await connection.execute(select(advice).where(advice.c.decision_id == decision_id).with_for_update())
        row = found.one_or_none()
    if row is None or decision_id is None:
        raise NotFound(f"no advice {storable(advice_id)[:64]!r}")
    key = AttemptKey(job_key=row.job_key, number=row.number)
    values = {
        "status": news.status.value,
        "reason": news.reason.value,
        "detail": storable(news.detail)[:_DETAIL_CHARACTERS_MAX],
        "excluded_nodes": [storable(node) for node in news.excluded_nodes[:_NODES_MAX]],
        "dropped_nodes": [storable(node) for node in news.dropped_nodes[:_NODES_MAX]],
    }
    last = (
        await connection.execute(
            select(reconciliations)
            .where(reconciliations.c.decision_id == decision_id)
            .order_by(reconciliations.c.seq.desc())
            .limit(1)
        )
    ).one_or_none()
    if last is not None and all(getattr(last, name) == value for name, value in values.items()):
        return key
    await connection.execute(
        insert(reconciliations).values(decision_id=decision_id, at=news.at, decided_at=row.created_at, **values)
    )
    await connection.execute(update(advice).where(advice.c.decision_id == decision_id).values(**_after(row, news)))
    if news.final and row.open:
        await connection.execute(
            update(incidents)
            .where(
                incidents.c.job_key == key.job_key,
                incidents.c.number == key.number,
                incidents.c.decision_id == decision_id,
                incidents.c.closed_at.is_(None),
            )
            .values(closed_at=news.at)
        )
    await append(
        connection,
        AuditEvent(
            at=news.at,
            who=who,
            what="advice_reconciled",
            why=news.reason.value,
            cluster=row.cluster,
            subject=decision_id,
            detail={"attempt": str(key), "generation": str(row.generation), "status": news.status.value},
        ),
    )
    return key


def _after(row: AnyRow, news: Reconciliation) -> dict[str, object]:
    """The advice's columns after `news`. What was replaced stays so; what was final is not opened again."""
    before = ReconciliationStatus(row.status)
    applied = row.applied or news.status in _ACCEPTED
    if before is ReconciliationStatus.SUPERSEDED or (not row.open and not news.final):
        return {"applied": applied}
    return {"applied": applied, "status": news.status.value, "open": row.open and not news.final}


async def expire_advice(connection: AsyncConnection, now: datetime) -> int:
    """Close what is past its time to live. Returns how many."""
    closed = await _close(connection, select(advice.c.decision_id).where(advice.c.expires_at <= now), _EXPIRED)
    return await _tell(connection, [_said(row, _EXPIRED, ReconciliationReason.TIME_TO_LIVE, now) for row in closed])


async def supersede(connection: AsyncConnection, newer: Mapping[AttemptKey, tuple[int, datetime]]) -> int:
    """Close what these attempts' new generations, of those moments, replace. Returns how many."""
    wanted = wanted_attempts(list(newer))
    closed = await _close(
        connection, select(advice.c.decision_id).join(wanted, of_attempt(advice, wanted)), _SUPERSEDED
    )
    said = []
    for row in closed:
        generation, at = newer[AttemptKey(job_key=row.job_key, number=row.number)]
        reason = ReconciliationReason.NEWER_GENERATION
        said.append(_said(row, _SUPERSEDED, reason, at, f"by generation {generation}"))
    return await _tell(connection, said)


async def take_back(connection: AsyncConnection, key: AttemptKey, detail: str, at: datetime) -> int:
    """Close what is open of one attempt, on an operator's word. Returns how many."""
    mine = select(advice.c.decision_id).where(advice.c.job_key == key.job_key, advice.c.number == key.number)
    closed = await _close(connection, mine, _SUPERSEDED)
    return await _tell(
        connection, [_said(row, _SUPERSEDED, ReconciliationReason.OPERATOR, at, detail) for row in closed]
    )


async def undo(connection: AsyncConnection, since: Collection[AttemptKey], at: datetime) -> None:
    """The scheduler has forgotten what came of all advice so far on these attempts, and on those after each of them.
    The caller has locked these."""
    wanted = wanted_attempts(sorted(since))
    theirs = select(advice.c.decision_id).join(
        wanted, and_(advice.c.job_key == wanted.c.job_key, advice.c.number >= wanted.c.number)
    )
    closed = await _close(connection, theirs, ReconciliationStatus.ABANDONED)
    gone, why = ReconciliationReason.GONE, "its scheduler has forgotten the requeue"
    await _tell(connection, [_said(row, ReconciliationStatus.ABANDONED, gone, at, why) for row in closed])
    await connection.execute(
        update(advice).where(advice.c.decision_id.in_(theirs), ~advice.c.undone).values(undone=True)
    )


async def close_all(connection: AsyncConnection, detail: str, at: datetime) -> int:
    """Close everything that is open, of all attempts, and have each of them decided anew. Returns how many.

    A decision that is under way meanwhile is in conflict, like one that an order speaks against: what is counted is
    that there is something new to answer.
    """
    told = attempts.c.open & (attempts.c.generation > 0)
    locked = (
        select(attempts.c.job_key, attempts.c.number)
        .where(told)
        .order_by(attempts.c.job_key, attempts.c.number)
        .with_for_update()
        .cte("locked")
    )
    await connection.execute(update(attempts).where(of_attempt(attempts, locked)).values(orders=attempts.c.orders + 1))
    closed = await _close(connection, select(advice.c.decision_id), _SUPERSEDED)
    reason = ReconciliationReason.NEWER_GENERATION
    return await _tell(connection, [_said(row, _SUPERSEDED, reason, at, detail) for row in closed])


def seen_by_agent(news: Reconciliation) -> int:
    """The generation that an agent found on the job itself and says is newer than the advice; 0 where it says none."""
    if news.status is not _SUPERSEDED or news.reason is not ReconciliationReason.NEWER_GENERATION:
        return 0
    named = _SEEN.fullmatch(news.detail)
    return int(named.group(1)) if named is not None else 0


async def newest_generation(connection: AsyncConnection, key: AttemptKey) -> int:
    found = await connection.execute(
        select(attempts.c.generation).where(attempts.c.job_key == key.job_key, attempts.c.number == key.number)
    )
    return found.scalar_one_or_none() or 0


async def _close(
    connection: AsyncConnection, which: Select[tuple[str]], status: ReconciliationStatus
) -> Sequence[AnyRow]:
    """Open advice of those, on our own account. Locked in one order: two that close much never wait in a circle."""
    locked = which.where(advice.c.open).order_by(advice.c.decision_id).with_for_update(of=advice).cte("locked")
    found = await connection.execute(
        update(advice)
        .where(advice.c.decision_id == locked.c.decision_id)
        .values(open=False, status=status.value)
        .returning(advice.c.decision_id, advice.c.job_key, advice.c.number, advice.c.created_at)
    )
    return found.all()


def _said(
    row: AnyRow, status: ReconciliationStatus, reason: ReconciliationReason, at: datetime, detail: str = ""
) -> dict[str, object]:
    return {
        "decision_id": row.decision_id,
        "status": status.value,
        "reason": reason.value,
        "detail": detail,
        "at": at,
        "decided_at": row.created_at,
        "excluded_nodes": [],
        "dropped_nodes": [],
    }


async def _tell(connection: AsyncConnection, said: Sequence[dict[str, object]]) -> int:
    if said:
        await connection.execute(insert(reconciliations), said)
    return len(said)
