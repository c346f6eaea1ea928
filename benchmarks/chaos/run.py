"""One run: the stage is set, the schedule played, everything undone, calm awaited, and what was seen is gathered."""

import contextlib
import json
import os
import random
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from advisor.demo.cluster import Cluster, ClusterError, Shape
from advisor.demo.namespace import Runtime
from advisor.demo.world import running_cluster
from benchmarks._processes import processes
from benchmarks.chaos import tricks
from benchmarks.chaos.accounting import Account, Seen, judge, restart_delays
from benchmarks.chaos.injections import Done, Injector
from benchmarks.chaos.jobs import Launcher
from benchmarks.chaos.schedule import Schedule, Story
from benchmarks.chaos.stage import Stage
from benchmarks.chaos.witness import Use, Witness, read_controller, read_starts

NODES = 8
SHAPE = Shape(nodes=NODES, min_job_age_seconds=300)
CALM_SECONDS_MAX = 300.0
STILL_SECONDS = 30.0
REPLAYS = 8
# What a program may take at most, its own memory in MB and its descriptors: a leak of an hour shows. A backend of
# Postgres keeps the files of its tables open, by itself up to max_files_per_process, which is 1,000.
MEMORY_MB_MAX = {"advisor": 700.0, "agent": 200.0, "watchdog": 60.0}
DESCRIPTORS_MAX = {"postgres": 1_000}
DESCRIPTORS_MAX_OF_OTHERS = 400
_TELL_SECONDS = 60.0
_LEAVE_SECONDS = 15.0


@dataclass(slots=True, kw_only=True)
class Outcome:
    schedule: Schedule
    replicas: int
    account: Account
    injected: Sequence[Done]
    hostile: Mapping[int, str]
    uses: Mapping[str, Use]
    gone: Mapping[str, int]
    delays: tuple[Sequence[float], Sequence[float]]  # seconds from end to requeue: all, and with nothing broken
    decisions: int = 0
    lateness: float = 0.0
    refused: int = 0
    took: float = 0.0
    calm: float = 0.0
    slurm_silent: float = 0.0
    logs: dict[str, str] = field(default_factory=dict)  # last words of our programs, where something was wrong


Tell = Callable[[str], None]


def play(runtime: Runtime, schedule: Schedule, *, replicas: int, tell: Tell, keep: Path | None = None) -> Outcome:
    """Everything, from nothing to nothing."""
    began = time.monotonic()
    before = _mounts()
    with _stage(runtime, replicas) as (stage, witness, launcher, injector):
        tell(f"up in {time.monotonic() - began:.1f} s")
        zero = time.monotonic()
        witness.start()
        launcher.play(schedule.jobs, zero)
        injector.play(schedule.injections, zero)
        told = zero
        while time.monotonic() - zero < schedule.seconds:
            time.sleep(0.2)
            if time.monotonic() - told >= _TELL_SECONDS:
                told = time.monotonic()
                left = (zero + schedule.seconds - told) / 60
                tell(f"{len(injector.log)} injections, {len(launcher.launched)} jobs; {left:.0f} min to go")
        launcher.stop_launching()
        injector.undo_all()
        ended = time.time()  # noqa: TID251 - compared with Slurm's own times
        tell(f"{len(injector.log)} injections, {len(launcher.launched)} jobs; calm now")
        calm = _await_calm(launcher, witness)
        account, delays, decisions = _examine(stage, witness, launcher, injector, ended, schedule.seed, tell)
        outcome = Outcome(
            schedule=schedule,
            replicas=replicas,
            account=account,
            injected=injector.log,
            hostile=injector.hostile,
            uses=witness.uses,
            gone=stage.gone,
            delays=delays,
            decisions=len(decisions),
            lateness=launcher.lateness,
            refused=len(launcher.refused),
            calm=calm,
            slurm_silent=sum(end - begin for begin, end in witness.silent),
        )
        if keep is not None:
            _keep_logs(stage, keep, decisions)
    _check_left(before, account)
    outcome.took = time.monotonic() - began
    return outcome


@contextmanager
def _stage(runtime: Runtime, replicas: int) -> Iterator[tuple[Stage, Witness, Launcher, Injector]]:
    with contextlib.ExitStack() as stack:
        cluster: Cluster
        cluster, kernel = stack.enter_context(running_cluster(SHAPE, runtime=runtime))
        stage = Stage(cluster=cluster, replicas=replicas)
        stack.callback(stage.unmount)
        stack.callback(_end_jobs, cluster)
        stack.callback(stage.stop)
        stage.start()
        witness = Witness(stage=stage)
        stack.callback(witness.stop)
        launcher = Launcher(stage=stage, kernel=kernel, witness=witness)
        stack.callback(launcher.stop_launching)
        injector = Injector(stage=stage, launcher=launcher)
        stack.callback(injector.undo_all)
        yield stage, witness, launcher, injector


def _end_jobs(cluster: Cluster) -> None:
    """Held and hostile ones too, so that whatever is left afterwards is a leak of somebody's."""
    with contextlib.suppress(ClusterError, OSError, subprocess.SubprocessError):
        live = [
            job_id for job_id, row in cluster.jobs().items() if row.state not in ("COMPLETED", "FAILED", "CANCELLED")
        ]
        if live:
            cluster.command("scancel", *map(str, live))
        deadline = time.monotonic() + _LEAVE_SECONDS
        while time.monotonic() < deadline and any(
            row.state in ("RUNNING", "COMPLETING", "PENDING") for row in cluster.jobs().values()
        ):
            time.sleep(0.3)


