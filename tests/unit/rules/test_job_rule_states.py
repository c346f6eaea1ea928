"""The states of job-defined rules, where they are the original's: our own cases, and the shared ones when present."""

import json
from pathlib import Path

import pytest

from advisor.rules.job_rule_cases import read_cases, run_case
from tests.unit.rules.job_cases import Rule, states

SHARED = Path(__file__).resolve().parents[4] / "shared" / "cases" / "log_rules" / "conformance.jsonl"
W, H, S, X, F = "WAITING", "HEALTHY", "SLOW", "HANGING", "FAULTED"
STEP = r".*step (\d+)"
MS: Rule = {"logPattern": r"took ([^ ]+)", "operator": "gt", "metricThreshold": 100}

Line = tuple[float, str]


@pytest.mark.parametrize(
    ("rule", "lines", "expected"),
    [
        pytest.param({"expectedStartCutOffInSeconds": 6}, [], {0: W, 6: W, 7: X, 99: X}, id="at the limit is in time"),
        pytest.param({"expectedStartCutOffInSeconds": 6}, [(9, "a step 1")], {8: X, 9: H, 99: H}, id="late, then well"),
        pytest.param({"expectedStartCutOffInSeconds": 6}, [(5, "x"), (6, "y")], {7: X}, id="other lines do not count"),
        pytest.param({"expectedStartCutOffInSeconds": "6"}, [], {6: W, 7: X}, id="a number as text"),
        pytest.param({"expectedStartCutOffInSeconds": 0}, [], {0: W, 1: X}, id="at once"),
        pytest.param({"expectedStartCutOffInSeconds": -1}, [], {0: X}, id="always late"),
        pytest.param({"expectedRecurringFrequencyInSeconds": 4}, [(1, "no")], {90: W}, id="armed by the first match"),
        pytest.param({"expectedRecurringFrequencyInSeconds": 4}, [(2, "step 1")], {6: H, 7: X}, id="recurring"),
        pytest.param(
            {"expectedRecurringFrequencyInSeconds": 4},
            [(2, "step 1"), (4, "noise"), (9, "step 2")],
            {7: X, 8: X, 9: H, 13: H, 14: X},
            id="recovers",
        ),
        pytest.param(
            {"expectedStartCutOffInSeconds": 30, "expectedRecurringFrequencyInSeconds": 4},
            [(2, "step 1")],
            {7: X, 40: X},
            id="both times",
        ),
        pytest.param({"expectedRecurringFrequencyInSeconds": -1}, [(2, "step 1")], {1: W, 2: X}, id="never in time"),
    ],
)
def test_silence(rule: Rule, lines: list[Line], expected: dict[int, str]) -> None:
    """A line that is later than its rule allows hangs, strictly; when it comes, all is well again."""
    assert states([{"logPattern": STEP, **rule}], lines, list(expected)) == list(expected.values())


@pytest.mark.parametrize(
    ("pattern", "line", "matches"),
    [
        ("step", "a step", False),
        ("step", "step and more", True),
        ("^step", " step", False),
        ("b|a", "xa", False),
        ("a|b", "bx", True),
        ("end$", "end", True),
        ("end$", "end ", False),
        (r"end\s", "end", True),
        (r"end\n", "end", True),
        (r"end\Z", "end", False),
        ("end", "END", False),
        ("(?i)end", "END", True),
        ("a.b", "a\x0bb", True),
        ("a.b", "a\rb", False),
        (r"a\sb", "a\u00a0b", True),
        (r"\w+!", "Größe!", True),
        ("Größe", "Größe", True),
        ("....!", "損失損失!", True),
        ("(?i)GRÖSSE", "grösse", True),
        (r"\[31mred", "\x1b[31mred", False),
    ],
)
def test_matching(pattern: str, line: str, matches: bool) -> None:
    """Patterns are anchored where a line begins, and mean what they mean to Python; nothing is taken out of a line."""
    assert states([{"logPattern": pattern}], [(1, line)], [1]) == [H if matches else W]


