"""Where job-defined rules differ from the original on purpose; numbers are the rows of docs/decisions/0003."""

from datetime import UTC, datetime, timedelta

import pytest

from advisor.core.job_rules import Batch, JobRuleEvaluator, LogState
from advisor.rules.job_rules import parse_job_rules
from tests.unit.rules.job_cases import Rule, states

STEP = r".*\bstep (\d+)"
NOON = datetime(2026, 11, 29, 12, tzinfo=UTC)


def metric(pattern: str, operator: str, threshold: object, **more: object) -> Rule:
    return {"logPattern": pattern, "operator": operator, "metricThreshold": threshold, **more}


@pytest.mark.parametrize(
    "bad",
    [
        {"logPattern": "(step"},
        {"logPattern": "step", "operator": "<"},
        {"logPattern": "step", "name": ""},
        {"logPattern": "step", "expectedStartCutOffInSeconds": "soon"},
        {"logPattern": "(?!eval)step"},
        {},
    ],
)
def test_1_a_bad_rule_costs_only_itself(bad: Rule) -> None:
    """The rules before and after it work; alone, it leaves nothing to judge."""
    good = {"logPattern": STEP, "expectedRecurringFrequencyInSeconds": 4}
    for rules in ([bad, good], [good, bad]):
        assert states(rules, [(2, "a step 1")], [1, 2, 6, 7]) == ["WAITING", "HEALTHY", "HEALTHY", "HANGING"]
    assert states([bad], [(2, "a step 1")], [2, 60]) == ["WAITING", "WAITING"]


@pytest.mark.parametrize("threshold", [0.25, "0.25", " 2.5e-1 "])
def test_2_fractions_count(threshold: object) -> None:
    """A threshold of a quarter is a quarter, written as a number or as text."""
    rules = [metric(r"loss ([\d.]+)", "gt", threshold)]
    assert states(rules, [(1, "loss 0.2"), (2, "loss 0.3")], [1, 2]) == ["HEALTHY", "SLOW"]


def test_2_negative_fractions_are_not_cut_towards_zero() -> None:
    """Reward below -2.5, not below -2."""
    rules = [metric(r"reward (\S+)", "lt", -2.5)]
    assert states(rules, [(1, "reward -2.25"), (2, "reward -2.75")], [1, 2]) == ["HEALTHY", "SLOW"]


@pytest.mark.parametrize("seconds", [7.5, "7.5"])
def test_2_seconds_may_be_fractions(seconds: object) -> None:
    """Late is later than the fraction, not than its whole part."""
    rules = [{"logPattern": STEP, "expectedStartCutOffInSeconds": seconds}]
    assert states(rules, [], [7, 7.25, 7.5, 7.75]) == ["WAITING", "WAITING", "WAITING", "HANGING"]
    rules = [{"logPattern": STEP, "expectedRecurringFrequencyInSeconds": seconds}]
    assert states(rules, [(1, "step 1")], [8, 8.25, 8.5, 8.75]) == ["HEALTHY", "HEALTHY", "HEALTHY", "HANGING"]


@pytest.mark.parametrize(("points", "needed"), [(2.9, 2), ("2.9", 2), (0.5, 1)])
def test_2_data_points_are_whole(points: object, needed: int) -> None:
    """Rounded down, at least one."""
    rules = [metric(r"ms (\d+)", "gt", 10, metricEvaluationDataPoints=points)]
    lines = [(t, "ms 50") for t in (1, 2, 3)]
    assert states(rules, lines, [1, 2, 3]) == ["HEALTHY"] * (needed - 1) + ["SLOW"] * (4 - needed)


@pytest.mark.parametrize("points", [0, -3, "0"])
def test_3_no_data_points_are_one(points: object) -> None:
    """A good value is healthy; the first bad one is slow."""
    rules = [metric(r"ms (\d+)", "gt", 10, metricEvaluationDataPoints=points)]
    assert states(rules, [(1, "ms 5"), (2, "ms 50"), (3, "ms 5")], [1, 2, 3]) == ["HEALTHY", "SLOW", "HEALTHY"]


