"""Slurm's hostlist expressions, both ways, bounded. Standard library only, pure: the one implementation of ours.

`node[1-3,07],gpu-a[0-1]-ib[1-2]` becomes plain node names in the order written, and names become such a list. Slurm
itself prints these, but a list may also come from a user's `--exclude` or from a log, so the size of what it expands to
is bounded before anything is built. What is refused here and what Slurm's own `scontrol show hostnames` refuses are
compared on the real one (tests/slurm/test_shapes.py); ours also takes brackets that are followed by more text.
"""

import re
from collections.abc import Iterable, Sequence

NODES_MAX = 65536

_PART = re.compile(r"\[([^\[\]]*)\]")
_RANGE = re.compile(r"(\d{1,18})(?:-(\d{1,18}))?\Z", re.ASCII)
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*\Z", re.ASCII)
_NUMBERED = re.compile(r"(.*?)([0-9]+)\Z", re.DOTALL)
_DIGITS_MAX = 18
_NOTHING = frozenset({"", "(null)", "N/A", "None assigned", "None"})


class HostlistError(ValueError):
    """Not a hostlist, or one that expands to more than `NODES_MAX` names."""


def expand(text: str, *, nodes_max: int = NODES_MAX) -> tuple[str, ...]:
    """Plain node names, duplicates dropped, order kept. Empty for Slurm's ways to print "none".

    Several brackets in one name (`rack[1-2]node[1-4]`) multiply, as in Slurm. Raises HostlistError when the text cannot
    be a hostlist or names too many nodes.
    """
    text = text.strip()
    if text in _NOTHING:
        return ()
    names: dict[str, None] = {}
    for item in _split(text):
        for name in _expand_item(item, nodes_max=nodes_max):
            if not _NAME.match(name):
                raise HostlistError(f"not a node name: {name[:80]!r}")
            names[name] = None
        if len(names) > nodes_max:
            raise HostlistError(f"more than {nodes_max} hosts")
    return tuple(names)


def _split(text: str) -> list[str]:
    """Cut at commas outside brackets."""
    items, depth, start = [], 0, 0
    for at, char in enumerate(text):
        if char == "[":
            depth += 1
        elif char == "]":
            depth -= 1
        elif char == "," and depth == 0:
            items.append(text[start:at])
            start = at + 1
        if depth > 1:
            raise HostlistError("a bracket inside a bracket")
        if depth < 0:
            raise HostlistError("a closing bracket without an opening one")
    if depth:
        raise HostlistError("a bracket is not closed")
    items.append(text[start:])
    return [item.strip() for item in items if item.strip()]


def _expand_item(item: str, *, nodes_max: int) -> list[str]:
    prefixes = [""]
    rest = item
    while found := _PART.search(rest):
        numbers = _numbers(found.group(1), nodes_max=nodes_max)
        if len(prefixes) * len(numbers) > nodes_max:
            raise HostlistError(f"more than {nodes_max} hosts")
        literal = rest[: found.start()]
        prefixes = [prefix + literal + number for prefix in prefixes for number in numbers]
        rest = rest[found.end() :]
    return [prefix + rest for prefix in prefixes]


def _numbers(text: str, *, nodes_max: int) -> list[str]:
    numbers: list[str] = []
    for part in text.split(","):
        found = _RANGE.match(part.strip())
        if not found:
            raise HostlistError(f"not a range: {part[:40]!r}")
        first, last = found.group(1), found.group(2) or found.group(1)
        low, high = int(first), int(last)
        if high < low:
            raise HostlistError(f"not a range: {part[:40]!r}")
        if len(numbers) + high - low + 1 > nodes_max:
            raise HostlistError(f"more than {nodes_max} hosts")
        numbers.extend(str(number).zfill(len(first)) for number in range(low, high + 1))
    return numbers


def fold(names: Iterable[str]) -> str:
    """The usual short spelling: names that differ in their last number share a bracket. `expand` gives them back."""
    split = {name: _NUMBERED.fullmatch(name) for name in names}
    # `n10` goes on where `n09` ends; padded numbers share a bracket only with numbers of the same width.
    padded = {(hit[1], len(hit[2])) for hit in split.values() if hit and hit[2].startswith("0") and len(hit[2]) > 1}
    groups: dict[tuple[str, int], list[int]] = {}
    order: dict[tuple[str, int] | str, None] = {}
    for name, hit in split.items():
        if hit is None or len(hit[2]) > _DIGITS_MAX:
            order[name] = None
            continue
        key = (hit[1], len(hit[2]) if (hit[1], len(hit[2])) in padded else 0)
        order[key] = None
        groups.setdefault(key, []).append(int(hit[2]))
    return ",".join(item if isinstance(item, str) else _bracket(*item, sorted(groups[item])) for item in order)


def _bracket(prefix: str, width: int, numbers: Sequence[int]) -> str:
    if len(numbers) == 1:
        return f"{prefix}{str(numbers[0]).zfill(width)}"
    ranges: list[str] = []
    start = previous = numbers[0]
    for number in (*numbers[1:], -1):
        if number == previous + 1:
            previous = number
            continue
        first = str(start).zfill(width)
        ranges.append(first if start == previous else f"{first}-{str(previous).zfill(width)}")
        start = previous = number
    return f"{prefix}[{','.join(ranges)}]"
