"""What a decision was made from, and making it again.

The tick stores `Inputs`, rules and policy as canonical JSON with each decision; `reproduce` reads those bytes and
decides again. The same build gives the same bytes, also after every log has been deleted.
"""

from dataclasses import dataclass
from datetime import datetime

from advisor.core import codec
from advisor.core.decide import decide
from advisor.core.model import Decision, Snapshot
from advisor.core.policy import Policy
from advisor.core.rules import RuleSet


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


def reproduce(packed: Packed, policy: Policy | None = None) -> Decision:
    """Decide again from stored bytes, with another policy if one is given. Raises `codec.CodecError`."""
    inputs = codec.decode(Inputs, packed.inputs)
    rules = codec.decode(RuleSet, packed.rules)
    chosen = policy if policy is not None else codec.decode(Policy, packed.policy)
    return decide(inputs.snapshot, rules, chosen, inputs.now)
