"""Reports as text of at most 80 columns: small tables, then what disagrees, then what the figures mean."""

import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC

from google.protobuf.timestamp_pb2 import Timestamp

from advisor.client import action_name
from advisor.commands.output import one_line
from advisor.core.amounts import many
from advisor.plain_text import seconds_text
from advisor.v1 import report_pb2

COLUMNS = 80
_CASES_SHOWN = 20
_NODES_SHOWN = 20
_PARTS = (
    ("detect", "fault visible, detected"),
    ("decide", "detected, advised"),
    ("act", "advised, requeued"),
    ("slurm_delay", "requeued, eligible"),
    ("queue", "eligible, running"),
    ("start", "running, first step"),
    ("catch_up", "first step, caught up"),
)
_NOT_COUNTED = (
    "unclear: what people did, or whether they were right, cannot be told",
    "waiting: there is time left for people to act",
    "no advice: people were faster, or there was nothing to advise",
    "nobody's: no person did it, but Slurm, the job's own script, or the advisor",
    "ours stood; undone: the advisor acted, and people let it be; or took it back",
)
_SAVED = (
    "held: hours in which a hung job kept its GPUs until people restarted it",
    "waited: hours until people restarted one that had let them go",
    "wasted: hours of later attempts that failed as was foreseen",
    "unknown: jobs whose GPUs are not known, in none of these sums",
    "bad; good; open: of the nodes to be avoided, what they proved to be",
)
DISAGREED = ("we_restart", "they_restart", "other_nodes", "corrected")


def shadow_lines(report: report_pb2.ShadowReport, where: str) -> Iterator[str]:
    yield f"shadow report, {_span(report.since, report.until)}, {where}"
    if report.capped:
        yield "There were more attempts than are looked at: the oldest are left out."
    yield ""
    if not report.categories:
        yield "No attempt with anything wrong in that time: there is nothing to compare."
        yield "Further back: --since 90d. Whether jobs are seen and read at all: advisor doctor."
        return
    yield from _columns(
        ("category", "agreed", "share", "95 % interval", "we", "they", "nodes", "corr."),
        (
            (
                row.category,
                f"{row.agreed} of {row.agreement.count}",
                percent(row.agreement.value) if row.agreement.HasField("value") else "-",
                _interval(row.agreement),
                str(row.we_restart),
                str(row.they_restart),
                str(row.other_nodes),
                str(row.corrected),
            )
            for row in report.categories
        ),
    )
    yield "we: only we would have restarted; they: only people did; nodes: they avoided"
    yield "others; corr.: an operator corrected the verdict"
    yield from _avoided(report.categories)
    yield ""
    yield from _columns(
        ("not counted", "unclear", "waiting", "no advice", "nobody's", "ours stood", "undone"),
        (
            (
                row.category,
                *(str(value) for value in (row.unclear, row.waiting, row.no_advice, row.nobodys)),
                str(row.stood),
                str(row.undone),
            )
            for row in report.categories
        ),
    )
    yield from _NOT_COUNTED
    yield ""
    yield from _columns(
        ("GPU-hours; nodes", "held", "waited", "wasted", "unknown", "bad", "good", "open"),
        (
            (
                row.category,
                *(f"{hours:.1f}" for hours in (row.gpu_hours_held, row.gpu_hours_waited, row.gpu_hours_wasted)),
                *(str(value) for value in (row.without_gpus, row.nodes_bad, row.nodes_good, row.nodes_open)),
            )
            for row in report.categories
        ),
    )
    yield from _SAVED
    yield from _earned(report.earned)
    yield from _disagreements(report)
    yield from _nodes(report.nodes)
    yield ""
    yield from _sentences("what these figures rest on", report.assumptions)


def _avoided(categories: Iterable[report_pb2.ShadowCategory]) -> Iterator[str]:
    """Which nodes restarts kept from: the agreement alone does not tell."""
    rows = [
        (row.category, str(row.agreed_same_nodes), str(row.agreed_ours_alone), str(row.other_nodes))
        for row in categories
        if row.agreed_same_nodes or row.agreed_ours_alone or row.other_nodes
    ]
    if rows:
        yield ""
        yield from _columns(("restarts that avoid nodes", "same nodes", "only ours", "other nodes"), rows)
        yield "same nodes, only ours (people avoided none): agreed; other nodes: not"


def _earned(earned: Iterable[report_pb2.EarnedAutonomy]) -> Iterator[str]:
    items = list(earned)
    if items:
        yield ""
        yield "earned autonomy"
    for item in items:
        is_now = "autonomous" if item.held else "in monitor mode again"
        text = f"{item.category} on {item.cluster}: {is_now} since {_when(item.since)}; {item.why}"
        yield from _wrapped(text, "  ")


def _disagreements(report: report_pb2.ShadowReport) -> Iterator[str]:
    cases = [case for case in report.cases if case.outcome in DISAGREED]
    yield ""
    if not cases:
        yield "no disagreement"
        return
    yield "disagreements, newest first"
    for case in cases[:_CASES_SHOWN]:
        yield from _case(case)
    left_out = len(cases) - _CASES_SHOWN
    if left_out > 0:
        yield f"  {left_out} more: --format json or csv has them"


