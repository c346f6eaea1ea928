"""What a scheduler still knows of an attempt. What it has forgotten it can neither restart nor stop.

It says so itself, by a complete listing that does not hold the job: `forgotten_as_said`. Where no such listing came it
is reckoned from the attempt's end, and from how long its newest agent said that it keeps jobs: `remembered_until`.
"""

from datetime import datetime

from sqlalchemy import ColumnElement, ScalarSelect, case, func, null, select

from advisor.store.tables import agents, attempts, jobs

_JOB_MEMORY_SECONDS = 300.0  # Slurm's default of MinJobAge; also where it is 0, which forgets nothing


def forgotten_as_said() -> ColumnElement[bool]:
    """Of the query's `attempts`."""
    return select(jobs.c.key).where(jobs.c.key == attempts.c.job_key, jobs.c.forgotten_at.is_not(None)).exists()


def remembered_until() -> ColumnElement[datetime]:
    """Of the query's `attempts`; NULL while one is not over."""
    kept = _kept()
    over_at = func.coalesce(attempts.c.ended_at, attempts.c.over_seen_at)
    return over_at + func.make_interval(0, 0, 0, 0, 0, 0, func.coalesce(func.nullif(kept, 0), _JOB_MEMORY_SECONDS))


def forgets_at() -> ColumnElement[datetime | None]:
    """`remembered_until`, but NULL also where its agent says that nothing is ever forgotten."""
    return case((_kept() == 0, null()), else_=remembered_until())


def _kept() -> ScalarSelect[float | None]:
    return (
        select(agents.c.job_memory_seconds)
        .where(agents.c.cluster == attempts.c.cluster)
        .order_by(agents.c.last_seen_at.desc())
        .limit(1)
        .scalar_subquery()
    )
