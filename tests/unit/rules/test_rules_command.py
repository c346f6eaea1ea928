"""`advisor rules`, from outside."""

import json
from pathlib import Path

import pytest

from advisor.cli import main


def run(code: int, *arguments: str) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["rules", *arguments])
    assert caught.value.code == code


def test_the_list_can_be_narrowed(capsys: pytest.CaptureFixture[str]) -> None:
    """One category, as JSON, with the source of each rule."""
    run(0, "list", "--category", "numerics", "--format", "json")
    rules = json.loads(capsys.readouterr().out)
    assert rules
    assert {rule["category"] for rule in rules} == {"numerics"}
    assert all(rule["source"] for rule in rules)


def test_check_reports_every_problem(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One line each, and exit code 1; a good file is counted in."""
    path = tmp_path / "site.toml"
    path.write_text('[[rule]]\nid = "site.x"\n')
    run(1, "check", str(path))
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 4
    assert all("site.toml: site.x: " in line for line in lines)
    path.write_text("")
    run(0, "check", str(path))
    assert "rules" in capsys.readouterr().out
