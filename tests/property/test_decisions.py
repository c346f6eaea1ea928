"""No world, however odd, makes a decision that breaks an invariant."""

from datetime import datetime, timedelta

from hypothesis import given

from advisor.core.codec import decode, encode
from advisor.core.isolation import isolate
from advisor.core.model import Attribution, Decision, Incident, Snapshot
from advisor.core.orders import excluded, spared
from advisor.core.policy import Policy
from advisor.core.remediation import conclude
from advisor.core.words import Action, AttemptState, IncidentKind, NodeState, OrderKind, Reason
from tests.property.strategies import attributions, incidents, moments, policies, snapshots

anything = given(snapshots, incidents, attributions, policies, moments)


def _decide(
    snapshot: Snapshot, incident: Incident, attribution: Attribution, policy: Policy, now: datetime
) -> Decision:
    isolation = isolate(snapshot, incident, attribution, policy, now)
    return conclude(snapshot, incident, attribution, isolation, policy, now)


@anything
def test_a_decision_survives_storing_and_replaying(
    snapshot: Snapshot, incident: Incident, attribution: Attribution, policy: Policy, now: datetime
) -> None:
    """Every world has a decision, and its stored inputs give the same one again, bit for bit."""
    decision = _decide(snapshot, incident, attribution, policy, now)
    stored = encode(decision)
    assert decode(Decision, stored) == decision
    assert encode(decode(Decision, stored)) == stored
    replayed = _decide(
        decode(Snapshot, encode(snapshot)),
        decode(Incident, encode(incident)),
        decode(Attribution, encode(attribution)),
        decode(Policy, encode(policy)),
        now,
    )
    assert encode(replayed) == stored


@anything
def test_exclusions_stay_within_reach(
    snapshot: Snapshot, incident: Incident, attribution: Attribution, policy: Policy, now: datetime
) -> None:
    """Evidence reaches nodes of its own allocation only; beyond it there is what was excluded before, or by hand."""
    isolation = _decide(snapshot, incident, attribution, policy, now).isolation
    earlier = {node for past in snapshot.past for node in past.excluded_nodes} | set(excluded(snapshot.orders))
    assert set(isolation.exclude_for_job).isdisjoint(spared(snapshot.orders))
    allocation = set(snapshot.attempt.nodes or ())
    if not (snapshot.offline and snapshot.attempt.nodes is None):
        assert set(isolation.exclude_for_job) <= allocation | earlier
        assert set(isolation.isolate_for_cluster) <= allocation
    assert set(isolation.suspects) <= allocation
    assert set(isolation.exclude_for_job).isdisjoint(snapshot.user_excluded)
    assert len(set(isolation.exclude_for_job)) == len(isolation.exclude_for_job) <= policy.exclusions_per_job_max
    new = set(isolation.exclude_for_job) - earlier
    assert len(new) <= policy.exclusions_per_incident_max
    assert all(item.reason for item in isolation.withheld)
    if incident.kind is not IncidentKind.NONE:
        left_out = set(attribution.nodes) - set(snapshot.user_excluded) - set(isolation.exclude_for_job)
        assert left_out <= {item.node for item in isolation.withheld}


@anything
def test_exclusions_leave_the_job_able_to_start(
    snapshot: Snapshot, incident: Incident, attribution: Attribution, policy: Policy, now: datetime
) -> None:
    """As far as the scheduler says how many nodes fit, ours never take one that the job needs."""
    isolation = _decide(snapshot, incident, attribution, policy, now).isolation
    needed = snapshot.job.nodes_requested or len(snapshot.attempt.nodes or ())
    if snapshot.nodes_fitting is None or not needed:
        return
    shown = (*snapshot.nodes, *snapshot.other_nodes)
    out = {NodeState.NOT_RESPONDING, NodeState.DOWN, NodeState.DRAINING, NodeState.DRAINED}
    gone = {fact.name for fact in shown if fact.state in out}  # never among those that fit
    ours = set(isolation.exclude_for_job) - gone
    users = set(snapshot.user_excluded) - gone
    assert not ours or snapshot.nodes_fitting - len(ours | users) >= needed


@anything
def test_untrusted_evidence_never_isolates(
    snapshot: Snapshot, incident: Incident, attribution: Attribution, policy: Policy, now: datetime
) -> None:
    """What reaches other users' jobs rests on trusted evidence, is switched on, and is bounded."""
    isolated = set(_decide(snapshot, incident, attribution, policy, now).isolation.isolate_for_cluster)
    by_implication = {item.node for item in attribution.implications if item.trust.trusted}
    named = {item.node for item in attribution.implications}
    overall = set(attribution.nodes) - named if attribution.trusted else set()
    assert isolated <= by_implication | overall
    assert len(isolated) <= (policy.isolations_max if policy.isolate else 0)
    share = (snapshot.nodes_fitting or 0) * policy.isolations_percent_max / 100
    assert len(isolated) <= share


