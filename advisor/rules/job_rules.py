"""Read job-defined rules: HyperPod's `logMonitoringConfiguration`, as it is.

One bad rule costs that rule only: it is reported by its place, name and key, and the others work. What can be
understood but looks like a mistake is reported too, and the rule kept. Nothing here raises on any input: a job whose
rules cannot be read is a job without rules, and its owner is told.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from advisor.core.job_rules import Comparison, LogRule
from advisor.rules.python_patterns import Pattern, PatternError, compilable

RULES_MAX = 50
PROGRAMS_SIZE_MAX = 20_000  # of all patterns of one job together, in RE2's instructions
NAME_CHARS_MAX = 200
CONFIGURATION_BYTES_MAX = 256 << 10
LIST_KEY = "logMonitoringConfiguration"

_KEYS = frozenset(
    {
        "name",
        "logPattern",
        "stopPattern",
        "expectedStartCutOffInSeconds",
        "expectedRecurringFrequencyInSeconds",
        "metricThreshold",
        "operator",
        "metricEvaluationDataPoints",
        "faultOnMatch",
    }
)
_YES = frozenset({"true", "yes", "on", "1"})
_NO = frozenset({"false", "no", "off", "0", ""})


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleProblem:
    """One thing that is wrong with a configuration. `number` is the rule's place from 1, None for the whole of it."""

    number: int | None = None
    name: str = ""
    key: str = ""
    text: str
    dropped: bool  # the rule, or all of it, is not used

    def __str__(self) -> str:
        place = "" if self.number is None else f"rule {self.number}{f' ({self.name})' if self.name else ''}: "
        return f"{place}{f'{self.key}: ' if self.key else ''}{self.text}{'' if self.dropped else ' (rule kept)'}"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRules:
    """The rules that work, in their order, and everything that is wrong with the rest."""

    rules: tuple[LogRule, ...] = ()
    problems: tuple[RuleProblem, ...] = ()


