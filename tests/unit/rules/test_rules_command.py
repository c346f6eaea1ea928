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
    """One line each, and exit code 2; a good file is counted in."""
    path = tmp_path / "site.toml"
    path.write_text('[[rule]]\nid = "site.x"\n')
    run(2, "check", str(path))
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 4
    assert all("site.toml: site.x: " in line for line in lines)
    path.write_text("")
    run(0, "check", str(path))
    assert "rules" in capsys.readouterr().out


CASE = {
    "name": "steps",
    "rules": [{"name": "a", "logPattern": "(", "x": 1}, {"name": "b", "logPattern": ".*step"}],
    "lines": [[1.5, "a step"]],
    "checks": [[2, "?"], 1, [1.5, "HEALTHY"]],
    "note": "other keys are for people",
}


def test_cases_are_run_without_waiting(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One JSON object per case: the state at each check, in their order; what is wrong with rules goes elsewhere."""
    path = tmp_path / "cases.jsonl"
    path.write_text(json.dumps(CASE) + "\n\n" + json.dumps({**CASE, "name": "\x1b[31m", "rules": None}) + "\n")
    run(0, "run", "--cases", str(path))
    printed = capsys.readouterr()
    assert [json.loads(line) for line in printed.out.splitlines()] == [
        {"name": "steps", "states": [[2, "HEALTHY"], [1, "WAITING"], [1.5, "HEALTHY"]]},
        {"name": "\x1b[31m", "states": [[2, "WAITING"], [1, "WAITING"], [1.5, "WAITING"]]},
    ]
    assert "\x1b" not in printed.out
    assert printed.err.splitlines() == [
        f"advisor: {path}:1: rule 1 (a): x: unknown key, ignored (rule kept)",
        f"advisor: {path}:1: rule 1 (a): logPattern: missing ), unterminated subpattern at character 1",
    ]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b"{", "2: not JSON: "),
        (b"\xff", "2: not JSON: "),
        (b"[" * 100_000, "2: not JSON: "),
        (b"[]", "2: must be an object"),
        ({"name": ""}, "2: name: must be text"),
        ({"name": 3}, "2: name: must be text"),
        ({"rules": {}}, "2: rules: must be a list of rules"),
        ({"lines": None}, "2: lines: must be a list"),
        ({"lines": [[1]]}, "2: lines[0]: must be [seconds, text]"),
        ({"lines": [[1, "x"], [1, 2]]}, "2: lines[1]: must be [seconds, text]"),
        ({"lines": [["1", "x"]]}, "2: lines[0]: the time must be a number of seconds from 0 to 1000000000"),
        ({"lines": [[-1, "x"]]}, "2: lines[0]: the time must be"),
        ({"lines": [[float("nan"), "x"]]}, "2: lines[0]: the time must be"),
        ({"lines": [[True, "x"]]}, "2: lines[0]: the time must be"),
        ({"checks": [[1e99, "HEALTHY"]]}, "2: checks[0]: the time must be"),
        ({"checks": [[1, "HEALTHY", 2]]}, "2: checks[0]: must be a time or [time, state]"),
        ({"checks": "x"}, "2: checks: must be a list"),
        ({"restarts": [[9, 3]]}, "2: restarts[0]: started before it stopped"),
        ({"restarts": [3]}, "2: restarts[0]: must be [stopped, started]"),
        ({"raw": 1}, "2: raw: must be true or false"),
    ],
)
def test_a_case_that_cannot_be_run_is_located(
    line: bytes | dict[str, object], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """File, line and key in one line on standard error, exit 2, and nothing was run."""
    path = tmp_path / "cases.jsonl"
    bad = line if isinstance(line, bytes) else json.dumps({**CASE, **line}).encode()
    path.write_bytes(json.dumps(CASE).encode() + b"\n" + bad + b"\n")
    run(2, "run", "--cases", str(path))
    printed = capsys.readouterr()
    assert printed.out == ""
    (complaint,) = printed.err.splitlines()
    assert complaint.startswith(f"advisor: {path}:{said}")


@pytest.mark.parametrize("missing", ["name", "rules", "lines", "checks"])
def test_a_case_needs_its_keys(missing: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The one that is missing is named."""
    path = tmp_path / "cases.jsonl"
    path.write_text(json.dumps({key: value for key, value in CASE.items() if key != missing}))
    run(2, "run", "--cases", str(path))
    assert f":1: {missing}: must be" in capsys.readouterr().err


def test_a_case_file_must_be_there_and_hold_something(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit 2 with one line."""
    run(2, "run", "--cases", str(tmp_path / "none.jsonl"))
    assert "none.jsonl: cannot be read: No such file" in capsys.readouterr().err
    run(2, "run", "--cases", str(tmp_path))
    assert "cannot be read: Is a directory" in capsys.readouterr().err
    (tmp_path / "empty.jsonl").write_text("\n \n")
    run(2, "run", "--cases", str(tmp_path / "empty.jsonl"))
    assert "empty.jsonl: holds no cases" in capsys.readouterr().err
