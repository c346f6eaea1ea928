"""Lines like one that was understood before: answered by looking them up, without matching them again.

Thousands of ranks print the same error. Which rule such a line hits, where it comes from and what it repeats follows
from the line and from what is known of its file alone, so it is worked out once. A line is looked up by its *shape*
(all digits made alike) and by those of its numbers that may decide something; ranks, clock times, sizes, durations and
long numbers decide no rule. The rank is read from where it stands.

A cache, not state: emptied at any time, it changes nothing but the speed. It is bounded, in entries and in bytes.
"""

import re
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from hashlib import blake2b
from operator import itemgetter

from advisor.core.words import Role

ANSWERS_MAX = 8_192  # of one file, or of the files of one attempt; then it begins anew
FILES_MAX = 8
PIECE_BYTES_MAX = 65_536
PIECES_BYTES_MAX = 2 << 20  # with all that is kept of them
PICKS_MAX = 64  # of one shape of many lines
TELLING_MAX = 256  # lines of a text that say something: where there are more, little is saved
ANSWERS_BYTES_MAX = 8 << 20
LEARNT_MAX = 16  # texts in vain; each costs some times as much as reading it, so where few repeat it is given up
HITS_PER_LEARNT = 4
ITEM_BYTES = 200  # about what an entry takes besides its text
_RANKS_COMPARED_MAX = 4

_ALL_ALIKE = bytes.maketrans(b"123456789", b"000000000")
_NUMBERS = re.compile(
    # A date that is none gives a line no time.
    rb"(?P<date>\d{4}[-/]\d\d[-/]\d\d)|(?<![\w.])[IWEFD](?P<day>\d{3,4})(?= )"
    rb"|(?P<clock>(?<!\d)(?:[01]\d|2[0-3]):[0-5]\d:[0-5]\d(?:[.,]\d+)?)"
    rb"|(?:(?:[Rr]ank|RANK)[ :=]?|\"(?:global_)?rank\": ?\"?)(?P<rank>\d{1,6})(?!\d)"
    rb"|^ *(?P<label>\d{1,6})(?=:)"
    # The numbers of a collective differ between ranks, and tell who is behind.
    rb"|(?:SeqNum=|work: |sequence id: )(?P<collective>\d+)"
    rb"|(?P<size>(?<![\w.])\d+(?:\.\d+)?(?= ?(?:[KMGT]i?B|ms|milliseconds|s|seconds|%)(?!\w)))"
    rb"|(?:(?<=[:<(])|(?<=pid=)|(?<=pid ))(?P<process>\d{4,})"
    rb"|(?P<long>\d{4,})"
    rb"|(?P<short>\d+)"
)


class Outcome(StrEnum):
    NOTHING = "nothing"  # no rule has anything to say
    HARMLESS = "harmless"  # one does, and it is not an error
    ERROR = "error"
    FOREIGN = "foreign"  # about nodes that the attempt does not have


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Answer:
    """What lines like this one come to. `keys`: what they repeat, apart and together; `rank`: the same for all of them,
    where it is not read from the line at `rank_at`, all of which must agree. `role`: of the rule, where the line
    says it plainly and not within a record.
    """

    outcome: Outcome
    rule: str = ""
    keys: tuple[str, str] = ("", "")
    rank: int | None = None
    rank_at: tuple[slice, ...] = ()
    placed: bool = False  # at other places it is another error
    breaks: bool = False  # a crash line: what comes after it is no progress of before
    role: Role | None = None

    def ranks_in(self, lines: Iterable[bytes]) -> set[int]:
        """Who printed them."""
        if not self.rank_at:
            return set() if self.rank is None else {self.rank}
        at = self.rank_at[0]
        return {int(text) for text in {line[at] for line in lines}}


@dataclass(slots=True)
class _Layout:
    """Where, in lines of one shape, the numbers stand that may decide something: all but those that vary."""

    varies: tuple[str, ...]
    kept: tuple[tuple[int, int], ...]
    pick: Callable[[bytes], Hashable]
    answers: dict[Hashable, Answer]


