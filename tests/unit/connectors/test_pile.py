"""Lines of many streams given on in parts, against the slow obvious way: all of them in one list, by time."""

import random

import pytest

from connectors.logs.pile import Pile
from connectors.logs.store import Stream

Row = tuple[int, str, bytes]


def streams_of(rows: list[Row]) -> list[Stream]:
    found: dict[str, Stream] = {}
    for ns, name, text in sorted(rows, key=lambda row: row[0]):
        found.setdefault(name, Stream(job="7", name=name, node=None)).add((ns,), (text,), (0,))
    return list(found.values())


def slowly(rows: list[Row], bytes_max: int) -> list[list[Row]]:
    """Parts that hold as much as fits, at least a line, and never a part of a nanosecond."""
    left, parts = sorted(rows), []
    while left:
        size = end = 0
        while end < len(left) and (not end or size + len(left[end][2]) + 1 <= bytes_max):
            size += len(left[end][2]) + 1
            end += 1
        while end < len(left) and left[end][0] == left[end - 1][0]:
            end += 1
        parts.append(left[:end])
        left = left[end:]
    return parts


@pytest.mark.parametrize("seed", range(30))
def test_parts_hold_what_fits_and_each_line_once(seed: int) -> None:
    """Parts are those of one list in order of time, and the moment told is that of the next part's first line."""
    chance = random.Random(seed)
    # Lines of one length, so that it is told which fit even where several share a moment.
    rows = [(chance.randrange(40), f"s{chance.randrange(5)}", b"%06d" % n) for n in range(chance.randrange(1, 60))]
    bytes_max = chance.choice((1, 20, 70, 10_000))
    pile, expected = Pile(streams_of(rows)), slowly(rows, bytes_max)
    for number, part in enumerate(expected):
        taken, next_ns = pile.take(bytes_max)
        got = [
            (stream.times[at], stream.name, stream.texts[at]) for stream, low, high in taken for at in range(low, high)
        ]
        assert sorted(got) == part
        assert next_ns == (expected[number + 1][0][0] if number + 1 < len(expected) else None)
    assert pile.take(bytes_max) == ([], None)


def test_weight_is_of_bytes_and_newlines() -> None:
    """Two lines of two bytes weigh six: with five only the first is given."""
    rows = [(1, "a", "é".encode()), (2, "b", "é".encode())]
    assert Pile(streams_of(rows)).take(6)[1] is None
    assert Pile(streams_of(rows)).take(5)[1] == 2


def test_stream_puts_its_lines_in_order_and_tells_repeats_once() -> None:
    """Lines of one nanosecond stay as they came; exact repeats are told where the line came first."""
    stream = Stream(job="7", name="a", node=None)
    stream.add((5, 3, 5, 3, 5), (b"x", b"late", b"a", b"late", b"x"), (0, 0, 0, 1, 0))
    ordered = stream.in_order()
    assert ordered.lines == [(3, b"late", 0), (3, b"late", 1), (5, b"x", 0), (5, b"a", 0), (5, b"x", 0)]
    assert ordered.without_repeats().lines == [(3, b"late", 0), (3, b"late", 1), (5, b"x", 0), (5, b"a", 0)]
    assert ordered.between(3, 5).lines == [(3, b"late", 0), (3, b"late", 1)]
    assert ordered.between(0, 9) is ordered