@pytest.mark.parametrize(
    ("text", "expected"),
    [("one\rstep 1", H), ("step 1\r", H), ("one\r\nstep 1", H), ("one\x0bstep 1", W), ("one\u2028step 1", W),
     ("one\x0cstep 1", W), ("one\x85step 1", W), ("step 1\x00", H)],
)  # fmt: skip
def test_lines_end_where_text_files_end_them(text: str, expected: str) -> None:
    """Line feed, carriage return or both; no other separator."""
    assert states([{"logPattern": r"step \d+"}], [(1, text)], [1]) == [expected]


@pytest.mark.parametrize(
    ("operator", "value", "breach"),
    [("gt", "5", False), ("gt", "6", True), ("lt", "5", False), ("lt", "4", True), ("eq", "5.0", True),
     ("eq", "6", False), ("gteq", "5", True), ("gteq", "4", False), ("lteq", "5", True), ("lteq", "6", False),
     ("gt", "inf", True), ("lt", "-inf", True), ("gt", "-Infinity", False), ("gt", "1e3", True), ("gt", "1_0", True),
     ("gt", "٧", True), ("gt", "+6", True), ("gt", "6.", True)],
)  # fmt: skip
def test_values(operator: str, value: str, breach: bool) -> None:
    """Every operator, and every spelling that Python's `float` reads."""
    rule: Rule = {"logPattern": r"v=(\S+)", "operator": operator, "metricThreshold": 5}
    assert states([rule], [(1, f"v={value}")], [1]) == [S if breach else H]


@pytest.mark.parametrize(
    ("rule", "line"),
    [
        ({"logPattern": r"took \d+", "operator": "gt", "metricThreshold": 1}, "took 9"),
        ({"logPattern": r"took (\d+)", "operator": "gt"}, "took 9"),
        ({"logPattern": r"took (\d+)", "metricThreshold": 1}, "took 9"),
        ({"logPattern": r"took (\d+), (\d+)", "operator": "gt", "metricThreshold": 5}, "took 1, 9"),
    ],
)
def test_without_a_value_a_match_is_healthy(rule: Rule, line: str) -> None:
    """A group, a threshold and an operator are all needed; only the first group is read."""
    assert states([rule], [(1, line)], [1]) == [H]


def test_a_group_that_took_no_part_is_no_data_point() -> None:
    """The state stays; it is not a value of nothing."""
    rule: Rule = {"logPattern": r"done(?: in (\d+))?", "operator": "gt", "metricThreshold": 5}
    assert states([rule], [(1, "done"), (2, "done in 9"), (3, "done")], [1, 2, 3]) == [W, S, S]


def test_values_in_a_row() -> None:
    """So many out of bounds one after another make it slow, other lines between or not; a good one begins anew."""
    three: Rule = {**MS, "metricEvaluationDataPoints": 3}
    lines = [(t, f"took {value}") for t, value in enumerate([200, 200, 1, 200, 200, 200, 200, 1], 1)]
    assert states([three], [*lines, (5.5, "noise")], list(range(1, 9))) == [H, H, H, H, H, S, S, H]


def test_being_slow_lasts_until_a_good_value() -> None:
    """Lines that do not match change nothing, and a hang between forgets nothing."""
    rule: Rule = {**MS, "metricEvaluationDataPoints": 2, "expectedRecurringFrequencyInSeconds": 6}
    lines = [(1, "took 200"), (2, "took 200"), (3, "noise"), (20, "took 200"), (22, "took 1"), (40, "took 200")]
    assert states([rule], lines, [1, 3, 8, 9, 20, 22, 29, 40]) == [H, S, S, X, S, H, X, H]
    half = [(1, "took 200"), (20, "took 200")]
    assert states([rule], half, [1, 9, 20]) == [H, X, S]


