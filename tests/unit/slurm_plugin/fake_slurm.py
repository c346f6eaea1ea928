"""A Slurm of one process, as far as the agent and the watchdog can see it: the tools' argument vectors in, text out.

Its rules are the measured ones of docs/slurm.md, the dangerous ones included: a plain `requeue` revives a cancelled
job and kills a running one, `requeue incomplete` leaves both alone, an update of a finished job is refused.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from slurm_plugin.squeue import Output

UNIT = "\x1f"
ENDED = {"FAILED", "CANCELLED", "COMPLETED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED"}


@dataclass
class FakeJob:
    job_id: str = "17"
    state: str = "FAILED"
    restarts: int = 0
    submit: int = 1000
    eligible: int | None = 1000
    start: int | None = 1010
    end: int | None = 1100
    exit_status: int = 1280
    priority: int = 100
    reason: str = "NonZeroExitCode"
    user: str = "alice"
    partition: str = "main"
    nodes_wanted: int = 2
    nodes: str = "node[1-2]"
    excluded: str = ""
    admin_comment: str = ""
    comment: str = '{"advisor": {}}'
    name: str = "train"
    batch: bool = True
    requeueable: bool = True
    array: tuple[str, str] | None = None  # the array's id and the task
    dependency: str = ""
    het: tuple[str, int] | None = None  # the leader's id and the offset

    @property
    def shown_id(self) -> str:
        return f"{self.het[0]}+{self.het[1]}" if self.het else "_".join(self.array or (self.job_id,))


@dataclass
class FakeSlurm:
    """`before` is called with each argument vector first: tests let the world change there, or raise."""

    now: float = 1200.0
    delay: int = 6
    jobs: dict[str, FakeJob] = field(default_factory=dict)
    nodes: dict[str, str] = field(default_factory=lambda: {f"node{n}": "idle" for n in range(1, 5)})
    before: Callable[[Sequence[str]], None] = lambda argv: None
    verbs: list[tuple[str, ...]] = field(default_factory=list)
    partition_state: str = "up"
    reservations: list[str] = field(default_factory=list)
    refuse: dict[str, str] = field(default_factory=dict)  # verb → complaint

    def add(self, job: FakeJob) -> FakeJob:
        self.jobs[job.job_id] = job
        return job

    def named(self, text: str) -> list[FakeJob]:
        """Who answers to it: a job's own id, as it is shown, or all components by the leader's."""
        found = [job for job in self.jobs.values() if text in {job.job_id, job.shown_id}]
        return [job for job in self.jobs.values() if job.het and job.het[0] == text] or found

    def __call__(self, argv: Sequence[str], environment: Mapping[str, str], timeout_seconds: float) -> Output:
        assert environment["SLURM_TIME_FORMAT"] == "%s"
        self.before(argv)
        name = argv[0].rpartition("/")[2]
        answer = {"squeue": self._squeue, "sinfo": self._sinfo, "scontrol": self._scontrol, "scancel": self._scancel}
        return answer[name](list(argv[1:]))

    # --- looking -----------------------------------------------------------------------------------------------

    def _squeue(self, arguments: list[str]) -> Output:
        jobs = list(self.jobs.values())
        if "-j" in arguments:
            wanted = [self.named(text) for text in arguments[arguments.index("-j") + 1].split(",")]
            if not any(wanted):
                return said(1, "slurm_load_jobs error: Invalid job id specified")
            jobs = list({job.job_id: job for found in wanted for job in found}.values())
        if "-t" in arguments and arguments[arguments.index("-t") + 1] == "PENDING":
            jobs = [job for job in jobs if job.state == "PENDING"]
        if "--json" in arguments:
            return out(json.dumps({"jobs": [self._json(job) for job in jobs]}))
        form = arguments[-1]
        if "-o" in arguments and "%k" in form:
            end = form.rpartition("%k")[2]
            return out("".join(f"{job.job_id}{UNIT}{job.comment or '(null)'}{end}\n" for job in jobs))
        if "-o" in arguments:
            end = form.rpartition("%x")[2]
            return out("".join(f"{job.job_id}{UNIT}{job.excluded}{end}\n" for job in jobs))
        columns = [item.split(":") for item in form.split(",")]
        return out("".join("".join(self._column(job, name) + end for name, end in columns) + "\n" for job in jobs))

    def _column(self, job: FakeJob, name: str) -> str:
        times = {"SubmitTime": job.submit, "EligibleTime": job.eligible, "StartTime": job.start, "EndTime": job.end}
        if name in times:
            return str(times[name] if times[name] is not None else "N/A")
        return {
            "JobID": job.job_id,
            "JobArrayID": job.shown_id,
            "ArrayJobID": job.array[0] if job.array else job.job_id,
            "ArrayTaskID": job.array[1] if job.array else "N/A",
            "HetJobID": job.het[0] if job.het else "N/A",
            "HetJobOffset": str(job.het[1]) if job.het else "N/A",
            "Dependency": job.dependency or "(null)",
            "State": job.state,
            "RestartCnt": str(job.restarts),
            "exit_code": str(job.exit_status),
            "PriorityLong": str(job.priority),
            "Reason": job.reason,
            "UserName": job.user,
            "UserID": "20001",
            "Partition": job.partition,
            "NumNodes": str(job.nodes_wanted),
            "NumTasks": str(job.nodes_wanted),
            "BatchFlag": str(int(job.batch)),
            "Requeue": str(int(job.requeueable)),
            "NodeList": job.nodes,
            "admin_comment": job.admin_comment or "(null)",
        }[name]

    def _json(self, job: FakeJob) -> dict[str, object]:
        return {
            "job_id": int(job.job_id),
            "submit_time": job.submit,
            "name": job.name,
            "comment": job.comment,
            "account": "research",
            "current_working_directory": "/home/alice",
            "standard_output": "/home/alice/out-%j.log",
            "standard_error": "",
            "features": "",
            "tres_per_node": "gres:gpu:8",
            "minimum_cpus_per_node": 1,
        }

    def _sinfo(self, arguments: list[str]) -> Output:
        if "-N" not in arguments:
            return out(f"main{UNIT}{self.partition_state}{arguments[-1].rpartition('%a')[2]}\n")
        end = arguments[-1].rpartition(UNIT)[2].replace("%E", "").replace("%f", "")
        reason = f"{UNIT}none" if "%E" in arguments[-1] else ""
        line = "{}\x1f{}\x1fmain\x1f16\x1f4000\x1fgpu:h200:8\x1f(null)"
        return out("".join(line.format(*node) + reason + end + "\n" for node in self.nodes.items()))

    # --- acting ------------------------------------------------------------------------------------------------

    def _scontrol(self, arguments: list[str]) -> Output:
        if arguments == ["show", "config"]:
            lines = (f"AuthInfo = cred_expire={self.delay - 1}", "SLURM_VERSION = 22.05.8", "RequeueExitHold = 112")
            return out("\n".join((*lines, "SlurmUser = slurm(64030)\n")))
        if arguments == ["-o", "show", "reservation"]:
            return out("".join(f"{line}\n" for line in self.reservations) or "No reservations in the system\n")
        self.verbs.append(tuple(arguments))
        if arguments[0] in self.refuse:
            return said(1, self.refuse[arguments[0]])
        if arguments[0] == "update" and arguments[1].startswith("NodeName="):
            return out("")
        if arguments[0] == "update":
            return self._update(dict(item.split("=", 1) for item in arguments[1:]))
        if len(self.named(arguments[-1])) > 1:
            return self._all_components(arguments)
        job = self.named(arguments[-1])[0]
        if job.het and job.het[1] and arguments[0] == "requeue":
            return said(1, f"Job not heterogeneous job leader for job {job.job_id}")
        if arguments[0] == "release":
            if job.state in {"SPECIAL_EXIT", "PENDING"}:
                job.state, job.priority, job.reason, job.exit_status = "PENDING", 100, "None", 0
            return out("")
        if arguments[1] == "incomplete":
            if job.state == "RUNNING":
                job.state, job.end, job.restarts = "COMPLETING", None, job.restarts + 1
            return out("")
        if job.state == "PENDING":
            return said(1, "Job is pending execution")
        if job.state == "RUNNING":
            job.state, job.end, job.restarts = "COMPLETING", None, job.restarts + 1
        else:
            job.restarts += 1
            self.released(job)
        return out("")

    def _all_components(self, arguments: list[str]) -> Output:
        jobs = self.named(arguments[-1])
        groups = [job.het for job in jobs]
        for job in jobs:
            job.het = None
        answers = [self._scontrol([*arguments[:-1], job.job_id]) for job in jobs]
        del self.verbs[-len(jobs) :]
        for job, group in zip(jobs, groups, strict=True):
            job.het = group
        return answers[0]

    def released(self, job: FakeJob) -> None:
        """The last node answered, or none had to: the requeued job waits for Slurm's own delay."""
        job.state, job.submit, job.nodes, job.end = "PENDING", int(self.now), "", None
        job.eligible = max(job.submit + self.delay, job.eligible or 0)
        job.start, job.reason = job.eligible, "BeginTime"

    def started(self, job: FakeJob, nodes: str = "node[3-4]") -> None:
        job.state, job.nodes, job.start, job.reason = "RUNNING", nodes, int(self.now), "None"

    def _update(self, values: dict[str, str]) -> Output:
        job = self.named(values["JobId"])[0]
        if set(values) == {"JobId", "Comment"} and job.state not in ENDED:
            job.comment = values["Comment"]  # also of a running job
            return out("")
        if job.state in ENDED or (job.state == "COMPLETING" and job.end is not None):
            return said(1, "Job has already finished for job 17")
        if job.state == "RUNNING":
            return said(1, "Job is no longer pending execution")
        job.excluded = values.get("ExcNodeList", job.excluded)
        job.admin_comment = values.get("AdminComment", job.admin_comment)
        if "StartTime" in values:
            job.eligible = job.start = int(values["StartTime"].removeprefix("uts"))
            assert job.eligible >= job.submit + self.delay or job.state == "COMPLETING", "slurmd refuses such a launch"
        return out("")

    def _scancel(self, arguments: list[str]) -> Output:
        self.verbs.append(("cancel", *arguments))
        job = self.jobs[arguments[-1]]
        if arguments[0] == f"--state={job.state}":
            job.state, job.end = "CANCELLED", int(self.now)
        return out("")

    @property
    def requeues(self) -> int:
        return sum(verb[0] == "requeue" for verb in self.verbs)


def out(text: str) -> Output:
    return Output(returncode=0, stdout=text.encode("utf-8", "surrogateescape"), stderr=b"")


def said(status: int, complaint: str) -> Output:
    return Output(returncode=status, stdout=b"", stderr=complaint.encode() + b"\n")
