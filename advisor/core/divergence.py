"""Have the numbers gone bad, and for good?

Values come from progress lines. One NaN step is skipped and forgotten, and a spike of the loss mostly heals: only a run
of bad values counts, and a finite, ordinary value ends it. What loss scaling does on purpose (overflow, skipped steps,
an infinite gradient norm on them) is no bad value, and counters that name NaN are no values at all.

Why: the same step again is the job's own (the decision table stops it after its confirmation); other steps each time,
with one node always in it that no undisturbed attempt had, is suspected silent corruption on that node. That alone
excludes nobody: it implicates, and the node's history corroborates.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import pairwise
from statistics import median

from advisor.core.course import Numbers
from advisor.core.history import implication_weight
from advisor.core.model import Attribution, Implication, PastAttempt, Snapshot
from advisor.core.policy import Policy
from advisor.core.words import Category, Role, Trust

KEPT = 32
LEARNED = 12  # values from which a median says something
NOT_FINITE = 5  # progress lines in a row
FAR = 20  # the same for a spike: most heal sooner
SAME_LINES = 2 * FAR  # progress lines from one divergence to another that is the same
FAR_FACTOR = 1.5
DEVIATIONS = 10.0
_MAD = 1.4826
SUSPECTS_MAX = 1  # more nodes in common say nothing about one of them

_NUMBER = r"[-+]?(?:nan|inf(?:inity)?|\d+(?:\.\d*)?(?:e[-+]?\d+)?)"
_LOSS = re.compile(
    rf"(?i)(?:^|[\s|,{{'\"])(?:lm[ _]|train[ _]|reduced_train_|total_)?loss['\"]?\s{{0,2}}[:=]?\s{{0,10}}"
    rf"(?P<value>{_NUMBER})(?![\w.])"
)
_NORM = re.compile(
    rf"(?i)\b(?:grad(?:ient)?[ _]?norm|gnorm)['\"]?\s{{0,2}}[:=]?\s{{0,10}}(?P<value>{_NUMBER})(?![\w.])"
)
_SKIPPED = re.compile(r"(?i)number of skipped iterations: +[1-9]|\boverflow\b|skipping (?:this )?step")


def printed_values(text: str) -> tuple[float | None, float | None]:
    """Loss and gradient norm of a progress line, each None where it prints none, or prints what scaling does."""
    if _SKIPPED.search(text):
        return None, None
    loss, norm = _LOSS.search(text), _NORM.search(text)
    values = float(loss["value"]) if loss is not None else None, float(norm["value"]) if norm is not None else None
    if values[0] is None and values[1] is not None and math.isnan(values[1]):
        return values[1], values[1]  # Megatron leaves the loss of such a step out
    return values


def learn(known: Numbers, *, step: int, loss: float | None, norm: float | None, at: datetime) -> Numbers:
    """One more progress line, read at `at`; `step` is that of the line before, where all was still well."""
    if loss is None:
        return known
    first = not (known.not_finite or known.far)
    onset, onset_at = (step, at) if first else (known.onset, known.onset_at)
    if not math.isfinite(loss):
        return replace(known, not_finite=known.not_finite + 1, onset=onset, onset_at=onset_at, finite=False)
    finite_norm = norm is not None and math.isfinite(norm)
    what = ""
    if _far(loss, known.losses):
        what = "loss"
    elif norm is not None and finite_norm and _far(norm, known.norms):
        what = "gradient norm"
    if what:
        far = known.far + 1
        return replace(known, not_finite=0, far=far, what=what, onset=onset, onset_at=onset_at, finite=True)
    losses = (*known.losses, _rounded(loss))[-KEPT:]
    norms = (*known.norms, _rounded(norm))[-KEPT:] if norm is not None and finite_norm else known.norms
    return Numbers(losses=losses, norms=norms, finite=True)


def _rounded(value: float) -> float:
    """Six digits: what is stored at every tick need not be longer."""
    return float(f"{value:.6g}")


def _far(value: float, usual: Sequence[float]) -> bool:
    """Far above history. A loss may be negative, so that the factor applies to its distance from the lowest."""
    if len(usual) < LEARNED:
        return False
    middle = median(usual)
    spread = _MAD * median(abs(item - middle) for item in usual)
    return value > middle + DEVIATIONS * spread and value > middle + (FAR_FACTOR - 1.0) * abs(middle)


@dataclass(frozen=True, slots=True, kw_only=True)
class Diverged:
    """The numbers of an attempt are bad for good. `onset`: the last step at which they were not."""

    text: str
    onset: int
    finite: bool  # a spike that stays, not NaN


def diverged(snapshot: Snapshot) -> Diverged | None:
    """What the attempt's progress lines show, None while its numbers are well."""
    known = snapshot.progress.numbers
    if known.onset is None:
        return None
    if known.not_finite >= NOT_FINITE:
        return Diverged(text=f"the loss is not finite since step {known.onset}", onset=known.onset, finite=False)
    if known.far >= FAR:
        text = f"the {known.what} is far above its own history since step {known.onset}"
        return Diverged(text=text, onset=known.onset, finite=True)
    return None


