"""What ended while nobody was told: read from accounting, numbered, told once; and what accounting may print."""

import contextlib
import itertools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st

from slurm_plugin import sacct
from slurm_plugin.backfill import AGAIN_SECONDS, Backfill, last_told
from slurm_plugin.config import AgentConfig, SlurmSection
from slurm_plugin.sacct import COLUMNS
from slurm_plugin.squeue import Output, Slurm, SlurmError

NOW = 100_000
OFF = "sacct: error: Slurm accounting storage is disabled\n"
ROW = {
    "JobIDRaw": "7",
    "JobID": "7",
    "State": "FAILED",
    "ExitCode": "5:0",
    "Submit": str(NOW - 5000),
    "Eligible": str(NOW - 5000),
    "Start": str(NOW - 4900),
    "End": str(NOW - 4000),
    "NodeList": "node[1-2]",
    "User": "alice",
    "UID": "1000",
    "Partition": "main",
    "NNodes": "2",
    "Reason": "None",
    "Account": "lab",
    "JobName": "train",
    "WorkDir": "/home/alice",
    "Comment": '{"advisor": {}}',
    "AdminComment": "",
}


class Sacct:
    """sacct as a script: it prints `rows`, with whatever delimiter it is asked for; or says `error`."""

    def __init__(self, *rows: Mapping[str, str], error: str = "") -> None:
        self.rows, self.error, self.asked = rows, error, 0

    def __call__(self, argv: Sequence[str], environment: Mapping[str, str], timeout_seconds: float) -> Output:
        self.asked += 1
        if self.error:
            return Output(returncode=1, stdout=b"", stderr=self.error.encode())
        rows = [ROW | row for row in self.rows]
        if argv[-1] == "JobIDRaw":
            return Output(returncode=0, stdout="".join(f"{row['JobIDRaw']}\n" for row in rows).encode(), stderr=b"")
        asked = set(argv[argv.index("-j") + 1].split(","))
        rows = [row for row in rows if row["JobIDRaw"] in asked or asked == {"7"}]
        delimiter = next(item for item in argv if item.startswith("--delimiter=")).partition("=")[2]
        text = "".join(delimiter.join(row[name] for name in COLUMNS) + "\n" for row in rows)
        return Output(returncode=0, stdout=text.encode("utf-8", "surrogateescape"), stderr=b"")


def pasts(*rows: Mapping[str, str]) -> list[sacct.PastAttempt]:
    return list(sacct.of_jobs(Slurm(run=Sacct(*rows)), "7"))


def test_attempts_of_one_job_are_numbered_by_what_slurm_goes_on_from() -> None:
    """A requeue, a node's failure and a preemption are followed by the same job's next attempt."""
    ends = ("REQUEUED", "NODE_FAIL", "PREEMPTED", "FAILED")
    found = pasts(*({"State": end, "Submit": str(NOW + at)} for at, end in enumerate(ends)))
    assert [(past.row.restarts, past.row.state, past.requeued) for past in found] == [
        (0, "FAILED", True),
        (1, "NODE_FAIL", False),
        (2, "PREEMPTED", False),
        (3, "FAILED", False),
    ]


def test_an_id_that_was_given_out_again_is_another_job() -> None:
    """After an end that is one, or by another user, counting begins anew."""
    again = pasts({"State": "REQUEUED"}, {"Submit": str(NOW), "UID": "1001"}, {"Submit": str(NOW + 1), "UID": "1001"})
    assert [past.row.restarts for past in again] == [0, 0, 0]


def test_exits_cancels_tasks_and_components() -> None:
    """Exact codes and signals, who cancelled, and the names by which a task and a component are known."""
    found = pasts(
        {"JobIDRaw": "8", "JobID": "8", "ExitCode": "0:9"},
        {"JobIDRaw": "9", "JobID": "4_2", "State": "CANCELLED by 1000"},
        {"JobIDRaw": "11", "JobID": "10+1", "State": "TIMEOUT", "End": "Unknown"},
        {"JobIDRaw": "12", "JobID": "12_[3-5%2]", "State": "PENDING", "NodeList": "None assigned", "Start": "Unknown"},
    )
    assert (found[0].row.exit_status, found[0].row.nodes) == (9, ("node1", "node2"))
    assert (found[1].row.array_job_id, found[1].row.array_task, found[1].cancelled_by) == ("4", 2, 1000)
    assert (found[2].row.het_job_id, found[2].row.het_offset, found[2].over) == ("10", 1, False)
    assert (found[3].row.array_task, found[3].row.nodes, found[3].row.start, found[3].over) == (None, (), None, False)


HOSTILE = st.text(st.characters(codec="utf-8") | st.sampled_from("\n\x1f|\x1e"), max_size=60)


@given(HOSTILE, HOSTILE, HOSTILE)
def test_no_text_of_a_user_makes_or_hides_a_record(name: str, comment: str, account: str) -> None:
    """A name or comment may hold whole forged rows, any separator and line ends."""
    forged = "7\n9|9|COMPLETED|0:0"
    found = pasts({"JobName": name + forged, "Comment": comment + forged, "Account": account}, {"JobIDRaw": "9"})
    assert [(past.row.job_id, past.row.state) for past in found] == [("7", "FAILED"), ("9", "FAILED")]
    assert (found[0].details.name, found[0].details.comment) == (name + forged, comment + forged)


