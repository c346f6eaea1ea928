"""Policy from TOML, strictly: every problem is reported at once, with its key path.

`policy.toml` beside this module holds every key with its default and what it is for; a site copies what it changes.
Keys that are absent keep their default. Timing rules that need to know the site (tick, requeue delay) are checked by
`check_timing` at start.

Errors::

    ValueError
    └── PolicyError   `.problems` is all that is wrong, one line each, starting with the key path
"""

import math
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from advisor.core.policy import Policy
from advisor.core.words import Category

DEFAULTS_FILE = Path(__file__).with_name("policy.toml")
FILE_BYTES_MAX = 256 * 1024
_DAY_SECONDS = 86_400.0
_YEAR_DAYS = 366.0


class PolicyError(ValueError):
    """A policy that cannot be used. `problems` is everything that is wrong with it."""

    def __init__(self, problems: tuple[str, ...], origin: str) -> None:
        super().__init__(f"{origin}: " + "; ".join(problems))
        self.problems = problems
        self.origin = origin


@dataclass(frozen=True, slots=True)
class _Range:
    low: float
    high: float
    above_low: bool = False  # low itself is not allowed

    def problem(self, value: float) -> str | None:
        if value < self.low or value > self.high or (self.above_low and value == self.low):
            return f"must be {'above' if self.above_low else 'at least'} {self.low:g} and at most {self.high:g}"
        return None


_SECONDS = _Range(0, _DAY_SECONDS)
_SOME_SECONDS = _Range(0, _DAY_SECONDS, above_low=True)
# One entry per key; a test compares it with the fields of `Policy`.
RANGES: Mapping[str, _Range] = {
    "hang_seconds": _Range(1, 7 * _DAY_SECONDS),
    "hang_floor_seconds": _Range(1, _DAY_SECONDS),
    "hang_factor": _Range(1.5, 100),
    "hang_learning_seconds": _SECONDS,
    "hang_phase_seconds": _Range(1, 7 * _DAY_SECONDS),
    "hang_startup_seconds": _Range(1, 7 * _DAY_SECONDS),
    "clock_skew_seconds": _Range(0, 600),
    "trusted_fatal_grace_seconds": _SECONDS,
    "offline_silence_seconds": _SECONDS,
    "settle_seconds": _Range(0, 600),
    "settle_margin_seconds": _Range(0, 60),
    "decision_deadline_seconds": _SOME_SECONDS,
    "advice_time_to_live_seconds": _SOME_SECONDS,
    "restarts_per_root_cause": _Range(0, 1000),
    "restarts_unexplained": _Range(0, 100),
    "suspects_after": _Range(0, 100),
    "restarts_ceiling": _Range(0, 100),  # of the newest 100 attempts, which is what is looked at
    "restarts_ceiling_per_1000_node_days": _Range(0, 1000),
    "restart_at_time_limit": _Range(0, 1),
    "confirmation_retries": _Range(0, 100),
    "storage_delay_seconds": _SECONDS,
    "exclusions_per_job_max": _Range(0, 10_000),
    "exclusions_per_incident_max": _Range(0, 10_000),
    "implicated_fraction_max": _Range(0, 1, above_low=True),
    "isolations_max": _Range(0, 10_000),
    "isolations_percent_max": _Range(0, 100),
    "signals_max": _Range(1, 100_000),
    "evidence_max": _Range(1, 10_000),
    "history_half_life_days": _Range(0, _YEAR_DAYS, above_low=True),
    "history_window_days": _Range(0, 10 * _YEAR_DAYS, above_low=True),
    "suspect_score": _Range(0, 1000, above_low=True),
    "isolate": _Range(0, 1),
    "isolate_dry_run": _Range(0, 1),
    "isolations_per_day_max": _Range(0, 10_000),
    "isolation_settle_seconds": _Range(0, 3600),
    "isolation_time_to_live_hours": _Range(0, 24 * _YEAR_DAYS, above_low=True),
    "node_down": _Range(0, 1),
    "node_down_after_seconds": _Range(1, _DAY_SECONDS),
    "save_wait_seconds": _Range(0, 3600),
    "save_hung": _Range(0, 1),
}


