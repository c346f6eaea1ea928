"""Job-defined log rules: what each rule of HyperPod's `logMonitoringConfiguration` says about an attempt, by its lines.

`JobRuleEvaluator` holds compiled patterns only. Everything that was seen is in a `JobRulesState`, a frozen value that
dies with its attempt: another replica continues where a dead one stopped. Time comes in by argument and counts while
the attempt is not paused. The format is read by `advisor.rules.job_rules`; lines are made of bytes by `job_lines`.

A hang is nothing that happens: it is how long ago something happened, so it is worked out when asked (`verdicts`), and
reading a log in one piece or in many, with or without idle polls between, gives the same answer. What the original
does and where we differ on purpose: docs/decisions/0003-job-rule-quirks.md.
"""

import math
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, assert_never, cast

import re2

from advisor.core.lines import cap, decode
from advisor.core.model import Signal
from advisor.core.words import IncidentKind

# Signals of these rules say what rules say; `fields["of"]` is whose they are.
JOB_FAULT, JOB_HANG, JOB_SLOW = "job.fault", "job.hang", "job.slow"
OWN, SITE = "job", "site"
VALUE_CHARS_MAX = 60
LINES_MAX = 4096  # of one `read` at most, by whoever splits: so that its cost is bounded
HITS_MAX = 8192  # of one `read` that are judged one by one, all rules together: the newest of each
PATTERN_MEMORY_BYTES = 1 << 20  # of one compiled pattern and its automaton; RE2 stays linear when it runs out
# A set has no second way when its automaton does not fit: this is several times what the largest configuration that
# `advisor.rules.job_rules` lets through needs (20,000 instructions, 20 states of 80 kB).
SET_MEMORY_BYTES = 16 << 20


class LogState(StrEnum):
    """What one rule, or all of them, say about an attempt. Values are the original's."""

    WAITING = "WAITING"  # nothing to judge yet
    HEALTHY = "HEALTHY"
    SLOW = "SLOW"  # the value was out of bounds often enough in a row
    HANGING = "HANGING"  # the expected line did not come in time
    FAULTED = "FAULTED"  # a line that means a fault came; stays


_WORST_FIRST = (LogState.FAULTED, LogState.HANGING, LogState.SLOW, LogState.HEALTHY)


class Comparison(StrEnum):
    """When a value is out of bounds: value `gt` threshold, and so on. Values are the format's."""

    GT = "gt"
    LT = "lt"
    EQ = "eq"
    GTEQ = "gteq"
    LTEQ = "lteq"


@dataclass(frozen=True, slots=True, kw_only=True)
class LogRule:
    """One rule, checked. `log_re2` and `stop_re2` are what runs; the patterns as written are what people see.

    `number` is the rule's place in its configuration, from 1: names may repeat.
    """

    number: int
    name: str
    log_pattern: str
    log_re2: str
    stop_pattern: str | None = None  # None = the rule never ends
    stop_re2: str | None = None
    start_cutoff_seconds: float | None = None  # the first match must have come by then
    recurring_seconds: float | None = None  # after a match the next one must come within
    metric_threshold: float | None = None
    comparison: Comparison | None = None
    data_points: int = 1  # values out of bounds in a row that make it SLOW
    fault_on_match: bool = False
    slow_opens_incident: bool = True  # the job says itself what is too slow for it; a site's rule only shows it


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleState:
    """What one rule has seen. `judged` is its state apart from silence."""

    judged: LogState = LogState.WAITING
    ended: bool = False  # its stopPattern came
    matched: timedelta | None = None  # on the attempt's own clock, pauses left out
    breaches: int = 0  # in a row
    unreadable: int = 0  # matches whose value was no number
    last_at: datetime | None = None
    last_line: str = ""  # of the newest match, capped; of the first fault
    last_value: str = ""
    last_file: str = ""
    last_number: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRulesState:
    """What all rules of one attempt have seen. `rules` is in the evaluator's order."""

    begun_at: datetime
    rules: tuple[RuleState, ...]
    paused_at: datetime | None = None
    paused: timedelta = timedelta(0)  # earlier pauses, together
    late: bool = False  # lines came before it was begun: whether one of them was a rule's first is not known


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleVerdict:
    """What one rule says now, with the line that it rests on (none yet: `last_at` is None)."""

    rule: LogRule
    state: LogState
    silent_seconds: float | None = None  # HANGING: since the last match, or the start
    seen: RuleState


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Complete lines of one file in order, without their ends. `first` is the number of the first one, from 1."""

    lines: Sequence[bytes]
    file: str = ""
    first: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    """Lines as patterns see them, and when they were read: `active` on the attempt's own clock."""

    batch: Batch
    lines: Sequence[bytes]
    now: datetime
    active: timedelta


