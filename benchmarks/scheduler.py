"""What asking Slurm costs slurmctld: `python -m advisor.demo.namespace -- python -m benchmarks.scheduler [--json]`

A real slurmctld with 1,000 and then 2,000 jobs that wait (held, each with a comment), and per way of reading, over many
rounds of a quiet cluster: slurmctld's CPU time (utime + stime of its process, less what it uses when nobody asks), the
RPCs and their time as `sdiag` counts them, the CPU time of the tools, which run on the same host, and how long the
caller waited. Ours: one look of the agent (two `squeue` with columns, one `sinfo`), and the same from one
`squeue --json`. Beside them what others do: `squeue` of all, `scontrol show job` of all, and one by one.

Then the agent's own gate in front of the tools: how many RPCs a second reach slurmctld however often somebody asks.
"""

import argparse
import json
import re
import resource
import statistics
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass

from advisor.demo.cluster import Cluster, Shape
from advisor.demo.namespace import CannotEnterError
from advisor.demo.world import running_cluster
from benchmarks._processes import cpu_seconds
from benchmarks._progress import now_at, telling
from slurm_plugin.config import SlurmSection
from slurm_plugin.job_json import parse_details, parse_rows
from slurm_plugin.pace import Pace
from slurm_plugin.squeue import Slurm, SlurmError, run_process

ROUNDS = 20
JOBS = (1000, 2000)
TARGET_MILLISECONDS = 150.0  # of slurmctld's time per tick, at 1,000 jobs, by the cheap way
ONE_BY_ONE = 20  # jobs of the reference that asks for each; its cost is scaled up
GATE_SECONDS, ASKERS = 10.0, 8
SHAPE = Shape(nodes=4, extra=("MaxJobCount=20000",))
_RPC = re.compile(r"^\s*(\w+)\s+\(\s*\d+\)\s+count:(\d+)\s+ave_time:\d+\s+total_time:(\d+)", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Per round. Milliseconds; `rpcs` are those that sdiag counted, less sdiag's own."""

    way: str
    slurmctld_cpu_ms: float
    sdiag_ms: float
    rpcs: float
    tools_cpu_ms: float
    waited_ms: float


def rpc_totals(cluster: Cluster) -> tuple[int, float]:
    """(RPCs served, milliseconds that they took), as slurmctld tells; its statistics' own left out."""
    text = cluster.must("sdiag").partition("statistics by message type")[2].partition("statistics by user")[0]
    found = [(int(count), int(total)) for name, count, total in _RPC.findall(text) if name != "REQUEST_STATS_INFO"]
    return sum(count for count, _ in found), sum(total for _, total in found) / 1000


def submit(cluster: Cluster, jobs: int) -> None:
    """Held, so that nothing happens while it is measured; with what a job of ours carries."""
    options = ("-H", "-N2", '--comment={"advisor": {"enabled": true, "max_restarts": 5}}', "-o", "out-%j.log")
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: cluster.submit("alice", "#!/bin/sh\nexit 0\n", *options), range(jobs)))


def measure(cluster: Cluster, way: str, ask: Callable[[], object], *, scale: float = 1.0, idle: float = 0.0) -> Cost:
    """`idle`: seconds of CPU that slurmctld uses per second when nobody asks."""
    now_at(f"{way}: {ROUNDS} rounds")
    ask()
    pid, waits = cluster.pid("slurmctld"), []
    count, took = rpc_totals(cluster)
    tools, begun, before = _children(), time.monotonic(), cpu_seconds(pid)
    for _ in range(ROUNDS):
        at = time.monotonic()
        ask()
        waits.append(time.monotonic() - at)
    used = cpu_seconds(pid) - before - idle * (time.monotonic() - begun)
    tools = _children() - tools
    count_after, took_after = rpc_totals(cluster)
    per = scale / ROUNDS
    return Cost(
        way=way,
        slurmctld_cpu_ms=round(max(used, 0.0) * per * 1000, 2),
        sdiag_ms=round((took_after - took) * per, 2),
        rpcs=round((count_after - count) * per, 2),
        tools_cpu_ms=round(tools * per * 1000, 1),
        waited_ms=round(statistics.median(waits) * scale * 1000, 1),
    )


