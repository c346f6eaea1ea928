"""How soon a failure is noticed and something to do about it advised, by the shape of the failure.

Counted from the moment at which the world made it happen, not from the first line about it: what the world is late to
show is in it. A failure so near to the end of a world that nobody could have noticed it is left out.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from advisor.core.intervals import quantile
from advisor.core.words import Action
from advisor.simulate.catalogue import Shape
from advisor.simulate.cluster import Cluster, SimAttempt, SimJob
from advisor.simulate.outcome import Outcome

NEAR_END_SECONDS = 900.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Delay:
    """Seconds of so many. `missed`: never noticed at all before the next attempt began, or the world ended."""

    count: int
    missed: int
    p50: float | None
    p95: float | None
    most: float | None
    seconds: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """What the advisor's word would have been worth to the person who acted. `agreed`: the same was done."""

    count: int
    agreed: int
    saved_p50_seconds: float | None
    saved_mean_seconds: float | None


def detection(cluster: Cluster, outcome: Outcome, until: float) -> Mapping[str, Delay]:
    """From a failure to the first decision that knows of it, by shape."""
    found: dict[str, Delay] = {}
    for shape in Shape:
        failed = [pair for pair in _failures(cluster, until) if pair[1].fault and pair[1].fault.cause.shape is shape]
        if failed:
            found[shape.value] = _delay(outcome, failed)
    return found


def _delay(outcome: Outcome, failed: Iterable[tuple[SimJob, SimAttempt]]) -> Delay:
    seconds, count = [], 0
    for job, attempt in failed:
        count += 1
        heard = outcome.heard.get((job.spec.job_id, attempt.number))
        if heard is not None and heard.detected_at is not None and attempt.struck_at is not None:
            seconds.append(heard.detected_at - attempt.struck_at)
    seconds.sort()
    return Delay(
        count=count,
        missed=count - len(seconds),
        p50=quantile(seconds, 0.5),
        p95=quantile(seconds, 0.95),
        most=seconds[-1] if seconds else None,
        seconds=tuple(round(value, 1) for value in seconds),
    )


def _failures(cluster: Cluster, until: float) -> Iterable[tuple[SimJob, SimAttempt]]:
    for job in cluster.jobs.values():
        for attempt in job.attempts:
            if attempt.struck_at is not None and until - attempt.struck_at > NEAR_END_SECONDS:
                yield job, attempt


def watched(cluster: Cluster, outcome: Outcome, by: str) -> Watched:
    """What `by` did about ended attempts, beside what was advised then. What the scheduler did itself is left out."""
    saved, agreed = [], 0
    for job in cluster.jobs.values():
        for attempt in job.attempts:
            heard = outcome.heard.get((job.spec.job_id, attempt.number))
            after = job.attempts[attempt.number + 1] if attempt is not job.last else None
            if after is not None and after.requeued_by == by:
                acted_at, action = after.submitted_at, Action.RESTART
            elif job.stopped_by == by and attempt is job.last and job.stopped_at is not None:
                acted_at, action = job.stopped_at, Action.STOP
            else:
                continue
            if heard is None or heard.advised_at is None:
                continue
            saved.append(acted_at - heard.advised_at)
            agreed += heard.action is action
    saved.sort()
    return Watched(
        count=len(saved),
        agreed=agreed,
        saved_p50_seconds=quantile(saved, 0.5),
        saved_mean_seconds=sum(saved) / len(saved) if saved else None,
    )
