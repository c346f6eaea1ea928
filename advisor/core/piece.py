"""The lines of a chunk in which a rule hit, and how far progress was looked for in them."""

from collections.abc import Callable, Sequence

from advisor.core.alike import shape
from advisor.core.lines import raw_line_numbers

BLOCK_BYTES = 2_048

Observe = Callable[[bytes, set[str], int, int], None]  # text, progress formats in it, its first line, its newlines


class Piece:
    """`first`: the number of its first line in the file; `closing`: an interpreter shuts down somewhere in it."""

    def __init__(self, raw: bytes, text: bytes, first: int, observe: Observe, *, closing: bool) -> None:
        self.text, self.shape = text, shape(text)
        self.lines: Sequence[bytes] = text.split(b"\n")
        self._shapes: Sequence[bytes] = ()
        self.closing = closing
        self.forms: set[str] = set()  # progress formats of the block that is looked at
        self.pending: set[str] = set()  # those seen since `_from`
        self._numbers = raw_line_numbers(raw) if b"\r" in raw else None
        self._first = first
        self._observe = observe
        self._from = 0

    def shapes(self, places: Sequence[int]) -> Sequence[bytes]:
        """Of these lines: a stretch of them, or the few that are looked at."""
        if not isinstance(places, range):
            return [shape(self.lines[place]) for place in places]
        if not self._shapes:
            self._shapes = self.shape.split(b"\n")
        return self._shapes[places.start : places.stop]

    def number(self, position: int) -> int:
        """Of a line, in the file as it is."""
        return self._first + (self._numbers[position] if self._numbers else position)

    def observe(self, until: int) -> None:
        """Progress up to a line that is to be judged by it."""
        if self.pending and self._from < until:
            lines = self.lines[self._from : until]
            self._observe(b"\n".join(lines), self.pending, self.number(self._from), len(lines) - 1)
            self.pending = set(self.forms)
        self._from = until


def block_end(lines: Sequence[bytes], index: int) -> int:
    """Where a block of a few lines ends: a set is asked about blocks before it is asked about lines."""
    size = 0
    end = index
    while end < len(lines) and (size < BLOCK_BYTES or end == index):
        size += len(lines[end]) + 1
        end += 1
    return end
