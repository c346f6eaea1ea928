"""Timestamps of the usual frameworks."""

from datetime import UTC, datetime, timedelta

import pytest

from advisor.core.times import UPTIME_SPAN, boot_told, learn_offset, line_time, uptime

NEAR = datetime(2026, 11, 29, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "at", "zoned"),
    [
        ("2026-11-29T03:00:01.123456+00:00 node2 kernel: x", datetime(2026, 11, 29, 3, 0, 1, 123456, UTC), True),
        ("2026-11-29T03:00:01+0130 x", datetime(2026, 11, 29, 1, 30, 1, 0, UTC), True),
        ("2019-06-02T16:13:44.884Z: x", datetime(2019, 6, 2, 16, 13, 44, 884000, UTC), True),
        ("[2026-09-21T10:00:00.123] error: x", datetime(2026, 9, 21, 10, 0, 0, 123000, UTC), False),
        ("2023-10-24,10:01:02 | INFO", datetime(2023, 10, 24, 10, 1, 2, 0, UTC), False),
        ("submitit ERROR (2021-03-15 18:45:40,210) - x", datetime(2021, 3, 15, 18, 45, 40, 210000, UTC), False),
        ("[rank7]:[E218 10:48:25.033625188 P.cpp:632] x", datetime(2026, 2, 18, 10, 48, 25, 33625, UTC), False),
        ("W1026 03:51:31.222000 25 x.py:908] y", datetime(2026, 10, 26, 3, 51, 31, 222000, UTC), False),
        ("Aug 26 15:28:16 node1 kernel: x", datetime(2026, 8, 26, 15, 28, 16, 0, UTC), False),
        ("[Fri Aug 28 22:45:13 2026] x", datetime(2026, 8, 28, 22, 45, 13, 0, UTC), False),
        ("I20261129 11:59:00.123456 1 a.cc:3] x", datetime(2026, 11, 29, 11, 59, 0, 123456, UTC), False),
        ("11/28/2026 12:00:00 - INFO - __main__ - x", datetime(2026, 11, 28, 12, 0, 0, 0, UTC), False),
        ("[11/28/26 12:00:00] INFO x", datetime(2026, 11, 28, 12, 0, 0, 0, UTC), False),
        ("2026-11-28 12:00:00,123 UTC x", datetime(2026, 11, 28, 12, 0, 0, 123000, UTC), True),
        (
            "slurmstepd-node1: error: *** JOB 7 ON node1 CANCELLED AT 2026-11-28T11:59:59 ***",
            datetime(2026, 11, 28, 11, 59, 59, 0, UTC),
            False,
        ),
        ("[1795953600.123456] [node1:7:0] ucp_worker.c:1 x", datetime(2026, 11, 29, 12, 0, 0, 123456, UTC), True),
        ("3: 1795953600.5 step", datetime(2026, 11, 29, 12, 0, 0, 500000, UTC), True),
        ('{"ts": 1795953600.25, "msg": "x"}', datetime(2026, 11, 29, 12, 0, 0, 250000, UTC), True),
        ('{"timestamp":1795953600123,"msg":"x"}', datetime(2026, 11, 29, 12, 0, 0, 123000, UTC), True),
        ("time=1795953600123456789 x", datetime(2026, 11, 29, 12, 0, 0, 123456, UTC), True),
        ("06/17 19:51:16 - mmengine - INFO", datetime(2026, 6, 17, 19, 51, 16, 0, UTC), False),
    ],
)
def test_usual_timestamps_are_understood(text: str, at: datetime, zoned: bool) -> None:
    """Format, zone and missing year of each."""
    found = line_time(text, NEAR)
    assert found is not None
    assert (found.at, found.zoned) == (at, zoned)


@pytest.mark.parametrize(
    "text",
    [
        "[87474.832736] NVRM: x",
        "step 12 of 2026",
        "version 2.20.5+cuda12.4",
        "2026-13-45T99:00:00 x",
        "tokens 1795953600 of 2000000000",
        "1795953600abc",
        "ts=179595360012 x",
        "consumed_time: 1995953600",
        "[2395953600.000000] in fifty years",
    ],
)
def test_uptimes_and_numbers_are_no_times(text: str) -> None:
    """What has no date gives none."""
    assert line_time(text, NEAR) is None


def test_the_missing_year_is_never_in_the_future() -> None:
    """A December line read in January is of last year."""
    found = line_time("Dec 31 23:59:59 node1 kernel: x", datetime(2027, 1, 1, 0, 1, tzinfo=UTC))
    assert found is not None
    assert found.at == datetime(2026, 12, 31, 23, 59, 59, tzinfo=UTC)


def test_a_zone_is_learned_only_from_fresh_lines() -> None:
    """A quarter-hour multiple plus a short lag is a zone; anything else could be lag alone."""
    assert learn_offset(NEAR + timedelta(hours=2), NEAR + timedelta(seconds=3)) == timedelta(hours=-2)
    assert learn_offset(NEAR - timedelta(minutes=7), NEAR) is None


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("[87474.832736] NVRM: x", 87474.832736),
        ("<3>[    5.000001] nvidia x", 5.000001),
        ("2026-11-29T12:00:00+00:00 node1 kernel: [87474.832736] x", 87474.832736),
        ("[87474.832736] node1 kernel: x", 87474.832736),
        ("3,1042,87474832736,-;NVRM: Xid", 87474.832736),
        ("[1795953600.123456] ucx", None),
        ("[12.5] x", None),
        ("took [87474.832736] s", None),
    ],
)
def test_how_long_a_kernel_was_up_is_read(text: str, seconds: float | None) -> None:
    """As dmesg, klogd, syslog, journalctl and /dev/kmsg print it."""
    found = uptime(text)
    assert (None if found is None else found.total_seconds()) == seconds


@pytest.mark.parametrize(
    "line",
    [
        "[  100.000000] rtc_cmos 00:00: setting system clock to 2026-11-29T11:00:00 UTC (1795950000)",
        "[  100.000000] audit: type=1400 audit(1795950000.000:2): apparmor=STATUS",
        "2026-11-29T11:00:00+00:00 node1 kernel: [  100.000000] x",
        "Nov 29 13:00:00 node1 kernel: [  100.000000] x",
    ],
)
def test_lines_with_both_times_tell_when_a_kernel_was_booted(line: str) -> None:
    """The kernel does when it sets its clock and for audit records, syslog where it keeps the kernel's own."""
    text = f"[    0.000000] Linux version 6.1 (Fri Aug 5 10:38:02 UTC 2022)\n{line}\n"
    boot = boot_told(text.encode(), NEAR, -timedelta(hours=2))
    assert boot is not None
    assert boot.time_of(timedelta(seconds=160)) == datetime(2026, 11, 29, 11, 1, tzinfo=UTC)
    assert boot.time_of(timedelta(seconds=101) + UPTIME_SPAN) is None


@pytest.mark.parametrize(
    "line",
    [
        "[  100.000000] rtc_cmos 00:00: setting system clock to 1970-01-01T00:00:00 UTC (0100000000)",
        "[  100.000000] usb 1-1: Product made 2026-11-29T11:00:00",
        "[  100.000000] program: prints audit: type=1 audit(1795950000.000:2):",
        "node1 kernel: [  100.000000] x",
    ],
)
def test_other_lines_do_not_tell_when_a_kernel_was_booted(line: str) -> None:
    """A clock without a battery, and times that are part of a message."""
    assert boot_told(line.encode() + b"\n", NEAR, timedelta()) is None
