"""The last check before anything is done to a job: `plan(...)` says which steps, or why none. Pure, stdlib only.

It runs twice for every action: in the agent, and again in the short-lived process that takes a fresh look and acts
(`apply.py`). The table is that of docs/architecture.md, "Advice on the wire and its reconciliation". What must hold:

* A plain `requeue` only after reading an ended, non-cancelled state; never while COMPLETING.
* A live attempt is only ended when the advice says so, and only with `requeue incomplete`.
* StartTime is never set before SubmitTime + Slurm's requeue delay, never before the one we found, never later than
  the deadline or the local cap on leases.
* What others requeued is never cancelled: a person who runs a failed job again has seen that it failed.
* ExcNodeList becomes (what it is now − what our mark says is ours) + what the advice wants: the user's part stays.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import assert_never

from slurm_plugin import holds, telling
from slurm_plugin import mark as marks
from slurm_plugin.lease import start_time
from slurm_plugin.mark import Mark
from slurm_plugin.squeue import JobRow
from slurm_plugin.terms import Advice as Advice
from slurm_plugin.terms import Around as Around
from slurm_plugin.terms import Cancel as Cancel
from slurm_plugin.terms import Down as Down
from slurm_plugin.terms import Limits as Limits
from slurm_plugin.terms import Outcome as Outcome
from slurm_plugin.terms import Release as Release
from slurm_plugin.terms import RequeueEnded as RequeueEnded
from slurm_plugin.terms import RequeueLive as RequeueLive
from slurm_plugin.terms import Satisfied as Satisfied
from slurm_plugin.terms import Signal as Signal
from slurm_plugin.terms import Step as Step
from slurm_plugin.terms import Steps as Steps
from slurm_plugin.terms import Update as Update
from slurm_plugin.terms import Wait as Wait
from slurm_plugin.terms import Withheld as Withheld
from slurm_plugin.words import ENDED as ENDED
from slurm_plugin.words import RESTARTABLE as RESTARTABLE
from slurm_plugin.words import Action as Action
from slurm_plugin.words import Phase as Phase
from slurm_plugin.words import Reason as Reason
from slurm_plugin.words import Status as Status
from slurm_plugin.words import phase_of as phase_of

ALONE = Around()


def plan(
    advice: Advice, job: JobRow | None, limits: Limits, *, now: float, monotonic: float, around: Around = ALONE
) -> Outcome:
    """What the agent may do about `advice` for the job as Slurm shows it now."""
    if advice.action is Action.NONE:
        return _nothing(advice, job)
    if job is None:
        return Withheld(reason=Reason.GONE, detail="the scheduler has forgotten the job", status=Status.ABANDONED)
    stranger = identity(advice, job)
    if stranger is not None:
        return stranger
    done = _already(advice, job, limits)
    if done is not None:
        return done
    refusal = _permission(advice, job, limits, monotonic=monotonic)
    if refusal is not None:
        return refusal
    match advice.action:
        case Action.RESTART:
            return _restart(advice, job, limits, around, now=now)
        case Action.STOP:
            return _stop(advice, job, limits)
        case _:
            assert_never(advice.action)


def _nothing(advice: Advice, job: JobRow | None) -> Satisfied | Withheld:
    """Nothing is to be done. Where that is because the job cannot or must not be restarted, it says so."""
    if advice.cause == "not_restartable" and job is not None:
        return _not_requeueable(job) or Satisfied(reason=Reason.NOTHING_TO_DO)
    if advice.cause == "successor_running":
        return Withheld(reason=Reason.DEPENDENT_RELEASED, detail="a job that waited for its end runs already")
    return Satisfied(reason=Reason.NOTHING_TO_DO)


def _not_requeueable(job: JobRow) -> Withheld | None:
    if not job.batch:
        return Withheld(reason=Reason.NOT_BATCH, detail="Slurm requeues batch jobs only")
    if not job.requeueable:
        return Withheld(reason=Reason.NOT_REQUEUEABLE, detail="requeue is switched off for this job (--no-requeue)")
    return None


def identity(advice: Advice, job: JobRow) -> Withheld | None:
    """The job is the one advised on, at the attempt advised on or its direct successor."""

    def other(detail: str) -> Withheld:
        return Withheld(reason=Reason.OTHER_JOB, detail=detail, status=Status.ABANDONED)

    if job.job_id != advice.job_id or job.user != advice.user:
        return other("the id belongs to another job or user")
    if job.submit is None:
        return other("the job has no submit time")
    if job.restarts < advice.attempt:
        return other("the job was restarted fewer times than the attempt advised on")
    if job.restarts == advice.attempt and job.submit != advice.submitted_at:
        return other("the attempt was submitted at another time")
    if job.submit < advice.submitted_at:
        return other("the job was submitted before the attempt advised on")
    if job.restarts > advice.attempt + 1:
        return Withheld(
            reason=Reason.ATTEMPT_MOVED_ON, detail=f"attempt {job.restarts} is current", status=Status.SUPERSEDED
        )
    return None


def own_mark(advice: Advice, job: JobRow) -> Mark | None:
    """Our mark, if it is for the attempt and the store of this advice."""
    mark = marks.find(job.admin_comment)
    if mark is None or mark.job != advice.job_key or mark.attempt != advice.attempt:
        return None
    return mark if not mark.incarnation or mark.incarnation == advice.incarnation else None


def _already(advice: Advice, job: JobRow, limits: Limits) -> Outcome | None:
    """Outcomes that need no permission, because nothing would be done."""
    phase, successor = phase_of(job.state), job.restarts == advice.attempt + 1
    mark = own_mark(advice, job)
    if mark is not None and mark.generation > advice.generation:
        return Withheld(
            reason=Reason.NEWER_GENERATION, detail=f"generation {mark.generation}", status=Status.SUPERSEDED
        )
    if advice.action is Action.STOP:
        if phase is Phase.CANCELLED or (phase in ENDED and not successor):
            return Satisfied(reason=Reason.ALREADY_STOPPED)
        if successor and holds.by_requeue_exit(job, limits.requeue_exit_hold):
            return Satisfied(reason=Reason.ALREADY_STOPPED, detail="held by Slurm's RequeueExitHold, and left so")
        if successor and phase not in {Phase.PENDING, Phase.REQUEUE_HELD}:
            return Withheld(
                reason=Reason.ATTEMPT_MOVED_ON, detail=f"attempt {job.restarts} started", status=Status.SUPERSEDED
            )
        return None
    if phase is Phase.CANCELLED:
        return Withheld(reason=Reason.CANCELLED, detail="a cancelled job is never revived")
    if not successor:
        if phase is Phase.COMPLETED:
            return Withheld(reason=Reason.NOTHING_TO_DO, detail="the attempt completed")
        return None
    return _successor_already(advice, job, phase, mark, limits)


def _successor_already(advice: Advice, job: JobRow, phase: Phase, mark: Mark | None, limits: Limits) -> Outcome | None:
    by_us = mark is not None and mark.generation == advice.generation
    if mark is not None and mark.returned and not by_us:
        return Withheld(reason=Reason.CAPACITY, detail="the watchdog gave our exclusions back")
    in_force = job.excluded is not None and set(advice.exclude) <= set(job.excluded)
    if phase in {Phase.PENDING, Phase.COMPLETING, Phase.REQUEUE_HELD}:
        if by_us and phase is Phase.COMPLETING and not (job.end is None and _dead(advice, job, limits)):
            return Wait(reason=Reason.STILL_COMPLETING, detail="requeued and updated; a node has not answered yet")
        if holds.by_requeue_exit(job, limits.requeue_exit_hold):
            return None  # whatever is marked already, it does not start before it is released
        if by_us:
            return Satisfied(reason=Reason.OBSERVED, by_us=True, detail=_left(mark))
        wants_time = advice.start_not_before is not None or advice.delay_until is not None
        if phase is Phase.PENDING and mark is None and in_force and not wants_time:
            return Satisfied(reason=Reason.ALREADY_REQUEUED)
        return None
    if by_us:
        return Satisfied(reason=Reason.OBSERVED, by_us=True, detail=_left(mark))
    if phase in ENDED:
        return Withheld(
            reason=Reason.ATTEMPT_MOVED_ON, detail=f"attempt {job.restarts} has ended", status=Status.SUPERSEDED
        )
    if in_force and phase in {Phase.RUNNING, Phase.SUSPENDED}:
        return Satisfied(
            reason=Reason.OBSERVED if mark is not None else Reason.ALREADY_REQUEUED, by_us=mark is not None
        )
    return Withheld(reason=Reason.TOO_LATE, detail=f"attempt {job.restarts} runs without these exclusions")


def _left(mark: Mark | None) -> str:
    return "given back by the watchdog" if mark is not None and mark.returned else ""


def _permission(advice: Advice, job: JobRow, limits: Limits, *, monotonic: float) -> Withheld | Wait | None:
    """May anything be done about this job at all?"""
    if not advice.autonomous:
        return Withheld(reason=Reason.MONITOR_MODE)
    if not limits.act:
        return Withheld(reason=Reason.AGENT_OBSERVES)
    if not limits.scope_known:
        return Wait(
            reason=Reason.SCHEDULER_UNAVAILABLE,
            detail="the job's comment, or the scheduler's settings, could not be read yet",
        )
    if not limits.in_scope:
        return Withheld(reason=Reason.OUT_OF_SCOPE, detail=limits.scope_reason)
    waits = _not_now(advice, limits)
    if waits is not None:
        return waits
    if monotonic >= advice.expires_monotonic:
        return Withheld(reason=Reason.TIME_TO_LIVE, status=Status.EXPIRED)
    return None


def _not_now(advice: Advice, limits: Limits) -> Wait | None:
    """What passes, so that the advice is kept: looked at again as long as it lives."""
    if limits.stopped:
        return Wait(reason=Reason.STOP_FILE, detail=limits.stopped)
    if advice.paused:
        return Wait(reason=Reason.PAUSED, detail="the advisor is paused")
    if limits.maintenance:
        return Wait(reason=Reason.MAINTENANCE, detail=limits.maintenance)
    return None


def _restart(advice: Advice, job: JobRow, limits: Limits, around: Around, *, now: float) -> Outcome:
    phase, successor = phase_of(job.state), job.restarts == advice.attempt + 1
    if successor:
        return _restart_successor(advice, job, limits, around, phase=phase, now=now)
    if phase is Phase.COMPLETING:
        return Wait(reason=Reason.STILL_COMPLETING, detail="whether somebody cancelled it is not visible yet")
    if phase is Phase.RUNNING:
        if not advice.may_end_live_attempt:
            return Wait(reason=Reason.LIVE_ATTEMPT, detail="the attempt is live and the advice is for its end")
        first = _save_first(advice, job, limits, now=now)
        return first or _free(_requeue(RequeueLive(), advice, job, limits, around, now=now), advice, job, limits)
    if phase in RESTARTABLE:
        waits = _components(job, around)
        return waits or _requeue(RequeueEnded(), advice, job, limits, around, now=now)
    if phase is Phase.PENDING or phase is Phase.REQUEUE_HELD:
        return Withheld(reason=Reason.LIVE_ATTEMPT, detail="the attempt advised on has not started")
    return Wait(reason=Reason.LIVE_ATTEMPT, detail=f"nothing is concluded from state {job.state[:40]}")


def _save_first(advice: Advice, job: JobRow, limits: Limits, *, now: float) -> Steps | Wait | None:
    """A live attempt that is to be ended may be asked to save first, and is given the time that the advice says."""
    if advice.save_until is None or now >= advice.save_until or _not_requeueable(job) is not None:
        return None
    if limits.saving == "ask":
        return Steps(steps=tuple(Signal(name=name, batch=limits.signal_batch) for name in limits.signals))
    if limits.saving == "wait":
        return Wait(reason=Reason.SAVING, detail="asked to save; a checkpoint or the end of its time comes first")
    return None


def _dead(advice: Advice, job: JobRow, limits: Limits) -> tuple[str, ...]:
    """Dead by the advice's trusted evidence and by what this agent has seen itself, and still holding the job."""
    return tuple(node for node in advice.dead_nodes if node in limits.dead and node in job.nodes)


