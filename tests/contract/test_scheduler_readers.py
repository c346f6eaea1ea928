"""What every scheduler reader promises, with scripted answers of Slurm's tools; tests/slurm asks the real ones."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pytest

from advisor.core.model import ExitStatus, Unavailable
from advisor.core.words import AttemptState, NodeState, UnavailableReason
from advisor.ports import SchedulerJob, SchedulerReader
from connectors.scheduler.pyslurm_reader import PROGRAM, pyslurm_reader
from connectors.scheduler.slurm_cli import SlurmCli
from slurm_plugin.squeue import Output, SlurmError

START, END = 1_700_000_000, 1_700_000_600

ROW: dict[str, str] = {
    "JobID": "17",
    "JobArrayID": "17",
    "ArrayJobID": "17",
    "ArrayTaskID": "N/A",
    "HetJobID": "N/A",
    "HetJobOffset": "N/A",
    "State": "FAILED",
    "RestartCnt": "1",
    "SubmitTime": str(START - 60),
    "EligibleTime": str(START - 60),
    "StartTime": str(START),
    "EndTime": str(END),
    "exit_code": str(3 << 8),
    "PriorityLong": "4294901757",
    "Reason": "NonZeroExitCode",
    "UserName": "alice",
    "UserID": "1000",
    "Partition": "main",
    "NumNodes": "2",
    "NumTasks": "2",
    "BatchFlag": "1",
    "Requeue": "1",
    "NodeList": "node[1-2]",
    "admin_comment": "(null)",
    "Dependency": "",
}
DETAILS: dict[str, Any] = {
    "job_id": 17,
    "submit_time": START - 60,
    "name": "train\nJobId=1 JobState=RUNNING",
    "comment": "",
    "account": "lab",
    "current_working_directory": "/home/alice/runs",
    "standard_output": "out-%j.log",
    "standard_error": "",
}
CONFIG = "Configuration data as of now\nSLURM_VERSION = 22.05.8\nClusterName = demo\nAuthInfo = cred_expire=5\n"


@dataclass
class Tools:
    """Slurm's tools as a script: each answers from `rows`, `details`, `config`; `broken` makes one of them fail."""

    rows: list[dict[str, str]] = field(default_factory=lambda: [ROW])
    details: list[dict[str, Any]] = field(default_factory=lambda: [DETAILS])
    excluded: str = "node9"
    nodes: bytes = b""
    broken: Mapping[str, Output | SlurmError] = field(default_factory=dict)
    asked: list[Sequence[str]] = field(default_factory=list)
    later: bool = False  # JSON as from 23.02 on
    only_json: bool = False  # rows are asked for in no other way

    def __call__(self, argv: Sequence[str], environment: Mapping[str, str], timeout_seconds: float) -> Output:
        self.asked.append(argv)
        kind = "json" if "--json" in argv or str(PROGRAM) in argv else argv[0]
        answer = self.broken.get(kind) or (self.broken.get("squeue") if kind == "json" and self.only_json else None)
        if isinstance(answer, SlurmError):
            raise answer
        return answer or Output(returncode=0, stdout=self._say(kind, argv), stderr=b"")

    def _say(self, kind: str, argv: Sequence[str]) -> bytes:
        match kind:
            case "json":
                return json.dumps({"jobs": [self._job(at) for at in range(len(self.details))]}).encode()
            case "sacct":
                return b""
            case "scontrol":
                return CONFIG.encode()
            case "sinfo":
                return self.nodes.replace(b"\x1e", argv[-1].rpartition("%E")[2].encode())
            case _ if "-O" in argv:
                columns = [item.split(":") for item in argv[-1].split(",")]
                records = ["".join(row[name] + end for name, end in columns) for row in self.rows]
                return "".join(record + "\n" for record in records).encode()
            case _:
                end = argv[-1].rpartition("%x")[2]
                return "".join(f"{row['JobID']}\x1f{self.excluded}{end}\n" for row in self.rows).encode()

    def _job(self, at: int) -> dict[str, Any]:
        """The same job as JSON, in 22.05's shape for one and in later ones' for the next."""
        if at >= len(self.rows):
            return {"job_id": 4_000_000, "user_id": 0, "job_state": "PENDING"} | self.details[at]
        row = self.rows[at]

        def number(key: str) -> object:
            value = int(row[key]) if row[key].isdigit() else None
            return {"set": value is not None, "infinite": False, "number": value or 0} if self.later else value

        times = {"submit": "SubmitTime", "eligible": "EligibleTime", "start": "StartTime", "end": "EndTime"}
        code = {"status": ["ERROR"], "return_code": {"set": True, "number": int(row["exit_code"]) >> 8}}
        return {f"{name}_time": number(column) for name, column in times.items()} | {
            "job_id": int(row["JobID"]),
            "array_job_id": int(row["ArrayJobID"]) if row["ArrayTaskID"].isdigit() else 0,
            "array_task_id": number("ArrayTaskID"),
            "job_state": [row["State"]] if self.later else row["State"],
            "restart_cnt": int(row["RestartCnt"]),
            "exit_code": code if self.later else int(row["exit_code"]),
            "priority": number("PriorityLong"),
            "state_reason": row["Reason"],
            "user_name": row["UserName"],
            "user_id": int(row["UserID"]),
            "partition": row["Partition"],
            "node_count": number("NumNodes"),
            "tasks": number("NumTasks"),
            "batch_flag": row["BatchFlag"] == "1",
            "requeue": row["Requeue"] == "1",
            "nodes": row["NodeList"],
            "excluded_nodes": self.excluded,
            **self.details[at],
        }


