"""A clock that is set makes nobody late, and hides no hang for longer than its limit."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from advisor.core import hang
from advisor.core.course import Pace, Phase
from advisor.core.model import Attempt, Job, PastAttempt, Progress, Snapshot
from advisor.core.policy import Policy
from advisor.core.steady import since_set
from advisor.core.words import AttemptState, Category

T0 = datetime(2026, 11, 1, tzinfo=UTC)
POLICY = Policy()
BASE = Snapshot(
    job=Job(key="j", cluster="c", job_id="1", user="u"),
    attempt=Attempt(number=0, state=AttemptState.RUNNING, started_at=T0),
)


SEEN = PastAttempt(number=0, category=Category.UNKNOWN, fingerprint="", reason=None, action=None, last_step=40)


def at(seconds: float) -> datetime:
    return T0 + timedelta(seconds=seconds)


def test_a_start_is_not_late_for_a_step_that_is_longer_than_any_start() -> None:
    """Nobody knows then how long ago it began."""
    printed = Progress(news_at=at(500.0))
    set_at = at(600.0 + 86_400.0)
    snapshot = replace(BASE, progress=since_set(printed, set_at, set_at), past=(SEEN,))
    due = hang.expected(snapshot, POLICY)
    assert due is not None
    assert due.ends_at == set_at + timedelta(seconds=POLICY.hang_startup_seconds)


@st.composite
def silent(draw: st.DrawFn) -> Progress:
    """Steps or an announced start, the newest of them so many seconds after the beginning."""
    newest = draw(st.floats(20.0, 5000.0))
    pace = Pace(
        gaps=tuple(draw(st.lists(st.floats(0.5, 30.0), max_size=32))),
        began_at=at(10.0),
        sign_at=at(newest),
        phase=draw(st.sampled_from([Phase.STEP, Phase.CHECKPOINT, Phase.START])),
    )
    if draw(st.booleans()):
        return Progress(first_step=1, last_step=9, first_at=at(10.0), last_at=at(newest), pace=pace)
    return Progress(pace=replace(pace, phase=Phase.START, began_at=None), news_at=at(newest))


@given(
    progress=silent(),
    waited=st.floats(0.0, 50.0),
    step=st.floats(-90_000.0, 90_000.0),
    past=st.sampled_from([(), (SEEN,)]),
)
def test_nobody_is_late_for_a_step_and_every_hang_is_found(
    progress: Progress, waited: float, step: float, past: tuple[PastAttempt, ...]
) -> None:
    """Whoever was not late before the clock was set is not late just after, and is when as long again has passed."""
    newest = progress.last_at or progress.news_at
    assert newest is not None
    set_at = newest + timedelta(seconds=waited + step)
    before = hang.expected(replace(BASE, progress=progress, past=past), POLICY)
    assert before is not None
    limit = before.ends_at - newest

    def ends_at(now: datetime) -> datetime:
        # The scheduler tells the start, by the clock as it was then.
        snapshot = replace(BASE, progress=since_set(progress, set_at, now), past=past)
        due = hang.expected(snapshot, POLICY)
        assert due is not None
        return due.ends_at

    soon = set_at + timedelta(seconds=1)
    assert ends_at(soon) > soon
    patience = 2 * limit + timedelta(seconds=2 * POLICY.hang_startup_seconds + 2 * POLICY.hang_phase_seconds)
    assert any(ends_at(now) <= now for now in (set_at + patience, set_at + 2 * patience))


@given(progress=silent())
def test_a_clock_that_nobody_sets_changes_nothing(progress: Progress) -> None:
    """What is known stays as it is."""
    assert since_set(progress, None, at(9999.0)) is progress
