r"""Regular expressions as Python reads them, rewritten for RE2.

Job-defined rules were written for Python's `re` in text mode, matched with `re.match`. RE2 reads the same letters in
other ways: `\d`, `\w` and `\s` are ASCII there, `$` is the very end, `{,3}` is three characters, `[[:alpha:]]` is a
class, `\Z` is an error. So a pattern is parsed by Python's own parser (`re._parser`, private but unchanged since it was
`sre_parse`; a differential test against `re` watches it) and its tree is written out again. Nothing is ever matched
by `re`: its matcher backtracks, and a job's pattern could stop the service.

What RE2 cannot do is refused: look-around, back-references, conditional and atomic groups, possessive repeats, more
than 1,000 repeats. One difference stays: `\b` is the border of an ASCII word.

Errors::

    ValueError
    └── PatternError   Python or RE2 does not take it; the message says why and, where known, at which character
"""

import re
import sys
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from re import _constants, _parser  # type: ignore[attr-defined]  # not described by typeshed; see above
from typing import Any

import re2

from advisor.core.job_rules import compile_pattern

PATTERN_CHARS_MAX = 4_000
REPEAT_MAX = 1_000  # RE2's own bound
DEPTH_MAX = 50
# RE2's instructions. They bound the time per byte when a pattern defeats its automaton; `\w` in Unicode takes 1,350.
PROGRAM_SIZE_MAX = 10_000

_TOO_DEEP = f"more than {DEPTH_MAX} groups and repeats inside each other"
_REFUSED = {
    _constants.ASSERT: "look-ahead and look-behind",
    _constants.ASSERT_NOT: "negative look-ahead and look-behind",
    _constants.GROUPREF: "back-references",
    _constants.GROUPREF_EXISTS: "conditional groups",
    _constants.ATOMIC_GROUP: "atomic groups",
    _constants.POSSESSIVE_REPEAT: "possessive repeats",
}
_PLACES = {
    _constants.AT_BEGINNING_STRING: r"\A",
    _constants.AT_BOUNDARY: r"\b",
    _constants.AT_NON_BOUNDARY: r"\B",
    # A line holds one newline, its last character: before it and at the end is where both of Python's `$` match.
    _constants.AT_END: "(?m:$)",
    _constants.AT_END_STRING: r"\z",
}
_SPACES = r"\t-\r\x1c-\x20\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000}"
_NO_SPACES = (
    r"\x{0}-\x{8}\x{e}-\x{1b}\x{21}-\x{84}\x{86}-\x{9f}\x{a1}-\x{167f}\x{1681}-\x{1fff}\x{200b}-\x{2027}"
    r"\x{202a}-\x{202e}\x{2030}-\x{205e}\x{2060}-\x{2fff}\x{3001}-\x{10ffff}"
)
_CLASSES = {
    _constants.CATEGORY_DIGIT: r"\p{Nd}",
    _constants.CATEGORY_NOT_DIGIT: r"\P{Nd}",
    _constants.CATEGORY_SPACE: _SPACES,
    _constants.CATEGORY_NOT_SPACE: _NO_SPACES,
    _constants.CATEGORY_WORD: r"\p{L}\p{N}_",
}
_ASCII_CLASSES = {
    _constants.CATEGORY_DIGIT: r"0-9",
    _constants.CATEGORY_NOT_DIGIT: r"\x{0}-/:-\x{10ffff}",
    _constants.CATEGORY_SPACE: r"\t-\r\x20",
    _constants.CATEGORY_NOT_SPACE: r"\x{0}-\x{8}\x{e}-\x{1f}\x{21}-\x{10ffff}",
    _constants.CATEGORY_WORD: r"0-9A-Za-z_",
    _constants.CATEGORY_NOT_WORD: r"\x{0}-/:-@\[-\^`\{-\x{10ffff}",
}


class PatternError(ValueError):
    """This pattern cannot be used; the message says why, in one line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pattern:
    """A pattern for RE2, in plain ASCII."""

    text: str
    captures: bool  # it has a group 1
    narrowed: bool = False  # its classes had to be read as ASCII to stay small enough
    size: int = 0  # of the compiled program


def to_re2(pattern: str, *, ascii_only: bool = False) -> Pattern:
    r"""The RE2 pattern that matches what `re.match(pattern, line)` does, and captures its group 1 only.

    `ascii_only` reads `\d`, `\w` and `\s` as `re.ASCII` does. Raises `PatternError`.
    """
    if len(pattern) > PATTERN_CHARS_MAX:
        raise PatternError(f"longer than {PATTERN_CHARS_MAX} characters")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # "possible nested set": it is read as it has been read so far
            tree = _parser.parse(pattern, re.ASCII if ascii_only else 0)
        flags = tree.state.flags
        text = _write(tree, flags)
    except re.error as error:
        place = f" at character {error.pos + 1}" if error.pos is not None else ""
        raise PatternError(f"{error.msg}{place}") from error
    except RecursionError as error:
        raise PatternError(_TOO_DEEP) from error
    except PatternError:
        raise
    except (ValueError, OverflowError) as error:
        raise PatternError(str(error)) from error
    if flags & re.IGNORECASE:
        text = f"(?i:{text})"
    return Pattern(text=text, captures=tree.state.groups > 1)


def compilable(pattern: str) -> Pattern:
    """The RE2 pattern to use, tried, and small enough to run on every line. Raises `PatternError`."""
    wide = to_re2(pattern)
    size = _size(wide.text)
    if size <= PROGRAM_SIZE_MAX:
        return replace(wide, size=size)
    narrow = to_re2(pattern, ascii_only=True)
    size = _size(narrow.text)
    if size <= PROGRAM_SIZE_MAX:
        return replace(narrow, narrowed=True, size=size)
    raise PatternError("too large: its repeats multiply to more than can be run on every line")


def _size(text: str) -> int:
    """Of the compiled program, in RE2's instructions."""
    try:
        return int(compile_pattern(text).programsize)
    except re2.error as error:
        said = error.args[0].decode("utf-8", "replace") if error.args else "no reason given"
        if "too large" in said:
            return sys.maxsize
        raise PatternError(f"RE2 refuses it: {said}") from error


