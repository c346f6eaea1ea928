"""Silence goes on through steps of the clock, as far as a process has lived through it, and is never more than was."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from advisor.clock import ClockSet
from advisor.core import hang
from advisor.core.course import Pace, Phase
from advisor.core.model import Attempt, Job, PastAttempt, Progress, Snapshot
from advisor.core.policy import Policy
from advisor.core.words import AttemptState, Category
from advisor.lasting import Lasting
from advisor.store.records import AttemptKey

T0 = datetime(2026, 11, 1, tzinfo=UTC)
KEY = AttemptKey(job_key="j", number=0)
POLICY = Policy()
SEEN = PastAttempt(number=0, category=Category.UNKNOWN, fingerprint="", reason=None, action=None, last_step=40)
BASE = Snapshot(
    job=Job(key="j", cluster="c", job_id="1", user="u"),
    attempt=Attempt(number=0, state=AttemptState.RUNNING, started_at=T0 - timedelta(days=9)),
)
TICK = 20.0  # from one tick's end to the next one's
TOOK, READ = 10.0, 5.0  # before its end a tick began, and read

Step = tuple[float, float]  # when, in true seconds, and by how much


class World:
    """One process that ticks, whose clock is set now and then."""

    def __init__(self, steps: Sequence[Step], since: float = 0.0) -> None:
        self._steps = sorted(steps)
        self._since = since  # when the process began
        self.lasting = Lasting()
        self.shown = Progress()

    def clock(self, true: float) -> ClockSet | None:
        past = [when for when, _ in self._steps if self._since <= when <= true]
        return ClockSet(at=self.now(past[-1]), counted=past[-1]) if past else None

    def now(self, true: float) -> datetime:
        return T0 + timedelta(seconds=true + sum(by for when, by in self._steps if when <= true))

    def tick(self, true: float, progress: Progress, base: Snapshot = BASE) -> bool:
        """Whether it is taken for a hang, after a tick that has read what `progress` says."""
        self.shown = self.lasting.steady(
            KEY,
            progress,
            started=base.attempt.started_at,
            now=self.now(true),
            began=true - TOOK,
            counted=true,
            clock=self.clock(true),
        )
        due = hang.expected(replace(base, progress=self.shown), POLICY)
        return due is not None and due.at <= self.now(true)


@st.composite
def lives(draw: st.DrawFn) -> list[tuple[int, Progress]]:
    """What an attempt shows, by the tick that reads it: steps, then a phase that it may announce, then silence."""
    ticks = sorted(draw(st.lists(st.integers(1, 150), min_size=1, max_size=6, unique=True)))
    gaps = tuple(draw(st.lists(st.floats(0.5, 30.0), max_size=32)))
    told: list[tuple[int, Progress]] = []
    for number, tick in enumerate(ticks, 1):
        pace = Pace(gaps=gaps, began_at=_read(ticks[0]), sign_at=_read(tick))
        told.append((tick, Progress(first_step=1, last_step=number, last_at=_read(tick), pace=pace)))
    phase = draw(st.sampled_from([Phase.STEP, Phase.CHECKPOINT, Phase.EVALUATION, Phase.START]))
    if phase is not Phase.STEP:
        announced, last = ticks[-1] + draw(st.integers(1, 50)), told[-1][1]
        pace = replace(last.pace, phase=phase, phase_since=_read(announced), sign_at=_read(announced))
        told.append((announced, replace(last, pace=pace)))
    return told


def _read(tick: int) -> datetime:
    """By a clock that nobody sets."""
    return T0 + timedelta(seconds=tick * TICK - READ)


def _by(world: World, progress: Progress) -> Progress:
    """As the process read it: each time by the clock of its moment."""

    def read(at: datetime | None) -> datetime | None:
        return None if at is None else world.now((at - T0).total_seconds())

    pace = progress.pace
    return replace(
        progress,
        last_at=read(progress.last_at),
        news_at=read(progress.news_at),
        pace=replace(
            pace, began_at=read(pace.began_at), sign_at=read(pace.sign_at), phase_since=read(pace.phase_since)
        ),
    )


_STEPS = st.lists(st.tuples(st.floats(0.0, 5000.0), st.floats(-90_000.0, 90_000.0)), max_size=40)


@given(told=lives(), steps=_STEPS)
@settings(deadline=None, max_examples=30)
def test_nothing_is_called_hung_that_would_not_be_if_nobody_set_the_clock(
    told: list[tuple[int, Progress]], steps: list[Step]
) -> None:
    """Whatever steps there are, however many, and in the middle of which ticks."""
    world, calm = World(steps), World([])
    for true, progress in _ticks(told):
        hung = world.tick(true, _by(world, progress))
        assert calm.tick(true, progress) or not hung, (true, told, steps)


@given(told=lives(), every=st.floats(30.0, 300.0), by=st.sampled_from([-3.0, 3.0, -600.0, 3600.0, -90_000.0]))
@settings(deadline=None, max_examples=30)
def test_a_hang_is_found_in_its_time_however_often_the_clock_is_set(
    told: list[tuple[int, Progress]], every: float, by: float
) -> None:
    """Steps that come more often than its limit hid it for ever. One may fall into the tick that reads the last sign:
    then the next one tells.
    """
    world, calm = World([(number * every, by) for number in range(1, 400)]), World([])
    for true, progress in _ticks(told):
        hung, fresh = world.tick(true, _by(world, progress)), true <= told[-1][0] * TICK + every + TICK
        assert hung or fresh or not calm.tick(true - every - TICK, progress), (true, told, every, by)


def test_what_was_read_in_the_tick_of_a_step_may_be_of_before_or_after_it() -> None:
    """A checkpoint that was announced just before the clock was set back is waited for as long as any."""
    last = Progress(first_step=1, last_step=1, last_at=_read(1), pace=Pace(began_at=_read(1), sign_at=_read(1)))
    saving = replace(last.pace, phase=Phase.CHECKPOINT, phase_since=_read(26), sign_at=_read(26))
    told, world = [(1, last), (26, replace(last, pace=saving))], World([(26 * TICK - 1.0, -700.0)])
    due = 26 * TICK + POLICY.hang_phase_seconds
    assert [true for true, progress in _ticks(told) if world.tick(true, _by(world, progress)) and true < due] == []


@st.composite
def starts(draw: st.DrawFn) -> list[tuple[int, Progress]]:
    """What an attempt shows that takes no step, by the tick that reads it: nothing, then lines, or that it starts."""
    told = [(draw(st.integers(1, 150)), Progress())]
    for tick in sorted(draw(st.lists(st.integers(told[0][0], 200), max_size=4, unique=True))):
        pace = told[-1][1].pace
        if draw(st.booleans()):
            pace = Pace(phase=Phase.START, phase_since=pace.phase_since or _read(tick), sign_at=_read(tick))
        told.append((tick, Progress(news_at=_read(tick), pace=pace)))
    return told


def _starting(world: World, tick: int) -> Snapshot:
    """Of a job that took steps before. The scheduler tells the start, by the clock as it was then."""
    started = world.now(tick * TICK - READ)
    return replace(BASE, attempt=replace(BASE.attempt, started_at=started), past=(SEEN,))


@given(told=starts(), steps=_STEPS)
@settings(deadline=None, max_examples=30)
def test_no_start_is_called_hung_that_would_not_be_if_nobody_set_the_clock(
    told: list[tuple[int, Progress]], steps: list[Step]
) -> None:
    """Before the first step as after it."""
    world, calm = World(steps), World([])
    started, truly = _starting(world, told[0][0]), _starting(calm, told[0][0])
    for true, progress in _ticks(told, ticks=600):
        hung = world.tick(true, _by(world, progress), started)
        assert calm.tick(true, progress, truly) or not hung, (true, told, steps)


@given(told=starts(), every=st.floats(30.0, 300.0), by=st.sampled_from([-3.0, 3.0, -600.0, 3600.0, -90_000.0]))
@settings(deadline=None, max_examples=30)
def test_a_hang_at_the_start_is_found_in_its_time_however_often_the_clock_is_set(
    told: list[tuple[int, Progress]], every: float, by: float
) -> None:
    """The scheduler's word for when it began was of another clock, and is no time of this one."""
    world, calm = World([(number * every, by) for number in range(1, 400)]), World([])
    started, truly = _starting(world, told[0][0]), _starting(calm, told[0][0])
    for true, progress in _ticks(told, ticks=600):
        hung, fresh = world.tick(true, _by(world, progress), started), true <= told[-1][0] * TICK + every + TICK
        assert hung or fresh or not calm.tick(true - every - TICK, progress, truly), (true, told, every, by)


