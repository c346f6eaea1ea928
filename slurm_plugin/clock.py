"""Time as the agent sees it; passed in, so that tests decide what it is."""

import time
from typing import Protocol


class Clock(Protocol):
    def wall(self) -> float:
        """Epoch seconds, for records and for Slurm's own times."""
        ...

    def monotonic(self) -> float:
        """CLOCK_MONOTONIC, shared by all processes of this host."""
        ...

    def boot(self) -> float:
        """CLOCK_BOOTTIME: goes on while the host is suspended."""
        ...


class SystemClock:
    def wall(self) -> float:
        return time.time()  # noqa: TID251 - this is the clock

    def monotonic(self) -> float:
        return time.monotonic()

    def boot(self) -> float:
        return time.clock_gettime(time.CLOCK_BOOTTIME)
