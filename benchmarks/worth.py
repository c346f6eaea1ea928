"""What recovery is worth: the same seeded worlds lived through by nobody, scripts, people, the advisor, and at best.

    python -m benchmarks.worth [--scenario NAME] [--seeds 20] [--days D] [--json] [--plot FILE.png]
    python -m benchmarks.worth --save FILE.jsonl          keeps each seed's result as soon as it is known; called
                                                          again it goes on with the seeds that are not in the file
    python -m benchmarks.worth --read FILE.jsonl          summarises kept results, and runs nothing

All intervals are of 95 %. Differences are paired: each seed is one world for all who are compared, so that luck with
failures cancels. Means and differences are resampled over seeds (percentile bootstrap), shares have Wilson's interval,
rates Garwood's. Targets that are missed are printed as missed.
"""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

from advisor.commands.simulate import Told
from advisor.core.intervals import Estimate, quantile, rate, wilson
from advisor.simulate.agent import ADVISOR
from advisor.simulate.runs import NAMES, Result, run, settings_of, shorter
from advisor.simulate.world import Scenario, WorldError, read_noise, scenario_named

RESAMPLES = 4000
NODE_DAYS = 10_000
SEEDS_ENOUGH = 20
Document = Mapping[str, Any]


def main(given: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scenario", default="training-2048-nodes")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--first", type=int, default=1, help="the first seed")
    parser.add_argument("--days", type=float, default=None, help="instead of the scenario's own")
    parser.add_argument("--noise", type=Path, default=None)
    parser.add_argument("--operators", default=",".join(NAMES))
    parser.add_argument("--save", type=Path, default=None)
    parser.add_argument("--read", type=Path, nargs="*", default=None)
    parser.add_argument("--plot", type=Path, default=None)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(given)
    try:
        documents = _read(options.read) if options.read else _lived(options)
    except (WorldError, OSError, ValueError) as error:
        parser.error(str(error))
    if not documents:
        parser.error("no result")
    summary = summarise(documents)
    print(json.dumps(summary) if options.json else as_text(summary))
    if options.plot is not None:
        draw_plot(documents, options.plot)


def _lived(options: argparse.Namespace) -> list[Document]:
    noise = read_noise(options.noise) if options.noise is not None else None
    scenario = shorter(scenario_named(options.scenario, noise), options.days)
    names = [name for name in options.operators.split(",") if name]
    if unknown := sorted(set(names) - set(NAMES)):
        raise ValueError(f"--operators: {', '.join(unknown)}: not one of {', '.join(NAMES)}")
    wanted = range(options.first, options.first + options.seeds)
    documents = _kept(options.save, scenario, names, wanted)
    lived = {document["seed"] for document in documents}

    def done(result: Result) -> None:
        documents.append(result.document())
        if options.save is not None:
            with options.save.open("a", encoding="utf-8") as kept:
                kept.write(json.dumps(result.document()) + "\n")

    left = [seed for seed in wanted if seed not in lived]
    run(scenario, left, names, done=done, progress=Told(scenario.days, sys.stderr))
    return sorted(documents, key=lambda document: int(document["seed"]))


def _kept(save: Path | None, scenario: Scenario, names: Sequence[str], wanted: Sequence[int]) -> list[Document]:
    """What an earlier call has lived through of this. Raises `ValueError` where the file holds other worlds."""
    if save is None or not save.exists():
        return []
    documents = _read([save])
    settings = json.loads(json.dumps(settings_of(scenario)))
    for document in documents:
        if document["settings"] != settings or not set(names) <= set(document["operators"]):
            raise ValueError(f"{save}: seed {document['seed']} is of another world, or of other operators")
    return [document for document in documents if document["seed"] in wanted]


def _read(paths: Sequence[Path]) -> list[Document]:
    return [json.loads(line) for path in paths for line in path.read_text(encoding="utf-8").splitlines() if line]


