"""When is an attempt overdue? The expectation is learned from its own progress lines, by phase.

In steady state the next line is due within `hang_factor` × a high quantile of the recent gaps between lines, at least
`hang_floor_seconds` and at most `hang_seconds`. What an attempt announced (a checkpoint, an evaluation, a compilation,
a start of its ranks) has a limit of its own, learned from earlier ones where there are any. Pauses that nothing
announces are learned too, with the steps at which they come; where one may be meant that was never seen (a round step
number for the first time, more output than usual, a crash line) the ceiling holds instead of the learned limit.

Gaps are between *reads*, as silence is: output that arrives in bursts is expected in bursts.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from advisor.core.course import Pace, Pause, Phase
from advisor.core.model import Progress, Snapshot
from advisor.core.policy import Policy

GAPS_KEPT = 32
LONGEST_KEPT = 2  # pauses of each phase
NEWEST_KEPT = 4
GAP_SECONDS_MIN = 0.25  # between two reads of the same tick nothing can be learned
LEARNED = 16  # gaps from which a quantile says something
QUANTILE = 0.95
LINES_QUANTILE = 0.8
LINES_SLACK = 2
PAUSE_FACTOR = 2.0  # a gap this many times the median is a pause, not a slow step
PAUSE_SECONDS_MIN = 5.0  # shorter ones never matter: the floor is above
PHASE_FACTOR = 5.0  # storage and evaluation vary more than steps
UNANNOUNCED_FACTOR = 2.0
HABIT_FACTOR = 1.5
# Schedules are written by people: every 500 steps, every 1,024.
_ROUND = tuple(
    sorted(
        {lead * 10**power // 10 for power in range(1, 8) for lead in (10, 15, 20, 25, 30, 40, 50, 60, 75, 80)}
        | {2**power for power in range(5, 21)}
    )
)


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
        started = snapshot.attempt.started_at
        if started is None:
            return None
        at = started + timedelta(seconds=policy.hang_startup_seconds)
        return Expected(at=at, ends_at=at, seconds=policy.hang_startup_seconds, phase=Phase.START)
    return _expected(progress, progress.last_at, policy)


def _expected(progress: Progress, last_at: datetime, policy: Policy) -> Expected:
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
        at = max(at, sign_at + timedelta(seconds=phase_limit(pace, phase, policy)))
    # Signs without a step go on for a while, but not for ever.
    at = min(at, last_at + timedelta(seconds=max(_longest(pace, phase, policy), usual)))
    # Ending an attempt costs more than waiting as long again: nothing is ended at the first doubt.
    ends_at = max(at, min(at + (at - last_at), ceiling_at))
    return Expected(at=at, ends_at=ends_at, seconds=(at - last_at).total_seconds(), phase=phase)


def _longest(pace: Pace, phase: Phase, policy: Policy) -> float:
    """Seconds after the newest step that no sign but another step can extend."""
    limit = phase_limit(pace, phase, policy) if phase is not Phase.STEP else policy.hang_seconds
    return max(policy.hang_startup_seconds if pace.phase_since is not None else policy.hang_seconds, limit)


def step_limit(progress: Progress, policy: Policy) -> float:
    """Seconds until the next progress line is overdue, nothing being announced."""
    pace, ceiling = progress.pace, policy.hang_seconds
    if len(pace.gaps) < LEARNED or pace.began_at is None or progress.last_at is None:
        return ceiling
    if (progress.last_at - pace.began_at).total_seconds() < policy.hang_learning_seconds:
        return ceiling
    learned = max(policy.hang_factor * quantile(pace.gaps, QUANTILE), HABIT_FACTOR * _habit(pace))
    if progress.last_step is not None:
        due = _schedule_due(pace, pace.watched_from, progress.last_step)
        if due is None:
            return ceiling
        learned = max(learned, UNANNOUNCED_FACTOR * due)
    return min(ceiling, max(policy.hang_floor_seconds, learned))


def phase_limit(pace: Pace, phase: Phase, policy: Policy) -> float:
    """Seconds that an announced phase may be silent: learned from earlier ones, else policy's."""
    seen = [pause.seconds for pause in pace.pauses if pause.phase is phase]
    if len(seen) < 2:
        return max([policy.hang_phase_seconds, *(UNANNOUNCED_FACTOR * seconds for seconds in seen)])
    learned = max(policy.hang_seconds / 2, PHASE_FACTOR * max(seen))
    return min(learned, max(policy.hang_phase_seconds, UNANNOUNCED_FACTOR * max(seen)))


