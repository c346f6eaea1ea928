"""The clock that follows the database's."""

from datetime import UTC, datetime, timedelta

import pytest

from advisor.clock import ClockSet, FollowingClock

T0 = datetime(2026, 11, 1, 12, 0, tzinfo=UTC)


class HostClock:
    """A host that is `off` from the true time."""

    def __init__(self, off: float) -> None:
        self.off, self.seconds = off, 0.0

    def now(self) -> datetime:
        return T0 + timedelta(seconds=self.seconds + self.off)

    def monotonic(self) -> float:
        return self.seconds

    async def sleep(self, seconds: float) -> None:
        self.seconds += seconds


def test_a_host_that_is_hours_off_writes_the_databases_time() -> None:
    """Put right by one answer, and again when somebody sets the host's clock."""
    host = HostClock(3600.0)
    clock = FollowingClock(host)
    clock.follow(T0, clock.monotonic())
    assert clock.now() == T0
    host.off = 0.0
    clock.follow(T0, clock.monotonic())
    assert (clock.now(), clock.off_seconds) == (T0, 0.0)


def test_small_differences_and_late_answers_move_nothing() -> None:
    """What measuring costs is not taken for an error: an answer that was slow tells the time that badly."""
    host = HostClock(0.1)
    clock = FollowingClock(host)
    clock.follow(T0, clock.monotonic())
    assert clock.off_seconds == 0
    host.off, host.seconds = 0.0, 4.0
    clock.follow(T0 + timedelta(seconds=0.5), 0.0)  # said early in four seconds
    assert clock.now() == T0 + timedelta(seconds=4.1)
    clock.follow(T0 + timedelta(seconds=34), 0.0)
    assert clock.off_seconds == 32.0, "half a minute is more than the answer's own uncertainty"


@pytest.mark.parametrize("hours", [1.0, -1.0])
def test_a_host_whose_clock_is_set_tells_the_time_as_before(hours: float) -> None:
    """An hour that nobody lived through is no silence of any job: before the database is asked again, and after."""
    host = HostClock(0.0)
    clock = FollowingClock(host)
    clock.follow(T0, clock.monotonic())
    host.off, host.seconds = hours * 3600.0, 0.3
    assert clock.now() == T0 + timedelta(seconds=0.3)
    clock.follow(T0 + timedelta(seconds=0.3), clock.monotonic())
    assert clock.now() == T0 + timedelta(seconds=0.3)


@pytest.mark.parametrize("hours", [1.0, -1.0])
def test_a_database_whose_clock_is_set_is_followed_and_it_is_known_since_when(hours: float) -> None:
    """The first answer is no step, nor is drift; what is set is told once, in the new time."""
    host = HostClock(0.0)
    clock = FollowingClock(host)
    assert not clock.follow(T0, clock.monotonic())
    host.seconds = 600.0
    assert not clock.follow(T0 + timedelta(seconds=602.0), clock.monotonic())
    assert clock.set is None
    host.seconds = 601.0
    set_to = T0 + timedelta(hours=hours, seconds=603.0)
    assert clock.follow(set_to, clock.monotonic())
    assert (clock.now(), clock.set) == (set_to, ClockSet(at=set_to, counted=601.0))
    host.seconds = 602.0
    assert not clock.follow(set_to + timedelta(seconds=1.0), clock.monotonic())
    assert clock.set == ClockSet(at=set_to, counted=601.0)