@pytest.mark.parametrize(
    ("written", "state"),
    [
        *((word, "HEALTHY") for word in ("false", "False ", "no", "off", "0", "", 0)),
        *((word, "FAULTED") for word in ("true", " YES", "on", "1", 1)),
        *((word, "WAITING") for word in ("perhaps", [])),
    ],
)
def test_4_words_mean_what_they_say(written: object, state: str) -> None:
    """`"false"` is no; a word that is neither yes nor no costs the rule."""
    assert states([{"logPattern": ".*fatal", "faultOnMatch": written}], [(1, "a fatal one")], [1]) == [state]


@pytest.mark.parametrize("operator", ["gt", "lt", "eq", "gteq", "lteq"])
@pytest.mark.parametrize("value", ["nan", "-NaN"])
def test_5_nan_is_out_of_bounds(operator: str, value: str) -> None:
    """For every operator, and a good value ends it."""
    good = {"gt": "1", "lt": "9", "eq": "1", "gteq": "1", "lteq": "9"}[operator]
    rules = [metric(r"loss (\S+)", operator, 5, metricEvaluationDataPoints=2)]
    lines = [(1, f"loss {value}"), (2, f"loss {value}"), (3, f"loss {good}"), (4, f"loss {value}")]
    assert states(rules, lines, [1, 2, 3, 4]) == ["HEALTHY", "SLOW", "HEALTHY", "HEALTHY"]


def test_6_an_unreadable_value_hides_nothing_from_other_rules() -> None:
    """The fault on the same line is seen, wherever its rule stands."""
    number = metric(r".*grad norm (\S+)", "gt", 10)
    fault = {"logPattern": ".*grad norm overflow", "faultOnMatch": True}
    for rules in ([number, fault], [fault, number]):
        assert states(rules, [(3, "grad norm overflow")], [3, 9]) == ["FAULTED", "FAULTED"]


def test_6_an_unreadable_value_ends_a_hang() -> None:
    """The expected line came: the rule is what it was before the silence, and its timer starts again."""
    rules = [metric(r"loss (\S+)", "gt", 10, expectedRecurringFrequencyInSeconds=4)]
    lines = [(1, "loss 3"), (9, "loss ***"), (20, "loss 99"), (29, "loss ***")]
    found = states(rules, lines, [6, 9, 13, 14, 20, 25, 29, 33, 34])
    assert found == ["HANGING", "HEALTHY", "HEALTHY", "HANGING", "SLOW", "HANGING", "SLOW", "SLOW", "HANGING"]


def test_6_an_unreadable_value_is_no_data_point() -> None:
    """It neither counts nor resets; before the first value there is nothing to judge."""
    rules = [metric(r"ms (\S+)", "gt", 10, metricEvaluationDataPoints=2)]
    lines = [(1, "ms ?"), (2, "ms 50"), (3, "ms ?"), (4, "ms 50"), (5, "ms ?")]
    assert states(rules, lines, [1, 2, 3, 4, 5]) == ["WAITING", "HEALTHY", "HEALTHY", "SLOW", "SLOW"]


@pytest.mark.parametrize("pattern", ["", ".*", r"(\d*)", "$", "^$|x"])
def test_7_silence_is_not_a_line(pattern: str) -> None:
    """A pattern that matches nothing at all waits for a first line, and hangs in time without a next one."""
    rule = {"logPattern": pattern, "expectedStartCutOffInSeconds": 5, "expectedRecurringFrequencyInSeconds": 3}
    assert states([rule], [], [0, 1, 5, 6, 90]) == ["WAITING", "WAITING", "WAITING", "HANGING", "HANGING"]
    assert states([rule], [(2, "")], [1, 2, 5, 6]) == ["WAITING", "HEALTHY", "HEALTHY", "HANGING"]


def test_7_silence_ends_no_rule() -> None:
    """A stopPattern that matches nothing at all ends its rule at the first line, not before."""
    rules = [{"logPattern": STEP, "expectedStartCutOffInSeconds": 5, "stopPattern": ".*"}]
    assert states(rules, [(9, "anything")], [0, 5, 6, 9, 90]) == ["WAITING", "WAITING", "HANGING", "HEALTHY", "HEALTHY"]