@dataclass(slots=True)
class _Pieces:
    """Texts of many lines, of one shape. `telling`: which lines say something, or are not known well enough, by a
    digest of those numbers of all others that may decide something: where the bits of `mask` are set.
    """

    mask: int
    telling: dict[bytes, tuple[int, ...]]

    def pick(self, text: bytes) -> bytes:
        kept = int.from_bytes(text, "big") & self.mask
        return blake2b(kept.to_bytes(len(text), "big"), digest_size=16).digest()


_VARY = ("clock", "size", "process")
_VARY_SILENTLY = ("clock", "rank", "label")


class Alike:
    """Answers for the lines of one file."""

    def __init__(self, answers_max: int = ANSWERS_MAX) -> None:
        self._answers_max = answers_max
        self._layouts: dict[bytes, list[_Layout]] = {}
        self._pieces: dict[bytes, _Pieces | None] = {}  # None: seen once
        self._pieces_bytes = 0
        self._learnt = 0
        self._hits = 0
        self._size = 0
        self._bytes = 0

    def __len__(self) -> int:
        return self._size

    @property
    def held_bytes(self) -> int:
        """About what all that is remembered takes."""
        return self._bytes + self._pieces_bytes

    def find(self, shape: bytes, line: bytes) -> Answer | None:
        for layout in self._layouts.get(shape, ()):
            found = layout.answers.get(layout.pick(line))
            if found is None:
                continue
            ranks = found.rank_at
            if len(ranks) < 2 or all(line[at] == line[ranks[0]] for at in ranks[1:]):
                return found
        return None

    def telling(self, shape: bytes, text: bytes) -> tuple[int, ...] | None:
        """Which lines of a text are to be looked at, where the others say nothing as in one before it. None: all."""
        held = self._pieces.get(shape)
        found = held.telling.get(held.pick(text)) if held is not None else None
        self._hits += found is not None
        return found

    def again(self, shape: bytes) -> bool:
        """A text of many lines was seen: True if it is not the first of its shape, and worth learning."""
        if self._learnt >= LEARNT_MAX + self._hits // HITS_PER_LEARNT:
            return False
        if shape in self._pieces:
            return True
        if not self._answers_max or len(shape) > PIECE_BYTES_MAX:
            return False
        self._hold(len(shape) + ITEM_BYTES)
        self._pieces[shape] = None
        return False

    def _hold(self, size: int) -> None:
        """Room for so many bytes more of texts."""
        if self._pieces_bytes + size > PIECES_BYTES_MAX:
            self._pieces.clear()
            self._pieces_bytes = 0
        self._pieces_bytes += size

    def learn_piece(self, shape: bytes, text: bytes) -> None:
        """Which of its lines say nothing, by what is known of each of them alone."""
        self._learnt += 1
        mask = bytearray(len(text))
        telling: list[int] = []
        start = 0
        for number, (line, line_shape) in enumerate(zip(text.split(b"\n"), shape.split(b"\n"), strict=True)):
            layouts = self._layouts.get(line_shape, ())
            # What else lines of this shape may come to is not looked into.
            if len(layouts) == 1 and (found := self.find(line_shape, line)) and found.outcome is Outcome.NOTHING:
                for first, last in layouts[0].kept:
                    mask[start + first : start + last] = b"\xff" * (last - first)
            else:
                telling.append(number)
            start += len(line) + 1
        if len(telling) > TELLING_MAX:
            return
        kept = int.from_bytes(mask, "big")
        held = self._pieces.get(shape)
        if held is None or held.mask != kept or len(held.telling) >= PICKS_MAX:
            self._hold(2 * len(shape) + ITEM_BYTES)
            held = self._pieces[shape] = _Pieces(kept, {})
        self._pieces_bytes += ITEM_BYTES + 40 * len(telling)
        held.telling[held.pick(text)] = tuple(telling)

    def nothing(self, line: bytes, outcome: Outcome = Outcome.NOTHING) -> None:
        """Lines like this one are no errors."""
        self._learn(line, _VARY_SILENTLY, Answer(outcome=outcome))

    def learn(self, line: bytes, answer: Answer, *, rank_of_file: int | None, label_is_rank: bool) -> None:
        """Lines like this one come to `answer`, whose rank may stand in the line."""
        varies: tuple[str, ...] = _VARY
        if answer.outcome is Outcome.ERROR and not answer.placed:
            numbers = _Numbers(line)
            at = numbers.rank_at(answer.rank, label_is_rank=label_is_rank)
            if at:
                answer = replace(answer, rank=None, rank_at=at)
                varies = (*_VARY, "long", "rank", "label")
            elif answer.rank == rank_of_file and not numbers.has("rank", "label"):
                varies = (*_VARY, "long")
        self._learn(line, varies, answer)

    def _learn(self, line: bytes, varies: tuple[str, ...], answer: Answer) -> None:
        if self._size >= self._answers_max or self._bytes > ANSWERS_BYTES_MAX:
            self._layouts.clear()
            self._pieces.clear()
            self._size = self._bytes = self._pieces_bytes = 0
        if not self._answers_max:
            return
        layouts = self._layouts.setdefault(shape(line), [])
        layout = next((known for known in layouts if known.varies == varies), None)
        if layout is None:
            kept = _Numbers(line).but(*varies)
            layout = _Layout(varies, kept, _picker(kept), {})
            layouts.append(layout)
            self._bytes += len(line) + ITEM_BYTES * (1 + 2 * len(kept))
        self._bytes += ITEM_BYTES + sum(last - first + 50 for first, last in layout.kept)
        layout.answers[layout.pick(line)] = answer
        self._size += 1


