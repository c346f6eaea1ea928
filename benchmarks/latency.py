"""How long each stage of a recovery takes, on real Slurm: thirty injected faults of five kinds.

    python -m advisor.demo.namespace -- python -m benchmarks.latency [--runs N] [--kinds A,B] [--polling] [--json]

The kinds, `--runs` of each: `xid` (a trusted Xid 79), `crash` (a Python traceback), `hang` (a rank falls silent),
`node` (a node's slurmd dies; Slurm requeues by itself), `dead_node` (a node dies under a hung job). Milestones are
those the advisor stores; the stages between them are printed with p50, p95 and max, beside published figures for the
same stage. `--polling` leaves the EpilogSlurmctld hook out.

What belongs to others is set short, and printed: Slurm's own delay between a requeue and the next start (cred_expire
+ 1 s), SlurmdTimeout, the silence that is a hang. A stage that begins with `injected` holds the fault's own time: for
a hang the silence itself, for a dead node SlurmdTimeout.
"""

import argparse
import json
import math
import os
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from advisor.demo.cluster import Shape
from advisor.demo.namespace import CannotEnterError
from advisor.demo.training import Training
from advisor.demo.waiting import TookTooLongError, wait_for
from advisor.demo.world import HOOK, Run, World, running_cluster, running_world
from benchmarks._progress import now_at, telling

HANG_SECONDS = 8.0
SHAPE = Shape(nodes=8)
POLICY = {
    "hang_seconds": HANG_SECONDS,
    "hang_startup_seconds": 60.0,
    "trusted_fatal_grace_seconds": HANG_SECONDS,  # may not be above it
}
# (name, from, to, published reference)
STAGES = (
    ("visible", "INJECTED", "FAULT_VISIBLE", "the fault's own time"),
    ("detect", "FAULT_VISIBLE", "DETECTED", "69 s mean (NVIDIA Recovery), 3.6 s (Minder)"),
    ("advise", "DETECTED", "ADVISED", "of it 2 s in which the other ranks wait for their collective"),
    ("accept", "DETECTED", "UPDATE_ACCEPTED", "25 s mean (NVIDIA Recovery)"),
    ("act", "ADVISED", "UPDATE_ACCEPTED", ""),
    ("eligible", "UPDATE_ACCEPTED", "ELIGIBLE", "Slurm's own: cred_expire + 1 s"),
    ("running", "ELIGIBLE", "RUNNING", "Slurm's own: a node that does not answer holds the job until it is DOWN"),
    ("first_progress", "RUNNING", "FIRST_PROGRESS", ""),
    ("caught_up", "RUNNING", "CAUGHT_UP", ""),
    ("whole", "INJECTED", "FIRST_PROGRESS", ""),
)
KINDS = ("xid", "crash", "hang", "node", "dead_node")
LANE_NODES = 4
LAUNCHES_MAX = 4
_FAULT_STEP = 12
_NEEDED = frozenset({"FAULT_VISIBLE", "DETECTED", "ADVISED", "UPDATE_ACCEPTED", "RUNNING", "FIRST_PROGRESS"})

Moments = Mapping[str, datetime]


def one_run(world: World, kind: str, number: int, lane: int) -> Moments:
    """Inject one fault, wait until the job has finished on good nodes, and return when what happened."""
    nodes = tuple(f"node{lane * LANE_NODES + offset}" for offset in range(1, LANE_NODES + 1))
    others = ",".join(node for node in world.cluster.nodes if node not in nodes)
    bad, dies = nodes[1], kind in {"node", "dead_node"}
    training = Training(
        name=f"{kind}-{number}",
        # The ranks of a lost node go on until Slurm takes the job away: nothing but the scheduler tells of this fault.
        steps=500 if kind == "node" else 20,
        # Slurm 22.05.8 loses count of a job's GPUs when a dead node holds it (docs/slurm.md).
        gpus_per_node=0 if dies else 8,
        collective_seconds=600 if kind in {"hang", "dead_node"} else 2.0,
        faults=_faults(kind, bad),
        options=(f"--exclude={others}",),
    )
    run = _on(world, training, nodes, bad)
    if dies:
        world.cluster.kill_node(bad)
    injected = datetime.fromtimestamp(time.time(), UTC)  # noqa: TID251 - the harness's own clock
    try:
        row = run.wait("COMPLETED", restarts=1, seconds=200)
        # A node that is DOWN by then needs no exclusion, and a silent rank alone names no node.
        if kind not in {"crash", "hang"} and bad in run.nodes:
            said = f"excluded were {sorted(row.excluded)}; {_said(run)}"
            raise RuntimeError(f"{kind}: {bad} is among {run.nodes} again, {said}")
        return wait_for("the milestones", lambda: _moments(run, injected), seconds=20, every_seconds=0.3)
    finally:
        if dies:
            world.cluster.start_node(bad)
            wait_for("the node's return", lambda: world.cluster.node_state(bad) == "idle", seconds=60)


def _said(run: Run) -> str:
    """What was advised, and what came of it."""
    return "; ".join(
        f"{item['advice'].get('reason')} excluding {item['advice'].get('exclude_nodes', [])}: "
        + ", ".join(f"{told['status']} {told.get('reason', '')}" for told in item.get("reconciliations", []))
        for item in run.decisions()
    )


