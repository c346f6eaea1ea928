"""When is an attempt overdue? The expectation is learned from its own progress lines, by phase.

In steady state the next line is due within `hang_factor` × the usual gap between lines, at least `hang_floor_seconds`
and at most `hang_seconds`. What an attempt announced (a checkpoint, an evaluation, a compilation, a start of its ranks)
has a limit of its own, learned from earlier ones where there are any. Pauses that nothing announces are learned too,
with the steps at which they come; where one may be meant that was never seen (a round step number for the first time,
more output than usual, a crash line) the ceiling holds instead of the learned limit.

GPUs that are busy without computing since the newest step (`telemetry`) shorten the wait; that nobody tells changes
nothing.

Gaps are between *reads*, as silence is: output that arrives in bursts is expected in bursts. A silence during which the
reader itself was away is nobody's habit.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from advisor.core import schedules
from advisor.core.course import Pace, Pause, Phase
from advisor.core.model import Progress, Snapshot
from advisor.core.policy import Policy
from advisor.core.telemetry import SPINNING
from advisor.core.words import Trust

GAPS_KEPT = 32
LONGEST_KEPT = 2  # pauses of each phase
NEWEST_KEPT = 4
GAP_SECONDS_MIN = 0.25  # between two reads of the same tick nothing can be learned
LEARNED = 16  # gaps from which a quantile says something
QUANTILE = 0.95
QUANTILE_FACTOR = 1.5  # × a high quantile of recent gaps: where they differ, the longer ones are usual too
SPINNING_FACTOR = 2.0  # × the usual gap
SPINNING_SECONDS = 30.0
WARM_UP_SECONDS = 300.0  # slow steps after the ranks began are no habit
STARTS_MAX = 2  # of the ranks, without a step in between; and start-up times until the first step, whatever is printed
AWAY_SECONDS = 10.0  # between two looks at a log; beyond, the reader was away
LINES_QUANTILE = 0.8
LINES_SLACK = 2
PAUSE_FACTOR = 2.0  # a gap this many times the median is a pause, not a slow step
PAUSE_SECONDS_MIN = 5.0  # shorter ones never matter: the floor is above
PHASE_FACTOR = 5.0  # storage and evaluation vary more than steps
UNANNOUNCED_FACTOR = 2.0
HABIT_FACTOR = 1.3
_PLANNED = frozenset({Phase.CHECKPOINT, Phase.EVALUATION, Phase.OTHER})


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """When the next sign of progress is overdue (`at`), and when a silent attempt may be ended (`ends_at`)."""

    at: datetime
    ends_at: datetime
    seconds: float  # from the newest step (or the start) to `at`
    phase: Phase


def expected(snapshot: Snapshot, policy: Policy) -> Expected | None:
    """What is expected of a live attempt, None when nothing is known to count from."""
    progress = snapshot.progress
    if progress.last_at is None:
        return _first_step(snapshot, policy)
    return _expected(progress, progress.last_at, policy, _spinning_since(snapshot, progress.last_at))


def _first_step(snapshot: Snapshot, policy: Policy) -> Expected | None:
    """Before the first progress line. None where nothing shows that there will be one: the job may print its steps in a
    form that nobody knows, or elsewhere, or take none at all.

    Steps are to be expected where an earlier attempt took some, or where this one has announced its start. A bar of
    preparation is awaited itself, as long as nothing else was said since. Telemetry is
    no such sign: a solver without tensor work looks like waiting ranks, and a moment of waiting is no hour of it.
    """
    pace = snapshot.progress.pace
    # The scheduler's word for it is of the clock as it was then: where that was set since, it may lie hours ahead.
    started = snapshot.attempt.started_at and (pace.began_at or snapshot.attempt.started_at)
    if pace.phase is Phase.PREPARATION and pace.sign_at is not None:
        at = pace.sign_at + timedelta(seconds=policy.hang_phase_seconds)
        return Expected(at=at, ends_at=at, seconds=policy.hang_phase_seconds, phase=Phase.PREPARATION)
    if started is None:
        return None
    announced = pace.sign_at if pace.phase is Phase.START else None
    before = any(attempt.last_step is not None for attempt in snapshot.past)
    if announced is None and not before:
        return None
    since = quiet_since(snapshot, started)
    at = max(since, announced or since) + timedelta(seconds=policy.hang_startup_seconds)
    if before:
        # Its progress lines are of a form that is known: then other lines put it off for a while, but not for ever.
        began = max(started, announced or started)
        at = min(at, began + timedelta(seconds=STARTS_MAX * policy.hang_startup_seconds))
    return Expected(at=at, ends_at=at, seconds=(at - started).total_seconds(), phase=Phase.START)


def quiet_since(snapshot: Snapshot, started: datetime) -> datetime:
    """Since when an attempt without a step has said nothing new."""
    return max(started, snapshot.progress.news_at or started)


def _spinning_since(snapshot: Snapshot, last_at: datetime) -> datetime | None:
    """Since when the GPUs are busy without computing, as a source tells that no job writes to; None while they work,
    where nobody tells, and where it began before the newest step.
    """
    seen = (
        signal.at
        for signal in snapshot.signals
        if signal.rule == SPINNING and signal.trust is Trust.TELEMETRY and signal.at is not None
    )
    return min((at for at in seen if at >= last_at), default=None)


def silence_limit(snapshot: Snapshot, policy: Policy) -> float:
    """Seconds of silence after its last line from which an attempt is overdue that was not watched while it ran: as its
    own lines taught (`paced`), else the site's ceiling.
    """
    progress = snapshot.progress
    if len(progress.pace.gaps) < LEARNED or progress.last_at is None or progress.last_line_at is None:
        return policy.hang_seconds
    due = _expected(progress, progress.last_at, policy, _spinning_since(snapshot, progress.last_at))
    return max(1.0, (due.at - progress.last_line_at).total_seconds())


def silence(snapshot: Snapshot) -> float | None:
    """Seconds without news of an attempt that was not watched while it ran, None where nobody tells. Chatter is none:
    it shows that a process lives, not that it works.
    """
    since_line = snapshot.attempt.silent_seconds
    return None if since_line is None else since_line + snapshot.progress.quiet_seconds


def _expected(progress: Progress, last_at: datetime, policy: Policy, spinning_since: datetime | None) -> Expected:
    pace = progress.pace
    usual = step_limit(progress, policy)
    ceiling_at = last_at + timedelta(seconds=policy.hang_seconds)
    at = last_at + timedelta(seconds=usual)
    phase = Phase.STEP
    # Each of these counts only where it came before the attempt was overdue: what a hung attempt prints is no progress.
    first_sign = pace.phase_since or pace.closed_at
    in_time = first_sign is not None and first_sign <= ceiling_at
    sign_at = pace.sign_at if in_time and pace.sign_at is not None else last_at
    if in_time and sign_at > last_at:
        at = sign_at + timedelta(seconds=usual)
    if progress.broken or (pace.unusual_at is not None and pace.unusual_at <= at):
        at = max(at, sign_at + timedelta(seconds=policy.hang_seconds))
    if in_time and pace.phase is not Phase.STEP and pace.closed_at is None:
        phase = pace.phase
        # Ranks that came back may fail once more before they step; that they are started again is told some time later.
        again = policy.hang_seconds if phase is Phase.START and progress.broken else 0.0
        at = max(at, sign_at + timedelta(seconds=phase_limit(pace, phase, policy) + again))
    # Signs without a step go on for a while, but not for ever.
    at = min(at, last_at + timedelta(seconds=max(_longest(pace, phase, policy), usual)))
    # Ending an attempt costs more than waiting as long again: nothing is ended at the first doubt.
    ends_at = max(at, min(at + (at - last_at), ceiling_at))
    if spinning_since is not None and phase is Phase.STEP:
        # Two kinds of evidence need no second doubt.
        short = spinning_since + timedelta(seconds=SPINNING_SECONDS)
        ends_at, at = at, min(at, max(short, last_at + timedelta(seconds=_corroborated(progress, policy))))
    return Expected(at=at, ends_at=ends_at, seconds=(at - last_at).total_seconds(), phase=phase)


def _corroborated(progress: Progress, policy: Policy) -> float:
    """Seconds of silence that are enough when GPUs wait in a collective meanwhile. They do so behind a silent save:
    where one may be meant, or nothing is learned yet, only half of the wait is spared.
    """
    limit = step_limit(progress, policy)
    if limit >= policy.hang_seconds or pause_due(progress) or progress.pace.unusual_at is not None:
        return policy.hang_seconds / 2
    return min(limit, max(policy.hang_floor_seconds / 2, SPINNING_FACTOR * quantile(progress.pace.gaps, 0.5)))


def _longest(pace: Pace, phase: Phase, policy: Policy) -> float:
    """Seconds after the newest step that no sign but another step can extend: two starts in a row, or one pause."""
    limit = phase_limit(pace, phase, policy) if phase is not Phase.STEP else policy.hang_seconds
    starts = STARTS_MAX if phase is Phase.START else 1
    return starts * max(policy.hang_startup_seconds if pace.phase_since is not None else policy.hang_seconds, limit)


def step_limit(progress: Progress, policy: Policy) -> float:
    """Seconds until the next progress line is overdue, nothing being announced."""
    pace, ceiling = progress.pace, policy.hang_seconds
    if len(pace.gaps) < LEARNED or pace.began_at is None or progress.last_at is None:
        return ceiling
    if (progress.last_at - pace.began_at).total_seconds() < policy.hang_learning_seconds:
        return ceiling
    learned = max(
        policy.hang_factor * quantile(pace.gaps, 0.5),
        QUANTILE_FACTOR * quantile(pace.gaps, QUANTILE),
        HABIT_FACTOR * _habit(pace),
    )
    if progress.last_step is not None:
        due = schedules.due(pace, progress.last_step)
        if due is None:
            return ceiling
        learned = max(learned, UNANNOUNCED_FACTOR * due)
    return min(ceiling, max(policy.hang_floor_seconds, learned))


def usual_silence(progress: Progress) -> float:
    """How long the attempt's log mostly is silent at most, whatever makes it so; 0 where nothing shows it yet."""
    return QUANTILE_FACTOR * quantile(progress.pace.gaps, QUANTILE)


