"""Slurm, our programs and the kernel logs, up together and down together; one training job as a handle."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import slurm_plugin
from advisor.demo.cluster import Cluster, Shape
from advisor.demo.namespace import Runtime, require
from advisor.demo.squeue import JobRow
from advisor.demo.stack import Stack, hook_socket
from advisor.demo.training import KernelLogWriter, Training, install, launch, output_file
from advisor.demo.waiting import wait_for

HOOK = Path(slurm_plugin.__file__).with_name("hooks") / "epilog_slurmctld"


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    cluster: Cluster
    stack: Stack
    kernel: KernelLogWriter

    def launch(self, user: str, training: Training) -> "Run":
        job_id = launch(self.cluster, self.kernel, user, training)
        return Run(world=self, user=user, training=training, job_id=job_id)

    def reset(self) -> None:
        """Every program running, every node idle, no job left: what a scenario starts from."""
        self.cluster.come_to_rest()
        for program in self.stack.programs:
            program.start()
        self.stack.wait_ready()

    def leave(self) -> None:
        """Nobody acts on the cluster until the next `reset`: agent and watchdog are stopped, and it is at rest."""
        for program in (self.stack.watchdog, self.stack.agent):
            program.stop()
        self.cluster.come_to_rest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One submitted training job."""

    world: World
    user: str
    training: Training
    job_id: int

    @property
    def row(self) -> JobRow:
        return self.world.cluster.job(self.job_id)

    @property
    def log(self) -> Path:
        return output_file(self.world.cluster, self.user, self.training, self.job_id)

    @property
    def text(self) -> str:
        """What the current attempt has printed; the next attempt truncates it, as Slurm does by default."""
        return self.log.read_text(encoding="utf-8", errors="replace") if self.log.exists() else ""

    @property
    def nodes(self) -> tuple[str, ...]:
        return self.world.cluster.expand(self.row.nodes)

    def wait(self, *states: str, seconds: float = 60.0, restarts: int | None = None) -> JobRow:
        return self.world.cluster.wait_state(self.job_id, *states, seconds=seconds, restarts=restarts)

    def wait_step(self, step: int, seconds: float = 30.0) -> None:
        mark = f"iteration {step:8d}/"
        wait_for(f"step {step} of job {self.job_id}", lambda: mark in self.text, seconds=seconds)

    def decisions(self) -> list[dict[str, Any]]:
        return self.world.stack.decisions(self.job_id)

    def wait_decision(
        self, what: str, wanted: Callable[[dict[str, Any]], bool], seconds: float = 30.0
    ) -> dict[str, Any]:
        """The newest decision for this job that `wanted` accepts."""
        return wait_for(
            f"job {self.job_id}: {what}",
            lambda: next((item for item in reversed(self.decisions()) if wanted(item)), None),
            seconds=seconds,
            every_seconds=0.3,
        )


Report = Callable[[str, str], None]


def _silent(word: str, text: str) -> None:
    pass


@contextmanager
def running_cluster(
    shape: Shape,
    report: Report = _silent,
    *,
    hook: Path | None = HOOK,
    before_controller: Callable[[Cluster], None] | None = None,
    runtime: Runtime | None = None,
) -> Iterator[tuple[Cluster, KernelLogWriter]]:
    """Slurm with our hook in place, and somebody to write kernel logs. None of our programs runs yet.

    Without a hook the agent learns of an end by polling only. `runtime`: another place than this process's own.
    """
    runtime = runtime or require()
    cluster = Cluster(
        runtime=runtime,
        shape=shape,
        hook=hook,
        hook_socket=hook_socket(runtime),
        before_controller=before_controller,
    )
    kernel = KernelLogWriter(cluster)
    try:
        began = time.monotonic()
        cluster.start()
        install(cluster)
        kernel.start()
        report("slurm", f"{len(cluster.nodes)} nodes with 8 GPUs each, up in {time.monotonic() - began:.1f} s")
        yield cluster, kernel
    finally:
        kernel.stop()
        cluster.stop()


@contextmanager
def running_world(
    cluster: Cluster,
    kernel: KernelLogWriter,
    *,
    policy: Mapping[str, object] | None = None,
    mode: str = "autonomous",
    slurm_bin: Path | None = None,
    report: Report = _silent,
) -> Iterator[World]:
    """Advisor, agent and watchdog on a running cluster."""
    stack = Stack(cluster=cluster, policy=policy or {}, mode=mode, slurm_bin=slurm_bin)
    stack.prepare()
    try:
        began = time.monotonic()
        stack.start()
        report("advisor", f"advisor, agent and watchdog, up in {time.monotonic() - began:.1f} s")
        yield World(cluster=cluster, stack=stack, kernel=kernel)
    finally:
        stack.stop()
