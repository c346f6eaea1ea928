"""Does the advisor live? By CLOCK_BOOTTIME alone, and dead when in doubt."""

import json
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_plugin import tick_file
from watchdog.liveness import judge


def tick(**changes: object) -> bytes:
    value = {"v": 1, "written": 1e9, "boot_monotonic": 1000.0, "tick_age": 2.0, "ticks": 5, "incarnation": "i"}
    return json.dumps(value | changes).encode()


def test_a_fresh_tick_is_alive() -> None:
    """Its age is that of the file plus what it had when written."""
    found = judge(tick(), boot_now=1003.0, dead_after_seconds=30)
    assert (found.alive, found.age_seconds) == (True, 5.0)


def test_an_old_file_is_dead_even_if_its_tick_was_fresh() -> None:
    """The agent died, or hears nothing."""
    assert not judge(tick(), boot_now=1029.0, dead_after_seconds=30).alive


def test_a_fresh_file_with_an_old_tick_is_dead() -> None:
    """The advisor answers, but does not work."""
    assert not judge(tick(tick_age=31.0), boot_now=1000.1, dead_after_seconds=30).alive


def test_steps_of_the_wall_clock_change_nothing() -> None:
    """`written` is for people."""
    for written in (0, 1e9, 5e9):
        assert judge(tick(written=written), boot_now=1001.0, dead_after_seconds=30).alive


def test_a_file_from_before_this_boot_is_dead() -> None:
    """CLOCK_BOOTTIME began again below it."""
    found = judge(tick(), boot_now=20.0, dead_after_seconds=30)
    assert (found.alive, found.reason) == (False, "the tick file is from before this boot")


@pytest.mark.parametrize(
    "raw",
    [
        None,
        b"",
        b"{",
        b"[]",
        b"\xff",
        b"[" * 60_000,
        b" " * 70_000,
        tick(v=2),
        tick(boot_monotonic="now"),
        tick(boot_monotonic=None),
        tick(boot_monotonic=True),
        tick(tick_age=-1),
        tick(tick_age=float("nan")),
        tick(boot_monotonic=float("-inf")),
    ],
)
def test_what_is_no_tick_file_is_dead(raw: bytes | None) -> None:
    """Missing, cut, of another version, or with times that are none."""
    found = judge(raw, boot_now=1001.0, dead_after_seconds=30)
    assert not found.alive
    assert found.reason


@given(st.binary(max_size=100), st.floats(0, 1e9))
def test_no_file_breaks_it(raw: bytes, now: float) -> None:
    """Whatever stands in it."""
    assert not judge(raw, boot_now=now, dead_after_seconds=30).alive


@given(st.floats(0, 1e8))
def test_a_file_that_was_just_written_is_of_this_boot(boot: float) -> None:
    """Whatever is cut off of its time: it is read a moment after it was written."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tick.json"
        tick_file.write(path, written=1e9, boot_monotonic=boot, tick_age=0.0, ticks=1, incarnation="i")
        assert judge(path.read_bytes(), boot_now=boot, dead_after_seconds=30).alive
