"""What the evaluator keeps beside the states: the line that a verdict rests on, and its words."""

from datetime import UTC, datetime, timedelta

import pytest

from advisor.core.job_rules import Batch, JobRuleEvaluator, LogState, describe, pause, resume
from advisor.rules.job_rules import parse_job_rules

NOON = datetime(2026, 11, 29, 12, tzinfo=UTC)


def after(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


def evaluator(*rules: dict[str, object]) -> JobRuleEvaluator:
    return JobRuleEvaluator(parse_job_rules([{"name": f"r{n}", **rule} for n, rule in enumerate(rules)]).rules)


def test_a_verdict_names_its_line() -> None:
    """File, number, value and text of the newest match; control characters out, length bounded."""
    judge = evaluator({"logPattern": r".*loss (\S+)", "operator": "gt", "metricThreshold": 1})
    lines = [b"x", b"\x1b[31mloss 9", b"y", b"loss 5 " + b"z" * 5_000, b"tail"]
    state = judge.read(judge.begin(NOON), Batch(lines=lines, file="rank0.log", first=40), after(3))
    (verdict,) = judge.verdicts(state, after(3))
    seen = verdict.seen
    assert (seen.last_file, seen.last_number, seen.last_value, seen.last_at) == ("rank0.log", 43, "5", after(3))
    assert seen.last_line.startswith("loss 5 zz")
    assert len(seen.last_line) <= 600
    state = judge.read(state, Batch(lines=[b"\x1b[31mloss 9\x00"]), after(4))
    assert judge.verdicts(state, after(4))[0].seen.last_line == "[31mloss 9"


def test_the_first_fault_stays() -> None:
    """What came after it is aftermath."""
    judge = evaluator({"logPattern": ".*fatal", "faultOnMatch": True})
    state = judge.read(judge.begin(NOON), Batch(lines=[b"1 fatal", b"2 fatal"]), after(1))
    state = judge.read(state, Batch(lines=[b"3 fatal"]), after(2))
    assert judge.verdicts(state, after(2))[0].seen.last_line == "1 fatal"


def test_all_hung_rules_are_told() -> None:
    """Each with how long it has been silent, not only the one that hung first."""
    judge = evaluator(
        {"logPattern": "one", "expectedRecurringFrequencyInSeconds": 5},
        {"logPattern": "two", "expectedRecurringFrequencyInSeconds": 9},
        {"logPattern": "six", "expectedStartCutOffInSeconds": 7},
    )
    state = judge.read(judge.begin(NOON), Batch(lines=[b"one", b"two"]), after(2))
    verdicts = judge.verdicts(state, after(20))
    assert [verdict.state for verdict in verdicts] == [LogState.HANGING] * 3
    assert [verdict.silent_seconds for verdict in verdicts] == [18.0, 18.0, 20.0]
    assert [describe(verdict) for verdict in verdicts] == [
        "rule 1 (r0): its line has not come again in 5 s",
        "rule 2 (r1): its line has not come again in 9 s",
        "rule 3 (r2): its first line has not come in 7 s",
    ]


def test_every_state_has_its_words() -> None:
    """One sentence each."""
    judge = evaluator(
        {"logPattern": ".*fatal", "faultOnMatch": True},
        {"logPattern": r"took (\d+)", "operator": "gteq", "metricThreshold": 7, "metricEvaluationDataPoints": 2},
        {"logPattern": "step"},
        {"logPattern": "never", "stopPattern": "end"},
        {"logPattern": "never"},
    )
    lines = [b"fatal", b"took 7", b"took 8", b"step", b"end"]
    state = judge.read(judge.begin(NOON), Batch(lines=lines), after(1))
    assert [describe(verdict) for verdict in judge.verdicts(state, after(1))] == [
        "rule 1 (r0): a line that means a fault came",
        "rule 2 (r1): value 8 is gteq 7, 2 times in a row",
        "rule 3 (r2): healthy",
        "rule 4 (r3): its stopPattern came",
        "rule 5 (r4): nothing to judge yet",
    ]


def test_unreadable_values_are_counted() -> None:
    """So that a pattern that takes the wrong part of its line can be told from a good one."""
    judge = evaluator({"logPattern": r"took (\S+)", "operator": "gt", "metricThreshold": 7})
    state = judge.read(judge.begin(NOON), Batch(lines=[b"took long", b"took 3", b"took longer"]), after(1))
    assert judge.verdicts(state, after(1))[0].seen.unreadable == 2


def test_pausing_and_resuming_twice_is_once() -> None:
    """Whoever reports a pause may report it again; a clock that went back adds no time."""
    judge = evaluator({"logPattern": "x", "expectedStartCutOffInSeconds": 5})
    state = pause(pause(judge.begin(NOON), after(3)), after(30))
    state = resume(resume(state, after(40)), after(50))
    assert state.paused == timedelta(seconds=37)
    assert judge.overall(state, after(42)) is LogState.WAITING
    assert judge.overall(state, after(43)) is LogState.HANGING
    assert resume(pause(state, after(60)), after(50)).paused == timedelta(seconds=37)


def test_a_clock_that_goes_back_does_not_age_a_match() -> None:
    """The newest match keeps its time."""
    judge = evaluator({"logPattern": "x", "expectedRecurringFrequencyInSeconds": 5})
    state = judge.read(judge.begin(NOON), Batch(lines=[b"x"]), after(100))
    state = judge.read(state, Batch(lines=[b"x"]), after(10))
    assert judge.overall(state, after(105)) is LogState.HEALTHY
    assert judge.overall(state, after(106)) is LogState.HANGING


def test_no_rules_wait() -> None:
    """A job without rules has nothing to say."""
    judge = evaluator()
    state = judge.read(judge.begin(NOON), Batch(lines=[b"x"]), NOON)
    assert judge.overall(state, after(1e6)) is LogState.WAITING


def test_the_state_of_other_rules_is_refused() -> None:
    """A mix-up is a defect of the caller, not a verdict."""
    one, two = evaluator({"logPattern": "x"}), evaluator({"logPattern": "x"}, {"logPattern": "y"})
    with pytest.raises(ValueError, match="does not belong"):
        two.verdicts(one.begin(NOON), NOON)
    with pytest.raises(ValueError, match="does not belong"):
        two.read(one.begin(NOON), Batch(lines=[b"x"]), NOON)
