"""Prometheus' text format, as exporters serve it: the few fields that matter out of hundreds.

Our own reader rather than `prometheus_client`'s: that one builds families of all metrics first, 5-10 times slower, and
thousands of exporters are read here every interval. Lines are matched only where their name is wanted.
"""

import re
from collections.abc import Iterator, Mapping

from advisor.core.lines import decode

_LINE = re.compile(r"([A-Za-z_:][A-Za-z0-9_:]*)(?:\{(.*)\})?[ \t]+(\S+)(?:[ \t]+-?\d+)?[ \t]*")
_LABEL = re.compile(r'([A-Za-z_][A-Za-z0-9_]*)[ \t]*=[ \t]*"((?:[^"\\]|\\.)*)"[ \t]*(?:,[ \t]*|$)')
_ESCAPE = re.compile(r"\\(.)")
_ESCAPED = {"n": "\n"}
NAME_BYTES_MAX = 200


class ExpositionError(ValueError):
    """Not the text format; the message says which line."""


def read(data: bytes, names: frozenset[str]) -> Iterator[tuple[str, Mapping[str, str], float]]:
    """Name, labels and value of each series that has one of the names. Raises `ExpositionError`."""
    wanted = {name.encode() for name in names}
    for number, line in enumerate(data.split(b"\n"), 1):
        if not line or line[:1] == b"#":
            continue
        head = line[:NAME_BYTES_MAX].partition(b"{")[0].split(maxsplit=1)
        if not head or head[0] not in wanted:
            continue
        found = _LINE.fullmatch(decode(line))
        if found is None:
            raise ExpositionError(f"line {number} is not in Prometheus' text format")
        try:
            value = float(found[3])
        except ValueError:
            raise ExpositionError(f"line {number} has no number as its value") from None
        yield found[1], _labels(found[2] or "", number), value


def _labels(text: str, number: int) -> dict[str, str]:
    labels: dict[str, str] = {}
    at = 0
    while at < len(text):
        found = _LABEL.match(text, at)
        if found is None:
            raise ExpositionError(f"line {number} has labels that are not in Prometheus' text format")
        labels[found[1]] = _ESCAPE.sub(lambda escape: _ESCAPED.get(escape[1], escape[1]), found[2])
        at = found.end()
    return labels
