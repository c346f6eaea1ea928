"""What is overdue, after a clock was set: an hour that nobody lived through is no silence of any job.

Stored times are the database's. Where somebody sets that clock they do not say any more how long ago they were. What
a process has known since before then is as long ago as it has counted since, by a clock that nobody sets
(`advisor.lasting`). For all else silence begins anew: nothing is ended for a time that may not have passed.
"""

from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from datetime import datetime
from typing import Any, TypeVar

from advisor.core.course import Pace
from advisor.core.model import Progress

_Known = TypeVar("_Known", Progress, Pace)

Moved = Mapping[datetime, datetime]


def times_of(progress: Progress) -> Iterator[datetime]:
    """All times that `since_set` may move."""
    yield from (value for _, value in _times(progress))
    yield from (value for _, value in _times(progress.pace))


def since_set(
    progress: Progress,
    set_at: datetime | None,
    now: datetime,
    moved: Moved | None = None,
    *,
    began_at: datetime | None = None,
) -> Progress:
    """`progress`, as silent as can be known where the clock was set at `set_at` (None: never). `moved`: times of before
    then, and what they are by the clock as it is now; of all that are known, so that their order stays. `began_at`:
    when the attempt did, by that clock, None where nobody knows.
    """
    if set_at is None:
        return progress
    moved = moved or {}
    known = replace(_moved(progress, set_at, now, moved), pace=_moved(progress.pace, set_at, now, moved))
    pace = known.pace
    if pace.sign_at is not None and progress.pace.sign_at not in moved:
        pace = replace(pace, sign_at=max(pace.sign_at, set_at))
    if known.last_at is None:
        began_at, news_at = began_at or set_at, known.news_at
        if news_at is None:
            news_at = began_at
        elif progress.news_at not in moved:
            news_at = max(news_at, set_at)
        return begun(replace(known, news_at=news_at, pace=pace), began_at)
    last_at = known.last_at if progress.last_at in moved else max(known.last_at, set_at)
    return replace(known, last_at=last_at, pace=pace)


def begun(progress: Progress, at: datetime | None) -> Progress:
    """`progress` of an attempt that began then, whatever the scheduler says: it counts before the first step."""
    return progress if progress.last_at is not None else replace(progress, pace=replace(progress.pace, began_at=at))


def _times(known: Progress | Pace) -> Iterator[tuple[str, datetime]]:
    values = ((item.name, getattr(known, item.name)) for item in fields(known))
    return ((name, value) for name, value in values if isinstance(value, datetime))


def _moved(known: _Known, set_at: datetime, now: datetime, moved: Moved) -> _Known:
    """Times after `now` that nobody knows the age of are from before the clock was set back."""
    times: dict[str, Any] = {
        name: moved.get(value) or set_at for name, value in _times(known) if value in moved or value > now
    }
    return replace(known, **times)
