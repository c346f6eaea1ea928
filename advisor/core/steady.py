"""The time that all replicas share: the database's clock, less what somebody set that clock by.

Stored times are compared with later ones, and so must be of a clock that only goes on: an hour that nobody lived
through is no silence of any job, and one that is lived through twice must not hide a silence. By what the database's
clock was set is told from the time that really passed, by whoever counted it: a replica's monotonic clock; between two
replicas' lives the uptime of their host, or its wall clock. It is kept as a `ClockCorrection` in the database, and all
replicas reckon by it.

No correction is for ever: mostly clocks are set because they were wrong. Where the own clock of the host that counts
agrees with the database's new time, the correction shrinks by a twentieth of the time that passes, which no limit of
silence notices: an hour is gone after twenty. Where it still tells the time as it was, only the database's is wrong,
and nothing moves until one of the two is set right.
"""

from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from math import copysign

FOLLOWED = timedelta(seconds=0.25)  # less is what asking costs
STEPPED = timedelta(seconds=2.0)  # more is no drift: a clock was set
DRIFT = 0.0005  # of the time that passed, between two clocks that nobody sets
SLEW = 0.05
SURE_SECONDS = 10.0  # of counting, from which a replica contradicts another one's correction
_EVER = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockCorrection:
    """What is added to the database's clock: `seconds` when that told `since`. `shrinking`: less and less from then."""

    version: int = 0
    seconds: float = 0.0
    since: datetime = _EVER
    shrinking: bool = True

    def at(self, told: datetime) -> timedelta:
        """What is added when the database's clock tells `told`."""
        if not self.seconds or not self.shrinking:
            return timedelta(seconds=self.seconds)
        passed = max((told - self.since).total_seconds(), 0.0)
        return timedelta(seconds=copysign(max(abs(self.seconds) - SLEW * passed, 0.0), self.seconds))


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """The database's answer: its own clock, the correction that holds, and by how much both may be late or early."""

    clock: datetime
    correction: ClockCorrection
    uncertain: timedelta = timedelta()

    @property
    def time(self) -> datetime:
        """As all replicas reckon."""
        return self.clock + self.correction.at(self.clock)

    def slack(self, passed_seconds: float, *, drift: float = DRIFT) -> timedelta:
        """So far off it may seem to whoever counted for so long, though nobody has set it."""
        return STEPPED + self.uncertain + timedelta(seconds=drift * max(passed_seconds, 0.0))

    @property
    def drift(self) -> float:
        """By which the replicas' time may get off from a clock that counts."""
        return DRIFT + (SLEW if self.correction.shrinking and self.correction.seconds else 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Uptime:
    """`boot` names one run of a host's kernel, "" where nobody tells; `seconds` count since it began, sleep too."""

    boot: str = ""
    seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Witness:
    """What a replica's host told when the database's clock told `clock`, under the correction of that version: its own
    clock and its uptime.
    """

    clock: datetime
    version: int
    own: datetime
    uptime: Uptime


def corrected(told: Told, time: datetime, own: datetime) -> ClockCorrection:
    """By which it is `time` now. `own`: what the clock tells of the host that has counted."""
    seconds = (time - told.clock).total_seconds()
    near = FOLLOWED + told.uncertain
    if abs(seconds) <= near.total_seconds():
        seconds = 0.0  # set back to what it was
    lone = abs(own - time) <= STEPPED + told.uncertain
    return ClockCorrection(
        version=told.correction.version + 1, seconds=round(seconds, 6), since=told.clock, shrinking=not lone
    )


def settled(told: Told, own: datetime) -> ClockCorrection | None:
    """Of one that stands still, when the database's clock has company: it shrinks from now on."""
    correction = told.correction
    if correction.shrinking or not correction.seconds or abs(own - told.clock) > FOLLOWED + told.uncertain:
        return None
    return replace(correction, version=correction.version + 1, since=told.clock, shrinking=True)


def time_after(witness: Witness, told: Told, own: datetime, uptime: Uptime) -> datetime:
    """The time now, where nobody has counted since `witness`: as the database's clock tells, unless it was set since.

    The same host's uptime knows how long it really was. Else two wall clocks that agree are believed; of two that do
    not, the one by which less time has passed: what nobody has watched is no silence.
    """
    by_database = told.clock - witness.clock
    counted = bool(uptime.boot) and uptime.boot == witness.uptime.boot
    by_host = timedelta(seconds=uptime.seconds - witness.uptime.seconds) if counted else own - witness.own
    if abs(by_database - by_host) <= told.slack(by_host.total_seconds()):
        return told.time
    passed = by_host if counted else min(by_database, by_host)
    return witness.clock + told.correction.at(witness.clock) + max(passed, timedelta())
