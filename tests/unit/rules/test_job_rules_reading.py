"""Reading job-defined rules: every problem with its place, and the other rules kept."""

import json

import pytest

from advisor.core.codec import decode, encode
from advisor.core.job_rules import Comparison, LogRule, LogState, incident_kind
from advisor.core.words import IncidentKind
from advisor.rules.job_rules import (
    CONFIGURATION_BYTES_MAX,
    PROGRAMS_SIZE_MAX,
    RULES_MAX,
    located,
    parse_job_rules,
    read_job_rules,
)

GOOD = {"name": "steps", "logPattern": ".*step"}


def problems(*rules: object) -> list[str]:
    return [str(problem) for problem in parse_job_rules(list(rules)).problems]


def one(**more: object) -> LogRule:
    (rule,) = parse_job_rules([{**GOOD, **more}]).rules
    return rule


def test_every_key_is_read() -> None:
    """A rule with all keys, as a value that can be stored and read back."""
    rule = one(
        stopPattern="end",
        expectedStartCutOffInSeconds=600,
        expectedRecurringFrequencyInSeconds="30",
        metricThreshold=1.5,
        operator="lteq",
        metricEvaluationDataPoints=3,
        faultOnMatch=True,
        logPattern=r".*loss (\S+)",
    )
    assert (rule.number, rule.name, rule.log_pattern, rule.stop_pattern) == (1, "steps", r".*loss (\S+)", "end")
    assert (rule.start_cutoff_seconds, rule.recurring_seconds, rule.metric_threshold) == (600.0, 30.0, 1.5)
    assert (rule.comparison, rule.data_points, rule.fault_on_match) == (Comparison.LTEQ, 3, True)
    assert decode(LogRule, encode(rule)) == rule


def test_absent_and_null_are_alike() -> None:
    """What Kubernetes writes as null was not asked for."""
    keys = ["stopPattern", "expectedStartCutOffInSeconds", "expectedRecurringFrequencyInSeconds", "metricThreshold"]
    keys += ["operator", "metricEvaluationDataPoints", "faultOnMatch"]
    assert one(**dict.fromkeys(keys)) == one() == one(stopPattern="")
    assert one().stop_re2 is None
    assert problems({**GOOD, **dict.fromkeys(keys)}) == []


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("name", "", "name: must be text that is not empty, found ''"),
        ("name", 7, "name: must be text that is not empty, found 7"),
        ("name", "a\nb", "name: holds characters that cannot be printed"),
        ("name", "a" * 201, "name: longer than 200 characters"),
        ("logPattern", None, "logPattern: must be text, found nothing"),
        ("logPattern", ["x"], "logPattern: must be text, found list"),
        ("logPattern", "a(b", "logPattern: missing ), unterminated subpattern at character 2"),
        ("stopPattern", "(?=a)", "stopPattern: look-ahead"),
        ("stopPattern", 5, "stopPattern: must be text, found 5"),
        ("expectedStartCutOffInSeconds", "10m", "expectedStartCutOffInSeconds: must be a number, found '10m'"),
        (
            "expectedRecurringFrequencyInSeconds",
            {},
            "expectedRecurringFrequencyInSeconds: must be a number, found dict",
        ),
        ("metricThreshold", "nan", "metricThreshold: must be a number, found 'nan'"),
        ("metricThreshold", float("inf"), "metricThreshold: must be a number, found inf"),
        ("metricThreshold", 10**400, "metricThreshold: must be a number, found a huge number"),
        ("metricEvaluationDataPoints", "many", "metricEvaluationDataPoints: must be a number, found 'many'"),
        ("operator", ">", "operator: must be one of gt, lt, eq, gteq, lteq, found '>'"),
        ("operator", "", "operator: must be one of gt, lt, eq, gteq, lteq, found ''"),
        ("operator", "GT", "operator: must be one of gt, lt, eq, gteq, lteq, found 'GT'"),
        ("faultOnMatch", "\x1b[31mmaybe" + "e" * 60, r"faultOnMatch: must be true or false, found '\x1b[31mmaybee"),
        ("faultOnMatch", {}, "faultOnMatch: must be true or false, found dict"),
    ],
)
def test_a_bad_value_costs_the_rule(key: str, value: object, said: str) -> None:
    """The message names rule, key and value, on one line; the rules beside it work."""
    read = parse_job_rules([GOOD, {"name": "bad", "logPattern": "x", key: value}, {**GOOD, "name": "last"}])
    assert [rule.number for rule in read.rules] == [1, 3]
    (problem,) = read.problems
    assert problem.dropped
    assert (problem.number, problem.key) == (2, key)
    text = str(problem)
    assert text.startswith("rule 2")
    assert said in text
    assert text.isprintable()
    assert len(text) < 400


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        ({"colour": "red"}, "colour: unknown key, ignored"),
        ({"LogPattern": "x"}, "LogPattern: unknown key, ignored"),
        ({"logPattern": ""}, "logPattern: empty: it matches every line"),
        ({"stopPattern": ""}, "stopPattern: empty: ignored"),
        ({"operator": "gt"}, "operator: has no effect without metricThreshold"),
        ({"metricThreshold": 0}, "metricThreshold: has no effect without operator"),
        ({"metricThreshold": 0, "operator": "gt"}, "metricThreshold: has no effect: logPattern has no group"),
        ({"expectedStartCutOffInSeconds": -5}, "expectedStartCutOffInSeconds: negative: the line is always late"),
        ({"metricEvaluationDataPoints": 0}, "must be a whole number from 1; 0 is taken as 1"),
        ({"metricEvaluationDataPoints": 2.5}, "must be a whole number from 1; 2.5 is taken as 2"),
        ({"expectedStartCutOffInSeconds": True}, "must be a number; true is taken as 1"),
        ({"faultOnMatch": "False"}, "must be true or false; 'False' is taken as false"),
        ({"faultOnMatch": 2}, "must be true or false; 2 is taken as true"),
        ({"logPattern": r".*\w{100}"}, r"\d, \w and \s mean ASCII here"),
    ],
)
def test_a_likely_mistake_is_reported_and_the_rule_kept(rule: dict[str, object], said: str) -> None:
    """With a message that says how it was understood."""
    read = parse_job_rules([{**GOOD, **rule}])
    assert len(read.rules) == 1
    (problem,) = read.problems
    assert not problem.dropped
    assert str(problem).startswith("rule 1 (steps): ")
    assert said in str(problem)
    assert str(problem).endswith("(rule kept)")


