"""Reliability figures: arithmetic over what attempts did. Definitions with formulae are in docs/reliability.md. Pure.

After Kokolis et al., "Revisiting Reliability in Large-Scale Machine Learning Research Clusters", HPCA 2025 (arXiv
2410.21680) for the rate of failures, MTTF by job size and ETTR; Young, CACM 17 (1974), and Daly, FGCS 22 (2006), for
the checkpoint interval. Nothing is computed from nothing: what was not measured leaves its figure empty, with a count
of how much was.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import pairwise
from statistics import median as middle

from advisor.core.intervals import NOTHING, Estimate, median, quantile, rate, time_to_failure, wilson
from advisor.core.words import AttemptState, Category

# Ended by the machine's fault, as attributed.
INFRASTRUCTURE = frozenset(
    {
        Category.GPU_HARDWARE,
        Category.NODE_HARDWARE,
        Category.INTERCONNECT,
        Category.STORAGE,
        Category.SYSTEM_SOFTWARE,
    }
)
_FAILED = frozenset(
    {
        AttemptState.FAILED,
        AttemptState.NODE_FAILURE,
        AttemptState.OUT_OF_MEMORY,
        AttemptState.LAUNCH_FAILURE,
    }
)
# Upper ends of the job sizes, in GPUs, as in the paper's figures.
SIZES = (1, 7, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
STEADY_SECONDS = 3600.0  # a restart whose progress nobody can see succeeded when it ran for so long
# A restart got beyond where the one before it had failed by more than this: lines that were lost, and ranks that are
# not quite as far each time, make another last step of the same failure.
BEYOND_STEPS, BEYOND_SHARE = 2, 0.1  # the share is of the steps that it did again
SAME_LENGTH_SHARE = 0.15  # two that ran for as long, but for what start-up takes, failed alike
PARTS = ("detect", "decide", "act", "slurm_delay", "queue", "start", "catch_up")
NODE_DAYS_MIN = 1.0  # of less a rate per 1,000 node-days would say nothing
INTERVAL_FAILURES_MIN = 3  # below, a rate is no ground to advise an interval on
INTERVAL_SAVES_MIN = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptFacts:
    """One attempt as far as the figures ask. Times of a recovery are those recorded for the attempt that failed."""

    job_key: str
    number: int
    job_id: str
    cluster: str
    partition: str
    user: str
    state: AttemptState
    submitted_at: datetime
    eligible_at: datetime | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None  # or until when it was seen
    nodes: int = 0
    gpus: int | None = None
    category: Category = Category.NONE  # of its incident
    kind: str = ""  # of its incident, "" when nothing was wrong
    advised: bool = False  # a restart or a stop was advised
    acted: bool = False  # and carried out
    first_step: int | None = None
    last_step: int | None = None
    resumed_step: int | None = None  # what its first step followed
    first_at: datetime | None = None  # of its own progress
    last_at: datetime | None = None
    save_seconds: tuple[float, ...] = ()  # what its checkpoints cost, each
    moments: Mapping[str, datetime] = field(default_factory=dict)  # milestones, by kind

    @property
    def failed(self) -> bool:
        """It ended by a fault: seen to fail, or ended in a way that was not seen while something was wrong with it.

        A cancel, a preemption, a time limit and an end without a known fault are none.
        """
        if self.category is Category.USER_CANCEL:
            return False
        if self.state in _FAILED:
            return True
        unseen = self.state is AttemptState.COMPLETING and self.ended_at is not None
        fault = self.category not in {Category.NONE, Category.SCHEDULER_EVENT}
        return (unseen or self.state is AttemptState.CANCELLED) and fault and self.kind in {"crash", "hang"}

    @property
    def by_infrastructure(self) -> bool:
        return self.failed and (self.category in INFRASTRUCTURE or self.state is AttemptState.NODE_FAILURE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """From when until when is looked."""

    since: datetime
    until: datetime

    def run_seconds(self, attempt: AttemptFacts) -> float:
        """How long it ran within."""
        if attempt.started_at is None:
            return 0.0
        began = max(attempt.started_at, self.since)
        return max(0.0, (min(attempt.ended_at or self.until, self.until) - began).total_seconds())

    def holds(self, moment: datetime | None) -> bool:
        return moment is not None and self.since <= moment < self.until


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeRow:
    """MTTF of jobs of one size. `gpus`: from and to; None where GPUs are not known."""

    gpus: tuple[int, int] | None
    hours: float
    failures: int
    mttf_hours: Estimate


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """A duration as it was measured: the median with its interval, and the ninth decile."""

    median: Estimate = NOTHING
    p90: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """How often to save. `why_not` says what is missing; then the others may be None."""

    young_seconds: float | None = None
    daly_seconds: float | None = None
    cost_seconds: float | None = None
    saves: int = 0
    mttf_hours: Estimate = NOTHING
    low_seconds: float | None = None  # Daly's, for the bounds of the rate
    high_seconds: float | None = None
    why_not: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """One group's figures."""

    group: str
    attempts: int
    node_days: float
    gpu_hours: float
    without_gpus: int
    failures: int
    failure_rate: Estimate  # per 1,000 node-days
    infrastructure_rate: Estimate
    sizes: tuple[SizeRow, ...]
    ettr: float | None
    ettr_runs: int  # jobs that it was measured on
    ettr_range: tuple[float, float] | None  # the middle half of them
    rto: Spread
    rto_parts: Mapping[str, Spread]
    rpo_steps: Spread
    rpo_seconds: Spread
    restart_success: Estimate
    false_alarms: Estimate
    interval: Interval


