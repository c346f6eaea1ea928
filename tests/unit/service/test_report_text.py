"""What `advisor report` prints: never wider than 80 columns, never a figure from nothing, never a hostile byte."""

import csv
import io
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from advisor.commands import report as report_command
from advisor.commands.output import CommandError
from advisor.commands.report_plots import plot_reliability, plot_shadow
from advisor.commands.report_text import reliability_lines, shadow_lines
from advisor.core.people import ShadowRules
from advisor.service.dashboard.views.shadow import shadow_page
from advisor.service.reports import DEFINITIONS, assumptions
from advisor.v1 import common_pb2, report_pb2

HOSTILE = "\x1b[31mred\u202e\nline"
CATEGORIES = ("gpu_out_of_memory", "host_out_of_memory", "scheduler_event", "interconnect")


def estimate(value: float, low: float, high: float, count: int) -> report_pb2.Estimate:
    return report_pb2.Estimate(value=value, low=low, high=high, count=count)


def case(**changes: Any) -> report_pb2.ShadowCase:
    values: dict[str, Any] = {
        "attempt": common_pb2.AttemptRef(cluster="alps", job_id="4711", attempt=0, user="ada"),
        "category": "gpu_out_of_memory",
        "outcome": "they_restart",
        "why": HOSTILE + " and a long explanation " * 8,
        "did": "requeued",
        "sure": 0.95,
        "decision_id": "0190a1b2-0000-7000-8000-000000000001",
        "url": "https://advisor.example.com/decisions/0190a1b2-0000-7000-8000-000000000001",
        "advised": common_pb2.ACTION_STOP,
        "our_nodes": [f"gpu-node-{n:04}" for n in range(12)],
        "delay_seconds": 4000.0,
    }
    return report_pb2.ShadowCase(**(values | changes))


def shadow(**changes: Any) -> report_pb2.ShadowReport:
    row = report_pb2.ShadowCategory(
        agreement=estimate(0.9312, 0.8871, 0.9612, 1_234),
        agreed=1_149,
        we_restart=1234,
        they_restart=123,
        other_nodes=456,
        corrected=12,
        unclear=99_999,
        nobodys=12_345,
        stood=1000,
        gpu_hours_held=123_456.7,
        gpu_hours_waited=98_765.4,
        gpu_hours_wasted=12_345.6,
        nodes_bad=123,
        nodes_good=45,
        nodes_open=678,
    )
    categories = []
    for name in CATEGORIES:
        item = report_pb2.ShadowCategory()
        item.CopyFrom(row)
        item.category = name
        categories.append(item)
    node = report_pb2.ShadowNode(node="gpu-node-0001", category="gpu_hardware", proof="bad", why="drained " * 20)
    earned = report_pb2.EarnedAutonomy(cluster="alps", category="gpu_hardware", held=True, why="30 of 30 " * 20)
    made = report_pb2.ShadowReport(
        categories=categories,
        cases=[case()],
        nodes=[node],
        assumptions=assumptions(ShadowRules()),
        earned=[earned],
        capped=True,
    )
    made.MergeFrom(report_pb2.ShadowReport(**changes))
    return made


