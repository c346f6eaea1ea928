"""Runs one of our programs with a wall clock that is off by as many seconds as a file says:

    python stepped.py FILE advisor|watchdog ARGUMENT...

libfaketime would be the obvious way; Python's subprocess fails under it (EINVAL, one call in four of the agent's). So
the one place where the program asks for the time is replaced before the program is run; everything else is as it is.
The agent is left out: its acting process would see another clock than itself, which no host does.
"""

import contextlib
import runpy
import sys
import time
from datetime import datetime, timedelta
from pathlib import Path


class Offset:
    """Seconds, read anew twice a second at most."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._seconds = 0.0
        self._looked = float("-inf")

    def __call__(self) -> float:
        if time.monotonic() - self._looked > 0.5:
            self._looked = time.monotonic()
            with contextlib.suppress(OSError, ValueError):  # half written: the next look sees it
                self._seconds = float(self._file.read_text(encoding="ascii"))
        return self._seconds


def step_advisor(offset: Offset) -> None:
    from advisor import clock

    real = clock.SystemClock.now

    def now(self: clock.SystemClock) -> datetime:
        return real(self) + timedelta(seconds=offset())

    clock.SystemClock.now = now  # type: ignore[method-assign]  # that is what this program is for


def step_watchdog(offset: Offset) -> None:
    real = time.time  # noqa: TID251 - the watchdog's clock is the standard library's
    time.time = lambda: real() + offset()  # noqa: TID251


def main(file: str, module: str, *arguments: str) -> None:
    {"advisor": step_advisor, "watchdog": step_watchdog}[module](Offset(Path(file)))
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
