"""The clock that all replicas share: whoever sets a clock changes nothing of the time that has passed."""

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import pytest

from advisor.clock import SharedClock
from advisor.core.steady import SLEW, ClockCorrection, Uptime, Witness

T0 = datetime(2026, 11, 1, 12, 0, tzinfo=UTC)
HOUR = 3600.0


class World:
    """The time that really passes."""

    def __init__(self) -> None:
        self.seconds = 0.0

    @property
    def true(self) -> datetime:
        return T0 + timedelta(seconds=self.seconds)


class Host:
    """Its wall clock is `off`; its kernel counts, but for the time that it was `paused`."""

    def __init__(self, world: World, off: float = 0.0, boot: str = "a") -> None:
        self.world, self.off, self.boot, self.paused = world, off, boot, 0.0

    def now(self) -> datetime:
        return self.world.true + timedelta(seconds=self.off)

    def monotonic(self) -> float:
        return self.world.seconds - self.paused

    def uptime(self) -> Uptime:
        return Uptime(boot=self.boot, seconds=500.0 + self.monotonic())

    async def sleep(self, seconds: float) -> None:
        self.world.seconds += seconds


@dataclass(slots=True)
class Database:
    """Its wall clock is `off`; it keeps the correction."""

    world: World
    off: float = 0.0
    correction: ClockCorrection = field(default_factory=ClockCorrection)
    witness: Witness | None = None

    @property
    def clock(self) -> datetime:
        return self.world.true + timedelta(seconds=self.off)

    def correct(self, clock: SharedClock, wanted: ClockCorrection | None) -> bool:
        if wanted is None or wanted.version != self.correction.version + 1:
            return False
        self.correction, self.witness = wanted, clock.witness_of(wanted)
        clock.stored(wanted)
        return True

    def joins(self, clock: SharedClock, *, alone: bool = True) -> None:
        told = clock.told(self.clock, self.correction, clock.monotonic())
        self.correct(clock, clock.begin(told, self.witness, alone=alone))

    def renews(self, *clocks: SharedClock, took: float = 0.0) -> None:
        """As a replica does: it tells what it saw at the answer before, and follows this one."""
        for clock in clocks:
            self.witness = clock.witness or self.witness
            told = clock.told(self.clock, self.correction, clock.monotonic() - took)
            self.correct(clock, clock.follow(told))

    def passes(self, seconds: float, *clocks: SharedClock) -> None:
        """That much time, with a renewal each second."""
        for _ in range(int(seconds)):
            self.world.seconds += 1.0
            self.renews(*clocks)


def clock_of(host: Host) -> SharedClock:
    return SharedClock(host, uptime=host.uptime)


def off(world: World, clock: SharedClock) -> float:
    """From the time that it would be, had nobody set any clock."""
    return (clock.now() - world.true).total_seconds()


def test_a_host_that_is_hours_off_writes_the_replicas_time() -> None:
    """Put right by the first answer, whatever its own clock tells; and when that is set right, nothing moves."""
    world = World()
    host, database = Host(world, off=HOUR), Database(world)
    clock = clock_of(host)
    database.joins(clock)
    assert off(world, clock) == 0
    assert clock.off_seconds == -HOUR
    host.off = 0.0
    database.passes(5, clock)
    assert off(world, clock) == 0
    assert database.correction == ClockCorrection()


def test_small_differences_and_late_answers_move_nothing() -> None:
    """What measuring costs is not taken for an error: an answer that was slow tells the time that badly."""
    world = World()
    host, database = Host(world), Database(world, off=0.1)
    clock = clock_of(host)
    database.joins(clock)
    assert off(world, clock) == 0
    world.seconds += 4.0
    database.off = -1.9  # said early in four seconds
    database.renews(clock, took=4.0)
    assert off(world, clock) == 0
    database.off = 1.0
    database.renews(clock)
    assert off(world, clock) == 1.0, "a second is drift, and followed"
    assert database.correction == ClockCorrection()


@pytest.mark.parametrize("step", [HOUR, -HOUR, 24 * HOUR, -24 * HOUR])
@pytest.mark.parametrize("with_own", [True, False], ids=["with its host's", "alone"])
def test_a_database_whose_clock_is_set_moves_no_time(step: float, with_own: bool) -> None:
    """Nor does a host's own; the next that joins is told, and when the clock is set back nothing is left of it."""
    world = World()
    host, database = Host(world), Database(world)
    clock = clock_of(host)
    database.joins(clock)
    database.passes(30, clock)
    database.off, host.off = step, step if with_own else 0.0
    database.passes(2, clock)
    assert abs(off(world, clock)) < 0.4
    late = clock_of(Host(world, off=-HOUR, boot="b"))
    database.joins(late, alone=False)
    assert abs(off(world, late)) < 0.4
    database.off = host.off = 0.0
    database.passes(2, clock, late)
    assert abs(off(world, clock)) < 0.6
    assert abs(off(world, late)) < 0.6
    assert abs(database.correction.at(database.clock).total_seconds()) < 0.6


def test_time_never_runs_back_and_no_silence_grows_by_more_than_a_twentieth() -> None:
    """While a correction shrinks, where the host's own clock agrees with the database's new time, until it is gone."""
    world = World()
    host, database = Host(world), Database(world)
    clock = clock_of(host)
    database.joins(clock)
    database.passes(30, clock)
    database.off = host.off = 60.0
    began, at = clock.now(), world.seconds
    database.passes(600, clock)
    passed = (clock.now() - began).total_seconds()
    assert 0 < passed - (world.seconds - at) <= SLEW * 601
    database.passes(700, clock)
    assert abs(off(world, clock) - 60.0) < 0.3
    database.off = host.off = 0.0
    newest = clock.now()
    for _ in range(1400):
        database.passes(1, clock)
        assert clock.now() > newest
        newest = clock.now()
    assert abs(off(world, clock)) < 0.3


