"""Node history: what one implication weighs, and what many of them weigh now.

A score decays, because repaired hardware fails again soon or not at all: 9.5 % within a day and 18 % within a week
of a repair, against a base rate of 0.2 % and 1.5 %. The half-life comes from policy; `benchmarks/history.py` measures
what it is worth. The rows themselves are never forgotten by this arithmetic.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise
from typing import assert_never

from advisor.core.policy import Policy
from advisor.core.words import Category, Role, Trust

LEMON_FAILURES = 3
ONE_EVENT = timedelta(hours=1)  # what fails again so soon is the same failure, seen by the next job
HARDWARE = frozenset({Category.GPU_HARDWARE, Category.NODE_HARDWARE, Category.INTERCONNECT})


@dataclass(frozen=True, slots=True, kw_only=True)
class PastImplication:
    """One node named by one incident of one job, as the store keeps it. `weight` is 0..1."""

    job: str  # the job's key
    weight: float
    at: datetime
    user: str = ""
    trusted: bool = True  # a source said so that no job can write to
    unit: str = ""  # the GPU it is about, "" for the whole node

    @property
    def witness(self) -> str:
        """Who says it. What a job prints is its user's word: many jobs of one user are one witness."""
        return self.job if self.trusted or not self.user else f"user {self.user}"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeImplication:
    """A `PastImplication` with all that tells whether it is a failure of the node's own hardware."""

    node: str
    incident: str
    job: str
    weight: float
    at: datetime
    trust: Trust
    role: Role
    category: Category
    rule: str
    user: str = ""

    @property
    def own_hardware(self) -> bool:
        """Initiated here, by hardware, as a source says that no job can write to; blamed, not merely mentioned."""
        return (
            self.trust.trusted
            and self.role is Role.INITIATING
            and self.category in HARDWARE
            and self.weight >= 0.5 * trust_weight(self.trust)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Lemon:
    """A node that fails again and again by itself, with the evidence, newest first."""

    node: str
    failures: tuple[NodeImplication, ...]
    jobs: int
    users: int
    score: float


def lemons(
    implications: Iterable[NodeImplication], now: datetime, policy: Policy, *, failures_min: int = LEMON_FAILURES
) -> tuple[Lemon, ...]:
    """Nodes with at least `failures_min` failures of their own hardware within the window, worst first.

    Several jobs that one failure takes down are one failure.
    """
    window = timedelta(days=policy.history_window_days)
    of_node: dict[str, list[NodeImplication]] = {}
    for item in implications:
        if item.own_hardware and now - item.at <= window:
            of_node.setdefault(item.node, []).append(item)
    found: list[Lemon] = []
    for node, items in of_node.items():
        failures: list[NodeImplication] = []
        seen: datetime | None = None
        for item in sorted(items, key=lambda item: (item.at, item.incident)):
            if seen is None or item.at - seen > ONE_EVENT:
                failures.append(item)
            seen = item.at
        if len(failures) >= failures_min:
            score = sum(decayed(item.weight, item.at, now, policy) for item in failures)
            jobs, users = len({item.job for item in items}), len({item.user for item in items})
            newest = tuple(reversed(failures))
            found.append(Lemon(node=node, failures=newest, jobs=jobs, users=users, score=score))
    return tuple(sorted(found, key=lambda lemon: (-lemon.score, lemon.node)))


def trust_weight(trust: Trust) -> float:
    """How far a transport is believed about the cluster. One log line alone never makes a suspect."""
    match trust:
        case Trust.SCHEDULER | Trust.KERNEL:
            return 1.0
        case Trust.TELEMETRY:
            return 0.9
        case Trust.LOG:
            return 0.45
        case Trust.EXTERNAL:
            return 0.0
        case _:
            assert_never(trust)


def role_weight(role: Role) -> float:
    """Only what initiates a failure speaks against a node; what merely follows hardly does, and teardown never."""
    match role:
        case Role.INITIATING:
            return 1.0
        case Role.CASCADE:
            return 0.2
        case Role.SYMPTOM:
            return 0.1
        case Role.TEARDOWN | Role.BENIGN:
            return 0.0
        case _:
            assert_never(role)


def implication_weight(trust: Trust, role: Role, confidence: float, *, blamed: bool = True) -> float:
    """trust × role × confidence, 0..1; half of it for a node that is only suspected. The one formula for it."""
    share = 1.0 if blamed else 0.5
    return round(trust_weight(trust) * role_weight(role) * min(1.0, max(0.0, confidence)) * share, 3)


def decayed(weight: float, at: datetime, now: datetime, policy: Policy) -> float:
    """What `weight` is worth at `now`: half after each half-life, nothing outside the window.

    A time in the future (a clock that stepped) counts as now.
    """
    age = max(now - at, timedelta(0))
    if age > timedelta(days=policy.history_window_days):
        return 0.0
    return float(weight * 0.5 ** (age / timedelta(days=policy.history_half_life_days)))


def node_score(
    history: Iterable[PastImplication],
    now: datetime,
    policy: Policy,
    *,
    except_job: str | None = None,
    except_user: str | None = None,
) -> float:
    """Decayed score of one node. Each witness counts once, by its heaviest incident: one job that fails a hundred times
    on a node says no more about the node than once, and what jobs print counts once for their user. `except_job` leaves
    out the job that asks, `except_user` what else its user's jobs print.
    """
    heaviest: dict[str, float] = {}
    for item in _of_others(history, except_job, except_user):
        weight = decayed(item.weight, item.at, now, policy)
        heaviest[item.witness] = max(heaviest.get(item.witness, 0.0), weight)
    # Added up in one order, so that equal histories give equal scores to the last bit.
    return sum(heaviest[witness] for witness in sorted(heaviest))


def other_jobs(
    history: Iterable[PastImplication],
    now: datetime,
    policy: Policy,
    *,
    except_job: str | None = None,
    except_user: str | None = None,
) -> int:
    """How many distinct other jobs (by what they print: other users) implicated the node within the window."""
    window = timedelta(days=policy.history_window_days)
    others = _of_others(history, except_job, except_user)
    return len({item.witness for item in others if item.weight > 0 and now - item.at <= window})


def units_of_others(
    history: Iterable[PastImplication],
    now: datetime,
    policy: Policy,
    *,
    except_job: str | None = None,
    except_user: str | None = None,
) -> tuple[str, ...]:
    """The GPUs that others implicated within the window; none where one of them meant the whole node."""
    window = timedelta(days=policy.history_window_days)
    others = [
        item for item in _of_others(history, except_job, except_user) if item.weight > 0 and now - item.at <= window
    ]
    units = {item.unit for item in others}
    return () if "" in units else tuple(sorted(units))


def same_unit(unit: str, units: Sequence[str]) -> bool:
    """One of `units` may be this GPU. An index and a PCI address cannot be compared, and what names none is of all."""
    alike = [other for other in units if (":" in other) == (":" in unit)]
    return not unit or not units or len(alike) < len(units) or unit in alike


def _of_others(
    history: Iterable[PastImplication], except_job: str | None, except_user: str | None
) -> Iterator[PastImplication]:
    for item in history:
        own_word = not item.trusted and except_user is not None and item.user == except_user
        if item.job != except_job and not own_word:
            yield item


# Share of repaired nodes whose hardware failed again within so many days (InfiniteHBD trace, hardware faults only).
_FAILED_AGAIN = ((0.0, 0.0), (1.0, 0.095), (7.0, 0.181), (30.0, 0.276))


def recurrence(days_back: float, ahead_days: float = 7.0) -> float:
    """The chance that a repaired node fails again within `ahead_days`, `days_back` days after it came back and well
    until then. For any node it is 1.5 % within a week; beyond a month what is known of its repair says nothing more.
    """
    before, after = _failed_by(days_back), _failed_by(days_back + ahead_days)
    return round((after - before) / (1.0 - before), 4)


def _failed_by(days: float) -> float:
    (end, share), base_a_day = _FAILED_AGAIN[-1], 0.015 / 7
    if days >= end:
        return 1.0 - (1.0 - share) * float((1.0 - base_a_day) ** (days - end))
    pairs = pairwise(_FAILED_AGAIN)
    (left, low), (right, high) = next(pair for pair in pairs if days < pair[1][0])
    return low + (high - low) * max(0.0, days - left) / (right - left)


def is_suspect(score: float, policy: Policy) -> bool:
    """True when the score says: look at this node. Never by itself a reason to isolate it."""
    return score >= policy.suspect_score
