"""What operators say the right verdict would have been. Append-only; the newest one about a decision holds.

A node that a correction leaves out loses the weight that the wrong verdict gave it in its history, so that it does not
go on being suspected of what it did not do.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import ColumnElement, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from advisor.core.people import Correction
from advisor.core.words import Action, Category
from advisor.store.audit_log import append
from advisor.store.errors import NotFound
from advisor.store.ids import as_id, new_id
from advisor.store.open_advice import reference_columns
from advisor.store.records import AttemptRef, AuditEvent
from advisor.store.sql import AnyRow, all_text, of_attempt, storable
from advisor.store.tables import attempts, corrections, decisions, implications

LISTED_MAX = 250
_TEXT_MAX = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredCorrection:
    """A correction beside what had been decided."""

    correction_id: str
    decision_id: str
    attempt: AttemptRef
    correction: Correction
    was_category: str
    was_action: str
    was_nodes: tuple[str, ...]


async def correct(
    connection: AsyncConnection, decision_id: str, wanted: Correction, *, origin: str
) -> tuple[StoredCorrection, bool]:
    """Record it; whether anything is new in it. Raises `NotFound`."""
    key = as_id(decision_id)
    found = None if key is None else await connection.execute(select(decisions).where(decisions.c.id == key))
    row = None if found is None else found.one_or_none()
    if row is None:
        raise NotFound(f"no decision {storable(decision_id)[:64]!r}")
    before = await _listed(connection, corrections.c.decision_id == key, most=1)
    if before and _says(before[0].correction) == _says(wanted):
        return before[0], False
    values = {
        "id": new_id(wanted.at),
        "decision_id": key,
        "job_key": row.job_key,
        "number": row.number,
        "cluster": row.cluster,
        "category": wanted.category.value if wanted.category is not None else None,
        "action": wanted.action.value if wanted.action is not None else None,
        "nodes": list(wanted.nodes) if wanted.nodes is not None else None,
        "who": storable(wanted.who),
        "why": storable(wanted.why)[:_TEXT_MAX],
        "origin": storable(origin),
        "at": wanted.at,
    }
    await connection.execute(insert(corrections).values(**values))
    if wanted.nodes is not None and row.incident_id is not None:
        cleared = update(implications).where(
            implications.c.incident_id == row.incident_id, implications.c.node != all_text(wanted.nodes)
        )
        await connection.execute(cleared.values(weight=0.0))
    detail = {
        "job_id": row.job_id,
        "attempt": f"{row.job_key}/{row.number}",
        "category": f"{row.category} → {wanted.category}" if wanted.category is not None else "",
        "action": f"{row.action} → {wanted.action}" if wanted.action is not None else "",
        "nodes": f"{','.join(row.implicated_nodes)} → {','.join(wanted.nodes)}" if wanted.nodes is not None else "",
    }
    event = AuditEvent(
        at=wanted.at,
        who=wanted.who,
        what="verdict_corrected",
        why=wanted.why,
        origin=origin,
        cluster=row.cluster,
        subject=str(key),
        detail={name: value for name, value in detail.items() if value},
    )
    await append(connection, event)
    (made,) = await _listed(connection, corrections.c.id == values["id"], most=1)
    return made, True


async def list_corrections(
    connection: AsyncConnection, *, cluster: str, decision_id: str, since: datetime | None
) -> tuple[StoredCorrection, ...]:
    """The newest one of each decision, newest first."""
    where: list[ColumnElement[bool]] = []
    if cluster:
        where.append(corrections.c.cluster == storable(cluster))
    if decision_id:
        where.append(corrections.c.decision_id == (as_id(decision_id) or "00000000-0000-0000-0000-000000000000"))
    if since is not None:
        where.append(corrections.c.at >= since)
    newest: dict[str, StoredCorrection] = {}
    for item in await _listed(connection, *where, most=4 * LISTED_MAX):
        newest.setdefault(item.decision_id, item)
    return tuple(newest.values())[:LISTED_MAX]


async def _listed(connection: AsyncConnection, *where: ColumnElement[bool], most: int) -> Sequence[StoredCorrection]:
    found = await connection.execute(
        select(
            *corrections.c,
            decisions.c.category.label("was_category"),
            decisions.c.action.label("was_action"),
            decisions.c.implicated_nodes.label("was_nodes"),
            *(column.label(f"of_{column.name}") for column in reference_columns()),
        )
        .join(attempts, of_attempt(attempts, corrections))
        .join(decisions, decisions.c.id == corrections.c.decision_id)
        .where(*where)
        .order_by(corrections.c.at.desc(), corrections.c.id.desc())
        .limit(most)
    )
    return [_stored(row) for row in found]


def _says(correction: Correction) -> tuple[object, ...]:
    return (correction.category, correction.action, correction.nodes)


def _stored(row: AnyRow) -> StoredCorrection:
    return StoredCorrection(
        correction_id=row.id,
        decision_id=row.decision_id,
        attempt=AttemptRef(
            cluster=row.of_cluster,
            job_id=row.of_job_id,
            job_key=row.of_job_key,
            number=row.of_number,
            user=row.of_user_name,
            submitted_at=row.of_submitted_at,
        ),
        correction=Correction(
            who=row.who,
            at=row.at,
            why=row.why,
            category=Category(row.category) if row.category is not None else None,
            action=Action(row.action) if row.action is not None else None,
            nodes=tuple(row.nodes) if row.nodes is not None else None,
        ),
        was_category=row.was_category,
        was_action=row.was_action,
        was_nodes=tuple(row.was_nodes),
    )
