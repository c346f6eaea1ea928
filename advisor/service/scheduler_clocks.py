"""By how much the clocks of schedulers' hosts are behind the replicas' time, as far as their agents' reports tell.

What an agent sees it stamps by its own host's clock, as the scheduler stamps starts and ends. A report is told some
time after that, never before: of several the one that was told soonest is the nearest to the truth. None is under way
for longer than `LATE_AT_MOST`: then a clock was set back.
"""

from collections import deque
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from advisor.store.merging import LATE_AT_MOST

WINDOW_SECONDS = 10.0  # a report comes every five at least
IGNORED = timedelta(seconds=30)  # hosts that keep their clocks; and what a slow report seems to be


@dataclass(slots=True)
class _Heard:
    session: str
    late: deque[tuple[float, timedelta]] = field(default_factory=deque)  # when it was heard, and how late it seemed
    behind: timedelta = timedelta()


class SchedulerClocks:
    """Of each cluster the agent that spoke last."""

    def __init__(self) -> None:
        self._heard: dict[str, _Heard] = {}

    def told(self, cluster: str, session: str, seen_at: datetime | None, *, now: datetime, at: float) -> timedelta:
        """`seen_at`: the newest stamp of a report that is heard at `at`, monotonic, which is `now`."""
        heard = self._heard.get(cluster)
        if heard is None or heard.session != session:
            heard = self._heard[cluster] = _Heard(session)
        if seen_at is None:
            return heard.behind
        late = now - seen_at
        if any(late - other > LATE_AT_MOST for _, other in heard.late):
            heard.late.clear()
        heard.late.append((at, late))
        while heard.late[0][0] < at - WINDOW_SECONDS:
            heard.late.popleft()
        behind = min(late for _, late in heard.late)
        if abs(behind - heard.behind) > IGNORED:
            heard.behind = behind
        if abs(behind) <= IGNORED:
            heard.behind = timedelta()
        return heard.behind
