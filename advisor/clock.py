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

    Small differences are left alone: they are what measuring them costs.
    """

    def __init__(self, own: Clock) -> None:
        self._own = own
        self._off = timedelta()

    def follow(self, now: datetime, asked_at: float) -> None:
        """The database said `now` in answer to a question that was asked at that monotonic time."""
        half = timedelta(seconds=max(self.monotonic() - asked_at, 0.0) / 2)
        off = now + half - self._own.now()
        if abs(off - self._off) > FOLLOWED + half:
            self._off = off if abs(off) > FOLLOWED + half else timedelta()

    @property
    def off_seconds(self) -> float:
        """By how much this host's clock is behind the database's."""
        return self._off.total_seconds()

    def now(self) -> datetime:
        return self._own.now() + self._off

    def monotonic(self) -> float:
        return self._own.monotonic()

    async def sleep(self, seconds: float) -> None:
        await self._own.sleep(seconds)