def load_policy(path: Path | None) -> Policy:
    """The policy in a TOML file; `None` gives the defaults. Raises `PolicyError` with every problem found."""
    if path is None:
        return Policy()
    try:
        with path.open("rb") as file:
            data = file.read(FILE_BYTES_MAX + 1)
    except OSError as problem:
        raise PolicyError((f"cannot be read: {problem.strerror}",), str(path)) from problem
    if len(data) > FILE_BYTES_MAX:
        raise PolicyError((f"larger than {FILE_BYTES_MAX} bytes",), str(path))
    try:
        return parse_policy(data.decode("utf-8"), str(path))
    except UnicodeDecodeError as problem:
        raise PolicyError((f"not UTF-8 at byte {problem.start}",), str(path)) from problem


def parse_policy(text: str, origin: str = "policy") -> Policy:
    """`load_policy` of text that is already at hand; `origin` names it in errors."""
    try:
        tree = tomllib.loads(text)
    except (ValueError, RecursionError) as problem:
        raise PolicyError((f"not TOML: {problem}",), origin) from problem
    problems: list[str] = []
    values = {key: _value(key, item, problems) for key, item in tree.items() if _known(key, problems)}
    good = {key: item for key, item in values.items() if item is not None}
    # Combinations are judged even when single keys are wrong, so that one run shows everything.
    policy = Policy(**good)
    problems += check_policy(policy)
    if problems:
        raise PolicyError(tuple(problems), origin)
    return policy


def check_policy(policy: Policy) -> tuple[str, ...]:
    """Combinations that cannot be meant, one line each."""
    return tuple(_impossible(policy))


def check_timing(
    policy: Policy,
    *,
    tick_seconds: float,
    requeue_delay_seconds: float | None,
    evidence_lag_seconds: float = 1.0,
    lease_takeover_seconds: float = 0.0,
    agent_poll_seconds: float = 1.0,
    completing_seconds: float = 5.0,
    job_memory_seconds: float | None = None,
) -> tuple[str, ...]:
    """Timing rules between the policy and the site; empty when all hold.

    A decision must be possible before its deadline: deadline > evidence lag + longest settle time + tick + lease
    take-over + agent poll + completing time. `requeue_delay_seconds` (Slurm: cred_expire + 1) and `job_memory_seconds`
    (MinJobAge) are the scheduler's, None where they are not known yet.
    """
    settle = max(policy.settle_seconds.values(), default=0.0)
    needed = (
        evidence_lag_seconds + settle + tick_seconds + lease_takeover_seconds + agent_poll_seconds + completing_seconds
    )
    problems: list[str] = []
    if policy.decision_deadline_seconds <= needed:
        problems.append(
            f"decision_deadline_seconds: {policy.decision_deadline_seconds:g} must be above {needed:g} = evidence lag "
            f"{evidence_lag_seconds:g} + settle {settle:g} + tick {tick_seconds:g} + lease take-over "
            f"{lease_takeover_seconds:g} + agent poll {agent_poll_seconds:g} + completing {completing_seconds:g}"
        )
    if policy.advice_time_to_live_seconds <= tick_seconds + agent_poll_seconds:
        problems.append(
            f"advice_time_to_live_seconds: {policy.advice_time_to_live_seconds:g} must be above tick {tick_seconds:g} "
            f"+ agent poll {agent_poll_seconds:g}: advice would expire before it could be applied"
        )
    if requeue_delay_seconds is not None and policy.settle_margin_seconds >= requeue_delay_seconds:
        problems.append(
            f"settle_margin_seconds: {policy.settle_margin_seconds:g} must be below the requeue delay "
            f"{requeue_delay_seconds:g}: every restart would need a lease"
        )
    if job_memory_seconds is not None and needed >= job_memory_seconds:
        problems.append(
            f"settle_seconds: {needed:g} seconds pass before a restart can be accepted, and the scheduler forgets an "
            f"ended job after {job_memory_seconds:g} (Slurm: MinJobAge)"
        )
    return tuple(problems)


