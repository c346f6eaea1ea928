"""What lines that a rule hit come to, in one file and one call of the scanner: new signals, and counts of known ones.

Most lines of a failure repeat what is known. They are put aside while lines are looked at, and counted some chunks at a
time; what exceeds the bounds, or is about others' nodes, is counted only.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime

from advisor.core.alike import Answer, Outcome
from advisor.core.collectives import distinct, without_numbers
from advisor.core.lines import cap, decode, shorten
from advisor.core.model import Signal
from advisor.core.places import Place
from advisor.core.placing import Placer
from advisor.core.repeats import Repeats
from advisor.core.rules import Rule
from advisor.core.scan_state import FileContext, FileState, Repeat
from advisor.core.words import Implicates, IncidentKind, Role, Trust

_PLACED = frozenset({Implicates.NODE, Implicates.PEER, Implicates.CONDITIONAL})


class Findings:
    """The mutable side of a file's signals during one call of the scanner."""

    def __init__(self, context: FileContext, state: FileState, placer: Placer, seen_at: datetime) -> None:
        self.context = context
        self.placer = placer
        self.seen_at = seen_at
        self.repeats = Repeats(state.repeats)
        self.foreign = 0
        self.dropped = 0
        self.counted: dict[Answer, list[bytes]] = {}  # where lines are put that are only counted
        self._repeating: dict[Answer, list[bytes]] = {}
        self._beyond: list[bytes] = []
        self._elsewhere: list[bytes] = []
        self._signals: dict[str, Signal] = {}

    def known(self, answer: Answer, line: bytes) -> bool:
        """A line like one that was understood before. False: it must be looked at again. Once a line is only counted,
        it stays so."""
        if answer.outcome is Outcome.FOREIGN:
            lines = self._elsewhere
        elif self.repeats.choose(answer.rule, answer.keys) in self.repeats:
            lines = self._repeating.setdefault(answer, [])
        elif self.repeats.full(answer.rule):
            lines = self._beyond
        else:
            return False
        self.counted[answer] = lines
        lines.append(line)
        return True

    def without_signal(self, answer: Answer, line: bytes, number: int) -> bool:
        """Remember an error of a line that was understood before, and make no signal of it, since none would be kept.
        False: it must be looked at again."""
        context = self.context
        if context.room is None or answer.role is None:
            return False
        signal_id = self._id(answer.rule, decode(shorten(line)), number)
        if context.room.holds(context.trust, answer.role, signal_id):
            return False
        rank = next(iter(answer.ranks_in((line,))), None)
        self._add(self.repeats.choose(answer.rule, answer.keys), signal_id, answer.rule, rank)
        return True

    def _id(self, rule: str, text: str, number: int) -> str:
        return hashlib.sha256(f"{self.context.file}|{number}|{rule}|{text}".encode()).hexdigest()[:24]

    def _add(self, key: str, signal_id: str, rule: str, rank: int | None) -> None:
        self.repeats.add(Repeat(key=key, id=signal_id, rule=rule, ranks="" if rank is None else str(rank)))

    def count(self) -> None:
        """Count what was put aside: lines that repeat what is known, are about others' nodes, or are more than what is
        remembered."""
        for answer, lines in self._repeating.items():
            if lines:
                self.repeats.again(self.repeats.choose(answer.rule, answer.keys), answer.ranks_in(lines), len(lines))
                lines.clear()
        self.foreign += len(self._elsewhere)
        self.dropped += len(self._beyond)
        self._elsewhere.clear()
        self._beyond.clear()

    def take(
        self, rule: Rule, captures: dict[str, str], place: Place, text: str, number: int, at: datetime | None
    ) -> Answer:
        """Make or count a signal. Says what lines like this one come to."""
        resolved = self.placer.resolve(captures, place)
        if resolved is None:
            self.foreign += 1
            return Answer(outcome=Outcome.FOREIGN)
        rank, nodes, peers = resolved
        if place.pci:
            captures.setdefault("pci", place.pci)
        if "tasks" in captures and self.placer.label_is_node():
            captures["launchers"] = captures.pop("tasks")  # no ranks
        breaks = rule.role is Role.INITIATING and rule.kind is IncidentKind.CRASH and self.context.trust is Trust.LOG
        named = bool(captures.get("node") or captures.get("nodes"))
        by_place = named or rule.implicates in _PLACED or self.context.trust is not Trust.LOG
        placed = (*nodes, *peers) if by_place else ()
        keys = self.repeats.keys_of(rule.id, placed, place.body, distinct(rule.id, captures, text))
        # A rank that the rule itself found may be any number of the line.
        told = any(captures.get(name) for name in ("rank", "task", "local"))
        if rank is None and place.local is not None:
            captures.setdefault("local", str(place.local))
        answer = Answer(
            outcome=Outcome.ERROR,
            rule=rule.id,
            keys=keys,
            rank=rank,
            placed=by_place or told,
            breaks=breaks,
            role=rule.role,
        )
        key = self.repeats.choose(rule.id, keys)
        if self.repeats.again(key, () if rank is None else (rank,)):
            return answer
        if self.repeats.full(rule.id):
            self.dropped += 1
            return answer
        context = self.context
        signal_id = self._id(rule.id, text, number)
        self._add(key, signal_id, rule.id, rank)
        if context.room is not None and not context.room.holds(context.trust, rule.role, signal_id):
            return answer
        if key != keys[0]:
            captures = without_numbers(captures)
        self._signals[key] = Signal(
            id=signal_id,
            rule=rule.id,
            trust=context.trust,
            source=context.source,
            seen_at=self.seen_at,
            written_at=None if context.written_at is None else min(context.written_at, self.seen_at),
            at=at,
            rank=rank,
            gpu=_gpu(captures, place),
            nodes=nodes,
            peers=peers,
            file=context.file,
            line=number,
            text=cap(text),
            role=rule.role,
            category=rule.category,
            fields={name: cap(value, 300) for name, value in sorted(captures.items())},
            order=number,
        )
        return answer

    def settled(self) -> tuple[Signal, ...]:
        """The signals of this call with their counts. `repeats.settled` was asked before."""
        made = []
        for key, signal in self._signals.items():
            repeat = self.repeats[key]
            fields = dict(signal.fields)
            if "," in repeat.ranks or "-" in repeat.ranks:
                fields["ranks"] = repeat.ranks
            made.append(replace(signal, count=repeat.count, fields=fields))
        return tuple(made)


def _gpu(captures: Mapping[str, str], place: Place) -> int | None:
    text = captures.get("gpu", "")
    return int(text) if text.isdigit() and len(text) < 3 else place.gpu
