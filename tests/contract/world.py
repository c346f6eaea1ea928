"""What the contract suites are run in: a folder of files, a clock that stands still, and one harness per source."""

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from advisor.core.model import Unavailable
from advisor.core.words import Trust
from advisor.ports import LogBatch, LogRequest, LogSource
from connectors.kernel.files import KernelFileLogs
from connectors.logs.files import JobFileLogs

BEFORE_ALL = datetime(2020, 1, 1, tzinfo=UTC)


@dataclass
class StandingClock:
    """Wall time stands still unless told; monotonic time is the real one, since threads are waited for."""

    at: datetime = field(default_factory=lambda: datetime.fromtimestamp(time.clock_gettime(time.CLOCK_REALTIME), UTC))

    def now(self) -> datetime:
        return self.at

    def monotonic(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        raise AssertionError("no source sleeps")

    def advance(self, seconds: float) -> None:
        self.at += timedelta(seconds=seconds)


@dataclass
class Harness:
    """One source with one file, however that source finds it."""

    kind: str
    folder: Path
    clock: StandingClock
    make: Callable[..., LogSource]
    trust: Trust

    @property
    def file(self) -> Path:
        return self.folder / "node1.log"

    def many(self, count: int) -> list[Path]:
        return [self.folder / f"node{n}.log" for n in range(1, count + 1)]

    def request(self, cursor: str = "", *, files: Sequence[Path] | None = None, **changes: Any) -> LogRequest:
        files = [self.file] if files is None else files
        values: dict[str, Any] = {
            "key": "job/0",
            "job_id": "7",
            "attempt": 0,
            "user": "tester",
            "user_id": os.getuid(),
            "paths": tuple(str(f) for f in files),
            "nodes": tuple(f.name.removesuffix(".log") for f in files),
            "started_at": BEFORE_ALL,
            "ended_at": None,
            "cursor": cursor,
            "bytes_max": 1 << 20,
        }
        return LogRequest(**(values | changes))


def job_harness(folder: Path) -> Harness:
    clock = StandingClock()
    return Harness("job", folder, clock, lambda **o: JobFileLogs(clock=clock, **o), Trust.LOG)


def kernel_harness(folder: Path) -> Harness:
    clock = StandingClock()

    def make(**options: Any) -> LogSource:
        return KernelFileLogs(clock=clock, path=f"{folder}/%n.log", owners=(os.getuid(),), **options)

    return Harness("kernel", folder, clock, make, Trust.KERNEL)


HARNESSES = {"job": job_harness, "kernel": kernel_harness}


@contextmanager
def private_folder() -> Iterator[Path]:
    """A folder that every user may enter and only its owner may write."""
    folder = Path(tempfile.mkdtemp(prefix="ra-contract-", dir="/tmp"))
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


async def read_one(source: LogSource, request: LogRequest) -> LogBatch | Unavailable:
    answers = await source.read([request])
    assert set(answers) == {request.key}
    return answers[request.key]


async def batch(source: LogSource, request: LogRequest) -> LogBatch:
    answer = await read_one(source, request)
    assert isinstance(answer, LogBatch), answer
    return answer


def text(answer: LogBatch) -> bytes:
    return b"".join(chunk.data for chunk in answer.chunks)


async def drain(source: LogSource, request: Callable[[str], LogRequest], cursor: str = "") -> tuple[bytes, str]:
    """Read until nothing is left, as the pipeline does."""
    got = b""
    for _ in range(1000):
        answer = await batch(source, request(cursor))
        got, cursor = got + text(answer), answer.cursor
        if not answer.more:
            return got, cursor
    raise AssertionError("`more` never ended")