def figures(attempts: Sequence[AttemptFacts], window: Window, group: str = "all") -> Figures:
    """All figures of one group of attempts."""
    chains = chains_of(attempts)
    ran = [(attempt, window.run_seconds(attempt)) for attempt in attempts]
    node_days = sum(seconds * attempt.nodes for attempt, seconds in ran) / 86_400
    exposure = node_days / 1000 if node_days >= NODE_DAYS_MIN else 0.0
    failed = [attempt for attempt in attempts if attempt.failed and window.holds(attempt.ended_at)]
    pairs = [pair for chain in chains for pair in recoveries(chain, window)]
    measured = [run for chain in chains if (run := effective(chain, window)) is not None]
    shares = sorted(productive / total for productive, total, _ in measured)
    whole = sum(total * weight for _, total, weight in measured)
    return Figures(
        group=group,
        attempts=len(attempts),
        node_days=node_days,
        gpu_hours=sum(seconds * (attempt.gpus or 0) for attempt, seconds in ran) / 3600,
        without_gpus=sum(attempt.gpus is None and seconds > 0 for attempt, seconds in ran),
        failures=len(failed),
        failure_rate=rate(len(failed), exposure),
        infrastructure_rate=rate(sum(attempt.by_infrastructure for attempt in failed), exposure),
        sizes=by_size(attempts, window),
        ettr=sum(productive * weight for productive, _, weight in measured) / whole if whole else None,
        ettr_runs=len(measured),
        ettr_range=_middle_half(shares),
        rto=_spread(item.total for item in pairs),
        rto_parts={part: _spread(item.parts.get(part) for item in pairs) for part in PARTS},
        rpo_steps=_spread(item.lost_steps for item in pairs),
        rpo_seconds=_spread(item.lost_seconds for item in pairs),
        restart_success=restart_success(pairs),
        false_alarms=false_alarms(attempts, window),
        interval=checkpoint_interval(attempts, window),
    )


def chains_of(attempts: Iterable[AttemptFacts]) -> list[tuple[AttemptFacts, ...]]:
    """The attempts of each job, in order."""
    jobs: dict[str, list[AttemptFacts]] = {}
    for attempt in attempts:
        jobs.setdefault(attempt.job_key, []).append(attempt)
    return [tuple(sorted(chain, key=lambda item: item.number)) for _, chain in sorted(jobs.items())]


def grouped(
    attempts: Iterable[AttemptFacts], key: Callable[[AttemptFacts], str]
) -> Mapping[str, Sequence[AttemptFacts]]:
    groups: dict[str, list[AttemptFacts]] = {}
    for attempt in attempts:
        groups.setdefault(key(attempt), []).append(attempt)
    return groups


def by_size(attempts: Iterable[AttemptFacts], window: Window) -> tuple[SizeRow, ...]:
    """MTTF by how many GPUs a job holds: all time that its attempts ran over the failures by which they ended.

    An attempt that ended in any other way, or runs still, counts with its time and without a failure: it is censored.
    """
    rows: dict[tuple[int, int] | None, list[float]] = {}
    for attempt in attempts:
        seconds = window.run_seconds(attempt)
        if seconds <= 0 or attempt.gpus == 0:
            continue
        row = rows.setdefault(size_of(attempt.gpus), [0.0, 0.0])
        row[0] += seconds / 3600
        row[1] += attempt.failed and window.holds(attempt.ended_at)
    return tuple(
        SizeRow(gpus=gpus, hours=hours, failures=int(count), mttf_hours=time_to_failure(int(count), hours))
        for gpus, (hours, count) in sorted(rows.items(), key=lambda item: item[0] or (0, 0))
    )


def size_of(gpus: int | None) -> tuple[int, int] | None:
    """The size that a job of so many GPUs belongs to: from and to."""
    if gpus is None:
        return None
    low = 1
    for high in SIZES:
        if gpus <= high:
            return low, high
        low = high + 1
    power = 1 << (gpus - 1).bit_length()
    return power // 2 + 1, power


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """From one failure until the job was back where it failed. What was not seen is None or missing."""

    total: float | None
    parts: Mapping[str, float]
    lost_steps: float | None
    lost_seconds: float | None
    succeeded: bool | None  # None: not known yet


