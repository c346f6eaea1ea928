"""The advisor's keys for the scheduler's names of attempts."""

from collections import defaultdict
from collections.abc import Sequence

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncConnection

from advisor.store.ids import as_id
from advisor.store.records import AttemptKey, AttemptRef
from advisor.store.sql import AnyRow, any_id, any_text, storable
from advisor.store.tables import attempts, identities, jobs


async def resolve_references(connection: AsyncConnection, refs: Sequence[AttemptRef]) -> tuple[AttemptKey | None, ...]:
    """One answer per reference, in order; None where it names nobody we know.

    A reference that carries our key is checked against it. One without a submit time means the job that has the id now.
    """
    if not refs:
        return ()
    by_id: dict[tuple[str, str, str], list[AnyRow]] = defaultdict(list)
    known_keys = {known for ref in refs if (known := as_id(ref.job_key))}
    by_key = {
        (row.job_key, row.number)
        for row in await connection.execute(
            select(attempts.c.job_key, attempts.c.number).where(attempts.c.job_key == any_id(known_keys))
        )
    }
    for row in await connection.execute(
        select(
            jobs.c.cluster,
            jobs.c.job_id,
            jobs.c.user_name,
            jobs.c.forgotten_at,
            jobs.c.first_seen_at,
            identities.c.job_key,
            identities.c.number,
            identities.c.restarts,
            identities.c.submitted_at,
        )
        .join(identities, identities.c.job_key == jobs.c.key)
        .where(
            jobs.c.cluster == any_text({storable(ref.cluster) for ref in refs}),
            jobs.c.job_id == any_text({storable(ref.job_id) for ref in refs}),
        )
        .order_by(jobs.c.first_seen_at, identities.c.first_seen_at)
    ):
        by_id[row.cluster, row.job_id, row.user_name].append(row)
    return tuple(_one(ref, by_key, by_id[ref.cluster, ref.job_id, ref.user]) for ref in refs)


def _one(ref: AttemptRef, by_key: set[tuple[str, int]], candidates: Sequence[AnyRow]) -> AttemptKey | None:
    if ref.job_key:
        key = as_id(ref.job_key)
        return AttemptKey(job_key=key, number=ref.number) if key and (key, ref.number) in by_key else None
    for row in reversed(candidates):
        if row.restarts != ref.number:
            continue
        if row.submitted_at == ref.submitted_at or (ref.submitted_at is None and row.forgotten_at is None):
            return AttemptKey(job_key=row.job_key, number=row.number)
    return None