def phase_limit(pace: Pace, phase: Phase, policy: Policy) -> float:
    """Seconds that an announced phase may be silent: learned from earlier ones, else policy's."""
    seen = [pause.seconds for pause in pace.pauses if pause.phase is phase]
    if len(seen) < 2:
        return max([policy.hang_phase_seconds, *(UNANNOUNCED_FACTOR * seconds for seconds in seen)])
    # Never less than a silence that nothing announced may last: one save in many meets busy storage.
    learned = max(policy.hang_seconds, PHASE_FACTOR * max(seen))
    return min(learned, max(policy.hang_phase_seconds, UNANNOUNCED_FACTOR * max(seen)))


def quantile(values: Sequence[float], share: float) -> float:
    """The nearest-rank quantile; 0 of nothing."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, math.ceil(share * len(ordered)) - 1)] if ordered else 0.0


def pause_due(progress: Progress) -> bool:
    """A silence that nothing announces may follow the newest step."""
    last = progress.last_step
    return last is not None and schedules.due(progress.pace, last) != 0.0


def _habit(pace: Pace) -> float:
    """How long the attempt falls silent at any step: the second longest such pause, since one alone is an accident."""
    seconds = sorted(
        pause.seconds
        for pause in pace.pauses
        if pause.phase is Phase.STEP and not schedules.on_schedule(pause.step, pace)
    )
    return seconds[-2] if len(seconds) > 1 else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """Between the progress lines of two steps, with `between` other lines; the second was read at `at`.

    Seconds: `read` between the reads, `printed` by the lines' own times, 0 where not known; `late`: between the read of
    the second and the look before it, 0 where the reader waited. `adjacent`: no other progress line came between.
    """

    first: int
    last: int
    at: datetime
    read: float
    printed: float
    late: float
    between: int
    adjacent: bool

    @property
    def silence(self) -> float:
        """The longest that it can have been silent. Lines of one read came since the look before it."""
        most = self.read if self.read > 0 else self.late
        return min(most, self.printed) if self.printed > 0 else most

    @property
    def missed(self) -> bool:
        """The silence may be the reader's, for the greater part."""
        return self.late > AWAY_SECONDS and self.late > self.read / 2