@anything
def test_people_are_not_overruled(
    snapshot: Snapshot, incident: Incident, attribution: Attribution, policy: Policy, now: datetime
) -> None:
    """A cancel stays a cancel, a hold stays a hold, and a requeue by others is neither repeated nor stopped."""
    decision = _decide(snapshot, incident, attribution, policy, now)
    after = snapshot.successor
    cancelled = snapshot.attempt.state is AttemptState.CANCELLED or (
        after is not None and after.state is AttemptState.CANCELLED
    )
    if snapshot.stop is not None or (after is not None and after.stopped):
        cancelled = False  # that may have been ourselves: then what was decided stays
    kept = snapshot.stop is not None and snapshot.stop.attempt == snapshot.attempt.number
    if snapshot.stop is not None and snapshot.stop.unreported and after is None:
        # By it, or by somebody else.
        assert snapshot.attempt.state is not AttemptState.CANCELLED or decision.action is Action.NONE
    if kept and decision.action is Action.STOP:
        return
    if cancelled or snapshot.attempt.held or (after is not None and after.held):
        assert decision.action is Action.NONE
    if after is not None and (decision.reason is not Reason.OPERATOR or not after.by_us):
        assert decision.action is not Action.STOP
    if any(order.kind is OrderKind.VETO for order in snapshot.orders):
        assert decision.action is Action.NONE
    if snapshot.attempt.state is AttemptState.COMPLETED:
        assert decision.action is Action.NONE


@anything
def test_nothing_is_concluded_from_what_is_not_visible(
    snapshot: Snapshot, incident: Incident, attribution: Attribution, policy: Policy, now: datetime
) -> None:
    """While an attempt is ending, nobody knows whether it was cancelled: no new restart and no stop."""
    decision = _decide(snapshot, incident, attribution, policy, now)
    unclear = snapshot.attempt.state in {AttemptState.COMPLETING, AttemptState.OTHER}
    if (
        unclear
        and not snapshot.offline
        and snapshot.successor is None
        and not (snapshot.advice and snapshot.advice.applied)
        and snapshot.stop is None
    ):
        assert decision.action is Action.NONE
    if snapshot.job.batch is False and snapshot.successor is None and snapshot.advice is None:
        assert decision.action is not Action.RESTART
        assert decision.action is Action.NONE or decision.reason is Reason.OPERATOR


@anything
def test_a_live_attempt_is_ended_only_when_that_is_said(
    snapshot: Snapshot, incident: Incident, attribution: Attribution, policy: Policy, now: datetime
) -> None:
    """A running attempt is acted on only with the flag set, and the flag is never set for anything else."""
    decision = _decide(snapshot, incident, attribution, policy, now)
    if decision.may_end_live_attempt:
        assert snapshot.attempt.state is AttemptState.RUNNING
        assert decision.action is not Action.NONE
    already = snapshot.advice is not None and snapshot.advice.applied
    if snapshot.attempt.state.live and snapshot.successor is None and not snapshot.offline and not already:
        assert decision.action is Action.NONE or decision.may_end_live_attempt


@anything
def test_times_are_in_order(
    snapshot: Snapshot, incident: Incident, attribution: Attribution, policy: Policy, now: datetime
) -> None:
    """A stop has settled, a lease never outlives the deadline, and only a restart leases or delays."""
    decision = _decide(snapshot, incident, attribution, policy, now)
    if decision.action is Action.STOP:
        assert decision.settled
    if not decision.settled and decision.settles_at is not None:
        assert decision.settles_at > now
    if not decision.settled and decision.settles_at is None:
        assert decision.reason is Reason.OUTCOME_NOT_VISIBLE
    if decision.reason is Reason.OUTCOME_NOT_VISIBLE:
        assert not decision.settled
    if decision.start_not_before is not None:
        assert decision.decision_deadline is not None
        assert now < decision.start_not_before <= decision.decision_deadline
        assert not decision.settled
    if decision.settles_at is not None and decision.decision_deadline is not None:
        assert decision.settles_at <= decision.decision_deadline
    if decision.action is not Action.RESTART:
        assert decision.start_not_before is None
        assert decision.delay_until is None
        assert not decision.free


@anything
def test_time_alone_settles_a_decision(
    snapshot: Snapshot, incident: Incident, attribution: Attribution, policy: Policy, now: datetime
) -> None:
    """Nothing waits for ever: once the settle time has passed, the same facts give a final decision."""
    decision = _decide(snapshot, incident, attribution, policy, now)
    if decision.settles_at is not None and not decision.settled:
        later = _decide(snapshot, incident, attribution, policy, decision.settles_at)
        assert later.settled
        assert later.reason is not Reason.OUTCOME_NOT_VISIBLE
        much_later = _decide(snapshot, incident, attribution, policy, decision.settles_at + timedelta(seconds=1))
        assert (much_later.action, much_later.start_not_before) == (later.action, None)