def _case(case: report_pb2.ShadowCase) -> Iterator[str]:
    who = f"{case.attempt.job_id}#{case.attempt.attempt} of {case.attempt.user}"
    ours = f"{action_name(case.advised)}{' without ' + ', '.join(case.our_nodes) if case.our_nodes else ''}"
    did = "and carried it out" if case.did == "advisor" else f"people {case.did}"
    theirs = f"{did}{' without ' + ', '.join(case.their_nodes) if case.their_nodes else ''}"
    after = f" {seconds_text(case.delay_seconds)} later" if case.HasField("delay_seconds") else ""
    head = f"{_when(case.advised_at)}  {who}  {case.category}: we {ours}, {theirs}{after}"
    yield from _wrapped(head, "  ")
    yield from _wrapped(f"{case.outcome}, {case.sure:.0%} sure: {case.why}", "    ")
    yield f"    decision {case.decision_id}"
    if case.url:
        yield f"    {one_line(case.url)}"  # an address is not broken


def _nodes(nodes: Sequence[report_pb2.ShadowNode]) -> Iterator[str]:
    if not nodes:
        return
    yield ""
    yield "nodes that restarts were to avoid"
    for item in sorted(nodes, key=lambda item: (item.proof, item.cluster, item.node))[:_NODES_SHOWN]:
        yield from _wrapped(f"{item.node} ({item.category}, {_when(item.at)}): {item.proof}: {item.why}", "  ")
    if len(nodes) > _NODES_SHOWN:
        yield f"  {len(nodes) - _NODES_SHOWN} more: --format json or csv has them"


def reliability_lines(report: report_pb2.ReliabilityReport, where: str, by: str) -> Iterator[str]:
    yield f"reliability, {_span(report.since, report.until)}, {where}"
    if report.capped:
        yield "There were more attempts than are looked at: the oldest are left out."
    yield ""
    if not report.all.attempts:
        yield "No attempt ran in that time: there is nothing to say."
        return
    yield from _figures(report.all)
    if report.groups:
        yield ""
        yield from _groups(report.groups, by)
        if report.groups_left_out:
            yield f"{report.groups_left_out} groups with fewer node-days are left out"
    yield from _lemons(report.lemons)
    yield ""
    yield from _sentences("what these figures mean", report.definitions)


def _figures(item: report_pb2.Figures) -> Iterator[str]:
    hours = f"{item.gpu_hours:,.1f} GPU-hours"
    unknown = f" ({many(item.without_gpus, 'attempt')} with unknown GPUs left out)" if item.without_gpus else ""
    yield from _wrapped(f"{many(item.attempts, 'attempt')}, {item.node_days:,.2f} node-days, {hours}{unknown}", "")
    yield ""
    rows = [
        ("failures per 1,000 node-days", *_estimate(item.failures_per_1000_node_days, "failures")),
        ("  by infrastructure", *_estimate(item.infrastructure_failures_per_1000_node_days, "failures")),
        ("restart success", *_share(item.restart_success, "restarts")),
        ("false alarms", *_share(item.false_alarms, "left alone")),
        ("ETTR", *_ettr(item)),
        ("RTO", *_spread(item.rto_seconds)),
        *((f"  {says}", *_spread(item.rto_parts_seconds[name])) for name, says in _PARTS),
        ("RPO, time to do again", *_spread(item.rpo_seconds)),
        ("RPO, steps", *_steps(item.rpo_steps)),
    ]
    yield from _columns(("figure", "value", "95 % interval", "from"), rows)
    yield ""
    yield from _columns(
        ("MTTF by job size", "hours run", "failures", "MTTF", "95 % interval"),
        (
            (
                _size(row),
                f"{row.hours:,.1f}",
                str(row.failures),
                _hours(row.mttf_hours.value) if row.mttf_hours.HasField("value") else "-",
                _bounds(row.mttf_hours, _hours),
            )
            for row in item.sizes
        ),
    )
    yield ""
    yield from _wrapped(_checkpoint(item.checkpoint_interval), "")


def _groups(groups: Iterable[report_pb2.Figures], by: str) -> Iterator[str]:
    yield from _columns(
        (by, "node-days", "failures/1,000", "95 % interval", "ETTR", "restarts ok", "RTO"),
        (
            (
                one_line(item.group)[:18] or "-",
                f"{item.node_days:,.1f}",
                *_estimate(item.failures_per_1000_node_days, "")[:2],
                percent(item.ettr) if item.HasField("ettr") else "-",
                _share(item.restart_success, "")[0],
                _spread(item.rto_seconds)[0],
            )
            for item in groups
        ),
    )


