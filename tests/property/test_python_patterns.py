"""Patterns rewritten for RE2 say what Python's `re` says, on any pattern and line. `re` is the slow oracle here."""

import re
import warnings

from hypothesis import example, given
from hypothesis import strategies as st

from advisor.core.job_rules import compile_pattern
from advisor.rules.python_patterns import PatternError, compilable

# No `\b`: it is the border of an ASCII word in RE2, as docs/decisions/0003 says; it has a test of its own.
LETTERS = [
    "a",
    "b",
    "K",
    "1",
    "_",
    ".",
    " ",
    "\t",
    "-",
    "]",
    "[",
    "é",
    "Σ",
    "損",
    "٧",
    "²",
    "\u00a0",
    "\x1f",
    "😀",
    ":",
]
ATOMS = [
    *map(re.escape, LETTERS),
    ".", r"\d", r"\D", r"\w", r"\W", r"\s", r"\S", r"\n", r"\x61", r"\u640d", r"\101", r"\Z", "$", "^", r"\A",
    "[ab]", "[^ab]", r"[\d_]", r"[^\d]", r"[\w.]", r"[^\w]", r"[\W]", r"[^\W\d]", r"[\s\S]", r"[^\S]", r"[\D1]",
    "[]a]", "[^]]", "[[:a]", "[a-c٠-٩]", "[.-]", r"[\]\\]",
]  # fmt: skip
MARKS = ["*", "+", "?", "*?", "+?", "??", "{2}", "{,2}", "{1,}", "{0,3}?", "{", "{a}"]


def _nest(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.one_of(
        st.lists(inner, min_size=1, max_size=4).map("".join),
        st.tuples(inner, inner).map("|".join),
        st.tuples(st.sampled_from(["(", "(?:", "(?P<x>", "(?i:", "(?s:", "(?a:", "(?m:", "(?-i:"]), inner).map(
            lambda pair: f"{pair[0]}{pair[1]})"
        ),
        # In a group, since a repeat of a repeat could become a possessive one, which is refused.
        st.tuples(inner, st.sampled_from(MARKS)).map(lambda pair: f"(?:{pair[0]}){pair[1]}"),
    )


bodies = st.recursive(st.sampled_from(ATOMS), _nest, max_leaves=6)
patterns = st.tuples(st.sampled_from(["", "", ".*", "(?i)", "(?s)", "(?x)", "(?a)", "(?m)"]), bodies).map("".join)
lines = st.text(st.sampled_from([*LETTERS, "A", "k", "É", "σ", "\r", "\x0b"]), max_size=10)


def _by_re(pattern: str, line: str) -> tuple[int, str | None] | None:
    found = re.match(pattern, line)
    return None if found is None else (found.end(), found.group(1) if found.re.groups else None)


def _by_re2(pattern: str, line: str) -> tuple[int, str | None] | None:
    compiled = compile_pattern(compilable(pattern).text)
    found = compiled.match(line.encode())
    if found is None:
        return None
    captured = found.group(1) if compiled.groups else None
    return len(found.group(0).decode()), None if captured is None else captured.decode()


def _python_takes(pattern: str) -> bool:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            re.compile(pattern)
    except (re.error, ValueError, OverflowError, RecursionError):
        return False
    return True


@given(patterns, lines)
@example(r"(?i)k", "\u212a")
def test_a_pattern_means_what_it_means_to_python(pattern: str, line: str) -> None:
    """The same lines match, as far, and group 1 takes the same; what Python refuses is refused."""
    text = f"{line}\n"
    if not _python_takes(pattern):
        try:
            compilable(pattern)
        except PatternError:
            return
        raise AssertionError(f"{pattern!r} should be refused")
    ours = _by_re2(pattern, text)
    theirs = _by_re(pattern, text)
    if "(" in pattern and ours is not None and theirs is not None and _can_be_empty(pattern):
        # What a group inside a repeat holds after an empty round differs between the two engines.
        ours, theirs = (ours[0], None), (theirs[0], None)
    assert ours == theirs


def _can_be_empty(pattern: str) -> bool:
    return any(mark in pattern for mark in (")*", ")+", ")?", "){"))


@given(st.text(st.characters(codec=None), max_size=60), st.text(max_size=20))
def test_any_text_is_a_pattern_or_is_refused(pattern: str, line: str) -> None:
    """Nothing but `PatternError` comes of any text, and what is accepted can run."""
    try:
        made = compilable(pattern)
    except PatternError:
        return
    assert made.text.isascii()
    compile_pattern(made.text).match(line.encode() + b"\n")