def recoveries(chain: Sequence[AttemptFacts], window: Window) -> list[Recovery]:
    """Those of one job whose failure lies within the window and that were started again."""
    found = []
    for before, after in pairwise(chain):
        if before.failed and window.holds(before.ended_at) and after.number == before.number + 1:
            found.append(_recovery(before, after, window))
    return found


def _recovery(before: AttemptFacts, after: AttemptFacts, window: Window) -> Recovery:
    moments = before.moments
    visible, detected, advised = (moments.get(kind) for kind in ("fault_visible", "detected", "advised"))
    requeued = moments.get("requeue_accepted") or after.submitted_at
    started = after.started_at
    eligible = moments.get("eligible") or after.eligible_at
    progress, caught_up = moments.get("first_progress"), moments.get("caught_up")
    # What came before its predecessor (people requeued before we advised) is no part of this recovery's length.
    marks = (
        ("detect", visible, detected),
        ("decide", detected, advised),
        ("act", advised or detected, requeued),
        ("slurm_delay", requeued, eligible),
        ("queue", eligible, started),
        ("start", started, progress),
        ("catch_up", progress, caught_up),
    )
    parts = {name: _seconds(left, right) for name, left, right in marks}
    lost = steps_lost(before.last_step, after.first_step, after.resumed_step)
    return Recovery(
        total=None if visible is None or caught_up is None else _seconds(visible, caught_up),
        parts={name: value for name, value in parts.items() if value is not None},
        lost_steps=None if lost is None else float(lost),
        lost_seconds=_redone(before, lost),
        succeeded=_succeeded(before, after, window),
    )


def steps_lost(failed_at: int | None, first_step: int | None, resumed_step: int | None) -> int | None:
    """Steps that an attempt does again which the one before it had printed as done, `failed_at` the last of them.

    `first_step`: the first that it printed, which need not be the first that it did; `resumed_step`: what that followed
    (`Progress.resumed_step`), None where a build wrote the attempt that did not tell it.
    """
    if failed_at is None or first_step is None:
        return None
    return max(0, failed_at - (first_step - 1 if resumed_step is None else resumed_step))


def _seconds(left: datetime | None, right: datetime | None) -> float | None:
    return None if left is None or right is None else max(0.0, (right - left).total_seconds())


def _redone(attempt: AttemptFacts, lost_steps: int | None) -> float | None:
    """What the lost steps took when they were made first: at the attempt's mean pace."""
    if lost_steps is None or attempt.first_at is None or attempt.last_at is None:
        return None
    if attempt.first_step is None or attempt.last_step is None or attempt.last_step <= attempt.first_step:
        return 0.0 if lost_steps == 0 else None
    pace = (attempt.last_at - attempt.first_at).total_seconds() / (attempt.last_step - attempt.first_step)
    return pace * lost_steps


def _succeeded(before: AttemptFacts, after: AttemptFacts, window: Window) -> bool | None:
    """A restart succeeded when it got beyond where the job had failed, or completed: one that fails there again did
    not. Where the progress of either cannot be seen, when it ran for an hour, and did not fail after as long as the one
    before. Cancelled or preempted before that, or still on its way: nobody knows.
    """
    if after.state is AttemptState.COMPLETED:
        return True
    lost = steps_lost(before.last_step, after.first_step, after.resumed_step)
    if before.last_step is None or after.last_step is None or after.first_step is None or lost is None:
        steady = window.run_seconds(after) >= STEADY_SECONDS and not (after.failed and _as_long(before, after))
        return True if steady else False if after.failed else None
    between_lines = after.first_step - (after.first_step if after.resumed_step is None else after.resumed_step)
    if after.last_step - before.last_step > max(BEYOND_STEPS, between_lines, BEYOND_SHARE * lost):
        return True
    return False if after.failed else None


def _as_long(before: AttemptFacts, after: AttemptFacts) -> bool:
    """Both ran for about as long until they ended."""
    ran = [_seconds(item.started_at, item.ended_at) for item in (before, after)]
    known = [seconds for seconds in ran if seconds is not None]
    return len(known) == len(ran) and max(known) - min(known) <= SAME_LENGTH_SHARE * max(known)


def restart_success(found: Iterable[Recovery]) -> Estimate:
    known = [item.succeeded for item in found if item.succeeded is not None]
    return wilson(sum(known), len(known))


