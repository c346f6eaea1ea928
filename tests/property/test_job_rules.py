"""Job-defined rules: the same answer however lines arrive and states travel, whatever a job writes into them."""

import re
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from advisor.core.codec import decode, encode
from advisor.core.job_lines import Tail, settle, split
from advisor.core.job_rules import (
    Batch,
    Comparison,
    JobRuleEvaluator,
    JobRulesState,
    LogRule,
    LogState,
    breaches,
    describe,
    incident_kind,
    pause,
    resume,
)
from advisor.rules.job_rules import parse_job_rules, read_job_rules
from tests.cost import within

NOON = datetime(2026, 11, 29, 12, tzinfo=UTC)

log_patterns = st.sampled_from(
    [r"ms (\S+)", r".*step(?: (\d+))?", "a", ".*b$", r"(\d*)", "", r".*\d+\s", "(?i).*FATAL", "(a|b)+ (.)"]
)
stop_patterns = st.none() | st.sampled_from(["end", ".*z", "", "ms 7"])
limits = st.none() | st.sampled_from([0, 1, 2, 3.5, 5, "4"])
configurations = st.lists(
    st.fixed_dictionaries(
        {"name": st.sampled_from(["r", "s"]), "logPattern": log_patterns},
        optional={
            "stopPattern": stop_patterns,
            "expectedStartCutOffInSeconds": limits,
            "expectedRecurringFrequencyInSeconds": limits,
            "metricThreshold": st.sampled_from([5, 6.5, "7"]),
            "operator": st.sampled_from(list(Comparison)),
            "metricEvaluationDataPoints": st.sampled_from([1, 2, 3]),
            "faultOnMatch": st.booleans(),
        },
    ),
    min_size=1,
    max_size=4,
)
lines = st.sampled_from(
    [
        b"ms 7",
        b"ms 9",
        b"ms 1",
        b"ms nan",
        b"ms ?",
        b"step",
        b"step 6",
        b"a",
        b"b",
        b"fatal",
        b"end",
        b"x z",
        b"",
        b"\xff",
    ]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Some seconds pass, then lines come, or the job is stopped or goes on."""

    seconds: float
    lines: tuple[bytes, ...] = ()
    pause: bool = False
    resume: bool = False


events = st.lists(
    st.builds(
        Event,
        seconds=st.sampled_from([0, 0.5, 1, 2, 4, 6]),
        lines=st.lists(lines, max_size=4).map(tuple),
        pause=st.integers(0, 9).map(lambda n: n == 0),
        resume=st.integers(0, 3).map(lambda n: n == 0),
    ),
    max_size=12,
)


def rules_of(configuration: list[dict[str, object]]) -> tuple[LogRule, ...]:
    rules = parse_job_rules(configuration).rules
    assert len(rules) == len(configuration)
    return rules


def step(judge: JobRuleEvaluator, state: JobRulesState, event: Event, now: datetime) -> JobRulesState:
    if event.pause:
        state = pause(state, now)
    if event.resume:
        state = resume(state, now)
    return judge.read(state, Batch(lines=event.lines), now)


def run(judge: JobRuleEvaluator, story: list[Event]) -> list[list[LogState]]:
    """What every rule says after each event, and a while after the last one."""
    state, now, told = judge.begin(NOON), NOON, []
    for event in [*story, Event(seconds=3)]:
        now += timedelta(seconds=event.seconds)
        state = step(judge, state, event, now)
        told.append([verdict.state for verdict in judge.verdicts(state, now)])
    return told


class Obvious:
    """One rule, judged by `re` on every line in turn, as the documentation tells it: the oracle."""

    def __init__(self, rule: LogRule) -> None:
        self.rule = rule
        self.state = LogState.WAITING
        self.matched: float | None = None
        self.breaches = 0
        self.over = False

    def line(self, line: bytes, active: float) -> None:
        if self.over or self.state is LogState.FAULTED:
            return
        rule, text = self.rule, line.decode("utf-8", "replace") + "\n"
        match = re.match(rule.log_pattern, text)
        if match:
            self.matched = active
        if match and rule.fault_on_match:
            self.state = LogState.FAULTED
        elif rule.stop_pattern is not None and re.match(rule.stop_pattern, text):
            self.over, self.state = True, LogState.HEALTHY
        elif match:
            self.value(match)

    def value(self, match: re.Match[str]) -> None:
        rule = self.rule
        if rule.metric_threshold is None or rule.comparison is None or not match.re.groups:
            self.state = LogState.HEALTHY
            return
        try:
            value = float(match.group(1))
        except (TypeError, ValueError):
            return
        self.breaches = self.breaches + 1 if breaches(rule.comparison, value, rule.metric_threshold) else 0
        self.state = LogState.SLOW if self.breaches >= rule.data_points else LogState.HEALTHY

    def told(self, active: float) -> LogState:
        if self.over or self.state is LogState.FAULTED:
            return self.state
        since, limit = self.matched, self.rule.recurring_seconds
        if since is None:
            since, limit = 0.0, self.rule.start_cutoff_seconds
        return LogState.HANGING if limit is not None and active - since > limit else self.state


@given(configurations, events)
def test_the_set_says_what_the_obvious_loop_says(configuration: list[dict[str, object]], story: list[Event]) -> None:
    """Scanning by one set and folding hits gives the states of judging each line by each rule with `re`."""
    rules = rules_of(configuration)
    oracles = [Obvious(rule) for rule in rules]
    active, stopped, expected = 0.0, False, []
    for event in [*story, Event(seconds=3)]:
        active += 0.0 if stopped else event.seconds
        stopped = (stopped or event.pause) and not event.resume
        for oracle in oracles:
            for line in event.lines:
                oracle.line(line, active)
        expected.append([LogState.WAITING if stopped else oracle.told(active) for oracle in oracles])
    assert run(JobRuleEvaluator(rules), story) == expected


@given(configurations, events, st.integers(0, 11))
def test_a_stored_state_has_the_same_future(
    configuration: list[dict[str, object]], story: list[Event], cut: int
) -> None:
    """Another replica, with rules and state read back from the store, goes on where the first one stopped."""
    rules = rules_of(configuration)
    judge = JobRuleEvaluator(rules)
    other = JobRuleEvaluator(decode(tuple[LogRule, ...], encode(rules)))
    one, now = judge.begin(NOON), NOON
    two = one
    for index, event in enumerate(story):
        now += timedelta(seconds=event.seconds)
        one, two = step(judge, one, event, now), step(other if index >= cut else judge, two, event, now)
        if index == cut:
            two = decode(JobRulesState, encode(two))
        assert one == two
        assert encode(one) == encode(two)


@given(configurations, events)
def test_reading_in_smaller_pieces_changes_nothing(configuration: list[dict[str, object]], story: list[Event]) -> None:
    """Lines of one moment one by one, with a look after each, leave the same state as all at once."""
    judge = JobRuleEvaluator(rules_of(configuration))
    whole, pieces, now = judge.begin(NOON), judge.begin(NOON), NOON
    for event in story:
        now += timedelta(seconds=event.seconds)
        whole = step(judge, whole, event, now)
        pieces = step(judge, pieces, replace(event, lines=()), now)
        for number, line in enumerate(event.lines, 1):
            pieces = judge.read(pieces, Batch(lines=(line,), first=number), now)
            judge.verdicts(pieces, now)
        assert whole == pieces


@given(configurations, events, st.randoms(use_true_random=False))
def test_rules_do_not_see_each_other(
    configuration: list[dict[str, object]], story: list[Event], random: object
) -> None:
    """In another order, or alone, each rule says the same."""
    rules = rules_of(configuration)
    order = list(range(len(rules)))
    random.shuffle(order)  # type: ignore[attr-defined]  # Hypothesis gives a random.Random
    together = run(JobRuleEvaluator(rules), story)
    shuffled = run(JobRuleEvaluator([rules[index] for index in order]), story)
    assert [[told[index] for index in order] for told in together] == shuffled
    alone = [run(JobRuleEvaluator([rule]), story) for rule in rules]
    assert together == [[told[0] for told in moment] for moment in zip(*alone, strict=True)]


@given(configurations, events)
def test_a_fault_stays(configuration: list[dict[str, object]], story: list[Event]) -> None:
    """Once FAULTED, a rule says nothing else for the rest of its attempt, but waits while it is paused."""
    faulted = [False] * len(configuration)
    for told in run(JobRuleEvaluator(rules_of(configuration)), story):
        for index, state in enumerate(told):
            assert not faulted[index] or state in {LogState.FAULTED, LogState.WAITING}
            faulted[index] = faulted[index] or state is LogState.FAULTED


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20) | st.just(10**4000),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3),
    max_leaves=5,
)
keys = st.sampled_from(
    ["name", "logPattern", "stopPattern", "expectedStartCutOffInSeconds", "expectedRecurringFrequencyInSeconds",
     "metricThreshold", "operator", "metricEvaluationDataPoints", "faultOnMatch", "\x1b[2J"]
)  # fmt: skip
hostile_patterns = st.one_of(
    st.text(max_size=30),
    st.text(st.sampled_from(r"ab.*+?{}()[]|\^$-1,:dDwWsSbBZAuxNPi<>=!#&~ "), max_size=25),
    st.sampled_from(["(a+)+$", "(.*)*$", "(?:a?){200}a{200}", r"(\w*)*\s", "((((a*)*)*)*)*b", ".*" * 50 + "x"]),
)
hostile_rules = st.dictionaries(keys, values, max_size=9) | st.fixed_dictionaries(
    {"name": st.just("x"), "logPattern": hostile_patterns}, optional={"stopPattern": hostile_patterns}
)
hostile = st.lists(hostile_rules | values, max_size=4)


@given(hostile | values, st.lists(st.binary(max_size=60), max_size=5))
def test_nothing_a_job_writes_raises(document: object, pieces: list[bytes]) -> None:
    """Any configuration gives rules and located problems, any bytes give states, and all of them can be stored."""
    read = parse_job_rules(document)
    for problem in read.problems:
        assert str(problem).isprintable()
    judge = JobRuleEvaluator(read.rules)
    state, tail, now = judge.begin(NOON), Tail(), NOON
    for piece in pieces:
        now += timedelta(seconds=7)
        tail, batch = settle(tail, now)
        state = judge.read(state, batch, now)
        tail, batch = split(tail, piece, now)
        state = judge.read(state, batch, now)
    assert decode(JobRulesState, encode(state)) == state
    assert decode(Tail, encode(tail)) == tail
    for verdict in judge.verdicts(state, now):
        assert describe(verdict).isprintable()
        incident_kind(verdict.rule, verdict.state)


@given(st.binary(max_size=80) | st.text(max_size=80).map(str.encode))
def test_any_bytes_are_a_configuration_or_are_refused(data: bytes) -> None:
    """A file that holds something else leaves no rules and one problem."""
    read = read_job_rules(data)
    assert read.rules or read.problems or data.strip() in {b"[]", b'{"logMonitoringConfiguration":[]}'}


@pytest.mark.parametrize(
    "pattern", ["(a+)+$", "(a|aa)+$", "(.*a){12}$", r"(\w+\s?)*!", "(?:a?){300}a{300}!", "([a-z]+)*x$"]
)
def test_no_pattern_takes_exponential_time(pattern: str) -> None:
    """64 KiB of what makes a backtracking matcher run for ever are over in seconds, in a set with others too."""
    judge = JobRuleEvaluator(rules_of([{"name": "x", "logPattern": pattern}, {"name": "y", "logPattern": ".*(b)"}]))
    hard = b"a" * 65_000 + b"\x00"
    state = within(20.0, lambda: judge.read(judge.begin(NOON), Batch(lines=[hard, b"a b"]), NOON))
    assert judge.verdicts(state, NOON)[1].state is LogState.HEALTHY