def _lemons(lemons: Sequence[report_pb2.LemonNode]) -> Iterator[str]:
    yield ""
    if not lemons:
        yield "no lemon nodes"
        return
    yield from _columns(
        ("lemon node", "cluster", "score", "failures", "jobs", "fails in a week"),
        (
            (
                item.node,
                item.cluster,
                f"{item.score:.2f}",
                str(item.failures),
                str(item.jobs),
                percent(item.fails_within_week) if item.HasField("fails_within_week") else "-",
            )
            for item in lemons
        ),
    )


def _checkpoint(item: report_pb2.CheckpointInterval) -> str:
    if item.why_not:
        return f"Checkpoint interval: not enough is known ({item.why_not})."
    cost, mttf = seconds_text(item.cost_seconds), _hours(item.mttf_hours.value)
    return (
        f"Checkpoint interval: save every {seconds_text(item.daly_seconds)} (Daly; {seconds_text(item.low_seconds)} to "
        f"{seconds_text(item.high_seconds)} for the bounds of the failure rate; Young: "
        f"{seconds_text(item.young_seconds)}), from {cost} per save ({item.saves} seen) and {mttf} between failures."
    )


def _estimate(item: report_pb2.Estimate, what: str) -> tuple[str, str, str]:
    if not item.HasField("value"):
        return "-", "-", "nothing measured"
    return f"{item.value:.2f}", _bounds(item, lambda value: f"{value:.2f}"), f"{item.count} {what}"


def _share(item: report_pb2.Estimate, what: str) -> tuple[str, str, str]:
    if not item.HasField("value"):
        return "-", "-", "nothing measured"
    return percent(item.value), _interval(item), f"{item.count} {what}"


def _ettr(item: report_pb2.Figures) -> tuple[str, str, str]:
    if not item.HasField("ettr"):
        return "-", "-", "no job with readable progress"
    low, high = item.ettr_low_quartile * 100, item.ettr_high_quartile * 100
    return percent(item.ettr), "-", f"half of {item.ettr_jobs} jobs: {low:.0f} to {high:.0f} %"


def _spread(item: report_pb2.Spread) -> tuple[str, str, str]:
    middle = item.median
    if not middle.HasField("value"):
        return "-", "-", "nothing measured"
    ninth = f", 90 % within {seconds_text(item.p90)}" if item.HasField("p90") else ""
    return seconds_text(middle.value), _bounds(middle, seconds_text), f"{middle.count}{ninth}"


def _steps(item: report_pb2.Spread) -> tuple[str, str, str]:
    middle = item.median
    if not middle.HasField("value"):
        return "-", "-", "nothing measured"
    return f"{middle.value:g}", _bounds(middle, lambda value: f"{value:g}"), f"{middle.count}"


def _size(row: report_pb2.SizeFigures) -> str:
    if not row.HasField("gpus_from"):
        return "GPUs unknown"
    low, high = row.gpus_from, row.gpus_to
    return f"{low} GPUs" if low == high else f"{low} to {high} GPUs"


def _hours(hours: float) -> str:
    return f"{hours / 24:,.1f} d" if hours >= 48 else f"{hours:.1f} h"


def percent(share: float) -> str:
    return f"{share * 100:.0f} %"


def _interval(item: report_pb2.Estimate) -> str:
    if not item.HasField("low"):
        return "-"
    return f"{item.low * 100:.0f} to {item.high * 100:.0f} %"


def _bounds(item: report_pb2.Estimate, write: Callable[[float], str]) -> str:
    low = write(item.low) if item.HasField("low") else ""
    high = write(item.high) if item.HasField("high") else ""
    if low and high:
        return f"{low} to {high}"
    return f"at least {low}" if low else "-"


def _columns(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """The first column to the left, the others to the right, as wide as they must be and never beyond 80.

    What is longer than the first column can be goes on below.
    """
    table = [tuple(head), *(tuple(one_line(cell) for cell in row) for row in rows)]
    widths = [max(len(row[at]) for row in table) for at in range(len(head))]
    spare = COLUMNS - sum(widths)
    gap = max(1, min(2, spare // max(1, len(head) - 1)))
    over = sum(widths) + gap * (len(widths) - 1) - COLUMNS
    widths[0] = max(8, widths[0] - max(0, over))
    for row in table:
        first, *below = textwrap.wrap(row[0], widths[0], subsequent_indent="  ", break_on_hyphens=False) or [""]
        cells = [first.ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        yield (" " * gap).join(cells).rstrip()
        yield from below


def _sentences(title: str, sentences: Iterable[str]) -> Iterator[str]:
    yield title
    for sentence in sentences:
        yield from _wrapped(sentence, "  ")


def _wrapped(text: str, indent: str) -> Iterator[str]:
    yield from textwrap.wrap(
        one_line(text), COLUMNS, initial_indent=indent, subsequent_indent=indent + "  ", break_on_hyphens=False
    )


def _span(since: Timestamp, until: Timestamp) -> str:
    return f"{_when(since)} to {_when(until)}"


def _when(stamp: Timestamp) -> str:
    return f"{stamp.ToDatetime(UTC):%Y-%m-%d %H:%MZ}"
