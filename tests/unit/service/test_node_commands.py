"""Commands about nodes, pauses and modes: what they refuse before they ask anybody, and how they say what is."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

from advisor.commands import nodes, pause
from advisor.commands.mode import where
from advisor.commands.output import CommandError
from advisor.v1 import operator_pb2

NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("30m", NOW + timedelta(minutes=30)),
        ("4h", NOW + timedelta(hours=4)),
        ("1d", NOW + timedelta(days=1)),
        ("2026-05-02T06:00Z", datetime(2026, 5, 2, 6, tzinfo=UTC)),
        ("2026-05-02T06:00+02:00", datetime(2026, 5, 2, 4, tzinfo=UTC)),
    ],
)
def test_until_when(text: str, moment: datetime) -> None:
    """A span from now, or a moment with its zone."""
    assert pause.when(text, NOW) == moment


@pytest.mark.parametrize("text", ["", "soon", "4", "99999999h", "2026-13-01"])
def test_a_moment_that_nobody_can_mean_is_refused(text: str) -> None:
    """With the forms that are understood."""
    with pytest.raises(CommandError, match="give 30m, 2h, 1d"):
        pause.when(text, NOW)


def test_changes_need_a_reason() -> None:
    """Before anybody is asked: it is kept in the audit."""
    asks: tuple[Callable[[], None], ...] = (
        lambda: nodes.reinstate("n1"),
        lambda: nodes.probe_result("n1", passed=True),
        nodes.reset_breaker,
        lambda: pause.pause("4h"),
    )
    for ask in asks:
        with pytest.raises(CommandError, match="say why"):
            ask()
    with pytest.raises(CommandError, match="--passed or --failed"):
        nodes.probe_result("n1", why="x")


def test_a_canary_is_named_by_its_share() -> None:
    """As people say it: so many in a hundred of the jobs of a place."""
    setting = operator_pb2.ModeSetting(partition="train", account="physics", percent=10)
    assert where(setting) == "10 % of the jobs of partition train, account physics"
    assert where(operator_pb2.ModeSetting()) == "everything"
