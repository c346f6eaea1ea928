"""What the advisor did in one world, and what the world knew when it was said."""

from dataclasses import dataclass, field

from advisor.core.words import Action, IncidentKind
from advisor.simulate.cluster import SimAttempt
from advisor.store.records import AdviceRow


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """One decision as published, and what the world knew then: `truth` is what the attempt failed of, if it had."""

    at: float
    job_id: str
    attempt: int
    generation: int
    action: Action
    reason: str
    category: str
    exclude: tuple[str, ...]
    ends_live: bool
    root_cause: str
    truth: str


@dataclass(slots=True, kw_only=True)
class Heard:
    """When one failed attempt was first known to have failed, and when something to do about it was advised."""

    detected_at: float | None = None
    advised_at: float | None = None
    action: Action = Action.NONE


@dataclass(slots=True, kw_only=True)
class Outcome:
    """What the advisor did in one world, beyond what the cluster shows."""

    isolated: list[tuple[int, float]] = field(default_factory=list)
    lemons: set[int] = field(default_factory=set)
    ticks: int = 0
    said: list[Said] = field(default_factory=list)
    heard: dict[tuple[str, int], Heard] = field(default_factory=dict)

    def note(self, row: AdviceRow, attempt: SimAttempt, now: float) -> None:
        """For whoever asks afterwards what was decided, and how soon."""
        decision, fault, key = row.decision, attempt.fault, (row.attempt.job_id, row.attempt.number)
        self.said.append(
            Said(
                at=now,
                job_id=row.attempt.job_id,
                attempt=row.attempt.number,
                generation=row.generation,
                action=decision.action,
                reason=decision.reason.value,
                category=decision.attribution.category.value,
                exclude=decision.isolation.exclude_for_job,
                ends_live=decision.may_end_live_attempt,
                root_cause=decision.attribution.root_cause,
                truth=fault.cause.name if fault is not None else "",
            )
        )
        if fault is None:
            return
        heard = self.heard.setdefault(key, Heard())
        if heard.detected_at is None and decision.incident.kind is not IncidentKind.NONE:
            heard.detected_at = now
        doable = decision.may_end_live_attempt or not attempt.live
        if heard.advised_at is None and decision.action is not Action.NONE and doable:
            heard.advised_at, heard.action = now, decision.action