def _await_calm(launcher: Launcher, witness: Witness) -> float:
    """Until no job of an ordinary user changes any more; how long that took."""
    began = time.monotonic()
    held = {item.job_id for item in launcher.launched if item.plan.story is Story.HELD}
    while time.monotonic() - began < CALM_SECONDS_MAX:
        time.sleep(0.5)
        now = time.time()  # noqa: TID251
        mine = [witness.jobs.get(item.job_id, []) for item in launcher.launched]
        newest = max((seen[-1].at for seen in mine if seen), default=0.0)
        if not set(launcher.live()) - held and now - newest > STILL_SECONDS:
            break
    return time.monotonic() - began


def _examine(
    stage: Stage, witness: Witness, launcher: Launcher, injector: Injector, ended: float, seed: int, tell: Tell
) -> tuple[Account, tuple[list[float], list[float]], Sequence[Mapping[str, Any]]]:
    done = stage.cli("decisions", "list", "--limit", "10000", "--format", "json", seconds=120)
    decisions: list[Mapping[str, Any]] = json.loads(done.stdout) if done.returncode == 0 else []
    verified = stage.cli("audit", "verify", seconds=120)
    replays = random.Random(seed).sample(decisions, min(REPLAYS, len(decisions)))
    broken = [
        one["advice"]["advice_id"] for one in replays if stage.cli("replay", one["advice"]["advice_id"]).returncode != 0
    ]
    witness.look()
    witness.stop()
    tell(f"{len(decisions)} decisions, {len(replays)} replayed")
    seen = Seen(
        launched=launcher.launched,
        acts=launcher.acts,
        injected=injector.log,
        hostile=injector.hostile,
        jobs=witness.jobs,
        nodes=witness.nodes,
        ran={item.job_id: read_starts(item.folder / "starts") for item in launcher.launched},
        controller=read_controller(stage.cluster.controller_log),
        decisions=decisions,
        ended=ended,
        replicas=stage.replicas,
    )
    account = judge(seen)
    if done.returncode != 0:
        account.breach("the advisor answers when all is calm", done.stderr.strip()[-300:])
    if verified.returncode != 0:
        account.breach("the audit chain verifies", (verified.stdout + verified.stderr).strip()[-300:])
    for one in broken:
        account.breach("every decision can be replayed", one)
    _check_programs(witness, account)
    for proof in tricks.proofs(stage.cluster):
        account.breach("no code of a tenant runs", Path(proof).name)
    return account, restart_delays(seen), decisions


def _check_programs(witness: Witness, account: Account) -> None:
    if witness.failure:
        account.breach("the witness saw all of it", witness.failure)
    for zombie in witness.zombies:
        account.breach("no zombie is left", zombie)
    for name, use in witness.uses.items():
        limit = MEMORY_MB_MAX.get(name.rstrip("0123456789"))
        if limit is not None and use.resident_mb > limit:
            account.breach("memory is bounded", f"{name}: {use.resident_mb:.0f} MB, at most {limit:.0f}")
        bound = DESCRIPTORS_MAX.get(name, DESCRIPTORS_MAX_OF_OTHERS)
        if use.descriptors > bound:
            account.breach("descriptors are bounded", f"{name}: {use.descriptors}, at most {bound}")


def _check_left(mounts: frozenset[str], account: Account) -> None:
    """Processes of this network namespace, which is the run's own, and mounts."""
    mine = Path("/proc/self/ns/net").readlink()
    deadline = time.monotonic() + _LEAVE_SECONDS
    while (left := _left(mine)) and time.monotonic() < deadline:
        time.sleep(0.3)
    # A step that a restarted slurmd no longer knows goes on with its processes for as long as it likes.
    steps = {pid for pid, words in left.items() if words.startswith("slurmstepd: ")}
    for pid, words in left.items():
        if steps & {pid, *_above(pid)}:
            account.notes.append(f"left by Slurm itself: {words}")
        else:
            account.breach("no process is left", words)
    for path in _mounts() - mounts:
        account.breach("no mount is left", Path(path).name)


def _left(namespace: Path) -> dict[int, str]:
    found = {}
    for pid, _ in processes():
        with contextlib.suppress(OSError):
            if pid != os.getpid() and Path(f"/proc/{pid}/ns/net").readlink() == namespace:
                words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                if words:
                    found[pid] = words[:100]
    return found


def _above(pid: int) -> Iterator[int]:
    """Its parent, and so on."""
    parents = dict(processes())
    while (pid := parents.get(pid, 0)) > 1:
        yield pid


def _mounts() -> frozenset[str]:
    text = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape")
    return frozenset(line.split()[4] for line in text.splitlines())


def _keep_logs(stage: Stage, folder: Path, decisions: Sequence[Mapping[str, Any]]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "decisions.json").write_text(json.dumps(decisions, indent=1), encoding="utf-8")
    for log in (*sorted((stage.root / "log").glob("*.log")), stage.cluster.controller_log, stage.cluster.jobcomp):
        with contextlib.suppress(OSError):
            (folder / log.name).write_bytes(log.read_bytes())