@pytest.mark.parametrize(
    "raw",
    [b"7", b"7\n", b"7@7@FAILED\n", b"nonsense@" * 19 + b"nonsense\n", ("@".join(ROW.values()) + "@8\n").encode()],
)
def test_what_cannot_be_records_is_garbled(raw: bytes) -> None:
    """Cut, of another shape, or ending with another id than it began with: believed as a whole or not at all."""
    with pytest.raises(SlurmError, match="garbled"):
        sacct.parse(raw, delimiter="@")


@pytest.mark.parametrize("number", ["²", "٣", "9" * 30, "9" * 5_000, "1e400", "-1"])
@pytest.mark.parametrize("column", ["JobIDRaw", "JobID", "UID", "NNodes", "Submit", "Start", "End", "ExitCode"])
def test_what_is_no_number_is_none_or_garbled(column: str, number: str) -> None:
    """Other scripts' digits, more of them than anything has: nothing else is ever raised."""
    with contextlib.suppress(SlurmError):
        (past,) = pasts({column: number})
        row = past.row
        assert row.job_id.isascii()
        assert row.user_id < 2**63
        assert row.nodes_wanted < 2**63
        assert all(at is None or at < 2**37 for at in (row.submit, row.start, row.end))


@pytest.mark.parametrize(
    ("said", "problem"), [(OFF, "not_configured"), ("sacct: error: Connection refused", "refused")]
)
def test_no_accounting_is_not_an_accounting_that_fails(said: str, problem: str) -> None:
    """The one is a site's choice, the other a failure."""
    with pytest.raises(SlurmError) as raised:
        sacct.of_jobs(Slurm(run=Sacct(error=said)), "7")
    assert raised.value.problem == problem


def backfill(tool: Sacct, *, hours: int = 24) -> Backfill:
    config = AgentConfig(
        cluster="c", socket="/s", tick_file="/t", hook_socket="/h", slurm=SlurmSection(history_hours=hours)
    )
    made = Backfill(Slurm(run=tool), config, told_at=NOW - 6000.0)
    made.silence_over()
    return made


async def look(
    made: Backfill, *, known: Mapping[str, int] = {}, memory: int = 300, monotonic: float = 0.0
) -> list[str]:
    found = await made.missed(known, memory_seconds=memory, now=NOW, monotonic=monotonic)
    return [f"{job.attempt.job_id}/{job.attempt.attempt}" for job in found]


async def test_what_ended_in_the_silence_is_told_until_it_is_taken() -> None:
    """With end, exit, nodes and scope; what still runs, or was requeued with nothing to show for it, is not."""
    requeued = {"JobIDRaw": "9", "State": "REQUEUED", "ExitCode": "0:0"}
    made = backfill(Sacct({}, {"JobIDRaw": "8", "State": "RUNNING", "End": "Unknown"}, requeued))
    assert await look(made) == ["7/0"] == await look(made)
    (job,) = await made.missed({}, memory_seconds=300, now=NOW, monotonic=0.0)
    assert (job.exit.code, list(job.nodes), job.in_scope) == (5, ["node1", "node2"], True)
    assert (job.ended_at.seconds, job.stdout_path) == (NOW - 4000, "")
    made.filled()
    assert await look(made) == []


async def test_nothing_is_asked_that_slurmctld_still_knows() -> None:
    """A silence shorter than MinJobAge, one after which the job is still listed, and a site that wants none of it."""
    tool = Sacct({})
    assert await look(backfill(tool), memory=10_000) == []
    assert await look(backfill(tool, hours=0)) == []
    assert tool.asked == 0
    assert await look(backfill(tool), known={"7": 0}) == []


async def test_the_attempt_before_the_one_that_slurm_shows_was_missed() -> None:
    """Requeued while nobody was told: its exit is on record, the next one is Slurm's to show."""
    tool = Sacct({"State": "REQUEUED"}, {"Submit": str(NOW - 4000), "End": str(NOW - 3000)})
    assert await look(backfill(tool), known={"7": 1}) == ["7/0"]


async def test_an_accounting_that_is_down_is_asked_again_and_one_that_is_absent_is_not() -> None:
    """The first after a minute, with a warning; the second never, and harmlessly."""
    down, absent = Sacct({}, error="sacct: error: Connection refused"), Sacct(error=OFF)
    made = backfill(down)
    with structlog.testing.capture_logs() as logs:
        assert await look(made) == await look(made, monotonic=AGAIN_SECONDS - 1) == []
        down.error = ""
        assert await look(made, monotonic=AGAIN_SECONDS + 1) == ["7/0"]
        other = backfill(absent)
        assert await look(other) == await look(other, monotonic=1e6) == []
    assert (down.asked, absent.asked) == (3, 1)
    assert [item["event"] for item in logs] == [
        "history_unavailable",
        "history_backfilled",
        "history_not_configured",
    ]


def test_when_it_was_last_told_is_read_from_the_tick_file(tmp_path: Path) -> None:
    """And from nothing that is no such file."""
    file = tmp_path / "tick"
    assert last_told(file) is None
    for text in ("", "[]", "nonsense", '{"written": true}', "[" * 4000):
        file.write_text(text)
        assert last_told(file) is None
    file.write_text(json.dumps({"v": 1, "written": 12.5}))
    assert last_told(file) == 12.5


def test_jobs_are_asked_for_in_batches_and_no_more_than_so_many() -> None:
    """Ten thousand ended jobs are a bounded number of questions, the newest first to be had."""
    tool = Sacct(*({"JobIDRaw": str(number), "JobID": str(number)} for number in range(1, sacct.JOBS_MAX + 500)))
    list(itertools.islice(sacct.ended(Slurm(run=tool), since=0, until=NOW), 1))
    assert tool.asked == 1 + sacct.JOBS_MAX // 200
