"""Messages of the contract as lines of a file: JSON lines, or CSV that a spreadsheet cannot be made to run.

Texts of users are hostile. In JSON everything outside ASCII is escaped. In CSV control characters are shown, a value is
always on one line, and one that a spreadsheet would take for a formula begins with an apostrophe. Columns are the
fields of the message, `attempt.job_id` and so on, in the contract's order; lists of names are joined by blanks, and
what is a table of its own (evidence, milestones, reconciliations) is left to JSON lines.
"""

import csv
import io
import json
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC
from functools import cache
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.duration_pb2 import Duration
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

from advisor.plain_text import one_line

FORMATS = ("jsonl", "csv")
_DEPTH_MAX = 3
_LEFT_OUT = frozenset({"analysis_json"})
# What begins a formula, in any of the spreadsheets; the last ones are their wide forms, which some take for the same.
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "＝", "＋", "－", "＠")
_BREAKS = ("\t", "\r", "\n")
_NUMERIC = frozenset(
    {
        *(FieldDescriptor.CPPTYPE_INT32, FieldDescriptor.CPPTYPE_INT64, FieldDescriptor.CPPTYPE_UINT32),
        *(FieldDescriptor.CPPTYPE_UINT64, FieldDescriptor.CPPTYPE_DOUBLE, FieldDescriptor.CPPTYPE_FLOAT),
    }
)

Path = tuple[FieldDescriptor, ...]


def head(kind: Descriptor, form: str) -> str:
    """The first line of a file, "" for JSON lines."""
    return "" if form == "jsonl" else _line(columns(kind))


def line(message: Message, form: str) -> str:
    """One message, with the end of its line."""
    if form == "jsonl":
        return json.dumps(MessageToDict(message, preserving_proto_field_name=True), separators=(",", ":")) + "\n"
    return _line(cells(message))


def lines(messages: Iterable[Message], form: str) -> Iterator[str]:
    return (line(message, form) for message in messages)


def columns(kind: Descriptor) -> list[str]:
    return [".".join(field.name for field in path) for path in _paths(kind)]


def cells(message: Message) -> list[str]:
    return [_cell(message, path) for path in _paths(message.DESCRIPTOR)]


@cache
def _paths(kind: Descriptor) -> tuple[Path, ...]:
    return tuple(_walk(kind, ()))


def _walk(kind: Descriptor, before: Path) -> Iterator[Path]:
    for field in kind.fields:
        if field.name in _LEFT_OUT:
            continue
        path = (*before, field)
        if field.message_type is None or field.message_type.full_name.startswith("google.protobuf."):
            yield path
        elif not field.is_repeated and len(path) < _DEPTH_MAX:
            yield from _walk(field.message_type, path)


def _cell(message: Message, path: Path) -> str:
    value: Any = message
    for field in path:
        if field.has_presence and not value.HasField(field.name):
            return ""
        value = getattr(value, field.name)
    return _text(path[-1], value)


def _text(field: FieldDescriptor, value: Any) -> str:
    if field.is_repeated:
        return safe(" ".join(_plain(field, item) for item in value))
    if field.cpp_type in _NUMERIC:
        return _plain(field, value)
    return safe(_plain(field, value))


def _plain(field: FieldDescriptor, value: Any) -> str:
    if isinstance(value, Timestamp):
        return value.ToDatetime(UTC).isoformat()
    if isinstance(value, Duration):
        return f"{value.ToTimedelta().total_seconds():g}"
    if field.enum_type is not None:
        name = field.enum_type.values_by_number[value].name if value in field.enum_type.values_by_number else str(value)
        first = field.enum_type.values_by_number[0].name
        word = name.removeprefix(first.removesuffix("UNSPECIFIED")).lower()
        return "" if word == "unspecified" else word
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, bytes):
        return value.hex()
    return str(value)


def safe(text: str) -> str:
    """As one cell: on one line, without control characters, and never a formula."""
    plain = one_line(text)
    return f"'{plain}" if plain.lstrip(" \u00a0\ufeff").startswith(_FORMULA) or text[:1] in _BREAKS else plain


def _line(values: Sequence[str]) -> str:
    file = io.StringIO()
    csv.writer(file, lineterminator="\r\n").writerow(values)
    return file.getvalue()
