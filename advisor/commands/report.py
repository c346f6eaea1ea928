"""`advisor report`: what advice is worth, and how reliable the cluster is."""

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from advisor.client import action_name
from advisor.clock import SystemClock
from advisor.commands.decisions import connected
from advisor.commands.options import ConfigOption, SocketOption, given, given_category
from advisor.commands.output import CommandError, harmless, print_json, whole_document
from advisor.commands.pause import when
from advisor.commands.report_plots import plot_reliability, plot_shadow
from advisor.commands.report_text import reliability_lines, shadow_lines
from advisor.v1 import report_pb2

app = typer.Typer(rich_markup_mode=None, help="What advice is worth, and how reliable the cluster is.")

CASES = 1000


class ReportFormat(StrEnum):
    TABLE = "table"
    JSON = "json"
    CSV = "csv"


class By(StrEnum):
    CLUSTER = "cluster"
    PARTITION = "partition"
    USER = "user"
    JOB = "job"


SinceOption: TypeAlias = Annotated[str, typer.Option(help="From when on: 30d, 12h, or a time such as 2026-05-01.")]
UntilOption: TypeAlias = Annotated[str, typer.Option(help="Until when. Default: now.")]
ClusterOption: TypeAlias = Annotated[str | None, typer.Option(help="Only this cluster.")]
PartitionOption: TypeAlias = Annotated[str | None, typer.Option(help="Only this partition.")]
UserOption: TypeAlias = Annotated[str | None, typer.Option(help="Only this user's jobs.")]
JobOption: TypeAlias = Annotated[str | None, typer.Option(help="Only this job id.")]
FormatOption: TypeAlias = Annotated[ReportFormat, typer.Option("--format", help="How to print.", case_sensitive=False)]
PlotOption: TypeAlias = Annotated[Path | None, typer.Option("--plot", help="Also draw it, into this PNG file.")]


@app.command()
def shadow(
    since: SinceOption = "30d",
    until: UntilOption = "",
    cluster: ClusterOption = None,
    partition: PartitionOption = None,
    user: UserOption = None,
    job: JobOption = None,
    category: Annotated[str | None, typer.Option(help="Only this category of failure.")] = None,
    form: FormatOption = ReportFormat.TABLE,
    plot: PlotOption = None,
    socket: SocketOption = None,
    configuration: ConfigOption = None,
) -> None:
    """What was advised against what people did: agreement per category, with every disagreement.

    What people did is inferred from the scheduler; `advisor shadow record` says it where that cannot tell.

    \b
    Examples:
      advisor report shadow --since 14d
      advisor report shadow --category gpu_hardware --format csv > cases.csv
      advisor report shadow --plot shadow.png
    """
    request = report_pb2.GetShadowReportRequest(
        cluster=given("--cluster", cluster),
        partition=given("--partition", partition),
        user=given("--user", user),
        job_id=given("--job", job),
        category=given_category(category),
        cases_max=CASES,
    )
    _span(request, since, until)
    with connected(socket, configuration) as client:
        report = client.shadow_report(request)
    match form:
        case ReportFormat.JSON:
            print_json(whole_document(report))
        case ReportFormat.CSV:
            print_csv([case_row(case) for case in report.cases])
        case ReportFormat.TABLE:
            _print_lines(shadow_lines(report, _where(request)))
    if plot is not None:
        plot_shadow(report, plot)


@app.command()
def reliability(
    since: SinceOption = "30d",
    until: UntilOption = "",
    by: Annotated[By | None, typer.Option(help="Also for each of these, those with most node-days first.")] = None,
    groups: Annotated[int, typer.Option(min=1, max=250, help="How many of them at most.")] = 20,
    cluster: ClusterOption = None,
    partition: PartitionOption = None,
    user: UserOption = None,
    job: JobOption = None,
    form: FormatOption = ReportFormat.TABLE,
    plot: PlotOption = None,
    socket: SocketOption = None,
    configuration: ConfigOption = None,
) -> None:
    """Failures per 1,000 node-days, MTTF by job size, ETTR, RTO, RPO, restart success, lemons, how often to save.

    Every figure says what it rests on; what was not measured stays empty. docs/reliability.md defines each.

    \b
    Examples:
      advisor report reliability
      advisor report reliability --by partition --since 90d
      advisor report reliability --job 4711 --format json
    """
    request = report_pb2.GetReliabilityRequest(
        cluster=given("--cluster", cluster),
        partition=given("--partition", partition),
        user=given("--user", user),
        job_id=given("--job", job),
        by=by or "",
        groups_max=groups,
    )
    _span(request, since, until)
    with connected(socket, configuration) as client:
        report = client.reliability(request)
    match form:
        case ReportFormat.JSON:
            print_json(whole_document(report))
        case ReportFormat.CSV:
            print_csv([_figures(item) for item in (report.all, *report.groups)])
        case ReportFormat.TABLE:
            _print_lines(reliability_lines(report, _where(request), by or ""))
    if plot is not None:
        plot_reliability(report, plot)