def bootstrap(values: Sequence[float]) -> Estimate:
    """The mean, resampled over seeds; the same values give the same interval."""
    if not values:
        return Estimate(value=None, low=None, high=None, count=0)
    random = Random(len(values))
    means = sorted(sum(random.choices(values, k=len(values))) / len(values) for _ in range(RESAMPLES))
    return Estimate(
        value=sum(values) / len(values), low=quantile(means, 0.025), high=quantile(means, 0.975), count=len(values)
    )


def summarise(documents: Sequence[Document]) -> dict[str, Any]:
    """Of seeds of one scenario. Raises `ValueError` when they are not."""
    kinds = {(document["scenario"], document["days"]) for document in documents}
    if len(kinds) != 1:
        raise ValueError(f"results of different worlds: {sorted(kinds)}")
    names = [name for name in NAMES if all(name in document["operators"] for document in documents)]
    found: dict[str, Any] = {
        "scenario": documents[0]["scenario"],
        "days": documents[0]["days"],
        "seeds": sorted(document["seed"] for document in documents),
        "operators": {name: _operator(documents, name) for name in names},
        "settings": documents[0]["settings"],
    }
    if ADVISOR in names:
        found["advisor"] = _advisor(documents)
        found["paired"] = {
            f"{ADVISOR} - {other}": {
                "ettr": _plain(bootstrap(_differences(documents, other, "ettr"))),
                "gpu_hours_lost": _plain(bootstrap(_differences(documents, other, "gpu_hours_lost"))),
            }
            for other in names
            if other != ADVISOR
        }
    return found


def _figures(document: Document, name: str) -> Mapping[str, Any]:
    figures: Mapping[str, Any] = document["operators"][name]["figures"]
    return figures


def _differences(documents: Sequence[Document], other: str, figure: str) -> list[float]:
    return [_figures(document, ADVISOR)[figure] - _figures(document, other)[figure] for document in documents]


def _operator(documents: Sequence[Document], name: str) -> dict[str, Any]:
    figures = [_figures(document, name) for document in documents]

    def total(key: str) -> int:
        return int(sum(item[key] for item in figures))

    parts = {part: sum(item["parts"][part] for item in figures) for part in figures[0]["parts"]}
    wall = sum(parts.values()) or 1.0
    return {
        "ettr": _plain(bootstrap([item["ettr"] for item in figures])),
        "gpu_hours_lost": _plain(bootstrap([item["gpu_hours_lost"] for item in figures])),
        "retries_per_incident": _plain(bootstrap([item["retries_per_incident"] for item in figures])),
        "failures": total("failures"),
        "false_stops": total("false_stops"),
        "wrong_exclusions": total("wrong_exclusions"),
        "hopeless_stopped": _plain(wilson(total("hopeless_stopped"), total("hopeless"))),
        "attempts_of_hopeless": total("attempts_of_hopeless"),
        "parts": {part: seconds / wall for part, seconds in parts.items()},
    }


def _advisor(documents: Sequence[Document]) -> dict[str, Any]:
    lived = [document["operators"][ADVISOR] for document in documents]
    shares = [document["ettr"] / document["ettr_bound"] for document in documents if document.get("ettr_bound")]
    healthy = sum(document["healthy_nodes_isolated"] for document in documents)
    node_days = sum(document["node_days"] for document in documents)
    return {
        "ettr_of_bound": _plain(bootstrap(shares)),
        "ettr_of_bound_least": min(shares, default=None),
        "healthy_nodes_isolated": healthy,
        "nodes_isolated": sum(item["isolated"] for item in lived),
        "node_days": node_days,
        f"healthy_per_{NODE_DAYS}_node_days": _plain(rate(healthy, node_days / NODE_DAYS)),
        "lemon_recall": _plain(
            wilson(sum(item["lemons_found"] for item in lived), sum(item["lemons"] for item in lived))
        ),
        "invariants_broken": sum(len(document["invariants_broken"]) for document in documents),
        "detection": _detection(documents),
        "times_faster_than_real": _plain(bootstrap([document["times_faster_than_real"] for document in documents])),
        "delay_saved_seconds": _plain(
            bootstrap(
                [document["delay_saved_seconds"] for document in documents if document.get("delay_saved_seconds")]
            )
        ),
    }


