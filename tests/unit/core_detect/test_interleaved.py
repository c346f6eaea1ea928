"""Ranks that fail together print in between each other; what they failed with stays the same failure."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from advisor.core.scan import Scanned
from tests.unit.core_detect.logs import scan

TRACEBACK = (
    "Traceback (most recent call last):",
    '  File "/home/u/train.py", line 340, in <module>',
    "    main()",
    '  File "/home/u/train.py", line 306, in train',
    "    faults.strike(step)",
    '  File "/home/u/train.py", line 230, in strike',
    "    self._do(fault, step)",
    '  File "/home/u/train.py", line 248, in _do',
    '    batch["labels"]',
    "    ~~~~~^^^^^^^^^^",
    "KeyError: 'labels'",
)
LABELS = st.sampled_from(("{}: ", "[rank{}]: ", "[default{}]:", "  {}: "))


def frames(scanned: Scanned) -> set[str]:
    return {signal.fields["frames"] for signal in scanned.signals}


@given(LABELS, st.permutations([rank for rank in range(4) for _ in TRACEBACK]))
def test_frames_do_not_depend_on_whose_line_comes_first(label: str, order: list[int]) -> None:
    """Without this the same KeyError looks new on every attempt, and a job that will never run is never stopped."""
    left = {rank: iter(TRACEBACK) for rank in range(4)}
    text = "".join(f"{label.format(rank)}{next(left[rank])}\n" for rank in order)
    assert frames(scan(text)) == {"train.py:train;train.py:strike;train.py:_do"}


@pytest.mark.parametrize(
    "text",
    [
        '{"msg": "Traceback (most recent call last):\\n  File \\"/a/t.py\\", line 1, in f\\nKeyError: 1\\n"}' + "\n",
        "╭── Traceback (most recent call last) ──╮\n│ /a/t.py:1 in f │\n╰──╯\nKeyError: 'x'\n",
        " 10%|#  | 1/9 [00:01<00:09,  1.0it/s]KeyError: 'x'\n",
        " 10%|#  | 1/9\rKeyError: 'x'\r\n",
        "\x1b[31mKeyError\x1b[0m: 'x'\n",
        "KeyEr\x00ror: '\xff'\n",
    ],
    ids=["json", "rich", "glued to a bar", "behind a carriage return", "coloured", "NUL and bad bytes"],
)
def test_an_exception_is_found_in_whatever_it_is_wrapped(text: str) -> None:
    """Collectors and terminals dress a traceback in many ways; it stays the same exception."""
    (signal,) = scan(text.encode("utf-8" if "╭" in text or "│" in text else "latin-1")).signals
    assert signal.fields["exception"] == "KeyError"
