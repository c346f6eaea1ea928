"""Lines like one that was understood before: answered by looking them up, without matching them again.

Thousands of ranks print the same error. Which rule such a line hits, where it comes from and what it repeats follows
from the line and from what is known of its file alone, so it is worked out once. A line is looked up by its *shape*
(all digits made alike) and by those of its numbers that may decide something; ranks, clock times, sizes, durations and
long numbers decide no rule. The rank is read from where it stands.

A cache, not state: emptied at any time, it changes nothing but the speed. It is bounded.
"""

import re
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from operator import itemgetter

ANSWERS_MAX = 8_192  # of one file; then it begins anew
FILES_MAX = 8
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
    where it is not read from the line at `rank_at`, all of which must agree.
    """

    outcome: Outcome
    rule: str = ""
    keys: tuple[str, str] = ("", "")
    rank: int | None = None
    rank_at: tuple[slice, ...] = ()
    placed: bool = False  # at other places it is another error
    breaks: bool = False  # a crash line: what comes after it is no progress of before

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
    pick: Callable[[bytes], Hashable]
    answers: dict[Hashable, Answer]


_VARY = ("clock", "size", "process")
_VARY_SILENTLY = ("clock", "rank", "label")


class Alike:
    """Answers for the lines of one file."""

    def __init__(self, answers_max: int = ANSWERS_MAX) -> None:
        self._answers_max = answers_max
        self._layouts: dict[bytes, list[_Layout]] = {}
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def find(self, shape: bytes, line: bytes) -> Answer | None:
        for layout in self._layouts.get(shape, ()):
            found = layout.answers.get(layout.pick(line))
            if found is None:
                continue
            ranks = found.rank_at
            if len(ranks) < 2 or all(line[at] == line[ranks[0]] for at in ranks[1:]):
                return found
        return None

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
        if self._size >= self._answers_max:
            self._layouts.clear()
            self._size = 0
        if not self._answers_max:
            return
        layouts = self._layouts.setdefault(shape(line), [])
        layout = next((known for known in layouts if known.varies == varies), None)
        if layout is None:
            layout = _Layout(varies, _picker(_Numbers(line).but(*varies)), {})
            layouts.append(layout)
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