def read_job_rules(data: bytes, *, of_job: bool = True) -> JobRules:
    """Rules from a JSON text: the list itself, or an object with it under `logMonitoringConfiguration`."""
    if len(data) > CONFIGURATION_BYTES_MAX:
        return _nothing(f"larger than {CONFIGURATION_BYTES_MAX} bytes")
    try:
        document = json.loads(data.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        return _nothing(f"not JSON: {error}")
    return parse_job_rules(document, of_job=of_job)


def parse_job_rules(document: object, *, of_job: bool = True) -> JobRules:
    """Rules from a decoded list, or from an object with it under `logMonitoringConfiguration`.

    `of_job`: the job itself asks for it, so a rule that finds it too slow opens an incident; a site's only shows it.
    """
    if isinstance(document, Mapping):
        if list(document) != [LIST_KEY]:
            return _nothing(f"must be a list of rules, or an object with {LIST_KEY} and nothing else")
        document = document[LIST_KEY]
    if not isinstance(document, list | tuple):
        return _nothing(f"must be a list of rules, found {_found(document)}")
    problems: list[RuleProblem] = []
    rules: list[LogRule] = []
    size = 0
    for number, table in enumerate(document[:RULES_MAX], 1):
        reading = _Reading(number=number, table=table if isinstance(table, Mapping) else {}, size=size)
        if isinstance(table, Mapping):
            rule = reading.rule()
            if rule is not None:
                if any(rule.name == other.name for other in rules):
                    reading.warn("name", "used by an earlier rule too")
                rules.append(replace(rule, slow_opens_incident=of_job))
                size = reading.size
        else:
            reading.refuse("", f"must be an object, found {_found(table)}")
        problems.extend(reading.problems)
    if len(document) > RULES_MAX:
        text = f"at most {RULES_MAX} rules are used; {len(document) - RULES_MAX} are left out"
        problems.append(RuleProblem(number=RULES_MAX + 1, text=text, dropped=True))
    return JobRules(rules=tuple(rules), problems=tuple(problems))


def _nothing(text: str) -> JobRules:
    return JobRules(problems=(RuleProblem(text=text, dropped=True),))


def _found(value: object) -> str:
    """What a value is, for a message: short, and on one line."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f"'{_short(value)}'"
    if isinstance(value, float) or (isinstance(value, int) and abs(value) < 10**30):
        return str(value)
    return "a huge number" if isinstance(value, int) else type(value).__name__


def _short(text: str) -> str:
    plain = ascii(text[:41])[1:-1]
    return plain if len(text) <= 40 else f"{plain[:36]} ..."


class _Reading:
    """One rule being read: its problems so far. Lives as long as the call."""

    def __init__(self, *, number: int, table: Mapping[Any, Any], size: int) -> None:
        self.number = number
        self.table = table
        self.size = size  # of the rules that are in use, then with this one
        self.problems: list[RuleProblem] = []
        name = table.get("name")
        self.name = name if isinstance(name, str) else ""

    def refuse(self, key: str, text: str) -> None:
        self._add(key, text, dropped=True)

    def warn(self, key: str, text: str) -> None:
        self._add(key, text, dropped=False)

    def _add(self, key: str, text: str, *, dropped: bool) -> None:
        self.problems.append(
            RuleProblem(number=self.number, name=_short(self.name), key=key, text=text, dropped=dropped)
        )

    def rule(self) -> LogRule | None:
        """The rule, or None when it was refused."""
        for key in self.table:
            if key not in _KEYS:
                self.warn(_short(str(key)), "unknown key, ignored")
        self._check_name()
        log = self._log_pattern()
        stop = self._stop_pattern()
        start = self._seconds("expectedStartCutOffInSeconds")
        recurring = self._seconds("expectedRecurringFrequencyInSeconds")
        threshold = self._number("metricThreshold")
        comparison = self._comparison()
        points = self._data_points()
        fault = self._fault()
        if log is None or any(problem.dropped for problem in self.problems):
            return None
        rule = LogRule(
            number=self.number,
            name=self.name,
            log_pattern=str(self.table["logPattern"]),
            log_re2=log.text,
            stop_pattern=None if stop is None else str(self.table["stopPattern"]),
            stop_re2=None if stop is None else stop.text,
            start_cutoff_seconds=start,
            recurring_seconds=recurring,
            metric_threshold=threshold,
            comparison=comparison,
            data_points=points,
            fault_on_match=fault,
        )
        self._check_whole(rule, log)
        return rule

    def _check_name(self) -> None:
        name = self.table.get("name")
        if not isinstance(name, str) or not name:
            self.refuse("name", f"must be text that is not empty, found {_found(name)}")
        elif len(name) > NAME_CHARS_MAX:
            self.refuse("name", f"longer than {NAME_CHARS_MAX} characters")
        elif not name.isprintable():
            self.refuse("name", "holds characters that cannot be printed")

    def _log_pattern(self) -> Pattern | None:
        pattern = self.table.get("logPattern")
        if pattern == "":
            self.warn("logPattern", "empty: it matches every line")
        return self._pattern("logPattern", pattern)

    def _stop_pattern(self) -> Pattern | None:
        pattern = self.table.get("stopPattern")
        if pattern == "":
            self.warn("stopPattern", "empty: ignored, since it would end the rule at the first line")
        return None if pattern is None or pattern == "" else self._pattern("stopPattern", pattern)

    def _pattern(self, key: str, pattern: object) -> Pattern | None:
        if not isinstance(pattern, str):
            self.refuse(key, f"must be text, found {_found(pattern)}")
            return None
        try:
            made = compilable(pattern)
        except PatternError as error:
            self.refuse(key, str(error))
            return None
        self.size += made.size
        if self.size > PROGRAMS_SIZE_MAX:
            self.refuse(key, "too large: with the rules before it, more than can be run on every line")
            return None
        if made.narrowed:
            self.warn(key, r"\d, \w and \s mean ASCII here: with all letters and digits it would be too large")
        return made

    def _number(self, key: str) -> float | None:
        """A finite number, or text that is one. Fractions count: nothing is cut off."""
        value = self.table.get(key)
        if value is None:
            return None
        number = math.nan
        if isinstance(value, int | float | str):
            try:
                number = float(value)
            except (ValueError, OverflowError):
                number = math.nan
        if not math.isfinite(number):
            self.refuse(key, f"must be a number, found {_found(value)}")
            return None
        if isinstance(value, bool):
            self.warn(key, f"must be a number; {_found(value)} is taken as {number:.0f}")
        return number

    def _seconds(self, key: str) -> float | None:
        seconds = self._number(key)
        if seconds is not None and seconds < 0:
            self.warn(key, "negative: the line is always late")
        return seconds

    def _data_points(self) -> int:
        key = "metricEvaluationDataPoints"
        number = self._number(key)
        if number is None:
            return 1
        whole = max(math.floor(number), 1)
        if whole != number:
            self.warn(key, f"must be a whole number from 1; {_found(self.table[key])} is taken as {whole}")
        return whole

    def _comparison(self) -> Comparison | None:
        value = self.table.get("operator")
        if value is None:
            return None
        for comparison in Comparison:
            if value == comparison.value:
                return comparison
        self.refuse("operator", f"must be one of {', '.join(Comparison)}, found {_found(value)}")
        return None

    def _fault(self) -> bool:
        key = "faultOnMatch"
        value = self.table.get(key)
        if value is None or isinstance(value, bool):
            return bool(value)
        meant: bool | None = None
        if isinstance(value, int | float):
            meant = bool(value)
        elif isinstance(value, str):
            word = value.strip().lower()
            meant = True if word in _YES else False if word in _NO else None
        if meant is not None:
            self.warn(key, f"must be true or false; {_found(value)} is taken as {_found(meant)}")
            return meant
        self.refuse(key, f"must be true or false, found {_found(value)}")
        return False

    def _check_whole(self, rule: LogRule, log: Pattern) -> None:
        """Parts that have no effect without one another."""
        metric, compared = rule.metric_threshold is not None, rule.comparison is not None
        if metric is not compared:
            given, other = ("metricThreshold", "operator") if metric else ("operator", "metricThreshold")
            self.warn(given, f"has no effect without {other}")
        elif metric and not log.captures:
            self.warn("metricThreshold", "has no effect: logPattern has no group that captures a value")


def located(problems: Sequence[RuleProblem], file: str) -> list[str]:
    """One line per problem, with the file that it stands in."""
    return [f"{file}: {problem}" for problem in problems]
