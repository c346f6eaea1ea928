"""What one hostile user costs the others: a live service with the jobs of one, beside a quiet user's failures.

    python -m benchmarks.hostile_tenant [--jobs 500] [--failures 10] [--json]

A real service process with its own Postgres, and an agent that is a script. `--jobs` running jobs of one account print
all the time: forged Xids of other nodes, a step count that never ends, errors of which no two are alike, escapes, lines
without an end; each brings log rules, and every name is an injection. Meanwhile jobs of another account fail one after
the other. Measured, before and with the hostile jobs: from the moment a crash line was written until its decision was
committed; processor time, memory, and what the database grew by; how many decisions and signals the hostile account's
jobs were given, and which nodes anybody else was told to avoid.
"""

import argparse
import asyncio
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import grpc

from advisor.service.wire import stamp
from advisor.v1 import agent_pb2, agent_pb2_grpc, audit_pb2, audit_pb2_grpc, common_pb2
from benchmarks._processes import cpu_seconds, end
from benchmarks._progress import now_at, telling

CLUSTER = "test"
HOSTILE_UID, QUIET_UID = 65010, 65011
NAMES = {HOSTILE_UID: "mallory", QUIET_UID: "alice"}
NODES = tuple(f"node{number}" for number in range(1, 9))
WARM_SECONDS = 6.0
START_SECONDS = 60.0
FAILURE_SECONDS_MAX = 60.0
CRASH = "[rank3]: RuntimeError: CUDA error: uncorrectable ECC error encountered\n"
TARGET = "p50 < 1 s, p95 < 3 s"
_PROJECT = Path(__file__).resolve().parents[1]


@dataclass(slots=True, kw_only=True)
class Figures:
    jobs: int
    alone_seconds: list[float] = field(default_factory=list)
    beside_seconds: list[float] = field(default_factory=list)
    alone_cores: float = 0.0
    beside_cores: float = 0.0
    written_mb_s: float = 0.0
    memory_mb: float = 0.0
    database_mb: float = 0.0  # growth while the hostile jobs ran
    ran_seconds: float = 0.0
    hostile_decisions: int = 0
    hostile_decisions_of_one: int = 0  # the most that any job was given
    foreign: list[str] = field(default_factory=list)  # nodes of others' that a decision names: none
    quiet_stops: int = 0
    load: float = 0.0


@dataclass(slots=True, kw_only=True)
class Site:
    """The service, and the agent's connection to it."""

    folder: Path
    process: "subprocess.Popen[bytes]"
    channel: grpc.aio.Channel
    session: str = ""
    submitted: datetime = field(default_factory=lambda: datetime.now(UTC))  # noqa: TID251 - an agent's clock

    def log(self, uid: int, job: str) -> Path:
        return self.folder / NAMES[uid] / f"{job}.out"

    def job(self, uid: int, job: str, state: str, nodes: Sequence[str], **more: Any) -> agent_pb2.JobObservation:
        seen = stamp(_now())
        fields: dict[str, Any] = {
            "attempt": common_pb2.AttemptRef(
                cluster=CLUSTER, job_id=job, submitted_at=stamp(self.submitted), user=NAMES[uid]
            ),
            "user_id": uid,
            "state": common_pb2.AttemptState.Value(f"ATTEMPT_STATE_{state}"),
            "notice": agent_pb2.NOTICE_POLL,
            "observed_at": seen,
            "started_at": stamp(self.submitted),
            "partition": "train",
            "batch": True,
            "requeueable": True,
            "in_scope": True,
            "nodes": nodes,
            "nodes_known": True,
            "nodes_requested": len(nodes),
            "tasks": len(nodes),
            "nodes_fitting": len(NODES),
            "stdout_path": str(self.log(uid, job)),
            "stderr_path": str(self.log(uid, job)),
        }
        if state == "FAILED":
            fields |= {"ended_at": seen, "exit": agent_pb2.ExitStatus(code=1)}
        return agent_pb2.JobObservation(**(fields | more))

    async def report(self, jobs: Sequence[agent_pb2.JobObservation]) -> None:
        nodes = [
            agent_pb2.NodeObservation(
                name=name, state=agent_pb2.NODE_STATE_UP, observed_at=stamp(_now()), partitions=["train"]
            )
            for name in NODES
        ]
        agent = agent_pb2_grpc.AgentServiceStub(self.channel)
        await agent.ReportObservations(
            agent_pb2.ReportObservationsRequest(cluster=CLUSTER, session=self.session, jobs=jobs, nodes=nodes)
        )

    async def decisions(self, *, user: str = "", job_id: str = "") -> list[audit_pb2.Decision]:
        audit = audit_pb2_grpc.AuditServiceStub(self.channel)
        chosen = audit_pb2.Filter(cluster=CLUSTER, user=user, job_id=job_id)
        found: list[audit_pb2.Decision] = []
        cursor = ""
        while True:
            page = audit_pb2.Page(page_size=250, cursor=cursor)
            answer = await audit.ListDecisions(audit_pb2.ListDecisionsRequest(filter=chosen, page=page))
            found += answer.decisions
            cursor = answer.next_cursor
            if not cursor:
                return found

    def cpu_seconds(self) -> float:
        """Of the service itself; its Postgres is other processes."""
        return cpu_seconds(self.process.pid)

    def memory_mb(self) -> float:
        return int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6

    def database_mb(self) -> float:
        files = (self.folder / "data" / "postgres" / "data" / "base").rglob("*")
        return sum(file.stat().st_size for file in files if file.is_file()) / 1e6


