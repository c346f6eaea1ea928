"""Sets of ranks as short text, `0-7,12`: what 2,048 ranks print alike is one signal with one such field."""

from collections.abc import Iterable

RANKS_MAX = 65_536


def parse_ranks(text: str) -> frozenset[int]:
    """Ranks of `2,4-5, 7`; what is not a number or a range is skipped, and so is what exceeds the bound."""
    ranks: set[int] = set()
    for item in text.replace(" ", ",").split(","):
        first, _, last = item.strip().partition("-")
        if not (first.isascii() and first.isdigit() and len(first) < 8):
            continue
        low = int(first)
        high = int(last) if last.isascii() and last.isdigit() and len(last) < 8 else low
        if high - low >= RANKS_MAX or len(ranks) > RANKS_MAX:
            continue
        ranks.update(range(low, high + 1))
    return frozenset(ranks)


def fold_ranks(ranks: Iterable[int]) -> str:
    """`parse_ranks` gives them back."""
    ordered = sorted(set(ranks))
    parts: list[str] = []
    index = 0
    while index < len(ordered):
        end = index
        while end + 1 < len(ordered) and ordered[end + 1] == ordered[end] + 1:
            end += 1
        parts.append(str(ordered[index]) if end == index else f"{ordered[index]}-{ordered[end]}")
        index = end + 1
    return ",".join(parts)
