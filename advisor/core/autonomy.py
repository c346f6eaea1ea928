"""Earned autonomy: when a category may act by itself because people did what was advised, and when no longer. Pure.

It is below everything that people set: any setting of theirs that matches wins, whatever it says, and it widens no cap
of anybody's. It holds for restarts; for stops only where that was included by name. The threshold to gain it is above
the one to lose it, and what was lost is not regained for some days: a category does not flap.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from advisor.core.intervals import wilson
from advisor.core.modes import ModeSetting, Subject, effective_mode
from advisor.core.words import Action, Category, Mode


@dataclass(frozen=True, slots=True, kw_only=True)
class EarningRules:
    """Thresholds. `categories`: that may become autonomous by themselves; none is the default."""

    categories: frozenset[Category] = frozenset()
    agreement_min: float = 0.85  # of the lower bound, to gain it: 30 of 30 give 0.886
    count_min: int = 30
    fall_below: float = 0.75  # of the lower bound, to lose it
    with_stop: bool = False
    rest_days: float = 7.0  # after losing it


@dataclass(frozen=True, slots=True, kw_only=True)
class Earned:
    """What holds for a category on a cluster, with the numbers that caused it."""

    cluster: str
    category: Category
    held: bool
    agreed: int
    counted: int
    lower: float
    since: datetime
    with_stop: bool = False
    why: str = ""


def judge(
    cluster: str,
    category: Category,
    evidence: tuple[int, int],
    before: Earned | None,
    rules: EarningRules,
    now: datetime,
) -> Earned | None:
    """What changes for one category, None when nothing does. `evidence`: (agreed, counted)."""
    agreed, counted = evidence
    lower = wilson(agreed, counted).low or 0.0
    held = before is not None and before.held

    def becomes(held: bool, why: str) -> Earned:
        return Earned(
            cluster=cluster,
            category=category,
            held=held,
            agreed=agreed,
            counted=counted,
            lower=round(lower, 4),
            since=now,
            with_stop=held and rules.with_stop,
            why=why,
        )

    share = f"people agreed with {agreed} of {counted}, lower bound {lower:.3f}"
    if held and category not in rules.categories:
        return becomes(False, "no longer among the categories that may earn it")
    if held and lower < rules.fall_below:
        return becomes(False, f"{share}, below {rules.fall_below:g}")
    if held and before is not None and before.with_stop and not rules.with_stop:
        return becomes(True, f"{share}; stops are no longer included")
    if held or category not in rules.categories:
        return None
    resting = before is not None and now - before.since < timedelta(days=rules.rest_days)
    if resting or counted < rules.count_min or lower < rules.agreement_min:
        return None
    return becomes(True, f"{share}, at least {rules.agreement_min:g} of at least {rules.count_min}")


def mode_of(
    settings: Sequence[ModeSetting],
    default: Mode,
    earned: Iterable[Earned],
    subject: Subject,
    action: Action,
) -> Mode:
    """The mode of one advice: what people set, else what its category has earned, else the default."""
    if any(setting.matches(subject) for setting in settings):
        return effective_mode(settings, subject)
    if any(holds_for(item, subject, action) for item in earned):
        return Mode.AUTONOMOUS
    return default


def holds_for(item: Earned, subject: Subject, action: Action) -> bool:
    if not item.held or (item.cluster, item.category) != (subject.cluster, subject.category):
        return False
    return action is not Action.STOP or item.with_stop


def taken_back(settings: Sequence[ModeSetting], earned: Iterable[Earned], subject: Subject) -> bool:
    """The category has lost what it had earned, and no person's setting says otherwise."""
    lost = any(
        not item.held and (item.cluster, item.category) == (subject.cluster, subject.category) for item in earned
    )
    return lost and not any(setting.matches(subject) for setting in settings)


def numbers(item: Earned) -> Mapping[str, str]:
    """For the audit: what caused it."""
    return {
        "category": item.category.value,
        "held": str(item.held).lower(),
        "agreed": str(item.agreed),
        "counted": str(item.counted),
        "lower_bound": f"{item.lower:.4f}",
        "with_stop": str(item.with_stop).lower(),
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """All that decides about modes at one moment: what people set, what was earned, and what holds otherwise."""

    settings: tuple[ModeSetting, ...] = ()
    earned: tuple[Earned, ...] = ()
    default: Mode = Mode.MONITOR

    def mode(self, subject: Subject, action: Action) -> Mode:
        return mode_of(self.settings, self.default, self.earned, subject, action)
