"""What is not decided again would have been decided alike."""

from dataclasses import replace
from datetime import datetime, timedelta

from hypothesis import assume, event, given
from hypothesis import strategies as st

from advisor.core.calm import calm_until
from advisor.core.course import Phase
from advisor.core.decide import decide
from advisor.core.model import Snapshot, SourceReport
from advisor.core.policy import Policy
from advisor.core.words import AttemptState, Role, Trust
from advisor.rules.loader import load_rules
from tests.property.strategies import moments, policies, snapshots

RULES = load_rules()


def _running(snapshot: Snapshot) -> Snapshot:
    """The world as it mostly is: the attempt runs, and nobody has said anything."""
    attempt = replace(snapshot.attempt, state=AttemptState.RUNNING, ended_at=None, held=False)
    read = (SourceReport(source="log", trust=Trust.LOG),)
    world = replace(snapshot, attempt=attempt, successor=None, advice=None, orders=(), offline=False, sources=read)
    return replace(world, signals=tuple(s for s in world.signals if s.role is Role.BENIGN), nodes=())


@given(st.booleans(), snapshots, policies, moments, st.floats(0, 1))
def test_a_calm_attempt_is_decided_alike_until_it_is_due(
    mostly: bool, snapshot: Snapshot, policy: Policy, now: datetime, share: float
) -> None:
    """Whatever the facts are: where a decision is said to hold until a moment, every moment before gives it again."""
    world = _running(snapshot) if mostly else snapshot
    decision = decide(world, RULES, policy, now)
    until = calm_until(world, decision, policy)
    assume(until is not None and until > now)
    assert until is not None
    event("calm")
    span = min(until - now, timedelta(days=40))
    last = span - timedelta(microseconds=1)
    for later in (now + min(span * share, last), now + last):
        assert decide(world, RULES, policy, later) == decision


@given(snapshots, policies, moments)
def test_a_running_attempt_that_falls_silent_is_due(snapshot: Snapshot, policy: Policy, now: datetime) -> None:
    """At the moment that a calm attempt is due it is decided again, and a hang is then seen where its log is read."""
    world = replace(_running(snapshot), past=())
    decision = decide(world, RULES, policy, now)
    until = calm_until(world, decision, policy)
    assume(until is not None)
    assert until is not None
    pace = world.progress.pace
    announced = pace.phase is Phase.START and pace.sign_at is not None
    steps_expected = world.progress.last_at is not None or announced
    started = world.progress.last_at or world.attempt.started_at
    if started is None or not steps_expected:
        assert until.year == 9999
    else:
        longest = max(policy.hang_seconds, policy.hang_startup_seconds, policy.hang_phase_seconds)
        known = [started, world.progress.news_at or started, pace.sign_at or started]
        assert until - max(known) <= timedelta(seconds=40 * longest)
