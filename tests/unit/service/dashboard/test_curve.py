"""The progress curve: what is drawn of a job's attempts, and what it says in words."""

from datetime import UTC, datetime, timedelta
from itertools import pairwise

from advisor.service.dashboard.views.curve import LEFT, MARK_WIDTH, RIGHT, WIDTH, Course, Curve, course_of, curve_of
from advisor.v1 import audit_pb2, common_pb2

T0 = datetime(2026, 11, 29, 0, 0, tzinfo=UTC)
NOW = T0 + timedelta(hours=3)


def at(minutes: float) -> datetime:
    return T0 + timedelta(minutes=minutes)


def course(number: int, *points: tuple[float, int], start: float, end: float | None = None, **fields: object) -> Course:
    values = {"checkpoints": (), "marks": ()} | fields
    return Course(
        number=number,
        started_at=at(start),
        ended_at=at(end) if end is not None else None,
        points=tuple((at(minute), step) for minute, step in points),
        **values,  # type: ignore[arg-type] # of a test
    )


def drawn(*courses: Course) -> Curve:
    curve = curve_of(courses, NOW)
    assert curve is not None
    return curve


def test_lost_work_is_drawn_and_told() -> None:
    """Steps that the next attempt does again are a box between the two lines, and a sentence with their time."""
    curve = drawn(
        course(0, (0, 0), (100, 1000), start=0, end=101, checkpoints=(500, 900)),
        course(1, (110, 950), (170, 1500), start=105, resumed=900),
    )
    (lost,) = curve.lost
    assert lost.title == "100 steps lost with attempt 0"
    assert lost.width > 0
    assert lost.height > 0
    assert curve.words[0] == "Attempt 0: steps 0 to 1\u202f000, ran for 101 min, lost 100 steps, 10 min of work."
    assert curve.words[1].startswith("Attempt 1: steps 950 to 1\u202f500, runs for ")
    assert [dot.title for dot in curve.checkpoints] == ["checkpoint at step 500", "checkpoint at step 900"]


def test_an_attempt_that_lost_nothing_says_so() -> None:
    """Resumed where it failed: no box, and the words say that no step was lost."""
    curve = drawn(course(0, (0, 0), (60, 600), start=0, end=61), course(1, (70, 601), (90, 800), start=65))
    assert curve.lost == ()
    assert "lost no step" in curve.words[0]


def test_what_was_lost_is_drawn_within_the_picture() -> None:
    """A job that begins at step 0 anew follows none: no box below the axis, and the words say what is gone."""
    curve = drawn(
        course(0, (0, 0), (100, 1000), start=0, end=101), course(1, (110, 0), (170, 50), start=105, resumed=-1)
    )
    (lost,) = curve.lost
    assert lost.y + lost.height <= curve.bottom
    assert "lost 1\u202f001 steps" in curve.words[0]


def test_marks_stand_apart_and_inside() -> None:
    """Five moments within seconds get seats that do not touch, in order, inside the picture."""
    marks = tuple((at(100 + second / 60), letter, letter) for second, letter in enumerate("DAQRP"))
    curve = drawn(course(0, (0, 0), (100, 1000), start=0, end=100, marks=marks))
    seats = [mark.seat for mark in curve.marks]
    assert [mark.letter for mark in curve.marks] == list("DAQRP")
    assert all(later - earlier >= MARK_WIDTH - 0.2 for earlier, later in pairwise(seats))
    assert seats[0] >= LEFT
    assert seats[-1] <= WIDTH - RIGHT


def test_everything_lies_inside_the_picture() -> None:
    """Lines, ticks and boxes stay within the plot, also for attempts without steps and for one step alone."""
    curve = drawn(
        course(0, start=0, end=5),
        course(1, (20, 7), start=10, end=30),
        course(2, (50, 7), (60, 8), start=40),
    )
    for line in curve.lines:
        for pair in line.points.split():
            x, y = (float(part) for part in pair.split(","))
            assert curve.left <= x <= curve.right
            assert curve.top <= y <= curve.bottom
    assert all(curve.left <= tick.at <= curve.right for tick in curve.x_ticks)
    assert all(curve.top <= tick.at <= curve.bottom for tick in curve.y_ticks)
    assert 2 <= len(curve.x_ticks) <= 12
    assert "no step was seen" in curve.words[0]


def test_nothing_to_draw_is_nothing() -> None:
    """A job that has not started has no curve."""
    waiting = Course(number=0, started_at=None, ended_at=None, points=(), checkpoints=(), marks=())
    assert curve_of((waiting,), NOW) is None
    assert curve_of((), NOW) is None


def test_steps_that_fall_are_of_before_a_restart_inside() -> None:
    """A newer known step that is lower than an older one takes its place: the line never falls."""
    attempt = audit_pb2.Attempt(
        attempt=common_pb2.AttemptRef(job_id="7"), first_step=0, last_step=40, checkpoint_steps=[20], resumed_step=-1
    )
    attempt.first_step_at.FromDatetime(at(0))
    attempt.last_step_at.FromDatetime(at(60))
    made = course_of(attempt, [(at(30), 90), (at(20), 30)])
    assert [step for _, step in made.points] == [0, 30, 40]
    assert made.resumed == -1


def test_lines_without_times_begin_at_the_attempts_start() -> None:
    """Where all steps were seen at one moment, the first one is drawn at the start: not one dot for hours of work."""
    attempt = audit_pb2.Attempt(attempt=common_pb2.AttemptRef(job_id="7"), first_step=1, last_step=39)
    for field in ("first_step_at", "last_step_at"):
        getattr(attempt, field).FromDatetime(at(60))
    attempt.started_at.FromDatetime(at(2))
    made = course_of(attempt)
    assert made.points == ((at(2), 1), (at(60), 39))
    assert drawn(made).words == ("Attempt 0: steps 1 to 39, runs for 2 h 58 min.",)
