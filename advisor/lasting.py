"""For how long this process has known each time of an attempt's progress, counted by a clock that nobody sets.

Steps of the clock that come more often than a hang's limit would hide every hang, if silence began anew with each. What
is counted here goes on through them. It is never more than has passed: a time counts from when it was first seen here.
"""

from collections.abc import Set
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from advisor.clock import ClockSet
from advisor.core.model import Progress
from advisor.core.steady import begun, since_set, times_of
from advisor.store.records import AttemptKey

_TIMES_MAX = 64  # of one attempt; one that is not there now may come back


@dataclass(slots=True)
class Lasting:
    _seen: dict[AttemptKey, dict[datetime, float]] = field(default_factory=dict)
    _unsure: dict[AttemptKey, float] = field(default_factory=dict)  # which step a time of theirs may be before or after

    def keep(self, keys: Set[AttemptKey]) -> None:
        """Forget all others: what another replica reads, it reads by its own clock."""
        # Sets of keys are compared without hashing each key anew: in every tick, of thousands that all stay.
        for key in self._seen.keys() - keys:
            del self._seen[key]
            self._unsure.pop(key, None)

    def steady(
        self,
        key: AttemptKey,
        progress: Progress,
        *,
        started: datetime | None,
        now: datetime,
        began: float,
        counted: float,
        clock: ClockSet | None,
    ) -> Progress:
        """Progress with its times by the clock as it is now (`core.steady`). To be called in every tick in which any of
        them may be a new one. `started`: when the attempt did, as the scheduler says; `began`, `counted`: the tick's
        beginning and now, in seconds of the clock that nobody sets; `clock`: when the other was set, None for never.
        """
        before, times = self._seen.get(key, {}), set(times_of(progress))
        if started is not None:
            times.add(started)
        current = {time: before.get(time, counted) for time in times}
        self._seen[key] = current if len(before) > _TIMES_MAX else {**before, **current}
        began_at = None
        if started is not None:
            began_at = _began_at(started, current[started], now=now, counted=counted, clock=clock)
        if clock is None:
            return progress if began_at == started else begun(progress, began_at)
        if clock.counted >= began and not times <= before.keys():
            self._unsure[key] = clock.counted
        moved = {}
        if self._unsure.get(key) != clock.counted:
            moved = {
                time: clock.at - timedelta(seconds=clock.counted - seen)
                for time, seen in current.items()
                if seen < clock.counted
            }
        return since_set(progress, clock.at, now, moved, began_at=began_at)


def _began_at(started: datetime, seen: float, *, now: datetime, counted: float, clock: ClockSet | None) -> datetime:
    """When an attempt did, by the clock as it is now, at the latest. The scheduler told it by its own clock, which may
    have been set as well, or not: it is never later than when it was first seen here.
    """
    if clock is not None and seen < clock.counted:
        return clock.at - timedelta(seconds=clock.counted - seen)
    since = started if clock is None else max(started, clock.at)
    return min(since, now - timedelta(seconds=counted - seen))
