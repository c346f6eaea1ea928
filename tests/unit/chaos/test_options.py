"""What chaos is told on its command line."""

import pytest

from benchmarks.chaos.__main__ import parser
from benchmarks.chaos.schedule import Kind


def test_its_help_has_the_defaults_and_the_kinds_that_can_be_left_out() -> None:
    """Nobody needs to read the source for what `--without` takes."""
    text = " ".join(parser().format_help().split())
    assert f"of: {', '.join(Kind)}" in text
    assert all(word in text for word in ("(5)", "(1)", "(none)"))


def test_kinds_to_leave_out_are_read_and_others_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """With the ones that there are; exit 2."""
    assert parser().parse_args(["--without", "clock, disk"]).without == {Kind.CLOCK, Kind.DISK}
    assert parser().parse_args([]).without == frozenset()
    with pytest.raises(SystemExit, match="2"):
        parser().parse_args(["--without", "weather"])
    assert "'weather' is not one of kill, freeze" in capsys.readouterr().err
