"""The OpenAPI 3.1 document of the API, from the descriptors of the contract: nothing in it is written twice.

    python -m advisor.service.http.openapi

prints it; `make check` holds docs/openapi.json to that.
"""

import json
import sys
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor

from advisor.exporting import FORMATS
from advisor.service.http.contract import PREFIX, Exposed, Parameter, by_name, exposed
from advisor.service.http.exports import KINDS, ROWS_MAX
from advisor.service.http.json_messages import VALUE_CHARACTERS_MAX, words_of
from advisor.service.http.problems import MEDIA_TYPE
from advisor.store.records import PAGE_SIZE_DEFAULT, PAGE_SIZE_MAX

Document: TypeAlias = dict[str, Any]

_ABOUT = """\
Who decided what, why, from which evidence, and what came of it; and what operators may do about it.

The messages are those of the gRPC contract (package `advisor.v1`) in protobuf's JSON: fields by their names there,
times in RFC 3339, 64-bit numbers as strings, enumerations by name. Lists are newest first, in pages: give `next_cursor`
of one page as `cursor` of the next, with the same filters; it is empty on the last page, and stays right while rows
arrive.
Text of other users' logs is withheld from callers without the role operator; callers with the role user see their own
jobs only. Errors are problem details (RFC 9457)."""
_SUMMARIES = {
    "GetDecision": "One decision with its full evidence; the beginning of an id is enough",
    "ListDecisions": "Decisions",
    "GetDecisionInputs": "The stored inputs of a decision, byte for byte",
    "GetIncident": "One incident with its evidence",
    "ListIncidents": "Incidents",
    "GetAttempt": "One attempt of a job",
    "ListAttempts": "Attempts",
    "GetNode": "One node with what implicated it",
    "ListNodes": "Nodes with a history, newest implication first",
    "ListLemons": "Nodes that fail again and again by themselves",
    "ListSignals": "The evidence of incidents",
    "ListActions": "What came of advice",
    "ListAudit": "Who did what, when, why and from where",
    "GetJobTimeline": "Everything about one job across its attempts",
    "GetNodeHistory": "Everything about one node",
    "GetStatus": "How the advisor, its sources and agents are",
}
_PARAMETERS = {
    "cursor": "next_cursor of the page before, as it is",
    "page_size": f"1 to {PAGE_SIZE_MAX}; 0: {PAGE_SIZE_DEFAULT}",
    "since": "from then on",
    "until": "before then",
    "node": "implicated or excluded (decisions), implicated (incidents), allocated (attempts), named (signals)",
    "array_task": "one task of the array that array_job_id names",
    "everything": "also what the advisor and its agents do by themselves",
    "decision_id": "an id, or the beginning of one that no other decision has",
}
_SCALARS: Mapping[int, Document] = {
    FieldDescriptor.CPPTYPE_INT32: {"type": "integer", "format": "int32"},
    FieldDescriptor.CPPTYPE_UINT32: {"type": "integer", "minimum": 0, "maximum": 2**32 - 1},
    FieldDescriptor.CPPTYPE_INT64: {"type": "string", "format": "int64", "pattern": "^-?[0-9]+$"},
    FieldDescriptor.CPPTYPE_UINT64: {"type": "string", "format": "uint64", "pattern": "^[0-9]+$"},
    FieldDescriptor.CPPTYPE_DOUBLE: {"anyOf": [{"type": "number"}, {"enum": ["NaN", "Infinity", "-Infinity"]}]},
    FieldDescriptor.CPPTYPE_FLOAT: {"anyOf": [{"type": "number"}, {"enum": ["NaN", "Infinity", "-Infinity"]}]},
    FieldDescriptor.CPPTYPE_BOOL: {"type": "boolean"},
}
_WELL_KNOWN: Mapping[str, Document] = {
    "google.protobuf.Timestamp": {"type": "string", "format": "date-time"},
    "google.protobuf.Duration": {"type": "string", "pattern": r"^-?[0-9]+(\.[0-9]+)?s$", "examples": ["90s"]},
}
_PROBLEM: Document = {
    "type": "object",
    "required": ["type", "title", "status", "detail", "code"],
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string", "description": "What is wrong, for people"},
        "code": {"type": "string"},
        "errors": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["location", "message"],
                "properties": {"location": {"type": "string"}, "message": {"type": "string"}},
            },
        },
    },
}
_FAILURES = {
    "400": "The request cannot be used: which parameter or field, and why",
    "401": "Nobody is known by this request",
    "403": "This caller may not do it",
    "404": "There is no such thing, or none that this caller may know of",
    "409": "What is asked for can be done no more",
    "413": "The body is too large",
    "429": "Too many requests: again after Retry-After",
    "503": "The store does not answer: again after Retry-After",
}


def document() -> Document:
    seen: dict[str, Document] = {"Problem": _PROBLEM}
    paths: dict[str, Document] = {}
    for operation in exposed():
        _collect(operation.gives, seen, reading=True)
        if operation.verb == "POST":
            _collect(operation.takes, seen, reading=False)
        paths.setdefault(operation.path, {})[operation.verb.lower()] = _operation(operation)
    for kind, method in KINDS.items():
        paths[f"{PREFIX}/export/{kind}"] = {"get": _export(kind, by_name()[method])}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Recovery Advisor",
            "version": "v1",
            "description": _ABOUT,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": dict(sorted(paths.items())),
        "components": {
            "schemas": dict(sorted(seen.items())),
            "responses": {
                f"Problem{status}": {
                    "description": text,
                    "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}},
                }
                for status, text in _FAILURES.items()
            },
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"bearer": []}, {}],
    }


