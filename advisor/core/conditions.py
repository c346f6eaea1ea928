"""What an attempt's progress says about how it goes, as signals: slower than it was, numbers gone bad."""

import hashlib
from collections.abc import Mapping, Sequence
from datetime import datetime

from advisor.core import divergence, straggler
from advisor.core.model import Signal, Snapshot
from advisor.core.ranks import fold_ranks
from advisor.core.rules import Rule
from advisor.core.words import AttemptState, IncidentKind, Trust

SLOWDOWN = "advisor.slowdown"
INPUT_STARVED = "advisor.input_starved"
LOSS_NOT_FINITE = "advisor.loss_not_finite"
LOSS_SPIKE = "advisor.loss_spike"


def signal_id(snapshot: Snapshot, *parts: str) -> str:
    """The id of a signal that is made from facts of an attempt: equal facts, equal id."""
    text = "|".join((snapshot.job.key, str(snapshot.attempt.number), *parts))
    return hashlib.sha256(text.encode()).hexdigest()[:24]


def condition_signals(
    snapshot: Snapshot, judged: Sequence[tuple[Signal, Rule]], rules: Mapping[str, Rule], now: datetime
) -> tuple[Signal, ...]:
    """Signals of the attempt's present condition. The same condition is the same signal at every tick."""
    made: list[Signal] = []

    def make(rule_id: str, text: str, at: datetime | None, *parts: str, **fields: str) -> None:
        rule = rules.get(rule_id)
        if rule is None:
            return
        seen_at = at or snapshot.progress.last_at or now
        made.append(
            Signal(
                id=signal_id(snapshot, rule_id, *parts),
                rule=rule_id,
                trust=Trust.LOG,
                source="advisor",
                seen_at=seen_at,
                at=None if snapshot.offline else seen_at,
                text=text,
                role=rule.role,
                category=rule.category,
                fields=fields,
            )
        )

    live = snapshot.attempt.state is AttemptState.RUNNING and not snapshot.offline
    progress = snapshot.progress
    bad = divergence.diverged(snapshot)
    if bad is not None and not bad.finite:
        make(LOSS_NOT_FINITE, bad.text, progress.numbers.onset_at, str(bad.onset))
    elif bad is not None and live:
        make(LOSS_SPIKE, bad.text, progress.numbers.onset_at, str(bad.onset))
    reports = [signal for signal, rule in judged if rule.kind is IncidentKind.STRAGGLER]
    state = snapshot.attempt.state
    goes_on = state is AttemptState.RUNNING or (snapshot.offline and state is AttemptState.OTHER)
    slow = straggler.slowdown(snapshot, reports) if goes_on else None
    if slow is not None:
        rule_id = INPUT_STARVED if slow.starved else SLOWDOWN
        ranks = {"slow": fold_ranks(slow.ranks)} if slow.ranks else {}
        make(rule_id, slow.text, slow.at, str(slow.step), *map(str, slow.ranks), **ranks)
    return tuple(made)
