"""Slowdowns in a log that is read all at once: sustained to its end, by what the steps' own lines say."""

from datetime import UTC, datetime, timedelta
from itertools import accumulate
from random import Random

import pytest

from advisor.core import straggler
from advisor.core.course import Throughput
from advisor.core.excerpt import throughput
from advisor.core.paced import reads_of

NOON = datetime(2026, 11, 29, 12, tzinfo=UTC)
SEEDS = (*range(100), 254, 287, 446, 650, 940, 979, 1408, 1423)


def told(seconds: list[float], *, first: int = 0) -> Throughput:
    """Of a log with a line every ten steps, each that long after the one before."""
    at = [NOON + timedelta(seconds=after) for after in accumulate(seconds)]
    lines = [f"{when:%Y-%m-%d %H:%M:%S.%f} step {first + 10 * n}, loss = 0.9" for n, when in enumerate(at)]
    return throughput(reads_of("\n".join(lines).encode(), NOON), "step")


@pytest.mark.parametrize("lines", [8, 20, 400])
def test_steps_that_became_slow_and_stayed_so_are_a_slowdown(lines: int) -> None:
    """Also where the excerpt is much shorter than the windows of a watched job."""
    known = told([10.0, 10.1, 9.9, 10.0] * (lines // 4) + [21.0, 20.8, 21.2, 21.1, 20.9] * (lines // 8))
    assert known.sustained
    assert known.slow_step is not None
    assert abs(known.slow_step - 10 * (lines - 1)) <= 80


@pytest.mark.parametrize(
    "seconds",
    [
        pytest.param([10.0, 10.1, 9.9, 10.0] * 10, id="even"),
        pytest.param([10.0, 10.1, 9.9, 10.0] * 5 + [21.0] * 8 + [10.0] * 12, id="recovered"),
        pytest.param([10.0, 10.1, 9.9, 10.0] * 5 + [90.0, 10.0], id="one pause"),
        pytest.param(([10.0] * 4 + [60.0]) * 8, id="a pause every fifty steps"),
        pytest.param([10.0, 10.1, 9.9, 10.0] * 5 + [13.5] * 10, id="by a third"),
        pytest.param([10.0, 14.0, 8.0, 19.0, 11.0, 25.0] * 6, id="uneven"),
        pytest.param([10.0] * 6 + [21.0] * 3, id="too short"),
        pytest.param([], id="nothing"),
    ],
)
def test_what_passes_or_is_small_or_short_is_none(seconds: list[float]) -> None:
    """Nobody is told of a pause."""
    assert told(seconds) == Throughput()


def test_an_evaluation_that_counts_for_itself_is_not_compared_with_the_steps() -> None:
    """Its steps begin anew."""
    steps = "\n".join(f"2026-11-29 12:{n:02}:00 step {n}, loss = 0.9" for n in range(1, 20))
    evaluation = "\n".join(f"2026-11-29 13:{3 * n:02}:00 step {n}, loss = 0.9" for n in range(1, 15))
    assert throughput(reads_of(f"{steps}\n{evaluation}".encode(), NOON), "step") == Throughput()


def test_what_lines_print_of_a_step_outranks_their_times() -> None:
    """Lines may be written late."""
    slow = [f" iteration {n}/ 900 | elapsed time per iteration (ms): {500 if n < 20 else 1400} |" for n in range(40)]
    reads = [(NOON + timedelta(seconds=n), [line.encode()]) for n, line in enumerate(slow)]
    known = throughput(reads, "megatron")
    assert known.sustained
    assert max(known.slow) == 1.4


def test_bars_are_not_timed() -> None:
    """They begin anew for every evaluation, and smooth what they show."""
    assert throughput([(NOON, [b"| 3/9 [00:01<00:02, 1.00it/s]"])], "bar") == Throughput()


def healthy(seed: int) -> list[straggler.Sample]:
    """A run with noise, warm-up, saves and evaluations between its lines."""
    dice = Random(seed)
    lines, usual, noise = (
        dice.choice([15, 20, 30, 50, 100, 300]),
        dice.choice([0.3, 10.0]),
        dice.choice([0.01, 0.1, 0.2]),
    )
    saves, evaluations = dice.choice([5, 10, 25]), dice.choice([3, 7, 20])
    samples = []
    for line in range(lines):
        seconds = max(0.05, dice.gauss(1, noise)) * usual
        seconds += usual * dice.uniform(1, 20) if line % saves == saves - 1 else 0.0
        seconds += usual * dice.uniform(5, 40) if line % evaluations == evaluations - 1 else 0.0
        seconds *= dice.uniform(1, 10) if line < 2 or dice.random() < 0.02 else 1.0
        samples.append(straggler.Sample(step=line, seconds=seconds, at=NOON))
    return samples


def test_noise_pauses_and_warm_up_of_healthy_runs_are_no_slowdown() -> None:
    """Of every length; SEEDS are those that windows alone took for slow."""
    for seed in SEEDS:
        assert straggler.in_short(healthy(seed)) == Throughput(), seed
