"""Errors of a file that came before: counted under the signal that is known, not kept again.

What thousands of ranks print alike costs one entry, whatever the number of lines; the bounds on entries are per rule
and per file, and what exceeds them is counted as dropped.
"""

import hashlib
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

from advisor.core.collectives import APART_MAX
from advisor.core.lines import mask
from advisor.core.ranks import RANKS_MAX, fold_ranks, parse_ranks
from advisor.core.scan_state import Repeat

REPEATS_MAX = 256  # distinct errors remembered per file
REPEATS_PER_RULE_MAX = 48


class Repeats:
    """The mutable side of a file's repeats during one call of the scanner."""

    def __init__(self, known: Iterable[Repeat]) -> None:
        self._by_key = {repeat.key: repeat for repeat in known}
        self._before = frozenset(self._by_key)
        self._of_rule = Counter(repeat.rule for repeat in self._by_key.values())
        self._seen_again: tuple[Repeat, ...] = ()
        self._counts: dict[str, int] = {}
        self._ranks: dict[str, set[int]] = {}

    def __getitem__(self, key: str) -> Repeat:
        return self._by_key[key]

    def keys_of(self, rule: str, placed: Sequence[str], body: str, apart: str) -> tuple[str, str]:
        """What lines that are one signal share: by the numbers that keep reports apart, and without them."""
        parts = (rule, ",".join(placed), mask(body))
        plain = _digest(parts)
        return (_digest((*parts, apart)) if apart else plain), plain

    def choose(self, rule: str, keys: tuple[str, str]) -> str:
        """Reports stay apart by their numbers while they are few; the rest is counted together."""
        apart, plain = keys
        return apart if apart in self._by_key or self._of_rule[rule] < APART_MAX else plain

    def __contains__(self, key: str) -> bool:
        return key in self._by_key

    def again(self, key: str, ranks: Collection[int], count: int = 1) -> bool:
        """Count lines with an error that is known, and who printed them; False: it is not known."""
        if key not in self._by_key:
            return False
        if ranks:
            known = self._ranks.get(key)
            if known is None:
                known = self._ranks[key] = set(parse_ranks(self._by_key[key].ranks))
            if len(known) < RANKS_MAX:
                known.update(ranks)
        self._counts[key] = self._counts.get(key, 0) + count
        return True

    def full(self, rule: str) -> bool:
        """No further error of this rule is remembered. What is full stays full."""
        return len(self._by_key) >= REPEATS_MAX or self._of_rule[rule] >= REPEATS_PER_RULE_MAX

    def add(self, repeat: Repeat) -> None:
        self._by_key[repeat.key] = repeat
        self._of_rule[repeat.rule] += 1

    def settled(self) -> tuple[Repeat, ...]:
        """All repeats, with what was counted during this call."""
        for key, more in self._counts.items():
            known = self._by_key[key]
            ranks = fold_ranks(self._ranks[key]) if key in self._ranks else known.ranks
            self._by_key[key] = replace(known, count=known.count + more, ranks=ranks)
        seen_again = self._counts
        self._counts, self._ranks = {}, {}
        self._seen_again = tuple(self._by_key[key] for key in seen_again if key in self._before)
        return tuple(self._by_key.values())

    def of_earlier_reads(self) -> tuple[Repeat, ...]:
        """After `settled`: those of earlier calls that this one saw again."""
        return self._seen_again


def _digest(parts: Sequence[str]) -> str:
    return hashlib.sha256("|".join(parts).encode()).hexdigest()[:16]
