"""Jobs of which a report says what one before said, kept for as long as the database says the same of them.

What working an observation in does is told by the rows of its job and by the observation. So where that once wrote
nothing but a later sighting, it does so again, as long as the rows are the same, whoever wrote them since: memory is
only believed where the database confirms it, within the same transaction and the lock of the cluster's reports.
"""

import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime
from operator import attrgetter

from sqlalchemy import ARRAY, BigInteger, Numeric, Text, bindparam, cast, func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from advisor.store.identity import slot_of
from advisor.store.merging import AttemptFacts
from advisor.store.records import Notice, ObservedJob
from advisor.store.sql import written
from advisor.store.tables import attempts, identities, jobs

# An unchanged attempt is written this often, so that its last sighting is not much older than the truth.
REFRESH_SECONDS = 30
_KEPT_MAX = 100_000

Stamp = tuple[object, ...]

_said = attrgetter(*(item.name for item in fields(ObservedJob) if item.name != "observed_at"))


def is_due(slot: str, before: datetime, now: datetime) -> bool:
    """Whether a sighting is to be written: each slot in a moment of its own within the span, so that not all jobs of a
    cluster are written by the same report."""
    moment = zlib.crc32(slot.encode()) % REFRESH_SECONDS
    return _span(before, moment) != _span(now, moment)


def _span(at: datetime, moment: int) -> int:
    return int(at.timestamp() + moment) // REFRESH_SECONDS


@dataclass(frozen=True, slots=True, kw_only=True)
class RememberedJob:
    """`said`: all of the observation but its time. `stamp`: of the rows by which working it in wrote nothing else.
    `observed_at`, `last_seen_at`: as stored then, or sooner."""

    said: tuple[object, ...]
    stamp: Stamp
    job_key: str
    observed_at: datetime
    last_seen_at: datetime


@dataclass(slots=True)
class JobBook:
    """Of one cluster. `kept` only grows by what was committed."""

    kept: dict[str, RememberedJob] = field(default_factory=dict)

    def keep(self, learned: "Learned") -> None:
        held = learned.held
        if held is not None and len(self.kept) > len(held):
            self.kept = {slot: known for slot, known in self.kept.items() if slot in held}
        if len(self.kept) > _KEPT_MAX:
            self.kept.clear()
        self.kept.update(learned.known)


@dataclass(frozen=True, slots=True, kw_only=True)
class Learned:
    """What a report leaves to be remembered once it is committed. `held`: all slots that the scheduler holds, where
    that was told."""

    known: Mapping[str, RememberedJob]
    held: frozenset[str] | None


@dataclass(slots=True, kw_only=True)
class Compared:
    """A report's observations: `others` are to be worked in, the `same` are not. `stamps`: by slot, as the rows were
    before; only of slots that are named once, by a listing."""

    others: list[ObservedJob]
    same: dict[str, RememberedJob]
    stamps: Mapping[str, Stamp]


async def compared(
    connection: AsyncConnection, cluster: str, observed: Sequence[ObservedJob], book: JobBook, now: datetime
) -> Compared:
    """To be called within the lock, before the rows are read: what changes meanwhile is then only looked at again."""
    slots = [slot_of(job) for job in observed]
    often = Counter(slots)
    single = [slot for slot, job in zip(slots, observed, strict=True) if often[slot] == 1 and job.notice is Notice.POLL]
    if not single:
        return Compared(others=list(observed), same={}, stamps={})
    found = await connection.execute(_STAMPS, {"cluster": cluster, "slots": single})
    stamps = {row[0]: tuple(row[1:]) for row in found}
    others: list[ObservedJob] = []
    same: dict[str, RememberedJob] = {}
    for slot, job in zip(slots, observed, strict=True):
        known = book.kept.get(slot)
        if known is not None and stamps.get(slot) == known.stamp and _is_same(known, slot, job, now):
            same[slot] = known
        else:
            others.append(job)
    return Compared(others=others, same=same, stamps=stamps)


def _is_same(known: RememberedJob, slot: str, job: ObservedJob, now: datetime) -> bool:
    return (
        job.observed_at >= known.observed_at  # what came late, or by a clock that was set back, is looked at
        and known.said == _said(job)
        and not is_due(slot, known.last_seen_at, now)
        and not is_due(slot, known.observed_at, job.observed_at)
    )


def remembered_job(
    job: ObservedJob, *, stamp: Stamp, job_key: str, observed_at: datetime, last_seen_at: datetime
) -> RememberedJob:
    return RememberedJob(
        said=_said(job), stamp=stamp, job_key=job_key, observed_at=observed_at, last_seen_at=last_seen_at
    )


# Of a slot all that observations are compared with: its jobs, their attempts, and the names of these. Sightings are
# left out; they say nothing that counts. Others than reports write what is not compared with.
_OF_JOB = tuple(column for column in jobs.c if column.name != "last_seen_at")
_OF_ATTEMPT = (
    attempts.c.job_key,
    attempts.c.number,
    *(attempts.c[item.name] for item in fields(AttemptFacts) if item.name != "observed_at"),
)
_NAMES = (
    select(cast(func.sum(written("identities")), BigInteger()))
    .where(identities.c.cluster == bindparam("cluster"), identities.c.slot == jobs.c.slot)
    .scalar_subquery()
)
_STAMPS = (
    select(
        jobs.c.slot,
        func.count(),
        cast(func.sum(cast(func.hash_record_extended(func.row(*_OF_JOB), 0), Numeric())), Text()),
        cast(func.sum(cast(func.hash_record_extended(func.row(*_OF_ATTEMPT), 0), Numeric())), Text()),
        _NAMES,
    )
    .select_from(jobs.outerjoin(attempts, attempts.c.job_key == jobs.c.key))
    .where(jobs.c.cluster == bindparam("cluster"), jobs.c.slot == func.any(cast(bindparam("slots"), ARRAY(Text()))))
    .group_by(jobs.c.slot)
)