def compile_pattern(text: str) -> Any:
    """An RE2 pattern over UTF-8 bytes. Raises `re2.error`.

    UTF-8 and not Latin-1 as in `scan`: these patterns are their users' own, `.` is one character there and `\\d` every
    digit. Lines are made valid first, so that no broken byte hides one.
    """
    return re2.compile(text.encode("ascii"), _options(PATTERN_MEMORY_BYTES))


def _options(memory_bytes: int) -> Any:
    options = re2.Options()
    options.log_errors = False
    options.max_mem = memory_bytes
    return options


class JobRuleEvaluator:
    """The rules of one job, compiled once; every method is pure. Rules do not see each other.

    One anchored set finds which patterns match a line; a pattern runs by itself only where its value is needed.
    """

    def __init__(self, rules: Sequence[LogRule]) -> None:
        self.rules = tuple(rules)
        self._log = tuple(compile_pattern(rule.log_re2) for rule in self.rules)
        self._set = re2.Set.MatchSet(_options(SET_MEMORY_BYTES))
        for rule in self.rules:
            self._set.Add(rule.log_re2.encode("ascii"))
        self._stop_of: dict[int, int] = {}  # rule by the number of its stopPattern in the set
        for index, rule in enumerate(self.rules):
            if rule.stop_re2 is not None:
                self._stop_of[self._set.Add(rule.stop_re2.encode("ascii"))] = index
        if self.rules:
            self._set.Compile()

    def begin(self, now: datetime, *, late: bool = False) -> JobRulesState:
        """The state of an attempt that starts now, before its first line. Also after a restart inside the job.

        `late`: lines of the attempt came before. Then no rule hangs because its first line has not come.
        """
        return JobRulesState(begun_at=now, rules=(RuleState(),) * len(self.rules), late=late)

    def read(self, state: JobRulesState, batch: Batch, now: datetime) -> JobRulesState:
        """The state after these lines, all of them read now. While paused, their time is the pause's start."""
        seen = self._of(state)
        if not seen or not batch.lines:
            return state
        found = _Found(
            batch=batch, lines=[_text(line) for line in batch.lines], now=now, active=active_time(state, now)
        )
        most = HITS_MAX // len(seen)
        hits: list[deque[int]] = [deque(maxlen=most) for _ in seen]
        stops: dict[int, int] = {}
        for offset, line in enumerate(found.lines):
            for pattern in self._set.Match(line) or ():
                if pattern < len(hits):
                    if not (hits[pattern] and self.rules[pattern].fault_on_match):  # of a fault the first is shown
                        hits[pattern].append(offset)
                else:
                    stops.setdefault(self._stop_of[pattern], offset)
        rules = tuple(
            self._fold(index, rule, found, list(hits[index]), stops.get(index)) for index, rule in enumerate(seen)
        )
        return replace(state, rules=rules)

    def verdicts(self, state: JobRulesState, now: datetime) -> tuple[RuleVerdict, ...]:
        """What each rule says now, in their order. While paused, every one waits."""
        active = active_time(state, now)
        return tuple(
            RuleVerdict(rule=rule, state=LogState.WAITING, seen=seen)
            if state.paused_at is not None
            else _verdict(rule, seen, active, late=state.late)
            for rule, seen in zip(self.rules, self._of(state), strict=True)
        )

    def overall(self, state: JobRulesState, now: datetime) -> LogState:
        """What the rules say together: the worst of them."""
        return worst(verdict.state for verdict in self.verdicts(state, now))

    def _of(self, state: JobRulesState) -> tuple[RuleState, ...]:
        if len(state.rules) != len(self.rules):
            raise ValueError(f"a state of {len(state.rules)} rules does not belong to these {len(self.rules)}")
        return state.rules

    def _fold(self, index: int, seen: RuleState, found: _Found, hits: Sequence[int], stop: int | None) -> RuleState:
        """One rule after the lines that it matches (`hits`) and the first that ends it, as offsets.

        Within a line the order is the original's: fault, end, value.
        """
        if seen.ended or seen.judged is LogState.FAULTED:
            return seen
        rule = self.rules[index]
        if stop is not None:
            hits = hits[: bisect_right(hits, stop)]
        if rule.fault_on_match and hits:
            hits = hits[:1]
            seen = replace(seen, judged=LogState.FAULTED)
        else:
            for offset in hits:
                seen = self._judge(index, seen, found.lines[offset])
            if stop is not None:
                seen = replace(seen, judged=LogState.HEALTHY, ended=True)
        if not hits:
            return seen
        newest = found.lines[hits[-1]]
        captured = self._captured(index, newest) or b""
        return replace(
            seen,
            matched=found.active if seen.matched is None else max(found.active, seen.matched),
            last_at=found.now,
            last_line=cap(decode(newest.removesuffix(b"\n"))),
            last_value=cap(decode(captured), VALUE_CHARS_MAX),
            last_file=found.batch.file,
            last_number=found.batch.first + hits[-1],
        )

    def _judge(self, index: int, seen: RuleState, line: bytes) -> RuleState:
        """A match that is neither fault nor end. A value that cannot be read is no data point and changes no state."""
        rule = self.rules[index]
        if rule.metric_threshold is None or rule.comparison is None or not self._log[index].groups:
            return seen if seen.judged is LogState.HEALTHY else replace(seen, judged=LogState.HEALTHY)
        value = _number(self._captured(index, line))
        if value is None:
            return replace(seen, unreadable=seen.unreadable + 1)
        if not breaches(rule.comparison, value, rule.metric_threshold):
            if seen.judged is LogState.HEALTHY and not seen.breaches:
                return seen
            return replace(seen, judged=LogState.HEALTHY, breaches=0)
        count = seen.breaches + 1
        return replace(seen, judged=LogState.SLOW if count >= rule.data_points else LogState.HEALTHY, breaches=count)

    def _captured(self, index: int, line: bytes) -> bytes | None:
        """What group 1 took of a line that matches; None when it took nothing, or there is none."""
        log = self._log[index]
        match = log.match(line) if log.groups else None
        return None if match is None else cast("bytes | None", match.group(1))


