"""Patterns of files beside StdOut: what they mean for one job, and what is told when they cannot be followed."""

import asyncio
import getpass
import os
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from advisor.clock import SystemClock
from advisor.core.words import UnavailableReason
from advisor.ports import LogBatch, LogRequest
from connectors.logs.files import JobFileLogs
from connectors.logs.more_files import check_pattern, find
from connectors.logs.source import FILES_FREE


def names(folder: Path, *patterns: str, nodes: tuple[str, ...] = ("n1", "n2.example.org")) -> list[str]:
    found = find(str(folder / "slurm-7.out"), patterns, job_id="7", nodes=nodes)
    assert found.refused == ()
    return [str(Path(path).relative_to(folder)) for path in found.paths]


def make(folder: Path, *files: str) -> None:
    for name in files:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"")


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("%j-%t.out", ["7-0.out", "7-11.out"]),
        ("%j-%4t.out", ["7-0.out", "7-11.out"]),
        ("logs/rank%t.err", ["logs/rank3.err"]),
        ("run-%j/%n.log", ["run-7/0.log"]),
        ("out.%N-%s", ["out.n1-0", "out.n2-1"]),
        ("*.trace", [".trace", "a.trace"]),
        ("a?trace", ["a.trace"]),
        ("100%%.log", ["100%.log"]),
    ],
)
def test_patterns_as_in_sbatch(tmp_path: Path, pattern: str, found: list[str]) -> None:
    """Numbers, nodes of the allocation and the job's id stand for themselves; nothing else matches."""
    make(tmp_path, "slurm-7.out", "7-0.out", "7-11.out", "8-0.out", "7-x.out", "77-1.out", "7-0.out.1")
    make(tmp_path, "logs/rank3.err", "logs/rankx.err", "run-7/0.log", "run-8/0.log", "100%.log")
    make(tmp_path, "out.n1-0", "out.n2-1", "out.n3-0", "out.other-0", "a.trace", ".trace", "abtrace")
    if pattern == "a?trace":
        (tmp_path / "abtrace").unlink()
    assert names(tmp_path, pattern) == found


def test_names_that_need_no_listing(tmp_path: Path) -> None:
    """One per node of the allocation, whether they are there or not."""
    assert names(tmp_path, "%j.%N.log") == ["7.n1.log", "7.n2.log"]
    assert names(tmp_path, "%N.log", nodes=("../x", "a/b")) == []


def test_the_output_file_itself_is_not_found_again(tmp_path: Path) -> None:
    """A pattern may match it."""
    make(tmp_path, "slurm-7.out", "slurm-8.out")
    assert names(tmp_path, "slurm-*.out") == ["slurm-8.out"]


@pytest.mark.parametrize("pattern", ["", "/abs/%t", "../%t", "a/../%t", "a/", "%q", "%t/x", "*/x", "a\nb%t", "x" * 201])
def test_patterns_that_make_no_sense(pattern: str) -> None:
    """Are told with what may be written instead."""
    assert check_pattern(pattern)


@pytest.mark.parametrize("pattern", ["%t", "logs/%j-%t.out", "run-%j/*", "rank?.log", "train.log", "%%%N"])
def test_patterns_that_do(pattern: str) -> None:
    """Are taken."""
    assert check_pattern(pattern) == ""


@pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user needs root")
def test_a_folder_that_may_not_be_listed_is_told(tmp_path: Path) -> None:
    """Files that could not be found are not files that are not there."""
    folder = tmp_path / "runs"
    folder.mkdir()
    for path in (tmp_path, *tmp_path.parents):
        if path.stat().st_uid == 0 and str(path).startswith("/tmp/pytest-of"):
            path.chmod(0o755)
    folder.chmod(0o711)
    os.seteuid(65534)
    try:
        found = find(str(folder / "slurm-7.out"), ["%t.log", "%N.log"], job_id="7", nodes=("n1",))
    finally:
        os.seteuid(0)
    assert [why.reason for why in found.refused] == [UnavailableReason.PERMISSION]
    assert found.paths == (f"{folder}/n1.log",)


class Standing:
    """A clock that somebody sets."""

    def __init__(self) -> None:
        self.time = SystemClock().now()

    def now(self) -> datetime:
        return self.time

    def monotonic(self) -> float:
        return 0.0

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(0)


async def test_a_long_list_is_made_anew_once_the_attempt_is_over(tmp_path: Path) -> None:
    """Reads that follow each other list a folder of many files once; what came before the end is not left out."""
    clock = Standing()
    (tmp_path / "job.out").write_bytes(b"begun\n")
    for number in range(FILES_FREE + 1):
        (tmp_path / f"{number}.log").write_bytes(b"%d\n" % number)
    logs = JobFileLogs(clock=clock, extra_files=["%t.log"], grace_seconds=3.0)
    request = LogRequest(
        key="job/0",
        job_id="7",
        attempt=0,
        nodes=(),
        cursor="",
        user=getpass.getuser(),
        user_id=os.geteuid(),
        paths=(str(tmp_path / "job.out"),),
        started_at=clock.time - timedelta(hours=1),
        ended_at=clock.time,
        bytes_max=1 << 20,
    )

    async def files(cursor: str) -> tuple[set[str], str]:
        batch = (await logs.read([replace(request, cursor=cursor)]))["job/0"]
        assert isinstance(batch, LogBatch)
        return {Path(chunk.file).name for chunk in batch.chunks}, batch.cursor

    first, cursor = await files("")
    assert len(first) == FILES_FREE + 2
    (tmp_path / "9999.log").write_bytes(b"late\n")
    assert (await files(cursor))[0] == set()  # the list of a moment ago
    clock.time += timedelta(seconds=4)
    assert (await files(cursor))[0] == {"9999.log"}
    await logs.close()
