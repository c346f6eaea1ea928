"""The reliability figures: what fails how often, and how long a recovery takes."""

from dataclasses import dataclass
from datetime import datetime

from advisor.service.dashboard.views.figures import Figure, share_of
from advisor.service.dashboard.views.shown import number_text, percent_text, plural, span_text, time_of, words
from advisor.v1 import report_pb2

_RTO_PARTS = ("detect", "decide", "act", "slurm_delay", "queue", "start", "catch_up")


@dataclass(frozen=True, slots=True, kw_only=True)
class PartLine:
    """One part of the time to recover: its median as a share of the sum of the medians, as a bar is drawn."""

    name: str
    told: str
    p90: str
    count: int
    from_share: float
    bar_share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeLine:
    size: str
    hours: str
    failures: int
    mttf: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupLine:
    name: str
    node_days: str
    failures: int
    rate: str
    ettr: str
    rto: str
    restarts: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LemonLine:
    cluster: str
    node: str
    score: float
    failures: int
    jobs: int
    chance: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReliabilityPage:
    since: datetime | None
    until: datetime | None
    figures: tuple[Figure, ...]
    parts: tuple[PartLine, ...]
    sizes: tuple[SizeLine, ...]
    checkpoint: tuple[str, ...]
    groups: tuple[GroupLine, ...]
    groups_left_out: int
    lemons: tuple[LemonLine, ...]
    definitions: tuple[str, ...]
    capped: bool


def reliability_page(report: report_pb2.ReliabilityReport) -> ReliabilityPage:
    every = report.all
    return ReliabilityPage(
        since=time_of(report, "since"),
        until=time_of(report, "until"),
        figures=_figures(every),
        parts=_parts(every),
        sizes=tuple(
            SizeLine(
                size=_size(row), hours=number_text(row.hours), failures=row.failures, mttf=_told(row.mttf_hours, "h")
            )
            for row in every.sizes
        ),
        checkpoint=_checkpoint(every.checkpoint_interval),
        groups=tuple(_group(item) for item in report.groups),
        groups_left_out=report.groups_left_out,
        lemons=tuple(
            LemonLine(
                cluster=item.cluster,
                node=item.node,
                score=item.score,
                failures=item.failures,
                jobs=item.jobs,
                chance=percent_text(item.fails_within_week) if item.HasField("fails_within_week") else "–",
            )
            for item in report.lemons
        ),
        definitions=tuple(report.definitions),
        capped=report.capped,
    )


def _figures(item: report_pb2.Figures) -> tuple[Figure, ...]:
    middle = (
        f"middle half {percent_text(item.ettr_low_quartile)} to {percent_text(item.ettr_high_quartile)}, "
        if item.HasField("ettr_low_quartile")
        else ""
    )
    return (
        Figure(
            name="ETTR: share of time with new progress",
            value=_ettr(item),
            note=f"{middle}of {plural(item.ettr_jobs, 'job')}",
        ),
        Figure(
            name="failures per 1,000 node-days",
            value=_told(item.failures_per_1000_node_days),
            note=f"{plural(item.failures, 'failure')} in {number_text(item.node_days)} node-days",
        ),
        Figure(
            name="of these by infrastructure",
            value=_told(item.infrastructure_failures_per_1000_node_days),
            note=_interval(item.infrastructure_failures_per_1000_node_days),
        ),
        Figure(
            name="RTO: fault to back where it was",
            value=_span(item.rto_seconds),
            note=_p90(item.rto_seconds),
        ),
        Figure(
            name="RPO: steps done again",
            value=_told(item.rpo_steps.median),
            note=f"{_span(item.rpo_seconds)} of work" if item.rpo_seconds.median.HasField("value") else "",
        ),
        Figure(
            name="restarts that worked",
            value=share_of(item.restart_success).told,
            note=_trials(item.restart_success),
        ),
        Figure(
            name="false alarms",
            value=share_of(item.false_alarms).told,
            note=_trials(item.false_alarms),
        ),
    )


def _parts(item: report_pb2.Figures) -> tuple[PartLine, ...]:
    medians = [
        (name, item.rto_parts_seconds[name])
        for name in _RTO_PARTS
        if name in item.rto_parts_seconds and item.rto_parts_seconds[name].median.HasField("value")
    ]
    whole = sum(spread.median.value for _, spread in medians) or 1.0
    parts, before = [], 0.0
    for name, spread in medians:
        value = spread.median.value
        parts.append(
            PartLine(
                name=words(name),
                told=span_text(value),
                p90=_p90(spread),
                count=spread.median.count,
                from_share=round(100 * before / whole, 1),
                bar_share=round(max(100 * value / whole, 0.8), 1),
            )
        )
        before += value
    return tuple(parts)


def _size(row: report_pb2.SizeFigures) -> str:
    if not row.HasField("gpus_from"):
        return "GPUs not known"
    if row.HasField("gpus_to") and row.gpus_to == row.gpus_from:
        return plural(row.gpus_from, "GPU")
    until = f" to {number_text(row.gpus_to)}" if row.HasField("gpus_to") else " and more"
    return f"{number_text(row.gpus_from)}{until} GPUs"


def _checkpoint(item: report_pb2.CheckpointInterval) -> tuple[str, ...]:
    if item.why_not or not item.HasField("daly_seconds"):
        return (f"No interval can be recommended: {item.why_not or 'too little is known'}.",)
    told = [f"Save every {span_text(item.daly_seconds)} (Daly), {span_text(item.young_seconds)} (Young)."]
    if item.HasField("low_seconds") and item.HasField("high_seconds"):
        told.append(
            f"With the interval of the failure rate: {span_text(item.low_seconds)} to {span_text(item.high_seconds)}."
        )
    if item.HasField("cost_seconds"):
        told.append(f"A save was seen to cost {span_text(item.cost_seconds)}, over {plural(item.saves, 'save')}.")
    return tuple(told)


def _group(item: report_pb2.Figures) -> GroupLine:
    return GroupLine(
        name=item.group or "–",
        node_days=number_text(item.node_days),
        failures=item.failures,
        rate=_told(item.failures_per_1000_node_days),
        ettr=_ettr(item),
        rto=_span(item.rto_seconds),
        restarts=share_of(item.restart_success).told,
    )


def _ettr(item: report_pb2.Figures) -> str:
    return f"{100 * item.ettr:.1f}\N{NO-BREAK SPACE}%" if item.HasField("ettr") else "–"


def _told(item: report_pb2.Estimate, unit: str = "") -> str:
    if not item.HasField("value"):
        return "–"
    return f"{_number(item.value)} {unit}".strip()


def _number(value: float) -> str:
    return number_text(value) if value >= 100 else f"{value:.1f}"


def _interval(item: report_pb2.Estimate) -> str:
    if not item.HasField("low") or not item.HasField("high"):
        return ""
    return f"95 %: {_number(item.low)} to {_number(item.high)}"


def _trials(item: report_pb2.Estimate) -> str:
    share = share_of(item)
    return f"{share.interval}, of {plural(item.count, 'case')}" if share.interval else plural(item.count, "case")


def _span(item: report_pb2.Spread) -> str:
    return span_text(item.median.value) if item.median.HasField("value") else "–"


def _p90(item: report_pb2.Spread) -> str:
    return f"9 of 10 within {span_text(item.p90)}, of {item.median.count}" if item.HasField("p90") else ""
