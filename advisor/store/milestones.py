"""Moments of a recovery, each at most once per attempt."""

from collections.abc import Mapping, Sequence

from sqlalchemy.dialects.postgresql import insert as upsert
from sqlalchemy.ext.asyncio import AsyncConnection

from advisor.store.records import AttemptKey, Milestone
from advisor.store.sql import storable
from advisor.store.tables import milestones

_DETAIL_CHARACTERS_MAX = 1024


async def record_milestones(connection: AsyncConnection, reached: Mapping[AttemptKey, Sequence[Milestone]]) -> None:
    """The first one of each kind stays: a report that is sent again changes nothing."""
    rows = [
        {
            "job_key": key.job_key,
            "number": key.number,
            "kind": milestone.kind.value,
            "at": milestone.at,
            "detail": storable(milestone.detail)[:_DETAIL_CHARACTERS_MAX],
        }
        for key, moments in sorted(reached.items())
        for milestone in moments
    ]
    if rows:
        await connection.execute(upsert(milestones).on_conflict_do_nothing(), rows)