def _free(planned: Outcome, advice: Advice, job: JobRow, limits: Limits) -> Outcome:
    """Dead nodes go DOWN right behind the update: Slurm 22.05.8 loses count of a job's GPUs when they go later."""
    down = _dead(advice, job, limits)
    if not down or not isinstance(planned, Steps):
        return planned
    return replace(planned, steps=(*planned.steps, Down(nodes=down, job_id=job.job_id)))


def _not_again(limits: Limits, around: Around) -> Withheld | Wait | None:
    """Why the job must not, or not yet, run once more."""
    if around.released:
        detail = f"{' '.join(around.released[:8])} waited for its end and was let go: not started beside it"
        return Withheld(reason=Reason.DEPENDENT_RELEASED, detail=detail)
    return _capped(limits)


def _capped(limits: Limits) -> Wait | None:
    """Whatever ends or restarts a job counts, so that no advisor can do it to many within a moment."""
    if limits.requeues_left > 0:
        return None
    return Wait(reason=Reason.CAP_REQUEUES, detail="the agent's cap on requeues per minute is reached")


def _components(job: JobRow, around: Around) -> Wait | Withheld | None:
    """A requeue of a heterogeneous job's leader takes all components, whatever state they are in."""
    if job.het_offset is None:
        return None
    if not any(row.job_id == job.job_id for row in around.components) or len(around.components) < 2:
        return Wait(reason=Reason.SCHEDULER_UNAVAILABLE, detail="its other components could not be read")
    phases = {phase_of(row.state) for row in around.components}
    if Phase.CANCELLED in phases:
        return Withheld(reason=Reason.CANCELLED, detail="a component of it was cancelled")
    if not phases <= ENDED:
        return Wait(reason=Reason.STILL_COMPLETING, detail="a component of it has not ended")
    if job.het_offset != 0:
        return Wait(reason=Reason.LIVE_ATTEMPT, detail="its leader's advice decides; this one's exclusions follow")
    return None