def learn(pace: Pace, gap: Gap, *, broken: bool) -> Pace:
    """What one gap teaches with nothing announced in it. `broken`: a restart inside the job has no usual length."""
    if broken:
        return replace(pace, ordinary_from=None)
    if pace.total is None and gap.last > gap.first:
        ordinary = len(pace.gaps) >= LEARNED and gap.silence <= _long(pace)
        pace = schedules.went_on(pace, gap.first, gap.last, ordinary=ordinary)
    seconds, stride = max(gap.read, gap.printed), gap.last - gap.first
    if not gap.adjacent or seconds < GAP_SECONDS_MIN or (gap.missed and gap.read > _long(pace)):
        seconds = gap.printed if gap.adjacent and gap.missed else 0.0
        if seconds < GAP_SECONDS_MIN:
            return pace
    long = _long(pace)
    # What only the reader missed is no pause of the job, unless it becomes usual.
    if len(pace.gaps) >= LEARNED and seconds > long and (gap.printed <= 0 or gap.printed > long):
        if _unusual(pace, gap.between):
            pace = schedules.was_told(pace, gap.first, gap.last)
            pause = Pause(step=gap.first, seconds=round(seconds, 3), phase=Phase.OTHER)
            return replace(pace, pauses=_kept(pace, pause))  # it will be announced again
        near = 2 * max(stride, pace.stride)
        known = any(pause.phase is Phase.STEP and 0 < gap.first - pause.step <= near for pause in pace.pauses)
        pace = schedules.fell_silent(pace, gap.first, gap.last)
        if _warming_up(pace, gap.at) and not schedules.on_schedule(gap.first, pace):
            return pace
        pace = replace(pace, pauses=_kept(pace, Pause(step=gap.first, seconds=round(seconds, 3))))
        if not known:
            return pace
        # Pauses in a row are a slower pace.
    return replace(
        pace,
        gaps=(*pace.gaps, round(seconds, 3))[-GAPS_KEPT:],
        lines=(*pace.lines, gap.between)[-GAPS_KEPT:],
        stride=stride if stride > 0 else pace.stride,
    )


