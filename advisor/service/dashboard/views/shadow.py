"""The shadow report: what was advised against what people did."""

from dataclasses import dataclass
from datetime import datetime

from advisor.client import action_name
from advisor.service.dashboard.views.decisions import JobName, job_name
from advisor.service.dashboard.views.figures import Figure, Share, share_of
from advisor.service.dashboard.views.shown import (
    Chip,
    few,
    number_text,
    percent_text,
    plural,
    span_text,
    time_of,
    words,
)
from advisor.v1 import report_pb2

_OUTCOMES = {
    "agreed": Chip(text="agreed", tone="good"),
    "we_restart": Chip(text="we would restart, they did not", tone="warn"),
    "they_restart": Chip(text="we would not, they restarted", tone="bad"),
    "other_nodes": Chip(text="other nodes", tone="warn"),
    "corrected": Chip(text="corrected", tone="bad"),
}
_PROOFS = {
    "bad": Chip(text="proved bad", tone="good"),
    "good": Chip(text="proved good", tone="bad"),
    "open": Chip(text="open"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class CategoryLine:
    category: str
    agreement: Share
    agreed: int
    avoided: str  # which nodes people avoided of those that agreed restarts were to avoid
    we_restart: int
    they_restart: int
    other_nodes: int
    corrected: int
    not_counted: int
    saved: str
    nodes: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseLine:
    job: JobName
    decision_id: str
    category: str
    advised: str
    advised_at: datetime | None
    outcome: Chip
    did: str
    did_at: datetime | None
    delay: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ProvedNode:
    node: str
    cluster: str
    category: str
    decision_id: str
    at: datetime | None
    proof: Chip
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EarnedLine:
    cluster: str
    category: str
    state: Chip
    told: str
    since: datetime | None
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ShadowPage:
    since: datetime | None
    until: datetime | None
    figures: tuple[Figure, ...]
    categories: tuple[CategoryLine, ...]
    cases: tuple[CaseLine, ...]
    cases_left_out: int
    nodes: tuple[ProvedNode, ...]
    earned: tuple[EarnedLine, ...]
    assumptions: tuple[str, ...]
    capped: bool


def shadow_page(report: report_pb2.ShadowReport) -> ShadowPage:
    rows = report.categories
    counted = sum(_counted(row) for row in rows)
    agreed = sum(row.agreed for row in rows)
    held, waited = sum(row.gpu_hours_held for row in rows), sum(row.gpu_hours_waited for row in rows)
    wasted = sum(row.gpu_hours_wasted for row in rows)
    bad, good = sum(row.nodes_bad for row in rows), sum(row.nodes_good for row in rows)
    return ShadowPage(
        since=time_of(report, "since"),
        until=time_of(report, "until"),
        figures=(
            Figure(
                name="agreement with what people did",
                value=percent_text(agreed / counted) if counted else "–",
                note=f"{number_text(agreed)} of {plural(counted, 'case')}",
            ),
            Figure(
                name="GPU-hours saved, had we acted",
                value=number_text(held + waited) if held + waited else "–",
                note=f"{number_text(held)} held idle, {number_text(waited)} waited",
            ),
            Figure(
                name="GPU-hours wasted on attempts we would have stopped",
                value=number_text(wasted) if wasted else "–",
                note="",
            ),
            Figure(
                name="nodes we would have excluded",
                value=f"{bad} bad, {good} good",
                note="as later failures proved",
            ),
        ),
        categories=tuple(_category(row) for row in rows),
        cases=tuple(_case(item) for item in report.cases),
        cases_left_out=report.cases_left_out,
        nodes=tuple(
            ProvedNode(
                node=item.node,
                cluster=item.cluster,
                category=words(item.category),
                decision_id=item.decision_id,
                at=time_of(item, "at"),
                proof=_PROOFS.get(item.proof, Chip(text=words(item.proof))),
                why=item.why,
            )
            for item in report.nodes
        ),
        earned=tuple(_earned(item) for item in report.earned),
        assumptions=tuple(report.assumptions),
        capped=report.capped,
    )


def _counted(row: report_pb2.ShadowCategory) -> int:
    return row.agreed + row.we_restart + row.they_restart + row.other_nodes + row.corrected


def _category(row: report_pb2.ShadowCategory) -> CategoryLine:
    hours = row.gpu_hours_held + row.gpu_hours_waited
    nodes = [
        f"{count} {text}"
        for count, text in ((row.nodes_bad, "bad"), (row.nodes_good, "good"), (row.nodes_open, "open"))
        if count
    ]
    return CategoryLine(
        category=words(row.category),
        agreement=share_of(row.agreement),
        agreed=row.agreed,
        avoided=", ".join(
            f"{count} with {nodes}"
            for count, nodes in ((row.agreed_same_nodes, "the same nodes"), (row.agreed_ours_alone, "only ours"))
            if count
        ),
        we_restart=row.we_restart,
        they_restart=row.they_restart,
        other_nodes=row.other_nodes,
        corrected=row.corrected,
        not_counted=row.unclear + row.waiting + row.no_advice + row.nobodys,
        saved=number_text(hours) if hours else "–",
        nodes=", ".join(nodes) or "–",
    )


def _case(item: report_pb2.ShadowCase) -> CaseLine:
    did = "it was carried out" if item.did == "advisor" else words(item.did)
    if item.resubmitted_as:
        did = f"{did} as {item.resubmitted_as}"
    if item.their_nodes:
        did = f"{did} without {few(item.their_nodes, 4)}"
    advised = action_name(item.advised) or "none"
    if item.our_nodes:
        advised = f"{advised} without {few(item.our_nodes, 4)}"
    return CaseLine(
        job=job_name(item.attempt),
        decision_id=item.decision_id,
        category=words(item.category),
        advised=advised,
        advised_at=time_of(item, "advised_at"),
        outcome=_OUTCOMES.get(item.outcome, Chip(text=words(item.outcome))),
        did=did,
        did_at=time_of(item, "did_at"),
        delay=span_text(item.delay_seconds) if item.HasField("delay_seconds") else "",
        why=item.why,
    )


def _earned(item: report_pb2.EarnedAutonomy) -> EarnedLine:
    return EarnedLine(
        cluster=item.cluster,
        category=words(item.category),
        state=Chip(text="autonomous", tone="info") if item.held else Chip(text="not any more", tone="warn"),
        told=f"{item.agreed} of {item.counted} agreed, lower bound {percent_text(item.lower_bound)}",
        since=time_of(item, "since"),
        why=item.why,
    )
