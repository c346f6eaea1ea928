"""A decision as the JSON document `advisor.analysis/1`: what `analyze` prints and what is stored beside a decision."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from advisor.core.doubts import DOUBTED_MAX
from advisor.core.model import Attribution, Decision, Hypothesis, Isolation, Signal, Snapshot, SourceReport
from advisor.core.ranks import parse_ranks
from advisor.core.words import Category, Trust

SCHEMA = "advisor.analysis/1"
SIGNALS_MAX = 100
_OF_MACHINES = frozenset(
    {Category.GPU_HARDWARE, Category.NODE_HARDWARE, Category.INTERCONNECT, Category.SYSTEM_SOFTWARE}
)


def analysis_document(decision: Decision, snapshot: Snapshot) -> dict[str, Any]:
    """Plain values only, in a fixed order. Texts of logs are as they were: who prints them escapes them."""
    incident = decision.incident
    by_id = {signal.id: signal for signal in (*incident.signals, *snapshot.signals)}
    return {
        "schema": SCHEMA,
        "job": {
            "id": snapshot.job.job_id,
            "user": snapshot.job.user,
            "attempt": snapshot.attempt.number,
            "state": snapshot.attempt.state.value,
            "nodes": list(snapshot.attempt.nodes) if snapshot.attempt.nodes is not None else None,
        },
        "incident": {
            "kind": incident.kind.value,
            "summary": incident.summary,
            "ended": incident.ended,
            "visible_at": _time(incident.visible_at),
            "signals": [_signal(signal) for signal in incident.signals[:SIGNALS_MAX]],
            "signals_left_out": max(0, len(incident.signals) - SIGNALS_MAX),
        },
        "progress": _progress(snapshot),
        "attribution": _attribution(decision.attribution, by_id, snapshot),
        "isolation": _isolation(decision.isolation),
        "advice": {
            "action": decision.action.value,
            "exclude_nodes": list(decision.isolation.exclude_for_job) if decision.action.value == "restart" else [],
            "reason": decision.reason.value,
            "explanation": decision.explanation,
            "delay_until": _time(decision.delay_until),
            "resume_step": decision.resume_step,
            **({"order": decision.order, "ordered_by": decision.ordered_by} if decision.order else {}),
        },
    }


def own_word_alone(attribution: Mapping[str, Any]) -> bool:
    """Of a document's attribution: that a machine is to blame is the word of the job's output alone, which is what any
    program prints. How often such words are right is no measure of whether to believe the one who writes them.
    """
    trusts = {str(signal["trust"]) for signal in attribution.get("evidence", ())}
    blames = attribution.get("category") in _OF_MACHINES and float(attribution.get("confidence") or 0.0) > DOUBTED_MAX
    return blames and Trust.LOG in trusts and trusts <= {Trust.LOG, Trust.EXTERNAL}


def _attribution(attribution: Attribution, by_id: Mapping[str, Signal], snapshot: Snapshot) -> dict[str, Any]:
    return {
        "category": attribution.category.value,
        "root_cause": attribution.root_cause,
        "confidence": attribution.confidence,
        "trusted": attribution.trusted,
        "implicated": {
            "nodes": list(attribution.nodes),
            "ranks": list(attribution.ranks),
            "gpus": list(attribution.gpus),
        },
        "evidence": [_signal(by_id[name]) for name in attribution.evidence if name in by_id],
        "alternatives": [_alternative(item) for item in attribution.alternatives],
        "sources": {source.source: _source(source) for source in snapshot.sources},
        "fingerprint": attribution.fingerprint,
    }


def _alternative(item: Hypothesis) -> dict[str, Any]:
    return {
        "category": item.category.value,
        "root_cause": item.root_cause,
        "confidence": item.confidence,
        "nodes": list(item.nodes),
        "ranks": list(item.ranks),
        "why_not": item.why_not,
    }


def _isolation(isolation: Isolation) -> dict[str, Any]:
    return {
        "exclude_for_job": list(isolation.exclude_for_job),
        "isolate_for_cluster": list(isolation.isolate_for_cluster),
        "suspects": list(isolation.suspects),
        "withheld": [
            {"node": item.node, "reason": item.reason.value, "detail": item.detail} for item in isolation.withheld
        ],
    }


def _signal(signal: Signal) -> dict[str, Any]:
    ranks = sorted(parse_ranks(signal.fields.get("ranks", "")))
    return {
        "id": signal.id,
        "rule": signal.rule,
        "role": signal.role.value,
        "category": signal.category.value,
        "trust": signal.trust.value,
        "at": _time(signal.at),
        "rank": signal.rank,
        "ranks": signal.fields.get("ranks", "") if len(ranks) > 1 else "",
        "node": signal.nodes[0] if signal.nodes else None,
        "nodes": list(signal.nodes),
        "gpu": signal.gpu,
        "file": signal.file,
        "line": signal.line,
        "count": signal.count,
        "text": signal.text,
    }


def _source(source: SourceReport) -> dict[str, Any]:
    unavailable = source.unavailable
    return {
        "trust": source.trust.value,
        "available": unavailable is None,
        "reason": unavailable.reason.value if unavailable is not None else None,
        "detail": unavailable.detail if unavailable is not None else "",
        "newest_at": _time(source.newest_at),
        "lines": source.lines,
        "foreign": source.foreign,
        "capped": source.capped,
        "problems": list(source.problems),
    }


def _progress(snapshot: Snapshot) -> dict[str, Any]:
    progress = snapshot.progress
    return {
        "first_step": progress.first_step,
        "last_step": progress.last_step,
        "last_at": _time(progress.last_at),
        "interval_seconds": progress.interval_seconds,
        "checkpoint_step": progress.checkpoint_step,
        "in_job_restarts": progress.in_job_restarts,
        "finished": progress.finished,
    }


def _time(at: datetime | None) -> str | None:
    return at.isoformat() if at is not None else None
