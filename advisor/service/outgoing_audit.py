"""Audit rows that are moments as messages of the contract: signals, actions, who did what, timelines, histories."""

from advisor.core.words import Action, Mode
from advisor.service.outgoing import attempt_message, node_message, reconciliation_message
from advisor.service.wire import clean, evidence_message, ref_message, stamp, to_wire
from advisor.store.records import ActionRow, AuditRecord, EventRow, JobTimeline, NodeEvents, SignalRow
from advisor.v1 import audit_pb2


def signal_message(row: SignalRow) -> audit_pb2.Signal:
    return audit_pb2.Signal(
        incident_id=row.incident_id,
        attempt=ref_message(row.attempt),
        partition=clean(row.partition),
        seen_at=stamp(row.signal.seen_at),
        evidence=evidence_message(row.signal),
        nodes=row.signal.nodes,
    )


def action_message(row: ActionRow) -> audit_pb2.ActionTaken:
    """An action or a mode that this build does not know stays unspecified."""
    message = audit_pb2.ActionTaken(
        decision_id=row.decision_id,
        attempt=ref_message(row.attempt),
        partition=clean(row.partition),
        generation=row.generation,
        category=clean(row.category),
        decision_reason=clean(row.decision_reason),
        decided_at=stamp(row.decided_at),
        outcome=reconciliation_message(row.outcome),
    )
    if row.action in list(Action):
        message.action = to_wire(Action(row.action))
    if row.mode in list(Mode):
        message.mode = to_wire(Mode(row.mode))
    return message


def record_message(row: AuditRecord) -> audit_pb2.AuditRecord:
    event = row.event
    return audit_pb2.AuditRecord(
        record_id=row.record_id,
        at=stamp(event.at),
        who=clean(event.who),
        what=clean(event.what),
        why=clean(event.why),
        origin=clean(event.origin),
        cluster=clean(event.cluster),
        subject=clean(event.subject),
        detail={clean(name): clean(value) for name, value in event.detail.items()},
    )


def timeline_message(found: JobTimeline) -> audit_pb2.JobTimeline:
    return audit_pb2.JobTimeline(
        attempts=[attempt_message(row) for row in found.attempts],
        events=[event_message(row) for row in found.events],
        truncated=found.truncated,
    )


def history_message(found: NodeEvents, *, suspect_score: float) -> audit_pb2.NodeHistory:
    node = node_message(found.node, suspect_score=suspect_score)
    node.ClearField("implications")
    return audit_pb2.NodeHistory(
        node=node, events=[event_message(row) for row in found.events], next_cursor=found.next_cursor
    )


def event_message(row: EventRow) -> audit_pb2.Event:
    return audit_pb2.Event(
        at=stamp(row.at),
        kind=row.kind,
        attempt=ref_message(row.attempt) if row.attempt is not None else None,
        text=clean(_sentence(row)),
        word=clean(row.word),
        reason=clean(row.reason),
        decision_id=row.decision_id,
        incident_id=row.incident_id,
        isolation_id=row.isolation_id,
        who=clean(row.who),
        node=clean(row.node),
        detail=clean(row.detail),
    )


def _sentence(row: EventRow) -> str:
    word, reason = row.word.replace("_", " "), row.reason.replace("_", " ")
    match row.kind:
        case "attempt_state":
            text = f"attempt {row.attempt.number if row.attempt else '?'} is {word}"
        case "requeue_forgotten":
            text = f"attempt {row.attempt.number if row.attempt else '?'} never was: the scheduler forgot its requeue"
        case "milestone":
            text = word
        case "incident_opened":
            text = f"{word}: {reason}"
        case "incident_closed":
            text = "incident closed"
        case "decision":
            text = f"decided: {word} ({reason})"
        case "action":
            text = f"{word}: {reason}"
        case "operator":
            text = f"{row.who}: {word}"
        case "implicated":
            text = f"implicated by {reason} ({word})"
        case "excluded":
            text = f"excluded: {word} ({reason})"
        case "node_state":
            text = f"{reason or 'not seen before'} -> {word}"
        case _:
            text = " ".join(part for part in (row.kind.replace("_", " "), word, reason) if part)
    return f"{text}; {row.detail}" if row.detail else text