def _unusual(pace: Pace, lines: int) -> bool:
    """More than mostly come between two progress lines; a burst now and then does not make the next one usual."""
    return lines > quantile(pace.lines, LINES_QUANTILE) + LINES_SLACK


def _long(pace: Pace) -> float:
    return max(PAUSE_FACTOR * quantile(pace.gaps, 0.5), PAUSE_SECONDS_MIN)


def _warming_up(pace: Pace, at: datetime) -> bool:
    return pace.began_at is None or (at - pace.began_at).total_seconds() < WARM_UP_SECONDS


def learn_stretch(pace: Pace, *, step: int, at: datetime, late: float = 0.0) -> Pace:
    """The silence between a sign and the next one, read at `at`, of which at least one is no progress line. `late`: see
    `Gap`.
    """
    if pace.sign_at is None:
        return pace
    seconds = (at - pace.sign_at).total_seconds()
    phase = pace.phase if pace.closed_at is None else Phase.STEP
    least = GAP_SECONDS_MIN if phase is not Phase.STEP else _long(pace)
    if seconds < least or phase is Phase.START or (phase is Phase.STEP and len(pace.gaps) < LEARNED):
        return pace
    if late > AWAY_SECONDS and late > seconds / 2:
        return pace
    if phase is Phase.STEP:
        pace = schedules.fell_silent(pace, step, step + pace.stride)
    return replace(pace, pauses=_kept(pace, Pause(step=step, seconds=round(seconds, 3), phase=phase)))


