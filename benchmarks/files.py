"""Thousands of files of one job: what a look costs, by own rights and through the root log reader, and how soon a line
that was written is a signal.

    python -m benchmarks.files [--files N] [--json]

References of the same run: `stat` of each file for a look at which nothing changed, opening and reading each for one at
which all have grown, and for latency the same loop without inotify. The root reader needs root and setpriv.
"""

import argparse
import asyncio
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from advisor.clock import SystemClock
from advisor.core.scan import FileContext, FileState, Scanner
from advisor.core.words import Trust
from advisor.ports import LogBatch, LogChunk, LogRequest
from advisor.rules.loader import load_rules
from benchmarks._progress import now_at, telling
from connectors.logs.files import JobFileLogs
from connectors.logs.root_reader import RootReader

INTERVAL_SECONDS = 1.0  # of the tick, by default
PAUSE_SECONDS = 0.02  # between two ticks
OWNER = 54_321
CLIENT = 65_534
LINE = b"RuntimeError: CUDA error: an illegal memory access was encountered\n"
ROOT = Path(__file__).resolve().parents[1]


class Job:
    """One attempt with its cursor."""

    def __init__(self, folder: Path, source: JobFileLogs, uid: int, paths: tuple[str, ...]) -> None:
        self._folder, self._source, self._uid, self._paths = folder, source, uid, paths
        self._cursor = ""

    async def look(self) -> list[LogChunk]:
        chunks: list[LogChunk] = []
        for _ in range(16):
            request = LogRequest(
                key="job/0",
                job_id="7",
                attempt=0,
                user="bench",
                user_id=self._uid,
                paths=self._paths,
                nodes=(),
                started_at=datetime(2020, 1, 1, tzinfo=UTC),
                ended_at=None,
                cursor=self._cursor,
                bytes_max=1 << 20,
            )
            answer = (await self._source.read([request]))["job/0"]
            assert isinstance(answer, LogBatch), answer
            assert answer.unavailable == (), answer.unavailable
            self._cursor = answer.cursor
            chunks += answer.chunks
            if not answer.more:
                break
        return chunks


async def timed(look: Callable[[], object], repeat: int) -> dict[str, float]:
    """Medians of wall and CPU milliseconds."""
    walls, cpus = [], []
    for _ in range(repeat):
        wall, cpu = time.perf_counter(), time.process_time()
        result = look()
        if asyncio.iscoroutine(result):
            await result
        walls.append((time.perf_counter() - wall) * 1000)
        cpus.append((time.process_time() - cpu) * 1000)
    return {"wall_ms": round(statistics.median(walls), 1), "cpu_ms": round(statistics.median(cpus), 1)}


def grow(paths: list[Path]) -> None:
    for path in paths:
        with path.open("ab") as out:
            out.write(b"step 2 loss 1.9\n")


def read_all(paths: list[Path]) -> None:
    for path in paths:
        with path.open("rb") as file:
            file.seek(-16, os.SEEK_END)
            file.read()


async def costs(job: Job, paths: list[Path]) -> dict[str, object]:
    await job.look()
    await asyncio.sleep(0.3)  # until files count as still
    await job.look()
    found: dict[str, object] = {"quiet": await timed(job.look, 5)}
    for count in (1, len(paths)):
        grown = []
        for _ in range(3):
            grow(paths[:count])
            grown.append(await timed(job.look, 1))
            await asyncio.sleep(0.2)
            await job.look()
        found["one_grew" if count == 1 else "all_grew"] = min(grown, key=lambda item: item["cpu_ms"])
    return found


async def latency(job: Job, source: JobFileLogs, paths: list[Path], *, hints: bool, runs: int) -> dict[str, float]:
    """From a line written to its signal, in the tick's own rhythm."""
    scanner, woken = Scanner(load_rules(())), asyncio.Event()
    if hints:
        source.on_news(woken.set)
    seconds = []
    for run in range(runs):
        await asyncio.sleep(0.37 * (run % 5))  # anywhere within the interval
        await job.look()
        next_look = asyncio.get_running_loop().time() + INTERVAL_SECONDS * (0.2 + 0.13 * (run % 6))
        with paths[run * 37 % len(paths)].open("ab") as out:
            out.write(LINE)
        written = time.perf_counter()
        found = 0
        while not found:
            left = max(0.0, next_look - asyncio.get_running_loop().time())
            try:
                async with asyncio.timeout(left):
                    await woken.wait()
            except TimeoutError:
                pass
            woken.clear()
            next_look = asyncio.get_running_loop().time() + INTERVAL_SECONDS
            found = await signals(job, scanner)
            await asyncio.sleep(PAUSE_SECONDS)
        seconds.append(time.perf_counter() - written)
    seconds.sort()
    return {"p50_s": round(statistics.median(seconds), 3), "max_s": round(seconds[-1], 3)}