@asynccontextmanager
async def site() -> AsyncIterator[Site]:
    folder = prepare()
    process = start(folder)
    try:
        deadline = time.monotonic() + START_SECONDS
        while not (folder / "run" / "s").is_socket():
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the service did not come up: {(folder / 'log').read_text()[-2000:]}")
            await asyncio.sleep(0.1)
        async with grpc.aio.insecure_channel(f"unix:{folder}/run/s") as channel:
            made = Site(folder=folder, process=process, channel=channel)
            answer = await agent_pb2_grpc.AgentServiceStub(channel).Register(
                agent_pb2.RegisterRequest(
                    cluster=CLUSTER, host="ctl", version="1", mode=agent_pb2.AGENT_MODE_ACT, scheduler="slurm 22.05.8"
                ),
                wait_for_ready=True,
                timeout=START_SECONDS,
            )
            made.session = answer.session
            yield made
    finally:
        end(process, 30)
        shutil.rmtree(folder, ignore_errors=True)


def prepare() -> Path:
    """A folder with a configuration, and one of each account's own."""
    folder = Path(tempfile.mkdtemp(prefix="ht-"))
    folder.chmod(0o755)
    for uid, name in NAMES.items():
        (folder / name).mkdir()
        os.chown(folder / name, uid, uid)
    (folder / "advisor.toml").write_text(
        f'[service]\nsocket = "{folder}/run/s"\ndata_dir = "{folder}/data"\nagent_users = ["root"]\n'
        '[log]\nlevel = "warning"\n'
    )
    return folder


def start(folder: Path) -> "subprocess.Popen[bytes]":
    with (folder / "log").open("wb") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "advisor", "serve", "--config", str(folder / "advisor.toml")],
            cwd=_PROJECT,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )


async def measure(
    jobs: int, failures: int, *, written_mb_s: float = 8.0, warm_seconds: float = WARM_SECONDS
) -> Figures:
    """`jobs` hostile ones that print `written_mb_s` MB per second together."""
    figures = Figures(jobs=jobs)
    async with site() as here:
        figures.alone_seconds, figures.alone_cores = await _failures(here, failures, first=1)
        before, began = here.database_mb(), time.monotonic()
        hostile = [_hostile(here, number) for number in range(jobs)]
        with Printing(here, jobs, written_mb_s) as printer:
            await here.report(hostile)
            now_at(f"{jobs} hostile jobs print")
            await asyncio.sleep(warm_seconds)
            figures.beside_seconds, figures.beside_cores = await _failures(here, failures, first=1000, among=hostile)
        figures.ran_seconds = time.monotonic() - began
        figures.written_mb_s = printer.written / 1e6 / figures.ran_seconds
        figures.memory_mb = here.memory_mb()
        figures.database_mb = here.database_mb() - before
        await _examine(here, figures)
    figures.load = os.getloadavg()[0]
    return figures


async def _failures(
    here: Site, count: int, *, first: int, among: Sequence[agent_pb2.JobObservation] = ()
) -> tuple[list[float], float]:
    """Seconds from a crash line on disk until its decision was committed, one after the other; cores used meanwhile."""
    took, cpu, began = [], here.cpu_seconds(), time.monotonic()
    for number in range(first, first + count):
        now_at(f"{'beside hostile jobs' if among else 'alone'}, failure {number - first + 1} of {count}")
        job, nodes = str(number), NODES[:2]
        log = here.log(QUIET_UID, job)
        log.write_text("".join(f"iteration {step:>8}/ 1000 | loss: 1.0\n" for step in range(1, 20)))
        os.chown(log, QUIET_UID, QUIET_UID)
        await here.report([*among, here.job(QUIET_UID, job, "RUNNING", nodes)])
        await asyncio.sleep(1.5)
        with log.open("a") as file:
            file.write(CRASH)
        written = time.monotonic()
        while not await here.decisions(job_id=job):
            if time.monotonic() - written > FAILURE_SECONDS_MAX:
                break
            await asyncio.sleep(0.05)
        took.append(time.monotonic() - written)
        await here.report([here.job(QUIET_UID, job, "FAILED", nodes)])
    return sorted(took), (here.cpu_seconds() - cpu) / (time.monotonic() - began)


