"""A job's progress as a picture: steps over time, across attempts, with what was done about its failures.

Only what is known is drawn: the first and the newest step of an attempt, and what decisions saw between. The line
between two known points is straight, and the page says so.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise

from advisor.core.reliability import steps_lost
from advisor.service.dashboard.views.shown import number_text, plural, sentence, span_text, time_of
from advisor.v1 import audit_pb2, common_pb2

WIDTH, HEIGHT = 960.0, 300.0
LEFT, RIGHT, BOTTOM = 64.0, 16.0, 34.0
MARK_ROW = 17.0  # height of the row of marks above the plot
MARK_WIDTH = 17.0
TOP = MARK_ROW + 20
TICKS_WANTED = 6
_STEPS_OF_TIME = tuple(
    timedelta(seconds=seconds)
    for seconds in (
        *(1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 10_800, 21_600, 43_200),
        *(86_400, 172_800, 604_800, 2_592_000, 7_776_000),
    )
)

# What is marked, in the order in which it happens: (milestone, letter, words).
MARKS = (
    (common_pb2.MILESTONE_KIND_DETECTED, "D", "detected"),
    (common_pb2.MILESTONE_KIND_ADVISED, "A", "advised"),
    (common_pb2.MILESTONE_KIND_REQUEUE_ACCEPTED, "Q", "requeue accepted"),
    (common_pb2.MILESTONE_KIND_RUNNING, "R", "running again"),
    (common_pb2.MILESTONE_KIND_FIRST_PROGRESS, "P", "first progress"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """How far one attempt came: known (moment, step) points, oldest first."""

    number: int
    started_at: datetime | None
    ended_at: datetime | None
    points: tuple[tuple[datetime, int], ...]
    checkpoints: tuple[int, ...]
    marks: tuple[tuple[datetime, str, str], ...]  # moment, letter, words
    resumed: int | None = None  # what its first step followed, where that is known


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    at: float
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Dot:
    x: float
    y: float
    title: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """`x`: its moment; `seat`: where its letter stands."""

    x: float
    seat: float
    y: float
    letter: str
    title: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    x: float
    y: float
    width: float
    height: float
    title: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One attempt's line. `points` is what SVG's polyline takes."""

    number: int
    points: str
    dots: tuple[Dot, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """Geometry in the units of the view box, and the same in words."""

    width: float
    height: float
    top: float
    left: float
    right: float
    bottom: float
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    attempts: tuple[Box, ...]
    lines: tuple[Line, ...]
    checkpoints: tuple[Dot, ...]
    lost: tuple[Box, ...]
    marks: tuple[Mark, ...]
    words: tuple[str, ...]  # one sentence per attempt


def course_of(attempt: audit_pb2.Attempt, decided: Iterable[tuple[datetime, int]] = ()) -> Course:
    """From the contract's message; `decided`: steps that decisions about this attempt saw."""
    first_at, last_at = time_of(attempt, "first_step_at"), time_of(attempt, "last_step_at")
    known = dict(decided)
    if first_at is None or first_at == last_at:  # its lines tell no times: the first step came after its start
        first_at = time_of(attempt, "started_at")
    if first_at is not None and attempt.HasField("first_step"):
        known[first_at] = attempt.first_step
    if last_at is not None and attempt.HasField("last_step"):
        known[last_at] = attempt.last_step
    reached = {item.kind: item.at.ToDatetime(UTC) for item in attempt.milestones}
    return Course(
        number=attempt.attempt.attempt,
        started_at=time_of(attempt, "started_at"),
        ended_at=time_of(attempt, "ended_at"),
        points=_rising(sorted(known.items())),
        checkpoints=tuple(attempt.checkpoint_steps)
        or ((attempt.checkpoint_step,) if attempt.HasField("checkpoint_step") else ()),
        marks=tuple((reached[kind], letter, words) for kind, letter, words in MARKS if kind in reached),
        resumed=attempt.resumed_step if attempt.HasField("resumed_step") else None,
    )


def _rising(points: Iterable[tuple[datetime, int]]) -> tuple[tuple[datetime, int], ...]:
    """Steps do not fall within an attempt: what does was read before a restart inside the job, and is left out."""
    kept: list[tuple[datetime, int]] = []
    for at, step in points:
        while kept and kept[-1][1] > step:
            kept.pop()
        kept.append((at, step))
    return tuple(kept)


def curve_of(courses: Sequence[Course], now: datetime) -> Curve | None:
    """None where no attempt has a start to draw from."""
    moments = [
        moment
        for course in courses
        for moment in (course.started_at, course.ended_at, *(at for at, _, _ in course.marks), *_times(course))
        if moment is not None
    ]
    running = any(course.started_at is not None and course.ended_at is None for course in courses)
    if running:
        moments.append(now)
    if len(moments) < 2 or min(moments) == max(moments):
        return None
    steps = [step for course in courses for _, step in course.points]
    low, high = (min(steps), max(steps)) if steps else (0, 1)
    scale = _Scale(first=min(moments), last=max(moments), low=low, high=max(high, low + 1), top=TOP)
    return Curve(
        width=WIDTH,
        height=HEIGHT,
        top=scale.top,
        left=LEFT,
        right=WIDTH - RIGHT,
        bottom=HEIGHT - BOTTOM,
        x_ticks=_time_ticks(scale),
        y_ticks=_step_ticks(scale) if steps else (),
        attempts=tuple(_attempt_box(course, scale, now) for course in courses if course.started_at is not None),
        lines=tuple(_line(course, scale) for course in courses if course.points),
        checkpoints=tuple(_checkpoints(courses, scale)),
        lost=tuple(_lost_boxes(courses, scale)),
        marks=_marks(courses, scale),
        words=tuple(
            _words(course, courses[at + 1] if at + 1 < len(courses) else None, now) for at, course in enumerate(courses)
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scale:
    first: datetime
    last: datetime
    low: int
    high: int
    top: float

    def x(self, moment: datetime) -> float:
        share = (moment - self.first) / (self.last - self.first)
        return round(LEFT + (WIDTH - LEFT - RIGHT) * min(max(share, 0.0), 1.0), 1)

    def y(self, step: float) -> float:
        share = (step - self.low) / (self.high - self.low)
        return round(HEIGHT - BOTTOM - 8 - (HEIGHT - BOTTOM - 8 - self.top - 8) * share, 1)


def _times(course: Course) -> tuple[datetime, ...]:
    return tuple(at for at, _ in course.points)


def _marks(courses: Sequence[Course], scale: "_Scale") -> tuple[Mark, ...]:
    """Letters in one row above the plot, pushed apart where their moments are close."""
    marks = sorted(mark for course in courses for mark in course.marks)
    seats: list[float] = []
    for at, _, _ in marks:
        seats.append(max(scale.x(at), seats[-1] + MARK_WIDTH if seats else LEFT))
    most = WIDTH - RIGHT
    for place in reversed(range(len(seats))):
        seats[place] = max(min(seats[place], most), LEFT)
        most = seats[place] - MARK_WIDTH
    return tuple(
        Mark(x=scale.x(at), seat=round(seat, 1), y=MARK_ROW / 2 + 2, letter=letter, title=f"{words} {at:%H:%M:%S} UTC")
        for (at, letter, words), seat in zip(marks, seats, strict=True)
    )


def _time_ticks(scale: _Scale) -> tuple[Tick, ...]:
    span = scale.last - scale.first
    apart = next((step for step in _STEPS_OF_TIME if span / step <= TICKS_WANTED), _STEPS_OF_TIME[-1])
    since = datetime(1970, 1, 1, tzinfo=UTC)
    moment = since + apart * -((since - scale.first) // apart)
    form = "%H:%M:%S" if apart < timedelta(minutes=1) else "%H:%M" if apart < timedelta(days=1) else "%b %d"
    ticks: list[Tick] = []
    before: datetime | None = None
    while moment <= scale.last and len(ticks) <= 2 * TICKS_WANTED:
        new_day = before is not None and before.date() != moment.date() and apart < timedelta(days=1)
        ticks.append(Tick(at=scale.x(moment), text=f"{moment:%b %d} {moment:%H:%M}" if new_day else f"{moment:{form}}"))
        before = moment
        moment += apart
    return tuple(ticks)


def _step_ticks(scale: _Scale) -> tuple[Tick, ...]:
    span = scale.high - scale.low
    size = 10 ** (len(str(span)) - 1)
    apart = next(max(int(size * part), 1) for part in (0.2, 0.5, 1, 2, 5) if span / max(size * part, 1) <= 5)
    first = -(-scale.low // apart) * apart
    return tuple(Tick(at=scale.y(step), text=number_text(step)) for step in range(first, scale.high + 1, apart))


def _attempt_box(course: Course, scale: _Scale, now: datetime) -> Box:
    start = course.started_at or scale.first
    x = scale.x(start)
    end = scale.x(course.ended_at or max(now, start))
    return Box(
        x=x,
        y=scale.top,
        width=round(max(end - x, 1.0), 1),
        height=round(HEIGHT - BOTTOM - scale.top, 1),
        title=f"attempt {course.number}",
    )


def _line(course: Course, scale: _Scale) -> Line:
    dots = tuple(
        Dot(x=scale.x(at), y=scale.y(step), title=f"step {number_text(step)} at {at:%H:%M:%S} UTC")
        for at, step in course.points
    )
    return Line(number=course.number, points=" ".join(f"{dot.x},{dot.y}" for dot in dots), dots=dots)


def _when(course: Course, step: int) -> datetime | None:
    """When the attempt was at this step, on its line; None where the line does not reach it."""
    for (before, low), (after, high) in pairwise(course.points):
        if low <= step <= high:
            return before + (after - before) * ((step - low) / (high - low) if high > low else 0.0)
    return None


def _checkpoints(courses: Sequence[Course], scale: _Scale) -> Iterable[Dot]:
    for course in courses:
        for step in course.checkpoints:
            at = _when(course, step)
            if at is not None:
                yield Dot(x=scale.x(at), y=scale.y(step), title=f"checkpoint at step {number_text(step)}")


def _resumed(course: Course) -> int:
    """What its first step followed."""
    return course.points[0][1] - 1 if course.resumed is None else course.resumed


def _lost(course: Course, following: Course | None) -> int | None:
    """Steps that the next attempt had to do again."""
    if following is None or not course.points or not following.points:
        return None
    return steps_lost(course.points[-1][1], following.points[0][1], following.resumed)


def _lost_boxes(courses: Sequence[Course], scale: _Scale) -> Iterable[Box]:
    for course, following in pairwise(courses):
        lost = _lost(course, following)
        if not lost:
            continue
        resumed = max(_resumed(following), scale.low)
        since = _when(course, resumed) or course.points[0][0]
        x, end = scale.x(since), scale.x(course.points[-1][0])
        y, foot = scale.y(course.points[-1][1]), scale.y(resumed)
        yield Box(
            x=x,
            y=y,
            width=round(max(end - x, 2.0), 1),
            height=round(max(foot - y, 2.0), 1),
            title=f"{plural(lost, 'step')} lost with attempt {course.number}",
        )


def _words(course: Course, following: Course | None, now: datetime) -> str:
    """What the picture shows of one attempt."""
    parts = []
    if course.points:
        first, last = course.points[0][1], course.points[-1][1]
        parts.append(
            f"steps {number_text(first)} to {number_text(last)}" if last > first else f"step {number_text(last)}"
        )
    else:
        parts.append("no step was seen")
    if course.started_at is not None:
        ran = span_text((course.ended_at or now) - course.started_at)
        parts.append(f"ran for {ran}" if course.ended_at is not None else f"runs for {ran}")
    else:
        parts.append("has not started")
    lost = _lost(course, following)
    if lost and following is not None:
        since, until = _when(course, _resumed(following)), course.points[-1][0]
        took = f", {span_text(until - since)} of work" if since is not None else ""
        parts.append(f"lost {plural(lost, 'step')}{took}")
    elif lost == 0:
        parts.append("lost no step")
    return sentence(f"attempt {course.number}: {', '.join(parts)}.")