class _Numbers:
    """The numbers of a line and what each of them looks like."""

    def __init__(self, line: bytes) -> None:
        self.line = line
        self.found = [
            (kind, found.span(kind)) for found in _NUMBERS.finditer(line) if (kind := found.lastgroup) is not None
        ]

    def has(self, *kinds: str) -> bool:
        return any(kind in kinds for kind, _ in self.found)

    def of(self, kind: str) -> list[tuple[int, int]]:
        return [span for found, span in self.found if found == kind]

    def but(self, *kinds: str) -> tuple[tuple[int, int], ...]:
        """The stretches of the line from number to number that hold none of these kinds."""
        stretches: list[tuple[int, int]] = []
        joined = False
        for kind, (start, end) in self.found:
            keep = kind not in kinds
            if keep:
                stretches.append((stretches.pop()[0] if joined else start, end))
            joined = keep
        return tuple(stretches)

    def rank_at(self, rank: int | None, *, label_is_rank: bool) -> tuple[slice, ...]:
        """Where the rank stands; nowhere, when it came from elsewhere or another rank stands in the line too."""
        spans = self.of("rank") or (self.of("label") if label_is_rank else [])
        if rank is None or len(spans) > _RANKS_COMPARED_MAX:
            return ()
        if any(int(self.line[start:end]) != rank for start, end in spans):
            return ()
        return tuple(slice(start, end) for start, end in spans)


def shape(text: bytes) -> bytes:
    """Text, of one line or of many, with all digits alike, but that none is not some: `total=0` is not `total=3`."""
    return text.replace(b" 0", b" z").replace(b"=0", b"=z").translate(_ALL_ALIKE)


def _picker(kept: Sequence[tuple[int, int]]) -> Callable[[bytes], Hashable]:
    if not kept:
        return len
    return itemgetter(*(slice(start, end) for start, end in kept))


class AlikeFiles:
    """The caches of the files that were read last, each for what was known of its file then."""

    def __init__(self, answers_max: int = ANSWERS_MAX) -> None:
        self._answers_max = answers_max
        self._files: dict[str, tuple[object, Alike]] = {}

    def of(self, file: str, known: object) -> Alike:
        """`known`: all that answers depend on besides the line; other knowledge is another cache."""
        held = self._files.pop(file, None)
        if held is None or held[0] != known:
            held = (known, Alike(self._answers_max))
        self._files[file] = held
        while len(self._files) > FILES_MAX:
            del self._files[next(iter(self._files))]
        return held[1]