def _operation(operation: Exposed) -> Document:
    described: Document = {
        "operationId": operation.name,
        "summary": _SUMMARIES.get(operation.name, operation.method),
        "tags": [operation.method.partition("/")[0].removesuffix("Service").lower()],
        "responses": {
            "200": {
                "description": "As asked",
                "content": {"application/json": {"schema": _reference(operation.gives)}},
            },
            **_failures(),
        },
    }
    if operation.parameters:
        described["parameters"] = [_parameter(item) for item in operation.parameters]
    if operation.verb == "POST":
        described["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": _reference(operation.takes, reading=False)}},
        }
    return described


def _export(kind: str, operation: Exposed) -> Document:
    own = [
        _query("format", {"type": "string", "enum": list(FORMATS), "default": FORMATS[0]}, "of the file"),
        _query("limit", {"type": "integer", "minimum": 1, "maximum": ROWS_MAX}, "rows at most"),
    ]
    listed = [_parameter(item) for item in operation.parameters if item.name not in {"page_size", "cursor"}]
    return {
        "operationId": f"Export{kind.capitalize()}",
        "summary": f"All {kind} as a file",
        "tags": ["export"],
        "parameters": [*own, *listed],
        "responses": {
            "200": {
                "description": "The file; one that ends too early ends without the end of its transfer",
                "content": {"application/jsonl": {}, "text/csv": {"schema": {"type": "string"}}},
            },
            **_failures(),
        },
    }


def _failures() -> Document:
    return {status: {"$ref": f"#/components/responses/Problem{status}"} for status in _FAILURES}


def _parameter(item: Parameter) -> Document:
    schema = _parameter_schema(item.field)
    if item.field.is_repeated:
        schema = {"type": "array", "items": schema}
    if item.in_path:
        name = {"name": item.name, "in": "path", "required": True, "schema": {**schema, "minLength": 1}}
        return name | ({"description": _PARAMETERS[item.name]} if item.name in _PARAMETERS else {})
    return _query(item.name, schema, _PARAMETERS.get(item.name, ""))


def _query(name: str, schema: Document, description: str) -> Document:
    found: Document = {"name": name, "in": "query", "schema": schema}
    return found | ({"description": description} if description else {})


def _parameter_schema(field: FieldDescriptor) -> Document:
    """As it is written in a URL."""
    if field.enum_type is not None:
        names = [value.name for value in field.enum_type.values if value.number]
        return {"type": "string", "enum": [*words_of(field.enum_type), *names]}
    if field.message_type is not None:
        return dict(_WELL_KNOWN[field.message_type.full_name])
    if field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
        return {"type": "string", "maxLength": VALUE_CHARACTERS_MAX}
    if field.cpp_type in {FieldDescriptor.CPPTYPE_INT64, FieldDescriptor.CPPTYPE_UINT64}:
        return {"type": "integer"}
    return dict(_SCALARS[field.cpp_type])


# Messages come as answers with every field that cannot be absent; in a request everything may be left out.


def _reference(message: Descriptor, *, reading: bool = True) -> Document:
    return {"$ref": f"#/components/schemas/{_name(message, reading=reading)}"}


def _name(message: Descriptor | EnumDescriptor, *, reading: bool = True) -> str:
    plain = message.full_name.removeprefix("advisor.v1.").replace(".", "_")
    return plain if reading or isinstance(message, EnumDescriptor) else f"{plain}_in"


def _collect(message: Descriptor, seen: dict[str, Document], *, reading: bool) -> None:
    name = _name(message, reading=reading)
    if name in seen:
        return
    seen[name] = {}
    seen[name] |= _schema(message, reading=reading)
    for field in message.fields:
        for inner in _messages_of(field):
            _collect(inner, seen, reading=reading)
        if field.enum_type is not None:
            seen[_name(field.enum_type)] = {"type": "string", "enum": [v.name for v in field.enum_type.values]}


def _messages_of(field: FieldDescriptor) -> Iterator[Descriptor]:
    message = field.message_type
    if message is None or message.full_name in _WELL_KNOWN:
        return
    if message.GetOptions().map_entry:
        yield from _messages_of(message.fields_by_name["value"])
    else:
        yield message


def _schema(message: Descriptor, *, reading: bool) -> Document:
    schema: Document = {
        "type": "object",
        "properties": {field.name: _field(field, reading=reading) for field in message.fields},
        "additionalProperties": False,
    }
    required = [field.name for field in message.fields if not field.has_presence]
    return schema | ({"required": required} if reading and required else {})


def _field(field: FieldDescriptor, *, reading: bool) -> Document:
    message = field.message_type
    if message is not None and message.GetOptions().map_entry:
        value = _single(message.fields_by_name["value"], reading=reading)
        return {"type": "object", "additionalProperties": value}
    single = _single(field, reading=reading)
    return {"type": "array", "items": single} if field.is_repeated else single


def _single(field: FieldDescriptor, *, reading: bool) -> Document:
    if field.message_type is not None:
        known = _WELL_KNOWN.get(field.message_type.full_name)
        return dict(known) if known is not None else _reference(field.message_type, reading=reading)
    if field.enum_type is not None:
        return {"$ref": f"#/components/schemas/{_name(field.enum_type)}"}
    if field.type == FieldDescriptor.TYPE_BYTES:
        return {"type": "string", "contentEncoding": "base64"}
    if field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
        return {"type": "string"}
    return dict(_SCALARS[field.cpp_type])


def text() -> str:
    return json.dumps(document(), indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    sys.stdout.write(text())
