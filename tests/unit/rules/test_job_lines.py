"""Bytes to the lines that job-defined rules are judged on, however the bytes arrive."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from advisor.core.codec import decode, encode
from advisor.core.job_lines import LINE_BYTES_MAX, UNFINISHED_SECONDS, Tail, due_at, settle, split

NOON = datetime(2026, 11, 29, 12, tzinfo=UTC)


def after(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


def read(*pieces: bytes) -> tuple[Tail, list[tuple[int, bytes]]]:
    """Everything that comes of these pieces, with line numbers."""
    tail, found = Tail(), []
    for piece in pieces:
        tail, batch = split(tail, piece, NOON)
        found.extend(enumerate(batch.lines, batch.first))
    return tail, found


@pytest.mark.parametrize(
    ("pieces", "lines", "partial"),
    [
        ([b""], [], b""),
        ([b"a\nb\n"], [b"a", b"b"], b""),
        ([b"a\r\nb\rc\n\n"], [b"a", b"b", b"c", b""], b""),
        ([b"a", b"b\nc"], [b"ab"], b"c"),
        ([b"a\r", b"\nb\n"], [b"a", b"b"], b""),
        ([b"a\r", b"", b"\nb\n"], [b"a", b"b"], b""),
        ([b"a\r", b"\n"], [b"a"], b""),
        ([b"a\r", b"b\n"], [b"a", b"b"], b""),
        ([b"a\n", b"\nb\n"], [b"a", b"", b"b"], b""),
        (["損".encode()[:2], "損\n".encode()[2:]], ["損".encode()], b""),
        ([b"\x1b[31ma\x00\x0bb\x85c\n"], [b"\x1b[31ma\x00\x0bb\x85c"], b""),
    ],
)
def test_lines_end_as_in_text_files(pieces: list[bytes], lines: list[bytes], partial: bytes) -> None:
    """At LF, CR LF and CR, wherever the pieces are cut; nothing is taken out of a line."""
    tail, found = read(*pieces)
    assert found == list(enumerate(lines, 1))
    assert (tail.partial, tail.lines) == (partial, len(lines))


@given(st.lists(st.sampled_from([b"\r", b"\n", b"a", b"b", "é".encode(), b"\xff"]), max_size=30), st.data())
def test_cutting_elsewhere_gives_the_same_lines(parts: list[bytes], data: st.DataObject) -> None:
    """One piece or many, also with the state stored in between."""
    whole = b"".join(parts)
    expected, lines = read(whole)
    tail, found, start = Tail(), [], 0
    while start < len(whole):
        end = data.draw(st.integers(start + 1, len(whole)))
        tail, batch = split(decode(Tail, encode(tail)), whole[start:end], NOON)
        found.extend(enumerate(batch.lines, batch.first))
        start = end
    assert (tail, found) == (expected, lines)


def test_an_unfinished_line_waits() -> None:
    """It is given out once, after five seconds of silence; each new piece begins the wait anew."""
    tail, _ = split(Tail(), b"one\ntw", NOON)
    assert due_at(tail) == after(UNFINISHED_SECONDS)
    tail, _ = split(tail, b"o", after(3))
    assert settle(tail, after(7.9)) == (tail, settle(tail, NOON)[1])
    settled, batch = settle(tail, after(8))
    assert (batch.first, batch.lines) == (2, (b"two",))
    assert due_at(settled) is None
    assert settle(settled, after(99))[1].lines == ()


def test_an_unfinished_line_counts_at_the_end() -> None:
    """When nothing can follow it, at once; an empty one is none."""
    tail, _ = split(Tail(), b"one\ntw", NOON)
    assert settle(tail, NOON, final=True)[1].lines == (b"tw",)
    assert settle(Tail(), NOON, final=True)[1].lines == ()
    assert settle(split(Tail(), b"one\n", NOON)[0], NOON, final=True)[1].lines == ()


def test_a_line_given_out_early_is_judged_again_only_if_it_grew() -> None:
    """Its mere end adds nothing; its number is the same both times."""
    settled, _ = settle(split(Tail(), b"one", NOON)[0], after(9))
    tail, batch = split(settled, b"\ntwo\n", after(10))
    assert (batch.first, batch.lines, tail.lines) == (2, (b"two",), 2)
    tail, batch = split(settled, b" more\n", after(10))
    assert (batch.first, batch.lines, tail.lines) == (1, (b"one more",), 1)
    grown, _ = split(settled, b" more", after(10))
    assert settle(grown, after(20))[1].lines == (b"one more",)


def test_an_over_long_line_is_bounded() -> None:
    """Its beginning is kept, however long it goes on and however often it is looked at."""
    tail, found = Tail(), []
    for seconds in range(0, 60, 10):
        tail, batch = split(tail, b"x" * LINE_BYTES_MAX, after(seconds))
        found.extend(batch.lines)
        assert len(tail.partial) == LINE_BYTES_MAX
        tail, batch = settle(tail, after(seconds + 9))
        found.extend(batch.lines)
    assert found == [b"x" * LINE_BYTES_MAX]
    tail, batch = split(tail, b"\nnext\n", after(60))
    assert (batch.first, batch.lines) == (2, (b"next",))


def test_the_file_is_told() -> None:
    """Lines know where they stand."""
    tail, batch = split(Tail(), b"one\ntwo", NOON, file="train.log")
    assert batch.file == settle(tail, after(9), file="train.log")[1].file == "train.log"
