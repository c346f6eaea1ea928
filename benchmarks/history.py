"""Does a node's history tell where the next fault comes? `python -m benchmarks.history --trace FILE [--json]`.

Replays a public trace of server faults (InfiniteHBD, SIGCOMM 2025: 400 servers, 348 days, 584 faults, Apache-2.0; the
file `fault_trace.json` of its artefact, not shipped here) in time order. Before each fault all servers in service are
ranked by `advisor.core.history.node_score` over what happened until then, and the server that faults next is looked up:

    auc      mean share of the other servers that it ranks above; ties count half; chance is 0.5
    top_10   share of faults whose server is among the ten highest of 400; chance is 0.025

for several half-lives, for no decay at all, for the policy as shipped, and for its half-life with other windows. In
cuts, since a trace also holds tests that repeat one incident: all faults; hardware faults only; and of either those
that come more than a day after the server's last return to service. Intervals are from a bootstrap over servers.
"""

import argparse
import json
import random
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from advisor.core.history import PastImplication, implication_weight, node_score
from advisor.core.policy import Policy
from advisor.core.words import Role, Trust
from benchmarks._progress import now_at, telling

SERVERS = 400  # of which the trace names only those that ever fault
WARM_UP_DAYS = 30.0
WINDOWS = (14.0, 30.0, 60.0, 90.0, 180.0, 365.0)
HALF_LIVES = (0.25, 0.5, 1.0, 2.0, 3.0, 5.0, 7.0, 10.0, 14.0, 21.0, 30.0, 60.0, 120.0)
NEVER = 1e6  # a half-life so long that nothing decays
TOP = 10
EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
DRAWS = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One fault of one server; days since the trace began."""

    node: str
    start: float
    end: float
    hardware: bool
    returned: float | None  # when the server last came back before it


@dataclass(frozen=True, slots=True, kw_only=True)
class Placing:
    """How one fault's server stood among those in service."""

    node: str
    share: float  # of the others that it ranks above
    top: float  # chance to be among the first ten, ties in any order


def read(path: Path) -> list[Fault]:
    """Faults by their start. One without an end lasts to the end of the trace."""
    events = json.loads(path.read_text("utf-8"))
    last = max(event["event_time"] for event in events)
    open_: dict[str, list[tuple[float, bool]]] = {}
    closed: list[tuple[str, float, float, bool]] = []
    for event in events:
        node, at = event["node_id"], event["event_time"]
        if event["event_type"] == "fault_start":
            open_.setdefault(node, []).append((at, event["fault_type"]["Level"] == "Hardware Failure"))
        elif open_.get(node):
            start, hardware = open_[node].pop(0)
            closed.append((node, start, at, hardware))
    closed += [(node, start, last, hardware) for node, items in open_.items() for start, hardware in items]
    returned: dict[str, float] = {}
    faults = []
    for node, start, end, hardware in sorted(closed, key=lambda item: item[1]):
        back = returned.get(node)
        faults.append(Fault(node=node, start=start, end=end, hardware=hardware, returned=back))
        returned[node] = max(end, back or end)
    return faults


def day(number: float) -> datetime:
    return EPOCH + timedelta(days=number)


def replay(faults: Sequence[Fault], policy: Policy) -> dict[Fault, Placing]:
    """Each fault after the warm-up, placed by the score of what came before it."""
    weight = implication_weight(Trust.KERNEL, Role.INITIATING, 0.9)
    history: dict[str, list[PastImplication]] = {}
    down: dict[str, float] = {}
    placed: dict[Fault, Placing] = {}
    for number, fault in enumerate(faults):
        now = day(fault.start)
        up = [node for node in history if down.get(node, 0.0) <= fault.start]
        if fault.start >= WARM_UP_DAYS and down.get(fault.node, 0.0) <= fault.start:
            scores = {node: node_score(history[node], now, policy) for node in up}
            mine = scores.pop(fault.node, 0.0)
            others = SERVERS - sum(until > fault.start for until in down.values()) - 1
            above = sum(score > mine for score in scores.values())
            ties = sum(score == mine for score in scores.values()) + (others - len(scores) if mine == 0 else 0)
            placed[fault] = Placing(
                node=fault.node,
                share=(others - above - ties / 2) / others,
                top=min(1.0, max(0.0, (TOP - above) / (ties + 1))),
            )
        history.setdefault(fault.node, []).append(PastImplication(job=f"job-{number}", weight=weight, at=now))
        down[fault.node] = max(fault.end, down.get(fault.node, 0.0))
    return placed


def mean(values: Iterable[float]) -> float:
    found = list(values)
    return sum(found) / len(found)


def interval(differences: Mapping[str, Sequence[float]]) -> tuple[float, float]:
    """95 % interval of a mean, servers drawn with replacement: the faults of one server are not independent."""
    dice = random.Random(7)
    nodes = sorted(differences)
    sums = [(sum(differences[node]), len(differences[node])) for node in nodes]
    means = []
    for _ in range(DRAWS):
        drawn = dice.choices(sums, k=len(sums))
        means.append(sum(total for total, _ in drawn) / sum(count for _, count in drawn))
    means.sort()
    return means[int(0.025 * DRAWS)], means[int(0.975 * DRAWS)]


