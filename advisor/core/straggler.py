"""Is an attempt slower than it was, for long enough, and who is it?

Seconds per step are taken in windows of several progress lines and compared with the attempt's own earlier windows
(median and MAD). Three slow windows in a row are a slowdown, two ordinary ones end it. A slowdown that stays is the new
normal in the end: longer sequences, another data mix.

Who: ranks that a report names again and again, or that take longer than the others by their own lines (`rank_times`);
all of them on one node; waiting for input; otherwise all ranks are slow together, which is congestion or the job itself
and no node's fault. GPUs that telemetry shows to differ from their peers corroborate, or tell where ranks do not.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from statistics import median

from advisor.core import rank_times
from advisor.core.course import RankTimes, Throughput
from advisor.core.model import Signal, Snapshot
from advisor.core.ranks import parse_ranks

SAMPLES = 8  # progress lines of one window
PAUSE_FACTOR = 3.0  # a step this many times the window's median is a pause, whatever it was
WINDOWS_KEPT = 32
LEARNED = 6  # windows from which a median says something
SUSTAINED = 3
RECOVERED = 2
SLOW_FACTOR = 1.3  # below, nobody would restart a job for it
DEVIATIONS = 5.0
RECOVERED_FACTOR = 1.15
NEW_NORMAL = 60  # windows
SPREAD_MIN = 0.02  # of the median: a perfectly even history makes no spike of the first jitter
RANK_RATIO = 1.15
REPORTS_KEPT = 6
SHORT_FACTOR = 1.5  # for an excerpt, whose windows hold few lines
SHORT_LINES = 5
SHORT_SHARE = 0.75  # of the lines since then, that are slow
SHORT_WINDOWS = 12
STARVED_SHARE = 0.5  # of a step
# GPUs that stay far from what is usual among their peers.
OUTLIERS = frozenset({"telemetry.low_clock", "telemetry.low_power", "telemetry.throttled"})
_MAD = 1.4826  # to a standard deviation, for normal noise

# What lines print about one step. Smoothed values ("s/it" of a bar) are left out: they lag behind.
_STEP_SECONDS = re.compile(
    r"elapsed time per iteration \(ms\): ?(?P<ms>\d+(?:\.\d+)?)"
    r"|\bstep[ _]time(?: ?\(s\))?[=: ]+(?P<s>\d+(?:\.\d+)?) ?s?\b"
    r"|train_step_timing in s: ?(?P<nemo>\d+(?:\.\d+)?)|\bcompleted step: \d+, seconds: (?P<maxtext>\d+(?:\.\d+)?)"
    r"|\bBatch \(t\): ?(?P<batch>\d+(?:\.\d+)?)"
)
_WAIT = re.compile(
    r"\bData \(t\): ?(?P<data>\d+(?:\.\d+)?)[^\n]{0,80}?\bBatch \(t\): ?(?P<batch>\d+(?:\.\d+)?)"
    r"|[ ,]time: ?(?P<time>\d+(?:\.\d+)?)[ ,]+data_time: ?(?P<wait>\d+(?:\.\d+)?)"
)


def printed_seconds(text: str) -> float | None:
    """Seconds of one step, where a progress line prints them."""
    found = _STEP_SECONDS.search(text)
    if found is None:
        return None
    kind = found.lastgroup or ""
    return float(found[kind]) / (1000.0 if kind == "ms" else 1.0)


def printed_wait(text: str) -> float | None:
    """The share of a step that was spent waiting for input, where a progress line prints both."""
    found = _WAIT.search(text)
    if found is None:
        return None
    wait, whole = (found["data"], found["batch"]) if found["data"] else (found["wait"], found["time"])
    return min(1.0, float(wait) / float(whole)) if float(whole) > 0 else None


def learn(known: Throughput, *, step: int, seconds: float, wait: float | None, at: datetime) -> Throughput:
    """One more progress line, read at `at`: `seconds` per step since the line at `step`."""
    samples = (*known.samples, round(seconds, 4))
    waits = known.waits if wait is None else (*known.waits, round(wait, 3))[-SAMPLES:]
    if len(samples) < SAMPLES:
        return replace(known, samples=samples, waits=waits)
    middle = median(samples)
    ordinary = [value for value in samples if value <= PAUSE_FACTOR * middle]
    window = round(sum(ordinary) / len(ordinary), 4)
    share = round(median(waits), 3) if waits else None
    return _judge(replace(known, samples=(), waits=()), window, share, step, at)


def _judge(known: Throughput, window: float, share: float | None, step: int, at: datetime) -> Throughput:
    if len(known.usual) < LEARNED:
        return replace(known, usual=(*known.usual, window))
    middle = median(known.usual)
    spread = max(_MAD * median(abs(value - middle) for value in known.usual), SPREAD_MIN * middle)
    slow = window > SLOW_FACTOR * middle and window > middle + DEVIATIONS * spread
    if known.sustained and not slow and window > RECOVERED_FACTOR * middle:
        return replace(known, recovered=0)  # neither: nothing changes
    if not slow:
        usual = (*known.usual, window)[-WINDOWS_KEPT:]
        recovered = known.recovered + 1 if known.sustained else 0
        if known.sustained and recovered < RECOVERED:
            return replace(known, recovered=recovered)
        return replace(
            known, usual=usual, slow=(), slow_count=0, slow_step=None, slow_at=None, recovered=0, sustained=False
        )
    count = known.slow_count + 1
    if count >= NEW_NORMAL:
        return Throughput(usual=(window,), reports=known.reports, ranks=known.ranks)
    return replace(
        known,
        slow=(*known.slow, window)[:SUSTAINED],
        slow_count=count,
        slow_step=known.slow_step if known.slow else step,
        slow_at=known.slow_at if known.slow else at,
        recovered=0,
        sustained=known.sustained or count >= SUSTAINED,
        wait_share=share,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """Seconds per step since the progress line at `step`, read or written at `at`."""

    step: int
    seconds: float
    at: datetime


def in_short(samples: Sequence[Sample]) -> Throughput:
    """What an excerpt shows that is too short for windows of the usual width: slow to its end, by much, and in more
    lines than a pause has. Nothing is known otherwise.
    """
    width = min(SAMPLES, len(samples) // SHORT_WINDOWS)
    known = Throughput()
    for start in range(len(samples) % width if width else 0, len(samples) if width else 0, width or 1):
        window = samples[start : start + width]
        middle = median(item.seconds for item in window)
        ordinary = [item.seconds for item in window if item.seconds <= PAUSE_FACTOR * middle]
        known = _judge(known, round(sum(ordinary) / len(ordinary), 4), None, window[0].step, window[-1].at)
    if not known.sustained or known.recovered or known.slow_count * width < SHORT_LINES:
        return Throughput()
    cut = len(samples) - known.slow_count * width
    before, after = samples[:cut], samples[cut:]
    usual = median(item.seconds for item in before)
    # Mean windows hide what single lines say: pauses among ordinary lines are no slower pace.
    slow = sum(item.seconds >= SLOW_FACTOR * usual for item in after) >= SHORT_SHARE * len(after)
    return known if slow and median(item.seconds for item in after) >= SHORT_FACTOR * usual else Throughput()


def report(known: Throughput, fields: Mapping[str, str]) -> Throughput:
    """One report of the slowest and the fastest rank. `fields`: the groups of the mark `ranks`."""
    low, high = float(fields["low"]), float(fields["high"])
    data_high = float(fields.get("data_high") or 0.0)
    times = RankTimes(
        slowest=int(fields["high_rank"]),
        ratio=round(high / low, 3) if low > 0 else 0.0,
        data_share=round(min(1.0, data_high / high), 3) if high > 0 else 0.0,
    )
    return replace(known, reports=(*known.reports, times)[-REPORTS_KEPT:])


@dataclass(frozen=True, slots=True, kw_only=True)
class Slowdown:
    """A sustained loss of throughput and who it is: ranks, all of one node, input, or everybody.

    `step`: since when, `at`: when that was noticed, where it is known.
    """

    text: str
    step: int
    ranks: tuple[int, ...] = ()
    node: str | None = None
    starved: bool = False
    at: datetime | None = None


def slowdown(snapshot: Snapshot, signals: Sequence[Signal]) -> Slowdown | None:
    """The attempt's slowdown, None while there is none. `signals`: reports of stragglers by tools the job runs.

    Ranks that tell their own times need no loss against the past: they are compared with each other, and one may have
    been slow from the first step on.
    """
    known = snapshot.progress.throughput
    pace = rank_times.in_short(known.ranks) if snapshot.offline else known.ranks
    lost = bool(known.sustained and known.slow)
    if not lost and not pace.named:
        return None
    if not lost:
        step = pace.named_step or 0
        found = _located(snapshot, f"{pace.text} since step {step}", step, pace.named)
        return replace(found, at=pace.named_at)
    usual, now = median(known.usual), sum(known.slow) / len(known.slow)
    step = known.slow_step or 0
    loss = f"steps take {now:.3g} s instead of {usual:.3g} s since step {step}"
    if _starved(known):
        return Slowdown(text=f"{loss}: they wait for input data", step=step, starved=True, at=known.slow_at)
    ranks = tuple(sorted({*_slow_ranks(known.reports, signals), *pace.named}))
    return replace(_located(snapshot, loss, step, ranks), at=known.slow_at)


def _starved(known: Throughput) -> bool:
    """Most of a step is waiting for a batch, as the steps' own lines say or the newest reports of all ranks."""
    if known.wait_share is not None and known.wait_share >= STARVED_SHARE:
        return True
    newest = known.reports[-SUSTAINED:]
    return len(newest) == SUSTAINED and all(item.data_share >= STARVED_SHARE for item in newest)


