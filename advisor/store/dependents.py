"""Jobs that must not run beside another, and do: a job whose end they waited for is not started again."""

from collections import defaultdict
from collections.abc import Callable, Iterable
from datetime import datetime
from functools import cache
from typing import Any

from sqlalchemy import Select, and_, or_, select, text
from sqlalchemy.ext.asyncio import AsyncConnection

from advisor.core.words import AttemptState
from advisor.store.sql import AnyRow, any_text_given
from advisor.store.tables import attempts, jobs

# COMPLETING: their processes may still write.
_AT_WORK = [AttemptState.RUNNING.value, AttemptState.SUSPENDED.value, AttemptState.COMPLETING.value]


async def dependents(connection: AsyncConnection, clusters: Iterable[str]) -> Callable[[AnyRow], bool]:
    """Whether, for an attempt's row (with its job's columns), a job runs that must not run beside it.

    One that ran already when the attempt began does not count: somebody lets both run side by side.
    """
    found = await connection.execute(_waiting(), {"clusters": list(clusters)})
    waited: dict[tuple[str, ...], list[tuple[str, datetime | None]]] = defaultdict(list)
    for row in found:
        for name in row.waits_for:
            waited[row.cluster, name].append((row.key, row.started_at))
        if row.singleton:
            waited[row.cluster, row.user_name, row.name].append((row.key, row.started_at))

    def beside(row: AnyRow) -> bool:
        in_array = bool(row.array_job_id) and row.array_task is not None
        array = (f"{row.array_job_id}_{row.array_task}", f"{row.array_job_id}_*")
        names: list[tuple[str, ...]] = [(row.cluster, name) for name in (array if in_array else (row.job_id,))]
        names.append((row.cluster, row.user_name, row.name))
        return any(
            key != row.job_key and (row.started_at is None or started_at is None or started_at >= row.started_at)
            for name in names
            for key, started_at in waited.get(name, ())
        )

    return beside


@cache
def _waiting() -> Select[Any]:
    return (
        select(
            *(jobs.c.key, jobs.c.cluster, jobs.c.user_name, jobs.c.name, jobs.c.waits_for, jobs.c.singleton),
            attempts.c.started_at,
        )
        .join(attempts, and_(attempts.c.job_key == jobs.c.key, attempts.c.number == jobs.c.last_number))
        .where(
            jobs.c.cluster == any_text_given("clusters"),
            jobs.c.forgotten_at.is_(None),
            or_(jobs.c.singleton, jobs.c.waits_for != text("'{}'::text[]")),
            attempts.c.state.in_(_AT_WORK),
        )
    )
