"""Waiting with a deadline."""

import pytest

from advisor.demo.waiting import TookTooLongError, holds_for, wait_for


def test_the_first_true_value_is_returned() -> None:
    """None and False are waited out; zero is a value."""
    answers = iter([None, False, 0])
    assert wait_for("a number", lambda: next(answers), seconds=5, every_seconds=0.001) == 0


def test_a_condition_that_never_comes_is_named() -> None:
    """The error says what did not happen."""
    with pytest.raises(TookTooLongError, match="the moon"):
        wait_for("the moon", lambda: None, seconds=0.01, every_seconds=0.001)


def test_something_that_happens_after_all_is_noticed() -> None:
    """`holds_for` is false as soon as one look fails."""
    answers = iter([True, True, False])
    assert not holds_for(lambda: next(answers), seconds=5, every_seconds=0.001)