def _children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def ways(cluster: Cluster, idle: float) -> list[Cost]:
    slurm = Slurm(conf=str(cluster.conf), timeout_seconds=60)

    def tool(*argv: str) -> bytes:
        said = slurm.tool(*argv)
        assert said.returncode == 0, said.stderr
        return said.stdout

    def look() -> None:
        slurm.jobs()
        slurm.nodes()

    def by_json() -> None:
        text = tool("squeue", "-a", "-t", "all", "--json")
        parse_rows(text), parse_details(text)
        slurm.nodes()

    ids = [row.job_id for row in slurm.jobs()[:ONE_BY_ONE]]
    jobs = len(slurm.jobs())
    found = [
        measure(cluster, "ours: one look, columns", look, idle=idle),
        measure(cluster, "ours: one look, JSON", by_json, idle=idle),
        measure(cluster, "ours: details (when a job is new, else each minute)", slurm.details, idle=idle),
        measure(cluster, "reference: squeue", lambda: tool("squeue", "-a", "-t", "all"), idle=idle),
        measure(cluster, "reference: scontrol show job", lambda: tool("scontrol", "-o", "show", "job"), idle=idle),
    ]
    each = measure(
        cluster,
        "reference: scontrol show job, one by one",
        lambda: [tool("scontrol", "-o", "show", "job", job) for job in ids],
        scale=jobs / len(ids),
        idle=idle,
    )
    return [*found, each]


def quiet(cluster: Cluster, seconds: float = 5.0) -> float:
    """Seconds of CPU per second of a slurmctld that nobody asks."""
    pid = cluster.pid("slurmctld")
    before = cpu_seconds(pid)
    time.sleep(seconds)
    return (cpu_seconds(pid) - before) / seconds


def gated(cluster: Cluster) -> dict[str, float]:
    """Many askers without a pause behind the agent's gate: what reaches slurmctld is what the gate lets through."""
    pace = Pace(run_process, per_second=SlurmSection().calls_per_second)
    slurm = Slurm(conf=str(cluster.conf), timeout_seconds=60, run=pace)
    count, _ = rpc_totals(cluster)
    begun = time.monotonic()

    def ask(_: int) -> int:
        looks = 0
        while time.monotonic() - begun < GATE_SECONDS:
            try:
                slurm.jobs()
            except SlurmError:
                continue
            looks += 1
        return looks

    with ThreadPoolExecutor(ASKERS) as pool:
        looks = sum(pool.map(ask, range(ASKERS)))
    took = time.monotonic() - begun
    served = rpc_totals(cluster)[0] - count
    return {"limit_per_second": SlurmSection().calls_per_second, "looks": looks, "rpcs_per_second": served / took}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--jobs", type=int, nargs="*", default=list(JOBS))
    options = parser.parse_args()
    result: dict[str, object] = {"target_ms": TARGET_MILLISECONDS, "costs": {}}
    costs: dict[str, list[dict[str, object]]] = {}
    with telling(), running_cluster(SHAPE) as (cluster, _):
        result["slurm"] = Slurm(conf=str(cluster.conf)).config().version
        there = 0
        for jobs in options.jobs:
            now_at(f"{jobs - there} jobs are submitted")
            submit(cluster, jobs - there)
            there = jobs
            idle = quiet(cluster)
            costs[str(jobs)] = [asdict(cost) for cost in ways(cluster, idle)]
        now_at("the agent's gate")
        result["gate"] = gated(cluster)
    result["costs"] = costs
    print(json.dumps(result, indent=2) if options.json else _table(result, costs))
    return 0


def _table(result: dict[str, object], costs: dict[str, list[dict[str, object]]]) -> str:
    lines = [f"Slurm {result['slurm']}; per round, milliseconds (target: {TARGET_MILLISECONDS:g} of slurmctld's CPU)"]
    for jobs, rows in costs.items():
        lines.append(f"\n{jobs} jobs{'':42} slurmctld CPU   sdiag   RPCs   tools CPU   waited")
        lines += [
            f"  {row['way']:<52}{row['slurmctld_cpu_ms']:>9}{row['sdiag_ms']:>8}{row['rpcs']:>7}"
            f"{row['tools_cpu_ms']:>12}{row['waited_ms']:>9}"
            for row in rows
        ]
    return "\n".join([*lines, f"\nbehind the gate: {result['gate']}"])


if __name__ == "__main__":
    try:
        sys.exit(main())
    except CannotEnterError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
