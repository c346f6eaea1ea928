"""How wide the columns of a table are, so that no word is broken where there is room for it. Pure but for the terminal.

A table that does not fit wraps the longest texts first, between words; then it leaves out the columns that say least,
and names them; only then are long words cut, behind a character that parts them if one is near.
"""

import os
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

GAP = 2  # spaces between columns
_NARROWEST = 20
_WORD_MAX = 24  # of longer words a column may hold a part only
_TEXT_MIN = 18  # narrower than this a sentence is a tower of words
_PARTS = frozenset(",;:=/._-@+")


def terminal_columns() -> int | None:
    """How wide to print, None for a pipe: there one row is one line."""
    given = os.environ.get("COLUMNS", "")
    if given.isascii() and given.isdigit() and int(given) > 0:
        return max(int(given), _NARROWEST)
    if not sys.stdout.isatty():
        return None
    return max(os.get_terminal_size(sys.stdout.fileno()).columns, _NARROWEST)


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """`shown`: the places of the columns that are printed, with the width of each. `left_out`: titles of the others."""

    shown: tuple[tuple[int, int], ...]
    left_out: tuple[str, ...] = ()


def layout(columns: Sequence[str], rows: Sequence[Sequence[str]], width: int, least: Sequence[str] = ()) -> Layout:
    """`least`: titles that may be left out for want of room, the first one first. The first column is never wrapped
    while there is room for it: it says what the row is about.
    """
    natural = [max(1, len(title), *(len(row[at]) for row in rows)) for at, title in enumerate(columns)]
    words = [max(1, _longest(title), *(_longest(row[at]) for row in rows)) for at, title in enumerate(columns)]
    smallest = [
        min(whole, max(min(word, _WORD_MAX), _TEXT_MIN if whole > 2 * _TEXT_MIN else 0))
        for whole, word in zip(natural, words, strict=True)
    ]
    smallest[0] = min(natural[0], max(smallest[0], width // 2))
    kept, gone = list(range(len(columns))), list[str]()
    for title in least:
        if _room(kept, width) >= sum(smallest[at] for at in kept):
            break
        kept.remove(columns.index(title))
        gone.append(title)
    room = _room(kept, width)
    widths = {at: smallest[at] for at in kept}
    while sum(widths.values()) > room and max(widths.values()) > 1:
        widths[max(kept, key=widths.__getitem__)] -= 1
    while sum(widths.values()) < room and any(widths[at] < natural[at] for at in kept):
        # Whoever lacks least gets it: times and names stay on one line, and sentences take what is left.
        widths[min((at for at in kept if widths[at] < natural[at]), key=lambda at: natural[at] - widths[at])] += 1
    return Layout(shown=tuple(widths.items()), left_out=tuple(gone))


def wrapped(text: str, width: int) -> str:
    """Lines of at most so many characters, broken between words; a longer word behind what parts it, or anywhere."""
    pieces: list[str] = []
    for word in text.split(" "):
        lines, rest = [], word
        while len(rest) > width:
            at = max((at for at in range(width // 2, width) if rest[at] in _PARTS), default=width - 1) + 1
            lines.append(rest[:at])
            rest = rest[at:]
        pieces.append("\n".join([*lines, rest]))
    return "\n".join(_filled(" ".join(pieces), width))


def _filled(text: str, width: int) -> list[str]:
    return [
        line
        for part in text.split("\n")
        for line in textwrap.wrap(part, width, break_on_hyphens=False, drop_whitespace=True) or [""]
    ]


def _longest(text: str) -> int:
    return max(map(len, text.split()), default=0)


def _room(kept: Sequence[int], width: int) -> int:
    return width - GAP * (len(kept) - 1)
