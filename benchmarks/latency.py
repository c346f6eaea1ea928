"""How long each stage of a recovery takes, on real Slurm: scenario a, several times over.

    python -m advisor.demo.namespace -- python -m benchmarks.latency [--runs N] [--json]

Milestones are those the advisor stores; the stages between them are printed with p50, p95 and max, beside published
figures for the same stage. Slurm's own delay between a requeue and the next start (cred_expire + 1 s) is a stage of its
own and set to 6 s here.
"""

import argparse
import json
import math
import sys
from datetime import datetime

from advisor.demo.cluster import Shape
from advisor.demo.namespace import CannotEnterError
from advisor.demo.training import Training
from advisor.demo.waiting import wait_for
from advisor.demo.world import World, running_cluster, running_world

# (name, from, to, published reference)
STAGES = (
    ("detect", "FAULT_VISIBLE", "DETECTED", "69 s mean (NVIDIA Recovery), 3.6 s (Minder)"),
    ("advise", "DETECTED", "ADVISED", "of it 2 s in which the other ranks wait for their collective"),
    ("accept", "DETECTED", "UPDATE_ACCEPTED", "25 s mean (NVIDIA Recovery)"),
    ("slurm_delay", "REQUEUE_ACCEPTED", "RUNNING", "Slurm's own: 6 s as configured here"),
    ("first_progress", "RUNNING", "FIRST_PROGRESS", ""),
    ("caught_up", "RUNNING", "CAUGHT_UP", ""),
    ("whole", "FAULT_VISIBLE", "FIRST_PROGRESS", ""),
)
_NEEDED = {"FAULT_VISIBLE", "DETECTED", "ADVISED", "REQUEUE_ACCEPTED", "UPDATE_ACCEPTED", "RUNNING"}


def one_run(world: World, number: int) -> dict[str, float]:
    """Seconds of each stage that could be measured."""
    fault = {"kind": "xid79", "attempt": 0, "node": "node2", "step": 12}
    training = Training(name=f"latency-{number}", nodes=3, steps=20, faults=[fault])
    run = world.launch("alice", training)
    run.wait("COMPLETED", restarts=1)

    def moments() -> dict[str, datetime] | None:
        found = {
            item["kind"].removeprefix("MILESTONE_KIND_"): datetime.fromisoformat(item["at"])
            for decision in run.decisions()
            for item in decision.get("milestones", [])
        }
        return found if set(found) >= _NEEDED else None

    at = wait_for("the milestones", moments, seconds=15, every_seconds=0.3)
    return {
        name: (at[last] - at[first]).total_seconds() for name, first, last, _ in STAGES if first in at and last in at
    }


def summary(samples: list[float]) -> dict[str, float]:
    ordered = sorted(samples)

    def quantile(share: float) -> float:
        return ordered[min(len(ordered) - 1, math.ceil(share * len(ordered)) - 1)]

    return {"p50": quantile(0.5), "p95": quantile(0.95), "max": ordered[-1], "n": len(ordered)}


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.latency", description=__doc__)
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    try:
        with running_cluster(Shape()) as (cluster, kernel), running_world(cluster, kernel) as world:
            runs = [one_run(world, number) for number in range(options.runs)]
    except CannotEnterError as error:
        print(error, file=sys.stderr)
        return 2
    stages = {}
    for name, first, last, reference in STAGES:
        samples = [run[name] for run in runs if name in run]
        if samples:
            stages[name] = {"from": first.lower(), "to": last.lower(), "reference": reference, **summary(samples)}
    if options.json:
        print(json.dumps({"unit": "seconds", "runs": options.runs, "stages": stages}))
        return 0
    for name, item in stages.items():
        figures = "  ".join(f"{key} {item[key]:7.3f} s" for key in ("p50", "p95", "max"))
        print(f"{name:<15} {figures}  n={item['n']:<3} {item['reference']}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