def _kept(pace: Pace, new: Pause) -> tuple[Pause, ...]:
    """Of each kind the longest ones and the newest: what comes often must not push out what comes rarely."""

    def kind(pause: Pause) -> tuple[Phase, bool]:
        return pause.phase, pause.phase is Phase.STEP and schedules.on_schedule(pause.step, pace)

    others = [pause for pause in pace.pauses if kind(pause) != kind(new)]
    alike = [pause for pause in pace.pauses if kind(pause) == kind(new)]
    if alike and alike[-1].step == new.step:
        # A phase that prints falls silent several times.
        new = max(alike.pop(), new, key=lambda pause: pause.seconds)
    newest = len(alike) - NEWEST_KEPT + 1
    longest = sorted(range(len(alike)), key=lambda at: -alike[at].seconds)[:LONGEST_KEPT]
    return (*others, *(pause for at, pause in enumerate(alike) if at >= newest or at in longest), new)


def stepped(pace: Pace, *, line: int, total: int | None, at: datetime, steps: tuple[int, int] | None = None) -> Pace:
    """A progress line: what was announced before it is over. `steps`: of the line before it, and its own."""
    if pace.phase in _PLANNED and steps is not None and steps[1] > steps[0]:
        pace = schedules.was_told(pace, *steps)
    if pace.phase_line == line and pace.phase is not Phase.STEP and pace.closed_at is None:
        return replace(pace, total=total, unusual_at=None)  # one line tells its step and what comes next
    return replace(
        pace,
        began_at=pace.began_at or at,
        total=total,
        sign_at=at,
        phase=Phase.STEP,
        phase_line=0,
        phase_since=None,
        closed_at=None,
        unusual_at=None,
    )


def announced(pace: Pace, phase: Phase, *, step: int | None, line: int, at: datetime, late: float = 0.0) -> Pace:
    """A line, after `step` (None: not in its course), said that a phase has begun, or still goes on. It may have stood
    there for `late` seconds, as long as nobody looked: then it came in time.
    """
    if step is not None:
        pace = learn_stretch(pace, step=step, at=at)
    since = pace.phase_since or at - timedelta(seconds=late)
    if pace.began_at is None and pace.phase is Phase.START and phase is Phase.COMPILE:
        phase = Phase.START  # a part of it: steps are still to come
    return replace(pace, phase=phase, phase_line=line, phase_since=since, sign_at=at, closed_at=None)


def closed(pace: Pace, phase: Phase, *, step: int | None, line: int, at: datetime) -> Pace:
    """A line, after `step`, said that a phase is over: from now on the next step is awaited."""
    saved_unseen = pace.began_at is None and phase is Phase.CHECKPOINT  # what saves takes steps, though none is seen
    if pace.phase not in {Phase.STEP, phase} and not saved_unseen:
        return pace
    if step is not None:
        pace = learn_stretch(pace, step=step, at=at)
    return replace(pace, phase=phase if saved_unseen else pace.phase, phase_line=line, closed_at=at, sign_at=at)


def printed_since(pace: Pace, lines: int, at: datetime) -> Pace:
    """`lines` were printed since the newest sign, read until `at`."""
    if pace.unusual_at is not None or len(pace.lines) < LEARNED or not _unusual(pace, lines):
        return pace
    return replace(pace, unusual_at=at)


def unled(paces: Iterable[Pace]) -> Pace:
    """What was announced last, of files that show no step."""
    newest = Pace()
    for pace in paces:
        if pace.sign_at is not None and (newest.sign_at is None or pace.sign_at > newest.sign_at):
            newest = pace
    return newest


def merged(lead: Pace, others: Iterable[Pace], last_at: datetime | None) -> Pace:
    """The pace of the file that shows the steps, with what other files announced since the newest step."""
    for pace in others:
        if pace.phase is Phase.STEP or pace.sign_at is None or last_at is None or pace.sign_at < last_at:
            continue
        if lead.phase is Phase.STEP or lead.sign_at is None or lead.sign_at < pace.sign_at:
            since = max(pace.phase_since or last_at, last_at)
            lead = replace(lead, phase=pace.phase, phase_since=since, sign_at=pace.sign_at, closed_at=pace.closed_at)
    return lead
