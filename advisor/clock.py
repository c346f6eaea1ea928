"""The clock of this host, as the Clock port, and one that follows the database's."""

import asyncio
from datetime import UTC, datetime, timedelta
from time import monotonic

from advisor.ports import Clock

FOLLOWED = timedelta(seconds=0.25)


class SystemClock:
    def now(self) -> datetime:
        return datetime.now(UTC)  # noqa: TID251 -- this is the Clock that everything else uses

    def monotonic(self) -> float:
        return monotonic()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class FollowingClock:
    """`own`, put right by the database's: replicas on hosts whose clocks disagree write comparable times.

    Between two of the database's answers time is counted, not read: a host whose clock is set does not make every job
    silent for an hour. Small differences are left alone: they are what measuring them costs.
    """

    def __init__(self, own: Clock) -> None:
        self._own = own
        self._known, self._known_at = own.now(), own.monotonic()

    def follow(self, now: datetime, asked_at: float) -> None:
        """The database said `now` in answer to a question that was asked at that monotonic time."""
        at = self.monotonic()
        half = timedelta(seconds=max(at - asked_at, 0.0) / 2)
        if abs(now + half - self.now()) <= FOLLOWED + half:
            return
        # Of two that are as near to the database's the host's own is the better: it is kept right by others, too.
        near = abs(now + half - self._own.now()) <= FOLLOWED + half
        self._known, self._known_at = self._own.now() if near else now + half, at

    @property
    def off_seconds(self) -> float:
        """By how much this host's clock is behind the database's."""
        return (self.now() - self._own.now()).total_seconds()

    def now(self) -> datetime:
        return self._known + timedelta(seconds=self._own.monotonic() - self._known_at)

    def monotonic(self) -> float:
        return self._own.monotonic()

    async def sleep(self, seconds: float) -> None:
        await self._own.sleep(seconds)
