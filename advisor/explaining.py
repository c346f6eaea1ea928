"""A job's failure in plain sentences, for the person whose job it is: what happened, why, how sure, what now.

From what the audit API answers, so that whoever may ask for a job's attempts and decisions can be told.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC
from typing import Any

from advisor.client.words import action_name, reason_name, status_name
from advisor.core.document import own_word_alone
from advisor.core.words import Category, Reason
from advisor.plain_text import seconds_text
from advisor.v1 import audit_pb2, common_pb2
from advisor.wording import left_out

NODES_MAX = 6
_ACTED = frozenset({"verified", "applied"})
_OPERATORS = frozenset({Reason.VETOED, Reason.OPERATOR, Reason.WITHDRAWN, Reason.STOPPED})
_STOPS = frozenset({Reason.STOPPED, Reason.STOP_UNREPORTED})
_NEVER_STARTED = frozenset({common_pb2.ATTEMPT_STATE_CANCELLED, common_pb2.ATTEMPT_STATE_COMPLETING})
_STOPPED: Mapping[str, str] = {
    Reason.OPERATOR: "It was stopped by order of an operator.",
    Reason.STOPPED: "It was stopped before it started.",
    "": "It was stopped, so that it does not fail the same way again.",
}
NO_PROGRESS_LINE = (
    "So far no line of its output is recognised as progress, so that a hang of it may not be told: a rule of the job's "
    'own can name its progress lines (docs/rules.md, "Log rules of a job\'s own").'
)
_OPT_IN = """--comment '{"advisor": {"enabled": true}}'"""
_ENDS: Mapping[int, str] = {
    common_pb2.ATTEMPT_STATE_PENDING: "waits for its start",
    common_pb2.ATTEMPT_STATE_RUNNING: "is running",
    common_pb2.ATTEMPT_STATE_COMPLETING: "is ending: how is not visible yet",
    common_pb2.ATTEMPT_STATE_SUSPENDED: "is suspended",
    common_pb2.ATTEMPT_STATE_COMPLETED: "completed",
    common_pb2.ATTEMPT_STATE_FAILED: "failed",
    common_pb2.ATTEMPT_STATE_CANCELLED: "was cancelled",
    common_pb2.ATTEMPT_STATE_TIME_LIMIT: "ran into its time limit",
    common_pb2.ATTEMPT_STATE_NODE_FAILURE: "lost a node",
    common_pb2.ATTEMPT_STATE_PREEMPTED: "was preempted by another job",
    common_pb2.ATTEMPT_STATE_OUT_OF_MEMORY: "used more memory than it had asked for",
    common_pb2.ATTEMPT_STATE_LAUNCH_FAILURE: "could not be launched",
    common_pb2.ATTEMPT_STATE_REQUEUE_HELD: "was requeued by Slurm and is held",
}
_REQUEUED = "was ended when its job was put back into the queue"
_NEVER_WAS = "never was: the scheduler has forgotten the requeue that made it, as when it is killed"
_FAILED = frozenset(
    {
        common_pb2.ATTEMPT_STATE_FAILED,
        common_pb2.ATTEMPT_STATE_TIME_LIMIT,
        common_pb2.ATTEMPT_STATE_NODE_FAILURE,
        common_pb2.ATTEMPT_STATE_OUT_OF_MEMORY,
        common_pb2.ATTEMPT_STATE_LAUNCH_FAILURE,
    }
)
_BLAME: Mapping[str, str] = {
    Category.GPU_HARDWARE: "a GPU is broken; it was not your program",
    Category.NODE_HARDWARE: "a node is broken; it was not your program",
    Category.INTERCONNECT: "the network between the nodes failed; it was not your program",
    Category.STORAGE: "storage was away or full",
    Category.SYSTEM_SOFTWARE: "software of the system failed; it was most likely not your program",
    Category.SCHEDULER_EVENT: "Slurm ended it; nothing is wrong with your program",
    Category.USER_CANCEL: "somebody cancelled it",
    Category.APPLICATION: "your program failed by itself",
    Category.GPU_OUT_OF_MEMORY: "your program wanted more GPU memory than there is",
    Category.HOST_OUT_OF_MEMORY: "your program wanted more memory than the node, or the job, has",
    Category.NUMERICS: "the numbers of your training went bad (NaN, Inf, or a loss that ran away)",
    Category.UNKNOWN: "it is not known whose fault it was",
}
_NOTHING = "You need not do anything. "
_NOTHING_LEFT = "There is nothing to do."
_CAN_DO: Mapping[str, str] = {
    Category.GPU_HARDWARE: f"{_NOTHING}If it comes back, name the node to your administrators.",
    Category.NODE_HARDWARE: f"{_NOTHING}If it comes back, name the node to your administrators.",
    Category.INTERCONNECT: f"{_NOTHING}If it comes back, tell your administrators.",
    Category.STORAGE: "Look whether your quota is full. If it is not, tell your administrators.",
    Category.SYSTEM_SOFTWARE: "If it comes back, show your administrators the line below.",
    Category.SCHEDULER_EVENT: f"{_NOTHING}A checkpoint more often loses less the next time.",
    Category.APPLICATION: "Read the error in your log, correct the program, and submit it again.",
    Category.GPU_OUT_OF_MEMORY: "Use a smaller batch, more GPUs, or activation checkpointing, and submit it again.",
    Category.HOST_OUT_OF_MEMORY: "Ask for more memory (--mem), or use fewer data loader workers, and submit it again.",
    Category.NUMERICS: "Go back to a checkpoint from before it began; look at learning rate, data and precision.",
    Category.UNKNOWN: "Look at the end of your log. If the job prints nothing before it dies, ask your administrators.",
}


_LIKELY = 0.5
_HOW_SURE = ((0.95, "Almost certain"), (0.8, "Fairly sure"), (_LIKELY, "Likely"), (0.0, "Little more than a guess"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Sentence:
    """`about`: happened, before, think, sure, done, lost, do. `says`: text of logs may be in it, as it is."""

    about: str
    says: str


def explain(
    attempt: audit_pb2.Attempt,
    decisions: Sequence[audit_pb2.Decision],
    after: audit_pb2.Attempt | None,
    before: audit_pb2.Attempt | None = None,
) -> tuple[Sentence, ...]:
    """Of one attempt; its decisions, newest first; the attempts that followed and preceded it, where they are known."""
    newest = decisions[0] if decisions else None
    lost = after if after is not None and after.requeue_forgotten else None
    after = after if lost is None else None
    standing = [item for item in decisions if not item.undone]
    stopped = _stopped(standing)
    unreported = newest is not None and newest.advice.reason == Reason.STOP_UNREPORTED
    how = _how_it_ended(attempt, followed=after is not None)
    told = [Sentence(about="happened", says=_happened(attempt, how, stopped, unreported=unreported))]
    if before is not None:
        told.append(Sentence(about="before", says=_before(before)))
    analysis = json.loads(newest.analysis_json) if newest is not None and newest.analysis_json else {}
    attribution: Mapping[str, Any] = analysis.get("attribution", {})
    category = str(attribution.get("category", newest.advice.category if newest is not None else ""))
    met_alone = _met_alone(attempt, newest, attribution)
    if newest is None and attempt.state in _FAILED:
        told.append(Sentence(about="think", says="Nothing has been decided about it so far."))
    elif newest is None or category in {"", Category.NONE}:
        told.append(Sentence(about="think", says=f"Nothing is known to be wrong with it.{_not_seen(attempt)}"))
    else:
        told.append(Sentence(about="think", says=_thought(category, attribution, met_alone)))
        told.append(Sentence(about="sure", says=_sure(attribution)))
    if newest is not None:
        told.append(Sentence(about="done", says=" ".join(_done(newest, standing, stopped, after))))
    if lost is not None:
        told.append(Sentence(about="lost", says=f"Attempt {lost.attempt.attempt} {_NEVER_WAS}."))
    elif len(standing) < len(decisions):
        told.append(Sentence(about="lost", says="The scheduler has forgotten an earlier requeue of it."))
    told.append(
        Sentence(about="do", says=" ".join(_can_do(attempt, newest, category, after, met_alone)) or _NOTHING_LEFT)
    )
    return tuple(told)


def _stopped(decisions: Sequence[audit_pb2.Decision]) -> audit_pb2.Decision | None:
    """By which decision we stopped it. The scheduler shows a cancel, and not whose it was."""
    return next(
        (
            item
            for item in decisions
            if item.advice.reason == Reason.STOPPED
            or (item.advice.action == common_pb2.ACTION_STOP and status_name(item.status) in _ACTED)
        ),
        None,
    )


def _by_whom(decision: audit_pb2.Decision) -> str:
    """The operator, where it was his order; "" where it was the advisor's own advice."""
    advice = json.loads(decision.analysis_json).get("advice", {}) if decision.analysis_json else {}
    return str(advice.get("ordered_by") or "")


