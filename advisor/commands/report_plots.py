"""Reports as pictures. The only module that needs the extra `reports`."""

from pathlib import Path
from typing import Any

from advisor.commands.output import CommandError
from advisor.v1 import report_pb2

NEEDS_REPORTS = "--plot needs matplotlib: pip install 'recovery-advisor[reports]'"
_INCHES = (10.0, 6.0)
_COLOURS = ("#2b6cb0", "#c05621")


def _axes(count: int) -> tuple[Any, Any]:
    """A figure of its own canvas: no window, no state shared with anybody."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ModuleNotFoundError:
        raise CommandError(NEEDS_REPORTS, code=2) from None
    figure = Figure(figsize=_INCHES, layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.subplots(1, count)


def plot_shadow(report: report_pb2.ShadowReport, path: Path) -> None:
    """Agreement per category with its interval, and what the cases came to."""
    rows = [row for row in report.categories if row.agreement.HasField("value")][::-1]
    if not rows:
        raise CommandError("--plot: nothing was counted, so that there is nothing to draw", code=1)
    figure, (left, right) = _axes(2)
    names = [f"{row.category} ({row.agreement.count})" for row in rows]
    shares = [row.agreement.value for row in rows]
    low = [share - row.agreement.low for share, row in zip(shares, rows, strict=True)]
    high = [row.agreement.high - share for share, row in zip(shares, rows, strict=True)]
    left.errorbar(shares, names, xerr=[low, high], fmt="o", capsize=4, color=_COLOURS[0])
    left.set(xlim=(0, 1.02), xlabel="agreement, with the interval of 95 %", title="We and people did the same")
    left.grid(axis="x", alpha=0.3)
    begins = [0] * len(rows)
    for outcome in ("agreed", "we_restart", "they_restart", "other_nodes", "corrected"):
        counts = [getattr(row, outcome) for row in rows]
        right.barh(names, counts, left=begins, label=outcome.replace("_", " "))
        begins = [begin + count for begin, count in zip(begins, counts, strict=True)]
    right.set(xlabel="attempts", title="What they came to", yticks=[])
    right.legend(fontsize="small")
    _save(figure, path)


def plot_reliability(report: report_pb2.ReliabilityReport, path: Path) -> None:
    """MTTF by job size with its bounds, and what a recovery is made of."""
    sizes = [row for row in report.all.sizes if row.HasField("gpus_to") and row.mttf_hours.HasField("low")]
    parts = [(name, spread.median) for name, spread in report.all.rto_parts_seconds.items()]
    known = [(name, middle) for name, middle in parts if middle.HasField("value")]
    if not sizes and not known:
        raise CommandError("--plot: nothing was measured, so that there is nothing to draw", code=1)
    figure, (left, right) = _axes(2)
    for row in sizes:
        mttf = row.mttf_hours
        if mttf.HasField("value"):
            errors = [[mttf.value - mttf.low], [mttf.high - mttf.value]]
            left.errorbar([row.gpus_to], [mttf.value], yerr=errors, fmt="o", capsize=4, color=_COLOURS[0])
        else:
            left.plot([row.gpus_to], [mttf.low], marker="^", color=_COLOURS[1])  # at least that long
    left.set(xscale="log", yscale="log", xlabel="GPUs of a job, at most", ylabel="hours")
    left.set_title("Mean time to failure (▲: no failure, at least)")
    left.grid(alpha=0.3)
    right.barh([name.replace("_", " ") for name, _ in known], [middle.value for _, middle in known], color=_COLOURS[0])
    right.invert_yaxis()
    right.set(xlabel="seconds, median", title="What a recovery is made of")
    _save(figure, path)


def _save(figure: Any, path: Path) -> None:
    try:
        figure.savefig(path, dpi=120, format="png")
    except OSError as error:
        raise CommandError(f"--plot {path}: {error.strerror}") from None
