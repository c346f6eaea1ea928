"""Signatures and the Xid table as values. `advisor.rules.loader` reads them; the core only uses them.

A rule yields evidence, never an action. Rules without a pattern are made by code from scheduler and telemetry facts;
they are in the registry so that every signal has a title, a category and a source.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from advisor.core.model import Signal
from advisor.core.words import Category, Implicates, IncidentKind, Role


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One distinct failure mode. `weight` (0..1) is how surely a hit means this category, all else silent."""

    id: str
    title: str  # one sentence: what happened
    pattern: str  # RE2; "" when made by code
    category: Category
    role: Role
    implicates: Implicates = Implicates.NOBODY
    kind: IncidentKind = IncidentKind.CRASH
    weight: float = 0.6
    certain: bool = False  # the same start-up fails the same way again
    certain_always: bool = False  # also after progress: a quota stays exceeded
    deterministic: bool = False  # looks it: deserves one confirmation retry
    transient_storage: bool = False  # shared storage is away: wait
    guess: bool = False  # the line does not tell the category, only what mostly is behind it: its weight is its worth
    clears: bool = True  # progress after it proves that it was survived
    ends: bool = True  # it ends the process that printed it; False: training may hang or go on
    source: str = ""
    positive: tuple[str, ...] = ()
    negative: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class XidEntry:
    """What one Xid code says about its node. The table decides, never the word 'Xid'."""

    code: int
    name: str
    category: Category
    role: Role
    implicates: Implicates  # NODE, CONDITIONAL or NOBODY
    fatal: bool  # ends the GPU for the job: an incident by itself
    weight: float
    note: str = ""
    words: str = ""  # what happened, where an operator reads the code; "" as older builds stored it: the name is said


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleSet:
    """All rules, in a fixed order. `digest` names this exact set in stored decisions."""

    rules: tuple[Rule, ...]
    xids: Mapping[int, XidEntry] = field(default_factory=dict)
    digest: str = ""
    _index: Mapping[str, Rule] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        index: dict[str, Rule] = {}
        for rule in self.rules:
            if rule.id in index:
                raise ValueError(f"two rules have the id {rule.id!r}")
            index[rule.id] = rule
        object.__setattr__(self, "_index", index)

    def by_id(self) -> Mapping[str, Rule]:
        return self._index


XID_RULE = "kernel.xid"
XID_LOG_RULES = frozenset({XID_RULE, "telemetry.xid", "log.xid_mention", "dcgm.xid"})
# How far the code that each of them gives is believed.
FATAL_LINK = 0.85  # of an Xid whose line says that the error is fatal to the link
_LINK_LOST = (
    149  # unlike its kin it is of the GPU's own link; 144 to 148 are also what the other end makes a GPU report
)
_XID_SHARES: Mapping[str, float] = {XID_RULE: 1.0, "telemetry.xid": 0.95}


def xid_code(fields: Mapping[str, str]) -> int | None:
    """The code that a line about an Xid carries, or of the one that it says it follows; or None."""
    text = fields.get("cause", "") or fields.get("xid", "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 6 else None


def effective(rule: Rule, fields: Mapping[str, str], xids: Mapping[int, XidEntry]) -> Rule:
    """The rule as it applies to one hit: for Xids, category, role and blame come from the table."""
    if rule.id not in XID_LOG_RULES:
        return rule
    code = xid_code(fields)
    entry = xids.get(code) if code is not None else None
    if entry is None:
        # A code that the table does not know proves nothing.
        return replace(rule, role=Role.SYMPTOM, implicates=Implicates.CONDITIONAL, weight=0.2)
    if fields.get("severity", "").lower().startswith("non"):
        # The driver itself says that the GPU goes on (links of NVLink 5 report both kinds under one code).
        return replace(rule, title=f"Xid {entry.code}, not fatal", role=Role.SYMPTOM, implicates=Implicates.CONDITIONAL)
    implicates, weight = entry.implicates, entry.weight
    if (
        (fields.get("severity", "").lower() == "fatal" or (entry.code == _LINK_LOST and fields.get("cause", "")))
        and implicates is Implicates.CONDITIONAL
        and not fields.get("elsewhere", "")
    ):
        # The driver says of this very link that it is lost, or ends channels for its sake, which it does for a fatal
        # error only, and does not send the reader to its other end.
        implicates, weight = Implicates.NODE, max(weight, FATAL_LINK)
    return replace(
        rule,
        title=f"Xid {entry.code}: {entry.words or entry.name}",
        category=entry.category,
        role=entry.role,
        implicates=implicates,
        weight=weight * _XID_SHARES.get(rule.id, 0.8),
    )


def rule_of(signal: Signal, rules: RuleSet, index: Mapping[str, Rule]) -> Rule | None:
    """The effective rule behind a signal; None for a rule that this set does not have (any more)."""
    rule = index.get(signal.rule)
    return effective(rule, signal.fields, rules.xids) if rule is not None else None


def digest_of(rules: tuple[Rule, ...], xids: Mapping[int, XidEntry]) -> str:
    """Content hash, independent of the files that the rules came from."""
    text = "\n".join(repr(rule) for rule in rules) + "\n".join(repr(xids[code]) for code in sorted(xids))
    return hashlib.sha256(text.encode()).hexdigest()[:32]
