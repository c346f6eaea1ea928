"""Which methods of the contract are served as JSON over HTTP, and where: derived from the descriptors.

Reads are GET with query parameters, everything else is POST with the request message as JSON. `ListDecisions` is
`/api/v1/decisions`, `Reinstate` is `/api/v1/reinstate`; the few paths that read better otherwise are in `_PATHS`. A
method that is new in the contract is served without a line here.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache

from google.protobuf.descriptor import Descriptor, FieldDescriptor, MethodDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from advisor.v1 import audit_pb2, operator_pb2, report_pb2

PREFIX = "/api/v1"
SERVICES = (
    audit_pb2.DESCRIPTOR.services_by_name["AuditService"],
    operator_pb2.DESCRIPTOR.services_by_name["OperatorService"],
    report_pb2.DESCRIPTOR.services_by_name["ReportService"],
)
_PATHS = {
    "GetDecision": "/decisions/{decision_id}",
    "GetDecisionInputs": "/decisions/{decision_id}/inputs",
    "GetIncident": "/incidents/{incident_id}",
    "GetAttempt": "/attempt",
    "GetNode": "/clusters/{cluster}/nodes/{name}",
    "GetNodeHistory": "/clusters/{cluster}/nodes/{name}/history",
    "GetJobTimeline": "/timeline",
}
# Messages whose fields are query parameters of their own: ?user=ada&page_size=10, not ?filter.user=ada.
_FLATTENED = {audit_pb2.Filter.DESCRIPTOR.full_name, audit_pb2.Page.DESCRIPTOR.full_name}


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """One query or path parameter, and the fields it goes through to its place in the request."""

    name: str
    fields: tuple[FieldDescriptor, ...]
    in_path: bool

    @property
    def field(self) -> FieldDescriptor:
        return self.fields[-1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Exposed:
    """One method of the contract as an HTTP operation."""

    method: str  # "AuditService/ListDecisions"
    verb: str
    path: str
    request: type[Message]
    answer: type[Message]
    takes: Descriptor  # what `request` and `answer` are made from
    gives: Descriptor
    parameters: tuple[Parameter, ...]  # () for POST: the body is the request

    @property
    def name(self) -> str:
        return self.method.partition("/")[2]


@cache
def exposed() -> tuple[Exposed, ...]:
    return tuple(_expose(method) for service in SERVICES for method in service.methods if not _streams(method))


def by_name() -> Mapping[str, Exposed]:
    return {item.name: item for item in exposed()}


def _streams(method: MethodDescriptor) -> bool:
    return bool(method.client_streaming or method.server_streaming)


def _expose(method: MethodDescriptor) -> Exposed:
    reads = re.match(r"(Get|List)(?=[A-Z])", method.name)
    noun = method.name[reads.end() :] if reads else method.name
    path = PREFIX + _PATHS.get(method.name, f"/{_kebab(noun)}")
    in_path = set(re.findall(r"\{(\w+)\}", path))
    return Exposed(
        method=f"{method.containing_service.name}/{method.name}",
        verb="GET" if reads else "POST",
        path=path,
        request=GetMessageClass(method.input_type),
        answer=GetMessageClass(method.output_type),
        takes=method.input_type,
        gives=method.output_type,
        parameters=tuple(_parameters(method.input_type, in_path)) if reads else (),
    )


def _parameters(message: Descriptor, in_path: set[str]) -> Iterator[Parameter]:
    for field in message.fields:
        if field.message_type is not None and field.message_type.full_name in _FLATTENED:
            for inner in field.message_type.fields:
                yield Parameter(name=inner.name, fields=(field, inner), in_path=False)
        else:
            yield Parameter(name=field.name, fields=(field,), in_path=field.name in in_path)


def _kebab(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", name).lower()
