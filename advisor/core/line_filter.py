"""Which lines a log store need not send: a filter, made from the rules, that every line that matters passes.

A store that filters for us must not decide for us, so the filter is an over-approximation and errs to one side only:

* of every rule (each of its alternatives) a word that its lines must hold, found in the pattern itself; few words that
  do for all, and such that healthy logs seldom print;
* of rules and progress formats whose lines need hold no telling word a usual one ("step"); a pattern without any word
  is passed on, with its anchors taken off and long gaps made endless, which only lets more through;
* lines that hold colour codes or NULs pass: the scanner matches what is left when these are gone;
* what is read beside a hit passes too: traceback frames, and the fields of torchelastic's "Root Cause" block.

Lines left out still tell that the attempt prints; sources that use a filter count them (`LogChunk.skipped`).
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from re import _constants, _parser  # type: ignore[attr-defined]  # as in advisor.rules.python_patterns
from typing import Any

from advisor.core import bars, progress
from advisor.core.rules import Rule
from advisor.core.words import Role

WORD_CHARS_MIN = 4
SHORT_CHARS = 5  # shorter than that nothing may be taken off
_SPECIAL = frozenset("\\.+*?()|[]{}^$")
GAP_MAX = 16  # longer gaps in a pattern are made endless: they cost a server more than they save
# Read by the scanner around a hit: advisor.core.traceback and the block in advisor.core.scan_file.
CONTEXT = (
    "Traceback (most recent call last)",
    'File "',
    'File \\"',
    "Exception ignored in",
    "time      :",
    "host      :",
    "rank      :",
    "exitcode  :",
    "error_file:",
    "traceback :",
)
_COLOURS = (1, 22, 39, 49, *range(30, 38), *range(40, 48), *range(90, 98))
# NULs, colours, and colours whose first byte a collector has eaten.
CODES = ("\x00", "\x1b", "[0m", "[0;", "[1;", *(f"[{number}m" for number in _COLOURS))
# Of bars: between the time that one took and the time that it will take; what others are drawn with, or show.
BAR = (*(f"{last}<" for last in "0123456789:"), "━", "s/step", "] - ETA: ")
# What healthy training prints all the time: no such word tells a failure.
_USUAL = """
    rank ranks steps loss info nodes cuda nccl torch memory gpus devices checkpoint checkpoints iterations
    training trainer process processes with from this that data time group pytorch models while when after
    trying local none true false kind message have been than were file name lines code before there which
    slurm python version system could because during reading threads found founding checking network networks
    working opening initialized initializing states done freed evaluation sources stores tasks events ports
    expected matching returned waiting kernels status parameters partition saved saving completed finished
    received download detected drivers handle handler reduced allocated allocation signal exits ending
    validation testing writing monitor healthy conditions distributed distribution extension available valid
    connection workers compiled compiling warnings warning socket peers spots task event resumed receive
    started running total count index batch batches seconds broadcast allgather restored loading loaded first
    last next size page spent optimizer optimizers command parse launch launched disk other