def _span(
    request: report_pb2.GetShadowReportRequest | report_pb2.GetReliabilityRequest, since: str, until: str
) -> None:
    now = SystemClock().now()
    request.since.FromDatetime(past("--since", since, now))
    if until:
        request.until.FromDatetime(past("--until", until, now))


def past(option: str, text: str, now: datetime) -> datetime:
    """So long ago, or as given; without a zone it is in this host's."""
    ahead: timedelta = when(text, now, option) - now
    written_as_span = text.strip()[-1:] in {"m", "h", "d"}
    moment = now - ahead if written_as_span else now + ahead
    if moment > now:
        raise CommandError(f"{option} {text}: lies ahead", code=2)
    return moment


def _where(request: report_pb2.GetShadowReportRequest | report_pb2.GetReliabilityRequest) -> str:
    fields = (("cluster", request.cluster), ("partition", request.partition), ("user", request.user))
    named = [f"{word} {value}" for word, value in (*fields, ("job", request.job_id)) if value]
    return ", ".join(named) or "all clusters"


def _print_lines(lines: Iterable[str]) -> None:
    for line in lines:
        print(harmless(line))


def print_csv(rows: Sequence[Mapping[str, object]]) -> None:
    """Text that a spreadsheet would run as a formula is quoted with an apostrophe: users choose names."""
    if not rows:
        return
    out = io.StringIO()
    writer = csv.DictWriter(out, fieldnames=list(rows[0]), lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({name: _cell(value) for name, value in row.items()})
    print(out.getvalue(), end="")


def _cell(value: object) -> object:
    if not isinstance(value, str):
        return "" if value is None else value
    text = harmless(value).replace("\n", " ")
    return f"'{text}" if text[:1] in {"=", "+", "-", "@"} else text


def case_row(case: report_pb2.ShadowCase) -> Mapping[str, object]:
    return {
        "cluster": case.attempt.cluster,
        "job_id": case.attempt.job_id,
        "attempt": case.attempt.attempt,
        "user": case.attempt.user,
        "partition": case.partition,
        "category": case.category,
        "outcome": case.outcome,
        "advised": action_name(case.advised),
        "reason": case.reason,
        "advised_at": case.advised_at.ToDatetime(UTC).isoformat() if case.HasField("advised_at") else "",
        "our_nodes": " ".join(case.our_nodes),
        "did": case.did,
        "did_at": case.did_at.ToDatetime(UTC).isoformat() if case.HasField("did_at") else "",
        "sure": round(case.sure, 2),
        "their_nodes": " ".join(case.their_nodes),
        "resubmitted_as": case.resubmitted_as,
        "recorded_by": case.recorded_by,
        "delay_seconds": case.delay_seconds if case.HasField("delay_seconds") else None,
        "gpus": case.gpus if case.HasField("gpus") else None,
        "autonomous": case.autonomous,
        "why": case.why,
        "decision_id": case.decision_id,
        "url": case.url,
    }


def _figures(item: report_pb2.Figures) -> Mapping[str, object]:
    row: dict[str, object] = {
        "group": item.group,
        "attempts": item.attempts,
        "node_days": round(item.node_days, 4),
        "gpu_hours": round(item.gpu_hours, 2),
        "failures": item.failures,
    }
    estimates = {
        "failures_per_1000_node_days": item.failures_per_1000_node_days,
        "infrastructure_failures_per_1000_node_days": item.infrastructure_failures_per_1000_node_days,
        "restart_success": item.restart_success,
        "false_alarms": item.false_alarms,
        "rto_seconds": item.rto_seconds.median,
        "rpo_seconds": item.rpo_seconds.median,
        "rpo_steps": item.rpo_steps.median,
    }
    for name, estimate in estimates.items():
        row[name] = estimate.value if estimate.HasField("value") else None
        row[f"{name}_low"] = estimate.low if estimate.HasField("low") else None
        row[f"{name}_high"] = estimate.high if estimate.HasField("high") else None
        row[f"{name}_count"] = estimate.count
    row["ettr"] = item.ettr if item.HasField("ettr") else None
    interval = item.checkpoint_interval
    row["checkpoint_interval_seconds"] = interval.daly_seconds if interval.HasField("daly_seconds") else None
    return row
