"""Batch scripts around the training program, and the hand that writes kernel logs.

A job's user cannot write a node's kernel log, in the demo as in life. So the program announces a hardware fault, and
`KernelLogWriter`, running as root and holding its own copy of the plan, writes the driver's line. An announcement that
no plan of root's foresees changes nothing.
"""

import json
import pwd
import shutil
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from advisor.demo.cluster import Cluster

Fault = Mapping[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """One training job: how big, how long, and how it fails."""

    name: str
    nodes: int = 2
    ranks_per_node: int = 2
    gpus_per_node: int = 8
    steps: int = 30
    step_seconds: float = 0.1
    checkpoint_every: int = 5
    collective_seconds: float = 2.0  # from the death of a rank to the abort of the others
    faults: Sequence[Fault] = ()
    opt_in: bool = True
    loop: bool = False  # `while ! srun`: the script restarts its ranks itself
    prelude: str = ""  # lines of the script before the ranks are started
    options: tuple[str, ...] = ()  # further sbatch options


def xid_line(node: str, code: int, text: str) -> str:
    """One kernel record as rsyslog writes it with its precise time format."""
    at = datetime.now(UTC).isoformat(timespec="microseconds")  # noqa: TID251  # a log line's own time, as a driver's
    return f"{at} {node} kernel: NVRM: Xid (PCI:0000:1b:00): {code}, pid='<unknown>', name=<unknown>, {text}\n"


class KernelLogWriter:
    """Watches the announcement folder and writes Xid lines for announcements that a registered plan foresees."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._folder = cluster.runtime.root / "announce"
        self._planned: dict[tuple[str, int, str], str] = {}  # (job id, attempt, node) -> user
        self._written: set[tuple[str, int, str]] = set()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="kernel-log-writer", daemon=True)

    @property
    def folder(self) -> Path:
        return self._folder

    def start(self) -> None:
        self._folder.mkdir(exist_ok=True)
        self._folder.chmod(0o1777)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(timeout=5)

    def expect(self, user: str, job_id: int, faults: Sequence[Fault]) -> None:
        for fault in faults:
            if fault["kind"] == "xid79":
                for node in [str(fault["node"])] if "node" in fault else self._cluster.nodes:
                    self._planned[(str(job_id), int(str(fault.get("attempt", 0))), node)] = user

    def write(self, node: str, code: int, text: str) -> None:
        with self._cluster.kernel_log(node).open("a", encoding="ascii") as file:
            file.write(xid_line(node, code, text))

    def _watch(self) -> None:
        while not self._stop.wait(0.02):
            for note in self._folder.iterdir():
                with suppress(OSError, ValueError):
                    self._answer(note)

    def _answer(self, note: Path) -> None:
        job_id, attempt, node, _rank = note.name.split(".")
        key = (job_id, int(attempt), node)
        user = self._planned.get(key)
        if user is not None and note.lstat().st_uid == pwd.getpwnam(user).pw_uid and key not in self._written:
            self._written.add(key)
            self.write(node, 79, "GPU has fallen off the bus.")
        if user is not None:
            note.unlink()


def install(cluster: Cluster) -> Path:
    """Copy the program to where every user can run it."""
    target = cluster.runtime.root / "bin" / "train.py"
    target.parent.mkdir(exist_ok=True)
    shutil.copy(Path(__file__).with_name("train.py"), target)
    target.chmod(0o755)
    return target


def launch(cluster: Cluster, writer: KernelLogWriter, user: str, training: Training) -> int:
    """Submit `training` as `user`; its files are in `work_folder`. Returns the job id."""
    folder = work_folder(cluster, user, training)
    folder.mkdir()
    plan = folder / "faults.json"
    plan.write_text(json.dumps(list(training.faults)), encoding="utf-8")
    for path in (folder, plan):
        shutil.chown(path, user, user)
    job_id = cluster.submit(user, _script(cluster, writer, folder, plan, training), *_options(folder, training))
    writer.expect(user, job_id, training.faults)
    return job_id


def work_folder(cluster: Cluster, user: str, training: Training) -> Path:
    return cluster.runtime.home(user) / training.name


def output_file(cluster: Cluster, user: str, training: Training, job_id: int) -> Path:
    return work_folder(cluster, user, training) / f"train-{job_id}.out"


def _options(folder: Path, training: Training) -> list[str]:
    comment = json.dumps({"advisor": {"enabled": True}}) if training.opt_in else ""
    return [
        f"--job-name={training.name}",
        f"--nodes={training.nodes}",
        f"--ntasks-per-node={training.ranks_per_node}",
        *([f"--gpus-per-node={training.gpus_per_node}"] if training.gpus_per_node else []),
        f"--output={folder}/train-%j.out",
        *([f"--comment={comment}"] if comment else []),
        *training.options,
    ]


def _script(cluster: Cluster, writer: KernelLogWriter, folder: Path, plan: Path, training: Training) -> str:
    program = cluster.runtime.root / "bin" / "train.py"
    step = (
        f"srun --label --kill-on-bad-exit=0 /usr/bin/python3 -IS {program} --folder {folder} --plan {plan} "
        f"--announce {writer.folder} --steps {training.steps} --step-seconds {training.step_seconds} "
        f"--checkpoint-every {training.checkpoint_every} --collective-seconds {training.collective_seconds}"
    )
    if training.loop:
        again = 'do\n  echo "ranks failed, restarting them"\n  sleep 1\ndone'
        return f"#!/bin/sh\n{training.prelude}while ! {step}; {again}\n"
    return f"#!/bin/sh\n{training.prelude}exec {step}\n"
