"""Bytes to lines."""

from advisor.core.lines import LINE_BYTES_MAX, clean, decode, mask, raw_line_numbers, shorten
from tests.cost import within


def test_a_fault_glued_to_a_progress_bar_is_a_line_of_its_own() -> None:
    """Carriage returns end lines, and the numbers of the file's own lines are kept."""
    raw = b" 10%|#  | 1/9\r 20%|## | 2/9\rRuntimeError: x\nnext\r\nlast"
    assert clean(raw).split(b"\n") == [b" 10%|#  | 1/9", b" 20%|## | 2/9", b"RuntimeError: x", b"next", b"last"]
    assert raw_line_numbers(raw) == [0, 0, 0, 1, 2]


def test_colours_and_nuls_go() -> None:
    """Also colours whose escape byte a collector has eaten."""
    assert clean(b"\x1b[36m(Actor)\x1b[0m x\x00y") == b"(Actor) xy"
    assert clean(b"[36m(Actor pid=1)[0m x") == b"(Actor pid=1) x"


def test_titles_go_and_what_only_begins_like_one_stays() -> None:
    """A terminal's title or link; an escape that never ends takes no text with it, and costs no time."""
    assert clean(b"\x1b]0;node1: train\x07x \x1b]8;;http://a\x1b\\link\x1b]8;;\x1b\\") == b"x link"
    assert b"KeyError" in clean(b"\x1b]0;KeyError: 'x'" + b" " * 400 + b"\x07")
    within(1.0, lambda: clean(b"\x1b]" * (1 << 20)))


def test_long_lines_keep_head_and_tail() -> None:
    """The return code stands at the end."""
    line = b"head" + b"x" * 100_000 + b"return code = -11"
    short = clean(b"a\n" + line + b"\nb").split(b"\n")[1]
    assert len(short) <= LINE_BYTES_MAX
    assert short.startswith(b"head")
    assert short.endswith(b"return code = -11")
    assert shorten(b"abc") == b"abc"


def test_broken_utf8_is_replaced() -> None:
    """Nobody promised UTF-8."""
    assert decode(b"caf\xe9 \x07bell\tx") == "caf\ufffd bell x"


def test_masking_keeps_what_repeats() -> None:
    """Numbers and addresses are blanked, words stay."""
    assert mask("rank 3 at 0x7f3a: 12.5 s") == mask("rank 14 at 0x99: 3.1 s") == "rank # at #: # s"