def test_a_lone_wrong_database_is_never_followed_and_one_that_was_right_is() -> None:
    """The correction stands while the host's own clock tells the time as it was; it shrinks once that is set, too."""
    world = World()
    host, database = Host(world), Database(world)
    clock = clock_of(host)
    database.joins(clock)
    database.passes(30, clock)
    database.off = HOUR
    database.passes(300, clock)
    assert abs(off(world, clock)) < 0.1
    assert (database.correction.version, database.correction.shrinking) == (1, False)
    host.off = HOUR
    database.passes(300, clock)
    assert (database.correction.version, database.correction.shrinking) == (2, True)
    assert 10 < off(world, clock) < 16


def test_two_replicas_that_both_notice_correct_it_once() -> None:
    """Whoever is slower finds that it is done; both tell the same time all the while."""
    world = World()
    database = Database(world)
    one, two = clock_of(Host(world)), clock_of(Host(world, off=-7200.0, boot="b"))
    database.joins(one)
    database.joins(two, alone=False)
    database.passes(30, one, two)
    database.off = HOUR
    told = [clock.told(database.clock, database.correction, clock.monotonic()) for clock in (one, two)]
    wanted = [clock.follow(item) for clock, item in zip((one, two), told, strict=True)]
    assert [database.correct(clock, item) for clock, item in zip((one, two), wanted, strict=True)] == [True, False]
    database.passes(20, one, two)
    assert database.correction.version == 1
    assert abs(off(world, one)) < 0.4
    assert abs(off(world, two)) < 0.4


def test_one_that_was_paused_does_not_take_the_others_time_away() -> None:
    """Its kernel did not count, as a virtual machine's does not: it says that the clock was set, and is overruled."""
    world = World()
    database = Database(world)
    paused = Host(world)
    one, two = clock_of(paused), clock_of(Host(world, boot="b"))
    database.joins(one)
    database.joins(two, alone=False)
    database.passes(30, one, two)
    database.passes(HOUR, two)
    paused.paused = HOUR
    database.renews(one)
    database.passes(20, one, two)
    assert abs(off(world, two)) < 1.1
    assert abs(off(world, one)) < 1.1


def test_one_that_was_given_up_meanwhile_goes_by_what_others_counted() -> None:
    """Paused beyond its lease, it joins anew, and says nothing of the clock."""
    world = World()
    database = Database(world)
    paused = Host(world)
    one, two = clock_of(paused), clock_of(Host(world, boot="b"))
    database.joins(one)
    database.joins(two, alone=False)
    database.passes(60, two)
    paused.paused = 60.0
    one.adopt(one.told(database.clock, database.correction, one.monotonic()))
    assert (off(world, one), database.correction.version) == (0.0, 0)


@pytest.mark.parametrize("step", [HOUR, -HOUR])
def test_over_a_restart_the_hosts_uptime_tells_how_long_it_was(step: float) -> None:
    """The database's clock and the host's are set while no replica lives: only the time that passed has passed."""
    world = World()
    host, database = Host(world), Database(world)
    first = clock_of(host)
    database.joins(first)
    database.passes(30, first)
    world.seconds += 45.0
    database.off = host.off = step
    second = clock_of(host)
    database.joins(second)
    assert abs(off(world, second)) < 0.1
    database.off = host.off = 0.0  # and again at once
    third = clock_of(host)
    database.joins(third)
    database.passes(5, third)
    assert abs(off(world, third)) < 0.6
    assert database.correction.version == 2


def test_a_quiet_restart_corrects_nothing() -> None:
    """After a weekend on the same host, and after one on which the host was started anew."""
    world = World()
    host, database = Host(world), Database(world)
    first = clock_of(host)
    database.joins(first)
    database.passes(30, first)
    world.seconds += 48 * HOUR
    second = clock_of(host)
    database.joins(second)
    database.passes(3, second)
    world.seconds += 48 * HOUR
    third = clock_of(Host(world, boot="another"))
    database.joins(third)
    assert off(world, third) == 0
    assert database.correction == ClockCorrection()


@pytest.mark.parametrize("step", [HOUR, -HOUR])
def test_where_nobody_can_tell_the_shorter_time_has_passed(step: float) -> None:
    """On another host, or after a start of the host: its wall clock and the database's disagree. No silence is made."""
    world = World()
    database = Database(world)
    first = clock_of(Host(world))
    database.joins(first)
    database.passes(30, first)
    world.seconds += 45.0
    database.off = step
    second = clock_of(Host(world, boot="b"))
    database.joins(second)
    assert -46.1 < off(world, second) < 0.1


def test_a_correction_that_another_made_since_makes_its_witness_worthless() -> None:
    """Who counted before the clock was corrected does not correct it again."""
    world = World()
    database = Database(world)
    one, two = clock_of(Host(world)), clock_of(Host(world, boot="b"))
    database.joins(one)
    database.joins(two, alone=False)
    database.passes(30, one, two)
    database.renews(one)
    old = database.witness
    database.off = HOUR
    database.passes(30, two)
    database.witness = old
    third = clock_of(Host(world))
    database.joins(third)
    assert abs(off(world, third)) < 0.4
    assert database.correction.version == 1
