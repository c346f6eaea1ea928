"""Failures that speak neither against the job nor, for certain, against a machine: what a row of them tells.

Two facts cannot be forged or lost with a log, since they are the scheduler's: how long each attempt ran, and where.
What a program brings along comes at the same point of its course wherever it runs; what a broken machine does to it
comes at any point, and only where that machine is. So failures at different points are no reason to give a job up, and
the nodes that were there each time are to be tried without, a few at a time: the failure goes away, or they are
cleared.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from itertools import takewhile

from advisor.core.model import Attempt, Attribution, PastAttempt, Progress, Snapshot
from advisor.core.policy import Policy
from advisor.core.words import Category, Reason, Trust

# A failure of these kinds may be the machine's, so that two alike at the same step prove nothing about the job.
INFRASTRUCTURE = frozenset(
    {
        Category.GPU_HARDWARE,
        Category.NODE_HARDWARE,
        Category.INTERCONNECT,
        Category.STORAGE,
        Category.SYSTEM_SOFTWARE,
        Category.SCHEDULER_EVENT,
    }
)
# What the scheduler did is no machine's failure: a time limit that was reached in vain has rules of its own.
_MACHINE = INFRASTRUCTURE - {Category.SCHEDULER_EVENT}
# Two courses that differ by less came to the same point: start-up takes a little longer or shorter each time.
_JITTER, _JITTER_SHARE = timedelta(seconds=15), 0.15
# The same where it ends a job at its second failure: in hours of running 15 % is another point.
_MOMENT_SHARE, _MOMENT_MAX = 0.03, timedelta(seconds=90)
_STEPS_SHARE, _STEPS_LEAST = 0.1, 2


def blameless(attribution: Attribution) -> bool:
    """It does not speak against the job, and no trusted evidence says which machine it was."""
    if attribution.trusted or attribution.certain or attribution.deterministic:
        return False
    return attribution.category is Category.UNKNOWN or attribution.category in _MACHINE


def looks_certain(past: PastAttempt) -> bool:
    """It showed a mistake of the job's own that would come again, and was given one retry to be sure."""
    own = past.category is not Category.UNKNOWN and past.category not in INFRASTRUCTURE
    return own and past.reason is Reason.CONFIRMATION_RETRY


def same_point(past: PastAttempt, attempt: Attempt, progress: Progress, now: datetime) -> bool:
    """Both failed at the same point of their course. Where times are not known nothing shows that they did not.

    Equal steps prove it only where steps were seen to follow each other: who prints every hundredth shows the same one
    for long.
    """
    by_time = same_time(past, attempt, now)
    if by_time is not False:
        return True
    moved = _moved(past.first_step, past.last_step) and _moved(progress.first_step, progress.last_step)
    return moved and past.last_step == progress.last_step


def same_time(past: PastAttempt, attempt: Attempt | PastAttempt, now: datetime) -> bool | None:
    """Both ran for about as long until they failed; None where the scheduler has not told."""
    ran = _ran(past, attempt, now)
    return None if ran is None else abs(ran[0] - ran[1]) <= max(_JITTER, _JITTER_SHARE * max(ran))


def same_moment(past: PastAttempt, attempt: Attempt, progress: Progress, now: datetime) -> bool:
    """Both ran for as long, to within what start-up takes longer or shorter, and no steps say otherwise."""
    ran = _ran(past, attempt, now)
    if ran is None or abs(ran[0] - ran[1]) > max(_JITTER, min(_MOMENT_SHARE * max(ran), _MOMENT_MAX)):
        return False
    if past.last_step is None or progress.last_step is None:
        return True
    begins = [step for step in (past.first_step, progress.first_step) if step is not None]
    shown = max(past.last_step, progress.last_step) - min(begins, default=0)
    return abs(past.last_step - progress.last_step) <= max(_STEPS_LEAST, _STEPS_SHARE * shown)