def test_all_problems_of_a_rule_are_reported_together() -> None:
    """Who fixes one wants to know the others."""
    assert len(problems({"name": "", "logPattern": "(", "operator": "x", "metricThreshold": "y"})) == 4


def test_rules_may_share_a_name() -> None:
    """Both work; the message of one must not be taken for the other's."""
    read = parse_job_rules([GOOD, GOOD])
    assert [rule.number for rule in read.rules] == [1, 2]
    assert [str(problem) for problem in read.problems] == [
        "rule 2 (steps): name: used by an earlier rule too (rule kept)"
    ]


@pytest.mark.parametrize(
    ("document", "said"),
    [
        (None, "must be a list of rules, found nothing"),
        ("x", "must be a list of rules, found 'x'"),
        ({"rules": []}, "must be a list of rules, or an object with logMonitoringConfiguration and nothing else"),
        ({"logMonitoringConfiguration": 3}, "must be a list of rules, found 3"),
    ],
)
def test_what_is_no_configuration_leaves_no_rules(document: object, said: str) -> None:
    """One problem, about the whole."""
    read = parse_job_rules(document)
    assert read.rules == ()
    assert [str(problem) for problem in read.problems] == [said]


@pytest.mark.parametrize("item", [None, 7, "x", [], [GOOD]])
def test_what_is_no_rule_costs_only_itself(item: object) -> None:
    """Its neighbours work."""
    read = parse_job_rules([GOOD, item, {**GOOD, "name": "last"}])
    assert [rule.number for rule in read.rules] == [1, 3]
    assert str(read.problems[0]).startswith("rule 2: must be an object, found ")


def test_the_list_may_stand_in_its_object() -> None:
    """As it is cut out of a job's manifest."""
    text = json.dumps({"logMonitoringConfiguration": [GOOD]}).encode()
    assert read_job_rules(text).rules == parse_job_rules([GOOD]).rules


@pytest.mark.parametrize(
    "data", [b"", b"\xff", b"[", b"[" * 100_000, b"- name: x", b" " * (CONFIGURATION_BYTES_MAX + 1)]
)
def test_a_text_that_cannot_be_read_leaves_no_rules(data: bytes) -> None:
    """And says why in one line."""
    read = read_job_rules(data)
    assert read.rules == ()
    (problem,) = read.problems
    assert problem.dropped
    assert str(problem).isprintable()


def test_there_are_bounds() -> None:
    """On the number of rules and on what their patterns cost together; what is within them works."""
    read = parse_job_rules([{**GOOD, "name": f"r{number}"} for number in range(RULES_MAX + 2)])
    assert len(read.rules) == RULES_MAX
    assert str(read.problems[-1]) == f"rule {RULES_MAX + 1}: at most {RULES_MAX} rules are used; 2 are left out"
    large = [{"name": f"r{number}", "logPattern": f"{number}[ab]{{900}}" * 3} for number in range(12)]
    read = parse_job_rules([*large, GOOD])
    assert 5 <= len(read.rules) < 12
    assert read.rules[-1].name == "steps"
    assert all("too large" in str(problem) and problem.key == "logPattern" for problem in read.problems)
    assert PROGRAMS_SIZE_MAX >= 5 * 2_700


def test_problems_are_located_in_their_file() -> None:
    """The file first, as compilers do it."""
    read = parse_job_rules([{"name": "x", "logPattern": "("}])
    assert located(read.problems, "rules.json") == [
        "rules.json: rule 1 (x): logPattern: missing ), unterminated subpattern at character 1"
    ]


def test_what_a_state_leads_to() -> None:
    """Faults are crashes and silence is a hang; slow opens an incident only where the job itself says what is slow."""
    job, site = parse_job_rules([GOOD]).rules[0], parse_job_rules([GOOD], of_job=False).rules[0]
    for rule in (job, site):
        assert incident_kind(rule, LogState.FAULTED) is IncidentKind.CRASH
        assert incident_kind(rule, LogState.HANGING) is IncidentKind.HANG
        assert incident_kind(rule, LogState.HEALTHY) is incident_kind(rule, LogState.WAITING) is IncidentKind.NONE
    assert incident_kind(job, LogState.SLOW) is IncidentKind.STRAGGLER
    assert incident_kind(site, LogState.SLOW) is IncidentKind.NONE