def false_alarms(attempts: Iterable[AttemptFacts], window: Window) -> Estimate:
    """Of attempts that we advised to restart or stop and did not touch, the share that completed by itself.

    What was acted on cannot tell any more whether that was needed; nor can what people ended.
    """
    told = [
        attempt
        for attempt in attempts
        if attempt.advised and not attempt.acted and window.holds(attempt.ended_at or attempt.started_at)
        if attempt.state.ended and attempt.state is not AttemptState.CANCELLED
    ]
    return wilson(sum(attempt.state is AttemptState.COMPLETED for attempt in told), len(told))


def effective(chain: Sequence[AttemptFacts], window: Window) -> tuple[float, float, float] | None:
    """(productive, all, weight) seconds of one job: ETTR is the first over the second. None where progress is not seen.

    All: from when the job could first start until its last attempt ended, queues between attempts included.
    Productive: from an attempt's first progress to its last, without what it did a second time: until it was back
    where the one before had failed. Weight: its GPUs, or its nodes where GPUs are not known.
    """
    ran = [attempt for attempt in chain if attempt.started_at is not None]
    if not ran or any(attempt.first_at is None or attempt.last_at is None for attempt in ran):
        return None
    first, last = ran[0], ran[-1]
    began = max(first.started_at or first.submitted_at, window.since)
    ended = min(last.ended_at or window.until, window.until)
    total = (ended - began).total_seconds()
    if total <= 0:
        return None
    productive = 0.0
    caught_up: datetime | None = None
    reached: int | None = None
    for attempt in ran:
        left, right = attempt.first_at, attempt.last_at
        if left is None or right is None:
            return None
        repeats = bool(steps_lost(reached, attempt.first_step, attempt.resumed_step))
        if repeats:
            left = right if caught_up is None else max(left, caught_up)
        productive += max(0.0, (min(right, window.until) - max(left, window.since)).total_seconds())
        reached = max(filter(None, (reached, attempt.last_step)), default=None)
        caught_up = attempt.moments.get("caught_up")
    weight = float(first.gpus or first.nodes or 1)
    return min(productive, total), total, weight


def checkpoint_interval(attempts: Sequence[AttemptFacts], window: Window) -> Interval:
    """The interval between two checkpoints that loses least, by Young and by Daly, for the jobs as they are.

    The cost is what saves were seen to hold training up; the MTTF is of the attempts that were seen to save.
    """
    saving = [attempt for attempt in attempts if attempt.save_seconds]
    saves = [seconds for attempt in saving for seconds in attempt.save_seconds]
    hours = sum(window.run_seconds(attempt) for attempt in saving) / 3600
    failures = sum(attempt.failed and window.holds(attempt.ended_at) for attempt in saving)
    mttf = time_to_failure(failures, hours)
    cost = middle(saves) if saves else None
    missing = ""
    if cost is None or len(saves) < INTERVAL_SAVES_MIN:
        missing = f"{len(saves)} checkpoints were seen to cost time, {INTERVAL_SAVES_MIN} are needed"
    elif failures < INTERVAL_FAILURES_MIN or mttf.value is None:
        missing = f"{failures} failures of jobs that save, {INTERVAL_FAILURES_MIN} are needed"
    if missing or cost is None or mttf.value is None or mttf.low is None or mttf.high is None:
        return Interval(cost_seconds=cost, saves=len(saves), mttf_hours=mttf, why_not=missing)
    return Interval(
        young_seconds=young(cost, mttf.value * 3600),
        daly_seconds=daly(cost, mttf.value * 3600),
        cost_seconds=cost,
        saves=len(saves),
        mttf_hours=mttf,
        low_seconds=daly(cost, mttf.low * 3600),
        high_seconds=daly(cost, mttf.high * 3600),
    )


def young(cost_seconds: float, mttf_seconds: float) -> float:
    """Young's first-order optimum: the square root of 2 × cost × MTTF."""
    return math.sqrt(2 * cost_seconds * mttf_seconds)


def daly(cost_seconds: float, mttf_seconds: float) -> float:
    """Daly's higher-order optimum, time between the end of one checkpoint and the beginning of the next.

    Where a checkpoint costs more than twice the time to failure, that time itself.
    """
    if cost_seconds >= 2 * mttf_seconds:
        return mttf_seconds
    small = cost_seconds / (2 * mttf_seconds)
    return young(cost_seconds, mttf_seconds) * (1 + math.sqrt(small) / 3 + small / 9) - cost_seconds


def _spread(values: Iterable[float | None]) -> Spread:
    known = sorted(value for value in values if value is not None)
    return Spread(median=median(known), p90=quantile(known, 0.9))


def _middle_half(ordered: list[float]) -> tuple[float, float] | None:
    low, high = quantile(ordered, 0.25), quantile(ordered, 0.75)
    return None if low is None or high is None else (low, high)


def window_of_days(days: float, now: datetime) -> Window:
    return Window(since=now - timedelta(days=days), until=now)