def _located(snapshot: Snapshot, loss: str, step: int, ranks: tuple[int, ...]) -> Slowdown:
    """Whose fault the loss is, as far as ranks' times and GPUs that differ from their peers tell."""
    outliers = tuple(
        signal for signal in snapshot.signals if signal.rule in OUTLIERS and signal.trust.trusted and signal.nodes
    )
    differing = {node for signal in outliers for node in signal.nodes}
    if not ranks:
        if len(differing) == 1:
            node = next(iter(differing))
            by_gpu = tuple(sorted({signal.rank for signal in outliers if signal.rank is not None}))
            text = f"{loss}: a GPU of {node} differs from its peers ({outliers[0].text})"
            return Slowdown(text=text, step=step, ranks=by_gpu, node=node)
        return Slowdown(text=f"{loss}, all ranks together: congestion, input or the job itself, no node", step=step)
    nodes = {_node_of(snapshot, rank) for rank in ranks}
    node = nodes.pop() if len(nodes) == 1 else ""
    named = f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks[:8]))}"
    where = f" of {node}" if node else ""
    alike = next((signal for signal in outliers if node in signal.nodes), None)
    also = f"; telemetry agrees: {alike.text}" if alike is not None else ""
    return Slowdown(
        text=f"{loss}: {named}{where} slower than the others{also}", step=step, ranks=ranks, node=node or None
    )


def _node_of(snapshot: Snapshot, rank: int) -> str:
    """The rank's node, "" where nothing tells."""
    attempt = snapshot.attempt
    if rank in attempt.rank_nodes or attempt.nodes is None or not attempt.tasks_per_node:
        return attempt.rank_nodes.get(rank, "")
    place = rank // attempt.tasks_per_node
    return attempt.nodes[place] if place < len(attempt.nodes) else ""


def _slow_ranks(reports: Sequence[RankTimes], signals: Sequence[Signal]) -> tuple[int, ...]:
    """Ranks that reports name: the same one in each of the newest three, or those that a tool calls stragglers."""
    named = {rank for s in signals for key in ("missing", "slow") for rank in parse_ranks(s.fields.get(key, ""))}
    newest = reports[-SUSTAINED:]
    same = {item.slowest for item in newest}
    if len(newest) == SUSTAINED and len(same) == 1 and all(item.ratio >= RANK_RATIO for item in newest):
        named |= same
    return tuple(sorted(named))
