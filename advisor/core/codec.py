"""Canonical JSON of every core value, and back.

One value has one spelling, so that a content hash names it and `advisor replay` can compare byte for byte: keys sorted,
no spaces, ASCII only, times in UTC with microseconds, a float field always written as a float (`600` and `600.0` are
equal values and must give equal bytes), every field written even at its default (a later change of a default does
not change what was stored). Reading is strict: unknown keys, duplicate keys, wrong kinds and missing fields without a
default are errors that name their place. A missing field that has a default takes it: an older build wrote the value.

The declared types drive both directions. Understood: frozen dataclasses, `StrEnum`, `str`, `int`, `float`, `bool`,
`bytes` (base64), `datetime`, `timedelta` (microseconds), `X | None`, unions of dataclasses (tagged by class name),
`tuple[X, ...]`, fixed tuples, `frozenset[X]` (sorted), `Mapping[K, V]` with K of `str`, `int` or `StrEnum`, `Literal`.
Fields with `init=False` are derived from the others and not written.

Errors::

    ValueError
    └── CodecError   the value or the text cannot be (de)coded; the message starts with the place, `$.signals[3].at`
"""

import base64
import binascii
import hashlib
import json
import math
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import cache, lru_cache
from itertools import pairwise
from typing import Any, TypeVar, cast

T = TypeVar("T")

_TAG = "$type"
_MICROSECOND = timedelta(microseconds=1)
_TIMES_KEPT = 1 << 14  # most moments that a tick writes were written before
_quoted = json.encoder.encode_basestring_ascii


class CodecError(ValueError):
    """A value or text that cannot be coded. `place` is a path from the root, `$`."""

    def __init__(self, problem: str, place: str = "") -> None:
        super().__init__(f"${place}: {problem}")
        self.problem = problem
        self.place = place

    def inside(self, step: str) -> "CodecError":
        """The same problem, seen from one level further out."""
        return CodecError(self.problem, step + self.place)


def encode(value: object) -> bytes:
    """Canonical JSON of a core value: equal values of one type give equal bytes. Raises `CodecError`."""
    return _codec_of(_kind_of(value)).write(value).encode("ascii")


def decode(kind: type[T], data: bytes) -> T:
    """The value that `encode` wrote, as a `kind`. Raises `CodecError` with the place of the first problem."""
    try:
        plain = json.loads(data.decode("ascii"), object_pairs_hook=_without_duplicates, parse_constant=_no_constant)
    except CodecError:
        raise
    except (ValueError, RecursionError) as problem:
        raise CodecError(f"not canonical JSON: {problem}") from problem
    return cast(T, _codec_of(cast(Any, kind)).read(plain))


def content_hash(data: bytes) -> str:
    """The name of stored content: SHA-256 in lower-case hexadecimal."""
    return hashlib.sha256(data).hexdigest()


@dataclass(frozen=True, slots=True)
class _Codec:
    """Both directions of one declared type: `write` spells a value, `read` takes what `json` made of its spelling.

    A tick writes thousands of values: spelling each at once takes half the time of building what `json` would spell.
    """

    write: Callable[[Any], str]
    read: Callable[[Any], Any]


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]  # set.add as a step
        raise CodecError(f"key {twice!r} appears twice")
    return result


def _no_constant(name: str) -> Any:
    raise CodecError(f"{name} is not a JSON number")


def _kind_of(value: object) -> Any:
    """The type to write a root value by; a tuple takes its types from what it holds."""
    return types.GenericAlias(tuple, tuple(map(_kind_of, value))) if isinstance(value, tuple) else type(value)


@cache
def _codec_of(kind: Any) -> _Codec:
    origin = typing.get_origin(kind)
    arguments = typing.get_args(kind)
    if kind in _SCALARS:
        return _SCALARS[kind]
    if origin in (typing.Union, types.UnionType):
        return _union(arguments)
    if origin is tuple or kind is tuple:
        return _tuple(arguments)
    if origin is frozenset:
        return _frozenset(arguments[0])
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return _mapping(*arguments)
    if origin is typing.Literal:
        return _literal(arguments)
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return _enumeration(kind)
    if isinstance(kind, type) and is_dataclass(kind):
        return _record(kind)
    raise TypeError(f"the codec does not know how to write {kind!r}")