def pause(state: JobRulesState, now: datetime) -> JobRulesState:
    """The attempt is suspended: its clock stands still. Pausing twice is pausing once."""
    return state if state.paused_at is not None else replace(state, paused_at=now)


def resume(state: JobRulesState, now: datetime) -> JobRulesState:
    """The attempt goes on: nobody waited for its lines meanwhile."""
    if state.paused_at is None:
        return state
    return replace(state, paused_at=None, paused=state.paused + max(now - state.paused_at, timedelta(0)))


def anew(state: JobRulesState, at: datetime, now: datetime) -> JobRulesState:
    """The clock was set at `at`: how long ago anything before was is not known any more, and silence is counted from
    then, or from what was heard since. What was read keeps its meaning.
    """
    rules = tuple(_anew(state, seen, at, now) for seen in state.rules)
    paused_at = None if state.paused_at is None else max(at, min(state.paused_at, now))
    return replace(state, begun_at=at, rules=rules, paused_at=paused_at, paused=timedelta(0))


def _anew(state: JobRulesState, seen: RuleState, at: datetime, now: datetime) -> RuleState:
    if seen.matched is None or seen.last_at is None:
        return seen
    heard = state.begun_at + state.paused + seen.matched  # pauses since are left out, too
    if at <= heard <= now:
        return replace(seen, matched=heard - at)
    return replace(seen, matched=timedelta(0), last_at=min(seen.last_at, at))


def active_time(state: JobRulesState, now: datetime) -> timedelta:
    """How long the attempt has been running, pauses left out."""
    return (now if state.paused_at is None else state.paused_at) - state.begun_at - state.paused


