"""The clock of this host, as the Clock port, and the one that all replicas share."""

import asyncio
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from time import monotonic

from advisor.core import steady
from advisor.core.steady import FOLLOWED, SURE_SECONDS, ClockCorrection, Told, Uptime, Witness
from advisor.ports import Clock

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class SystemClock:
    def now(self) -> datetime:
        return datetime.now(UTC)  # noqa: TID251 -- this is the Clock that everything else uses

    def monotonic(self) -> float:
        return monotonic()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


def system_uptime() -> Uptime:
    """Of this host. Nothing is known where the kernel does not name its boot."""
    try:
        boot = _BOOT_ID.read_text(encoding="ascii").strip()
    except (OSError, UnicodeError):
        return Uptime()
    return Uptime(boot=boot, seconds=time.clock_gettime(time.CLOCK_BOOTTIME))


class SharedClock:
    """The time of all replicas (`core.steady`), counted by this host's monotonic clock from one of the database's
    answers to the next. Neither this host's wall clock nor the database's moves it when it is set.

    Small differences are left alone: they are what measuring them costs.
    """

    def __init__(self, own: Clock, *, uptime: Callable[[], Uptime] = system_uptime) -> None:
        self._own = own
        self._uptime = uptime
        self._known, self._known_at = own.now(), own.monotonic()
        self._told_at: float | None = None  # None: it is this host's time still
        self._version = -1
        self._sure_from = 0.0
        self._witness: Witness | None = None

    def told(self, clock: datetime, correction: ClockCorrection, asked_at: float) -> Told:
        """What the database said in answer to a question that was asked at that monotonic time."""
        half = timedelta(seconds=max(self.monotonic() - asked_at, 0.0) / 2)
        return Told(clock=clock + half, correction=correction, uncertain=half)

    @property
    def boot(self) -> str:
        """This run of the host's kernel."""
        return self._uptime().boot

    @property
    def begun(self) -> bool:
        """It tells the replicas' time."""
        return self._told_at is not None

    @property
    def witness(self) -> Witness | None:
        """Of the newest answer that agreed with what was counted here."""
        return self._witness

    def witness_of(self, correction: ClockCorrection) -> Witness:
        """Of the answer that made this correction necessary."""
        return self._testify(correction.since, correction.version)

    def begin(self, told: Told, witness: Witness | None = None, *, alone: bool = True) -> ClockCorrection | None:
        """Nothing was counted here yet. `witness`: of whoever was heard last. `alone`: nobody else counts now.

        Returns what must be stored first, see `follow`.
        """
        time, uptime = told.time, self._uptime()
        counted = witness is not None and bool(uptime.boot) and uptime.boot == witness.uptime.boot
        if witness is not None and witness.version == told.correction.version and (alone or counted):
            time = steady.time_after(witness, told, self._own.now(), uptime)
        self._set(time, told)
        if time == told.time:
            return None
        self._witness = None
        return steady.corrected(told, time, self._own.now())

    def follow(self, told: Told, *, alone: bool = False) -> ClockCorrection | None:
        """Go on from the database's answer; before a first one was begun with, begin with it.

        Returns a correction where the database's clock was set: this clock goes on as before, and so that others do,
        too, it is to be stored, unless somebody else was quicker (then the next answer says so). `alone`: nobody else
        can have counted better than we.
        """
        if self._told_at is None:
            return self.begin(told)
        at, own = self.monotonic(), self._own.now()
        off = abs(told.time - self.now())
        if off <= FOLLOWED + told.uncertain:
            self._agree(told, at)
            return steady.settled(told, own)
        foreign = told.correction.version != self._version
        # Of two that corrected each other whoever has counted for longer is right: the other one was paused.
        adopted = foreign and not alone and at - self._sure_from < SURE_SECONDS
        if adopted or off <= told.slack(at - self._told_at, drift=told.drift):
            self._set(told.time, told)
            if adopted:
                self._sure_from = at
            return None
        return steady.corrected(told, self.now(), own)

    def adopt(self, told: Told) -> None:
        """Others have counted while this process did not take part."""
        self._set(told.time, told)
        self._sure_from = self.monotonic()

    def stored(self, correction: ClockCorrection) -> None:
        """Others reckon by it now."""
        self._version = correction.version
        self._witness = self.witness_of(correction)
        self._sure_from = self.monotonic()

    def _set(self, time: datetime, told: Told) -> None:
        at, own = self.monotonic(), self._own.now()
        if self._told_at is None:
            self._sure_from = at
        # Of two that are as near to the database's the host's own is the better: it is kept right by others, too.
        self._known = own if abs(time - own) <= FOLLOWED + told.uncertain else time
        self._known_at = at
        self._agree(told, at)

    def _agree(self, told: Told, at: float) -> None:
        self._told_at, self._version = at, told.correction.version
        self._witness = self._testify(told.clock, self._version)

    def _testify(self, clock: datetime, version: int) -> Witness:
        return Witness(clock=clock, version=version, own=self._own.now(), uptime=self._uptime())

    @property
    def off_seconds(self) -> float:
        """By how much this host's clock is behind the replicas' time."""
        return (self.now() - self._own.now()).total_seconds()

    def now(self) -> datetime:
        return self._known + timedelta(seconds=self._own.monotonic() - self._known_at)

    def monotonic(self) -> float:
        return self._own.monotonic()

    async def sleep(self, seconds: float) -> None:
        await self._own.sleep(seconds)
