"""What should happen next with one attempt: one ordered table, first row that applies.

The bias is restart: a missed stop costs a bounded number of retries, a false stop costs a night. Four things bend it.
People are not overruled: what was cancelled, held or requeued by others stays so, and what an operator orders comes
before what the table would say. Nothing is concluded from an outcome that is not visible. And what is certain to fail
again is stopped, with one confirmation retry where it only looks so.

A restart that no later fact can turn into a stop is decided at once (`early`), and its exclusions may be refined until
the evidence has settled; every other restart, and every stop, waits for that.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

from advisor.core import orders
from advisor.core.before_end import dead_nodes
from advisor.core.budgets import FREE_REASONS
from advisor.core.explanation import explain
from advisor.core.model import Attribution, Decision, Incident, Isolation, Order, Snapshot
from advisor.core.policy import Policy
from advisor.core.situation import Situation, assess
from advisor.core.words import Action, AttemptState, IncidentKind, Reason

_DOUBLINGS_MAX = 6


@dataclass(frozen=True, slots=True)
class Row:
    """If `when` holds and no row above did: `action`, because of `reason`. `says` is the row in words."""

    action: Action
    reason: Reason
    says: str
    when: Callable[[Situation], bool]
    early: bool = False  # need not wait for slower facts
    keeps_reason: bool = False  # the reason of the advice that the scheduler already accepted

    def __str__(self) -> str:
        return f"{self.action.value:8}{self.reason.value:28}{self.says}"


TABLE: tuple[Row, ...] = (
    # People and the scheduler have spoken already.
    Row(
        Action.NONE,
        Reason.COMPLETED,
        "the attempt completed, or its training was done before it failed",
        lambda s: s.complete,
    ),
    Row(
        Action.NONE,
        Reason.STOP_UNREPORTED,
        "our stop was out, and not reported back: ended by it, or by somebody else",
        lambda s: s.stop_unreported,
    ),
    Row(
        Action.STOP,
        Reason.STOPPED,
        "our stop was carried out, or may be at this moment: keep it",
        lambda s: s.our_stop is not None,
        early=True,
        keeps_reason=True,
    ),
    Row(
        Action.NONE,
        Reason.OUTCOME_NOT_VISIBLE,
        "it was cancelled while it waited and our stop was out: an agent has still to say whether by that",
        lambda s: s.snapshot.stopped_by_us and not s.stop_accepted,
    ),
    Row(
        Action.NONE,
        Reason.STOPPED,
        "we stopped it while it waited, by advice of the attempt before",
        lambda s: s.snapshot.stopped_by_us,
    ),
    Row(
        Action.NONE,
        Reason.USER_CANCELLED,
        "the attempt, or its successor, was cancelled",
        lambda s: s.cancelled,
    ),
    Row(
        Action.NONE,
        Reason.HELD_BY_OTHERS,
        "the job is held or suspended, and not by us",
        lambda s: s.held,
    ),
    Row(
        Action.NONE,
        Reason.VETOED,
        "an operator vetoed whatever would be done about this attempt",
        lambda s: s.veto is not None,
    ),
    Row(
        Action.STOP,
        Reason.OPERATOR,
        "an operator ordered it",
        lambda s: s.ordered_stop and s.stoppable,
        early=True,
    ),
    Row(
        Action.RESTART,
        Reason.WITHIN_BUDGET,
        "our restart was accepted: keep it, with exclusions as they are known now",
        lambda s: (
            s.our_restart is not None
            and not s.ordered_stop
            and (s.successor is None or not s.successor.state.ended or s.successor_stopped)
        ),
        early=True,
        keeps_reason=True,
    ),
    Row(
        Action.RESTART,
        Reason.ALREADY_REQUEUED,
        "others requeued it: the waiting successor gets our exclusions",
        lambda s: s.successor_updatable and (bool(s.isolation.exclude_for_job) or s.gives_back),
        early=True,
    ),
    Row(
        Action.NONE,
        Reason.ALREADY_REQUEUED,
        "others requeued it, and there is nothing to exclude or no time left for it",
        lambda s: s.successor is not None and not s.kept_by_scheduler,
    ),
    # Not over, as far as can be seen.
    Row(
        Action.NONE,
        Reason.OUTCOME_NOT_VISIBLE,
        "the attempt is ending: a cancelled and a failed one look alike until it is over",
        lambda s: s.outcome_unknown,
    ),
    Row(
        Action.NONE,
        Reason.IN_JOB_RESTART,
        "a live attempt restarted its ranks itself",
        lambda s: (
            not s.failed
            and s.snapshot.progress.in_job_restarts > 0
            and s.incident.kind in {IncidentKind.CRASH, IncidentKind.NONE}
        ),
    ),
    Row(
        Action.NONE,
        Reason.NEXT_CHECKPOINT,
        "a live attempt is slow: never ended between two checkpoints",
        lambda s: not s.failed and s.incident.kind is IncidentKind.STRAGGLER,
    ),
    Row(
        Action.NONE,
        Reason.AWAITING_EXIT,
        "a live attempt shows a failure: it may recover, exit, or reach the hang limit",
        lambda s: not s.failed and s.incident.kind is not IncidentKind.NONE,
    ),
    Row(
        Action.NONE,
        Reason.HEALTHY,
        "nothing failed",
        lambda s: not s.failed,
    ),
    # It failed; may it be restarted at all?
    Row(
        Action.NONE,
        Reason.NOT_RESTARTABLE,
        "not a batch job, or its requeue is switched off",
        lambda s: s.snapshot.job.batch is False or s.snapshot.job.requeueable is False,
    ),
    Row(
        Action.NONE,
        Reason.SUCCESSOR_RUNNING,
        "a dependent job that must not run beside it is running",
        lambda s: s.snapshot.dependents_running,
    ),
    Row(
        Action.NONE,
        Reason.TIME_LIMIT,
        "its time limit ended it, and policy lets a job end there",
        lambda s: s.state is AttemptState.TIME_LIMIT and not s.policy.restart_at_time_limit and not s.ordered_restart,
    ),
    # Nothing below spends budget before the ceiling is checked; what the scheduler did spends none.
    Row(
        Action.RESTART,
        Reason.SCHEDULER_EVENT,
        "the scheduler ended it (a time limit only if the attempt got further): free",
        lambda s: s.scheduler_event and not s.time_limit_in_vain,
        early=True,
    ),
    Row(
        Action.STOP,
        Reason.RESTART_CEILING,
        "the job's restarts have reached the ceiling, which nothing resets",
        lambda s: s.spent.at_ceiling,
    ),
    Row(
        Action.RESTART,
        Reason.OPERATOR,
        "an operator ordered it, and the ceiling allows it",
        lambda s: s.ordered_restart,
        early=True,
    ),
    # Trusted evidence against nodes comes before any doubt about the job.
    Row(
        Action.RESTART,
        Reason.TRUSTED_FATAL,
        "trusted fatal hardware under a live attempt that makes no progress since",
        lambda s: s.fatal_hardware and s.budget_left,
        early=True,
    ),
    Row(
        Action.RESTART,
        Reason.NODES_IMPLICATED,
        "trusted evidence implicates nodes that can be avoided",
        lambda s: s.attribution.trusted and s.excludes_new_nodes and s.budget_left,
        early=True,
    ),
    # Certain to fail again.
    Row(
        Action.STOP,
        Reason.CERTAIN_STARTUP_ERROR,
        "certain to fail again, as a start-up configuration error on all ranks is",
        lambda s: s.certain_to_fail_again,
    ),
    Row(
        Action.STOP,
        Reason.SAME_FAILURE_SAME_PROGRESS,
        "the same failure at the same progress as before, and the confirmation retry is spent",
        lambda s: s.failed_alike_before,
    ),
    Row(
        Action.STOP,
        Reason.TIME_LIMIT_WITHOUT_PROGRESS,
        "ran into its time limit again without getting further",
        lambda s: s.time_limit_in_vain and s.spent.confirmations >= s.policy.confirmation_retries,
    ),
    Row(
        Action.STOP,
        Reason.BUDGET_EXHAUSTED,
        "restarts for this root cause and place are spent, without progress in between",
        lambda s: not s.budget_left,
    ),
    # Worth another try.
    Row(
        Action.RESTART,
        Reason.NODES_IMPLICATED,
        "log evidence implicates nodes that can be avoided",
        lambda s: s.excludes_new_nodes,
        early=True,
    ),
    Row(
        Action.RESTART,
        Reason.STORAGE_DELAY,
        "shared storage is down: wait, and exclude nobody",
        lambda s: s.attribution.transient_storage,
    ),
    Row(
        Action.RESTART,
        Reason.CONFIRMATION_RETRY,
        "it looks as if it will fail again: one retry to be sure",
        lambda s: s.time_limit_in_vain or (s.attribution.deterministic and s.spent.root_cause == 0),
    ),
    Row(
        Action.RESTART,
        Reason.HANG,
        "no progress for longer than the limit",
        lambda s: s.incident.kind is IncidentKind.HANG,
    ),
    Row(
        Action.RESTART,
        Reason.WITHIN_BUDGET,
        "nothing speaks against another try, and budget is left for it",
        lambda s: True,
    ),
)


# Not of the table: what stands in for a row whose advice an operator took back.
TAKEN_BACK = Row(
    Action.NONE,
    Reason.WITHDRAWN,
    "an operator took this advice back",
    lambda s: True,
)


def describe() -> str:
    """The table as text, one numbered row per line."""
    return "\n".join(f"{number:2}. {row}" for number, row in enumerate(TABLE, 1))


def choose(situation: Situation, table: tuple[Row, ...] = TABLE) -> Row:
    """The first row that applies. The last one always does, so there is one for every situation."""
    return next(row for row in table if row.when(situation))


def conclude(
    snapshot: Snapshot,
    incident: Incident,
    attribution: Attribution,
    isolation: Isolation,
    policy: Policy,
    now: datetime,
) -> Decision:
    """The decision for one attempt.

    Only with `Action.RESTART` are `isolation.exclude_for_job` to be applied; otherwise they say what a restart would
    avoid. `may_end_live_attempt` is set only for a live attempt that is to be restarted or stopped.
    """
    situation = assess(snapshot, incident, attribution, isolation, policy, now)
    row, order = _with_orders(situation, choose(situation))
    action, reason = row.action, row.reason
    kept = situation.our_stop if action is Action.STOP else situation.our_restart
    if row.keeps_reason and kept is not None:
        reason = kept.reason
    waits = action is not Action.NONE and not row.early
    if waits and not situation.settled:
        action, reason = Action.NONE, Reason.OUTCOME_NOT_VISIBLE
    acts = action is not Action.NONE
    # No slower fact changes what a person ordered, except which nodes a restart avoids.
    pending = (acts and not (action is Action.STOP and row.early)) or (waits and not situation.settled)
    return Decision(
        action=action,
        reason=reason,
        incident=incident,
        attribution=attribution,
        isolation=isolation,
        mode=snapshot.job.mode,
        free=action is Action.RESTART and reason in FREE_REASONS,
        may_end_live_attempt=acts and snapshot.successor is None and situation.may_end_live_attempt,
        # Nobody is done with an attempt whose outcome is still to come, or whose stop waits for slower facts.
        settled=(situation.settled or not pending) and reason is not Reason.OUTCOME_NOT_VISIBLE,
        settles_at=situation.settles_at if pending else None,
        start_not_before=_lease(situation) if action is Action.RESTART else None,
        delay_until=_storage_delay(situation) if action is Action.RESTART else None,
        decision_deadline=situation.decision_deadline if pending else None,
        resume_step=situation.resume_step,
        in_job_restarts=snapshot.progress.in_job_restarts,
        save_until=situation.save_until if action is Action.RESTART and snapshot.successor is None else None,
        dead_nodes=dead_nodes(snapshot, policy, now) if action is Action.RESTART else (),
        order=order.id if order is not None else "",
        ordered_by=order.who if order is not None else "",
        explanation=explain(situation, order, wanted=row.action, action=action, reason=reason, says=row.says),
    )


def _with_orders(situation: Situation, row: Row) -> tuple[Row, Order | None]:
    """The row that holds, and whose order it follows, if it is somebody's."""
    if row.reason in {Reason.STOPPED, Reason.STOP_UNREPORTED}:
        return row, situation.snapshot.stop.order if situation.snapshot.stop is not None else None
    if row.reason is Reason.VETOED:
        return row, situation.veto
    if row.reason is Reason.OPERATOR:
        return row, situation.override
    if row.action is Action.NONE or row.keeps_reason:
        return row, None
    taken_back = orders.taken_back(situation.snapshot.orders, row.action, situation.attribution.category)
    return (row, None) if taken_back is None else (TAKEN_BACK, taken_back)


def _lease(situation: Situation) -> datetime | None:
    """Until when the successor should not start, because its exclusions may still be refined; None where Slurm's own
    requeue delay is long enough. Never later than the decision deadline.
    """
    successor, settles_at = situation.successor, situation.settles_at
    if situation.settled or settles_at is None or successor is None or not situation.successor_updatable:
        return None
    margin = timedelta(seconds=situation.policy.settle_margin_seconds)
    deadline = situation.decision_deadline
    if deadline is None or successor.eligible_at is None or settles_at <= successor.eligible_at - margin:
        return None
    return min(settles_at + margin, deadline)


def _storage_delay(situation: Situation) -> datetime | None:
    """Each vain restart doubles the wait: an outage may last longer than a few retries in a row."""
    if not situation.attribution.transient_storage:
        return None
    doublings = min(situation.spent.root_cause, _DOUBLINGS_MAX)
    return (situation.settle_base or situation.now) + timedelta(
        seconds=situation.policy.storage_delay_seconds * 2**doublings
    )
