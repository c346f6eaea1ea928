"""How many jobs one advisor carries: `python -m benchmarks.capacity [--jobs N] [--ticks N] [--json]`.

Real: the tick with everything in it, the rules as shipped, the reader of job outputs over one file per job, Postgres
as our own child. Emulated: the agent's reports, and the jobs, whose files this program writes: one line of progress
each before every tick. Two parts, one after the other on the same store:

    quiet    all jobs run and print. Seconds per tick, p50 and p99, nothing to be decided.
    event    all jobs fail at once with what NCCL says of a dead port. Ticks until each has its advice: decisions
             committed per second of committing, until when the last one was, and the longest age of the tick's
             pulse meanwhile, which is what the watchdog judges by.

Beside them the reference of the same run: bare rows of one small table, committed one by one, per second; and peak
memory. Targets (DESIGN section 11): 2,000 jobs on 2 cores with a tick's p99 below 1 s.
"""

import argparse
import asyncio
import getpass
import json
import os
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import structlog
from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine

from advisor.board import Board
from advisor.clock import SystemClock
from advisor.core.model import ExitStatus
from advisor.core.policy import Policy
from advisor.core.scan import Scanner
from advisor.core.words import AttemptState, Mode
from advisor.gathering import Gatherer
from advisor.pipeline import Pipeline, Rulebook
from advisor.rules.loader import load_rules
from advisor.store.embedded import EmbeddedPostgres
from advisor.store.migrate import migrate
from advisor.store.records import AdviceRow, ObservedJob
from advisor.store.store import Store
from connectors.logs.files import JobFileLogs

CLUSTER = "bench"
STEP = " [{at}] iteration {step:>8}/ 100000 | elapsed time per iteration (ms): 100.0 | loss: 1.0\n"
FAILURE = (
    "{node}:4711:1 [0] transport/net_ib.cc:93 NCCL WARN NET/IB : mlx5_0:1 Got async event : port error\n"
    "[rank0]: torch.distributed.DistBackendError: NCCL error: remote process exited or there was a network error\n"
)
REFERENCE_SECONDS = 3.0
EVENT_SECONDS_MAX = 600.0


class Site:
    """The jobs and their output files, and an agent that reports them."""

    def __init__(self, folder: Path, jobs: int) -> None:
        now = _now()
        self.step = 0
        self.jobs = [
            ObservedJob(
                job_id=str(1000 + number),
                attempt=0,
                submitted_at=now - timedelta(seconds=60),
                user=getpass.getuser(),
                user_id=os.geteuid(),
                state=AttemptState.RUNNING,
                observed_at=now,
                started_at=now - timedelta(seconds=30),
                nodes=(f"node{number}",),
                nodes_requested=1,
                nodes_fitting=jobs,
                tasks=1,
                partition="train",
                name=f"train-{number}",
                stdout_path=str(folder / f"{number}.out"),
                in_scope=True,
                requeueable=True,
                batch=True,
            )
            for number in range(jobs)
        ]

    def print_a_step(self) -> None:
        self.step += 1
        at = f"{_now():%Y-%m-%d %H:%M:%S}"
        for job in self.jobs:
            _append(job.stdout_path, STEP.format(at=at, step=self.step))

    def fail(self) -> None:
        now = _now()
        for job in self.jobs:
            _append(job.stdout_path, FAILURE.format(node=job.nodes[0] if job.nodes else ""))
        self.jobs = [
            replace(job, state=AttemptState.FAILED, ended_at=now, observed_at=now, exit=ExitStatus(code=1, signal=0))
            for job in self.jobs
        ]


def _now() -> datetime:
    return datetime.fromtimestamp(time.time(), UTC)  # noqa: TID251 - the harness's own clock


def _append(path: str, line: str) -> None:
    with Path(path).open("a", encoding="ascii") as file:
        file.write(line)


