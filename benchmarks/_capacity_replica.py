"""One real service for the capacity benchmark: `python -m benchmarks._capacity_replica CONFIG` with a TOML file.

It writes one JSON line per tick to standard output: when it ended, how long it took and in which stages, how many
attempts it watched, and how many statements the tick and everything else (reports of agents among it) sent to the
database since the last one.
"""

import asyncio
import gc
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import structlog
from sqlalchemy import event
from sqlalchemy.engine import Engine

from advisor.app import Service, keep_what_is_loaded
from advisor.config import load
from advisor.instruments import Instruments

LOOK_SECONDS = 0.1


class Statements:
    """Counts what goes to the database, apart for the tick's own task."""

    def __init__(self) -> None:
        self.tick = self.other = 0
        self.collecting = 0.0  # seconds of looking for garbage in cycles
        self._began = 0.0
        gc.callbacks.append(self._collects)
        event.listen(Engine, "before_cursor_execute", self._sent)

    def _sent(self, *_: Any) -> None:
        task = asyncio.current_task()
        if task is not None and getattr(task.get_coro(), "__qualname__", "") == "Pipeline.run":
            self.tick += 1
        else:
            self.other += 1

    def _collects(self, phase: str, _: object) -> None:
        if phase == "start":
            self._began = time.perf_counter()
        else:
            self.collecting += time.perf_counter() - self._began


def time_stages(seconds: Counter[str]) -> None:
    """Adds to `seconds` what each stage of a tick takes from now on, by the clock."""
    timed = Instruments.stage

    @contextmanager
    def stage(instruments: Instruments, name: str) -> Iterator[None]:
        began = time.perf_counter()
        with timed(instruments, name):
            yield
        seconds[name] += time.perf_counter() - began

    setattr(Instruments, "stage", stage)  # noqa: B010 - a method of the class is given another body


async def serve(config: Path) -> None:
    statements = Statements()
    seconds = Counter[str]()
    time_stages(seconds)
    service = Service(load(config, {}).config)
    async with service as running:
        keep_what_is_loaded()
        seen, parent = 0, os.getppid()
        while os.getppid() == parent:  # nobody ends what a benchmark that was killed has begun
            await asyncio.sleep(LOOK_SECONDS)
            pulse = running.board.pulse
            if pulse.ticks == seen:
                continue
            told = {
                "at": time.time(),  # noqa: TID251 - the harness's own clock
                "took": pulse.took_seconds,
                "ticks": pulse.ticks - seen,
                "watched": pulse.watched,
                "failed": pulse.failed_jobs,
                "gc": statements.collecting,
                "sql": statements.tick,
                "sql_other": statements.other,
                "stages": {name: round(took, 3) for name, took in seconds.items()},
            }
            seconds.clear()
            seen, statements.tick, statements.other, statements.collecting = pulse.ticks, 0, 0, 0.0
            print(json.dumps(told), flush=True)


if __name__ == "__main__":
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(int(os.environ.get("BENCH_LOG_LEVEL", "40"))),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    asyncio.run(serve(Path(sys.argv[1])))