def _requeue(
    first: RequeueEnded | RequeueLive, advice: Advice, job: JobRow, limits: Limits, around: Around, *, now: float
) -> Outcome:
    refused = _not_requeueable(job) or _not_again(limits, around)
    if refused is not None:
        return refused
    # Submit time will be that of the requeue, at most a second after now.
    earliest = int(now) + 1 + limits.requeue_delay_seconds
    return _with_update((first,), advice, job, limits, now=now, earliest=earliest, begin=earliest)


def _restart_successor(
    advice: Advice, job: JobRow, limits: Limits, around: Around, *, phase: Phase, now: float
) -> Outcome:
    if phase is Phase.COMPLETING:
        if job.end is not None:
            return Wait(reason=Reason.STILL_COMPLETING, detail="the successor is ending, or was cancelled")
        # Being requeued: the submit time is rewritten only when it has left COMPLETING, at the earliest now.
        earliest = int(now) + 1 + limits.requeue_delay_seconds
        planned = _with_update((), advice, job, limits, now=now, earliest=earliest, begin=earliest)
        return _free(planned, advice, job, limits)
    if holds.by_requeue_exit(job, limits.requeue_exit_hold):
        return _release(advice, job, limits, around, now=now)
    if job.held:
        return Withheld(reason=Reason.HELD, detail=f"held by others: {job.reason[:80]}")
    if phase is not Phase.PENDING or job.submit is None:
        return Wait(reason=Reason.STILL_COMPLETING, detail=f"nothing is concluded from state {job.state[:40]}")
    earliest = job.submit + limits.requeue_delay_seconds
    return _with_update((), advice, job, limits, now=now, earliest=earliest, begin=job.eligible)


