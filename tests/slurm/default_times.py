"""The main scenarios with Slurm's default times, all at once on one cluster; prints what came of each as JSON.

Run by `test_default_times.py` in a namespace of its own: `python -m advisor.demo.namespace -- python -m
tests.slurm.default_times`. cred_expire 120, KillWait 30, SlurmdTimeout 300, MinJobAge 300; nothing of ours is slow.
"""

import json
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from advisor.demo.cluster import Shape
from advisor.demo.training import Training
from advisor.demo.waiting import holds_for, wait_for
from advisor.demo.world import Run, World, running_cluster, running_world

LANE_NODES = 3
LANES = 5  # partitions, each for one scenario
DEFAULTS = Shape(
    nodes=LANES * LANE_NODES,
    cred_expire_seconds=120,
    slurmd_timeout_seconds=300,
    kill_wait_seconds=30,
    extra=tuple(
        f"PartitionName=lane{lane} Nodes=node[{lane * LANE_NODES + 1}-{lane * LANE_NODES + LANE_NODES}] State=UP"
        for lane in range(LANES)
    ),
)
POLICY = {"hang_seconds": 15.0, "hang_startup_seconds": 60.0, "trusted_fatal_grace_seconds": 15.0}
_REQUEUE_DELAY_SECONDS = 121
# Prints progress, then hangs; on SIGTERM it goes on, until KillWait has passed and SIGKILL comes.
_STUBBORN = """#!/bin/bash
trap '' TERM
for step in $(seq 1 30); do
  echo " [$(date '+%Y-%m-%d %H:%M:%S')] iteration $step/30 | elapsed time per iteration (ms): 200.0 |"
  sleep 0.2
done
[ "${SLURM_RESTART_COUNT:-0}" = 0 ] || exit 0
while :; do sleep 1; done
"""


def _lane(number: int) -> tuple[str, ...]:
    return tuple(f"node{number * LANE_NODES + at}" for at in range(1, LANE_NODES + 1))


def _row(run: Run) -> dict[str, Any]:
    row = run.row
    return {"state": row.state, "restarts": row.restarts, "excluded": sorted(row.excluded)}


def xid(world: World, lane: int) -> dict[str, Any]:
    """A bad GPU: requeued once, without the node, not before 121 s."""
    fault = {"kind": "xid79", "attempt": 0, "node": _lane(lane)[1], "step": 12}
    run = _launch(world, "xid", lane, steps=20, faults=[fault])
    pending = run.wait("PENDING", restarts=1, seconds=60)
    row = run.wait("COMPLETED", restarts=1, seconds=240)
    return {**_row(run), "waited": (row.start or 0) - (pending.submitted or 0)}


def cancel(world: World, lane: int) -> dict[str, Any]:
    """Cancelled by its user at the moment of the failure: never revived."""
    fault = {"kind": "xid79", "attempt": 0, "node": _lane(lane)[1], "step": 6}
    run = _launch(world, "cancel", lane, steps=2000, faults=[fault])
    log = world.cluster.kernel_log(_lane(lane)[1])
    wait_for("the fault", lambda: log.stat().st_size > 0, seconds=60)
    world.cluster.must("scancel", str(run.job_id), user="alice")
    run.wait("CANCELLED", seconds=90)
    stays = holds_for(lambda: run.row.state == "CANCELLED", seconds=_REQUEUE_DELAY_SECONDS + 30, every_seconds=1.0)
    return {**_row(run), "stays": stays}


def stubborn(world: World, lane: int) -> dict[str, Any]:
    """A hang whose processes ignore SIGTERM: COMPLETING for KillWait, one requeue."""
    folder = world.cluster.runtime.home("alice") / "stubborn"
    opt_in = '--comment={"advisor": {"enabled": true}}'
    # srun waits for nobody here: the batch script itself is what hangs.
    output = f"--output={folder}-%j.out"
    job = world.cluster.submit("alice", _STUBBORN, "-N1", output, opt_in, f"--partition=lane{lane}")
    cluster = world.cluster
    began = cluster.wait_state(job, "COMPLETING", restarts=1, seconds=120)
    at = time.monotonic()
    cluster.wait_state(job, "PENDING", restarts=1, seconds=90)
    took = time.monotonic() - at
    row = cluster.wait_state(job, "COMPLETED", restarts=1, seconds=300)
    return {"state": row.state, "restarts": row.restarts, "completing_seconds": took, "began": began.state}


def node(world: World, lane: int) -> dict[str, Any]:
    """A node's slurmd dies: Slurm requeues after SlurmdTimeout, our exclusion is there before it starts again."""
    run = _launch(world, "node", lane, steps=20_000)
    run.wait_step(20)
    world.cluster.kill_node(_lane(lane)[1])
    run.wait("PENDING", restarts=1, seconds=700)
    run.wait("RUNNING", restarts=1, seconds=200)
    found = {**_row(run), "nodes": list(run.nodes)}
    world.cluster.must("scancel", str(run.job_id))
    return found


def dead_node(world: World, lane: int) -> dict[str, Any]:
    """A node dies under a hung job: requeued with the exclusion, COMPLETING until the node is DOWN."""
    hang = {"kind": "hang", "attempt": 0, "node": _lane(lane)[1], "step": 12}
    run = _launch(world, "dead_node", lane, steps=20, collective_seconds=600, faults=[hang], gpus_per_node=0)
    run.wait_step(11)
    world.cluster.kill_node(_lane(lane)[1])
    run.wait("COMPLETING", restarts=1, seconds=120)
    run.wait("COMPLETED", restarts=1, seconds=700)
    return {**_row(run), "nodes": list(run.nodes)}


Scenario = Callable[[World, int], dict[str, Any]]
SCENARIOS: dict[str, Scenario] = {
    "xid": xid,
    "cancel": cancel,
    "stubborn": stubborn,
    "node": node,
    "dead_node": dead_node,
}
_LANES = {name: lane for lane, name in enumerate(SCENARIOS)}


def _launch(world: World, name: str, lane: int, **what: Any) -> Run:
    return world.launch("alice", Training(name=name, options=(f"--partition=lane{lane}",), **what))


def main(names: list[str]) -> int:
    chosen = {name: scenario for name, scenario in SCENARIOS.items() if not names or name in names}
    with (
        running_cluster(DEFAULTS) as (cluster, kernel),
        running_world(cluster, kernel, policy=POLICY) as world,
        ThreadPoolExecutor(max_workers=len(SCENARIOS)) as pool,
    ):
        running = {name: pool.submit(scenario, world, _LANES[name]) for name, scenario in chosen.items()}
        found = {}
        for name, outcome in running.items():
            try:
                found[name] = outcome.result()
            except Exception as error:  # the boundary of one scenario: the others are told all the same
                found[name] = {"error": f"{type(error).__name__}: {error}"}
        for program in world.stack.programs:
            print(program.last_words(200), file=sys.stderr)  # what a failed run is understood by
        print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
