"""Until when is it known what `decide` will say, if nothing new comes? Of attempts that run, with nothing said of them.

Of thousands of attempts nearly all are like that at any moment. Only time can change what is decided about them, and
time does so in one way: progress becomes overdue. So who looks at them need not decide again before that, and decides
at once when any fact is another. `tests/property/test_calm.py` holds this against deciding at every moment.
"""

from datetime import UTC, datetime

from advisor.core import hang
from advisor.core.model import Decision, Snapshot
from advisor.core.policy import Policy
from advisor.core.words import Action, AttemptState, IncidentKind, Reason

NEVER = datetime.max.replace(tzinfo=UTC)


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