def _how_it_ended(attempt: audit_pb2.Attempt, *, followed: bool) -> str:
    """Slurm shows no more of the end of one that it put back into the queue while it ran than that it was ending."""
    if followed and attempt.state == common_pb2.ATTEMPT_STATE_COMPLETING:
        return _REQUEUED
    return _ENDS.get(attempt.state, "is in a state that is not known here")


def _happened(attempt: audit_pb2.Attempt, how: str, stopped: audit_pb2.Decision | None, *, unreported: bool) -> str:
    ref = attempt.attempt
    if attempt.requeue_forgotten:
        return f"Attempt {ref.attempt} of job {ref.job_id} {_NEVER_WAS}."
    if unreported:
        how += " while our stop of it was out"
    if stopped is not None and attempt.state == common_pb2.ATTEMPT_STATE_CANCELLED:
        who = _by_whom(stopped)
        how = f"was stopped by order of {who}" if who else "was stopped by the advisor"
    parts = [f"Attempt {ref.attempt} of job {ref.job_id} {how}"]
    if attempt.HasField("ended_at") and attempt.state != common_pb2.ATTEMPT_STATE_RUNNING:
        parts.append(f"at {attempt.ended_at.ToDatetime(UTC):%Y-%m-%d %H:%M:%S} UTC")
        if attempt.HasField("started_at"):
            ran = attempt.ended_at.ToDatetime(UTC) - attempt.started_at.ToDatetime(UTC)
            parts.append(f"after {seconds_text(max(ran.total_seconds(), 0.0))}")
    text = " ".join(parts)
    if attempt.HasField("last_step"):
        saved = f", with a checkpoint of step {attempt.checkpoint_step}" if attempt.HasField("checkpoint_step") else ""
        text += f", at step {attempt.last_step}{saved}"
    return f"{text}."