def _expect(value: Any, kind: type, name: str) -> Any:
    # bool is an int to Python; it is never a number here.
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise CodecError(f"expected {name}, found {type(value).__name__}")
    return value


def _write_text(value: Any) -> str:
    text = cast(str, _expect(value, str, "text"))
    # Surrogate escapes survive JSON one by one; a high one before a low one would come back as another character.
    if not text.isascii() and any("\ud800" <= a <= "\udbff" and "\udc00" <= b <= "\udfff" for a, b in pairwise(text)):
        raise CodecError("text holds a pair of surrogates")
    return _quoted(text)


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise CodecError(f"expected a number, found {type(value).__name__}")
    try:
        number = float(value) + 0.0  # -0.0 equals 0.0 and must be spelled alike
    except OverflowError as problem:
        raise CodecError("number too large") from problem
    if not math.isfinite(number):
        raise CodecError(f"{number} is not a JSON number")
    return number


def _write_float(value: Any) -> str:
    return float.__repr__(_number(value))


def _write_time(value: Any) -> str:
    return _spelled_time(cast(datetime, _expect(value, datetime, "a time")))


@lru_cache(maxsize=_TIMES_KEPT)
def _spelled_time(moment: datetime) -> str:
    if moment.tzinfo is None:
        raise CodecError("time without a zone")
    if moment.tzinfo is UTC:
        return f'"{moment.isoformat(timespec="microseconds")[:-6]}Z"'
    try:
        return f'"{moment.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="microseconds")}Z"'
    except OverflowError as problem:
        raise CodecError("time out of range") from problem


def _read_time(value: Any) -> datetime:
    text = cast(str, _expect(value, str, "a time"))
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = None
    # As `_write_time` spells it: reading is most of what the audit's lists cost, so it is said without a detour.
    if moment is None or moment.tzinfo is not UTC or moment.isoformat(timespec="microseconds") != f"{text[:-1]}+00:00":
        raise CodecError(f"expected a UTC time like 2026-01-31T12:00:00.000000Z, found {text[:40]!r}")
    return moment


def _write_bytes(value: Any) -> str:
    return f'"{base64.b64encode(cast(bytes, _expect(value, bytes, "bytes"))).decode("ascii")}"'


def _read_bytes(value: Any) -> bytes:
    try:
        return base64.b64decode(cast(str, _expect(value, str, "base64 text")), validate=True)
    except (binascii.Error, ValueError) as problem:
        raise CodecError("not base64") from problem