def test_8_a_line_waits_for_its_end() -> None:
    """A word and a number that come in two pieces are one word and one number."""
    rules = [metric(r"step (\d+)", "lt", 100)]
    assert states(rules, [(1, "st"), (2, "ep 7\n")], [1, 2], raw=True) == ["WAITING", "SLOW"]
    assert states(rules, [(1, "step 7"), (2, "50\n")], [1, 2], raw=True) == ["WAITING", "HEALTHY"]


def test_8_a_line_without_an_end_counts_after_a_while() -> None:
    """A bar that waits for its next redraw, a last line: after five seconds of silence it is judged as it stands."""
    rules = [metric(r"step (\d+)", "lt", 100)]
    assert states(rules, [(1, "step 7")], [1, 5, 6], raw=True) == ["WAITING", "WAITING", "SLOW"]
    grown = [(1, "step 7"), (9, "50\n")]
    assert states(rules, grown, [8, 9], raw=True) == ["SLOW", "HEALTHY"]


@pytest.mark.parametrize(
    ("began", "ended", "expected"),
    [
        (1, 6, {6: "WAITING"}),  # the end comes before that second's look
        (1, 6.5, {5.5: "WAITING", 6: "FAULTED", 7: "FAULTED"}),
        (1.5, 9, {6.75: "WAITING", 7: "FAULTED"}),
        (1.5, 6.75, {9: "WAITING"}),
    ],
)
def test_8_a_file_is_looked_at_every_second(began: float, ended: float, expected: dict[float, str]) -> None:
    """After what came in that second; only a look finds that a line has waited long enough."""
    rules: list[Rule] = [{"logPattern": "fatal$", "faultOnMatch": True}]
    lines = [(began, "fatal"), (ended, "ity\n")]
    assert states(rules, lines, list(expected), raw=True) == list(expected.values())


def test_9_a_fault_stays_and_the_others_live() -> None:
    """Neither the end of its rule nor silence changes it, and a later fault of another rule is seen."""
    rules = [
        {"logPattern": ".*fatal", "faultOnMatch": True, "stopPattern": "end", "expectedRecurringFrequencyInSeconds": 3},
        {"logPattern": ".*worse", "faultOnMatch": True},
    ]
    assert states(rules, [(1, "fatal"), (2, "end"), (8, "fatal")], [1, 2, 6, 8, 90]) == ["FAULTED"] * 5
    evaluator = JobRuleEvaluator(parse_job_rules([{"name": "x", **rule} for rule in rules]).rules)
    state = evaluator.begin(NOON)
    state = evaluator.read(state, Batch(lines=[b"fatal", b"end"]), NOON)
    state = evaluator.read(state, Batch(lines=[b"worse"]), NOON + timedelta(seconds=9))
    assert [verdict.state for verdict in evaluator.verdicts(state, NOON)] == [LogState.FAULTED, LogState.FAULTED]


def test_10_a_fault_outlives_a_pause_but_not_a_restart() -> None:
    """While it is paused a job waits; its next attempt begins with nothing seen."""
    rules = [{"logPattern": ".*fatal", "faultOnMatch": True}]
    found = states(rules, [(1, "fatal")], [1, 5, 9, 10, 30], restarts=[(4, 10)])
    assert found == ["FAULTED", "WAITING", "WAITING", "FAULTED", "FAULTED"]
    evaluator = JobRuleEvaluator(parse_job_rules([{"name": "x", **rules[0]}]).rules)
    assert evaluator.overall(evaluator.begin(NOON), NOON) is LogState.WAITING


def test_11_broken_bytes_are_replaced() -> None:
    """A byte that is no UTF-8 neither ends the monitoring nor hides the rest of its line."""
    evaluator = JobRuleEvaluator(parse_job_rules([{"name": "x", "logPattern": ".*step", "faultOnMatch": True}]).rules)
    state = evaluator.read(evaluator.begin(NOON), Batch(lines=[b"\xff\xfe\x80 step"]), NOON)
    assert evaluator.overall(state, NOON) is LogState.FAULTED
    assert states([{"logPattern": ".*step"}], [(1, "\ud83d step")], [1]) == ["HEALTHY"]
