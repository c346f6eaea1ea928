"""Between JSON over HTTP and the contract's messages. What cannot be used is told with the parameter or field.

The JSON is protobuf's own mapping with the contract's field names: times in RFC 3339, 64-bit numbers as strings,
enumerations by name. A query parameter may say `restart` where the contract says `ACTION_RESTART`.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any

from google.protobuf.descriptor import EnumDescriptor, FieldDescriptor
from google.protobuf.duration_pb2 import Duration
from google.protobuf.json_format import MessageToDict, ParseDict, ParseError
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

from advisor.service.errors import BadRequestError
from advisor.service.http.contract import Exposed, Parameter

VALUE_CHARACTERS_MAX = 4096
_WHOLE = {
    *(FieldDescriptor.TYPE_INT32, FieldDescriptor.TYPE_INT64, FieldDescriptor.TYPE_UINT32),
    FieldDescriptor.TYPE_UINT64,
}


def as_document(message: Message) -> dict[str, Any]:
    document: dict[str, Any] = MessageToDict(
        message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
    return document


def from_query(operation: Exposed, query: Iterable[tuple[str, str]], path: Mapping[str, str]) -> Message:
    """Raises `BadRequestError` with the parameter's name."""
    message = operation.request()
    known = {item.name: item for item in operation.parameters}
    seen: set[str] = set()
    for name, value in (*((name, value) for name, value in query), *path.items()):
        parameter = known.get(name)
        if parameter is None or (parameter.in_path and name not in path):
            listed = ", ".join(sorted(item.name for item in operation.parameters if not item.in_path)) or "none"
            raise BadRequestError(f"{name[:64]}: there is no such parameter; there are: {listed}")
        if name in seen and not parameter.field.is_repeated:
            raise BadRequestError(f"{name}: given more than once")
        seen.add(name)
        if len(value) > VALUE_CHARACTERS_MAX:
            raise BadRequestError(f"{name}: longer than {VALUE_CHARACTERS_MAX} characters")
        _set(message, parameter, value)
    return message


def _set(message: Message, parameter: Parameter, text: str) -> None:
    """One parameter into its place; an empty one stays unset where unset means all."""
    field, target = parameter.field, message
    for outer in parameter.fields[:-1]:
        target = getattr(target, outer.name)
    if text == "" and field.type != FieldDescriptor.TYPE_STRING:
        raise BadRequestError(f"{parameter.name}: empty; leave it out")
    try:
        if field.message_type is not None:
            _set_message(getattr(target, field.name), field, text)
        elif field.is_repeated:
            getattr(target, field.name).append(_value(field, text))
        else:
            setattr(target, field.name, _value(field, text))
    except (ValueError, TypeError, OverflowError) as error:
        raise BadRequestError(f"{parameter.name}: {text[:64]!r} is not {_wanted(field)}") from error


def _set_message(target: Message, field: FieldDescriptor, text: str) -> None:
    if isinstance(target, Timestamp | Duration):
        target.FromJsonString(text)
        target.SetInParent()
        return
    raise ValueError(f"{field.name} cannot be a parameter")


def _value(field: FieldDescriptor, text: str) -> Any:
    if field.enum_type is not None:
        return _enumerated(field.enum_type, text)
    if field.type in _WHOLE:
        if not text.isascii() or not text.lstrip("-").isdigit() or len(text) > 20:
            raise ValueError(text)
        return int(text)
    if field.type == FieldDescriptor.TYPE_BOOL:
        return {"true": True, "false": False}[text] if text in {"true", "false"} else _refuse(text)
    if field.type in {FieldDescriptor.TYPE_DOUBLE, FieldDescriptor.TYPE_FLOAT}:
        return float(text)
    return text


def _refuse(text: str) -> Any:
    raise ValueError(text)


def _enumerated(kind: EnumDescriptor, text: str) -> int:
    for value in kind.values:
        if text in {value.name, word_of(kind, value.name)} and value.number:
            return int(value.number)
    raise ValueError(text)


def word_of(kind: EnumDescriptor, name: str) -> str:
    """`ACTION_RESTART` as people write it: "restart"."""
    first = kind.values_by_number[0].name
    return name.removeprefix(first.removesuffix("UNSPECIFIED")).lower()


def words_of(kind: EnumDescriptor) -> list[str]:
    return [word_of(kind, value.name) for value in kind.values if value.number]


def _wanted(field: FieldDescriptor) -> str:
    if field.enum_type is not None:
        return "one of " + ", ".join(words_of(field.enum_type))
    if field.message_type is not None:
        return "a time like 2026-01-31T09:30:00Z" if field.message_type.name == "Timestamp" else "a duration like 90s"
    if field.type == FieldDescriptor.TYPE_BOOL:
        return "true or false"
    return "a number that fits" if field.type != FieldDescriptor.TYPE_STRING else "text"


def from_body(operation: Exposed, content_type: str, body: bytes) -> Message:
    """Raises `BadRequestError` with the field's name as far as it is known."""
    if content_type.partition(";")[0].strip().lower() != "application/json":
        raise BadRequestError("Content-Type: must be application/json")
    try:
        document = json.loads(body, parse_constant=_refuse) if body.strip() else {}
    except (ValueError, RecursionError) as error:
        raise BadRequestError(f"body: not JSON: {str(error)[:200]}") from None
    if not isinstance(document, dict):
        raise BadRequestError("body: must be a JSON object")
    message = operation.request()
    try:
        ParseDict(document, message, max_recursion_depth=32)
    except (ParseError, ValueError, TypeError, OverflowError) as error:
        raise BadRequestError(f"body: {_plainly(str(error))}") from None
    return message


def _plainly(text: str) -> str:
    return text.replace("Message type ", "").encode("utf-8", "backslashreplace").decode()[:300]
