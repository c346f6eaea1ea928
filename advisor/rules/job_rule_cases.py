"""Job-defined rules on a clock of our own: cases of configuration, lines and times, and the states they lead to.

One case is one JSON object on one line: `name`, `rules` (as a job writes them), `lines` ([[seconds, text], ...]; each
text is a line, with `raw` a piece of the file as it is), `checks` (times, or [time, expected state]), optionally
`restarts` ([[stopped, started], ...]). Rules begin at 0, the file is looked at every second, and a check at t sees
what came up to t. Other keys are for people.

Errors::

    ValueError
    └── CaseError   a case cannot be run; the message is one line and starts with `file:line: key`
"""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from advisor.core.job_lines import Tail, due_at, settle, split
from advisor.core.job_rules import JobRuleEvaluator, LogState, pause, resume
from advisor.rules.job_rules import JobRules, parse_job_rules

BEGIN = datetime(2000, 1, 1, tzinfo=UTC)
SECONDS_MAX = 1e9
# At one moment: the job stops or goes on, then lines come, then the file is looked at.
_PAUSE, _RESUME, _LINE, _CHECK = range(4)


class CaseError(ValueError):
    """A case file that cannot be run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One case. Times are seconds since the rules began; `checks` as they were written, in their order."""

    name: str
    place: str  # file:line
    rules: JobRules
    lines: tuple[tuple[float, bytes], ...]
    checks: tuple[float, ...]
    restarts: tuple[tuple[float, float], ...] = ()


def read_cases(file: str, data: bytes) -> tuple[Case, ...]:
    """All cases of a file, one JSON object a line. Raises `CaseError` for the first that cannot be run."""
    cases: list[Case] = []
    for number, line in enumerate(data.split(b"\n"), 1):
        if line.strip():
            cases.append(_case(f"{file}:{number}", line))
    if not cases:
        raise CaseError(f"{file}: holds no cases")
    return tuple(cases)


def run_case(case: Case) -> list[tuple[float, LogState]]:
    """The overall state at each check time, in the order of the checks."""
    evaluator = JobRuleEvaluator(case.rules.rules)
    state = evaluator.begin(BEGIN)
    tail = Tail()
    found: dict[float, LogState] = {}
    for seconds, kind, data in _events(case):
        now = BEGIN + timedelta(seconds=seconds)
        due = due_at(tail)
        if due is not None:
            look = math.ceil((due - BEGIN).total_seconds())
            if look < seconds or (look == seconds and kind == _CHECK):
                looked_at = BEGIN + timedelta(seconds=look)
                tail, batch = settle(tail, looked_at)
                state = evaluator.read(state, batch, looked_at)
        if kind == _PAUSE:
            state = pause(state, now)
        elif kind == _RESUME:
            state = resume(state, now)
        elif kind == _LINE:
            tail, batch = split(tail, data, now)
            state = evaluator.read(state, batch, now)
        else:
            found[seconds] = evaluator.overall(state, now)
    return [(seconds, found[seconds]) for seconds in case.checks]


def _events(case: Case) -> list[tuple[float, int, bytes]]:
    events = [(seconds, _LINE, data) for seconds, data in case.lines]
    events += [(seconds, _CHECK, b"") for seconds in case.checks]
    for stopped, started in case.restarts:
        events += [(stopped, _PAUSE, b""), (started, _RESUME, b"")]
    return sorted(events, key=lambda event: event[:2])  # stable: lines of one moment stay in their order


def _case(place: str, line: bytes) -> Case:
    try:
        document = json.loads(line.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise CaseError(f"{place}: not JSON: {error}") from error
    if not isinstance(document, dict):
        raise CaseError(f"{place}: must be an object")
    name = document.get("name")
    if not isinstance(name, str) or not name:
        raise CaseError(f"{place}: name: must be text that is not empty")
    rules = document.get("rules", "missing")
    if not isinstance(rules, list | None):
        raise CaseError(f"{place}: rules: must be a list of rules")
    raw = document.get("raw", False)
    if not isinstance(raw, bool):
        raise CaseError(f"{place}: raw: must be true or false")
    lines: list[tuple[float, bytes]] = []
    for index, pair in enumerate(_list(document, "lines", place, required=True)):
        seconds, text = _pair(pair, f"{place}: lines[{index}]", "[seconds, text]")
        if not isinstance(text, str):
            raise CaseError(f"{place}: lines[{index}]: must be [seconds, text]")
        data = text.encode("utf-8", "surrogatepass")
        lines.append((_seconds(seconds, f"{place}: lines[{index}]"), data if raw else data + b"\n"))
    checks: list[float] = []
    for index, check in enumerate(_list(document, "checks", place, required=True)):
        where = f"{place}: checks[{index}]"
        moment = _pair(check, where, "a time or [time, state]")[0] if isinstance(check, list) else check
        checks.append(_seconds(moment, where))
    restarts: list[tuple[float, float]] = []
    for index, pair in enumerate(_list(document, "restarts", place, required=False)):
        where = f"{place}: restarts[{index}]"
        stopped, started = (_seconds(end, where) for end in _pair(pair, where, "[stopped, started]"))
        if started < stopped:
            raise CaseError(f"{where}: started before it stopped")
        restarts.append((stopped, started))
    return Case(
        name=name,
        place=place,
        rules=parse_job_rules(rules or []),
        lines=tuple(lines),
        checks=tuple(checks),
        restarts=tuple(restarts),
    )


def _list(document: dict[str, Any], key: str, place: str, *, required: bool) -> list[Any]:
    value = document.get(key, None if required else [])
    if not isinstance(value, list):
        raise CaseError(f"{place}: {key}: must be a list")
    return value


def _pair(value: object, where: str, shape: str) -> Sequence[Any]:
    if not isinstance(value, list) or len(value) != 2:
        raise CaseError(f"{where}: must be {shape}")
    return value


def _seconds(value: object, where: str) -> float:
    """A time since the beginning, whole numbers left whole."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= SECONDS_MAX:
        raise CaseError(f"{where}: the time must be a number of seconds from 0 to {SECONDS_MAX:.0f}")
    return value
