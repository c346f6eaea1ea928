"""Text of a job's logs is for the job's owner and for operators: what everybody else is shown instead.

Works on the messages of the contract, after a servicer has made them, so that no method can forget it. Whose text a
field holds is told by the nearest `attempt` around it; where nothing tells, it is nobody's and withheld. A string field
is shown only if it is known to hold no text of a log (`SHOWN`): a field that is new in the contract is withheld until
somebody has thought about it.
"""

import json
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from advisor.service.callers import Caller, Role
from advisor.service.errors import ForbiddenError, NotFoundError
from advisor.v1 import audit_pb2, common_pb2

WITHHELD = "[withheld: text of another user's job]"

# Names of string fields that hold identifiers, words of ours, or what the scheduler shows to everybody anyway.
SHOWN = frozenset(
    {
        *("advice_id", "decision_id", "incident_id", "isolation_id", "signal_id", "record_id", "inputs_hash", "build"),
        *("job_key", "cluster", "job_id", "user", "account", "partition", "incarnation", "version", "next_cursor"),
        *("kind", "category", "reason", "decision_reason", "rule", "role", "trust", "source", "word", "scheduler"),
        *("node", "nodes", "exclude_nodes", "exclude_order", "dead_nodes", "excluded_nodes", "dropped_nodes"),
        *("implicated_nodes", "host", "missing_rights", "ended_by", "set_by", "who", "array_job_id"),
        *("name", "key", "mode", "ReplicaStatus.replica_id", "ReplicaStatus.schema"),
        "ReplicaStatus.address",
        # What operators wrote, and what we found about nodes and agents.
        *("ModeSetting.why", "ModeSetting.notes", "PauseInForce.why", "PauseInForce.notes", "Breaker.why"),
        "StopFile.why",
        *("NodeIsolation.ended_why", "NodeIsolation.opened_by", "MilestoneAt.detail"),
        *("order_id", "lifted_by", "Order.why", "Order.lifted_why"),
        # Figures and what people did, in words of ours.
        *("outcome", "did", "recorded_by", "resubmitted_as", "their_nodes", "our_nodes", "url", "proof", "group"),
        *("assumptions", "definitions", "why_not", "EarnedAutonomy.why"),
    }
)
# String fields that may hold text of a log: said here so that a test sees that somebody has thought about each.
TEXTS = frozenset(
    {
        *("Evidence.text", "Evidence.file", "Advice.explanation", "Decision.analysis_json", "Decision.unreadable"),
        *("Incident.root_cause", "Incident.unreadable", "Reconciliation.detail", "Event.text", "Event.detail"),
        *("NodeIsolation.why", "NodeIsolation.detail", "SourceStatus.detail", "ShadowCase.why", "ShadowNode.why"),
        "Order.origin",  # an operator's address: not theirs to see either
    }
)
# Keys of the analysis document whose strings are enumerations, identifiers, nodes or times.
_ANALYSIS_KEYS = frozenset(
    {
        *("schema", "id", "user", "state", "nodes", "kind", "visible_at", "rule", "role", "category", "trust", "at"),
        *("ranks", "node", "exclude_for_job", "isolate_for_cluster", "suspects", "reason", "newest_at", "last_at"),
        *("action", "exclude_nodes", "delay_until"),
    }
)


def narrow(caller: Caller, request: Message) -> None:
    """Whoever sees only his own jobs asks for those, in place. Raises `ForbiddenError` when he asked for others'."""
    chosen = getattr(request, "filter", None)
    if caller.sees_all_jobs or not isinstance(chosen, audit_pb2.Filter):
        return
    if chosen.user not in {"", caller.name}:
        raise ForbiddenError(f"{caller.name} may look at his own jobs only: leave the user out")
    chosen.user = caller.name


def withhold(caller: Caller, answer: Message) -> None:
    """Take out of an answer what the caller may not read, in place. Raises `NotFoundError` for somebody else's job."""
    if not caller.roles & Role.OPERATOR:
        _withhold(caller, answer, "")


def _withhold(caller: Caller, message: Message, owner: str) -> None:
    owner = _owner(message) or owner
    about_a_job = bool(owner) or isinstance(message, common_pb2.AttemptRef)  # nobody's, where its user is not known
    if about_a_job and owner != caller.name and not caller.sees_all_jobs:
        raise NotFoundError(f"there is no such thing among the jobs of {caller.name}")
    readable = bool(owner) and caller.may_read_text_of(owner)
    for field, value in message.ListFields():
        if field.type in {FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES}:
            if not readable and not is_shown(field):
                _take_out(message, field, value)
        elif field.type == FieldDescriptor.TYPE_MESSAGE:
            _each(caller, field, value, owner)


def _each(caller: Caller, field: FieldDescriptor, value: Any, owner: str) -> None:
    entry = field.message_type
    if entry is not None and entry.GetOptions().map_entry:  # of messages or numbers: a test sees to it
        value = value.values() if entry.fields_by_name["value"].message_type is not None else ()
    for item in value if field.is_repeated else (value,):
        _withhold(caller, item, owner)


def is_shown(field: FieldDescriptor) -> bool:
    """Whether everybody who may call the method sees this string field."""
    return field.name in SHOWN or full_name(field) in SHOWN


def full_name(field: FieldDescriptor) -> str:
    """`Evidence.text`"""
    return ".".join(field.full_name.split(".")[-2:])


def _owner(message: Message) -> str:
    """Whose job a message is about, "" when it does not say."""
    if isinstance(message, common_pb2.AttemptRef):
        return message.user
    if isinstance(message, audit_pb2.Decision):
        return message.advice.attempt.user
    if isinstance(message, audit_pb2.JobTimeline):
        return next((item.attempt.user for item in message.attempts if item.attempt.user), "")
    attempt = getattr(message, "attempt", None)
    return attempt.user if isinstance(attempt, common_pb2.AttemptRef) else ""


def _take_out(message: Message, field: FieldDescriptor, value: Any) -> None:
    if field.is_repeated:
        message.ClearField(field.name)
        return
    if field.type == FieldDescriptor.TYPE_BYTES:
        setattr(message, field.name, b"")
        return
    shown = _plain_analysis(value) if field.name == "analysis_json" else WITHHELD
    setattr(message, field.name, shown)


def _plain_analysis(document: str) -> str:
    """The analysis without its texts; what cannot be read is not shown at all."""
    try:
        tree = json.loads(document)
    except ValueError:
        return ""
    return json.dumps(_without_texts(tree, ""))


def _without_texts(value: Any, key: str) -> Any:
    if isinstance(value, dict):
        return {name: _without_texts(item, name) for name, item in value.items()}
    if isinstance(value, list):
        return [_without_texts(item, key) for item in value]
    return WITHHELD if isinstance(value, str) and value and key not in _ANALYSIS_KEYS else value
