"""What one attempt's tick concluded: what matters of it, what is remembered of it, and the moments it saw."""

import json
from dataclasses import dataclass
from datetime import datetime, timedelta

from advisor.core import codec
from advisor.core.model import Decision
from advisor.core.policy import Policy
from advisor.core.reliability import steps_lost
from advisor.core.words import Action, AttemptState, IncidentKind, Mode
from advisor.sighting import Sighting
from advisor.state_writing import StateWriter
from advisor.store.records import (
    AttemptKey,
    DecisionRecord,
    DetectorState,
    Milestone,
    MilestoneKind,
    StoredAttempt,
)

PAUSED_MAX = timedelta(minutes=50)  # agents take no advice for longer than an hour


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """One attempt's decision in this tick. `record` is set when it differs from the newest committed one."""

    sighting: Sighting
    decision: Decision
    essence: str
    record: DecisionRecord | None = None


def essence_of(decision: Decision) -> str:
    """What matters of a decision to whoever acts on it: not its wording, its evidence or when it was made."""
    return codec.content_hash(
        json.dumps(
            [
                decision.action,
                decision.reason,
                decision.mode,
                decision.incident.kind,
                decision.attribution.category,
                decision.attribution.fingerprint,
                sorted(decision.attribution.nodes),
                list(decision.isolation.exclude_for_job),
                sorted(decision.isolation.isolate_for_cluster),
                decision.may_end_live_attempt,
                decision.free,
                None if decision.save_until is None else decision.save_until.isoformat(),
                sorted(decision.dead_nodes),
                decision.resume_step if decision.action is Action.RESTART else None,
                None if decision.start_not_before is None else decision.start_not_before.isoformat(),
                None if decision.delay_until is None else decision.delay_until.isoformat(),
                *([decision.order] if decision.order else ()),
            ]
        ).encode()
    )


def outline_of(decision: Decision) -> tuple[object, ...]:
    return (
        decision.action,
        decision.reason,
        decision.attribution.category,
        tuple(sorted(decision.isolation.exclude_for_job)),
    )


def detector_state(sighting: Sighting, writer: StateWriter, *, seen_over: bool) -> DetectorState:
    return DetectorState(
        state=writer.write(sighting.key, sighting.state),
        progress=sighting.progress,
        signals=sighting.signals,
        foreign=sighting.foreign,
        seen_over=seen_over,
    )


def is_over(item: StoredAttempt) -> bool:
    """It has ended, or there is a next attempt."""
    return item.attempt.state.ended or item.successor is not None


def moved_on(item: StoredAttempt) -> bool:
    """The next attempt has started: what is decided about this one can no longer be applied to anything."""
    successor = item.successor
    return successor is not None and (
        successor.state.live
        or (successor.state.ended and (successor.state is not AttemptState.CANCELLED or successor.stopped))
    )


def stop_stands(item: StoredAttempt, decision: Decision) -> bool:
    """Our stop was carried out, or an agent may be doing it at this moment: said once more, what comes of it would be
    told of advice that is replaced.
    """
    stop, advice = item.stop, item.advice
    if stop is None or stop.attempt != item.key.number or advice is None:
        return False
    if not decision.action is advice.action is Action.STOP:
        return False
    cancelled = item.successor is not None and item.successor.state is AttemptState.CANCELLED
    over = item.attempt.state in {AttemptState.COMPLETING, AttemptState.OTHER, AttemptState.CANCELLED}
    return stop.applied or cancelled or over or item.attempt.ended_at is not None


def time_to_live(item: StoredAttempt, policy: Policy, now: datetime, paused: datetime | None = None) -> timedelta:
    """How long advice is open: of a live attempt by policy, of an ended one as long as its scheduler knows it.

    `paused`: until when nothing can be applied. Advice that outlives it need not be said again and again.
    """
    if item.remembered_until is None:
        wait = min(paused - now, PAUSED_MAX) if paused is not None else timedelta()
        return timedelta(seconds=policy.advice_time_to_live_seconds) + wait
    return max(item.remembered_until - now, timedelta())


def lapsed(item: StoredAttempt, decision: Decision, now: datetime) -> bool:
    """Nobody could apply the advice in its time, and an agent that is back still could, or the scheduler has forgotten
    what was applied: say it again."""
    advice, expired_at = item.advice, item.advice_expires_at
    if advice is None or advice.applied or decision.action is Action.NONE or decision.mode is Mode.MONITOR:
        return False
    if item.attempt.state is AttemptState.CANCELLED:
        return False  # a restart will not be made, and a stop is nothing more to do
    waits = item.successor is None or (item.undone and not moved_on(item))
    reachable = item.job.in_scope and waits and not item.forgotten
    known = item.remembered_until is None or now < item.remembered_until
    return reachable and known and (item.undone or (expired_at is not None and now >= expired_at))


def own_milestones(verdict: Verdict, detected_at: datetime, advised_at: datetime | None) -> tuple[Milestone, ...]:
    """When the fault could be read, when we read it, and when advice was given."""
    found = []
    if verdict.decision.incident.kind is not IncidentKind.NONE:
        visible = verdict.decision.incident.visible_at or detected_at
        found.append(Milestone(kind=MilestoneKind.FAULT_VISIBLE, at=visible))
        found.append(Milestone(kind=MilestoneKind.DETECTED, at=max(detected_at, visible)))
    if advised_at is not None:
        found.append(Milestone(kind=MilestoneKind.ADVISED, at=advised_at))
    return tuple(item for item in found if item.kind not in verdict.sighting.item.milestones)


def progress_milestones(sighting: Sighting) -> list[tuple[AttemptKey, Milestone]]:
    past = sighting.item.past
    if not past or past[-1].number != sighting.key.number - 1:
        return []
    progress = sighting.progress
    if progress.first_at is None:
        return []
    before = AttemptKey(job_key=sighting.key.job_key, number=past[-1].number)
    found = [(before, Milestone(kind=MilestoneKind.FIRST_PROGRESS, at=progress.first_at))]
    failed_at = past[-1].last_step
    if failed_at is not None and progress.last_step is not None and progress.last_step >= failed_at:
        lost = steps_lost(failed_at, progress.first_step, progress.resumed_step) or 0
        at = progress.last_at or progress.first_at
        found.append((before, Milestone(kind=MilestoneKind.CAUGHT_UP, at=at, detail=f"steps lost: {lost}")))
    return found
