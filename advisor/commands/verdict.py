"""One verdict as text, for whoever is woken at night: what happened, who it was, what to do; then why to believe it.

The first three lines are to be read in ten seconds. What a log said is shown as it is, and only made harmless.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from advisor.commands.output import one_line
from advisor.core.amounts import many
from advisor.core.document import own_word_alone
from advisor.core.symptoms import RANKS_MAX
from advisor.core.words import Category, Reason

TIMELINE_MAX = 12
EVIDENCE_MAX = 6
TEXT_CHARS = 200
TITLE_CHARS = 90
NAMES_MAX = 16

# Why, in few words, where the table's own are about the table. The others are said by the explanation.
_BECAUSE: Mapping[str, str] = {
    Reason.COMPLETED: "its training was done",
    Reason.USER_CANCELLED: "somebody cancelled it, and that stays so",
    Reason.STOPPED: "we stopped it ourselves, while it waited",
    Reason.STOP_UNREPORTED: "our stop was out, and not reported back: ended by it, or by somebody else",
    Reason.HELD_BY_OTHERS: "somebody holds it",
    Reason.ALREADY_REQUEUED: "it is in the queue again already",
    Reason.AWAITING_EXIT: "it still runs: it may recover, or exit",
    Reason.IN_JOB_RESTART: "it restarted its ranks itself",
    Reason.NEXT_CHECKPOINT: "it is slow, not broken: wait for its next checkpoint",
    Reason.SCHEDULER_EVENT: "the scheduler ended it, which spends no retry",
    Reason.NODES_IMPLICATED: "the evidence is against these nodes",
    Reason.TRUSTED_FATAL: "the hardware under it is gone, and it makes no progress",
    Reason.STORAGE_DELAY: "after a pause: shared storage is away, and no node is to blame",
    Reason.CONFIRMATION_RETRY: "once, to be sure: it looks as if it fails again",
    Reason.HANG: "it does nothing any more",
    Reason.WITHIN_BUDGET: "nothing says that it fails again",
    Reason.CERTAIN_STARTUP_ERROR: "it is certain to fail the same way again",
}


def verdict_text(document: Mapping[str, Any], titles: Mapping[str, str]) -> str:
    """The document `advisor.analysis/1` as text. `titles`: of signals and of rules, by id."""
    incident, attribution, advice = document["incident"], document["attribution"], document["advice"]
    sure = f"{round(attribution['confidence'] * 100)} %"
    if own_word_alone(attribution):
        sure += ", by its own output alone"
    kind = "cancel" if advice["reason"] == Reason.USER_CANCELLED else incident["kind"]
    lines = [
        f"what  {kind}: {attribution['root_cause']}  [{attribution['category']}, {sure}]",
        f"who   {_who(attribution['implicated'])}",
        f"do    {_what(advice, incident, attribution)}",
    ]
    evidence = attribution["evidence"][:EVIDENCE_MAX]
    if evidence:
        lines += ["", "evidence"]
        lines += [f"  {_place(signal)}  {signal['text'][:TEXT_CHARS]}" for signal in evidence]
    timeline = incident["signals"][:TIMELINE_MAX]
    if len(timeline) > 1:
        lines += ["", "timeline"]
        lines += [
            f"  {_clock(signal['at']):19}  {signal['role']:10}  {_whose(signal):14}  {_said(signal, titles)}"
            for signal in timeline
        ]
        left = len(incident["signals"]) - len(timeline) + incident["signals_left_out"]
        if left:
            lines.append(f"  … {left} more")
    alternatives = attribution["alternatives"][:1]
    if alternatives:
        other = alternatives[0]
        lines += ["", f"runner-up  {other['category']}: {other['root_cause']} – {other['why_not']}"]
    lines += ["", f"sources    {_sources(attribution['sources'])}"]
    return "\n".join(one_line(line) for line in lines)


def _who(implicated: Mapping[str, Any]) -> str:
    parts = []
    for word in ("node", "rank", "gpu"):
        names = implicated[f"{word}s"]
        if names:
            shown = ", ".join(map(str, names[:NAMES_MAX]))
            least = "at least " if word == "rank" and len(names) >= RANKS_MAX else ""  # no more are kept
            more = f" and {least}{len(names) - NAMES_MAX} more" if len(names) > NAMES_MAX else ""
            parts.append(f"{word}{'s' if len(names) > 1 else ''} {shown}{more}")
    return "; ".join(parts) or "nobody in particular"


def _what(advice: Mapping[str, Any], incident: Mapping[str, Any], attribution: Mapping[str, Any]) -> str:
    """The action first. Where nothing was seen that would deserve to be called healthy, nothing calls it so."""
    action, reason = advice["action"], advice["reason"]
    nodes = f" without {', '.join(advice['exclude_nodes'])}" if advice["exclude_nodes"] else ""
    if reason == Reason.HEALTHY:
        told = attribution["category"] != "none" or attribution["confidence"] >= 0.5
        quiet = "it goes on" if attribution["category"] != "none" else "nothing failed"
        return f"{action}: {quiet}" if told else f"{action}: {attribution['root_cause']}"
    because = _BECAUSE.get(reason) or str(advice["explanation"]).rstrip(".")
    if reason == Reason.AWAITING_EXIT and incident["kind"] == "divergence":
        because = "it still runs, on numbers that are lost"
    if reason == Reason.HANG and incident["ended"]:
        because = "it hung until it was ended"
    if reason == Reason.CERTAIN_STARTUP_ERROR and attribution["category"] == Category.STORAGE:
        because = "it fails the same way again until somebody makes room"
    if reason == Reason.NODES_IMPLICATED and len(advice["exclude_nodes"]) == 1:
        because = "the evidence points at that node"
    resume = f"; its newest good checkpoint is of step {advice['resume_step']}" if advice.get("resume_step") else ""
    return f"{action}{nodes}: {because}{resume}"


def _place(signal: Mapping[str, Any]) -> str:
    return f"{signal['file']}:{signal['line']}" if signal["file"] else str(signal["trust"])


def _whose(signal: Mapping[str, Any]) -> str:
    if signal["node"]:
        return str(signal["node"])
    return f"rank {signal['rank']}" if signal["rank"] is not None else ""


def _said(signal: Mapping[str, Any], titles: Mapping[str, str]) -> str:
    times = f" ×{signal['count']}" if signal["count"] > 1 else ""
    title = titles.get(signal["id"], titles.get(signal["rule"], "")) if signal["file"] else signal["text"]
    short = title if len(title) <= TITLE_CHARS else title[: TITLE_CHARS - 1] + "…"
    return f"{short}{times}  ({signal['rule']})" if short else f"{signal['rule']}{times}"


def _clock(at: str | None) -> str:
    """Seconds of UTC are enough to compare by eye."""
    return datetime.fromisoformat(at).astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S") if at else "-"


def _sources(sources: Mapping[str, Any]) -> str:
    parts = []
    for name, source in sources.items():
        if not source["available"]:
            parts.append(f"{name} ({source['reason']})")
        else:
            foreign = f", {source['foreign']} foreign" if source["foreign"] else ""
            wrong = f"; {source['problems'][0]}" if source["problems"] else ""
            parts.append(f"{name} ({many(source['lines'], 'line')}{foreign}{wrong})")
    return ", ".join(parts) or "none"
