"""Other rules and another policy over decisions of the past: what would have been decided of the same facts.

Memory stays small whatever the history: changed decisions are handed on, and only counts are kept.
"""

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from advisor.core import codec
from advisor.core.model import Decision
from advisor.replay import Instead, Packed, Verdict, decide_instead, read_inputs

LIMITS = (
    "The facts are those that were gathered then: what other rules would have read more, or another policy would have "
    "waited for, cannot be known. Lines that no rule matched then were not stored.",
    "Each decision is taken by itself: had one been another, Slurm, the job's next attempts and the budgets would have "
    "gone another way.",
    "When a live job was found to hang or to be slow is fixed by what was seen then.",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One stored decision. `same_build`: the stored bytes are what this build decides, so need not be made again."""

    decision_id: str
    stored: bytes
    packed: Packed
    same_build: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One decision before and after. `unreadable`: why this build cannot take part. `drifted`: it decides otherwise by
    itself, which is not the policy's doing: `before` is what it decides with the stored policy and rules.
    """

    decision_id: str
    job_id: str = ""
    attempt: int = 0
    before: Verdict | None = None
    after: Verdict | None = None
    drifted: bool = False
    unreadable: str = ""

    @property
    def changed(self) -> bool:
        return self.before is not None and self.after is not None and any(self.before.differences(self.after))


def evaluate(case: Case, instead: Instead) -> Outcome:
    """Decide one case again. Pure but for its caches."""
    try:
        stored = Verdict.of(codec.decode(Decision, case.stored))
        before = stored if case.same_build else Verdict.of(decide_instead(case.packed, Instead()))
        after = Verdict.of(decide_instead(case.packed, instead))
        inputs = read_inputs(case.packed)
    except codec.CodecError as error:
        return Outcome(decision_id=case.decision_id, unreadable=str(error))
    return Outcome(
        decision_id=case.decision_id,
        job_id=inputs.snapshot.job.job_id,
        attempt=inputs.snapshot.attempt.number,
        before=before,
        after=after,
        drifted=any(stored.differences(before)),
    )


@dataclass(slots=True)
class Tally:
    """Counts over all decisions so far. `moves`: (category, action) before and after → how many."""

    decisions: int = 0
    changed: int = 0
    drifted: int = 0
    unreadable: int = 0
    moves: Counter[tuple[str, str, str, str]] = field(default_factory=Counter)

    def add(self, outcome: Outcome) -> None:
        self.decisions += 1
        self.changed += outcome.changed
        self.drifted += outcome.drifted
        self.unreadable += bool(outcome.unreadable)
        if outcome.before is not None and outcome.after is not None:
            before, after = outcome.before, outcome.after
            self.moves[before.category, before.action, after.category, after.action] += 1

    def write(self) -> str:
        return json.dumps(
            {
                "decisions": self.decisions,
                "changed": self.changed,
                "drifted": self.drifted,
                "unreadable": self.unreadable,
                "moves": [[*move, count] for move, count in sorted(self.moves.items())],
            }
        )

    @classmethod
    def read(cls, document: Mapping[str, object]) -> "Tally":
        """Of what `write` wrote. Raises KeyError, TypeError and ValueError for anything else."""
        numbers = {name: document[name] for name in ("decisions", "changed", "drifted", "unreadable")}
        moves = document["moves"]
        if not isinstance(moves, list) or not all(isinstance(number, int) for number in numbers.values()):
            raise TypeError("not a tally")
        counted = Counter({(str(a), str(b), str(c), str(d)): int(count) for a, b, c, d, count in moves})
        return cls(**numbers, moves=counted)  # type: ignore[arg-type] # all of them are whole numbers


def change_of(outcome: Outcome) -> dict[str, object]:
    """A changed decision as JSON: what differs, before and after, and why each."""
    if outcome.before is None or outcome.after is None:
        raise ValueError("an unreadable decision has not changed")
    return {
        "decision_id": outcome.decision_id,
        "job_id": outcome.job_id,
        "attempt": outcome.attempt,
        "category": outcome.before.category,
        "action": outcome.before.action,
        "different": {name: [old, new] for name, old, new in outcome.before.differences(outcome.after)},
        "why": [outcome.before.why, outcome.after.why],
    }
