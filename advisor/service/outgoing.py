"""Store rows as messages of the contract: advice for agents, audit rows for people."""

from datetime import datetime, timedelta

from advisor.core.model import Decision
from advisor.core.words import Action, Mode
from advisor.service.wire import clean, duration, evidence_message, evidence_of, ref_message, stamp, to_wire
from advisor.store.records import (
    AdviceRow,
    AttemptRow,
    DecisionInputs,
    DecisionRow,
    ImplicationRow,
    IncidentRow,
    LemonRow,
    Milestone,
    NodeRow,
    Reconciliation,
    UnreadDecision,
)
from advisor.v1 import audit_pb2, common_pb2


def advice_message(
    row: AdviceRow, *, incarnation: str, now: datetime, evidence_max: int, paused_until: datetime | None = None
) -> common_pb2.Advice:
    """Open advice, with the time to live that is left: the receiver counts it on its own clock."""
    message = _advice(row.decision, evidence_max)
    message.advice_id = row.advice_id
    message.incarnation = incarnation
    message.attempt.CopyFrom(ref_message(row.attempt))
    message.generation = row.generation
    message.created_at.FromDatetime(row.created_at)
    message.time_to_live.CopyFrom(duration(max(row.expires_at - now, timedelta())))
    if paused_until is not None:
        message.paused_until.FromDatetime(paused_until)
    return message


def _advice(decision: Decision, evidence_max: int) -> common_pb2.Advice:
    exclude = decision.isolation.exclude_for_job
    return common_pb2.Advice(
        action=to_wire(decision.action),
        exclude_nodes=exclude,
        exclude_order=exclude,
        category=decision.attribution.category,
        reason=decision.reason,
        explanation=clean(decision.explanation),
        mode=to_wire(decision.mode),
        start_not_before=stamp(decision.start_not_before),
        decision_deadline=stamp(decision.decision_deadline),
        delay_until=stamp(decision.delay_until),
        resume_step=decision.resume_step if decision.resume_step is not None and decision.resume_step >= 0 else None,
        may_end_live_attempt=decision.may_end_live_attempt,
        save_until=stamp(decision.save_until),
        dead_nodes=decision.dead_nodes,
        evidence=evidence_of(decision.incident.signals, decision.attribution.evidence, evidence_max),
    )


def _unread_advice(decision: UnreadDecision) -> common_pb2.Advice:
    """What columns tell. An action or a mode that this build does not know stays unspecified."""
    message = common_pb2.Advice(
        category=clean(decision.category),
        reason=clean(decision.reason),
        exclude_nodes=decision.excluded_nodes,
        explanation=clean(decision.why),
    )
    for action in Action:
        if action.value == decision.action:
            message.action = to_wire(action)
    for mode in Mode:
        if mode.value == decision.mode:
            message.mode = to_wire(mode)
    return message


def decision_message(row: DecisionRow, *, incarnation: str, evidence_max: int) -> audit_pb2.Decision:
    decision, unreadable = row.decision, ""
    if isinstance(decision, UnreadDecision):
        advice, unreadable = _unread_advice(decision), clean(decision.why)
    else:
        advice = _advice(decision, evidence_max)
    advice.advice_id = row.decision_id
    advice.incarnation = incarnation
    advice.attempt.CopyFrom(ref_message(row.attempt))
    advice.generation = row.generation
    advice.created_at.FromDatetime(row.created_at)
    advice.time_to_live.CopyFrom(duration(max(row.expires_at - row.created_at, timedelta())))
    return audit_pb2.Decision(
        advice=advice,
        incident_id=row.incident_id,
        partition=row.partition,
        analysis_json=clean(row.analysis_json),
        inputs_hash=row.inputs_hash,
        build=row.build,
        reconciliations=[reconciliation_message(item) for item in row.reconciliations],
        milestones=[_milestone(item) for item in row.milestones],
        status=to_wire(row.status),
        in_scope=row.in_scope,
        unreadable=unreadable,
        undone=row.undone,
    )


def reconciliation_message(item: Reconciliation) -> audit_pb2.Reconciliation:
    return audit_pb2.Reconciliation(
        status=to_wire(item.status),
        reason=to_wire(item.reason),
        detail=clean(item.detail),
        at=stamp(item.at),
        excluded_nodes=item.excluded_nodes,
        dropped_nodes=item.dropped_nodes,
    )


def _milestone(item: Milestone) -> audit_pb2.MilestoneAt:
    return audit_pb2.MilestoneAt(kind=to_wire(item.kind), at=stamp(item.at), detail=clean(item.detail))


def inputs_message(row: DecisionInputs) -> audit_pb2.DecisionInputs:
    return audit_pb2.DecisionInputs(
        decision_id=row.decision_id,
        inputs_hash=row.inputs_hash,
        inputs=row.inputs,
        rules_hash=row.rules_hash,
        rules=row.rules,
        policy_hash=row.policy_hash,
        policy=row.policy,
        decision=row.decision,
        build=row.build,
    )


def incident_message(row: IncidentRow) -> audit_pb2.Incident:
    return audit_pb2.Incident(
        incident_id=row.incident_id,
        attempt=ref_message(row.attempt),
        kind=row.kind,
        category=row.category,
        root_cause=clean(row.root_cause),
        opened_at=stamp(row.opened_at),
        closed_at=stamp(row.closed_at),
        implicated_nodes=row.implicated_nodes,
        evidence=[evidence_message(signal) for signal in row.signals],
        unreadable=clean(row.unreadable),
    )


def attempt_message(row: AttemptRow) -> audit_pb2.Attempt:
    return audit_pb2.Attempt(
        attempt=ref_message(row.attempt),
        state=to_wire(row.state),
        started_at=stamp(row.started_at),
        ended_at=stamp(row.ended_at),
        nodes=row.nodes,
        first_step=row.progress.first_step,
        last_step=row.progress.last_step,
        checkpoint_step=row.progress.checkpoint_step,
        resumed_step=row.progress.resumed_step,
        in_job_restarts=row.progress.in_job_restarts,
        foreign_evidence=row.foreign,
        milestones=[_milestone(item) for item in row.milestones],
        partition=clean(row.partition),
        name=clean(row.job_name),
        in_scope=row.in_scope,
        first_step_at=stamp(row.progress.first_at),
        last_step_at=stamp(row.progress.last_at),
        checkpoint_steps=row.progress.checkpoints,
        requeue_forgotten=row.withdrawn,
        remembered_until=stamp(row.remembered_until),
    )


def node_message(row: NodeRow, *, suspect_score: float) -> audit_pb2.Node:
    return audit_pb2.Node(
        cluster=row.cluster,
        name=row.name,
        score=row.score,
        suspect=row.score >= suspect_score,
        implications=[_implication(item) for item in row.implications],
        last_implicated_at=stamp(row.last_implicated_at),
    )


def lemon_message(row: LemonRow) -> audit_pb2.Lemon:
    return audit_pb2.Lemon(
        cluster=row.cluster,
        name=row.name,
        score=row.score,
        jobs=row.jobs,
        users=row.users,
        failures=[_implication(item) for item in row.failures],
        up_since=stamp(row.up_since),
        fails_within_week=row.fails_within_week,
    )


def _implication(item: ImplicationRow) -> audit_pb2.Implication:
    return audit_pb2.Implication(
        incident_id=item.incident_id,
        attempt=ref_message(item.attempt),
        category=item.category,
        rule=item.rule,
        trust=item.trust,
        role=item.role,
        weight=item.weight,
        at=stamp(item.at),
    )
