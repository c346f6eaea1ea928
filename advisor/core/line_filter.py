"""Which lines a log store need not send: a filter, made from the rules, that every line that matters passes.

A store that filters for us must not decide for us, so the filter is an over-approximation and errs to one side only:

* of every rule (each of its alternatives) a word that its lines must hold, found in the pattern itself; few words that
  do for all, and such that healthy logs seldom print; letters' case is ignored;
* rules and progress formats whose lines need hold no telling word are passed on as they are, with their anchors taken
  off and long gaps made endless, which only lets more through;
* lines that hold colour codes or NULs pass: the scanner matches what is left when these are gone;
* what is read beside a hit passes too: traceback frames, and the fields of torchelastic's "Root Cause" block.

Lines left out still tell that the attempt prints; sources that use a filter count them (`LogChunk.skipped`).
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from re import _constants, _parser  # type: ignore[attr-defined]  # as in advisor.rules.python_patterns
from typing import Any

from advisor.core import progress
from advisor.core.rules import Rule
from advisor.core.words import Role

WORD_CHARS_MIN = 4
GAP_MAX = 16  # longer gaps in a pattern are made endless: they cost a server more than they save
# Read by the scanner around a hit: advisor.core.traceback and the block in advisor.core.scan_file.
CONTEXT_WORDS = (
    "traceback",
    'file "',
    'file \\"',
    "exception",
    "time      :",
    "host      :",
    "rank      :",
    "exitcode  :",
    "error_file:",
)
CODES = (r"[\x00\x1b]", r"\[[0-9;]{1,8}m")
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
    last next size page spent command parse launch launched disk other
"""
_TELLING = frozenset({"rror", "error", "fail", "kill", "abort", "fatal", "dead", "lost", "died", "timeout", "errno"})


@dataclass(frozen=True, slots=True, kw_only=True)
class LineFilter:
    """A line passes that holds one of `words` in any case, or that one of `patterns` (RE2) finds something in."""

    words: tuple[str, ...]
    patterns: tuple[str, ...]

    @property
    def word_pattern(self) -> str:
        """All words as one RE2 pattern."""
        return "(?i)" + "|".join(re.escape(word).replace("\\ ", " ").replace('\\"', '"') for word in self.words)

    @property
    def rest_pattern(self) -> str:
        return "|".join(f"(?:{pattern})" for pattern in self.patterns)


class Passes:
    """The filter as a function, for tests and for sources that filter here."""

    def __init__(self, chosen: LineFilter) -> None:
        self._chosen = chosen

    @cached_property
    def _compiled(self) -> tuple[Any, ...]:
        import re2

        options = re2.Options()
        options.encoding = re2.Options.Encoding.LATIN1
        texts = (self._chosen.word_pattern, self._chosen.rest_pattern)
        return tuple(re2.compile(text.encode("latin-1"), options) for text in texts)

    def __call__(self, line: bytes) -> bool:
        return any(pattern.search(line) is not None for pattern in self._compiled)


def line_filter(rules: Iterable[Rule], more: Iterable[str] = ()) -> LineFilter:
    """The filter for these rules, the progress formats, and `more` RE2 patterns that a job or site brings."""
    wanted = [rule.pattern for rule in rules if rule.pattern and rule.role is not Role.BENIGN]
    wanted.extend(progress.MARKS.values())
    alternatives: list[tuple[str, ...]] = []
    patterns = [*CODES, *(relaxed(pattern) for pattern in progress.FORMATS.values())]
    for pattern in [*wanted, *more]:
        needs = _needs_of(pattern)
        if needs is None or not all(any(_candidates(text) for text in texts) for texts in needs):
            patterns.append(relaxed(pattern))
        else:
            alternatives.extend(needs)
    words = _cover(alternatives, CONTEXT_WORDS)
    return LineFilter(words=words, patterns=tuple(dict.fromkeys(patterns)))


# Words that must be there


def _needs_of(pattern: str) -> list[tuple[str, ...]] | None:
    """For each alternative of the pattern the texts that its matches hold, all of them; None when some hold none."""
    try:
        tree = _parser.parse(pattern)
    except (re.error, RecursionError, OverflowError):
        return None
    return _needs(list(tree))


def _needs(items: Sequence[Any]) -> list[tuple[str, ...]] | None:
    runs = [run for run in _runs(items) if any(True for _ in _candidates(run))]
    if runs:
        return [tuple(runs)]
    nested = [found for item in items if (found := _nested(item)) is not None]
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
            yield run.lower()
            run = ""
        if kind is _constants.SUBPATTERN:
            yield from _runs(value[3])
        elif kind in {_constants.MAX_REPEAT, _constants.MIN_REPEAT} and value[0] >= 1:
            yield from _runs(value[2])
    if run:
        yield run.lower()


def _nested(item: Any) -> list[tuple[str, ...]] | None:
    kind, value = item
    if kind is _constants.SUBPATTERN:
        return _needs(list(value[3]))
    if kind is _constants.BRANCH:
        found: list[tuple[str, ...]] = []
        for branch in value[1]:
            needs = _needs(list(branch))
            if needs is None:
                return None
            found.extend(needs)
        return found
    if kind in {_constants.MAX_REPEAT, _constants.MIN_REPEAT} and value[0] >= 1:
        return _needs(list(value[2]))
    return None


def _candidates(run: str) -> Iterator[str]:
    """Words of a text, and the text itself."""
    for word in re.findall(r"[a-z]{4,}", run):
        if not _usual(word):
            yield word
    bare = run.strip()
    if len(bare) >= WORD_CHARS_MIN and bare.isprintable() and not _usual(bare):
        yield bare


@cache
def _usual(word: str) -> bool:
    return word in _USUAL


def _cover(alternatives: Iterable[tuple[str, ...]], given: Iterable[str]) -> tuple[str, ...]:
    """Few words of which every alternative holds one. Deterministic."""
    chosen = list(given)
    open_ones = {texts for texts in alternatives if not _holds(texts, chosen)}
    candidates = sorted({word for texts in open_ones for text in texts for word in _candidates(text)})
    covers = {word: {texts for texts in open_ones if _holds(texts, (word,))} for word in candidates}
    while open_ones:
        best = max(candidates, key=lambda word: (len(covers[word] & open_ones) / _cost(word), len(word), word))
        chosen.append(best)
        open_ones -= covers[best]
    return tuple(word for word in chosen if not any(other != word and other in word for other in chosen))


def _cost(word: str) -> float:
    """Short words are found in many healthy lines."""
    return 1.0 if word in _TELLING else max(1.0, 10.0 - len(word))


def _holds(texts: Iterable[str], words: Iterable[str]) -> bool:
    return any(word in text for text in texts for word in words)


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