def reliability() -> report_pb2.ReliabilityReport:
    spread = report_pb2.Spread(median=estimate(4321.0, 12.0, 98_765.0, 1234), p90=87_654.0)
    interval = report_pb2.CheckpointInterval(
        young_seconds=3220, daly_seconds=3180, low_seconds=1800, high_seconds=7300, cost_seconds=60, saves=400
    )
    interval.mttf_hours.CopyFrom(estimate(24.0, 10.0, 80.0, 12))
    figures = report_pb2.Figures(
        group="a-partition-with-a-very-long-name" + HOSTILE,
        attempts=123_456,
        node_days=1_234_567.8,
        gpu_hours=987_654_321.0,
        without_gpus=12,
        failures_per_1000_node_days=estimate(6.512, 5.123, 8.234, 1234),
        infrastructure_failures_per_1000_node_days=estimate(2.34, 1.9, 3.1, 456),
        ettr=0.9712,
        ettr_jobs=1234,
        ettr_low_quartile=0.9,
        ettr_high_quartile=0.99,
        rto_seconds=spread,
        rto_parts_seconds=dict.fromkeys(
            ("detect", "decide", "act", "slurm_delay", "queue", "start", "catch_up"), spread
        ),
        rpo_seconds=spread,
        rpo_steps=spread,
        restart_success=estimate(0.83, 0.71, 0.91, 123),
        false_alarms=estimate(0.04, 0.01, 0.09, 321),
        sizes=[
            report_pb2.SizeFigures(
                gpus_from=2049, gpus_to=4096, hours=123_456.7, failures=99, mttf_hours=estimate(1247, 1000, 1500, 99)
            ),
            report_pb2.SizeFigures(hours=1.0, mttf_hours=report_pb2.Estimate(low=0.3)),
        ],
        checkpoint_interval=interval,
    )
    return report_pb2.ReliabilityReport(
        all=figures,
        groups=[figures],
        groups_left_out=3,
        lemons=[report_pb2.LemonNode(node="gpu-node-0001", cluster="alps", score=3.1, failures=4, jobs=9)],
        definitions=DEFINITIONS,
    )


def test_tables_fit_eighty_columns() -> None:
    """With numbers as large as they come; only an address may be longer, since it must not be broken."""
    lines = [*shadow_lines(shadow(), "cluster alps, user ada"), *reliability_lines(reliability(), "all", "partition")]
    assert [line for line in lines if len(line) > 80 and "://" not in line] == []
    assert all(any(line.startswith(f"{name} ") for line in lines) for name in CATEGORIES)  # none is cut short
    assert "\x1b" not in "".join(lines)
    assert "\u202e" not in "".join(lines)


def test_both_kinds_of_disagreement_are_linked_to_their_decisions() -> None:
    """The decision's id and address follow the case; what agrees is not listed."""
    listed = list(shadow_lines(shadow(cases=[case(outcome="agreed", did="requeued")]), "all"))
    text = "\n".join(listed)
    assert text.count("decision 0190a1b2") == 1
    assert "https://advisor.example.com/decisions/0190a1b2-0000-7000-8000-000000000001" in text
    flat = " ".join(text.split())
    assert "we stop without gpu-node-0000" in flat
    assert "67 min later" in flat


def test_what_was_carried_out_is_not_told_as_done_by_people() -> None:
    """Nobody is called "people advisor"."""
    ours = shadow(cases=[case(did="advisor", outcome="we_restart", advised=common_pb2.ACTION_RESTART, our_nodes=[])])
    text = " ".join(" ".join(shadow_lines(ours, "alps")).split())
    assert "we restart, and carried it out" in text
    assert "people advisor" not in text


def test_which_nodes_agreed_restarts_avoided_is_told_beside() -> None:
    """In the text and in the dashboard; nothing is said where no restart was to avoid any."""
    row = report_pb2.ShadowCategory(category="gpu_hardware", agreed=8, agreed_same_nodes=5, agreed_ours_alone=3)
    report = report_pb2.ShadowReport(categories=[row, report_pb2.ShadowCategory(category="unknown", agreed=1)])
    text = list(shadow_lines(report, "alps"))
    at = next(at for at, line in enumerate(text) if line.startswith("restarts that avoid nodes"))
    assert text[at].split("  ")[-1].strip() == "other nodes"
    assert text[at + 1].split() == ["gpu_hardware", "5", "3", "0"]
    assert text[at + 2].startswith("same nodes, only ours (people avoided none): agreed")
    assert [line.avoided for line in shadow_page(report).categories] == ["5 with the same nodes, 3 with only ours", ""]
    row.ClearField("agreed_same_nodes")
    row.ClearField("agreed_ours_alone")
    quiet = report_pb2.ShadowReport(categories=[row])
    assert not any("avoid nodes" in line for line in shadow_lines(quiet, "alps"))


