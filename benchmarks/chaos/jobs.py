"""The jobs of a run: launched as planned when there is room, cancelled and held as their users do."""

import contextlib
import json
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from advisor.demo.cluster import ClusterError
from advisor.demo.training import Fault, KernelLogWriter, Training, launch, work_folder
from benchmarks.chaos.schedule import PlannedJob, Story
from benchmarks.chaos.stage import Stage
from benchmarks.chaos.witness import Witness

LIVE_MAX = 7
_TRY_SECONDS = 25.0
LIVE = frozenset({"PENDING", "RUNNING", "COMPLETING", "CONFIGURING"})
CONFIG_ERROR = "train.py: error: unrecognized arguments: --tensor-paralel-size 4"
OUT_OF_MEMORY = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total capacity of 79.10 GiB "
    "of which 1.20 GiB is free."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Launched:
    plan: PlannedJob
    job_id: int
    at: float
    folder: Path
    excluded: frozenset[str]  # by its user, at submission


@dataclass(frozen=True, slots=True, kw_only=True)
class Act:
    """What a person did to a job."""

    at: float
    job_id: int
    what: str
    accepted: bool


@dataclass(slots=True, kw_only=True)
class Launcher:
    stage: Stage
    kernel: KernelLogWriter
    witness: Witness
    launched: list[Launched] = field(default_factory=list)
    refused: list[tuple[PlannedJob, str]] = field(default_factory=list)
    acts: list[Act] = field(default_factory=list)
    lateness: float = 0.0
    _stop: threading.Event = field(default_factory=threading.Event)
    _threads: list[threading.Thread] = field(default_factory=list)

    def play(self, jobs: Sequence[PlannedJob], began: float) -> None:
        """In a thread of its own: `began` is monotonic."""
        for target in (lambda: self._launch_all(jobs, began), self._cancel_all):
            thread = threading.Thread(target=target, name="jobs", daemon=True)
            thread.start()
            self._threads.append(thread)

    def stop_launching(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(timeout=90)

    def live(self) -> list[int]:
        rows = {item.job_id: self.witness.last(item.job_id) for item in self.launched}
        return [job_id for job_id, row in rows.items() if row is None or row.state in LIVE]

    def _launch_all(self, jobs: Sequence[PlannedJob], began: float) -> None:
        for plan in jobs:
            while not self._stop.is_set() and (time.monotonic() - began < plan.at or len(self.live()) >= LIVE_MAX):
                time.sleep(0.2)
            if self._stop.is_set():
                return
            self.lateness = max(self.lateness, time.monotonic() - began - plan.at)
            self._launch(plan)

    def _launch(self, plan: PlannedJob) -> None:
        excluded = ("node8",) if plan.story is Story.EXCLUDING else ()
        name = f"j{plan.number}"
        training = Training(
            name=name,
            nodes=plan.nodes,
            ranks_per_node=1,
            gpus_per_node=0,  # Slurm 22.05.8 loses count of the GPUs of a job whose node died (docs/slurm.md)
            steps=plan.steps,
            step_seconds=0.25,
            collective_seconds=600.0 if plan.story is Story.HANG else 2.0,
            faults=faults(plan),
            opt_in=plan.story is not Story.NOT_OURS,
            prelude=f"echo ${{SLURM_RESTART_COUNT:-0}} $(date +%s.%N) $SLURM_JOB_NODELIST >> {name}/starts\n",
            options=(
                "--exclusive",
                *((f"--exclude={','.join(excluded)}",) if excluded else ()),
                *(("--hold",) if plan.story is Story.HELD else ()),
            ),
        )
        cluster = self.stage.cluster
        for _ in range(2):
            try:
                at = time.time()  # noqa: TID251 - compared with Slurm's own times
                job_id = launch(cluster, self.kernel, plan.user, training)
            except (ClusterError, OSError) as error:
                said = str(error)
                folder = work_folder(cluster, plan.user, training)
                with contextlib.suppress(OSError):
                    (folder / "faults.json").unlink()
                    folder.rmdir()
                self._stop.wait(2.0)
                continue
            self.launched.append(
                Launched(
                    plan=plan,
                    job_id=job_id,
                    at=at,
                    folder=work_folder(cluster, plan.user, training),
                    excluded=frozenset(excluded),
                )
            )
            return
        self.refused.append((plan, said))

    def _cancel_all(self) -> None:
        due: dict[int, float] = {}
        done: set[int] = set()
        while not self._stop.wait(0.2):
            for item in list(self.launched):
                row = self.witness.last(item.job_id)
                if item.job_id in done or row is None:
                    continue
                waits_for = {Story.CANCELLED: row.state == "RUNNING", Story.CANCELLED_AFTER: row.restarts > 0}
                if item.job_id not in due and waits_for.get(item.plan.story, False):
                    due[item.job_id] = time.monotonic() + item.plan.cancel_after
                if time.monotonic() >= due.get(item.job_id, float("inf")):
                    done.add(item.job_id)
                    self.act(item.job_id, "cancel", item.plan.user, "scancel", str(item.job_id))

    def act(self, job_id: int, what: str, user: str, *argv: str) -> bool:
        """Tries for a while: slurmctld may be away."""
        deadline = time.monotonic() + _TRY_SECONDS
        accepted = False
        while not accepted and time.monotonic() < deadline:
            at = time.time()  # noqa: TID251
            with contextlib.suppress(OSError, TimeoutError):
                done = self.stage.cluster.command(*argv, user=user)
                accepted = done.returncode == 0 and not done.stderr
            if not accepted and self._stop.wait(1.0):
                break
        self.acts.append(Act(at=at, job_id=job_id, what=what, accepted=accepted))
        return accepted


def faults(plan: PlannedJob) -> list[Fault]:
    last = plan.nodes - 1
    once = {"attempt": 0, "rank": last, "step": plan.fails_at}
    match plan.story:
        case Story.CRASH | Story.NOT_OURS | Story.CANCELLED_AFTER:
            return [{"kind": "keyerror", **once}]
        case Story.XID | Story.EXCLUDING:
            return [{"kind": "xid79", **once}]
        case Story.HANG:
            return [{"kind": "hang", **once}]
        case Story.KILLED:
            return [{"kind": "sigkill", **once}]
        case Story.HOPELESS:
            return [{"kind": "line", "text": CONFIG_ERROR, "step": 1}, {"kind": "exit", "code": 2, "step": 1}]
        case Story.GPU_MEMORY:
            text = f"[rank{last}]: {OUT_OF_MEMORY}"
            where = {"rank": last, "step": plan.fails_at}
            return [{"kind": "line", "text": text, **where}, {"kind": "exit", "code": 1, **where}]
        case _:
            return []


def planned_failure(plan: PlannedJob, attempt: int) -> bool:
    """Was this attempt to fail by itself?"""
    return any(fault.get("attempt", attempt) == attempt and fault["kind"] != "line" for fault in faults(plan))


def as_json(items: Sequence[Launched]) -> str:
    return json.dumps([{"job": item.job_id, "story": item.plan.story, "user": item.plan.user} for item in items])
