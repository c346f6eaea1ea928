"""Bundles with accepted answers, and how a verdict compares with them.

A folder holds one bundle folder per case; `truth.jsonl`, in it or beside it, has one object per case: `id`,
`confidence` (of the label), and for `kind`, `category` and `action` every answer that is accepted; `nodes` and `ranks`
are those at fault.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from advisor.bundle import read_bundle
from advisor.core.decide import decide
from advisor.core.model import Decision
from advisor.core.policy import Policy
from advisor.core.rules import RuleSet
from advisor.core.scan import Scanner
from advisor.core.words import Action, Category, IncidentKind

_INFRASTRUCTURE = frozenset(
    {"gpu_hardware", "node_hardware", "interconnect", "storage", "system_software", "scheduler_event"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Label:
    """What is accepted for one case, the preferred answer first."""

    ident: str
    firm: bool  # False: only the ranks are known well enough to score
    kinds: tuple[str, ...]
    categories: tuple[str, ...]
    actions: tuple[str, ...]
    nodes: frozenset[str]
    ranks: frozenset[int]

    @property
    def excluding(self) -> bool:
        return "restart_exclude" in self.actions


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """One verdict beside its label."""

    label: Label
    decision: Decision

    @property
    def kind_right(self) -> bool:
        kind = self.decision.incident.kind
        return kind.value in self.label.kinds or (kind is IncidentKind.DIVERGENCE and "crash" in self.label.kinds)

    @property
    def category_right(self) -> bool:
        return self.decision.attribution.category.value in self.label.categories

    @property
    def excluded(self) -> frozenset[str]:
        """Nodes that the advised restart avoids."""
        restarts = self.decision.action is Action.RESTART
        return frozenset(self.decision.isolation.exclude_for_job) if restarts else frozenset()

    @property
    def wrongly_excluded(self) -> frozenset[str]:
        if self.label.excluding and not self.label.nodes:
            return frozenset()  # right to exclude, but whom is not known
        return self.excluded - (self.label.nodes if self.label.excluding else frozenset())

    @property
    def action_right(self) -> bool:
        if self.excluded:
            return self.label.excluding and not self.wrongly_excluded
        return self.decision.action.value in self.label.actions

    @property
    def right(self) -> bool:
        return self.kind_right and self.category_right and self.action_right

    @property
    def false_stop(self) -> bool:
        return self.decision.action is Action.STOP and "stop" not in self.label.actions

    @property
    def infrastructure(self) -> bool:
        return self.label.categories[0] in _INFRASTRUCTURE

    def __str__(self) -> str:
        found = self.decision
        return (
            f"{self.label.ident}: got {found.incident.kind}/{found.attribution.category}/{found.action} "
            f"exclude {sorted(self.excluded)} ranks {sorted(found.attribution.ranks)[:8]}, "
            f"want {'|'.join(self.label.kinds)}/{'|'.join(self.label.categories)}/{'|'.join(self.label.actions)} "
            f"nodes {sorted(self.label.nodes)} ranks {sorted(self.label.ranks)[:8]}"
        )


def labels(folder: Path) -> tuple[Label, ...]:
    """The labels of a folder of bundles."""
    path = next(each for each in (folder / "truth.jsonl", folder.parent / "truth.jsonl") if each.exists())
    return tuple(_label(json.loads(line)) for line in path.read_text().splitlines())


def _label(row: dict[str, Any]) -> Label:
    for name in row["category"]:
        Category(name)
    return Label(
        ident=row["id"],
        firm=row["confidence"] != "low",
        kinds=tuple(row["kind"]),
        categories=tuple(row["category"]),
        actions=tuple(row["action"]),
        nodes=frozenset(row["nodes"]),
        ranks=frozenset(row["ranks"]),
    )


def judge(folder: Path, rules: RuleSet, now: datetime) -> tuple[Judged, ...]:
    """Every case of a folder, decided as `advisor analyze` does."""
    scanner, policy = Scanner(rules), Policy()
    return tuple(
        Judged(label=label, decision=decide(read_bundle(folder / label.ident, scanner, now), rules, policy, now))
        for label in labels(folder)
    )


def share(flags: Iterable[bool]) -> float:
    """How many are true, 1.0 of none."""
    seen = list(flags)
    return sum(seen) / len(seen) if seen else 1.0


def calibration_error(judged: Sequence[Judged], bins: int = 10) -> float:
    """Expected calibration error: how far confidence is from the share of right categories, bin by bin."""
    held: dict[int, list[tuple[float, bool]]] = {}
    for item in judged:
        confidence = item.decision.attribution.confidence
        held.setdefault(min(bins - 1, int(confidence * bins)), []).append((confidence, item.category_right))
    return sum(
        abs(sum(confidence for confidence, _ in pairs) - sum(right for _, right in pairs)) for pairs in held.values()
    ) / max(1, len(judged))
