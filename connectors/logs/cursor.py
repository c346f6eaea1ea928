"""The cursor of a file source: how far each file of one attempt was read, and how to know that file again.

A file is known by its inode number and by two fingerprints of bytes already delivered: the first ones and the last
ones. Neither alone is enough: a truncation keeps the inode, a deleted file's inode is given to the next one, and two
attempts of one program print the same first line. The device number is left out on purpose: network file systems get
another one on every host and at every mount, and a cursor must survive a move to another replica.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

HEAD_BYTES = 256
TAIL_BYTES = 64
CURSOR_BYTES_MAX = 4 * 1024 * 1024
VERSION = 1


class CursorError(ValueError):
    """Text that is no cursor of ours; the message says where."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """How far one file was read.

    `seen`: largest size seen while the attempt ran: bytes up to there are its own.
    `end`: where the attempt's bytes end, once that is known.
    `fresh`: the next chunk is of another content than the last one.
    `inherited`: nothing was delivered yet; the bytes before `offset` were there before this attempt.
    `backlog`: bytes before this were there before our first look (`LogChunk.backlog`).
    `closed`: all of the attempt's bytes were delivered or are gone.
    `lost`: bytes that are known to have been there and are gone.
    """

    inode: int = 0
    offset: int = 0
    head: str = ""
    tail: str = ""
    seen: int = 0
    end: int | None = None
    fresh: bool = False
    inherited: bool = False
    backlog: int = 0
    closed: bool = False
    lost: int = 0

    @property
    def own_end(self) -> int:
        """Where the attempt that wrote this ended, as far as is known."""
        return max(self.offset, self.seen) if self.end is None else self.end


@dataclass(frozen=True, slots=True, kw_only=True)
class Cursor:
    """Marks by file, and the file whose turn is next when not all could be served."""

    marks: Mapping[str, Mark] = field(default_factory=dict)
    turn: str = ""


def fingerprint(data: bytes) -> str:
    """Short and stable between releases. Not a secret: a user can only deceive the reading of his own files."""
    return hashlib.blake2b(data, digest_size=8).hexdigest() if data else ""


# One letter per field, and none for a default: a job on 2,000 nodes has a kernel log of each.
_NUMBERS = {"i": "inode", "o": "offset", "s": "seen", "e": "end", "b": "backlog", "l": "lost"}
_TEXTS = {"h": "head", "t": "tail"}
_FLAGS = {"f": "fresh", "p": "inherited", "c": "closed"}
_FIELDS = _NUMBERS | _TEXTS | _FLAGS
_BLANK = Mark()


class Written:
    """A cursor as JSON text, equal ones as equal text; mark by mark, for of thousands of files a few have another mark
    than at the read before.
    """

    def __init__(self, marks: Mapping[str, Mark]) -> None:
        self._files = {path: _file(path, marks[path]) for path in sorted(marks)}

    def change(self, marks: Mapping[str, Mark]) -> None:
        last = next(reversed(self._files), "")
        new = [path for path in marks if path not in self._files]
        self._files.update((path, _file(path, marks[path])) for path in sorted(marks))
        if new and min(new) < last:
            self._files = dict(sorted(self._files.items()))

    def text(self, turn: str) -> str:
        after = f',"turn":{json.dumps(turn)}' if turn else ""
        return f'{{"v":{VERSION},"files":{{{",".join(self._files.values())}}}{after}}}'


def _file(path: str, mark: Mark) -> str:
    return f"{json.dumps(path)}:{_text(mark)}"


def _text(mark: Mark) -> str:
    told = {
        letter: value for letter, name in _FIELDS.items() if (value := getattr(mark, name)) != getattr(_BLANK, name)
    }
    return json.dumps(told, separators=(",", ":"))


def body_of(text: str, version: int) -> dict[str, Any]:
    """The JSON object of a stored cursor of this version, whatever it holds. Raises `CursorError`."""
    if len(text) > CURSOR_BYTES_MAX:
        raise CursorError(f"cursor: {len(text)} characters, more than {CURSOR_BYTES_MAX}")
    try:
        body = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CursorError(f"cursor: not JSON: {error}") from error
    if not isinstance(body, dict) or body.get("v") != version:
        raise CursorError(
            f"cursor: v: expected {version}, found {body.get('v') if isinstance(body, dict) else body!r:.40}"
        )
    return body


def decode(text: str) -> Cursor:
    """Read what `Written` gave; "" is the beginning. Raises `CursorError` with the place of what is wrong."""
    if not text:
        return Cursor()
    body = body_of(text, VERSION)
    files, turn = body.get("files"), body.get("turn", "")
    if not isinstance(files, dict) or not isinstance(turn, str):
        raise CursorError("cursor: files: expected an object, turn: expected text")
    return Cursor(marks={path: _mark(path, value) for path, value in files.items()}, turn=turn)


def _mark(path: str, value: object) -> Mark:
    where = f"cursor: files[{path!r:.120}]"
    if not isinstance(value, dict):
        raise CursorError(f"{where}: expected an object")
    known: dict[str, Any] = {}
    for letter, item in value.items():
        name = _FIELDS.get(letter)
        if name is None:
            raise CursorError(f"{where}.{letter!r:.20}: unknown key")
        if letter in _NUMBERS and not (type(item) is int and 0 <= item < 2**64):
            raise CursorError(f"{where}.{letter} ({name}): expected a whole number, found {item!r:.40}")
        if letter in _TEXTS and not (isinstance(item, str) and len(item) <= 64):
            raise CursorError(f"{where}.{letter} ({name}): expected a fingerprint, found {item!r:.40}")
        if letter in _FLAGS and type(item) is not bool:
            raise CursorError(f"{where}.{letter} ({name}): expected true or false, found {item!r:.40}")
        known[name] = item
    return Mark(**known)
