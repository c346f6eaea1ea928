"""An old incarnation that still writes into the same file is no progress of the new one."""

from datetime import timedelta

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from advisor.core.progress import FileProgress
from advisor.core.scan import FileState
from tests.unit.core_detect.logs import NOON, context, scan

LOAD = "loading checkpoint from /ckpt at iteration {}"


def step(number: int) -> str:
    return f"iteration {number}/ 100000 | elapsed time per iteration (ms): 5000 | lm loss: 1.0 |"


def watched(lines: list[str], at_once: int = 1) -> FileProgress:
    """What a file shows that is read so many lines at a time."""
    state = FileState()
    for index in range(0, len(lines), at_once):
        text = "\n".join(lines[index : index + at_once]) + "\n"
        now = NOON + timedelta(seconds=5 * (index + at_once))
        state = scan(text, context(), state=state, final=False, seen_at=now).state
    return state.progress


def in_turn(ours: list[str], theirs: list[str]) -> list[str]:
    return [line for both in zip(ours, theirs, strict=True) for line in both]


@pytest.mark.parametrize("at_once", [1, 7, 50])
@pytest.mark.parametrize("stride", [1, 100])
def test_steps_of_an_orphan_are_not_ours(at_once: int, stride: int) -> None:
    """It prints first, then in turn with the new attempt, and goes on when that one hangs."""
    theirs = [step(50_000 + number * stride) for number in range(60)]
    ours = ["starting", LOAD.format(40_000), *(step(40_000 + number * stride) for number in range(1, 19))]
    progress = watched(in_turn(theirs[:20], ours) + theirs[20:], at_once)
    assert progress.last_step == 40_000 + 18 * stride
    assert progress.advance_line == 40
    assert progress.restarts == 1


@pytest.mark.parametrize("at_once", [1, 7, 50])
def test_an_orphan_that_ends_leaves_nothing_behind(at_once: int) -> None:
    """The new attempt passes the steps of the old one like any others."""
    theirs = [step(500 + number) for number in range(20)]
    ours = ["starting", LOAD.format(400), *(step(400 + number) for number in range(1, 181))]
    progress = watched(in_turn(theirs, ours[:20]) + ours[20:], at_once)
    assert progress.last_step == 580
    assert progress.advance_line == 20 + len(ours)
    assert progress.restarts == 1
    assert progress.orphan is None


RUNS = st.lists(
    st.one_of(
        st.integers(1, 12),  # steps that follow
        st.tuples(st.just("lost"), st.integers(2, 300)),  # lines that were not read
        st.tuples(st.just("load"), st.integers(0, 400)),  # a checkpoint is loaded: ours, or of a model to compare with
        st.tuples(st.just("back"), st.integers(0, 400)),  # the ranks begin anew there
        st.tuples(st.just("late"), st.integers(1, 3)),  # other ranks without labels print theirs later
    ),
    max_size=6,
)


@given(RUNS, st.sampled_from((1, 10)), st.sampled_from((1, 40)))
@example([12, ("back", 101), ("lost", 50)], 1, 1)
@settings(max_examples=20, deadline=None)
def test_nobodys_progress_is_left_aside_for_long(
    events: list[int | tuple[str, int]], stride: int, at_once: int
) -> None:
    """Without an orphan, whatever else happened: steps that go on are seen, or a sound attempt would be called hung."""
    lines, now = ["starting"], 100
    for event in events:
        match event:
            case int(count):
                lines += [step(now := now + stride) for _ in range(count)]
            case ("lost", count):
                now += count * stride
            case ("load", at):
                lines.append(LOAD.format(at * stride))
            case ("back", at):
                now = min(now, at * stride)
                lines += [LOAD.format(now), step(now := now + stride)]
            case (_, lag):
                for _ in range(4):
                    lines += [step(now := now + stride), step(max(0, now - lag * stride))]
    lines += [step(now := now + stride) for _ in range(8)]
    progress = watched(lines, at_once)
    assert progress.last_step is not None
    assert progress.advance_line >= len(lines) - 4
