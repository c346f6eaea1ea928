"""What a decision was made from, and making it again.

The tick stores `Inputs`, rules and policy as canonical JSON with each decision; `reproduce` reads those bytes and
decides again. The same build gives the same bytes, also after every log has been deleted. With another policy, or with
some rules changed, it tells what would have been decided of the same facts.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from functools import lru_cache

from advisor.core import codec
from advisor.core.decide import decide
from advisor.core.model import Decision, Snapshot
from advisor.core.policy import Policy
from advisor.core.rules import Rule, RuleSet, digest_of
from advisor.core.words import Action, Category, Reason

_DECODED_MAX = 8  # rules and policies in memory: few were in force at the times that are looked at


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """All that `decide` read besides rules and policy. `detector`: hash of the detector state at that moment."""

    snapshot: Snapshot
    now: datetime
    detector: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Packed:
    inputs: bytes
    rules: bytes
    policy: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Instead:
    """What another decision is to be made with. `policy` None: the stored one. `rules` replace those of their ids."""

    policy: Policy | None = None
    rules: tuple[Rule, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What matters of a decision to who compares two."""

    action: Action
    category: Category
    reason: Reason
    exclude_nodes: tuple[str, ...]
    isolate_nodes: tuple[str, ...]
    why: str

    @classmethod
    def of(cls, decision: Decision) -> "Verdict":
        return cls(
            action=decision.action,
            category=decision.attribution.category,
            reason=decision.reason,
            exclude_nodes=decision.isolation.exclude_for_job,
            isolate_nodes=decision.isolation.isolate_for_cluster,
            why=decision.explanation,
        )

    def differences(self, other: "Verdict") -> Iterator[tuple[str, str, str]]:
        """(field, here, there) of what differs but for the sentence, which follows from the rest."""
        for item in fields(self):
            mine, theirs = getattr(self, item.name), getattr(other, item.name)
            if item.name != "why" and mine != theirs:
                yield item.name, _text(mine), _text(theirs)


def reproduce(packed: Packed, policy: Policy | None = None) -> Decision:
    """Decide again from stored bytes, with another policy if one is given. Raises `codec.CodecError`."""
    return decide_instead(packed, Instead(policy=policy))


def decide_instead(packed: Packed, instead: Instead) -> Decision:
    """Decide the same case otherwise. Raises `codec.CodecError`."""
    inputs = read_inputs(packed)
    rules = _rules(packed.rules, instead.rules)
    chosen = instead.policy if instead.policy is not None else stored_policy(packed)
    return decide(inputs.snapshot, rules, chosen, inputs.now)


def read_inputs(packed: Packed) -> Inputs:
    return codec.decode(Inputs, packed.inputs)


def stored_policy(packed: Packed) -> Policy:
    return _policy(packed.policy)


@lru_cache(maxsize=_DECODED_MAX)
def _rules(data: bytes, changed: tuple[Rule, ...]) -> RuleSet:
    stored = codec.decode(RuleSet, data)
    return with_rules(stored, changed) if changed else stored


@lru_cache(maxsize=_DECODED_MAX)
def _policy(data: bytes) -> Policy:
    return codec.decode(Policy, data)


def with_rules(base: RuleSet, changed: Sequence[Rule]) -> RuleSet:
    """`base` with rules replaced by id, in their places; new ones come last."""
    by_id = {rule.id: rule for rule in changed}
    known = {rule.id for rule in base.rules}
    rules = (
        *(by_id.get(rule.id, rule) for rule in base.rules),
        *(rule for rule in changed if rule.id not in known),
    )
    return RuleSet(rules=rules, xids=base.xids, digest=digest_of(rules, base.xids))


def policy_differences(before: Policy, after: Policy) -> Iterator[tuple[str, str, str]]:
    """(key, before, after) of the numbers that differ."""
    for item in fields(Policy):
        old, new = getattr(before, item.name), getattr(after, item.name)
        if old != new:
            yield item.name, str(old), str(new)


def _text(value: object) -> str:
    return ", ".join(value) if isinstance(value, tuple) else str(value)
