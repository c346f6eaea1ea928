"""What reports tell of the clocks of schedulers' hosts."""

from datetime import UTC, datetime, timedelta

import pytest

from advisor.service.scheduler_clocks import SchedulerClocks

T0 = datetime(2026, 11, 1, 12, 0, tzinfo=UTC)


def told(clocks: SchedulerClocks, at: float, late: float, session: str = "s") -> float:
    """A report that is heard at `at` and was stamped `late` seconds before, by a clock of its own."""
    now = T0 + timedelta(seconds=at)
    return clocks.told("c", session, now - timedelta(seconds=late), now=now, at=at).total_seconds()


@pytest.mark.parametrize("hours", [1.0, -1.0])
def test_a_host_whose_clock_is_set_is_noticed_and_one_that_is_set_right_again(hours: float) -> None:
    """Within seconds, both ways; the next report that names no moment tells nothing else."""
    clocks = SchedulerClocks()
    assert told(clocks, 0, 0.2) == 0
    assert told(clocks, 5, hours * 3600) == hours * 3600
    assert clocks.told("c", "s", None, now=T0, at=31).total_seconds() == hours * 3600
    for at in range(35, 60, 5):
        seen = told(clocks, at, 1.0)
    assert seen == 0


def test_a_clock_that_is_set_by_a_minute_is_noticed_when_it_can_be_told_from_a_slow_report() -> None:
    """That is after some reports."""
    clocks = SchedulerClocks()
    assert told(clocks, 0, 0.2) == 0
    assert [told(clocks, at, 60.0) for at in (5, 10, 15, 20)] == [0, 0, 60.0, 60.0]


def test_a_slow_report_is_no_clock_that_is_behind() -> None:
    """Of several the soonest counts; and hosts that keep their clocks are left alone."""
    clocks = SchedulerClocks()
    assert told(clocks, 0, 1.0) == 0
    assert told(clocks, 3, 45.0) == 0
    assert told(clocks, 60, 29.0) == 0


def test_another_agent_is_judged_by_its_own_reports() -> None:
    """Its host's clock is another one."""
    clocks = SchedulerClocks()
    assert told(clocks, 0, 7200.0) == 7200.0
    assert told(clocks, 1, 0.5, session="other") == 0
