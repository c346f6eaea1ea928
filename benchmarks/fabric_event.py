"""A fabric event: a thousand jobs fail within a minute. `python -m advisor.demo.namespace -- python -m
benchmarks.fabric_event [--jobs N] [--json]`

Real: slurmctld, the slurmds, the jobs (tasks of one array, each a batch script of its own that prints NCCL's words
about a dead port and exits 1), advisor, agent, watchdog, Postgres. Emulated: the hosts (eight slurmds on one machine,
which pretend to have 128 CPUs together) and the fabric (root writes "Link down" into the kernel log of every node at
the moment of the event). As many jobs as there are CPUs wait at a gate; all that follow fail at once when they start.

Printed: how long the failing took; from a job's end to its advice (p50, p95, max) and when the last was advised; RPCs
per second on slurmctld by our user and in all, before and during, as `sdiag` counts them, and the most that our user
sent within any ten seconds beside the agent's cap (the watchdog, of the same user, has none and its own interval);
requeues made, and what the agent's cap on them held back; nodes excluded, and nodes isolated, of which there must be
none.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from advisor.client import Client
from advisor.demo.cluster import SLURM_USER, Cluster, ClusterError, Shape
from advisor.demo.namespace import CannotEnterError
from advisor.demo.stack import Stack
from advisor.demo.waiting import TookTooLongError, wait_for
from advisor.demo.world import running_cluster
from advisor.v1 import audit_pb2, common_pb2
from benchmarks._progress import now_at, telling
from benchmarks.latency import summary
from slurm_plugin.config import SlurmSection

QUIET_SECONDS = 20.0
BUSY_SECONDS = 10.0
ADVISE_SECONDS = 60.0  # the target, from the last failure on
NODES = 8
SHAPE = Shape(nodes=NODES, extra=("MaxArraySize=5001", "MaxJobCount=20000"))
POLICY = {"isolate": True, "isolate_dry_run": False, "isolations_percent_max": 50.0}
AGENT = '[isolation]\nmode = "act"\nnodes_max = 4\npercent_max = 50.0\n'
_SCRIPT = """#!/bin/sh
[ "${{SLURM_RESTART_COUNT:-0}}" = 0 ] || exit 0
[ -e {gate}.open ] || read line < {gate}
n=$SLURMD_NODENAME
echo "$n:$$:1 [0] transport/net_ib.cc:93 NCCL WARN NET/IB : mlx5_0:1 Got async event : port error"
echo "[rank0]: torch.distributed.DistBackendError: NCCL error: remote process exited or there was a network error"
exit 1
"""


def rpcs(cluster: Cluster) -> tuple[int, int]:
    """(all RPCs that slurmctld has served, those of SlurmUser, as whom the agent and the watchdog run)."""
    text = cluster.must("sdiag")
    by_type = text.partition("Remote Procedure Call statistics by message type")[2]
    by_type, _, by_user = by_type.partition("Remote Procedure Call statistics by user")
    total = sum(int(count) for count in re.findall(r"count:(\d+)", by_type))
    ours = re.search(rf"^\s*{SLURM_USER}\s.*count:(\d+)", by_user.partition("Pending RPC")[0], re.MULTILINE)
    return total, int(ours.group(1)) if ours else 0


def event(cluster: Cluster, stack: Stack, jobs: int) -> dict[str, Any]:
    """Submit, wait for a full house, measure the quiet, open the gate, and follow what comes."""
    gate = cluster.runtime.home("alice") / "gate"
    os.mkfifo(gate)  # who waits at it costs nothing
    shutil.chown(gate, "alice", "alice")
    opt_in = '--comment={"advisor": {"enabled": true}}'
    cluster.submit(
        "alice",
        _SCRIPT.format(gate=gate),
        f"--array=0-{jobs - 1}",
        *("-N1", "-n1", "--mem=1", opt_in, f"--output={cluster.runtime.home('alice')}/%A_%a.out"),
    )
    now_at("until as many jobs run as there is room for")
    running = wait_for("a full house", lambda: _full(cluster), seconds=180, every_seconds=2.0)
    now_at(f"{QUIET_SECONDS:g} s of quiet")
    before = _rate(cluster, QUIET_SECONDS)
    for node in cluster.nodes:
        _link_down(cluster.kernel_log(node), node)
    meter = Meter(cluster)
    began, at, counted = _now(), time.monotonic(), rpcs(cluster)
    gate.with_name(f"{gate.name}.open").touch()
    end = os.open(gate, os.O_RDWR)  # never waits; all who wait at the gate have it open now
    time.sleep(1.0)
    os.close(end)  # and read its end
    now_at(f"{jobs} jobs fail")
    wait_for("all failed", lambda: len(_ends(cluster)) >= jobs, seconds=600, every_seconds=2.0)
    failing = _rates(counted, rpcs(cluster), time.monotonic() - at)
    now_at("until all have advice, and what it costs then")
    with Client(stack.socket) as client:
        found = _advised(client, jobs)
        ends = _ends(cluster)
        last_end = max(ends.values())
        last_advice = max(found["advised"].values(), default=_now())
        waits = [(advised - ends[job]).total_seconds() for job, advised in found["advised"].items() if job in ends]
        during = _rate(cluster, QUIET_SECONDS)
        isolated = stack.ask("nodes", "isolations")
    return {
        "jobs": jobs,
        "running_at_once": running,
        "failing_seconds": (last_end - began).total_seconds(),
        "advised": len(found["advised"]),
        "advised_in_time": sum(at <= last_end + timedelta(seconds=ADVISE_SECONDS) for at in found["advised"].values()),
        "end_to_advice_seconds": summary(waits) if waits else {},
        "last_advice_after_last_end_seconds": (last_advice - last_end).total_seconds(),
        "reasons": found["reasons"],
        "excluding": found["excluding"],
        "rpcs_per_second": {"before": before, "while_failing": failing, "after": during},
        "ours_busiest_ten_seconds": meter.busiest(),
        "agent_cap_rpcs_per_second": SlurmSection().calls_per_second,
        "isolations": isolated.get("isolations", []),
        "breaker": isolated.get("breakers", isolated.get("breaker")),
        "requeued": sum(row.restarts > 0 for row in cluster.jobs().values()),
        "drained": [node for node in cluster.nodes if "drain" in cluster.node_state(node)],
    }


class Meter:
    """Counts our user's RPCs once a second until it is asked, in a thread of its own."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._ended = threading.Event()
        self._counted: list[tuple[float, int]] = []
        self._thread = threading.Thread(target=self._count, daemon=True)
        self._thread.start()

    def _count(self) -> None:
        while not self._ended.wait(1.0):
            with suppress(
                ClusterError, subprocess.TimeoutExpired
            ):  # a busy slurmctld: the next second's count holds all
                self._counted.append((time.monotonic(), rpcs(self._cluster)[1]))

    def busiest(self) -> float:
        """The most per second, over ten seconds or the little more that a late look makes of them."""
        self._ended.set()
        self._thread.join()
        found = 0.0
        for at, count in self._counted:
            later = next((other for other in self._counted if other[0] >= at + BUSY_SECONDS), None)
            if later is not None:
                found = max(found, (later[1] - count) / (later[0] - at))
        return found