def test_every_column_of_the_shadow_report_is_explained_in_it() -> None:
    """A line each below its table: nobody has to look for what `nobody's` counts."""
    text = list(shadow_lines(shadow(), "alps"))
    told = {word.strip() for line in text for word in line.partition(":")[0].split(";") if ": " in line}
    for title in ("not counted", "GPU-hours; nodes"):
        (head,) = [line for line in text if line.startswith(title)]
        columns = re.split(r"  +", head.strip())[1:]
        assert len(columns) >= 6
        assert set(columns) <= told


def test_a_label_is_never_cut() -> None:
    """A long figure beside it breaks the label over lines."""
    report = reliability()
    report.all.failures_per_1000_node_days.CopyFrom(estimate(123456.79, 77567.34, 17070340.23, 1))
    report.all.rto_seconds.p90 = 31_536_000
    text = list(reliability_lines(report, "alps", "partition"))
    assert all(len(line) <= 80 for line in text)
    at = next(at for at, line in enumerate(text) if line.startswith("failures per"))
    assert "node-days" in " ".join(text[at : at + 3]).split()
    assert "infrastructure" in " ".join(text[at : at + 6]).split()


def test_the_middle_half_of_the_jobs_is_not_told_as_an_interval_of_the_ettr() -> None:
    """It is of jobs, and the figure of all their GPU time: that may well lie beside it."""
    report = reliability()
    report.all.ettr, report.all.ettr_low_quartile, report.all.ettr_high_quartile = 0.24, 0.31, 0.34
    (line,) = [line for line in reliability_lines(report, "alps", "partition") if line.startswith("ETTR ")]
    assert line.split() == ["ETTR", "24", "%", "-", "half", "of", "1234", "jobs:", "31", "to", "34", "%"]


def test_without_anything_measured_there_is_no_figure() -> None:
    """An empty report says so, and an unmeasured figure is a dash."""
    empty = "\n".join(shadow_lines(report_pb2.ShadowReport(), "all"))
    assert "nothing to compare.\nFurther back: --since 90d. Whether jobs are seen" in empty
    assert "nothing to say" in "\n".join(reliability_lines(report_pb2.ReliabilityReport(), "all", ""))
    little = report_pb2.ReliabilityReport(all=report_pb2.Figures(attempts=1))
    little.all.checkpoint_interval.why_not = "0 checkpoints were seen to cost time, 3 are needed"
    shown = "\n".join(reliability_lines(little, "all", ""))
    assert "nothing measured" in shown
    assert "not enough is known (0 checkpoints" in shown
    assert " 0 %" not in shown


def test_a_lower_bound_alone_is_shown_as_such() -> None:
    """No failure yet: at least so long."""
    assert "at least 0.3 h" in "\n".join(reliability_lines(reliability(), "all", ""))


def test_csv_gives_no_formula_to_a_spreadsheet(capsys: pytest.CaptureFixture[str]) -> None:
    """Users choose their names; a cell that begins like a formula is marked as text."""
    rows = [report_command.case_row(case(attempt=common_pb2.AttemptRef(job_id="1", user="=cmd()"), why="+1\n2"))]
    report_command.print_csv(rows)
    (row,) = csv.DictReader(io.StringIO(capsys.readouterr().out))
    assert (row["user"], row["why"], row["outcome"]) == ("'=cmd()", "'+1 2", "they_restart")


@pytest.mark.parametrize(
    "draw", [lambda path: plot_shadow(shadow(), path), lambda path: plot_reliability(reliability(), path)]
)
def test_plots_are_pngs(draw: Any, tmp_path: Path) -> None:
    """Both reports can be drawn without a display."""
    draw(tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG\r\n")


def test_a_plot_of_nothing_is_refused(tmp_path: Path) -> None:
    """An empty picture says nothing."""
    with pytest.raises(CommandError, match="nothing was counted"):
        plot_shadow(report_pb2.ShadowReport(), tmp_path / "plot.png")
    assert not (tmp_path / "plot.png").exists()


def test_without_the_extra_a_plot_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The table needs no extra; the picture does."""
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(CommandError, match=r"pip install 'recovery-advisor\[reports\]'"):
        plot_shadow(shadow(), tmp_path / "plot.png")
