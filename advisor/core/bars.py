"""Progress bars: which of them count steps, which drawings say something new, and which are awaited.

A bar counts within one epoch, or something else altogether: what is loaded, mapped, downloaded before the first step.
Its words tell, as far as they do. keras says nothing before the bar, but shows metrics behind one that counts steps.
rich draws on from a thread of its own, whatever the job does, and mostly shows a percentage alone (`SHARE`): how long
a hundredth takes says nothing of a step, so that such a bar is awaited like one of preparation, and is no step.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import re2

_BYTES = 4_096  # of a line, for its words
_LABEL_BYTES = 200
_LABEL_CHARS = 60
_DISPLAY_BYTES = 4_096
DRAWN_KEPT = 16  # bars of one display

_OPTIONS = re2.Options()
_OPTIONS.encoding = re2.Options.Encoding.LATIN1

_DRAWN = "(?:━|╸|╺)"
_PER_STEP = r"\d{1,9}[mu]?s/step"
# Each has the groups `step` and, where the bar shows where it ends, `total`.
FORMATS: Mapping[str, str] = {
    "bar": r"(?m)\| *(?P<step>\d{1,9})/(?P<total>\d{1,9}) \[[0-9:]+<",
    # The drawing with what is left of the epoch or what it took; at last the line alone, with verbose=2. Of tf.keras 2,
    # too.
    "keras": r"(?m)(?:^|[ \]:>\x08])(?P<step>\d{1,12})/(?:(?P<total>\d{1,12}) (?:"
    rf"{_DRAWN}{{1,80}} [\d:]{{1,9}}s? {_PER_STEP}"
    rf"|\[[=>.]{{30}}\] - (?:ETA: [\d:]{{1,9}}s?|\d{{1,9}}s {_PER_STEP})"
    rf"|- \d{{1,9}}s - [^\n]{{0,400}}s/step)|Unknown (?:- )?\d{{1,9}}s {_PER_STEP})",
    "rich": rf"(?m){_DRAWN}[^\n/A-Za-z]*?[ (\[](?P<step>\d{{1,9}})/(?P<total>\d{{1,9}})(?:[ )\]]|$)",
}
SHARE = "share"
SHARE_FORMAT = (
    rf"(?m){_DRAWN} +(?P<step>\d{{1,3}})(?:\.\d{{1,2}})?%[^\n/A-Za-z]*? (?P<left>[\d:]{{0,5}}\d:\d\d|-?-:--:--|--:--)"
)
_UNKNOWN = b"-"  # in place of the time left
# Drawn by a thread that goes on when nothing else does.
REDRAWN = frozenset({"rich", SHARE})
COMPILED: Mapping[str, Any] = {
    name: re2.compile(pattern.encode(), _OPTIONS) for name, pattern in (*FORMATS.items(), (SHARE, SHARE_FORMAT))
}

# In text that was decoded as Latin-1.
_BEGUN = _DRAWN.encode().decode("latin-1")
# What a bar counts before the first step, or instead of steps, however far it is. Its first word says so, behind what
# launchers and loggers put before a line: "Train (packed): " counts steps.
_PREPARING = re2.compile(
    r"(?i)^(?:\s*(?:\[[^\]\n]{0,120}\]:?|\([^)\n]{0,120}\):?|[^\s|%]{1,80}:|[\d:,./tz+-]+|rank \d+|info|warning"
    r"|multi-thread|sanity|data(?:sets?)?|model|weights?|checkpoints?|files?|[\x80-\xff]+))*"
    r"\s*(?:(?:load|download|upload|(?:pre)?fetch|resolv|map|filter|generat|pack|(?:pre-?)?process|read|build|cach|prepar"
    r"|extract|cast|group|convert|copy|initiali[sz]|captur|flatten|shuffl|index|scann|warm|sort|creat|quantiz|render"
    r"|decod|encod|check|add|appl|truncat|drop|sav|writ|comput|count|unzip|verif|shard|merg|pars|import|compil|profil"
    r"|materiali[sz]|calibrat|autotun|concatenat|collect|split|de-?duplicat|restor|unpack|(?:de)?compress|init|broadcast"
    r"|transfer|clean|sync|stag|pull|gather|pre-?comput|get|set)(?:ed|e|s|p|pp?ing|ning|ting|ring|ing|y|ying|ation)?"
    r"|(?:running |pre-?)?tokeniz(?:e|ed|er|ing|ation)|warm-?up"
    rf")\b[^|\n]{{0,120}}(?:\d{{1,3}}%(?: completed )?\||{_BEGUN})"
)
_COUNTS_STEPS = re2.compile(
    rf"(?i)^[^|\n]{{0,400}}\b(?:epochs?|steps?|iter(?:ation)?s?|loss)\b[^|\n]{{0,120}}(?:%|{_BEGUN})"
    rf"|(?:\[[0-9:]+<[^\]\n]{{0,400}}|{_BEGUN}[^\n]{{0,400}})(?:loss\w{{0,40}}|\blr|\bgrad_norm)[=:]"  # behind a bar
)
_COUNTS_BYTES = re2.compile(rf"(?i){_BEGUN}[^\n]*\d(?: ?[kmgt]i?b| bytes)\b")
_SHOWS_METRICS = re2.compile(r"(?:s/step|ETA: [\d:]{1,9}s?|\ds) - [A-Za-z_][^\n:]{0,80}: -?(?:\d|nan|inf)")
# Epochs that long say nothing of the next ten minutes; beside shorter ones they are steps as those are.
_LONG_EPOCH = re2.compile(r"\d - (?:[3-9]\d\d|\d{4,9})s - ")
_BEGINS = re2.compile(rf"\||{_DRAWN}".encode(), _OPTIONS)
_NO_NAME = re2.compile(rb"\d+:\d\d(?::\d\d)?|[^A-Za-z0-9]+")  # clocks, spinners
_WORD = re2.compile(rb"[A-Za-z]{5}")


def prepares(form: str, line: str) -> bool:
    """Whether a bar counts what comes before the first step, as far as its words tell. `line`: decoded as Latin-1."""
    match form:
        case "bar":
            return _PREPARING.search(line) is not None and _COUNTS_STEPS.search(line) is None
        case "keras":
            return _SHOWS_METRICS.search(line) is None or _LONG_EPOCH.search(line) is not None
        case "rich":
            words = _PREPARING.search(line) is not None or _COUNTS_BYTES.search(line) is not None
            return words and _COUNTS_STEPS.search(line) is None
        case _:
            return form == SHARE


def end(form: str, match: Any) -> int | None:
    """Where a bar ends, None where it shows no end. A percentage of which nobody knows how long it will take is as good
    as full: nothing is awaited of it.
    """
    if form == SHARE:
        return int(match.group(1)) if match.group(2).startswith(_UNKNOWN) else 100
    return int(match.group(2)) if form in FORMATS and match.group(2) else None


def begin(line: bytes) -> int:
    """Where the drawing begins, behind the words of a bar; -1 where there is none."""
    found = _BEGINS.search(line)
    return -1 if found is None else int(found.start())


@dataclass(frozen=True, slots=True)
class Awaited:
    """A bar of preparation with nothing behind it. `drawn`: its name and what it shows, of one that is redrawn."""

    full: bool
    drawn: tuple[str, str] | None


def preparing(line: bytes) -> tuple[str, Any] | None:
    """The bar of a line, with its form, if it counts what comes before the first step."""
    for form, pattern in COMPILED.items():
        match = pattern.search(line)
        if match is not None:
            return (form, match) if prepares(form, line[:_BYTES].decode("latin-1")) else None
    return None


def awaited(line: bytes) -> Awaited | None:
    """What the last line of a text leaves to wait for."""
    found = preparing(line)
    if found is None:
        return None
    form, match = found
    behind = line[match.end() :]
    if form == "bar":
        followed = bool(behind.partition(b"]")[2].strip(b" ]"))
    elif form in REDRAWN:
        followed = _WORD.search(behind) is not None
    else:
        followed = bool(behind.strip(b" \b"))
    if followed:
        return None
    last = end(form, match)
    drawn = _drawing(line, match) if form in REDRAWN else None
    return Awaited(full=last is not None and int(match.group(1)) >= last, drawn=drawn)


def news(known: Iterable[tuple[str, str]], form: str, text: bytes) -> tuple[list[Any], tuple[tuple[str, str], ...]]:
    """The drawings that show something else than the ones before them under the same name, and what each bar shows
    now. Of a long text the end is looked at, as far as there is one: a display is drawn ten times a second.
    """
    shown = dict(known)
    found: list[Any] = []
    begin = len(text) - _DISPLAY_BYTES
    cut = text.rfind(b"\n", 0, begin) + 1 if begin > 0 else 0
    drawn = list(COMPILED[form].finditer(text, cut)) or list(COMPILED[form].finditer(text))
    for match in drawn:
        name, value = _drawing(text, match)
        if shown.pop(name, None) != value:
            found.append(match)
        shown[name] = value
    return found, kept(shown)


def kept(shown: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """What the bars that were drawn last show, newest last."""
    return tuple(shown.items())[-DRAWN_KEPT:]


def _drawing(text: bytes, match: Any) -> tuple[str, str]:
    """The name of a bar, without what moves by itself, and what it shows."""
    begins = match.start()
    line = max(text.rfind(b"\n", 0, begins) + 1, begins - _LABEL_BYTES)
    name = b" ".join(_NO_NAME.sub(b" ", text[line:begins]).split())[:_LABEL_CHARS]
    return name.decode("latin-1"), text[match.start(1) : match.end()].strip().decode("latin-1")
