"""How people are told of a decision: the sentences that the command line and the dashboard share."""

from collections.abc import Mapping
from datetime import UTC, timedelta
from typing import Any

from advisor.client import action_name, mode_name, reason_name, status_name
from advisor.v1 import audit_pb2, common_pb2, operator_pb2

# Why a source could not be read → what to do about it.
TO_DO_ABOUT: Mapping[str, str] = {
    "permission": "let the advisor's user read these files, by group or ACL (setfacl -m u:USER:r)",
    "missing": "check the path, and that the file system is mounted on this host",
    "not_regular": "the path must lead to a regular file",
    "timeout": "the file system does not answer: check its mount on this host",
    "not_configured": "configure the source, or accept verdicts without it",
    "refused": "check the owner and mode of the file and its folder: nobody but root may write a trusted log",
}

# What came of an advice, where the contract's words would be read otherwise.
OUTCOMES: Mapping[str, str] = {
    "observed": "the scheduler shows it",
    "monitor_mode": "monitor mode: nothing was touched",
    "agent_observes": "the agent is in observe mode: nothing was touched",
    "out_of_scope": "the job did not ask for it (not in scope)",
    "operator": "an operator took it back",
}

HELD_UP: Mapping[str, str] = {
    "paused": "a pause holds it up (advisor resume --why TEXT ends it)",
    "maintenance": "maintenance holds it up",
    "stop_file": "the stop file holds it up (remove it to go on)",
}


def isolation_state(item: operator_pb2.NodeIsolation) -> str:
    """How far it is. Drained is what the agent has seen drained by us: until then it is wanted."""
    if item.ended_by:
        return "ended"
    if item.dry_run:
        return "on paper"
    return "drained" if item.HasField("drained_at") else "wanted"


def drain_withheld(item: operator_pb2.NodeIsolation) -> str:
    """Why the agent has not drained the node, by what it says; "" where it has, or has not answered."""
    reason = reason_name(item.reason)
    if not reason or item.status == common_pb2.RECONCILIATION_STATUS_VERIFIED:
        return ""
    if reason == "agent_observes":
        said = item.detail if "agent.toml" in item.detail else "see mode and [isolation] mode in its agent.toml"
        return f"the agent does not drain {item.node}: {said}"
    detail = f": {item.detail}" if item.detail else ""
    return f"the agent has not drained {item.node}: {HELD_UP.get(reason, reason.replace('_', ' '))}{detail}"


def stop_file_text(agent: operator_pb2.AgentStatus) -> str:
    """That the agent's stop file is there, since when and why; "" where it is not."""
    if not agent.HasField("stop_file"):
        return ""
    said = agent.stop_file
    since = f", since {said.since.ToDatetime(UTC):%Y-%m-%d %H:%M:%S} UTC" if said.HasField("since") else ""
    return f"the stop file on {agent.host} keeps the agent of {agent.cluster} from acting{since}: {said.why}"


def own_tick_age(status: operator_pb2.Status) -> timedelta:
    """Of the replica that answers, whose ticks the rest of it counts. `status.tick_age` may be another's."""
    own = [item.tick_age for item in status.replicas if item.answering]
    return (own[0] if own else status.tick_age).ToTimedelta()


def what(advice: common_pb2.Advice) -> str:
    action = action_name(advice.action) or "none"
    if advice.action == common_pb2.ACTION_NONE or not advice.exclude_nodes:
        return action
    return f"{action} without {','.join(advice.exclude_nodes)}"


def left_out(decision: audit_pb2.Decision) -> tuple[str, ...]:
    """Nodes that were advised to be avoided and are not: the agent or the scheduler would not take them."""
    last = decision.reconciliations[-1] if decision.reconciliations else None
    return () if last is None else tuple(node for node in decision.advice.exclude_nodes if node in last.dropped_nodes)


