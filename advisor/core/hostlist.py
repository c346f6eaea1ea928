"""Slurm hostlists: `node[01-03,7],login1` to names and back.

Expansion is bounded: a hostlist from a job's own text may ask for a billion names.
"""

import re
from collections.abc import Iterable

HOSTS_MAX = 65_536

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
_NUMBERED = re.compile(r"(.*?)(\d+)$", re.DOTALL)


class HostlistError(ValueError):
    """The text is not a hostlist, or names more hosts than the bound."""


def expand(text: str, *, hosts_max: int = HOSTS_MAX) -> tuple[str, ...]:
    """Names in the order written, duplicates dropped. Raises `HostlistError`.

    Several brackets in one name (`rack[1-2]node[1-4]`) multiply, as in Slurm.
    """
    seen: dict[str, None] = {}
    for part in _split(text):
        for name in _expand_part(part, hosts_max):
            if not _NAME.fullmatch(name):
                raise HostlistError(f"not a host name: {name[:64]!r}")
            seen[name] = None
            if len(seen) > hosts_max:
                raise HostlistError(f"more than {hosts_max} hosts")
    return tuple(seen)


def _split(text: str) -> list[str]:
    """Cut at commas outside brackets."""
    parts: list[str] = []
    depth = 0
    start = 0
    for index, char in enumerate(text):
        if char == "[":
            depth += 1
            if depth > 1:
                raise HostlistError("a bracket inside a bracket")
        elif char == "]":
            depth -= 1
            if depth < 0:
                raise HostlistError("a closing bracket without an opening one")
        elif char == "," and depth == 0:
            parts.append(text[start:index])
            start = index + 1
    if depth:
        raise HostlistError("a bracket is not closed")
    parts.append(text[start:])
    return [part.strip() for part in parts if part.strip()]


def _expand_part(part: str, hosts_max: int) -> list[str]:
    names = [""]
    rest = part
    while "[" in rest:
        prefix, _, tail = rest.partition("[")
        inner, _, rest = tail.partition("]")
        numbers = _expand_numbers(inner, hosts_max)
        if len(names) * len(numbers) > hosts_max:
            raise HostlistError(f"more than {hosts_max} hosts")
        names = [name + prefix + number for name in names for number in numbers]
    return [name + rest for name in names]


def _expand_numbers(inner: str, hosts_max: int) -> list[str]:
    numbers: list[str] = []
    for item in inner.split(","):
        first, dash, last = item.strip().partition("-")
        if not (first.isascii() and first.isdigit()) or (dash and not (last.isascii() and last.isdigit())):
            raise HostlistError(f"not a range: {item[:64]!r}")
        if not dash:
            numbers.append(first)
            continue
        if len(first) > 18 or len(last) > 18 or int(last) < int(first):
            raise HostlistError(f"not a range: {item[:64]!r}")
        if len(numbers) + int(last) - int(first) + 1 > hosts_max:
            raise HostlistError(f"more than {hosts_max} hosts")
        numbers.extend(str(number).zfill(len(first)) for number in range(int(first), int(last) + 1))
    return numbers


def fold(names: Iterable[str]) -> str:
    """The shortest usual spelling: names that differ in their last number share a bracket. `expand` gives them back."""
    groups: dict[tuple[str, int], list[int]] = {}
    plain: list[str] = []
    order: list[tuple[str, int] | str] = []
    for name in dict.fromkeys(names):
        match = _NUMBERED.fullmatch(name)
        if match is None or len(match[2]) > 18:
            plain.append(name)
            order.append(name)
            continue
        # Zero-padded numbers share a bracket only with numbers of the same width.
        width = len(match[2]) if match[2].startswith("0") and len(match[2]) > 1 else 0
        key = (match[1], width)
        if key not in groups:
            groups[key] = []
            order.append(key)
        groups[key].append(int(match[2]))
    return ",".join(item if isinstance(item, str) else _fold_group(*item, groups[item]) for item in order)


def _fold_group(prefix: str, width: int, numbers: list[int]) -> str:
    numbers = sorted(set(numbers))
    if len(numbers) == 1:
        return f"{prefix}{str(numbers[0]).zfill(width)}"
    ranges: list[str] = []
    start = previous = numbers[0]
    for number in [*numbers[1:], -1]:
        if number == previous + 1:
            previous = number
            continue
        first = str(start).zfill(width)
        ranges.append(first if start == previous else f"{first}-{str(previous).zfill(width)}")
        start = previous = number
    return f"{prefix}[{','.join(ranges)}]"


def short(name: str) -> str:
    """The host's short name: `node22.cluster.internal` is Slurm's `node22`. Addresses stay whole."""
    if name.replace(".", "").isdigit() or ":" in name:
        return name
    return name.partition(".")[0]