def versus(
    one: Mapping[Fault, Placing], other: Mapping[Fault, Placing], chosen: Sequence[Fault]
) -> dict[str, tuple[float, float, float]]:
    """By how much the first places the chosen faults higher: difference and interval of both figures."""
    found = {}
    for name, figure in (("auc", "share"), ("top_10", "top")):
        by_node: dict[str, list[float]] = {}
        for fault in chosen:
            by_node.setdefault(fault.node, []).append(getattr(one[fault], figure) - getattr(other[fault], figure))
        found[name] = (mean(item for items in by_node.values() for item in items), *interval(by_node))
    return found


def measure(faults: Sequence[Fault]) -> dict[str, object]:
    """The whole curve for one set of faults."""
    free = replace(Policy(), history_window_days=3_650.0)
    curve = {half: replay(faults, replace(free, history_half_life_days=half)) for half in (*HALF_LIVES, NEVER)}
    shipped = replay(faults, Policy())
    seven = replay(faults, free)  # the shipped half-life, nothing forgotten
    windows = {
        days: replay(faults, replace(Policy(), history_window_days=days))
        for days in WINDOWS
        if days >= Policy().history_half_life_days
    }
    cuts = {
        "": [fault for fault in faults if fault in shipped],
        "a day after return": [
            fault for fault in faults if fault in shipped and not (fault.returned and fault.start - fault.returned < 1)
        ],
    }
    result: dict[str, object] = {}
    for name, chosen in cuts.items():
        rows = {
            half: {"auc": mean(placed[f].share for f in chosen), "top_10": mean(placed[f].top for f in chosen)}
            for half, placed in curve.items()
        }
        best = max(HALF_LIVES, key=lambda half: rows[half]["auc"])
        result[name] = {
            "faults": len(chosen),
            "curve": {("none" if half == NEVER else f"{half:g}"): row for half, row in rows.items()},
            "shipped": {
                "auc": mean(shipped[f].share for f in chosen),
                "top_10": mean(shipped[f].top for f in chosen),
            },
            "windows": {
                f"{days:g}": {
                    "auc": mean(placed[f].share for f in chosen),
                    "top_10": mean(placed[f].top for f in chosen),
                }
                for days, placed in windows.items()
            },
            "best_half_life_days": best,
            "best_over_no_decay": versus(curve[best], curve[NEVER], chosen),
            "best_over_shipped_half_life": versus(curve[best], seven, chosen),
            "shipped_half_life_over_no_decay": versus(seven, curve[NEVER], chosen),
        }
    return result


def show(name: str, found: dict[str, object]) -> None:
    curve, shipped = found["curve"], found["shipped"]
    assert isinstance(curve, dict)
    assert isinstance(shipped, dict)
    print(f"\n{name}: {found['faults']} faults placed; chance: auc 0.500, top_10 {TOP / SERVERS:.3f}")
    print("  half-life, days   auc     top_10")
    for half, row in curve.items():
        print(f"  {half:>15}   {row['auc']:.3f}   {row['top_10']:.3f}")
    policy = Policy()
    label = f"{policy.history_half_life_days:g} d, {policy.history_window_days:g} d window"
    print(f"  {label:>15}   {shipped['auc']:.3f}   {shipped['top_10']:.3f}   <- the policy as shipped")
    windows = found["windows"]
    assert isinstance(windows, dict)
    line = "  ".join(f"{days} d {values['auc']:.3f}/{values['top_10']:.3f}" for days, values in windows.items())
    print(f"  its half-life with other windows, auc/top_10: {line}")
    print(f"  best half-life by auc: {found['best_half_life_days']} days")
    for key in ("best_over_no_decay", "shipped_half_life_over_no_decay", "best_over_shipped_half_life"):
        row = found[key]
        assert isinstance(row, dict)
        parts = (f"{name} {by:+.3f} [{low:+.3f}, {high:+.3f}]" for name, (by, low, high) in row.items())
        print(f"  {key.replace('_', ' ')}: {', '.join(parts)}")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--trace", type=Path, help="the trace's fault_trace.json")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    if options.trace is None or not options.trace.is_file():
        print("history: skipped, no trace: give --trace FILE (InfiniteHBD's fault_trace.json)", file=sys.stderr)
        return 0
    faults = read(options.trace)
    results: dict[str, object] = {}
    cuts = (("all faults", faults), ("hardware faults", [fault for fault in faults if fault.hardware]))
    with telling():
        for cut, chosen in cuts:
            now_at(f"{cut}: {len(chosen)} in each half-life and window")
            for name, found in measure(chosen).items():
                results[f"{cut}, {name}" if name else cut] = found
    if options.json:
        print(json.dumps(results))
        return 0
    for name, row in results.items():
        assert isinstance(row, dict)
        show(name, row)
    return 0


if __name__ == "__main__":
    sys.exit(main())
