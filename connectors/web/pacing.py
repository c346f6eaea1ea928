"""How often a server may be asked, and for how long it is left alone after it failed. Values of a monotonic clock."""

from advisor.ports import Clock

PAUSE_SECONDS_FIRST = 0.5
PAUSE_SECONDS_MAX = 30.0


class Pace:
    """So many questions per second over time, and a few at once."""

    def __init__(self, clock: Clock, *, per_second: float, burst: float) -> None:
        self._clock = clock
        self._per_second = per_second
        self._burst = burst
        self._left = burst
        self._at = clock.monotonic()

    async def turn(self, *, reserve: float = 0.0) -> None:
        """Wait until a question may be asked. `reserve`: how many are left to those who have none to spare."""
        while not self.take(reserve=reserve):
            await self._clock.sleep(1 / self._per_second)

    def take(self, *, reserve: float = 0.0) -> bool:
        """One question may be asked now; it is taken."""
        now = self._clock.monotonic()
        self._left = min(self._burst, self._left + (now - self._at) * self._per_second)
        self._at = now
        if self._left < 1 + min(reserve, self._burst - 1):
            return False
        self._left -= 1
        return True


class Breaker:
    """Open after a failure: nothing is asked for a while, which doubles with each further failure.

    When the while is over one question goes through. Its success closes the breaker, its failure opens it for longer.
    """

    def __init__(
        self, clock: Clock, *, first_seconds: float = PAUSE_SECONDS_FIRST, max_seconds: float = PAUSE_SECONDS_MAX
    ) -> None:
        self._clock = clock
        self._first = first_seconds
        self._max = max_seconds
        self._until = 0.0
        self.failures = 0

    @property
    def left_seconds(self) -> float:
        """How long nothing is asked from now on; 0 when it may be."""
        return max(0.0, self._until - self._clock.monotonic()) if self.failures else 0.0

    def failed(self, wait_seconds: float = 0.0) -> None:
        """`wait_seconds`: what the server asked for."""
        now = self._clock.monotonic()
        if self.failures and now < self._until:
            # Others of those asked at the same time fail for the same reason.
            self._until = max(self._until, now + min(wait_seconds, self._max))
            return
        pause = min(self._max, self._first * 2 ** min(self.failures, 10))
        self.failures += 1
        self._until = now + min(self._max, max(pause, wait_seconds))

    def succeeded(self) -> None:
        self.failures = 0