def _write(items: Iterable[Any], flags: int, depth: int = 0) -> str:
    if depth > DEPTH_MAX:
        raise PatternError(_TOO_DEEP)
    return "".join(_one(operation, argument, flags, depth + 1) for operation, argument in items)


def _one(operation: Any, argument: Any, flags: int, depth: int) -> str:
    """One node of the parser's tree."""
    if operation in _REFUSED:
        raise PatternError(f"{_REFUSED[operation]} are not available: patterns run in linear time (RE2)")
    if operation is _constants.LITERAL:
        return _char(argument)
    if operation is _constants.NOT_LITERAL:
        return f"[^{_char(argument)}]"
    if operation is _constants.ANY:
        return "(?s:.)" if flags & re.DOTALL else "."
    if operation is _constants.AT:
        if argument is _constants.AT_BEGINNING:
            return "(?m:^)" if flags & re.MULTILINE else r"\A"
        return _PLACES[argument]
    if operation is _constants.IN:
        return _set(argument, bool(flags & re.ASCII))
    if operation is _constants.BRANCH:
        return f"(?:{'|'.join(_write(branch, flags, depth) for branch in argument[1])})"
    if operation in (_constants.MAX_REPEAT, _constants.MIN_REPEAT):
        least, most, inner = argument
        lazy = "?" if operation is _constants.MIN_REPEAT else ""
        return f"(?:{_write(inner, flags, depth)}){_times(least, most)}{lazy}"
    if operation is _constants.SUBPATTERN:
        return _group(argument, flags, depth)
    raise PatternError(f"{str(operation).lower()} is not supported")


def _group(argument: tuple[int | None, int, int, Any], flags: int, depth: int) -> str:
    number, added, removed, inner = argument
    inside = (flags | added) & ~removed
    if added & (re.ASCII | re.UNICODE):
        inside = inside & ~(re.ASCII | re.UNICODE) | added
    text = _write(inner, inside, depth)
    changed = (flags ^ inside) & re.IGNORECASE
    mark = "" if not changed else "i" if inside & re.IGNORECASE else "-i"
    # Only group 1 is ever read; each further capture would cost on every match.
    return f"((?{mark}:{text}))" if number == 1 else f"(?{mark}:{text})"


def _times(least: int, most: Any) -> str:
    if least > REPEAT_MAX or (most is not _constants.MAXREPEAT and most > REPEAT_MAX):
        raise PatternError(f"more than {REPEAT_MAX} repeats")
    if most is _constants.MAXREPEAT:
        return {0: "*", 1: "+"}.get(least, f"{{{least},}}")
    return f"{{{least}}}" if most == least else f"{{{least},{most}}}"


def _set(items: Sequence[Any], ascii_only: bool) -> str:
    negated = any(operation is _constants.NEGATE for operation, _ in items)
    classes = _ASCII_CLASSES if ascii_only else _CLASSES
    parts: list[str] = []
    for operation, argument in items:
        if operation is _constants.LITERAL:
            parts.append(_char(argument))
        elif operation is _constants.RANGE:
            parts.append(f"{_char(argument[0])}-{_char(argument[1])}")
        elif operation is _constants.CATEGORY:
            parts.append(classes[argument] if argument in classes else _no_word())
        elif operation is not _constants.NEGATE:
            raise PatternError(f"{str(operation).lower()} is not supported in a set")
    return f"[{'^' if negated else ''}{''.join(parts)}]"


@cache
def _no_word() -> str:
    """Everything but letters, numbers and `_`, as ranges: RE2 cannot take a class away inside a set."""
    ranges: list[str] = []
    start: int | None = None
    for code in range(sys.maxunicode + 2):
        word = code > sys.maxunicode or code == 0x5F or chr(code).isalnum()
        if word and start is not None:
            ranges.append(f"\\x{{{start:x}}}-\\x{{{code - 1:x}}}")
            start = None
        elif not word and start is None:
            start = code
    return "".join(ranges)


def _char(code: int) -> str:
    """One character, spelled so that it means itself everywhere in a pattern."""
    char = chr(code)
    return char if char.isascii() and char.isalnum() else f"\\x{{{code:x}}}"