async def measure(folder: Path, url: str, jobs: int, ticks: int) -> dict[str, Any]:
    store = await Store.open(url)
    clock = SystemClock()
    rules = load_rules()
    board = Board(store, clock)
    gatherer = Gatherer(
        sources=(JobFileLogs("job-output", clock=clock),),
        scanner=Scanner(rules),
        clock=clock,
        read_bytes_max=8_000_000,
        signals_max=1000,
    )
    pipeline = Pipeline(
        store=store,
        board=board,
        gatherer=gatherer,
        rulebook=Rulebook(rules=rules, policy=Policy(), build="bench"),
        clock=clock,
        default_mode=Mode.AUTONOMOUS,
        interval_seconds=1.0,
        attempts_max=10_000,
    )
    site = Site(folder, jobs)
    try:
        reference = await _bare_commits(url)
        await store.record_observations(CLUSTER, site.jobs, (), complete=True, now=_now())
        await _tick(pipeline, site)  # the first one reads and stores everything for the first time
        quiet = [await _tick(pipeline, site) for _ in range(ticks)]
        board.heard(CLUSTER, ())
        site.fail()
        await store.record_observations(CLUSTER, site.jobs, (), complete=True, now=_now())
        event = await _event(pipeline, board, store, jobs)
    finally:
        await gatherer_close(gatherer)
        await store.close()
    return {
        "jobs": jobs,
        "tick_seconds": {"p50": _share(quiet, 0.5), "p99": _share(quiet, 0.99), "max": max(quiet)},
        "event": event,
        "bare_commits_per_second": reference,
        "memory_mb_max": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "load_average": os.getloadavg()[0],
    }


async def gatherer_close(gatherer: Gatherer) -> None:
    for source in gatherer.sources:
        await source.close()


async def _bare_commits(url: str) -> float:
    """Transactions of one small row each, per second: what the disk and the database give at best, one by one."""
    engine = create_async_engine(url)
    count, began = 0, time.monotonic()
    async with engine.begin() as connection:
        await connection.execute(text("CREATE TABLE IF NOT EXISTS bench_reference (n bigint)"))
    while time.monotonic() - began < REFERENCE_SECONDS:
        async with engine.begin() as connection:
            await connection.execute(text("INSERT INTO bench_reference VALUES (1)"))
        count += 1
    await engine.dispose()
    return count / (time.monotonic() - began)


async def _tick(pipeline: Pipeline, site: Site) -> float:
    site.print_a_step()
    began = time.monotonic()
    await pipeline.tick()
    return time.monotonic() - began


async def _event(pipeline: Pipeline, board: Board, store: Store, jobs: int) -> dict[str, Any]:
    """Ticks, and beside them somebody who looks at the pulse and at the first advice as an agent would."""
    began = time.monotonic()
    ages: list[float] = []
    first: list[float] = []

    async def look() -> None:
        while True:
            ages.append(board.pulse.age_seconds)
            if not first and await board.open_for(CLUSTER):
                first.append(time.monotonic() - began)
            await asyncio.sleep(0.05)

    looking = asyncio.create_task(look())
    ticks = 0
    opened: tuple[AdviceRow, ...] = ()
    try:
        while len(opened) < jobs and time.monotonic() - began < EVENT_SECONDS_MAX:
            await pipeline.tick()
            ticks += 1
            opened = await store.open_advice(CLUSTER, _now())
        took = time.monotonic() - began
    finally:
        looking.cancel()
        await asyncio.gather(looking, return_exceptions=True)
    return {
        "advised": len(opened),
        "seconds": took,
        "decisions_per_second": len(opened) / took,
        "first_advice_seconds": first[0] if first else None,
        "ticks": ticks,
        "pulse_age_seconds_max": max(ages),
        "actions": _actions(opened),
    }


def _actions(opened: Sequence[AdviceRow]) -> Mapping[str, int]:
    words = [f"{row.decision.action}: {row.decision.reason}" for row in opened]
    return {word: words.count(word) for word in sorted(set(words))}


def _share(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)]


@contextmanager
def _folder() -> Iterator[Path]:
    """Short and passable for the database's own user."""
    folder = Path(tempfile.mkdtemp(prefix="cap-"))
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.capacity", description=__doc__)
    parser.add_argument("--jobs", type=int, default=2000)
    parser.add_argument("--ticks", type=int, default=100)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    with _folder() as folder, EmbeddedPostgres(folder / "data") as server:
        asyncio.run(migrate(server.url))
        (folder / "out").mkdir()
        found = asyncio.run(measure(folder / "out", server.url, options.jobs, options.ticks))
    if options.json:
        print(json.dumps(found))
    else:
        for key, value in found.items():
            print(f"{key:<26} {json.dumps(value)}")
    return 0 if found["event"]["advised"] >= options.jobs else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