def _ran(past: PastAttempt, attempt: Attempt | PastAttempt, now: datetime) -> tuple[timedelta, timedelta] | None:
    if past.started_at is None or past.ended_at is None or attempt.started_at is None:
        return None
    if isinstance(attempt, PastAttempt) and attempt.ended_at is None:
        return None
    return past.ended_at - past.started_at, (attempt.ended_at or now) - attempt.started_at


def resumed_later(first: int | None, last: int | None, before: int | None) -> bool:
    """It began further on than `before`, by more than what lines that were lost can make of the same first step."""
    if first is None or before is None:
        return False
    return first - before > _JITTER_SHARE * (max(last or first, first) - first + 1)


def _moved(first: int | None, last: int | None) -> bool:
    return first is not None and last is not None and last > first


def suspected(
    snapshot: Snapshot,
    attribution: Attribution,
    window: Sequence[PastAttempt],
    policy: Policy,
    exited: Sequence[str] = (),
) -> tuple[str, ...]:
    """Nodes to try without: some of those that were there at each of `suspects_after` failures in a row that named
    nobody, this one included. `window`: past attempts since the last progress.

    Those that other jobs' failures speak against come first, then where ranks failed first, and where the scheduler saw
    tasks `exited` by themselves, if those are few. As many as one incident may
    exclude; of jobs too large to be gone through like that, only nodes with a record.
    """
    row = _row(snapshot, attribution, window)
    if not policy.suspects_after or len(_neighbours(row, window)) + 1 < policy.suspects_after:
        return ()
    allocation = snapshot.attempt.nodes or ()
    shared = _shared(snapshot, row)
    record = {fact.name: fact.score for fact in snapshot.nodes if fact.score > 0}
    ranks = [snapshot.attempt.rank_nodes.get(rank) for rank in attribution.ranks]
    early = [node for node in ranks if node is not None]
    first = [*sorted(record, key=lambda node: (-record[node], node)), *early]
    first += exited if len(exited) <= policy.exclusions_per_incident_max else ()
    most = policy.exclusions_per_incident_max
    if len(allocation) > 2:
        most = min(most, int(policy.implicated_fraction_max * len(allocation)))
    order = first if len(shared) > most * policy.restarts_unexplained else [*first, *allocation]
    return tuple(dict.fromkeys(node for node in order if node in shared))[:most]


def cleared(snapshot: Snapshot, attribution: Attribution, window: Sequence[PastAttempt]) -> frozenset[str]:
    """Nodes that were there at one failure of the row and not at another, so that it comes without them, too."""
    row = _row(snapshot, attribution, window)
    there = {node for attempt in row for node in attempt.nodes}
    named = {node for attempt in snapshot.past for node in attempt.implicated_nodes}
    return frozenset(there - named - _shared(snapshot, row))


def _shared(snapshot: Snapshot, row: Sequence[PastAttempt]) -> set[str]:
    return set(snapshot.attempt.nodes or ()).intersection(*(attempt.nodes for attempt in row))


def _row(snapshot: Snapshot, attribution: Attribution, window: Sequence[PastAttempt]) -> tuple[PastAttempt, ...]:
    """Failures before this one, without progress between, that named nobody as this one does; none if it does not."""
    if not blameless(attribution) or attribution.nodes or attribution.category is Category.STORAGE:
        return ()
    if any(report.trust is Trust.LOG and report.unavailable for report in snapshot.sources):
        return ()  # what cannot be read now may say whose failure it is
    return tuple(attempt for attempt in window if attempt.nodes and _named_nobody(attempt))


def _neighbours(row: Sequence[PastAttempt], window: Sequence[PastAttempt]) -> tuple[PastAttempt, ...]:
    """The newest of the row that no other failure comes between. What the scheduler ended is no failure."""
    failed = [attempt for attempt in reversed(window) if attempt.reason is not Reason.SCHEDULER_EVENT]
    return tuple(takewhile(lambda attempt: attempt in row, failed))


def _named_nobody(past: PastAttempt) -> bool:
    machine = past.category in _MACHINE - {Category.STORAGE}
    return (past.category is Category.UNKNOWN or machine) and not past.implicated_nodes and past.action is not None