def _on(world: World, training: Training, nodes: Sequence[str], bad: str) -> Run:
    """Launch it so that it gets `bad`: right after a node's return Slurm may prefer another."""
    for attempt in range(LAUNCHES_MAX):
        wait_for("idle nodes", lambda: set(nodes) <= world.cluster.idle_nodes(), seconds=60)
        run = world.launch("alice", replace(training, name=f"{training.name}-{attempt}"))
        run.wait_step(_FAULT_STEP - 1)
        if bad in run.nodes:
            return run
        world.cluster.must("scancel", str(run.job_id))
    raise RuntimeError(f"{training.name}: no job was given {bad}")


def _faults(kind: str, bad: str) -> list[dict[str, object]]:
    here = {"attempt": 0, "node": bad, "step": _FAULT_STEP}
    match kind:
        case "xid":
            return [{"kind": "xid79", **here}]
        case "crash":
            return [{"kind": "keyerror", "attempt": 0, "rank": 1, "step": _FAULT_STEP}]
        case "hang" | "dead_node":
            return [{"kind": "hang", **here}]
        case _:
            return []


def _moments(run: Run, injected: datetime) -> Moments | None:
    found = {
        item["kind"].removeprefix("MILESTONE_KIND_"): datetime.fromisoformat(item["at"])
        for decision in run.decisions()
        for item in decision.get("milestones", [])
    }
    return {"INJECTED": injected, **found} if set(found) >= _NEEDED else None


def summary(samples: Sequence[float]) -> dict[str, float]:
    ordered = sorted(samples)

    def quantile(share: float) -> float:
        return ordered[min(len(ordered) - 1, math.ceil(share * len(ordered)) - 1)]

    return {"p50": quantile(0.5), "p95": quantile(0.95), "max": ordered[-1], "n": len(ordered)}


def measure(kinds: Sequence[str], runs: int, *, polling: bool, lanes: int) -> dict[str, list[Moments]]:
    """`runs` faults of each kind on one cluster; `lanes` of them at a time, on nodes of their own."""
    work = [(kind, number) for number in range(runs) for kind in kinds]
    found: dict[str, list[Moments]] = {kind: [] for kind in kinds}
    with (
        running_cluster(SHAPE, hook=None if polling else HOOK) as (cluster, kernel),
        running_world(cluster, kernel, policy=POLICY) as world,
    ):

        def run_lane(lane: int) -> None:
            for kind, number in work[lane::lanes]:
                now_at(f"{kind} {number + 1} of {runs}")
                try:
                    found[kind].append(one_run(world, kind, number, lane))
                    print(f"{kind} {number + 1} of {runs}", file=sys.stderr, flush=True)
                except (RuntimeError, TookTooLongError) as error:
                    print(f"{kind} {number + 1} of {runs} FAILED: {error}", file=sys.stderr, flush=True)

        with ThreadPoolExecutor(max_workers=lanes) as pool:
            for lane in [pool.submit(run_lane, lane) for lane in range(lanes)]:
                lane.result()
    return found


def stages(runs: Sequence[Moments]) -> dict[str, dict[str, Any]]:
    """Seconds of each stage that could be measured."""
    found = {}
    for name, first, last, reference in STAGES:
        samples = [(at[last] - at[first]).total_seconds() for at in runs if first in at and last in at]
        if samples:
            found[name] = {"from": first.lower(), "to": last.lower(), "reference": reference, **summary(samples)}
    return found


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.latency", description=__doc__)
    parser.add_argument("--runs", type=int, default=6, help="of each kind")
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--lanes", type=int, default=1, choices=(1, 2), help="faults at a time")
    parser.add_argument("--polling", action="store_true", help="without the EpilogSlurmctld hook")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    kinds = tuple(kind for kind in KINDS if kind in options.kinds.split(","))
    try:
        with telling():
            found = measure(kinds, options.runs, polling=options.polling, lanes=options.lanes)
    except CannotEnterError as error:
        print(error, file=sys.stderr)
        return 2
    heard = "polling" if options.polling else "hook"
    told = {
        "all": stages([at for kind in kinds for at in found[kind]]),
        "all but hangs": stages([at for kind in kinds if kind not in {"hang", "dead_node"} for at in found[kind]]),
        **{kind: stages(found[kind]) for kind in kinds},
    }
    lost = len(kinds) * options.runs - sum(map(len, found.values()))
    setting = {
        "failed_runs": lost,
        "load_average": os.getloadavg()[1],
        "hang_seconds": HANG_SECONDS,
        "slurmd_timeout_seconds": SHAPE.slurmd_timeout_seconds,
        "requeue_delay_seconds": SHAPE.cred_expire_seconds + 1,
    }
    if options.json:
        print(json.dumps({"unit": "seconds", "heard_by": heard, "runs": options.runs, **setting, "stages": told}))
        return 1 if lost else 0
    print(f"heard by {heard}; set: " + ", ".join(f"{key} {value:g}" for key, value in setting.items()))
    for kind, items in told.items():
        print(f"\n{kind}")
        for name, item in items.items():
            figures = "  ".join(f"{key} {item[key]:7.3f} s" for key in ("p50", "p95", "max"))
            print(f"  {name:<15} {figures}  n={item['n']:<3} {item['reference'] if kind == 'all' else ''}".rstrip())
    return 1 if lost else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
