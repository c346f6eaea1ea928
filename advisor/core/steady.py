"""What is overdue, after a clock was set: an hour that nobody lived through is no silence of any job.

Stored times are the database's. Where somebody sets that clock they do not say any more how long ago they were. So
silence begins anew then: nothing is ended for a time that may not have passed, and what hangs is found one limit later.
"""

from dataclasses import fields, replace
from datetime import datetime
from typing import Any, TypeVar

from advisor.core.course import Pace
from advisor.core.model import Progress

_Known = TypeVar("_Known", Progress, Pace)


def since_set(progress: Progress, set_at: datetime | None, now: datetime) -> Progress:
    """`progress`, as silent as can be known where the clock was set at `set_at` (None: never)."""
    if set_at is None:
        return progress
    progress = _none_to_come(progress, set_at, now)
    progress = replace(progress, pace=_none_to_come(progress.pace, set_at, now))
    pace = progress.pace
    if pace.sign_at is not None and pace.sign_at < set_at:
        pace = replace(pace, sign_at=set_at)
    if progress.last_at is None:
        return replace(progress, news_at=max(progress.news_at or set_at, set_at), pace=pace)
    return replace(progress, last_at=max(progress.last_at, set_at), pace=pace)


def _none_to_come(known: _Known, set_at: datetime, now: datetime) -> _Known:
    """Times after `now` are from before the clock was set back."""
    values = ((item.name, getattr(known, item.name)) for item in fields(known))
    past: dict[str, Any] = {name: set_at for name, value in values if isinstance(value, datetime) and value > now}
    return replace(known, **past)