def _release(advice: Advice, job: JobRow, limits: Limits, around: Around, *, now: float) -> Outcome:
    """Exclusions first, then the release of Slurm's own hold: a death in between leaves what the site asked for."""
    refused = _not_again(limits, around)
    if refused is not None:
        return refused
    if job.submit is None:
        return Wait(reason=Reason.SCHEDULER_UNAVAILABLE, detail="the job has no submit time")
    mark = own_mark(advice, job)
    if mark is not None and mark.generation == advice.generation:
        return Steps(steps=(Release(),))
    earliest = job.submit + limits.requeue_delay_seconds
    planned = _with_update((), advice, job, limits, now=now, earliest=earliest, begin=job.eligible)
    return replace(planned, steps=(*planned.steps, Release())) if isinstance(planned, Steps) else planned


def _with_update(
    before: tuple[Step, ...],
    advice: Advice,
    job: JobRow,
    limits: Limits,
    *,
    now: float,
    earliest: int,
    begin: int | None,
) -> Outcome:
    """The steps `before`, then one update with exclusions, mark and, for a lease, StartTime."""
    old = marks.find(job.admin_comment)
    if job.excluded is None:
        return Wait(reason=Reason.SCHEDULER_UNAVAILABLE, detail="the job's exclusions could not be read")
    ours_before = set(old.nodes) if old is not None else set()
    users = tuple(node for node in job.excluded if node not in ours_before)
    # What came from another job's advice is as true as before, and goes first when there is no room for all.
    kept = tuple(node for node in old.inherited if node in job.excluded) if old is not None else ()
    ours, dropped, dropped_reason = _exclusions((*advice.exclude, *kept), job, limits, users=users, kept=kept)
    current = old if old is not None and old == own_mark(advice, job) and not before else None
    start = start_time(advice, current, limits, now=now, earliest=earliest, begin=begin)
    fragment = Mark(
        job=advice.job_key,
        attempt=advice.attempt,
        generation=advice.generation,
        deadline=start.deadline,
        nodes=ours,
        start=start.ours,
        found=start.found,
        incarnation=advice.incarnation,
        inherited=tuple(node for node in kept if node in ours),
        told=telling.line(advice.explanation, job_id=job.shown_id, attempt=advice.attempt),
        advice=advice.advice_id,
    )
    comment = marks.merge(job.admin_comment, fragment)
    if comment is None:
        return Withheld(
            reason=Reason.SCHEDULER_REFUSED, detail="AdminComment cannot hold our mark: too long, or absurd"
        )
    update = Update(excluded=(*users, *ours), admin_comment=comment, start_time=start.set_to)
    if not marks.fits_argument(",".join(update.excluded)):
        return Withheld(reason=Reason.SCHEDULER_REFUSED, detail="its ExcNodeList is too long to be written again")
    return Steps(steps=(*before, update), dropped=dropped, dropped_reason=dropped_reason)


