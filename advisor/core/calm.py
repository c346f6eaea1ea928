"""Until when is it known what `decide` will say, if nothing new comes? Of attempts that run, with nothing said of them.

Of thousands of attempts nearly all are like that at any moment. Only time can change what is decided about them, and
time does so in one way: progress becomes overdue. So who looks at them need not decide again before that, and decides
at once when any fact is another. `tests/property/test_calm.py` holds this against deciding at every moment.

Nor is anything decided of an attempt that took one more step, as long as none is overdue: `goes_on` says so.
"""

from dataclasses import fields
from datetime import UTC, datetime

from advisor.core import hang
from advisor.core.course import Phase
from advisor.core.model import Decision, Progress, Snapshot
from advisor.core.policy import Policy
from advisor.core.words import Action, AttemptState, IncidentKind, Reason

NEVER = datetime.max.replace(tzinfo=UTC)
_MOVING = frozenset(
    {"last_step", "last_at", "last_line_at", "interval_seconds", "cleared_at", "cleared_lines"}
    | {"pace", "throughput", "numbers"}
)
_STANDING = tuple(field.name for field in fields(Progress) if field.name not in _MOVING)


def calm_until(snapshot: Snapshot, decision: Decision, policy: Policy) -> datetime | None:
    """The moment before which the same snapshot gives the same decision. None: nothing is known of any later moment.

    `decision` is what the snapshot gave at some moment; before that one nothing is promised.
    """
    attempt = snapshot.attempt
    if attempt.state is not AttemptState.RUNNING or attempt.ended_at is not None or attempt.held or snapshot.offline:
        return None
    if snapshot.successor is not None or snapshot.advice is not None or snapshot.orders:
        return None  # what others do, and what was said, is waited for
    if (decision.action, decision.reason) != (Action.NONE, Reason.HEALTHY):
        return None
    if decision.incident.kind is not IncidentKind.NONE or decision.incident.signals:
        return None
    due = hang.expected(snapshot, policy)
    return NEVER if due is None else due.at


def goes_on(before: Progress, after: Progress) -> bool:
    """Whether a healthy attempt took further steps and did nothing else: as fast as it did, with ordinary numbers.

    What was decided by `before` then holds by `after` too, until the next step is due.
    """
    if before.last_step is None or after.last_step is None or after.last_step <= before.last_step:
        return False
    pace, was = after.pace, before.pace
    if not (pace.phase is was.phase is Phase.STEP) or pace.unusual_at != was.unusual_at:
        return False
    speed, known = after.throughput, before.throughput
    if speed.sustained != known.sustained or speed.ranks.named != known.ranks.named:
        return False
    if after.numbers.not_finite or after.numbers.far:
        return False
    return all(getattr(before, name) == getattr(after, name) for name in _STANDING)
