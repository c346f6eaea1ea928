"""What Slurm and the kernel show while chaos lasts, looked at from outside and written down as it changes.

Independent of our programs: it asks slurmctld as root, reads its log and completion log, what the jobs wrote of
themselves when they were started, and /proc.
"""

import contextlib
import re
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from advisor.demo.cluster import Cluster, ClusterError
from advisor.demo.squeue import JobRow
from benchmarks._processes import children_of
from benchmarks.chaos.stage import Stage

LOOK_SECONDS = 0.7
SAMPLE_EVERY = 4
ZOMBIE_SECONDS = 15.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Sighting:
    """A job as it was first seen in this state. Times are epoch seconds of this host."""

    at: float
    row: JobRow


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSeen:
    """What was asked for at `asked` and told at `at`."""

    asked: float
    at: float
    state: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """The batch script of an attempt ran: written by the job itself."""

    at: float
    attempt: int
    nodes: str


@dataclass(slots=True, kw_only=True)
class Use:
    """The most that one program took at any look."""

    resident_mb: float = 0.0
    descriptors: int = 0
    threads: int = 0
    children: int = 0


@dataclass(slots=True, kw_only=True)
class Witness:
    stage: Stage
    jobs: dict[int, list[Sighting]] = field(default_factory=dict)
    nodes: dict[str, list[NodeSeen]] = field(default_factory=dict)
    uses: dict[str, Use] = field(default_factory=dict)
    zombies: list[str] = field(default_factory=list)
    silent: list[tuple[float, float]] = field(default_factory=list)  # slurmctld did not answer
    waits: dict[int, float] = field(default_factory=dict)  # longest wait beyond what Slurm alone would have caused
    looks: int = 0
    failure: str = ""
    _stop: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None
    _dead_since: dict[int, float] = field(default_factory=dict)
    _told: set[int] = field(default_factory=set)

    def start(self) -> None:
        self._thread = threading.Thread(target=self._watch, name="witness", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join(timeout=90)

    def last(self, job_id: int) -> JobRow | None:
        seen = self.jobs.get(job_id)
        return seen[-1].row if seen else None

    def _watch(self) -> None:
        try:
            while not self._stop.wait(LOOK_SECONDS):
                self.look()
        except Exception as error:  # the thread's boundary: a witness that fell asleep must not look like one who saw
            self.failure = f"{type(error).__name__}: {error}"
            raise

    def look(self) -> None:
        began = time.time()  # noqa: TID251 - compared with Slurm's own times
        try:
            rows = self.stage.cluster.jobs()
            nodes = self._look_at_nodes(self.stage.cluster)
        except (ClusterError, OSError, ValueError, IndexError, TimeoutError):
            rows, nodes = {}, {}
        except Exception as error:
            if type(error).__name__ != "TimeoutExpired":
                raise
            rows, nodes = {}, {}
        self.looks += 1
        if not nodes:
            self.silent.append((began, time.time()))  # noqa: TID251
        for job_id, row in rows.items():
            history = self.jobs.setdefault(job_id, [])
            if not history or history[-1].row != row:
                history.append(Sighting(at=began, row=row))
        for name, seen in nodes.items():
            states = self.nodes.setdefault(name, [])
            if not states or (states[-1].state, states[-1].reason) != (seen.state, seen.reason):
                states.append(seen)
        if self.looks % SAMPLE_EVERY == 0:
            self._sample()

    @staticmethod
    def _look_at_nodes(cluster: Cluster) -> Mapping[str, NodeSeen]:
        asked = time.time()  # noqa: TID251
        done = cluster.command("sinfo", "-h", "-N", "-o", "%N|%T|%E")
        if done.returncode != 0 or done.stderr:
            return {}
        now = time.time()  # noqa: TID251
        cells = [line.split("|", 2) for line in done.stdout.splitlines()]
        return {
            cell[0]: NodeSeen(asked=asked, at=now, state=cell[1], reason="" if cell[2] == "none" else cell[2])
            for cell in cells
            if len(cell) == 3
        }

    def _sample(self) -> None:
        now = time.monotonic()
        for name in ("postgres", "slurmctld", *self.stage.programs):
            pids = self.stage.pids(name)
            if not pids:
                continue
            use = self.uses.setdefault(name, Use())
            family = pids if name == "postgres" else pids[:1]
            use.resident_mb = max(use.resident_mb, sum(_unshared_mb(pid) for pid in family))
            use.descriptors = max(use.descriptors, *(_count(pid, "fd") for pid in family))
            use.threads = max(use.threads, *(_count(pid, "task") for pid in family))
            below = children_of(pids[0])
            use.children = max(use.children, len(below))
            for pid in below:
                self._look_at_child(name, pid, now)

    def _look_at_child(self, name: str, pid: int, now: float) -> None:
        with contextlib.suppress(OSError, IndexError):
            if Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0] != "Z":
                self._dead_since.pop(pid, None)
                return
            since = self._dead_since.setdefault(pid, now)
            if now - since > ZOMBIE_SECONDS and pid not in self._told:
                self._told.add(pid)
                self.zombies.append(f"{name}: a child was left unburied for {now - since:.0f} s")


