"""Logs without a measure: their cost is bounded by what a look may take, whatever they hold."""

import os
import resource
import time
from pathlib import Path

import pytest

from advisor.core import codec
from advisor.core.model import Signal
from advisor.core.scan import TAIL_BYTES_MAX, FileState, fold_signals
from advisor.ports import LogBatch, LogRequest
from connectors.logs.files import JobFileLogs
from tests.contract.world import BEFORE_ALL, StandingClock
from tests.cost import within
from tests.unit.core_detect.logs import NOON, context, scan

LOOK_BYTES = 8 << 20
SIGNALS_MAX = 200
STATE_BYTES_MAX = 1 << 20  # of one file, as it is stored at every tick
MEMORY_MB_MAX = 150
CRASH = b"RuntimeError: CUDA error: uncorrectable ECC error encountered\n"


def peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def request(path: Path, cursor: str) -> LogRequest:
    return LogRequest(
        key="job/0",
        job_id="7",
        attempt=0,
        user="mallory",
        user_id=os.geteuid(),
        paths=(str(path),),
        nodes=("node1",),
        started_at=BEFORE_ALL,
        ended_at=None,
        cursor=cursor,
        bytes_max=LOOK_BYTES,
    )


async def test_a_line_of_a_terabyte_costs_a_look_what_any_line_does(tmp_path: Path) -> None:
    """A TiB without one newline, most of it never written: at each look a bounded piece, between them a bounded tail,
    and the crash behind it is heard.
    """
    path = tmp_path / "job.out"
    with path.open("wb") as file:
        file.truncate(1 << 40)
        file.seek(0, os.SEEK_END)
        file.write(b"A" * (20 << 20) + b"\n" + CRASH)
    source = JobFileLogs(clock=StandingClock())
    before, began = peak_mb(), time.process_time()
    state, cursor, looks = FileState(), "", 0
    signals: tuple[Signal, ...] = ()
    try:
        while not signals and looks < 6:
            batch = (await source.read([request(path, cursor)]))["job/0"]
            assert isinstance(batch, LogBatch)
            assert sum(len(chunk.data) for chunk in batch.chunks) <= LOOK_BYTES
            for chunk in batch.chunks:
                scanned = scan(chunk.data, context(), state=state, final=False)
                state, signals = scanned.state, fold_signals(signals, scanned, SIGNALS_MAX)
                assert len(state.tail) <= TAIL_BYTES_MAX
            cursor, looks = batch.cursor, looks + 1
    finally:
        await source.close()
    assert [signal.text for signal in signals] == [CRASH.decode().strip()]
    assert len(codec.encode(state)) < STATE_BYTES_MAX
    assert peak_mb() - before < MEMORY_MB_MAX
    assert time.process_time() - began < 10.0


def test_what_follows_an_endless_line_is_heard() -> None:
    """Sixteen MiB of one line, and then the crash: nobody hides his own failure, nor keeps it from being found."""
    state = FileState()
    for _ in range(4):
        state = scan(b"A" * (4 << 20), context(), state=state, final=False).state
    found = scan(b"\n" + CRASH, context(), state=state)
    assert ["ECC" in signal.text for signal in found.signals] == [True]


def distinct_errors(first: int, last: int) -> bytes:
    """No two of them alike by words, numbers left out, as far as a program can make them differ."""
    words = (str(number).translate(str.maketrans("0123456789", "abcdefghij")) for number in range(first, last))
    return "".join(f"[rank{at % 4096}]: ValueError: bad {word}\n" for at, word in enumerate(words)).encode()


def digest_errors(count: int, each: int) -> tuple[FileState, tuple[Signal, ...], float]:
    """Processor seconds for so many of them, in pieces as a look gives them."""
    pieces = [distinct_errors(first, first + each) for first in range(0, count, each)]
    state = FileState()
    signals: tuple[Signal, ...] = ()
    began = time.process_time()
    for piece in pieces:
        scanned = scan(piece, context(), state=state, final=False)
        state, signals = scanned.state, fold_signals(signals, scanned, SIGNALS_MAX)
    return state, signals, time.process_time() - began


def hold_bounds(count: int, seconds_max: float, each: int = 20_000) -> None:
    before = peak_mb()
    state, signals, took = digest_errors(count, each)
    assert state.line == count
    assert 0 < len(signals) <= SIGNALS_MAX
    # Nothing is kept of an error that was told: fingerprints are made of the signals that are left, not of the lines.
    assert len(codec.encode(state)) < STATE_BYTES_MAX
    assert peak_mb() - before < MEMORY_MB_MAX
    assert took < seconds_max


def test_many_distinct_errors_are_digested() -> None:
    """Signals, state and memory stay within their bounds, and the time grows with the lines, not with their square."""
    hold_bounds(20_000, 10.0, each=5_000)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_a_million_distinct_errors_are_digested() -> None:
    """Fifty times as many cost fifty times the time and no more memory."""
    hold_bounds(1_000_000, 500.0)


def test_the_bound_of_a_state_was_a_bound() -> None:
    """Without it the errors themselves would be many times as large: the check above can fail."""
    assert len(distinct_errors(0, 100_000)) > 3 * STATE_BYTES_MAX


def test_times_of_forged_lines_are_only_times() -> None:
    """Years, epochs and clocks of any size in front of an error are read or left, and cost nothing."""
    hostile = b"".join(
        b"%s ERROR RuntimeError: x\n" % stamp
        for stamp in (b"9999-12-31T23:59:60Z", b"0000-00-00 00:00:00", b"9" * 400, b"1e999", b"[" * 300, b"99:99:99")
    )
    found = within(5.0, lambda: scan(hostile * 200))
    assert all(signal.at is None or signal.at <= NOON.replace(year=NOON.year + 1) for signal in found.signals)
