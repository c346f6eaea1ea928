"""Which ranks are slower than the others, where each rank prints how long its steps take.

The ranks of one step are compared with each other: a rank is slow there when it takes `SLOW_FACTOR` times as long as
the median rank. Steps are put together into windows; a rank that was slow in most steps of `SUSTAINED` windows in a row
is a straggler until two windows in a row have it among the others again.

What is kept of a step does not grow with the number of ranks: a histogram, and the slowest few.
"""

import math
from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime
from typing import Any, TypeAlias

from advisor.core.course import RankPace, StepTimes

SLOW_FACTOR = 1.3  # below, nobody would restart a job for it
RANKS_MIN = 4  # fewer have no usual value
SLOWEST_KEPT = 16  # ranks of a step: all of two nodes
BUCKET = 1.05  # the histogram's resolution
WINDOW_SECONDS = 10.0  # one collection pause is no window
SHARE = 0.75  # of a window's steps
SUSTAINED = 3
RECOVERED = 2
CANDIDATES_MAX = 64

# What ranks print about one step of theirs: "[rank 12] step 340 took 4.1s", "3: iteration 8, step_time=1204 ms".
PATTERN = (
    r"(?im)(?:\b(?:global_?)?rank[ =:#]{0,2}(\d{1,7})\b|^ {0,6}(\d{1,6}): )[^\n]{0,60}?"
    r"\b(?:step|iteration|iter)[ =:#]{1,2}(\d{1,12})\b[^\n]{0,60}?"
    r"\b(?:took|(?:(?:step|iter|iteration)[ _]?)?time|duration|elapsed)(?: ?\(?(ms|s)\))?[ =:]{1,2}"
    r"(\d{1,9}(?:\.\d{1,6})?) ?(ms|msec|s|secs?|seconds?)?(?:[ ,;|)\]]|\r|$)"
)
_LOG_BUCKET = math.log(BUCKET)

Told: TypeAlias = tuple[int, int, float]  # rank, step, seconds


def parsed(match: Any) -> Told:
    """Rank, step and seconds of a match of `PATTERN` in bytes."""
    rank, task, step, before, value, after = match.groups()
    unit = after or before or b"s"
    return int(rank or task), int(step), float(value) / (1000.0 if unit[:1] in b"mM" else 1.0)


def learn(known: RankPace, told: Iterable[Told], at: datetime) -> RankPace:
    """What ranks told, in order, read at `at`. Two steps are open at a time: the slowest rank comes last."""
    open_ = {times.step: _Open(dict(times.histogram), dict(times.slowest)) for times in known.open}
    for rank, step, seconds in told:
        times = open_.get(step)
        if times is None:
            if (known.closed is not None and step <= known.closed) or (len(open_) == 2 and step < min(open_)):
                continue
            if len(open_) == 2:
                oldest = min(open_)
                known = _close(known, open_.pop(oldest).times(oldest), at)
            times = open_[step] = _Open({}, {})
        if seconds > 0:
            times.add(rank, seconds)
    return replace(known, open=tuple(open_[step].times(step) for step in sorted(open_)))


class _Open:
    """The ranks' times of one step while they are read."""

    __slots__ = ("histogram", "least", "slowest")

    def __init__(self, histogram: dict[int, int], slowest: dict[int, float]) -> None:
        self.histogram = histogram
        self.slowest = slowest
        self.least = min(slowest.values()) if len(slowest) >= SLOWEST_KEPT else 0.0

    def add(self, rank: int, seconds: float) -> None:
        bucket = round(math.log(seconds) / _LOG_BUCKET)
        self.histogram[bucket] = self.histogram.get(bucket, 0) + 1
        if seconds > self.least:
            self.slowest[rank] = round(seconds, 4)
            if len(self.slowest) > 2 * SLOWEST_KEPT:
                self.slowest = dict(self._worst())
                self.least = min(self.slowest.values())

    def _worst(self) -> tuple[tuple[int, float], ...]:
        return tuple(sorted(self.slowest.items(), key=lambda item: (-item[1], item[0]))[:SLOWEST_KEPT])

    def times(self, step: int) -> StepTimes:
        return StepTimes(step=step, histogram=dict(sorted(self.histogram.items())), slowest=self._worst())


def _median(times: StepTimes) -> float:
    half, seen = sum(times.histogram.values()) / 2, 0
    for bucket in sorted(times.histogram):
        seen += times.histogram[bucket]
        if seen >= half:
            return float(BUCKET**bucket)
    return 0.0


def _slow(times: StepTimes) -> tuple[tuple[int, float], ...]:
    """The ranks that were slow in this step, and their seconds. Where half of all are, none is the exception."""
    ranks = sum(times.histogram.values())
    limit = SLOW_FACTOR * _median(times)
    found = tuple(item for item in times.slowest if item[1] >= limit)
    return found if ranks >= RANKS_MIN and 2 * len(found) < ranks else ()


def _close(known: RankPace, times: StepTimes, at: datetime | None) -> RankPace:
    """A step is complete: count it into the window, and the window when it is long enough."""
    known = replace(known, closed=times.step)
    if sum(times.histogram.values()) < RANKS_MIN:
        return known
    slow = dict(known.slow)
    for rank, _ in _slow(times):
        if rank in slow or len(slow) < CANDIDATES_MAX:
            slow[rank] = slow.get(rank, 0) + 1
    worst, usual = times.slowest[0][1], _median(times)
    known = replace(
        known,
        steps=known.steps + 1,
        compared=known.compared + 1,
        seconds=round(known.seconds + worst, 3),
        slow=slow,
        worst=round(max(known.worst if known.steps else 0.0, worst), 4),
        usual=round(usual, 4),
        since=known.since if known.since is not None else times.step,
    )
    return _window(known, at) if known.seconds >= WINDOW_SECONDS else known


def _window(known: RankPace, at: datetime | None) -> RankPace:
    mostly = tuple(sorted(rank for rank, count in known.slow.items() if count >= SHARE * known.steps))
    windows = (*known.windows, mostly)[-SUSTAINED:]
    began = (*known.began, known.since or 0)[-SUSTAINED:]
    fresh = replace(known, windows=windows, began=began, steps=0, seconds=0.0, slow={}, since=None)
    if known.named:
        if any(set(window) & set(known.named) for window in windows[-RECOVERED:]):
            return fresh
        fresh = replace(fresh, named=(), named_step=None, named_at=None, text="")
    common = _common(windows)
    if len(windows) < SUSTAINED or not common:
        return fresh
    return replace(fresh, named=common, named_step=began[0], named_at=at, text=_text(known))


def _common(windows: tuple[tuple[int, ...], ...]) -> tuple[int, ...]:
    return tuple(sorted(set(windows[0]).intersection(*windows[1:]))) if windows else ()


def in_short(known: RankPace) -> RankPace:
    """What an excerpt shows that is too short for its windows: ranks that were slow in all of at least three steps."""
    for times in known.open:
        known = _close(known, times, None)
    rest = tuple(rank for rank, count in known.slow.items() if count == known.steps)
    always = _common((*known.windows, rest) if known.steps else known.windows)
    if known.named or len(known.windows) >= SUSTAINED or known.compared < SUSTAINED or not always:
        return known
    since = known.began[0] if known.began else known.since
    return replace(known, named=always, named_step=since, text=known.text or _text(known))


def _text(known: RankPace) -> str:
    return f"up to {known.worst:.3g} s a step, the others {known.usual:.3g} s"