def _exclusions(
    asked: Sequence[str], job: JobRow, limits: Limits, *, users: Sequence[str], kept: Sequence[str] = ()
) -> tuple[tuple[str, ...], tuple[str, ...], Reason | None]:
    """(ours, dropped with the least certain first, why), within the cap and what the partition can spare."""
    wanted = [node for node in dict.fromkeys(asked) if node not in users]
    ours = [node for node in wanted if limits.known is None or node in limits.known or node in kept]
    reason = Reason.SCHEDULER_REFUSED if len(ours) < len(wanted) else None
    if not set(ours).isdisjoint(limits.required):
        # Excluding what the job itself insists on only keeps it from ever starting.
        ours, reason = [node for node in ours if node not in limits.required], Reason.CAPACITY
    if len(ours) > limits.exclusions_per_job:
        ours, reason = ours[: max(limits.exclusions_per_job, 0)], Reason.CAP_EXCLUSIONS
    if limits.fitting is not None:
        left = set(limits.fitting) - set(users)
        while ours and len(left - set(ours)) < max(job.nodes_wanted, limits.nodes_together, 1):
            ours.pop()
            reason = Reason.CAPACITY
    dropped = tuple(node for node in reversed(wanted) if node not in ours)
    return tuple(ours), dropped, reason


def _stop(advice: Advice, job: JobRow, limits: Limits) -> Outcome:
    phase, successor = phase_of(job.state), job.restarts == advice.attempt + 1
    if successor and (job.held or phase is Phase.REQUEUE_HELD):
        return Withheld(reason=Reason.HELD, detail=f"held by others: {job.reason[:80]}")
    if phase is Phase.COMPLETING:
        return Wait(reason=Reason.STILL_COMPLETING)
    if phase is Phase.PENDING and successor and own_mark(advice, job) is None:
        return Withheld(reason=Reason.ALREADY_REQUEUED, detail="others requeued it after the failure: theirs to stop")
    if phase is Phase.PENDING:
        return _capped(limits) or Steps(steps=(Cancel(state="PENDING"),))
    if phase in {Phase.RUNNING, Phase.SUSPENDED}:
        if not advice.may_end_live_attempt:
            return Wait(reason=Reason.LIVE_ATTEMPT, detail="the attempt is live and the advice is for its end")
        return _capped(limits) or Steps(steps=(Cancel(state=phase.value.upper()),))
    return Wait(reason=Reason.LIVE_ATTEMPT, detail=f"nothing is concluded from state {job.state[:40]}")
