"""What chaos is told on its command line."""

from pathlib import Path

import pytest

from benchmarks.chaos import injections
from benchmarks.chaos.__main__ import main, parser
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


def test_a_tool_that_is_missing_is_named_before_anything_begins(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An hour without partitions would pass for one with them; who leaves its kinds out needs no tool."""
    monkeypatch.setattr("shutil.which", lambda _: None)
    monkeypatch.setattr(injections, "FAKETIME", Path("/nowhere"))
    assert injections.missing_tools() == {
        "iptables": {Kind.PARTITION, Kind.LOSS},
        "libfaketime": {Kind.CLOCK},
    }
    with pytest.raises(SystemExit, match="2"):
        main(["--without", "clock"])
    said = capsys.readouterr().err
    assert "iptables is not installed" in said
    assert "--without loss,partition" in said
    monkeypatch.setattr("benchmarks.chaos.__main__._apart", lambda: False)
    monkeypatch.setattr("benchmarks.chaos.__main__._enter", lambda _: 7)
    assert main(["--without", "clock,loss,partition"]) == 7