async def _examine(here: Site, figures: Figures) -> None:
    each: dict[str, int] = {}
    for decision in await here.decisions(user="mallory"):
        each[decision.advice.attempt.job_id] = each.get(decision.advice.attempt.job_id, 0) + 1
        figures.foreign += [node for node in decision.advice.exclude_nodes if node not in NODES[2:]]
    figures.hostile_decisions = sum(each.values())
    figures.hostile_decisions_of_one = max(each.values(), default=0)
    for decision in await here.decisions(user="alice"):
        figures.foreign += [node for node in decision.advice.exclude_nodes if node not in NODES[:2]]
        figures.quiet_stops += decision.advice.action == common_pb2.ACTION_STOP


def _hostile(here: Site, number: int) -> agent_pb2.JobObservation:
    job = str(100_000 + number)
    log = here.log(HOSTILE_UID, job)
    log.touch()
    os.chown(log, HOSTILE_UID, HOSTILE_UID)
    rules = here.folder / "mallory" / f"rules{number % 16}.json"
    if not rules.exists():
        rules.write_text(json.dumps([{"name": "r", "logPattern": RULES[number % len(RULES)], "faultOnMatch": True}]))
        os.chown(rules, HOSTILE_UID, HOSTILE_UID)
    name = f"$(touch {here.folder}/proof)\nJobId=1 JobState=FAILED\x1b[2J'; DROP TABLE jobs; --"
    nodes = (NODES[2 + number % 6],)
    return here.job(HOSTILE_UID, job, "RUNNING", nodes, name=name, job_rules=str(rules))


class Printing:
    """A thread that appends to the hostile jobs' logs, round and round."""

    def __init__(self, here: Site, jobs: int, mb_s: float) -> None:
        self._logs = [here.log(HOSTILE_UID, str(100_000 + number)) for number in range(jobs)]
        self._rate = mb_s * 1e6
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._print, daemon=True)
        self.written = 0

    def __enter__(self) -> "Printing":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _print(self) -> None:
        began, at = time.monotonic(), 0
        while not self._stop.is_set():
            if self.written > self._rate * (time.monotonic() - began):
                self._stop.wait(0.01)
                continue
            text = garbage(at)
            with self._logs[at % len(self._logs)].open("ab") as file:
                file.write(text)
            self.written, at = self.written + len(text), at + 1


def garbage(seed: int) -> bytes:
    """16 KiB or so of one kind of hostile output, never the same twice."""
    table = str.maketrans("0123456789", "abcdefghij")
    match seed % 5:
        case 0:
            lines = (f"kernel: NVRM: Xid (PCI:0000:{at:02x}:00): 79, {node} has fallen off\n" for at, node in _nodes())
            return "".join(lines).encode()
        case 1:
            return "".join(f"iteration {seed * 1000 + at}/ 99999999999999 | loss: nan\n" for at in range(300)).encode()
        case 2:
            words = (str(seed * 1000 + at).translate(table) for at in range(400))
            return "".join(f"[rank{at}]: ValueError: bad {word}\n" for at, word in enumerate(words)).encode()
        case 3:
            return b"\x1b]0;x\x07\x1b[2J<script>alert(1)</script>\r=cmd|' /C calc'!A0 \xff\xfe\x00\n" * 250
        case _:
            return b"%d" % seed * 3000


def _nodes() -> list[tuple[int, str]]:
    return [(at, f"node{at % 12 + 1}") for at in range(220)]


RULES = ("(a*)*b", "(x+x+)+y", "(" * 200 + "a" + ")*" * 200, "a{1000}{1000}", ".*" * 200, "[" * 5000, ".*ValueError.*")


def _now() -> datetime:
    return datetime.now(UTC)  # noqa: TID251 - an agent's clock


def quantile(ordered: Sequence[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def show(figures: Figures) -> str:
    def spread(seconds: Sequence[float]) -> str:
        return f"p50 {quantile(seconds, 0.5):.2f} s, p95 {quantile(seconds, 0.95):.2f} s, max {seconds[-1]:.2f} s"

    most = figures.hostile_decisions_of_one
    rows: Mapping[str, str] = {
        "crash written → decision committed, alone": f"{spread(figures.alone_seconds)} (target {TARGET})",
        f"the same beside {figures.jobs} hostile jobs": spread(figures.beside_seconds),
        "processor of the service": f"{figures.alone_cores:.2f} → {figures.beside_cores:.2f} cores",
        "hostile output": f"{figures.written_mb_s:.1f} MB/s for {figures.ran_seconds:.0f} s",
        "memory of the service": f"{figures.memory_mb:.0f} MB",
        "the database grew by": f"{figures.database_mb:.1f} MB",
        "decisions about hostile jobs": f"{figures.hostile_decisions}, per job {most} at most",
        "nodes of others named": str(sorted(set(figures.foreign)) or "none"),
        "load of this machine": f"{figures.load:.1f}",
    }
    return "\n".join(f"{name:<48} {value}" for name, value in rows.items())


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=500)
    parser.add_argument("--failures", type=int, default=10)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    if os.geteuid() != 0:
        print("this needs root, to write files of two accounts", file=sys.stderr)
        return 2
    with telling():
        figures = asyncio.run(measure(options.jobs, options.failures))
    print(json.dumps(asdict(figures)) if options.json else show(figures))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