"""
_NEVER = frozenset({"inf", "the", "for", "and", "not"})  # in every log
_TELLING = frozenset({"rror", "error", "fail", "kill", "abort", "fatal", "dead", "lost", "died", "timeout", "errno"})


@dataclass(frozen=True, slots=True, kw_only=True)
class LineFilter:
    """A line passes that holds one of `texts`, or that one of `patterns` (RE2) finds something in.

    Stores look for texts ten times faster than for patterns, and for texts as they are written faster than in any
    case: so a word of a pattern that ignores case is given in its usual forms (all small, all large, each word's first
    letter large, and as the pattern has it), and `patterns` is empty for the rules that we ship.
    """

    texts: tuple[str, ...]
    patterns: tuple[str, ...]

    @property
    def pattern(self) -> str:
        """All of it as one RE2 pattern."""
        return "|".join([*map(escaped, self.texts), *(f"(?:{pattern})" for pattern in self.patterns)])


@dataclass(frozen=True, slots=True)
class _Need:
    """Texts that all are in a line that one alternative of a pattern finds. `folded`: in any case."""

    texts: tuple[str, ...]
    folded: bool

    def holds(self, word: str) -> bool:
        return any(word in text.lower() for text in self.texts)

    def forms(self, words: Iterable[str]) -> tuple[str, ...]:
        """As what the first of these words that it holds is written."""
        for word in words:
            for text in self.texts:
                at = text.lower().find(word)
                if at >= 0:
                    original = text[at : at + len(word)]
                    return _forms(word, original) if self.folded else (original,)
        raise ValueError("no word of it was chosen")


def _forms(word: str, original: str) -> tuple[str, ...]:
    title = re.sub(r"(?<![a-z])[a-z]", lambda found: found[0].upper(), word)
    if len(word) > SHORT_CHARS and word[0].isalpha():
        # Without its first letter a small word is found in its capitalised form, too.
        return word[1:], word.upper(), title, original
    return word, word.capitalize(), word.upper(), title, original


def escaped(text: str) -> str:
    return "".join(f"\\{char}" if char in _SPECIAL else char for char in text)


class Passes:
    """The filter as a function, for tests and for sources that filter here."""

    def __init__(self, chosen: LineFilter) -> None:
        self._chosen = chosen

    @cached_property
    def _compiled(self) -> Any:
        import re2

        options = re2.Options()
        options.encoding = re2.Options.Encoding.LATIN1
        return re2.compile(self._chosen.pattern.encode(), options)

    def __call__(self, line: bytes) -> bool:
        return self._compiled.search(line) is not None


def line_filter(rules: Iterable[Rule], more: Iterable[str] = ()) -> LineFilter:
    """The filter for these rules, the progress formats, and `more` RE2 patterns that a job or site brings."""
    wanted = [rule.pattern for rule in rules if rule.pattern and rule.role is not Role.BENIGN]
    wanted.extend(progress.MARKS.values())
    wanted.extend(pattern for name, pattern in progress.FORMATS.items() if name not in bars.COMPILED)
    telling: list[_Need] = []
    usual: list[_Need] = []
    patterns: list[str] = []
    for pattern in [*wanted, *more]:
        needs, loose = _needs_of(pattern, _telling), _needs_of(pattern, _any_word)
        if needs is not None:
            telling.extend(needs)
        elif loose is not None:
            usual.extend(loose)
        else:
            patterns.append(relaxed(pattern))
    words = _cover(telling, _telling)
    rest = [need for need in usual if not any(need.holds(word) for word in words)]
    words += _cover(rest, _any_word)
    forms = {form for need in (*telling, *usual) for form in need.forms(words)} | {*CONTEXT, *CODES, *BAR}
    texts = [form for form in forms if not any(other != form and other in form for other in forms)]
    # A server tries one after the other: what most lines of a job that is well hold comes first.
    texts.sort(key=lambda text: (not _of_progress(text, words), text))
    return LineFilter(texts=tuple(texts), patterns=tuple(dict.fromkeys(patterns)))


def _of_progress(text: str, words: Sequence[str]) -> bool:
    """Found in lines of progress: a word that one of their formats needs, in one of its forms, or a bar."""
    return text in BAR or text in _progress_forms(tuple(words))


@cache
def _progress_forms(words: tuple[str, ...]) -> frozenset[str]:
    formats = [pattern for name, pattern in progress.FORMATS.items() if name not in bars.COMPILED]
    needs = [need for pattern in formats for need in _needs_of(pattern, _any_word) or ()]
    held = [need for need in needs if any(need.holds(word) for word in words)]
    return frozenset(form for need in held for form in need.forms(words))


# Words that must be there


Candidates = Callable[[str], "Iterator[str]"]


def _needs_of(pattern: str, candidates: Candidates) -> list[_Need] | None:
    """For each alternative of the pattern the texts that its matches hold, all of them; None when some hold none in
    which there is a candidate.
    """
    try:
        tree = _parser.parse(pattern)
    except (re.error, RecursionError, OverflowError):
        return None
    needs = _needs(list(tree), candidates)
    return None if needs is None else [_Need(texts, "(?i" in pattern) for texts in needs]


def _needs(items: Sequence[Any], candidates: Candidates) -> list[tuple[str, ...]] | None:
    runs = [run for run in _runs(items) if any(True for _ in candidates(run))]
    if runs:
        return [tuple(runs)]
    nested = [found for item in items if (found := _nested(item, candidates)) is not None]
    return min(nested, key=len, default=None)


def _runs(items: Sequence[Any]) -> Iterator[str]:
    """Texts of literal characters that follow each other, groups without alternatives looked into."""
    run = ""
    for kind, value in items:
        if kind is _constants.LITERAL and value < 128:
            run += chr(value)
            continue
        if kind is _constants.AT:
            continue
        if run:
            yield run
            run = ""
        if kind is _constants.SUBPATTERN:
            yield from _runs(value[3])
        elif kind in {_constants.MAX_REPEAT, _constants.MIN_REPEAT} and value[0] >= 1:
            yield from _runs(value[2])
    if run:
        yield run


def _nested(item: Any, candidates: Candidates) -> list[tuple[str, ...]] | None:
    kind, value = item
    if kind is _constants.SUBPATTERN:
        return _needs(list(value[3]), candidates)
    if kind is _constants.BRANCH:
        found: list[tuple[str, ...]] = []
        for branch in value[1]:
            needs = _needs(list(branch), candidates)
            if needs is None:
                return None
            found.extend(needs)
        return found
    if kind in {_constants.MAX_REPEAT, _constants.MIN_REPEAT} and value[0] >= 1:
        return _needs(list(value[2]), candidates)
    return None


def _telling(run: str) -> Iterator[str]:
    """Words of a text that healthy logs seldom print, and the text itself."""
    for word in re.findall(r"[a-z]{4,}", run.lower()):
        if not _usual(word):
            yield word
    bare = run.strip().lower()
    if len(bare) >= WORD_CHARS_MIN and bare.isprintable() and not _usual(bare):
        yield bare


def _any_word(run: str) -> Iterator[str]:
    """Words of a text, however usual, and the text itself."""
    yield from (word for word in re.findall(r"[a-z_]{3,}", run.lower()) if word not in _NEVER)
    bare = run.strip().lower()
    if len(bare) > WORD_CHARS_MIN and bare.isprintable():
        yield bare


@cache
def _usual(word: str) -> bool:
    return word in _USUAL


def _cover(needs: Sequence[_Need], candidates: Candidates) -> tuple[str, ...]:
    """Few words, of which every need holds one. Deterministic."""
    open_ones = set(needs)
    words = sorted({word for need in needs for text in need.texts for word in candidates(text)})
    covers = {word: {need for need in open_ones if need.holds(word)} for word in words}
    chosen = []
    while open_ones:
        best = max(words, key=lambda word: (len(covers[word] & open_ones) / _cost(word), len(word), word))
        chosen.append(best)
        open_ones -= covers[best]
    return tuple(chosen)


def _cost(word: str) -> float:
    """Short words are found in many healthy lines."""
    return 1.0 if word in _TELLING else max(1.0, 10.0 - len(word))


# Patterns that lines may be sent by


def relaxed(pattern: str) -> str:
    """A pattern that finds something wherever this one does, in any surroundings: no anchors, no named groups, no
    counted long gaps.
    """
    text = re.sub(r"\(\?P<\w+>", "(?:", pattern)
    text = re.sub(r"^\(\?(?=[ims]*m)[ims]+\)", lambda found: "(?i)" if "i" in found[0] else "", text)
    text = re.sub(r"(?<!\\)((?:\[\^\\n\]|\.))\{0,(\d+)\}\??", lambda found: _gap(found, "*"), text)
    text = re.sub(r"(?<!\\)((?:\[\^\\n\]|\.))\{1,(\d+)\}\??", lambda found: _gap(found, "+"), text)
    return _without_anchors(text)


def _gap(found: re.Match[str], endless: str) -> str:
    return f"{found[1]}{endless}" if int(found[2]) > GAP_MAX else found[0]


def _without_anchors(text: str) -> str:
    """`^` and `$` outside classes match anywhere: `(?:)`."""
    out, at, inside = [], 0, False
    while at < len(text):
        char = text[at]
        if char == "\\":
            out.append(text[at : at + 2])
            at += 2
            continue
        if char == "[" and not inside:
            inside = True
            # "[]x]" and "[^]x]" hold a bracket.
            lead = 2 if text[at + 1 : at + 2] == "^" else 1
            keep = lead + (1 if text[at + lead : at + lead + 1] == "]" else 0)
            out.append(text[at : at + keep])
            at += keep
            continue
        if char == "]" and inside:
            inside = False
        out.append("(?:)" if char in "^$" and not inside else char)
        at += 1
    return "".join(out)