def _not_seen(attempt: audit_pb2.Attempt) -> str:
    """Of a running attempt whose steps nobody can read: what that means for it."""
    if attempt.state != common_pb2.ATTEMPT_STATE_RUNNING or attempt.HasField("last_step"):
        return ""
    return f" {NO_PROGRESS_LINE}"


def _before(attempt: audit_pb2.Attempt) -> str:
    ref = attempt.attempt
    how = _how_it_ended(attempt, followed=True) if attempt.state in _ENDS else "came before it"
    return f"Attempt {ref.attempt} {how}; why, and what was done: advisor explain {ref.job_id} --attempt {ref.attempt}"


def _met_alone(attempt: audit_pb2.Attempt, decision: audit_pb2.Decision | None, attribution: Mapping[str, Any]) -> str:
    """The node without which a failure is tried again because no other met it; "" where there is none."""
    if decision is None or decision.advice.reason != Reason.CONFIRMATION_RETRY:
        return ""
    named = attribution.get("implicated", {}).get("nodes", ())
    there = [name for name in decision.advice.exclude_nodes if name in attempt.nodes and name not in named]
    return there[0] if len(there) == 1 else ""


def _thought(category: str, attribution: Mapping[str, Any], met_alone: str) -> str:
    cause = str(attribution.get("root_cause") or "").rstrip(".")
    blame = _BLAME.get(category, category.replace("_", " "))
    if category != Category.UNKNOWN and float(attribution.get("confidence") or 0.0) < _LIKELY:
        blame = f"perhaps {blame}"
    elif own_word_alone(attribution):
        blame = f"if what the job itself printed is true, {blame}"
    if met_alone:
        blame = f"only {met_alone} met it, so that something may be missing there; else {blame}"
    nodes = [str(name) for name in attribution.get("implicated", {}).get("nodes", ())]
    where = f" ({_names(nodes)})" if nodes else ""
    return f"{cause}: {blame}{where}." if cause else f"{blame[:1].upper()}{blame[1:]}{where}."


def _sure(attribution: Mapping[str, Any]) -> str:
    confidence = float(attribution.get("confidence") or 0.0)
    word = next(word for least, word in _HOW_SURE if confidence >= least)
    away = [name for name, source in (attribution.get("sources") or {}).items() if not source.get("available", True)]
    unread = f" What {' and '.join(away)} would say could not be read." if away else ""
    if own_word_alone(attribution):
        return (
            f"Likely: such lines are right in {confidence:.0%} of cases, but these the job itself printed, which any "
            f"program can.{unread}"
        )
    return f"{word} ({confidence:.0%}).{unread}"


def _done(
    decision: audit_pb2.Decision,
    decisions: Sequence[audit_pb2.Decision],
    stopped: audit_pb2.Decision | None,
    after: audit_pb2.Attempt | None,
) -> Iterator[str]:
    advice = decision.advice
    action, status = action_name(advice.action) or "none", status_name(decision.status)
    explanation = advice.explanation.strip()
    if explanation:
        yield explanation if explanation.endswith(".") else f"{explanation}."
    acted = next((item for item in decisions if item is stopped or status_name(item.status) in _ACTED), None)
    if acted is not None and acted is stopped:
        who = _by_whom(acted)
        yield f"It was stopped by order of {who}." if who else _STOPPED.get(acted.advice.reason, _STOPPED[""])
    elif acted is not None and acted.advice.action == common_pb2.ACTION_RESTART:
        yield "It was put back into the queue" + _without(acted) + "."
    elif decision.undone:
        yield "Nothing of what was done is left."
    elif action == "none" and advice.reason != Reason.STOP_UNREPORTED:
        yield "Nothing was done to it."
    elif action == "none":
        yield "Who cancelled it, the scheduler's accounting may tell."
    elif advice.mode == common_pb2.MODE_MONITOR:
        yield "Nothing was done: the advisor only watches here."
    elif action == "stop" and status == "already_satisfied":
        yield "It had ended by itself, and is not restarted."
    else:
        reasons = [reason_name(item.reason) for item in decision.reconciliations if item.status == decision.status]
        why = reasons[-1].replace("_", " ") if reasons else "it has just been advised"
        yield f"So far nothing was done ({status.replace('_', ' ') or 'pending'}: {why})."
    if after is not None and acted is not None and acted is stopped and after.state in _NEVER_STARTED:
        yield f"Attempt {after.attempt.attempt}, its restart, was called off with that."
    elif after is not None:
        where = f" on {_names(list(after.nodes))}" if after.nodes else ""
        yield f"Attempt {after.attempt.attempt} {_ENDS.get(after.state, 'followed')}{where}."