def _unshared_mb(pid: int) -> float:
    """What is the process's own: shared buffers and libraries would be counted once per process."""
    try:
        words = Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()
    except OSError:
        return 0.0
    return (int(words[1]) - int(words[2])) * 4096 / 1e6 if len(words) > 2 else 0.0


def _count(pid: int, what: str) -> int:
    with contextlib.suppress(OSError):
        return sum(1 for _ in Path(f"/proc/{pid}/{what}").iterdir())
    return 0


def read_starts(file: Path) -> Sequence[Start]:
    """`attempt epoch nodes` lines that a job's script appended; what is cut or garbled is left out."""
    try:
        text = file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ()
    cells = [line.split() for line in text.splitlines()]
    return [
        Start(at=float(cell[1]), attempt=int(cell[0]), nodes=cell[2])
        for cell in cells
        if len(cell) == 3 and cell[0].isdigit() and cell[1].replace(".", "").isdigit()
    ]


_EVENT = re.compile(
    r"^\[([0-9T:.-]+)\] (?:(?P<requeued>Requeuing) JobId=(\d+)$"
    r"|_job_complete: (?P<own>requeue) JobId=(\d+) "
    r"|(?P<lost>requeue) job JobId=(\d+) due to failure of node "
    r"|_job_complete: JobId=(\d+) (?P<done>done)"
    r"|sched: Allocate JobId=(\d+) NodeList=(?P<nodes>\S+)"
    r"|sched/backfill: _start_job: Started JobId=(\d+) in \S+ on (?P<where>\S+))"
)
_DUPLICATE = re.compile(r"^\[([0-9T:.-]+)\] error: Duplicate jobid on nodes ")
_AT_ONCE_SECONDS = 0.5


@dataclass(slots=True, kw_only=True)
class Controller:
    """What slurmctld wrote down of one job. `requeues`: those that somebody asked for."""

    requeues: list[float] = field(default_factory=list)
    own: list[float] = field(default_factory=list)  # Slurm's own, where a node had lost the job, or still ran its id
    starts: list[Start] = field(default_factory=list)
    ends: list[float] = field(default_factory=list)


def read_controller(log: Path) -> Mapping[int, Controller]:
    found: dict[int, Controller] = {}
    own: set[int] = set()
    refused_at = 0.0  # by a node that still ran a job of that id; which one it was stands nowhere
    for line in log.read_text(encoding="utf-8", errors="replace").splitlines():
        if (refused := _DUPLICATE.match(line)) is not None:
            refused_at = _epoch(refused[1])
        match = _EVENT.match(line)
        if match is None:
            continue
        at = _epoch(match[1])
        job_id = int(next(text for text in match.groups()[1:] if text is not None and text.isdigit()))
        of = found.setdefault(job_id, Controller())
        if match["own"] or match["lost"]:
            own.add(job_id)  # it will be carried out when the last node has answered
        elif match["done"]:
            of.ends.append(at)
        elif match["requeued"]:
            (of.own if job_id in own or at - refused_at < _AT_ONCE_SECONDS else of.requeues).append(at)
            own.discard(job_id)
        else:
            of.starts.append(Start(at=at, attempt=len(of.starts), nodes=match["nodes"] or match["where"]))
    return found


def _epoch(stamp: str) -> float:
    """The namespace runs in UTC."""
    return datetime.fromisoformat(stamp).replace(tzinfo=UTC).timestamp()
