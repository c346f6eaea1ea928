"""A site in a storm: faults and people in any order, driven step by step (Hypothesis does)."""

import asyncio
import shutil
from collections.abc import Iterable
from contextlib import redirect_stderr
from io import StringIO

import structlog

from tests.model.matrix import JOB, Story, a_cluster, a_folder, let_it_fail, twice, what_is_others
from tests.model.simulation import EPOCH, Loop, Process
from tests.model.site import Site

USERS_NODE = "node5"
CALM_SECONDS = 60.0
_ENVIRONMENT = {"SLURM_TIME_FORMAT": "%s"}


class Storm:
    """`strike` and `back` for the parts of the site, `person` for what users and administrators do to the job."""

    def __init__(self, story: Story) -> None:
        self._folder, self._loop = a_folder(), Loop()
        self.site = Site(self._loop, self._folder, a_cluster(), story.decide, agents=story.agents)
        self._before = what_is_others(self.site.slurm)
        self._cancelled = self._held = self._excluded = False
        self.site.start()
        let_it_fail(self.site, story)
        self.wait(1.0)

    def wait(self, seconds: float) -> None:
        with structlog.testing.capture_logs(), redirect_stderr(StringIO()):
            self._loop.run_until_complete(asyncio.sleep(seconds))

    def _processes(self, target: str) -> list[Process]:
        names = self.site.agent_names[:1] if target == "agent" else (target,)
        return [self.site.lives[name] for name in names]

    def strike(self, target: str, kind: str) -> None:
        if target == "node1":
            self.site.slurm.dark.setdefault("node1", EPOCH + self._loop.time())
            return
        for process in self._processes(target):
            if not process.works:
                continue
            if kind == "SIGSTOP":
                process.stop()
            elif process.name == "slurmctld":
                self.site.slurmctld_dies()
            else:
                process.kill()

    def back(self, target: str) -> None:
        if target == "node1":
            self.site.slurm.node_returns("node1")
            return
        for process in self._processes(target):
            if process.stopped:
                (self.site.slurmctld_goes_on if target == "slurmctld" else process.go_on)()
            elif not process.alive:
                self.site.start_program(process.name)

    def person(self, what: str) -> None:
        """Somebody uses Slurm's tools, if slurmctld answers. What they then may rely on is remembered."""
        slurm, job = self.site.slurm, self.site.slurm.job(JOB)
        if not self.site.slurmctld.works:
            return
        slurm.by, slurm.now = "somebody", EPOCH + self._loop.time()
        match what:
            case "cancel":
                slurm(("scancel", JOB), _ENVIRONMENT, 5)
                self._cancelled |= job.state == "CANCELLED" or job.after == "CANCELLED"
            case "hold" if job.state == "PENDING":
                self._held = slurm(("scontrol", "hold", JOB), _ENVIRONMENT, 5).returncode == 0
            case "release" if self._held:
                slurm(("scontrol", "release", JOB), _ENVIRONMENT, 5)
                self._held = False
            case "requeue" if not self._cancelled and not self._held:
                slurm(("scontrol", "requeue", JOB), _ENVIRONMENT, 5)
            case "exclude" if job.state == "PENDING":
                nodes = sorted({*filter(None, job.excluded.split(",")), USERS_NODE})
                slurm(("scontrol", "update", f"JobId={JOB}", f"ExcNodeList={','.join(nodes)}"), _ENVIRONMENT, 5)
                self._excluded = True

    def problems(self) -> list[str]:
        return list(self._problems())

    def _problems(self) -> Iterable[str]:
        slurm, job = self.site.slurm, self.site.slurm.job(JOB)
        yield from twice(slurm)
        if what_is_others(slurm) != self._before:
            yield "what belongs to others changed"
        if self._cancelled and job.state not in {"CANCELLED", "COMPLETING"}:
            yield f"cancelled by its user, it is {job.state}"
        if self._held and (job.priority != 0 or job.state not in {"PENDING", "CANCELLED"}):
            yield f"held by an administrator, it is {job.state} with priority {job.priority}"
        if self._excluded and USERS_NODE not in job.excluded.split(","):
            yield "the user's own exclusion is gone"

    def end(self) -> list[str]:
        """Everything comes back, holds are released, and after a while of calm all is well."""
        for target in ("slurmctld", "postgres", "advisor", "agent", "watchdog", "node1"):
            self.back(target)
        if self._held:
            self.person("release")
        self.wait(CALM_SECONDS)
        found = self.problems()
        job = self.site.slurm.job(JOB)
        if job.state != ("CANCELLED" if self._cancelled else "RUNNING") or (not self._cancelled and not job.restarts):
            found.append(f"in the end the job is {job.state} after {job.restarts} restarts ({job.reason})")
        return found

    def close(self) -> None:
        with structlog.testing.capture_logs(), redirect_stderr(StringIO()):
            self._loop.run_until_complete(self.site.end())
        self._loop.close()
        shutil.rmtree(self._folder)