def outcome(decision: audit_pb2.Decision) -> str:
    """What came of it, and why where the agent did not do it; in monitor mode, whether it would have acted."""
    status = status_name(decision.status) or "pending"
    reasons = [reason_name(item.reason) for item in decision.reconciliations if item.status == decision.status]
    why = reasons[-1] if reasons else ""
    if decision.advice.action == common_pb2.ACTION_NONE:
        return "nothing to do"
    if decision.undone:
        return "forgotten by the scheduler"
    missing = f", but {','.join(out)} could not be excluded" if (out := left_out(decision)) else ""
    if status == "verified":
        return f"applied; the scheduler shows it{missing}"
    told = f"{status}: {why}" if why else status
    if decision.advice.mode == common_pb2.MODE_AUTONOMOUS:
        return f"{told}{missing}"
    acting = "" if not decision.HasField("in_scope") else "would have acted" if decision.in_scope else "out of scope"
    known = told if "monitor_mode" in told else f"{mode_name(decision.advice.mode)} mode, {told}"
    return f"{known} ({acting})" if acting else known


def who(attribution: dict[str, Any]) -> str:
    implicated = attribution.get("implicated") or {}
    parts = []
    for word, key in (("node", "nodes"), ("GPU", "gpus"), ("rank", "ranks")):
        named = [str(item) for item in implicated.get(key) or []]
        if named:
            parts.append(
                f"{word}{'s' if len(named) > 1 else ''} {', '.join(named[:8])}{' …' if len(named) > 8 else ''}"
            )
    where = "; ".join(parts) or "no node is implicated"
    confidence = attribution.get("confidence")
    sure = f", confidence {confidence:.2f}" if isinstance(confidence, (int, float)) else ""
    return f"{where}  ({attribution.get('category', 'unknown')}{sure})"


def to_do(decision: audit_pb2.Decision) -> str:
    advice, status = decision.advice, status_name(decision.status)
    nodes = ", ".join(advice.exclude_nodes)
    by_hand = {
        common_pb2.ACTION_RESTART: f"requeue job {advice.attempt.job_id}"
        + (f" with {nodes} added to its excluded nodes" if nodes else ""),
        common_pb2.ACTION_STOP: f"keep job {advice.attempt.job_id} from running again, and tell {advice.attempt.user}",
    }.get(advice.action, "")
    if not by_hand:
        return "nothing"
    if decision.undone and advice.mode == common_pb2.MODE_AUTONOMOUS:
        return "nothing: the scheduler has forgotten what came of it, and newer advice says it again"
    done = {
        "verified": "nothing: done, and the scheduler shows it",
        "already_satisfied": "nothing: it was so already",
        "applied": "nothing: the scheduler accepted it, verification follows",
        "superseded": "nothing: newer advice replaced this",
    }
    if status in done:
        out = left_out(decision)
        return f"{done[status]}, but {', '.join(out)} could not be excluded" if out else done[status]
    if advice.mode != common_pb2.MODE_AUTONOMOUS:
        return f"yours (monitor mode touches nothing): {by_hand}"
    if status in {"", "pending"}:
        held = reason_name(decision.reconciliations[-1].reason) if decision.reconciliations else ""
        if held in HELD_UP:
            return f"nothing yet: {HELD_UP[held]}; after that the agent is to {by_hand}"
        return f"nothing yet: the agent is about to {by_hand}"
    return f"yours, if you agree (the agent did not): {by_hand}"


def setting_fields(item: operator_pb2.ModeSetting) -> list[tuple[str, str]]:
    """Which advice a mode setting is about; nothing where it is about all."""
    named = (
        ("cluster", item.cluster),
        ("partition", item.partition),
        ("account", item.account),
        ("job", item.job_id),
        ("category", item.category),
    )
    return [(word, value) for word, value in named if value]


def settled(modes: operator_pb2.ListModesResponse) -> bool:
    """Whether a setting is about everything: then default_mode is asked for nothing."""
    return any(not setting_fields(setting) for setting in modes.settings)
