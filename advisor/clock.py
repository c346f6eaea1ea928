"""The clock of this host, as the Clock port, and one that follows the database's."""

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from time import monotonic

from advisor.ports import Clock

FOLLOWED = timedelta(seconds=0.25)
_SET = timedelta(seconds=2)  # more is no drift between two answers: a clock was set
_DRIFT = 0.0005  # of the time between them


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockSet:
    """When somebody set a clock: in the new time, and in seconds of the monotonic one, which nobody sets."""

    at: datetime
    counted: float


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
    silent for an hour. Small differences are left alone: they are what measuring them costs. Where the database's own
    clock is set it is followed, and what is overdue is counted from then (`core.steady`).
    """

    def __init__(self, own: Clock) -> None:
        self._own = own
        self._known, self._known_at = own.now(), own.monotonic()
        self._told_at: float | None = None
        self.set: ClockSet | None = None

    def follow(self, now: datetime, asked_at: float) -> bool:
        """The database said `now` in answer to a question that was asked at that monotonic time.

        True where that is not the time that was counted here: somebody has set the database's clock. Stored times do
        not say then how long ago they were: `set` is from when on they do.
        """
        at = self.monotonic()
        half = timedelta(seconds=max(at - asked_at, 0.0) / 2)
        off = abs(now + half - self.now())
        counted = self._told_at is not None
        slack = _SET + half + timedelta(seconds=_DRIFT * (at - (self._told_at or at)))
        self._told_at = at
        if off > FOLLOWED + half:
            # Of two that are as near to the database's the host's own is the better: it is kept right by others, too.
            near = abs(now + half - self._own.now()) <= FOLLOWED + half
            self._known, self._known_at = self._own.now() if near else now + half, at
        if not counted or off <= slack:
            return False
        self.set = ClockSet(at=self.now(), counted=at)
        return True

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
