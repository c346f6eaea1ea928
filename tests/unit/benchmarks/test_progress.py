"""Benchmarks that run for minutes say what they are at."""

import io
import threading
import time
from pathlib import Path

import benchmarks
from benchmarks._progress import now_at, telling

SECONDS = {"calibration", "labelled"}  # of those that end at once, and what is no program
BY_ITSELF = {"worth"}  # as `advisor simulate` does


def _wait_for(where: io.StringIO, text: str) -> None:
    until = time.monotonic() + 20
    while text not in where.getvalue():
        assert time.monotonic() < until, where.getvalue()
        time.sleep(0.005)


def test_what_takes_long_is_told_now_and_then() -> None:
    """How long it runs, and what it is at; nothing before that time has passed, and nothing after the end."""
    where = io.StringIO()
    with telling(where, 0.01):
        now_at("half of it")
        _wait_for(where, "half of it\n")
        now_at("the other half")
        _wait_for(where, "the other half\n")
    assert all(" s  " in line for line in where.getvalue().splitlines())
    assert not [thread for thread in threading.enumerate() if thread.name == "telling"]
    quick = io.StringIO()
    with telling(quick):
        now_at("nobody asks")
    assert quick.getvalue() == ""


def test_every_benchmark_that_takes_long_tells() -> None:
    """A new one is not silent either."""
    folder = Path(benchmarks.__file__).parent
    programs = {path.stem: path.read_text() for path in folder.glob("[!_]*.py")}
    silent = {name for name, text in programs.items() if "telling()" not in text}
    assert silent == SECONDS | BY_ITSELF