def _now() -> datetime:
    return datetime.fromtimestamp(time.time(), UTC)  # noqa: TID251 - the harness's own clock


def _full(cluster: Cluster) -> int | None:
    """How many run, once no more can: every CPU is taken, or no job waits."""
    states = [row.state for row in cluster.jobs().values()]
    count = states.count("RUNNING")
    return count if count and (count >= NODES * 16 or "PENDING" not in states) else None


def _link_down(log: Path, node: str) -> None:
    at = _now().isoformat(timespec="microseconds")
    with log.open("a", encoding="ascii") as file:
        file.write(f"{at} {node} kernel: mlx5_core 0000:3b:00.0 ens1f0np0: Link down\n")


def _ends(cluster: Cluster) -> dict[str, datetime]:
    """When each attempt 0 ended, by Slurm's completion log; the restarted ones write further lines."""
    found: dict[str, datetime] = {}
    if not cluster.jobcomp.exists():
        return found
    for line in cluster.jobcomp.read_text(encoding="utf-8", errors="replace").splitlines():
        job, end = re.match(r"JobId=(\d+) ", line), re.search(r" EndTime=(\S+) ", line)
        if job and end and job.group(1) not in found and re.search(r" JobState=FAILED ", line):
            stamp = end.group(1)
            at = int(stamp) if stamp.isdigit() else datetime.fromisoformat(stamp).timestamp()
            found[job.group(1)] = datetime.fromtimestamp(at, UTC)
    return found


def _rate(cluster: Cluster, seconds: float) -> dict[str, float]:
    first, at = rpcs(cluster), time.monotonic()
    time.sleep(seconds)
    return _rates(first, rpcs(cluster), time.monotonic() - at)


def _rates(first: tuple[int, int], last: tuple[int, int], seconds: float) -> dict[str, float]:
    return {"all": (last[0] - first[0]) / seconds, "ours": (last[1] - first[1]) / seconds}


def _advised(client: Client, jobs: int) -> dict[str, Any]:
    """The first advice of every job that says what to do, until all have one or the time is up."""
    deadline = time.monotonic() + 3 * ADVISE_SECONDS
    while True:
        advised: dict[str, datetime] = {}
        reasons: dict[str, int] = {}
        excluding: dict[str, list[str]] = {}
        for decision in client.decisions(audit_pb2.Filter(), most=20 * jobs):
            advice = decision.advice
            word = f"{common_pb2.Action.Name(advice.action).removeprefix('ACTION_').lower()}: {advice.reason}"
            reasons[word] = reasons.get(word, 0) + 1
            if advice.action == common_pb2.ACTION_NONE:
                continue
            job = advice.attempt.job_id
            at = advice.created_at.ToDatetime(tzinfo=UTC)
            advised[job] = min(at, advised.get(job, at))
            if advice.exclude_nodes:
                excluding[job] = list(advice.exclude_nodes)
        if len(advised) >= jobs or time.monotonic() > deadline:
            return {"advised": advised, "reasons": reasons, "excluding": excluding}
        time.sleep(2.0)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.fabric_event", description=__doc__)
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    try:
        with telling(), running_cluster(SHAPE) as (cluster, _):
            stack = Stack(cluster=cluster, policy=POLICY, agent_sections=AGENT)
            stack.prepare()
            try:
                stack.start()
                found = event(cluster, stack, options.jobs)
            finally:
                stack.stop()
    except (CannotEnterError, TookTooLongError) as error:
        print(error, file=sys.stderr)
        return 2
    if options.json:
        print(json.dumps(found))
    else:
        for key, value in found.items():
            print(f"{key:<36} {json.dumps(value)}")
    good = found["advised_in_time"] >= options.jobs and not found["drained"] and not found["isolations"]
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