def worst(states: Iterable[LogState]) -> LogState:
    """FAULTED, HANGING, SLOW, HEALTHY, and WAITING when there is nothing else."""
    found = frozenset(states)
    return next((state for state in _WORST_FIRST if state in found), LogState.WAITING)


def is_asked_hang(signal: Signal) -> bool:
    """A rule of the job's own says that it hangs: that is for the job to say, of a site's rules it is not."""
    return signal.rule == JOB_HANG and signal.fields.get("of") == OWN


def incident_kind(rule: LogRule, state: LogState) -> IncidentKind:
    """What a rule's state leads to. NONE: it is shown, and nothing is done about it."""
    match state:
        case LogState.FAULTED:
            return IncidentKind.CRASH
        case LogState.HANGING:
            return IncidentKind.HANG
        case LogState.SLOW:
            return IncidentKind.STRAGGLER if rule.slow_opens_incident else IncidentKind.NONE
        case LogState.HEALTHY | LogState.WAITING:
            return IncidentKind.NONE
        case _:
            assert_never(state)


def describe(verdict: RuleVerdict) -> str:
    """What a rule says, in one sentence for people. The line that it rests on is beside it, in `seen`."""
    rule, seen = verdict.rule, verdict.seen
    label = f"rule {rule.number} ({rule.name})"
    match verdict.state:
        case LogState.FAULTED:
            return f"{label}: a line that means a fault came"
        case LogState.HANGING if seen.matched is None:
            return f"{label}: its first line has not come in {rule.start_cutoff_seconds:g} s"
        case LogState.HANGING:
            return f"{label}: its line has not come again in {rule.recurring_seconds:g} s"
        case LogState.SLOW:
            times = f", {seen.breaches} times in a row" if seen.breaches > 1 else ""
            return f"{label}: value {seen.last_value} is {rule.comparison} {rule.metric_threshold:g}{times}"
        case LogState.HEALTHY:
            return f"{label}: its stopPattern came" if seen.ended else f"{label}: healthy"
        case LogState.WAITING:
            return f"{label}: nothing to judge yet"
        case _:
            assert_never(verdict.state)


def _verdict(rule: LogRule, seen: RuleState, active: timedelta, *, late: bool) -> RuleVerdict:
    awaited = seen.matched is not None or not late
    if seen.ended or seen.judged is LogState.FAULTED or not awaited or not _silent(rule, seen, active):
        return RuleVerdict(rule=rule, state=seen.judged, seen=seen)
    return RuleVerdict(rule=rule, state=LogState.HANGING, silent_seconds=_silence(seen, active), seen=seen)


def _silence(seen: RuleState, active: timedelta) -> float:
    return (active if seen.matched is None else active - seen.matched).total_seconds()


def _silent(rule: LogRule, seen: RuleState, active: timedelta) -> bool:
    """Longer than the rule allows, strictly: at the limit itself all is well."""
    limit = rule.start_cutoff_seconds if seen.matched is None else rule.recurring_seconds
    return limit is not None and _silence(seen, active) > limit


def breaches(comparison: Comparison, value: float, threshold: float) -> bool:
    """Is a value out of bounds? NaN always is: it compares false with everything and is never good news."""
    if math.isnan(value):
        return True
    match comparison:
        case Comparison.GT:
            return value > threshold
        case Comparison.LT:
            return value < threshold
        case Comparison.EQ:
            return value == threshold
        case Comparison.GTEQ:
            return value >= threshold
        case Comparison.LTEQ:
            return value <= threshold
        case _:
            assert_never(comparison)


def _number(captured: bytes | None) -> float | None:
    """As Python's `float` reads it, like the original: other digits, `1_000`, `1e3`, `inf` and `nan` are numbers."""
    if captured is None:
        return None
    try:
        return float(captured.decode("utf-8", "replace"))
    except ValueError:
        return None


def _text(line: bytes) -> bytes:
    """A line as patterns see it: valid UTF-8, with the newline that ends it."""
    return (line if line.isascii() else line.decode("utf-8", "replace").encode("utf-8")) + b"\n"
