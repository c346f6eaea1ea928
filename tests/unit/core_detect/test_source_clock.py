"""Whose clock is fast, and in which zone, learned from when lines could be read."""

from datetime import timedelta

import pytest

from advisor.core.scan import FileState
from tests.unit.core_detect.logs import NOON, context, kernel, scan

ERROR = "[rank1]: KeyError: 'x'"


def line(seconds: float, zone: str = "Z") -> str:
    return f"{NOON + timedelta(seconds=seconds):%Y-%m-%dT%H:%M:%S}{zone} {ERROR}\n"


@pytest.mark.parametrize(
    ("ahead", "corrected"),
    [(0, 0), (-30, -30), (45, 0), (3_000, 3_000)],
    ids=["right", "late bytes or a slow clock", "a fast clock", "more than a clock can be wrong"],
)
def test_times_of_a_fast_clock_are_set_back(ahead: int, corrected: int) -> None:
    """A line cannot be from after the moment when it was there; one that is older may simply have come late."""
    scanned = scan(line(ahead))
    assert scanned.signals[0].at == NOON + timedelta(seconds=corrected)


def test_the_skew_is_remembered_per_source() -> None:
    """What one read showed holds for the next read of that file, and for no other."""
    first = scan("2026-11-29T12:00:45Z starting\n", final=False)
    assert first.state.lag_seconds == -45
    later = NOON + timedelta(seconds=60)
    second = scan(line(100), state=first.state, seen_at=later)
    assert second.signals[0].at == NOON + timedelta(seconds=55)
    other = scan(line(50), context(file="other.log"), state=FileState(), seen_at=later)
    assert other.signals[0].at == NOON + timedelta(seconds=50)


def test_the_time_of_writing_tells_more_than_the_time_of_reading() -> None:
    """A file that was read a minute late was not written a minute late."""
    late = NOON + timedelta(seconds=60)
    scanned = scan(line(30), context(written_at=NOON), seen_at=late)
    assert scanned.state.lag_seconds == -30
    assert scanned.signals[0].at == NOON


def test_a_fast_clock_in_another_zone_is_told_from_a_zone() -> None:
    """Zones are quarters of an hour; what is left is the clock."""
    scanned = scan(line(2 * 3_600 + 45, zone=""))
    assert scanned.state.zone_seconds == -7_200
    assert scanned.signals[0].at == NOON


def test_old_files_teach_nothing() -> None:
    """What was read long after it was written says nothing about the clock."""
    scanned = scan(line(45), context(live=False))
    assert scanned.state.lag_seconds is None
    assert scanned.signals[0].at == NOON + timedelta(seconds=45)


def test_how_new_a_log_is_does_not_hang_on_its_errors() -> None:
    """The newest line with a time tells, whether or not a rule has anything to say about it."""
    scanned = scan(line(-500) + "2026-11-29T11:59:59Z all is well\nno time here\n")
    assert scanned.newest_at == NOON - timedelta(seconds=1)


SET = "[    1.000000] rtc_cmos 00:00: setting system clock to 2026-11-29T11:00:00 UTC (1795950000)\n"
XID = "[{:12.6f}] NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.\n"
BOOTED = "[    0.000000] Linux version 6.1\n"


def test_seconds_since_boot_become_times_once_a_line_has_told_the_boot() -> None:
    """Also by a line of an earlier read; without one the order is all that is known."""
    where = kernel("node2", live=False)
    (unknown,) = scan(XID.format(1801), where).signals
    assert unknown.at is None
    first = scan(BOOTED + SET, where, final=False)
    (known,) = scan(XID.format(1801), where, state=first.state).signals
    assert known.at == NOON - timedelta(minutes=30)


def test_seconds_since_boot_make_old_kernel_lines_old() -> None:
    """An Xid from before the attempt is not its business, however its time is written."""
    where = kernel("node2", started_at=NOON - timedelta(minutes=10))
    assert scan(BOOTED + SET + XID.format(1801), where).signals == ()
    (signal,) = scan(BOOTED + SET + XID.format(3_301), where).signals
    assert signal.at == NOON - timedelta(minutes=5)


def test_a_boot_too_long_ago_tells_no_time() -> None:
    """The kernel's clock drifts; evidence is not dropped as old by a time that may be minutes off."""
    (signal,) = scan(BOOTED + SET + XID.format(90_000), kernel("node2", started_at=NOON)).signals
    assert signal.at is None


def test_the_next_boot_of_a_node_is_another_clock() -> None:
    """Lines of two boots in one piece have no time; those that follow have that of the new one."""
    where = kernel("node2")
    first = scan(BOOTED + SET, where, final=False, seen_at=NOON)
    again = BOOTED + SET.replace("11:00", "12:00").replace("1795950000", "1795953600")
    both = scan(XID.format(3_000) + again, where, state=first.state, final=False)
    assert [signal.at for signal in both.signals] == [None]
    after = scan(
        XID.format(61).replace("has fallen", "fell"), where, state=both.state, seen_at=NOON + timedelta(minutes=2)
    )
    assert [signal.at for signal in after.signals] == [NOON + timedelta(minutes=1)]
    unknown = scan(BOOTED + XID.format(61), where, state=first.state)
    assert [signal.at for signal in unknown.signals] == [None]