def _can_do(
    attempt: audit_pb2.Attempt,
    decision: audit_pb2.Decision | None,
    category: str,
    after: audit_pb2.Attempt | None,
    met_alone: str,
) -> Iterator[str]:
    ref = attempt.attempt
    alone = _left_to_its_user(attempt, decision, after)
    if met_alone:
        yield f"If it passes without {met_alone}, tell your administrators of that node. If it does not:"
    if category in _CAN_DO:
        yield _CAN_DO[category].removeprefix(_NOTHING if alone else "")
    if alone and decision is not None:
        avoid = [node for node in decision.advice.exclude_nodes if node not in left_out(decision)]
        yield f"The advisor does not restart it. {_by_hand(attempt, avoid)}"
    if decision is not None and decision.advice.HasField("resume_step") and category not in {"", Category.NONE}:
        yield f"The newest checkpoint that is known to be good is of step {decision.advice.resume_step}."
    waits = attempt.state in {common_pb2.ATTEMPT_STATE_PENDING, common_pb2.ATTEMPT_STATE_RUNNING}
    advice = decision.advice if decision is not None else None
    stops = advice is not None and (advice.action == common_pb2.ACTION_STOP or advice.reason in _STOPS)
    if after is None and not waits and (stops or category == Category.USER_CANCEL):
        yield f"To run it again all the same: scontrol requeue {ref.job_id}."
    if not attempt.in_scope:
        yield f"To have such jobs restarted, submit them with {_OPT_IN}."
    elif advice is not None and advice.reason in _OPERATORS:
        yield "An operator has decided about it: ask there."
    if decision is None and attempt.state in _FAILED:
        yield "Ask again in a minute. If it stays so, tell your administrators: the advisor was away, or is not well."
    elif category in {"", Category.NONE} and not stops:
        yield _NOTHING_LEFT


def _left_to_its_user(
    attempt: audit_pb2.Attempt, decision: audit_pb2.Decision | None, after: audit_pb2.Attempt | None
) -> bool:
    """It failed, should run again, and the advisor does nothing about it: it only watches, or must leave it alone, as
    policy may want of one that its time limit ended.
    """
    if decision is None or after is not None or attempt.state not in _FAILED:
        return False
    if decision.advice.reason == Reason.TIME_LIMIT:
        return True
    return decision.advice.action == common_pb2.ACTION_RESTART and (
        decision.advice.mode == common_pb2.MODE_MONITOR or not attempt.in_scope
    )


def _by_hand(attempt: audit_pb2.Attempt, avoid: Sequence[str]) -> str:
    """In the order that Slurm takes them: a job that has ended cannot be updated, one that waits for its start can."""
    job_id = attempt.attempt.job_id
    text = f"To do so yourself: scontrol requeue {job_id}"
    if avoid:
        nodes = ",".join(avoid)
        text += (
            f", then at once, before it starts: scontrol update JobId={job_id} ExcNodeList={nodes} (that replaces the "
            "list: add the nodes that it avoids already, if any)"
        )
    if not attempt.HasField("remembered_until"):
        return f"{text}."
    until = attempt.remembered_until.ToDatetime(UTC)
    return (
        f"{text}. Slurm remembers it until {until:%Y-%m-%d %H:%M:%S} UTC (MinJobAge); after that it can only be "
        "submitted again."
    )


def _without(decision: audit_pb2.Decision) -> str:
    out = left_out(decision)
    kept = [node for node in decision.advice.exclude_nodes if node not in out]
    avoids = f", and will not run on {_names(kept)}" if kept else ""
    return f"{avoids}; it could not be kept from {_names(list(out))}" if out else avoids


def _names(nodes: list[str]) -> str:
    more = f" and {len(nodes) - NODES_MAX} more" if len(nodes) > NODES_MAX else ""
    return ", ".join(nodes[:NODES_MAX]) + more