def _detection(documents: Sequence[Document]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for shape in sorted({shape for document in documents for shape in document["detection_seconds"]}):
        rows = [
            document["detection_seconds"][shape] for document in documents if shape in document["detection_seconds"]
        ]
        seconds = sorted(value for row in rows for value in row["seconds"])
        found[shape] = {
            "count": sum(row["count"] for row in rows),
            "missed": sum(row["missed"] for row in rows),
            "p50": quantile(seconds, 0.5),
            "p95": quantile(seconds, 0.95),
            "most": seconds[-1] if seconds else None,
        }
    return found


def _plain(estimate: Estimate) -> dict[str, float | int | None]:
    return {"value": estimate.value, "low": estimate.low, "high": estimate.high, "count": estimate.count}


def _shown(item: Mapping[str, Any], form: str = "{:.4f}") -> str:
    if item["value"] is None:
        return "–"
    bounds = [form.format(item[side]) if item[side] is not None else "?" for side in ("low", "high")]
    return f"{form.format(item['value'])} ({bounds[0]} to {bounds[1]})"


def as_text(summary: Mapping[str, Any]) -> str:
    """The tables of docs/results/worth.md."""
    seeds = summary["seeds"]
    lines = [f"## {summary['scenario']}, {summary['days']:g} days, {len(seeds)} seeds ({seeds[0]} to {seeds[-1]})", ""]
    if len(seeds) < SEEDS_ENOUGH:
        lines += [f"Fewer than {SEEDS_ENOUGH} seeds: intervals of so few say little.", ""]
    lines += ["| | ETTR | GPU-hours lost | retries per incident | false stops | hopeless jobs stopped |"]
    lines += ["|---|---|---|---|---|---|"]
    for name, item in summary["operators"].items():
        hopeless = item["hopeless_stopped"]
        lines.append(
            f"| {name} | {_shown(item['ettr'])} | {_shown(item['gpu_hours_lost'], '{:,.0f}')} | "
            f"{_shown(item['retries_per_incident'], '{:.2f}')} | {item['false_stops']} | "
            f"{_shown(hopeless, '{:.2f}')} of {hopeless['count']} |"
        )
    parts = list(next(iter(summary["operators"].values()))["parts"])
    lines += ["", "Where the big job's time went, in per cent:", "", "| | " + " | ".join(parts) + " |"]
    lines.append("|---" * (len(parts) + 1) + "|")
    for name, item in summary["operators"].items():
        lines.append(f"| {name} | " + " | ".join(f"{item['parts'][part] * 100:.2f}" for part in parts) + " |")
    if "advisor" in summary:
        lines += _advisor_text(summary)
    return "\n".join(lines)


def _advisor_text(summary: Mapping[str, Any]) -> list[str]:
    ours, lines = summary["advisor"], ["", "| paired differences | ETTR | GPU-hours lost |", "|---|---|---|"]
    for name, item in summary["paired"].items():
        lines.append(f"| {name} | {_shown(item['ettr'])} | {_shown(item['gpu_hours_lost'], '{:,.0f}')} |")
    lines += [
        "",
        "| from the failure to its detection, seconds | failures | p50 | p95 | most | never |",
        "|---|" + "---|" * 5,
    ]
    for shape, item in ours["detection"].items():
        numbers = [f"{item[key]:.1f}" if item[key] is not None else "–" for key in ("p50", "p95", "most")]
        lines.append(f"| {shape} | {item['count']} | {' | '.join(numbers)} | {item['missed']} |")
    per_node_days = ours[f"healthy_per_{NODE_DAYS}_node_days"]
    lines += ["", "| the advisor | | target |", "|---|---|---|"]
    false_stops = summary["operators"][ADVISOR]["false_stops"]
    stopped = summary["operators"][ADVISOR]["hopeless_stopped"]
    for what, shown, target, met in (
        ("ETTR of the bound", _shown(ours["ettr_of_bound"]), "≥ 0.98", _at_least(ours["ettr_of_bound"], 0.98)),
        (
            f"healthy nodes isolated in {ours['node_days']:,.0f} node-days",
            f"{ours['healthy_nodes_isolated']} of {ours['nodes_isolated']}; "
            f"per {NODE_DAYS:,}: {_shown(per_node_days, '{:.2f}')}",
            "0",
            ours["healthy_nodes_isolated"] == 0,
        ),
        (
            "lemons found",
            f"{_shown(ours['lemon_recall'], '{:.2f}')} of {ours['lemon_recall']['count']}",
            "≥ 0.9",
            _at_least(ours["lemon_recall"], 0.9),
        ),
        ("false stops", str(false_stops), "0", false_stops == 0),
        (
            "hopeless jobs stopped",
            f"{_shown(stopped, '{:.2f}')} of {stopped['count']}",
            "≥ 0.9",
            _at_least(stopped, 0.9),
        ),
        ("invariants broken", str(ours["invariants_broken"]), "0", ours["invariants_broken"] == 0),
        (
            "times faster than real",
            _shown(ours["times_faster_than_real"], "{:,.0f}"),
            "≥ 500 (2,048 nodes)",
            _at_least(ours["times_faster_than_real"], 500),
        ),
    ):
        lines.append(f"| {what} | {shown} | {target}{_verdict(met)} |")
    return lines


def _at_least(item: Mapping[str, Any], least: float) -> bool | None:
    return None if item["value"] is None else item["value"] >= least


def _verdict(met: bool | None) -> str:
    return {None: ", nothing to count", True: "", False: " **missed**"}[met]


def draw_plot(documents: Sequence[Document], path: Path) -> None:
    """ETTR by operator, where the time went, and how soon failures were detected."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    summary = summarise(documents)
    figure = Figure(figsize=(13, 4), layout="constrained")
    FigureCanvasAgg(figure)
    left, middle, right = figure.subplots(1, 3)
    names = list(summary["operators"])
    for row, name in enumerate(names):
        item = summary["operators"][name]["ettr"]
        left.errorbar(item["value"], row, xerr=[[item["value"] - item["low"]], [item["high"] - item["value"]]], fmt="o")
        for document in documents:
            left.plot(_figures(document, name)["ettr"], row - 0.25, ".", color="grey", markersize=3)
    left.set(yticks=range(len(names)), yticklabels=names, xlabel="ETTR", title="mean over seeds, and each seed")
    begins = [0.0] * len(names)
    for part in summary["operators"][names[0]]["parts"]:
        if part == "useful":
            continue
        widths = [summary["operators"][name]["parts"][part] * 100 for name in names]
        middle.barh(names, widths, left=begins, label=part)
        begins = [begin + width for begin, width in zip(begins, widths, strict=True)]
    middle.set(xlabel="per cent of the big job's time", title="what is lost, and to what", yticks=[])
    middle.legend(fontsize="x-small")
    _draw_detection(right, documents)
    figure.suptitle(f"{summary['scenario']}, {summary['days']:g} days, {len(documents)} seeds")
    figure.savefig(path, dpi=80)


def _draw_detection(axes: Any, documents: Sequence[Document]) -> None:
    by_shape: dict[str, list[float]] = {}
    for document in documents:
        for shape, row in document.get("detection_seconds", {}).items():
            by_shape.setdefault(shape, []).extend(row["seconds"])
    for shape, seconds in by_shape.items():
        if seconds:
            shares = [(number + 1) / len(seconds) for number in range(len(seconds))]
            axes.step(
                sorted(max(value, 0.1) for value in seconds),
                shares,
                where="post",
                label=f"{shape} ({len(seconds)})",
            )
    if not any(by_shape.values()):
        axes.axis("off")
        return
    axes.set(xscale="log", xlabel="seconds from the failure", title="share detected", ylim=(0, 1.02))
    axes.legend(fontsize="x-small")


if __name__ == "__main__":
    main()
