"""What a job has already spent of its restart budgets, read from its past attempts.

Two bounds. The *budget* is per root cause and place, and progress made since the last failure resets it: a job that
gets further each time is worth restarting. The *ceiling* is per job and nothing resets it: it bounds a job that
claims progress for ever. It grows with the node-days that the scheduler gave the job, which no log can forge: hardware
fails by the node-day, so that thousands of nodes meet in a day what one meets in years. A job that fails faster than
any published cluster still reaches it. Attempts since the last progress raise it only where trusted evidence, or the
scheduler, ended them: how long a job fails in vain earns it nothing. Scheduler events and restarts that others made
spend nothing. An operator may reset the budget, and the ceiling only by naming it.

Place: a *different* bad node each time, each with its own trusted hardware evidence, is bad luck with nodes and not a
repeated root cause. Without trusted evidence the place does not count: the same failure on other nodes points at the
application. And a restart that was to avoid a node and was given it again (its exclusion was dropped, so that the job
could start at all) was no second chance: what fails there again says nothing about the job. Only the ceiling counts it.

Progress: a last step further on than before. After as long a run as before it is one only where the attempt saved, or
began, further on as well (`since_progress`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from advisor.core import orders
from advisor.core.model import Attempt, Attribution, PastAttempt, Progress, Snapshot
from advisor.core.policy import Policy
from advisor.core.traceless import (
    blameless,
    looks_certain,
    resumed_later,
    same_moment,
    same_point,
    same_time,
)
from advisor.core.words import Action, Reason

FREE_REASONS = frozenset({Reason.SCHEDULER_EVENT, Reason.ALREADY_REQUEUED})


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """What has been spent, before anything is decided about the present attempt."""

    root_cause: int  # restarts for this root cause at this place since progress was last made
    alike: int  # after attempts that failed at the same point of their course as this one
    elsewhere: bool  # no node was there at all of those and at this one
    confirmed: bool  # one of those looked as if it would come again, and this time nothing tells why it did
    total: int  # restarts of this job that were not free, ever
    ceiling: int  # the smaller of what policy allows so far and the job's own
    node_days: float  # that the job has run since its ceiling counts, without attempts in vain
    same_failure: int  # earlier attempts that failed alike at the same progress, however they were restarted
    confirmations: int  # confirmation retries for this root cause that started from the same step
    progressed: bool  # this attempt got further than every earlier one

    @property
    def at_ceiling(self) -> bool:
        return self.total >= self.ceiling


def spends(past: PastAttempt) -> bool:
    """True when the restart that followed this attempt was ours and not free."""
    return past.action is Action.RESTART and past.reason not in FREE_REASONS


def spent(snapshot: Snapshot, attribution: Attribution, policy: Policy, now: datetime) -> Spent:
    """Counts over `snapshot.past`, oldest first, all of it: a shortened past would raise the ceiling."""
    past, progress, own = snapshot.past, snapshot.progress, snapshot.job.restarts_max
    counts, counts_for_ceiling = (orders.counts_from(snapshot.orders, ceiling=ceiling) for ceiling in (False, True))
    window, progressed = since_progress(snapshot, now)
    since, window = window, tuple(attempt for attempt in window if attempt.number >= counts)
    unfair = _given_back(past, snapshot.attempt)
    alike = [attempt for attempt in past if attempt.number >= counts and _same_root(attempt, attribution)]
    repeats = [
        attempt
        for attempt in window
        if _same_root(attempt, attribution)
        and spends(attempt)
        and not (attribution.trusted and attempt.number in unfair)
    ]
    sure = [item for item in window if blameless(attribution) and looks_certain(item)]
    here = [item for item in window if same_point(item, snapshot.attempt, progress, now)]
    there = [item for item in here if item in repeats or item in sure]
    paid_from = [attempt for attempt in past if attempt.number >= counts_for_ceiling]
    in_vain = {item.number for item in _in_vain(since)}
    earned = [item for item in paid_from if item.number not in in_vain]
    earning = snapshot.attempt if progressed or attribution.trusted else None
    node_days = _node_time(earned, earning, now) / timedelta(days=1)
    ceiling = policy.restarts_ceiling + int(node_days * policy.restarts_ceiling_per_1000_node_days / 1000)
    return Spent(
        root_cause=len(repeats),
        alike=len(there),
        elsewhere=_elsewhere(there, snapshot.attempt),
        confirmed=any(item in sure for item in there),
        total=sum(spends(attempt) for attempt in paid_from),
        ceiling=ceiling if own is None else min(ceiling, own),
        node_days=node_days,
        same_failure=sum(
            attempt.fingerprint == attribution.fingerprint != ""
            # A log that loses lines shows another last step for the same point.
            and (
                attempt.last_step == progress.last_step
                or (attribution.deterministic and same_moment(attempt, snapshot.attempt, progress, now))
            )
            and attempt.reason is not Reason.SCHEDULER_EVENT  # it may have logged the same, but did not die of it
            for attempt in window
        ),
        confirmations=sum(
            attempt.reason is Reason.CONFIRMATION_RETRY and attempt.first_step == progress.first_step
            for attempt in alike
        ),
        progressed=progressed,
    )


def since_progress(snapshot: Snapshot, now: datetime) -> tuple[tuple[PastAttempt, ...], bool]:
    """The past attempts since the job last got further, this attempt included; and whether this one did."""
    window, best = _since_progress(snapshot.past, now)
    progressed = _further(snapshot.progress.last_step, best) and (
        best is None
        or _durable(snapshot.progress, snapshot.past)
        or not any(same_time(item, snapshot.attempt, now) for item in window)
    )
    return (() if progressed else window), progressed


def _durable(made: Progress | PastAttempt, past: Sequence[PastAttempt]) -> bool:
    """It saved, or began, further on than all before it. A last step that is a little further on after the same time
    proves nothing: a log that loses lines shows another one each time.
    """
    saved = max((attempt.checkpoint_step for attempt in past if attempt.checkpoint_step is not None), default=None)
    began = max((attempt.first_step for attempt in past if attempt.first_step is not None), default=None)
    return _further(made.checkpoint_step, saved) or resumed_later(made.first_step, made.last_step, began)


def _elsewhere(failed: Sequence[PastAttempt], attempt: Attempt) -> bool:
    known = bool(failed and attempt.nodes) and all(item.nodes for item in failed)
    return known and not set(attempt.nodes or ()).intersection(*(item.nodes for item in failed))


def _given_back(past: Sequence[PastAttempt], attempt: Attempt) -> frozenset[int]:
    """Attempts whose nodes at fault, by trusted evidence, were to be avoided, and were given to the next one again."""
    following = (*(item.nodes for item in past[1:]), attempt.nodes or ())
    return frozenset(
        item.number
        for item, nodes in zip(past, following, strict=False)
        if item.trusted and not set(item.implicated_nodes).intersection(item.excluded_nodes).isdisjoint(nodes)
    )


def _in_vain(window: Sequence[PastAttempt]) -> Sequence[PastAttempt]:
    """Failures since the last progress that no trusted evidence explains, without the attempt that made it."""
    later = window[1:] if window and window[0].last_step is not None else window
    return [item for item in later if not item.trusted and item.reason is not Reason.SCHEDULER_EVENT]


def _node_time(past: Sequence[PastAttempt], attempt: Attempt | None, now: datetime) -> timedelta:
    """What the scheduler gave the job: nodes × time of each attempt whose begin, end and nodes it has told."""
    times = [(len(item.nodes), item.started_at, item.ended_at) for item in past]
    if attempt is not None:
        times.append((len(attempt.nodes or ()), attempt.started_at, attempt.ended_at or now))
    whole = timedelta()
    for count, started_at, ended_at in times:
        if started_at is not None and ended_at is not None and ended_at > started_at:
            whole += count * (ended_at - started_at)
    return whole


def durable_progress(past: Sequence[PastAttempt], progress: Progress) -> bool:
    """True when running the attempt again starts further on than before.

    Running longer is not enough: a job without checkpoints reaches about the same step each time, a few more or less.
    The first that is known to have run is believed when it took a step; a later one must have started, or saved,
    further on.
    """
    if progress.last_step is None:
        return False
    best = max((attempt.last_step for attempt in past if attempt.last_step is not None), default=None)
    if best is None:
        return progress.first_step is None or progress.last_step > progress.first_step
    if not _further(progress.last_step, best):
        return False
    started = max((attempt.first_step for attempt in past if attempt.first_step is not None), default=None)
    saved = max((attempt.checkpoint_step for attempt in past if attempt.checkpoint_step is not None), default=None)
    return _further(progress.first_step, started) or _further(progress.checkpoint_step, saved)


def _further(step: int | None, best: int | None) -> bool:
    # No step known is no progress, never a reason to believe that there was some.
    return step is not None and (best is None or step > best)


def _since_progress(past: Sequence[PastAttempt], now: datetime) -> tuple[tuple[PastAttempt, ...], int | None]:
    """The attempts since one last got further than all before it, that one included; and the best step."""
    window: list[PastAttempt] = []
    best: int | None = None
    for index, attempt in enumerate(past):
        if _further(attempt.last_step, best):
            alike = best is not None and any(same_time(item, attempt, now) for item in window)
            if not alike or _durable(attempt, past[:index]):
                window.clear()
            best = attempt.last_step
        window.append(attempt)
    return tuple(window), best


def _same_root(past: PastAttempt, attribution: Attribution) -> bool:
    if past.fingerprint != attribution.fingerprint:
        return False
    if not attribution.fingerprint and past.category is not attribution.category:
        return False
    if past.trusted and attribution.trusted and past.implicated_nodes and attribution.nodes:
        return not set(past.implicated_nodes).isdisjoint(attribution.nodes)
    return True
