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
from advisor.rules.python_patterns import PatternError, compilable

RULES_MAX = 50
NAME_CHARS_MAX = 200
CONFIGURATION_BYTES_MAX = 256 << 10
LIST_KEY = "logMonitoringConfiguration"

_PATTERNS = ("logPattern", "stopPattern")
_SECONDS = {
    "expectedStartCutOffInSeconds": "start_cutoff_seconds",
    "expectedRecurringFrequencyInSeconds": "recurring_seconds",
}
_KEYS = frozenset(
    {"name", *_PATTERNS, *_SECONDS, "metricThreshold", "operator", "metricEvaluationDataPoints", "faultOnMatch"}
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
    for number, table in enumerate(document[:RULES_MAX], 1):
        reading = _Reading(number=number, table=table if isinstance(table, Mapping) else {})
        if isinstance(table, Mapping):
            rule = reading.rule()
            if rule is not None:
                if any(rule.name == other.name for other in rules):
                    reading.warn("name", "used by an earlier rule too")
                rules.append(replace(rule, slow_opens_incident=of_job))
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
    text = ascii(value) if isinstance(value, str | int | float) else type(value).__name__
    return text if len(text) <= 40 else f"{text[:36]} ..."


class _Reading:
    """One rule being read: its problems so far. Lives as long as the call."""

    def __init__(self, *, number: int, table: Mapping[Any, Any]) -> None:
        self.number = number
        self.table = table
        self.problems: list[RuleProblem] = []
        name = table.get("name")
        self.name = name if isinstance(name, str) else ""

    def refuse(self, key: str, text: str) -> None:
        self._add(key, text, dropped=True)

    def warn(self, key: str, text: str) -> None:
        self._add(key, text, dropped=False)

    def _add(self, key: str, text: str, *, dropped: bool) -> None:
        name = _found(self.name)[1:-1] if self.name else ""
        self.problems.append(RuleProblem(number=self.number, name=name, key=key, text=text, dropped=dropped))

    def rule(self) -> LogRule | None:
        """The rule, or None when it was refused."""
        for key in self.table:
            if key not in _KEYS:
                self.warn(_found(key).strip("'\""), "unknown key, ignored")
        self._check_name()
        log = self._pattern("logPattern", required=True)
        stop = self._pattern("stopPattern", required=False)
        seconds = {field: self._seconds(key) for key, field in _SECONDS.items()}
        threshold = self._number("metricThreshold")
        comparison = self._comparison()
        points = self._data_points()
        fault = self._fault()
        if any(problem.dropped for problem in self.problems):
            return None
        rule = LogRule(
            number=self.number,
            name=self.name,
            log_pattern=str(self.table["logPattern"]),
            log_re2=log,
            stop_pattern=str(self.table["stopPattern"]) if stop else "",
            stop_re2=stop,
            metric_threshold=threshold,
            comparison=comparison,
            data_points=points,
            fault_on_match=fault,
            **seconds,
        )
        self._check_whole(rule)
        return rule

    def _check_name(self) -> None:
        name = self.table.get("name")
        if not isinstance(name, str) or not name:
            self.refuse("name", f"must be text that is not empty, found {_found(name)}")
        elif len(name) > NAME_CHARS_MAX:
            self.refuse("name", f"longer than {NAME_CHARS_MAX} characters")
        elif not name.isprintable():
            self.refuse("name", "holds characters that cannot be printed")

    def _pattern(self, key: str, *, required: bool) -> str:
        pattern = self.table.get(key)
        if pattern is None and not required:
            return ""
        if not isinstance(pattern, str):
            self.refuse(key, f"must be text, found {_found(pattern)}")
            return ""
        if not pattern:
            if required:
                self.warn(key, "empty: it matches every line")
            else:
                self.warn(key, "empty: ignored, since it would end the rule at the first line")
            return ""
        try:
            text, narrow = compilable(pattern)
        except PatternError as error:
            self.refuse(key, str(error))
            return ""
        if narrow:
            self.warn(key, r"\d, \w and \s mean ASCII here: with all letters and digits it would be too large")
        return text

    def _number(self, key: str) -> float | None:
        """A finite number, or text that is one. Fractions count: nothing is cut off."""
        value = self.table.get(key)
        if value is None:
            return None
        number = math.nan
        if isinstance(value, int | float | str) and not isinstance(value, bool):
            try:
                number = float(value)
            except (ValueError, OverflowError):
                number = math.nan
        if not math.isfinite(number):
            self.refuse(key, f"must be a number, found {_found(value)}")
            return None
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
        if number != math.floor(number):
            self.refuse(key, f"must be a whole number, found {_found(self.table[key])}")
            return 1
        if number < 1:
            self.warn(key, "less than 1: taken as 1")
            return 1
        return int(number)

    def _comparison(self) -> Comparison | None:
        value = self.table.get("operator")
        if value is None:
            return None
        if isinstance(value, str) and value in Comparison:
            return Comparison(value)
        self.refuse("operator", f"must be one of {', '.join(Comparison)}, found {_found(value)}")
        return None

    def _fault(self) -> bool:
        key = "faultOnMatch"
        value = self.table.get(key)
        if value is None or isinstance(value, bool):
            return bool(value)
        word = str(value).strip().lower() if isinstance(value, str | int | float) else None
        if word in _YES or word in _NO:
            self.warn(key, f"must be true or false; {_found(value)} is taken as {'true' if word in _YES else 'false'}")
            return word in _YES
        self.refuse(key, f"must be true or false, found {_found(value)}")
        return False

    def _check_whole(self, rule: LogRule) -> None:
        """Parts that have no effect without one another."""
        metric, compared = rule.metric_threshold is not None, rule.comparison is not None
        if metric is not compared:
            given, other = ("metricThreshold", "operator") if metric else ("operator", "metricThreshold")
            self.warn(given, f"has no effect without {other}")
        elif metric and not _has_group(rule):
            self.warn("metricThreshold", "has no effect: logPattern has no group that captures a value")


def _has_group(rule: LogRule) -> bool:
    # Group 1 is the only capturing one in what was rewritten for RE2, where "(" is otherwise spelled "(?" or "\x{28}".
    return "((?" in rule.log_re2


def located(problems: Sequence[RuleProblem], file: str) -> list[str]:
    """One line per problem, with the file that it stands in."""
    return [f"{file}: {problem}" for problem in problems]
