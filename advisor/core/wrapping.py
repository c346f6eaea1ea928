"""Undo hard wraps: collectors and terminals cut lines at a fixed width, in the middle of words.

Only where the text itself shows it: no line is longer than the width, and several are exactly as long.
"""

WIDTH_MIN = 79
FULL_LINES_MIN = 2


def unwrap(data: bytes) -> tuple[bytes, tuple[int, ...]] | None:
    """Joined text and, for each of its lines, the number (from 1) of the line it began on. None: not wrapped."""
    lines = data.split(b"\n")
    width = _width(lines)
    if width is None:
        return None
    joined: list[bytes] = []
    numbers: list[int] = []
    open_line = False
    for number, line in enumerate(lines, 1):
        if open_line:
            joined[-1] += line
        else:
            joined.append(line)
            numbers.append(number)
        open_line = _columns(line) == width
    return b"\n".join(joined), tuple(numbers)


def _width(lines: list[bytes]) -> int | None:
    longest = max((_columns(line) for line in lines), default=0)
    if longest < WIDTH_MIN:
        return None
    full = sum(1 for line in lines if len(line) >= longest and _columns(line) == longest)
    return longest if full >= FULL_LINES_MIN else None


def _columns(line: bytes) -> int:
    """Characters, roughly: continuation bytes of UTF-8 take no column."""
    return len(line) if line.isascii() else sum(1 for byte in line if byte & 0xC0 != 0x80)