@pytest.fixture(params=["columns", "json", "json of later releases", "pyslurm"], autouse=True)
def way(request: pytest.FixtureRequest) -> str:
    """Every promise is kept whichever way the rows are read."""
    WAY[:] = [request.param]
    return str(request.param)


WAY = ["columns"]


def reader(tools: Tools) -> SchedulerReader:
    tools.later, tools.only_json = "later" in WAY[0], WAY[0] != "columns"
    if WAY[0] == "pyslurm":
        return pyslurm_reader("python", run=tools)
    return SlurmCli(run=tools, listing=WAY[0].split()[0])


async def look(tools: Tools, job_id: str = "17") -> SchedulerJob:
    answer = await reader(tools).job(job_id)
    assert isinstance(answer, SchedulerJob), answer
    return answer


async def test_a_failed_job_in_full() -> None:
    """Everything that Slurm knows of an attempt, with the user's texts kept apart from Slurm's."""
    found = await look(Tools())
    assert (found.job.cluster, found.job.job_id, found.job.user) == ("demo", "17", "alice")
    assert found.attempt.number == 1
    assert found.attempt.state is AttemptState.FAILED
    assert found.attempt.exit == ExitStatus(code=3)
    assert found.attempt.nodes == ("node1", "node2")
    assert found.attempt.started_at == datetime.fromtimestamp(START, UTC)
    assert found.attempt.ended_at == datetime.fromtimestamp(END, UTC)
    assert found.stdout_path == found.stderr_path == "/home/alice/runs/out-17.log"
    assert found.excluded_nodes == ("node9",)
    assert found.job.batch is found.job.requeueable is True


async def test_unknown_job_is_none() -> None:
    """A scheduler that knows no such job said something; it is not a source that failed."""
    said = Output(returncode=1, stdout=b"", stderr=b"slurm_load_jobs error: Invalid job id specified\n")
    assert await reader(Tools(broken={"squeue": said})).job("99") is None


async def test_an_empty_answer_about_a_job_is_no_answer() -> None:
    """Slurm says of a job that it does not know that it does not know it; nothing at all is a source that failed."""
    found = await reader(Tools(rows=[], details=[])).job("99")
    assert isinstance(found, Unavailable)
    assert found.reason is UnavailableReason.GARBLED


@pytest.mark.parametrize("job_id", ["", "x", "17;id", "-j", "--json", "17 18", "1" * 11, "17_", "٣", "17\n"])
async def test_what_is_no_job_id_never_reaches_a_tool(job_id: str) -> None:
    """Job ids come from a command line: what is none is refused before anything is run."""
    tools = Tools()
    answer = await reader(tools).job(job_id)
    assert isinstance(answer, Unavailable)
    assert answer.reason is UnavailableReason.REFUSED
    assert tools.asked == []


@pytest.mark.parametrize("tool", ["squeue", "json", "scontrol"])
@pytest.mark.parametrize(
    ("failure", "reason"),
    [
        (SlurmError("timeout", "no answer in 5 s"), UnavailableReason.TIMEOUT),
        (SlurmError("missing", "not installed"), UnavailableReason.MISSING),
        (SlurmError("permission", "cannot be run"), UnavailableReason.PERMISSION),
        (Output(returncode=1, stdout=b"", stderr=b"Unable to contact slurm controller\n"), UnavailableReason.REFUSED),
        (Output(returncode=0, stdout=b"", stderr=b"Invalid job format specification\n"), UnavailableReason.REFUSED),
        (Output(returncode=0, stdout=b"nonsense", stderr=b""), UnavailableReason.GARBLED),
    ],
)
async def test_a_tool_that_fails_is_unavailable(
    tool: str, failure: Output | SlurmError, reason: UnavailableReason
) -> None:
    """Whatever goes wrong in whichever tool, the answer is why, never a job that is half known."""
    answer = await reader(Tools(broken={tool: failure})).job("17")
    assert isinstance(answer, Unavailable)
    assert answer.reason is reason
    assert answer.source == "slurm"