def test_a_stop_pattern_ends_its_rule_for_good() -> None:
    """Before its first match, while it hangs or is slow, on the line of a bad value: healthy from then on."""
    rule: Rule = {**MS, "stopPattern": "the end", "expectedRecurringFrequencyInSeconds": 4}
    assert states([rule], [(1, "the end"), (2, "took 200")], [1, 2, 90]) == [H, H, H]
    assert states([rule], [(1, "took 1"), (9, "the end")], [8, 9, 90]) == [X, H, H]
    assert states([rule], [(1, "took 200"), (2, "the end"), (3, "took 200")], [1, 2, 3]) == [S, H, H]
    assert states([rule], [(1, "not the end"), (2, "took 1")], [1, 7]) == [W, X]
    same: Rule = {**MS, "stopPattern": "took 200"}
    assert states([same], [(1, "took 200")], [1, 9]) == [H, H]


def test_a_fault_wins_over_the_end_of_its_rule() -> None:
    """On one line that means both; when the end came first there is no fault."""
    rule: Rule = {"logPattern": "stop.*fatal", "faultOnMatch": True, "stopPattern": "stop"}
    assert states([rule], [(1, "stop: fatal")], [1, 9]) == [F, F]
    assert states([rule], [(1, "stop"), (2, "stop: fatal")], [1, 2]) == [H, H]
    assert states([rule], [(1, "stop\rstop: fatal")], [1]) == [H]
    assert states([rule], [(1, "stop: fatal\rstop")], [1]) == [F]


def test_the_worst_rule_speaks() -> None:
    """FAULTED over HANGING over SLOW over HEALTHY over WAITING."""
    rules: list[Rule] = [
        {"logPattern": "one", "faultOnMatch": True},
        {"logPattern": "two", "expectedRecurringFrequencyInSeconds": 4},
        MS,
        {"logPattern": "three"},
        {"logPattern": "never"},
    ]
    lines = [(1, "three"), (2, "took 200"), (3, "two"), (9, "two"), (15, "one")]
    assert states(rules, lines, [0, 1, 2, 3, 8, 9, 14, 15]) == [W, H, S, S, X, S, X, F]


def test_time_stands_still_while_the_job_is_stopped() -> None:
    """Both clocks leave out the pause; what was seen stays, and so does the end of a rule."""
    rule: Rule = {"logPattern": STEP, "expectedStartCutOffInSeconds": 6, "expectedRecurringFrequencyInSeconds": 5}
    assert states([rule], [], [4, 9, 12, 14, 15], restarts=[(4, 12)]) == [W, W, W, W, X]
    paused = [(3, 10), (12, 20)]
    assert states([rule], [(1, "step 1")], [2, 3, 9, 10, 12, 20, 21, 22], restarts=paused) == [H, W, W, H, W, H, H, X]
    done: Rule = {**rule, "stopPattern": "done"}
    assert states([done], [(1, "done")], [1, 5, 8, 99], restarts=[(4, 8)]) == [H, W, H, H]
    assert states([rule], [(6, "step 1")], [8, 9, 14, 15], restarts=[(4, 9)]) == [W, H, H, X]


def test_the_shared_conformance_cases() -> None:
    """Every case not marked as a quirk of the original has its states; every other one runs."""
    if not SHARED.is_file():
        pytest.skip("the shared cases are not beside this checkout (../shared/cases/log_rules/conformance.jsonl)")
    data = SHARED.read_bytes()
    documents = [json.loads(line) for line in data.splitlines() if line.strip()]
    wrong: list[str] = []
    for document, case in zip(documents, read_cases(SHARED.name, data), strict=True):
        found = [[seconds, state.value] for seconds, state in run_case(case)]
        if not document.get("peer_quirk") and found != document["checks"]:
            wrong.append(f"{case.name}: {document['checks']} but {found}")
    assert not wrong