def quantile(values: Sequence[float], share: float) -> float:
    """The nearest-rank quantile; 0 of nothing."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, math.ceil(share * len(ordered)) - 1)] if ordered else 0.0


def _schedule_due(pace: Pace, first: int | None, last: int) -> float | None:
    """How long the silence may be that a schedule calls for after step `last`: 0 where none does, None where one may
    act for the first time.

    A schedule of every N steps acts at this multiple of N if it acted at one of the two multiples before, or if the one
    before was not watched: it came before `first`, the step from which pauses could be told, or while nobody read.
    """
    scheduled = [pause for pause in pace.pauses if pause.phase is Phase.STEP and _on_schedule(pause.step, pace)]
    longest = max((pause.seconds for pause in scheduled), default=0.0)
    ahead = max(1, pace.stride)
    if pace.total is not None:
        at_the_end = last + ahead >= pace.total
        return (longest or None) if at_the_end else 0.0
    due = 0.0
    for number in _ROUND:
        if number > last + ahead:
            break
        multiple = (last + ahead) // number * number
        if number <= ahead or multiple < last:
            continue
        before = multiple - number
        if first is None or before < first or _unwatched(pace, before):
            return None
        # One silence may have been missed, or explained by something else that happened to be announced.
        if any(pause.step <= at <= pause.step + ahead for pause in pace.pauses for at in (before, before - number)):
            if longest == 0.0:
                return None
            due = longest
    return due


def pause_due(progress: Progress) -> bool:
    """A silence that nothing announces may follow the newest step."""
    last = progress.last_step
    return last is not None and _schedule_due(progress.pace, progress.pace.watched_from, last) != 0.0


def _unwatched(pace: Pace, step: int) -> bool:
    """Whether the attempt paused at this step was not seen."""
    return pace.unwatched is not None and pace.unwatched[0] <= step <= pace.unwatched[1]


def _on_schedule(step: int, pace: Pace) -> bool:
    """The step, or the one before the next progress line, is a round number; of a bar: it was about full."""
    ahead = max(1, pace.stride)
    if pace.total is not None:
        return step + ahead >= pace.total
    least = max(20 * ahead, 50)
    return any(number >= least and (step + ahead) // number * number >= max(step, 1) for number in _ROUND)


def _habit(pace: Pace) -> float:
    """How long the attempt falls silent at any step: the second longest such pause, since one alone is an accident."""
    seconds = sorted(
        pause.seconds for pause in pace.pauses if pause.phase is Phase.STEP and not _on_schedule(pause.step, pace)
    )
    return seconds[-2] if len(seconds) > 1 else 0.0


def learn(pace: Pace, *, step: int, stride: int, read: float, printed: float, between: int, broken: bool) -> Pace:
    """One gap between two adjacent progress lines, the first at `step`, with `between` other lines.

    Seconds: `read` between the reads, `printed` by the lines' own times; 0 where not known.
    """
    seconds = max(read, printed)
    if seconds < GAP_SECONDS_MIN or broken:
        return pace  # a restart inside the job has no usual length
    long = _long(pace)
    # What only the reader missed (its own outage) is no pause of the job, unless it becomes usual.
    if len(pace.gaps) >= LEARNED and seconds > long and (printed <= 0 or printed > long):
        if _unusual(pace, between):
            pause = Pause(step=step, seconds=round(seconds, 3), phase=Phase.OTHER)
            return replace(pace, pauses=_kept(pace, pause))  # it will be announced again
        near = 2 * max(stride, pace.stride)
        known = any(pause.phase is Phase.STEP and 0 < step - pause.step <= near for pause in pace.pauses)
        pace = replace(pace, pauses=_kept(pace, Pause(step=step, seconds=round(seconds, 3))))
        if not known:
            return pace
        # Pauses in a row are a slower pace.
    return replace(
        pace,
        gaps=(*pace.gaps, round(seconds, 3))[-GAPS_KEPT:],
        lines=(*pace.lines, between)[-GAPS_KEPT:],
        stride=stride if stride > 0 else pace.stride,
        watched_from=step if pace.watched_from is None and len(pace.gaps) >= LEARNED else pace.watched_from,
    )


def missed(pace: Pace, *, first: int, last: int, silence: float) -> Pace:
    """Steps `first` to `last` were read at once after `silence` seconds in which the reader read nothing."""
    if len(pace.gaps) < LEARNED or silence <= _long(pace) or last - first <= pace.stride:
        return pace
    return replace(pace, unwatched=(first - pace.stride, last))


def _unusual(pace: Pace, lines: int) -> bool:
    """More than mostly come between two progress lines; a burst now and then does not make the next one usual."""
    return lines > quantile(pace.lines, LINES_QUANTILE) + LINES_SLACK


def _long(pace: Pace) -> float:
    return max(PAUSE_FACTOR * quantile(pace.gaps, 0.5), PAUSE_SECONDS_MIN)


def learn_stretch(pace: Pace, *, step: int, at: datetime) -> Pace:
    """The silence between a sign and the next one, read at `at`, of which at least one is no progress line."""
    if pace.sign_at is None:
        return pace
    seconds = (at - pace.sign_at).total_seconds()
    phase = pace.phase if pace.closed_at is None else Phase.STEP
    least = GAP_SECONDS_MIN if phase is not Phase.STEP else _long(pace)
    if seconds < least or phase is Phase.START or (phase is Phase.STEP and len(pace.gaps) < LEARNED):
        return pace
    return replace(pace, pauses=_kept(pace, Pause(step=step, seconds=round(seconds, 3), phase=phase)))


def _kept(pace: Pace, new: Pause) -> tuple[Pause, ...]:
    """Of each kind the longest ones and the newest: what comes often must not push out what comes rarely."""

    def kind(pause: Pause) -> tuple[Phase, bool]:
        return pause.phase, pause.phase is Phase.STEP and _on_schedule(pause.step, pace)

    others = [pause for pause in pace.pauses if kind(pause) != kind(new)]
    alike = [pause for pause in pace.pauses if kind(pause) == kind(new)]
    if alike and alike[-1].step == new.step:
        # A phase that prints falls silent several times.
        new = max(alike.pop(), new, key=lambda pause: pause.seconds)
    newest = len(alike) - NEWEST_KEPT + 1
    longest = sorted(range(len(alike)), key=lambda at: -alike[at].seconds)[:LONGEST_KEPT]
    return (*others, *(pause for at, pause in enumerate(alike) if at >= newest or at in longest), new)


def stepped(pace: Pace, *, line: int, total: int | None, at: datetime) -> Pace:
    """A progress line: what was announced before it is over."""
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


def announced(pace: Pace, phase: Phase, *, step: int | None, line: int, at: datetime) -> Pace:
    """A line, after `step`, said that a phase has begun, or still goes on."""
    if step is not None:
        pace = learn_stretch(pace, step=step, at=at)
    since = pace.phase_since or at
    return replace(pace, phase=phase, phase_line=line, phase_since=since, sign_at=at, closed_at=None)


def closed(pace: Pace, phase: Phase, *, step: int | None, line: int, at: datetime) -> Pace:
    """A line, after `step`, said that a phase is over: from now on the next step is awaited."""
    if pace.phase not in {Phase.STEP, phase}:
        return pace
    if step is not None:
        pace = learn_stretch(pace, step=step, at=at)
    return replace(pace, phase_line=line, closed_at=at, sign_at=at)


def printed_since(pace: Pace, lines: int, at: datetime) -> Pace:
    """`lines` were printed since the newest sign, read until `at`."""
    if pace.unusual_at is not None or len(pace.lines) < LEARNED or not _unusual(pace, lines):
        return pace
    return replace(pace, unusual_at=at)


def merged(lead: Pace, others: Iterable[Pace], last_at: datetime | None) -> Pace:
    """The pace of the file that shows the steps, with what other files announced since the newest step."""
    for pace in others:
        if pace.phase is Phase.STEP or pace.sign_at is None or last_at is None or pace.sign_at < last_at:
            continue
        if lead.phase is Phase.STEP or lead.sign_at is None or lead.sign_at < pace.sign_at:
            since = max(pace.phase_since or last_at, last_at)
            lead = replace(lead, phase=pace.phase, phase_since=since, sign_at=pace.sign_at, closed_at=pace.closed_at)
    return lead