def suspects(snapshot: Snapshot) -> tuple[str, ...]:
    """Nodes that divergence moved with: in every attempt whose numbers went bad, each time at another step, and in none
    that got past those steps.
    """
    nodes, here = snapshot.attempt.nodes, snapshot.progress.last_step
    bad = [past for past in snapshot.past if past.category is Category.NUMERICS and past.nodes]
    if nodes is None or here is None or not bad:
        return ()
    steps = [here, *(past.last_step for past in bad if past.last_step is not None)]
    near = _near(snapshot)
    if len(steps) != len(bad) + 1 or any(right - left <= near for left, right in pairwise(sorted(steps))):
        return ()
    common = set(nodes).intersection(*(past.nodes for past in bad))
    if len(nodes) == 1 or common == set(nodes):
        return ()  # always the same nodes: nothing moved
    cleared = {node for past in snapshot.past if _passed(past, max(steps)) for node in past.nodes}
    left = tuple(sorted(common - cleared))
    return left if len(left) <= SUSPECTS_MAX else ()


def _near(snapshot: Snapshot) -> int:
    """Steps apart at which two attempts went bad at the same one: bad numbers are told some lines later."""
    return SAME_LINES * max(1, snapshot.progress.pace.stride)


def repeated(snapshot: Snapshot) -> int | None:
    """The newest earlier attempt whose numbers went bad at the same step, None where none did."""
    here = snapshot.progress.last_step
    alike = (
        past.number
        for past in snapshot.past
        if past.category is Category.NUMERICS
        and past.last_step is not None
        and here is not None
        and abs(past.last_step - here) <= _near(snapshot)
    )
    return max(alike, default=None)


def _passed(past: PastAttempt, step: int) -> bool:
    return past.category is not Category.NUMERICS and past.last_step is not None and past.last_step > step


def with_suspects(attribution: Attribution, snapshot: Snapshot, policy: Policy) -> Attribution:
    """An attribution to numerics: of the job or its data where it came at the same step before, else with the node that
    it moved with, if any. The node is blamed only where other jobs implicated it before.
    """
    if attribution.category is not Category.NUMERICS:
        return attribution
    before = repeated(snapshot)
    if before is not None:
        cause = f"{attribution.root_cause}; at the same step as attempt {before}: the job itself or its data"
        return replace(attribution, root_cause=cause, deterministic=True)
    found = suspects(snapshot)
    if not found:
        return attribution
    node = found[0]
    known = any(
        fact.name == node and (fact.other_jobs >= 1 or fact.score >= policy.suspect_score) for fact in snapshot.nodes
    )
    implied = Implication(
        node=node,
        weight=implication_weight(Trust.LOG, Role.INITIATING, attribution.confidence, blamed=known),
        trust=Trust.LOG,
        role=Role.INITIATING,
        category=Category.NODE_HARDWARE,
        rule="advisor.silent_corruption",
        evidence=attribution.evidence[:4],
    )
    return replace(
        attribution,
        root_cause=f"{attribution.root_cause}; it moved with {node}: silent corruption is suspected",
        nodes=(*attribution.nodes, node) if known and node not in attribution.nodes else attribution.nodes,
        implications=(*attribution.implications, implied),
        fingerprint="" if known else attribution.fingerprint,
    )


def checkpoint_before(snapshot: Snapshot, onset: int) -> int | None:
    """The newest checkpoint known that was saved before the numbers went bad."""
    steps = [*snapshot.progress.checkpoints, *(past.checkpoint_step for past in snapshot.past)]
    return max((step for step in steps if step is not None and step <= onset), default=None)