@pytest.mark.parametrize("by", [-86_400.0, -3600.0, 3600.0])
@pytest.mark.parametrize("first", [1, 30, 31])
def test_one_step_of_the_clock_hides_no_hang_at_a_start(first: int, by: float) -> None:
    """Seen for the first time before it, in its tick, or after it with a start from before; whatever was printed."""
    world = World([(30 * TICK + 1.0, by)])
    base = _starting(world, min(first, 30))
    late = [
        true
        for true, progress in _ticks([(first, Progress())], ticks=300)
        if world.tick(true, _by(world, progress), base)
    ]
    assert late
    assert late[0] <= first * TICK + POLICY.hang_startup_seconds + 2 * TICK
    assert late == [true for true, _ in _ticks([(first, Progress())], ticks=300) if true >= late[0]]


def test_a_start_that_lies_ahead_is_counted_from_when_it_was_seen() -> None:
    """By a replica that came after the clock was set back, and knows nothing of that."""
    base = _starting(World([]), 20)
    world = World([(30 * TICK + 1.0, -3600.0)], since=31 * TICK)
    ticks = _ticks([(32, Progress())], ticks=300)
    late = [true for true, progress in ticks if world.tick(true, progress, base)]
    assert late
    assert late[0] == 32 * TICK + POLICY.hang_startup_seconds


def test_what_is_no_longer_watched_is_forgotten() -> None:
    """The others are counted on: what comes back was lived through by somebody else."""
    world = World([(30 * TICK + 1.0, 600.0)])
    last = Progress(first_step=1, last_step=1, last_at=_read(1), pace=Pace(began_at=_read(1), sign_at=_read(1)))
    for true, progress in _ticks([(1, last)], ticks=29):
        world.tick(true, _by(world, progress))
    world.lasting.keep({KEY})
    world.tick(31 * TICK, _by(world, last))
    counted = world.shown.last_at
    world.lasting.keep(set())
    world.tick(32 * TICK, _by(world, last))
    set_at = world.clock(32 * TICK)
    assert set_at is not None
    assert counted == set_at.at - timedelta(seconds=set_at.counted - TICK)
    assert world.shown.last_at == set_at.at


def _ticks(told: list[tuple[int, Progress]], ticks: int = 300) -> Iterator[tuple[float, Progress]]:
    """Every tick's end, with what was read by then."""
    for tick in range(told[0][0], ticks):
        yield tick * TICK, next(progress for at, progress in reversed(told) if at <= tick)
