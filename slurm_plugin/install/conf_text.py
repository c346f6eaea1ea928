"""slurm.conf as text: where a setting stands, the same text with it changed, and the text as it was before. Pure.

Slurm's own rules of reading: keys in any case, several `Key=Value` on a line, `#` begins a comment unless escaped, a
backslash at the end continues the line, `Include FILE`. Our changes are blocks between two marker lines that carry the
lines they replace, so that taking a block out gives back the text byte by byte, also when the rest was edited since.

Errors: `TextError` with the line, for what is not understood well enough to be changed.
"""

import re
from dataclasses import dataclass

BEGIN = "# >>> recovery-advisor: "
END = "# <<< recovery-advisor\n"
WAS = "#was: "
_UNDO = " (taken out by: advisor slurm uninstall-hooks)"
_NO_NEWLINE = " [the file had no last newline]"
_PAIR = re.compile(r'\s*([A-Za-z0-9_.]+)\s*[+*/-]?=\s*(?:"([^"]*)"|(\S+))(?=\s|$)')
_INCLUDE = re.compile(r"\s*include\s+(\S.*?)\s*$", re.IGNORECASE)
_MARKER = re.compile(re.escape(BEGIN) + r"([A-Za-z]+)" + re.escape(_UNDO) + rf"({re.escape(_NO_NEWLINE)})?\n?")


class TextError(Exception):
    """`line` is counted from 1."""

    def __init__(self, line: int, text: str) -> None:
        self.line, self.text = line, text
        super().__init__(f"line {line}: {text}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One `Key=Value`. `line` is its physical line, from 0; `begin` and `end` are where the value stands in it."""

    key: str
    value: str
    line: int
    begin: int
    end: int
    continued: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One change of ours: the lines from `first` to `last` (both markers), and the lines that it stands for."""

    key: str
    first: int
    last: int
    was: tuple[str, ...]
    now: tuple[str, ...]
    no_newline: bool


def settings(text: str, key: str) -> list[Setting]:
    """Every place that sets `key`, our blocks included, in order."""
    found = []
    continued = False
    for number, line in enumerate(text.splitlines(keepends=True)):
        code = _code(line)
        goes_on = code.endswith("\\")
        for hit in _pairs(code.removesuffix("\\")):
            if hit.group(1).lower() == key.lower():
                group = 2 if hit.group(2) is not None else 3
                found.append(
                    Setting(
                        key=hit.group(1),
                        value=hit.group(group),
                        line=number,
                        begin=hit.start(group),
                        end=hit.end(group),
                        continued=continued or goes_on,
                    )
                )
        continued = goes_on
    return found


def includes(text: str) -> list[tuple[int, str]]:
    """(line from 1, file as written) of each `Include`."""
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        hit = _INCLUDE.match(_code(line))
        if hit:
            found.append((number, hit.group(1)))
    return found


def replaced(text: str, setting: Setting, value: str) -> str:
    """The text with another value in place of this setting's. Raises TextError where it goes over several lines."""
    if setting.continued:
        raise TextError(
            setting.line + 1, f"{setting.key} is part of a line that goes on with a backslash: put it on its own"
        )
    lines = text.splitlines(keepends=True)
    old = lines[setting.line]
    new = old[: setting.begin] + value + old[setting.end :]
    missing = not old.endswith("\n")
    block = [_begin(setting.key, no_newline=missing), WAS + _ended(old), _ended(new), END]
    lines[setting.line : setting.line + 1] = block
    return "".join(lines)


def added(text: str, key: str, value: str) -> str:
    """The text with a new setting at its end."""
    missing = bool(text) and not text.endswith("\n")
    return _ended(text) + _begin(key, no_newline=missing) + f"{key}={value}\n" + END


def blocks(text: str) -> list[Block]:
    """Our changes, in order. Raises TextError for a marker whose block is not whole."""
    lines = text.splitlines(keepends=True)
    found: list[Block] = []
    number = 0
    while number < len(lines):
        hit = _MARKER.fullmatch(lines[number])
        if not hit:
            number += 1
            continue
        last = next((at for at in range(number + 1, len(lines)) if lines[at].rstrip("\n") == END.rstrip("\n")), None)
        if last is None:
            raise TextError(number + 1, "the block that begins here has no end: take it out by hand")
        inner = lines[number + 1 : last]
        found.append(
            Block(
                key=hit.group(1),
                first=number,
                last=last,
                was=tuple(line.removeprefix(WAS) for line in inner if line.startswith(WAS)),
                now=tuple(line for line in inner if not line.startswith(WAS)),
                no_newline=hit.group(2) is not None,
            )
        )
        number = last + 1
    return found


def restored(text: str, key: str) -> str:
    """The text without our changes of `key`. Raises TextError for a block that was changed by hand."""
    for block in reversed(blocks(text)):
        if block.key.lower() != key.lower():
            continue
        held = settings("".join(block.now), key)
        if len(block.now) != 1 or len(held) != 1 or len(block.was) > 1:
            raise TextError(block.first + 1, f"this block of {key} was changed by hand: take it out by hand")
        if block.was:
            expected = settings(block.was[0], key)
            same = len(expected) == 1 and _without(block.was[0], expected[0]) == _without(block.now[0], held[0])
            if not same:
                raise TextError(block.first + 1, f"this block of {key} was changed by hand: take it out by hand")
        lines = text.splitlines(keepends=True)
        rest = lines[block.last + 1 :]
        text = "".join([*lines[: block.first], *block.was, *rest])
        if block.no_newline:
            text = _without_last_newline(text, follows=bool(rest))
    return text


def _without_last_newline(text: str, *, follows: bool) -> str:
    """What the file had not at its end. Another block of ours that is now the end keeps that in mind."""
    lines = text.splitlines(keepends=True)
    left = [block for block in blocks(text) if block.last == len(lines) - 1]
    if left:
        lines[left[0].first] = _begin(left[0].key, no_newline=True)
        return "".join(lines)
    return text if follows else text.removesuffix("\n")


def _without(line: str, setting: Setting) -> str:
    return line[: setting.begin] + "\0" + line[setting.end :]


def _begin(key: str, *, no_newline: bool) -> str:
    return f"{BEGIN}{key}{_UNDO}{_NO_NEWLINE if no_newline else ''}\n"


def _ended(text: str) -> str:
    return text if not text or text.endswith("\n") else text + "\n"


def _code(line: str) -> str:
    """A line without its comment and line end."""
    line = line.rstrip("\r\n")
    hit = re.search(r"(?<!\\)#", line)
    return line[: hit.start()] if hit else line


def _pairs(code: str) -> list["re.Match[str]"]:
    found = []
    at = 0
    while (hit := _PAIR.match(code, at)) is not None:
        found.append(hit)
        at = hit.end()
    return found