async def test_completing_shows_only_a_part() -> None:
    """While COMPLETING the allocation shrinks and the outcome is not visible: both are unknown, not empty."""
    found = await look(Tools(rows=[ROW | {"State": "COMPLETING", "NodeList": "node2"}]))
    assert found.attempt.nodes is None
    assert found.attempt.exit is None
    assert found.attempt.number == 1


async def test_completing_after_a_requeue_is_still_the_last_attempt() -> None:
    """Slurm counts the restart as soon as it accepts the requeue; the processes are those of the attempt before."""
    found = await look(Tools(rows=[ROW | {"State": "COMPLETING", "EndTime": "N/A", "NodeList": ""}]))
    assert found.attempt.number == 0


async def test_pending_has_no_outcome() -> None:
    """A requeued job keeps exit code and times of the last attempt; none of them is the new one's."""
    found = await look(Tools(rows=[ROW | {"State": "PENDING", "Reason": "BeginTime", "NodeList": ""}]))
    assert found.attempt.state is AttemptState.PENDING
    assert found.attempt.exit is None
    assert found.attempt.started_at is None
    assert found.attempt.ended_at is None
    assert found.attempt.nodes == ()
    assert found.attempt.pending_reason == "BeginTime"


async def test_cancelled_keeps_no_exit_code() -> None:
    """A cancelled job shows the exit code of its last failure: it is not this one's."""
    found = await look(Tools(rows=[ROW | {"State": "CANCELLED"}]))
    assert found.attempt.state is AttemptState.CANCELLED
    assert found.attempt.exit is None


async def test_state_of_a_later_version_is_other() -> None:
    """Nothing is concluded from a state word that this version does not know."""
    assert (await look(Tools(rows=[ROW | {"State": "TELEPORTED"}]))).attempt.state is AttemptState.OTHER


async def test_details_of_another_submission_are_not_used(way: str) -> None:
    """Job ids are reused: user texts belong to a job only with its submit time. (JSON has both in one.)"""
    if way != "columns":
        return
    found = await look(Tools(details=[DETAILS | {"submit_time": 5}]))
    assert found.stdout_path == found.name == ""


async def test_array_task_by_its_shown_id() -> None:
    """`19_2` names one task, whatever Slurm's own number for it is."""
    task = {"JobID": "22", "JobArrayID": "19_2", "ArrayJobID": "19", "ArrayTaskID": "2"}
    details = DETAILS | {"job_id": 22, "standard_output": "%A-%a.log"}
    found = await look(Tools(rows=[ROW | task], details=[details]), "19_2")
    assert found.job.job_id == "22"
    assert found.stdout_path == "/home/alice/runs/19-2.log"


async def test_nodes() -> None:
    """Node states folded to ours; silent is not down, and down is not merely silent."""
    said = (("n1", "idle"), ("n2", "idle*"), ("n3", "down*"), ("n4", "draining"), ("n5", "drained"), ("n6", "odd"))
    record = "{}\x1f{}\x1fmain\x1f8\x1f1000\x1f(null)\x1f(null)\x1fnone\x1e\n"
    answer = await reader(Tools(nodes="".join(record.format(*item) for item in said).encode())).nodes()
    assert not isinstance(answer, Unavailable)
    assert {node.name: node.state for node in answer} == {
        "n1": NodeState.UP,
        "n2": NodeState.NOT_RESPONDING,
        "n3": NodeState.DOWN,
        "n4": NodeState.DRAINING,
        "n5": NodeState.DRAINED,
        "n6": NodeState.OTHER,
    }


async def test_version_and_requeue_delay() -> None:
    """What `doctor` shows: the version, and how long a requeued job must wait."""
    assert await reader(Tools()).version() == "slurm 22.05.8"
    assert await reader(Tools()).requeue_delay_seconds() == 6.0
    broken = {"scontrol": SlurmError("timeout", "no answer")}
    assert isinstance(await reader(Tools(broken=broken)).version(), Unavailable)
    assert isinstance(await reader(Tools(broken=broken)).requeue_delay_seconds(), Unavailable)


@pytest.mark.parametrize(
    "said", [b"ModuleNotFoundError: No module named 'pyslurm'\n", b"ImportError: undefined symbol\n"]
)
async def test_a_python_without_the_right_pyslurm_is_missing(said: bytes) -> None:
    """Not installed, or compiled for another Slurm: said as what it is."""
    tools = Tools(broken={"json": Output(returncode=1, stdout=b"", stderr=b"Traceback\n" + said)})
    answer = await pyslurm_reader("/opt/python", run=tools).job("17")
    assert isinstance(answer, Unavailable)
    assert answer.reason is UnavailableReason.MISSING
    assert "/opt/python" in answer.detail


async def test_no_nodes_at_all_is_no_answer() -> None:
    """A tool that printed nothing did not say that the cluster is empty."""
    answer = await reader(Tools(nodes=b"")).nodes()
    assert isinstance(answer, Unavailable)
    assert answer.reason is UnavailableReason.GARBLED