def _known(key: str, problems: list[str]) -> bool:
    if key in RANGES:
        return True
    problems.append(f"{key}: no such key")
    return False


def _value(key: str, item: object, problems: list[str]) -> Any:
    """The checked value of one key, or None after noting what is wrong with it."""
    default = next(field for field in fields(Policy) if field.name == key).default
    if key == "settle_seconds":
        return _settle(item, problems)
    if isinstance(default, bool):
        if isinstance(item, bool):
            return item
        problems.append(f"{key}: expected true or false, found {_found(item)}")
        return None
    return _number(key, item, RANGES[key], whole=isinstance(default, int), problems=problems)


def _settle(item: object, problems: list[str]) -> Mapping[Category, float] | None:
    if not isinstance(item, dict):
        problems.append(f"settle_seconds: expected a table of categories, found {_found(item)}")
        return None
    result = dict(Policy().settle_seconds)
    for name, seconds in item.items():
        key = f"settle_seconds.{name}"
        if name not in set(Category):
            problems.append(f"{key}: no such category; they are {', '.join(Category)}")
            continue
        number = _number(key, seconds, RANGES["settle_seconds"], whole=False, problems=problems)
        if number is not None:
            result[Category(name)] = float(number)
    return result


def _number(key: str, item: object, allowed: _Range, *, whole: bool, problems: list[str]) -> float | int | None:
    if isinstance(item, bool) or not isinstance(item, int if whole else (int, float)):
        problems.append(f"{key}: expected {'a whole number' if whole else 'a number'}, found {_found(item)}")
        return None
    if isinstance(item, float) and not math.isfinite(item):
        problems.append(f"{key}: expected a finite number, found {item}")
        return None
    trouble = allowed.problem(item)
    if trouble is not None:
        problems.append(f"{key}: {trouble}, found {str(item)[:40]}")
        return None
    return item if whole else float(item)


def _found(item: object) -> str:
    match item:
        case bool():
            return "true" if item else "false"
        case str():
            return f"text {item[:40]!r}"
        case int() | float():
            return str(item)[:40]
        case list():
            return "a list"
        case dict():
            return "a table"
        case _:
            return f"a {type(item).__name__}"


def _impossible(policy: Policy) -> Iterator[str]:
    if policy.hang_startup_seconds < policy.hang_seconds:
        yield "hang_startup_seconds: must not be below hang_seconds: start-up takes longer than a step"
    if policy.trusted_fatal_grace_seconds > policy.hang_seconds:
        yield "trusted_fatal_grace_seconds: must not be above hang_seconds, which ends the attempt anyway"
    longest = max(policy.settle_seconds.values(), default=0.0)
    if longest + policy.settle_margin_seconds >= policy.decision_deadline_seconds:
        yield (
            f"decision_deadline_seconds: must be above the longest settle time {longest:g} and the margin "
            f"{policy.settle_margin_seconds:g}: no stop could ever be decided"
        )
    if policy.restarts_per_root_cause > policy.restarts_ceiling:
        yield "restarts_per_root_cause: must not be above restarts_ceiling"
    if policy.confirmation_retries > policy.restarts_per_root_cause:
        yield "confirmation_retries: must not be above restarts_per_root_cause"
    if policy.exclusions_per_incident_max > policy.exclusions_per_job_max:
        yield "exclusions_per_incident_max: must not be above exclusions_per_job_max"
    if policy.evidence_max > policy.signals_max:
        yield "evidence_max: must not be above signals_max: evidence is chosen from the signals kept"
    if policy.history_window_days < policy.history_half_life_days:
        yield "history_window_days: must not be below history_half_life_days"
    if 0 < policy.save_wait_seconds >= policy.decision_deadline_seconds - longest - policy.settle_margin_seconds:
        yield (
            f"save_wait_seconds: must be below decision_deadline_seconds {policy.decision_deadline_seconds:g} less the "
            f"longest settle time {longest:g} and the margin {policy.settle_margin_seconds:g}"
        )
    if policy.isolate and (policy.isolations_max == 0 or policy.isolations_percent_max == 0):
        yield "isolate: is on, but isolations_max or isolations_percent_max allows none"
