"""Slurm's hostlist expressions, expanded and bounded. Standard library only.

`node[1-3,07],gpu-a[0-1]-ib[1-2]` becomes plain node names in the order written. Slurm itself prints these, but a
list may also come from a user's `--exclude`, so the size of what it expands to is bounded before anything is built.
"""

import re

NODES_MAX = 65536

_PART = re.compile(r"\[([^\[\]]*)\]")
_RANGE = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?\Z", re.ASCII)
_NAME = re.compile(r"[A-Za-z0-9_.:-]+\Z", re.ASCII)
_NOTHING = frozenset({"", "(null)", "N/A", "None assigned", "None"})


class HostlistError(ValueError):
    """Not a hostlist, or one that expands to more than `NODES_MAX` names."""


def expand(text: str, *, nodes_max: int = NODES_MAX) -> tuple[str, ...]:
    """Plain node names, duplicates dropped, order kept. Empty for Slurm's ways to print "none".

    Raises HostlistError when the text cannot be a hostlist or names too many nodes.
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
            raise HostlistError(f"more than {nodes_max} nodes")
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
        if depth not in (0, 1):
            raise HostlistError(f"unbalanced brackets: {text[:80]!r}")
    if depth:
        raise HostlistError(f"unbalanced brackets: {text[:80]!r}")
    items.append(text[start:])
    return [item for item in items if item]


def _expand_item(item: str, *, nodes_max: int) -> list[str]:
    prefixes = [""]
    rest = item
    while found := _PART.search(rest):
        numbers = _numbers(found.group(1), nodes_max=nodes_max)
        if len(prefixes) * len(numbers) > nodes_max:
            raise HostlistError(f"more than {nodes_max} nodes")
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
        if high < low or len(numbers) + high - low + 1 > nodes_max:
            raise HostlistError(f"not a usable range: {part[:40]!r}")
        width = len(first) if first.startswith("0") or len(first) == len(last) else 0
        numbers.extend(str(number).zfill(width) for number in range(low, high + 1))
    return numbers
