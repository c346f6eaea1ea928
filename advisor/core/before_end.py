"""What may precede and follow the end of a live attempt: time to save before it, a dead node set DOWN after it."""

from datetime import datetime, timedelta

from advisor.core.model import Snapshot
from advisor.core.policy import Policy
from advisor.core.words import AttemptState, IncidentKind, NodeState


def save_until(may_end_at: datetime, kind: IncidentKind, policy: Policy) -> datetime | None:
    """Until when an attempt that may be ended is given time to save; None where it is not asked.

    A fixed moment, counted from when it may be ended: asking again, or a new agent, gains no time. `check_policy` keeps
    it before the decision deadline, which for a live attempt counts from the same moment.
    """
    asks = policy.save_wait_seconds > 0 and (kind is not IncidentKind.HANG or policy.save_hung)
    return may_end_at + timedelta(seconds=policy.save_wait_seconds) if asks else None


def dead_nodes(snapshot: Snapshot, policy: Policy, now: datetime) -> tuple[str, ...]:
    """Nodes of the attempt that the scheduler itself has called silent for long enough. No other evidence counts.

    Only where they can hold the job back: while it is live, or while its requeue waits for them.
    """
    successor = snapshot.successor
    holds = snapshot.attempt.state.live if successor is None else successor.state is AttemptState.COMPLETING
    ending = snapshot.attempt.state is AttemptState.COMPLETING and successor is None
    if not policy.node_down or not (holds or ending):
        return ()
    after = timedelta(seconds=policy.node_down_after_seconds)
    return tuple(
        fact.name
        for fact in snapshot.nodes
        if fact.state is NodeState.NOT_RESPONDING and fact.since is not None and now - fact.since >= after
    )