async def signals(job: Job, scanner: Scanner) -> int:
    found = 0
    for chunk in await job.look():
        context = FileContext(source="bench", trust=Trust.LOG, file=chunk.file, node=None, nodes=())
        scanned = scanner.scan(
            context, FileState(), chunk.data, fresh=chunk.fresh, final=True, seen_at=SystemClock().now()
        )
        found += len(scanned.signals)
    return found


@contextmanager
def root_reader(folder: Path) -> Iterator[RootReader]:
    path = str(folder / "reader.sock")
    command = ["setpriv", "--bounding-set=-all,+setuid,+setgid", sys.executable, "-P", "-m", "slurm_plugin.logreader"]
    process = subprocess.Popen(
        [*command, "--client", "nobody", "--socket", path],
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT)},
        stderr=subprocess.DEVNULL,
    )
    try:
        while not Path(path).exists():
            time.sleep(0.01)
        reader = RootReader(path)
        yield reader
        reader.close()
    finally:
        process.terminate()
        process.wait()


async def measure(count: int) -> dict[str, object]:
    folder = Path(tempfile.mkdtemp(prefix="ra-files-", dir="/tmp"))
    os.chmod(folder, 0o755)  # noqa: PTH101, S103 - others must enter; and nobody waits for this loop
    try:
        runs = folder / "runs"
        runs.mkdir()
        paths = [runs / f"rank-{number}.out" for number in range(count)]
        for path in paths:
            path.write_bytes(b"step 1 loss 2.0\n" * 20)
        (runs / "slurm-7.out").write_bytes(b"hello\n")
        source = JobFileLogs(clock=SystemClock(), extra_files=("rank-%t.out",))
        job = Job(runs, source, os.getuid(), (str(runs / "slurm-7.out"),))
        now_at(f"looks at {count} files")
        result: dict[str, object] = {"files": count, "own_rights": await costs(job, paths)}
        result["reference"] = {
            "stat_each": await timed(lambda: [path.stat() for path in paths], 5),
            "open_and_read_each": await timed(lambda: read_all(paths), 3),
        }
        now_at("from a line to its signal")
        polled = await latency(job, source, paths, hints=False, runs=12)
        hinted = await latency(job, source, paths, hints=True, runs=12)
        result["line_to_signal"] = {"inotify": hinted, "polling_1_s": polled}
        result["descriptors_open"] = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - a number is all we want
        await source.close()
        if os.geteuid() == 0 and shutil.which("setpriv"):
            now_at("by the root log reader")
            result["root_reader"] = await by_root_reader(folder, runs, paths)
        return result
    finally:
        shutil.rmtree(folder)


async def by_root_reader(folder: Path, runs: Path, paths: list[Path]) -> dict[str, object]:
    """The same files, 0600 in a folder of 0700 of somebody else's; asked for by an ordinary user."""
    for path in paths:
        path.chmod(0o600)
        os.chown(path, OWNER, OWNER)
    with root_reader(folder) as reader:
        source = JobFileLogs(clock=SystemClock(), root_reader=reader)
        job = Job(runs, source, OWNER, tuple(str(path) for path in paths))
        os.chown(runs, OWNER, OWNER)
        os.chmod(runs, 0o700)  # noqa: PTH101
        os.seteuid(CLIENT)
        try:
            await job.look()
            found: dict[str, object] = {"quiet": await timed(job.look, 3)}
        finally:
            os.seteuid(0)
        await source.close()
        return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--files", type=int, default=4096)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with telling():
        result = asyncio.run(measure(options.files))
    print(json.dumps(result, indent=None if options.json else 2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
