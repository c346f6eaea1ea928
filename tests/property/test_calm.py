"""What is not decided again would have been decided alike."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from hypothesis import assume, event, given
from hypothesis import strategies as st

from advisor.core.calm import calm_until, goes_on
from advisor.core.course import Phase, Throughput
from advisor.core.decide import decide
from advisor.core.model import Progress, Snapshot, SourceReport
from advisor.core.policy import Policy
from advisor.core.words import AttemptState, Role, Trust
from advisor.rules.loader import load_rules
from tests.property.strategies import moments, policies, progresses, snapshots

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


@given(snapshots, progresses, policies, moments, st.integers(1, 50), st.floats(0, 1))
def test_a_calm_attempt_that_goes_on_is_decided_alike(
    snapshot: Snapshot, other: Progress, policy: Policy, now: datetime, steps: int, share: float
) -> None:
    """Whatever else further steps say, until the next one is due: what was decided before them is decided by them."""
    last_step = snapshot.progress.last_step or 5
    pace = replace(snapshot.progress.pace, phase=Phase.STEP)
    before = replace(
        snapshot.progress, last_step=last_step, last_at=now, last_line_at=now, pace=pace, finished=False, broken=False
    )
    world = replace(_running(snapshot), progress=before)
    decision = decide(world, RULES, policy, now)
    until = calm_until(world, decision, policy)
    assume(until is not None and until > now)
    assert until is not None
    moment = now + min(until - now, timedelta(hours=4)) * share
    after = replace(
        before,
        last_step=last_step + steps,
        last_at=moment,
        last_line_at=moment,
        interval_seconds=other.interval_seconds,
        cleared_at=other.cleared_at,
        cleared_lines=other.cleared_lines,
    )
    assume(goes_on(before, after))
    event("goes on")
    then = decide(replace(world, progress=after), RULES, policy, moment)
    assert (then.action, then.reason, then.incident.kind, then.attribution.category, then.may_end_live_attempt) == (
        decision.action,
        decision.reason,
        decision.incident.kind,
        decision.attribution.category,
        decision.may_end_live_attempt,
    )


@given(progresses, progresses)
def test_what_says_more_than_a_step_is_decided_at_once(before: Progress, other: Progress) -> None:
    step = (before.last_step or 0) + 1
    further = replace(before, last_step=step, pace=replace(before.pace, phase=Phase.STEP))
    before = replace(before, last_step=step - 1, pace=replace(before.pace, phase=Phase.STEP))
    assert goes_on(before, further)
    assert not goes_on(further, before)
    assert not goes_on(before, before)
    for more in (
        replace(further, finished=not before.finished),
        replace(further, in_job_restarts=before.in_job_restarts + 1),
        replace(further, checkpoint_step=(before.checkpoint_step or 0) + 1),
        replace(further, saving=not before.saving),
        replace(further, broken=not before.broken),
        replace(further, pace=replace(further.pace, phase=Phase.CHECKPOINT)),
        replace(further, pace=replace(further.pace, unusual_at=datetime.max.replace(tzinfo=UTC))),
        replace(further, throughput=Throughput(sustained=True)),
        replace(further, numbers=replace(further.numbers, not_finite=1)),
        replace(further, numbers=replace(further.numbers, far=1)),
    ):
        assert more == before or not goes_on(before, more)
