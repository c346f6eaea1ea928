"""A model of Slurm's job states, requeues and updates, with time; its text is that of the scripted Slurm.

What it knows is what was measured (docs/slurm.md), and `tests/slurm/test_model_conformance.py` runs the same sequences
of verbs on it and on a real Slurm. Time comes from outside: `advance(now)` brings everything up to that moment.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field

from slurm_plugin import mark
from slurm_plugin.squeue import Output
from tests.unit.slurm_plugin.fake_slurm import ENDED, FakeJob, FakeSlurm, out, said

NOT_RESPONDING_SECONDS = 3.0


@dataclass
class ModelJob(FakeJob):
    """`after`: what COMPLETING turns into. `ends_at`: when the running attempt ends by itself, with exit 5."""

    state: str = "PENDING"
    submit: int = 0
    eligible: int | None = 0
    start: int | None = None
    end: int | None = None
    exit_status: int = 0
    reason: str = "None"
    nodes: str = ""
    after: str = ""
    completing: tuple[str, ...] = ()  # nodes that have not yet returned
    returns_at: float = 0.0
    ends_at: float | None = None
    requeued_at: int = 0

    @property
    def requeueing(self) -> bool:
        return self.state == "COMPLETING" and self.after == "PENDING"


@dataclass(frozen=True)
class Change:
    """One change that Slurm accepted. `attempt`: the restart count before it."""

    at: float
    by: str
    verb: str
    job_id: str
    attempt: int


@dataclass
class ModelSlurm(FakeSlurm):
    """`dark`: nodes whose slurmd does not answer, and since when. `by`: who sends the next verb."""

    slurmd_timeout: float = 10.0
    min_job_age: float = 300.0
    completing_seconds: float = 0.2
    by: str = "somebody"
    dark: dict[str, float] = field(default_factory=dict)
    changes: list[Change] = field(default_factory=list)
    starts: list[tuple[str, int, float, tuple[str, ...], str]] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    ended: list[ModelJob] = field(default_factory=list)  # attempts whose end the hook has still to announce
    _saved: list[tuple[float, dict[str, FakeJob]]] = field(default_factory=list)
    _processes: set[tuple[str, int]] = field(default_factory=set)  # (job, restarts) that really run

    def job(self, job_id: str) -> ModelJob:
        found = self.jobs[job_id]
        assert isinstance(found, ModelJob)
        return found

    # --- time --------------------------------------------------------------------------------------------------

    def advance(self, now: float) -> None:
        self.now = now
        self._watch_nodes()
        for job in list(self.jobs.values()):
            assert isinstance(job, ModelJob)
            if job.state == "RUNNING" and job.ends_at is not None and now >= job.ends_at:
                self._end(job)
            if job.state == "COMPLETING" and now >= job.returns_at and not self._silent(job.completing):
                self._returned(job)
            if job.state in ENDED and job.end is not None and now - job.end > self.min_job_age:
                del self.jobs[job.job_id]
        for job in list(self.jobs.values()):
            assert isinstance(job, ModelJob)
            if job.state == "PENDING":
                self._schedule(job)

    def _silent(self, nodes: Sequence[str]) -> bool:
        """One of them does not answer and has not been given up yet."""
        return any(node in self.dark and not self.nodes[node].startswith("down") for node in nodes)

    def _watch_nodes(self) -> None:
        for node, since in self.dark.items():
            state = self.nodes[node].rstrip("*")
            if self.now - since >= self.slurmd_timeout and state != "down":
                self.nodes[node] = "down*"
                for job in self.jobs.values():
                    assert isinstance(job, ModelJob)
                    self._lose_node(job, node)
            elif self.now - since >= NOT_RESPONDING_SECONDS and state != "down":
                self.nodes[node] = f"{state}*"

    def _lose_node(self, job: ModelJob, node: str) -> None:
        if job.state == "COMPLETING":
            job.completing = tuple(name for name in job.completing if name != node)
        elif job.state == "RUNNING" and node in job.nodes.split(","):
            if job.batch and job.requeueable:
                self._requeue_running(job, "slurm: node failure")
                job.end = int(self.now) + 365 * 86400  # as it was expected, without a time limit
                job.completing = tuple(name for name in job.completing if name != node)
            else:
                self._finish(job, "NODE_FAIL")

    def node_returns(self, node: str) -> None:
        """Its slurmd answers again: ReturnToService=2."""
        self.dark.pop(node, None)
        self.nodes[node] = "drained" if self.nodes[node].startswith("drained") else "idle"

    def _end(self, job: ModelJob) -> None:
        """The batch script has exited; nobody hears of it while its own node is dark."""
        if job.nodes.split(",")[0] in self.dark:
            return
        job.exit_status = 5 << 8
        self._finish(job, "FAILED")

    def _finish(self, job: ModelJob, after: str) -> None:
        job.state, job.after, job.end, job.ends_at = "COMPLETING", after, int(self.now), None
        job.reason = "NonZeroExitCode" if after == "FAILED" else "None"
        self._leave_nodes(job)

    def _leave_nodes(self, job: ModelJob) -> None:
        self._processes.discard((job.job_id, job.restarts))
        job.completing, job.returns_at = tuple(job.nodes.split(",")), self.now + self.completing_seconds
        self.ended.append(copy.copy(job))
        self.save()

    def _returned(self, job: ModelJob) -> None:
        job.completing, job.state = (), job.after
        if job.state == "PENDING":
            job.submit, job.nodes, job.end = int(self.now), "", None
            job.start, job.reason = job.eligible, "BeginTime"
        self.save()

    def _schedule(self, job: ModelJob) -> None:
        if job.priority == 0 and job.reason != "BadConstraints":
            return
        excluded = {name for name in job.excluded.split(",") if name}
        fit = [node for node in self.nodes if node not in excluded]
        if len(fit) < job.nodes_wanted:
            job.priority, job.reason = 0, "BadConstraints"
            return
        if job.reason == "BadConstraints":
            job.priority, job.reason = 100, "None"
        if job.eligible is not None and self.now < job.eligible:
            job.reason = "BeginTime"
            return
        busy = {
            node
            for other in self.jobs.values()
            if other.state in {"RUNNING", "COMPLETING"}
            for node in other.nodes.split(",")
        }
        free = [node for node in fit if node not in busy and self.nodes[node].rstrip("*") == "idle"]
        if len(free) < job.nodes_wanted:
            job.reason = "Resources"
            return
        job.nodes, job.state, job.start = ",".join(free[: job.nodes_wanted]), "RUNNING", int(self.now)
        job.reason, job.exit_status = "None", 0
        self._processes.add((job.job_id, job.restarts))
        self.starts.append((job.job_id, job.restarts, self.now, tuple(free[: job.nodes_wanted]), job.excluded))
        if job.restarts and self.now < job.requeued_at + self.delay - 1:
            self.wrong.append(f"job {job.job_id} started {self.now - job.requeued_at:.1f} s after its requeue")
        self.save()

    # --- what the controller has on disk -------------------------------------------------------------------------

    def save(self) -> None:
        self._saved.append((self.now, {key: copy.copy(job) for key, job in self.jobs.items()}))

    def lose(self, seconds: float) -> None:
        """Killed before it had saved: the last `seconds` never happened, except on the nodes."""
        known = [jobs for at, jobs in self._saved if at <= self.now - seconds]
        if known:
            self.jobs = {key: copy.copy(job) for key, job in known[-1].items()}
            self.changes = [change for change in self.changes if change.at <= self.now - seconds]
        for job in self.jobs.values():
            assert isinstance(job, ModelJob)
            if job.state == "RUNNING" and (job.job_id, job.restarts) not in self._processes:
                job.ends_at = None  # its end was told once, and is not told again

    def registered(self) -> None:
        """The nodes say what runs on them: a job that the controller holds for running and nobody runs is requeued."""
        for job in self.jobs.values():
            assert isinstance(job, ModelJob)
            if job.state == "RUNNING" and (job.job_id, job.restarts) not in self._processes:
                self._requeue_running(job, "slurm: missing on its node")

    # --- verbs -------------------------------------------------------------------------------------------------

    def _change(self, job: FakeJob, verb: str) -> None:
        self.changes.append(Change(at=self.now, by=self.by, verb=verb, job_id=job.job_id, attempt=job.restarts))

    def _scontrol(self, arguments: list[str]) -> Output:
        if "show" in arguments:
            return super()._scontrol(arguments)
        self.verbs.append(tuple(arguments))
        verb = arguments[0]
        if verb == "update":
            return self._update(dict(item.split("=", 1) for item in arguments[1:]))
        job = self.jobs.get(arguments[-1])
        if job is None:
            return said(1, "Invalid job id specified")
        assert isinstance(job, ModelJob)
        if verb in {"hold", "release"}:
            return self._hold(job, held=verb == "hold")
        answer = self._requeue(job, incomplete="incomplete" in arguments)
        if verb == "requeuehold" and answer.returncode == 0 and (job.requeueing or job.state == "PENDING"):
            job.priority, job.reason = 0, "job_requeued_in_held_state"
        self.save()
        return answer

    def _hold(self, job: ModelJob, *, held: bool) -> Output:
        """Of a running job too: its next attempt will be held."""
        if job.state in ENDED:
            return said(1, _FINISHED)
        self._change(job, "hold" if held else "release")
        job.priority = 0 if held else 100
        if job.state == "PENDING":
            job.reason = "JobHeldAdmin" if held else "None"
        self.save()
        return out("")

    def _requeue(self, job: ModelJob, *, incomplete: bool) -> Output:
        if not job.batch:
            return said(1, "Only batch jobs are accepted or processed")
        if job.state == "PENDING" or job.requeueing:
            return out("") if incomplete else said(1, "Job is pending execution")
        if not job.requeueable:
            return said(1, "Requested operation is presently disabled")
        if job.state == "RUNNING":
            self._change(job, "requeue")
            self._requeue_running(job, "")
            return out("")
        if incomplete:
            return out("")
        self._change(job, "requeue")
        job.restarts, job.requeued_at = job.restarts + 1, int(self.now)
        job.eligible = job.requeued_at + self.delay
        if job.state == "COMPLETING":
            job.after, job.end = "PENDING", None
        else:
            job.after = "PENDING"
            self._returned(job)
        return out("")

    def _requeue_running(self, job: ModelJob, by: str) -> None:
        if by:
            self.changes.append(Change(at=self.now, by=by, verb="requeue", job_id=job.job_id, attempt=job.restarts))
        job.state, job.after, job.end, job.ends_at = "COMPLETING", "PENDING", None, None
        self._leave_nodes(job)
        job.restarts, job.requeued_at = job.restarts + 1, int(self.now)
        job.eligible = job.requeued_at + self.delay

    def _update(self, values: dict[str, str]) -> Output:
        job = self.jobs.get(values["JobId"])
        if job is None:
            return said(1, "Invalid job id specified")
        assert isinstance(job, ModelJob)
        if job.state in ENDED or (job.state == "COMPLETING" and not job.requeueing):
            return said(1, _FINISHED)
        wanted = values.get("ExcNodeList")
        if job.state == "RUNNING" and wanted is not None and (not wanted or wanted != job.excluded):
            return said(1, "Job is no longer pending execution")
        self._change(job, "update")
        job.excluded = values.get("ExcNodeList", job.excluded)
        job.admin_comment = values.get("AdminComment", job.admin_comment)
        ours = mark.find(job.admin_comment)
        # The watchdog may give back at a later attempt what was excluded for an earlier one.
        if self.by.startswith("agent") and ours is not None and ours.attempt != job.restarts - 1:
            self.wrong.append(f"a mark for attempt {ours.attempt} on attempt {job.restarts}")
        if "StartTime" in values:
            job.eligible = job.start = int(values["StartTime"].removeprefix("uts"))
        self.save()
        return out("")

    def _scancel(self, arguments: list[str]) -> Output:
        self.verbs.append(("cancel", *arguments))
        job = self.jobs[arguments[-1]]
        assert isinstance(job, ModelJob)
        if len(arguments) > 1 and arguments[0] != f"--state={job.state}":
            return out("")
        if job.state == "PENDING":
            self._change(job, "cancel")
            job.state, job.end = "CANCELLED", int(self.now)
        elif job.state == "RUNNING" or job.requeueing:
            self._change(job, "cancel")
            self._finish(job, "CANCELLED")
        self.save()
        return out("")

    def sent(self, verb: str, *, by: Sequence[str]) -> list[Change]:
        """Accepted changes of that kind by processes whose names begin so."""
        return [change for change in self.changes if change.verb == verb and change.by.startswith(tuple(by))]


_FINISHED = "Job has already finished"
