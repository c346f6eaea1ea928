"""Timestamps of the usual frameworks."""

from datetime import UTC, datetime, timedelta

import pytest

from advisor.core.times import learn_offset, line_time

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
        ("06/17 19:51:16 - mmengine - INFO", datetime(2026, 6, 17, 19, 51, 16, 0, UTC), False),
    ],
)
def test_usual_timestamps_are_understood(text: str, at: datetime, zoned: bool) -> None:
    """Format, zone and missing year of each."""
    found = line_time(text, NEAR)
    assert found is not None
    assert (found.at, found.zoned) == (at, zoned)


@pytest.mark.parametrize(
    "text", ["[87474.832736] NVRM: x", "step 12 of 2026", "version 2.20.5+cuda12.4", "2026-13-45T99:00:00 x"]
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