def _write_duration(value: Any) -> str:
    return str(cast(timedelta, _expect(value, timedelta, "a duration")) // _MICROSECOND)


def _read_duration(value: Any) -> timedelta:
    try:
        return _MICROSECOND * cast(int, _expect(value, int, "whole microseconds"))
    except OverflowError as problem:
        raise CodecError("duration out of range") from problem


def _nothing(value: Any) -> None:
    if value is not None:
        raise CodecError(f"expected null, found {type(value).__name__}")


def _write_nothing(value: Any) -> str:
    _nothing(value)
    return "null"


def _whole(value: Any) -> int:
    return int(_expect(value, int, "a whole number"))


def _write_whole(value: Any) -> str:
    return str(_whole(value))


def _truth(value: Any) -> bool:
    return bool(_expect(value, bool, "true or false"))


def _write_truth(value: Any) -> str:
    return "true" if _truth(value) else "false"


_SCALARS: dict[Any, _Codec] = {
    str: _Codec(_write_text, lambda value: _expect(value, str, "text")),
    int: _Codec(_write_whole, _whole),
    float: _Codec(_write_float, _number),
    bool: _Codec(_write_truth, _truth),
    bytes: _Codec(_write_bytes, _read_bytes),
    datetime: _Codec(_write_time, _read_time),
    timedelta: _Codec(_write_duration, _read_duration),
    type(None): _Codec(_write_nothing, _nothing),
}


def _enumeration(kind: type[StrEnum]) -> _Codec:
    def read(value: Any) -> StrEnum:
        try:
            return kind(cast(str, _expect(value, str, f"a {kind.__name__}")))
        except CodecError:
            raise
        except ValueError as problem:
            raise CodecError(f"{value[:40]!r} is not a {kind.__name__}") from problem

    # A plain string equal to a member is an equal value, so it is written alike.
    return _Codec(lambda value: _quoted(read(value).value), read)


def _literal(choices: tuple[Any, ...]) -> _Codec:
    def same(value: Any) -> Any:
        if not any(type(value) is type(choice) and value == choice for choice in choices):
            raise CodecError(f"expected one of {', '.join(map(repr, choices))}")
        return value

    return _Codec(lambda value: json.dumps(same(value)), same)


def _union(members: tuple[Any, ...]) -> _Codec:
    optional = type(None) in members
    others = tuple(member for member in members if member is not type(None))
    inner = _codec_of(others[0]) if len(others) == 1 else _tagged(others)

    def write(value: Any) -> str:
        return "null" if value is None and optional else inner.write(value)

    def read(value: Any) -> Any:
        return None if value is None and optional else inner.read(value)

    return _Codec(write, read)


def _tagged(kinds: tuple[Any, ...]) -> _Codec:
    if not all(isinstance(kind, type) and is_dataclass(kind) for kind in kinds):
        raise TypeError(f"the codec writes unions of dataclasses only, not {kinds!r}")
    by_name = {kind.__name__: kind for kind in kinds}

    def write(value: Any) -> str:
        if type(value) not in kinds:
            raise CodecError(f"expected one of {', '.join(by_name)}, found {type(value).__name__}")
        record = _codec_of(cast(Any, type(value))).write(value)
        # No field's name comes before it.
        return f'{{"{_TAG}":"{type(value).__name__}"{"," * (record != "{}")}{record[1:]}'

    def read(value: Any) -> Any:
        record = dict(_expect(value, dict, "an object"))
        name = record.pop(_TAG, None)
        if not isinstance(name, str) or name not in by_name:
            raise CodecError(f"{_TAG} must be one of {', '.join(by_name)}")
        return _codec_of(cast(Any, by_name[name])).read(record)

    return _Codec(write, read)


def _tuple(arguments: tuple[Any, ...]) -> _Codec:
    if len(arguments) == 2 and arguments[1] is Ellipsis:
        element = _codec_of(arguments[0])

        def write(value: Any) -> str:
            return _list(_each(element.write, _expect(value, tuple, "a tuple")))

        return _Codec(
            _numbers(arguments[0], write) if arguments[0] in (int, float) else write,
            lambda value: tuple(_each(element.read, _expect(value, list, "a list"))),
        )
    elements = tuple(_codec_of(argument) for argument in arguments)

    def each(value: Any, kind: type, reading: bool) -> typing.Iterator[Any]:
        if len(_expect(value, kind, f"a {kind.__name__}")) != len(elements):
            raise CodecError(f"expected {len(elements)} elements, found {len(value)}")
        for i, (element, item) in enumerate(zip(elements, value, strict=True)):
            yield _at(element.read if reading else element.write, item, f"[{i}]")

    return _Codec(lambda value: _list(each(value, tuple, False)), lambda value: tuple(each(value, list, True)))


def _numbers(kind: type, one_by_one: Callable[[Any], str]) -> Callable[[Any], str]:
    """Python spells plain numbers as JSON does, all at once; but for minus zero and what is no JSON number."""
    plain = {kind}

    def write(value: Any) -> str:
        if type(value) is tuple and set(map(type, value)) == plain:
            text = str(list(value)).replace(" ", "")
            if "-0" not in text and "n" not in text:
                return text
        return one_by_one(value)

    return write


def _list(items: Iterable[str]) -> str:
    return f"[{','.join(items)}]"


def _frozenset(argument: Any) -> _Codec:
    element = _codec_of(argument)

    def write(value: Any) -> str:
        return _list(sorted(element.write(item) for item in _expect(value, frozenset, "a set")))

    def read(value: Any) -> Any:
        items = _each(element.read, _expect(value, list, "a list"))
        if len(frozenset(items)) != len(items):
            raise CodecError("a set holds an element twice")
        return frozenset(items)

    return _Codec(write, read)


def _mapping(key: Any, element_kind: Any) -> _Codec:
    if key is not str and key is not int and not (isinstance(key, type) and issubclass(key, StrEnum)):
        raise TypeError(f"the codec writes mappings with text, whole or enumeration keys only, not {key!r}")
    names = _codec_of(key)
    element = _codec_of(element_kind)

    def write(value: Any) -> str:
        written = {
            str(_at(names.read, name, _step(name))): _at(element.write, item, _step(name))
            for name, item in _expect(value, Mapping, "a mapping").items()
        }
        return f"{{{','.join([f'{_write_text(name)}:{written[name]}' for name in sorted(written)])}}}"

    def read(value: Any) -> Any:
        pairs = [
            (_at(_read_whole_key if key is int else names.read, name, _step(name)), name, item)
            for name, item in _expect(value, dict, "an object").items()
        ]
        # One order for equal mappings, whatever wrote them: by the key itself, so that rank 10 follows rank 9.
        return {name: _at(element.read, item, _step(text)) for name, text, item in sorted(pairs, key=lambda p: p[0])}

    return _Codec(write, read)


def _step(key: object) -> str:
    return f"[{str(key)[:40]!r}]"


def _read_whole_key(text: str) -> int:
    try:
        number = int(text)
    except ValueError as problem:
        raise CodecError("expected a whole number as key") from problem
    if str(number) != text:
        raise CodecError("a whole number as key has one spelling only")
    return number


def _at(step: Callable[[Any], Any], value: Any, place: str) -> Any:
    try:
        return step(value)
    except CodecError as problem:
        raise problem.inside(place) from problem


def _each(step: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
    """As `_at` for each item; the place is only spelled when there is a problem."""
    done: list[Any] = []
    try:
        for item in items:
            done.append(step(item))  # noqa: PERF401 -- its length tells the place of a problem
    except CodecError as problem:
        raise problem.inside(f"[{len(done)}]") from problem
    return done


def _record(kind: type[Any]) -> _Codec:
    hints = typing.get_type_hints(kind)
    names = tuple(item.name for item in fields(kind) if item.init)
    required = frozenset(
        item.name for item in fields(kind) if item.init and item.default is MISSING and item.default_factory is MISSING
    )

    known = frozenset(names)
    described = f"an object ({kind.__name__})"

    @cache
    def members() -> dict[str, _Codec]:  # not before it is used: a type may hold itself
        return {name: _codec_of(hints[name]) for name in names}

    @cache
    def writers() -> list[tuple[str, Callable[[Any], str]]]:
        return [(name, members()[name].write) for name in sorted(names)]

    spelled = "{" + ",".join(f'"{name}":%s' for name in sorted(names)) + "}"

    def write(value: Any) -> str:
        if type(value) is not kind:
            raise CodecError(f"expected {kind.__name__}, found {type(value).__name__}")
        done: list[str] = []
        name = ""
        try:
            for name, spell in writers():
                done.append(spell(getattr(value, name)))
        except CodecError as problem:
            raise problem.inside(f".{name}") from problem
        return spelled % tuple(done)

    def read(value: Any) -> Any:
        record = _expect(value, dict, described)
        if not record.keys() <= known:
            raise CodecError(f"{kind.__name__} has no field {min(record.keys() - known)[:40]!r}")
        if not record.keys() >= required:
            raise CodecError(f"{kind.__name__} needs the field {min(required - record.keys())!r}")
        done, codecs = {}, members()
        name = ""
        try:
            for name, item in record.items():
                done[name] = codecs[name].read(item)
        except CodecError as problem:
            raise problem.inside(f".{name}") from problem
        return kind(**done)

    return _Codec(write, read)
