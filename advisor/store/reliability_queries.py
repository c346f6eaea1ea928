"""What reliability figures are made from: attempts that ran within a window, with their incidents and milestones.

Three queries, each bounded. Attempts are taken newest first along the index by submit time; what was submitted longer
than `LOOKBACK` before the window is not looked at, and when there are more than `ATTEMPTS_MAX` the answer says so.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Select, and_, func, or_, select
from sqlalchemy.ext.asyncio import AsyncConnection

from advisor.core.reliability import AttemptFacts, Window
from advisor.core.words import Action, AttemptState, Category
from advisor.store.records import AttemptKey
from advisor.store.sql import AnyRow, of_attempt, storable, wanted_attempts
from advisor.store.tables import advice, attempts, decisions, incidents, jobs, milestones

ATTEMPTS_MAX = 50_000
LOOKBACK = timedelta(days=30)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReliabilityWanted:
    """Empty = all."""

    window: Window
    cluster: str = ""
    partition: str = ""
    user: str = ""
    job_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReliabilityRows:
    """`capped`: there were more attempts than are looked at; the oldest are left out."""

    attempts: tuple[AttemptFacts, ...]
    capped: bool


def attempts_statement(wanted: ReliabilityWanted) -> Select[Any]:
    """Attempts that ran within the window, newest first."""
    own, window = attempts.c, wanted.window
    query = (
        select(
            *(own[name] for name in ("job_key", "number", "job_id", "cluster", "partition", "user_name", "state")),
            *(own[name] for name in ("submitted_at", "eligible_at", "started_at", "ended_at", "observed_at", "gpus")),
            own.first_step,
            own.last_step,
            own.resumed_step,
            own.first_progress_at,
            own.last_progress_at,
            own.save_seconds,
            func.coalesce(func.cardinality(own.nodes), 0).label("node_count"),
            incidents.c.category,
            incidents.c.kind,
            jobs.c.forgotten_at,
        )
        .join(jobs, jobs.c.key == own.job_key)
        .outerjoin(incidents, of_attempt(incidents, attempts))
        .where(
            own.submitted_at >= window.since - LOOKBACK,
            own.submitted_at < window.until,
            own.started_at.is_not(None),
            or_(own.ended_at.is_(None), own.ended_at >= window.since),
        )
    )
    for value, name in (
        (wanted.cluster, own.cluster),
        (wanted.partition, own.partition),
        (wanted.user, own.user_name),
        (wanted.job_id, own.job_id),
    ):
        if value:
            query = query.where(name == storable(value))
    order = (own.submitted_at, own.job_key, own.number)
    return query.order_by(*(name.desc() for name in order)).limit(ATTEMPTS_MAX + 1)


async def load_reliability(connection: AsyncConnection, wanted: ReliabilityWanted) -> tuple[Sequence[AnyRow], Any, Any]:
    """Rows as they lie in the tables, for `facts_of`, beside the event loop."""
    rows = (await connection.execute(attempts_statement(wanted))).all()
    wrong = [AttemptKey(job_key=row.job_key, number=row.number) for row in rows if row.kind is not None]
    return rows, await _moments(connection, wrong), await _advised(connection, wrong)


async def _moments(connection: AsyncConnection, keys: Sequence[AttemptKey]) -> Mapping[AttemptKey, dict[str, datetime]]:
    moments: dict[AttemptKey, dict[str, datetime]] = defaultdict(dict)
    if keys:
        wanted = wanted_attempts(keys)
        own = milestones.c
        for row in await connection.execute(
            select(own.job_key, own.number, own.kind, own.at).join(wanted, of_attempt(milestones, wanted))
        ):
            moments[AttemptKey(job_key=row.job_key, number=row.number)][row.kind] = row.at
    return moments


async def _advised(connection: AsyncConnection, keys: Sequence[AttemptKey]) -> Mapping[AttemptKey, bool]:
    """Those that a restart or stop was advised for: True where the scheduler accepted one, and has not
    forgotten it."""
    if not keys:
        return {}
    wanted = wanted_attempts(keys)
    own = decisions.c
    found = await connection.execute(
        select(own.job_key, own.number, func.bool_or(and_(advice.c.applied, ~advice.c.undone)).label("applied"))
        .join(wanted, of_attempt(decisions, wanted))
        .join(advice, and_(advice.c.decision_id == own.id))
        .where(own.action.in_([Action.RESTART.value, Action.STOP.value]))
        .group_by(own.job_key, own.number)
    )
    return {AttemptKey(job_key=row.job_key, number=row.number): row.applied for row in found}


def facts_of(
    rows: Sequence[AnyRow],
    moments: Mapping[AttemptKey, dict[str, datetime]],
    advised: Mapping[AttemptKey, bool],
) -> ReliabilityRows:
    made = []
    for row in rows[:ATTEMPTS_MAX]:
        key = AttemptKey(job_key=row.job_key, number=row.number)
        # The scheduler forgot it before its end was seen: it ran at least until it was seen last.
        gone = row.ended_at is None and row.forgotten_at is not None
        made.append(
            AttemptFacts(
                job_key=row.job_key,
                number=row.number,
                job_id=row.job_id,
                cluster=row.cluster,
                partition=row.partition,
                user=row.user_name,
                state=AttemptState(row.state),
                submitted_at=row.submitted_at,
                eligible_at=row.eligible_at,
                started_at=row.started_at,
                ended_at=row.observed_at if gone else row.ended_at,
                nodes=row.node_count,
                gpus=row.gpus,
                category=Category.NONE if row.category is None else Category(row.category),
                kind=row.kind or "",
                advised=key in advised,
                acted=advised.get(key, False),
                first_step=row.first_step,
                last_step=row.last_step,
                resumed_step=row.resumed_step,
                first_at=row.first_progress_at,
                last_at=row.last_progress_at,
                save_seconds=tuple(row.save_seconds or ()),
                moments=moments.get(key, {}),
            )
        )
    return ReliabilityRows(attempts=tuple(made), capped=len(rows) > ATTEMPTS_MAX)
