"""A log store with the output of thousands of jobs in it, made up as it is asked for, in a process of its own.

    python -m benchmarks._capacity_store '{"jobs": 2000, ...}'

It prints its port and answers as VictoriaLogs does. Of each job one rank prints a progress line every `print_seconds`,
and every rank a line that no rule speaks of every `chatter_seconds` (0: none). What a question's filter leaves out is
not sent: a question with a filter gets progress and failures, one without gets all. `POST /bench/fail` makes every job
fail at that moment; its lines are there from then on.
"""

import asyncio
import json
import re
import sys
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from connectors.logs.victorialogs import format_time, parse_time
from tests.contract.stores.front import Asked, Told, serve_until_alone

NS = 1_000_000_000
FIRST_JOB = 1000
PIECE_ROWS = 500
_WINDOW = re.compile(r"_time:\[([^,]+), ([^)]+)\)")
_ONE = re.compile(r'"job_id":="(\d+)"')
_MANY = re.compile(r'"job_id":in\(([^)]*)\)')

CHATTER = "INFO trainer.py:214 rank {rank} microbatch {n} forward-backward {a} ms optimizer {b} ms data loader {c} ms"
FAILURE = (
    "{node}:4711:1 [0] transport/net_ib.cc:93 NCCL WARN NET/IB : mlx5_0:1 Got async event : port error",
    "[rank{rank}]: torch.distributed.DistBackendError: NCCL error: remote process exited or there was a network error",
)


def node_name(job: int, place: int) -> str:
    return f"n{job:05d}x{place:02d}"


@dataclass(slots=True, kw_only=True)
class Made:
    """All lines of all jobs: functions of a job's number and the time."""

    jobs: int
    ranks: int
    ranks_per_node: int
    print_seconds: float
    chatter_seconds: float
    began_ns: int
    failed_ns: int = 0
    rows_sent: int = 0
    bytes_sent: int = 0

    async def __call__(self, asked: Asked) -> Told:
        if asked.path == "/bench/fail":
            self.failed_ns = time.time_ns()
            return Told(body=b"{}")
        if asked.path == "/bench/sent":
            return Told(body=json.dumps({"rows": self.rows_sent, "bytes": self.bytes_sent}).encode())
        query = asked.form["query"]
        window = _WINDOW.search(query)
        assert window is not None, query[:200]
        start, end = parse_time(window[1]), min(parse_time(window[2]), time.time_ns())
        wanted = self._jobs_of(query)
        if "| stats by" in query:
            return self._told(self._counts(wanted, start, end))
        if "| limit 1" in query:
            return self._told([f'{{"_time":"{format_time(start)}"}}\n'])
        return self._told(self._rows(wanted, start, end, whole="_msg:~" not in query))

    @staticmethod
    def _jobs_of(query: str) -> Sequence[int]:
        one, many = _ONE.search(query), _MANY.search(query)
        if one is not None:
            return [int(one[1])]
        return [] if many is None else [int(name) for name in re.findall(r'"(\d+)"', many[1])]

    def _told(self, rows: Iterator[str] | list[str]) -> Told:
        async def pieces() -> AsyncIterator[bytes]:
            some: list[str] = []
            for row in rows:
                some.append(row)
                if len(some) == PIECE_ROWS:
                    yield self._sent(some)
                    some = []
            yield self._sent(some)

        return Told(body=pieces(), kind="application/stream+json")

    def _sent(self, rows: list[str]) -> bytes:
        data = "".join(rows).encode()
        self.rows_sent += len(rows)
        self.bytes_sent += len(data)
        return data

    def _alive_until(self, end: int) -> int:
        return min(end, self.failed_ns) if self.failed_ns else end

    def _counts(self, wanted: Sequence[int], start: int, end: int) -> list[str]:
        seconds = max(0.0, (self._alive_until(end) - max(start, self.began_ns)) / NS)
        chatter = int(seconds / self.chatter_seconds * self.ranks) if self.chatter_seconds else 0
        count = int(seconds / self.print_seconds) + chatter
        return [f'{{"job_id":"{job}","n":"{count}"}}\n' for job in wanted] if count else []

    def _rows(self, wanted: Sequence[int], start: int, end: int, *, whole: bool) -> Iterator[str]:
        alive = self._alive_until(end)
        for job in wanted:
            number = job - FIRST_JOB
            rank = self.ranks - 1
            place = f'"job_id":"{job}","host":"{node_name(number, rank // self.ranks_per_node)}"'
            stream = f'"_stream":"{{job_id=\\"{job}\\",rank=\\"r{rank}\\"}}",{place},"rank":"r{rank}"'
            for n, at in self._times(number, self.print_seconds, start, alive):
                told = datetime.fromtimestamp(at // NS, UTC)
                text = (
                    f" [{told:%Y-%m-%d %H:%M:%S}] iteration {n:>8}/ 10000000 | consumed samples: {n * 1024:>12} |"
                    f" elapsed time per iteration (ms): {self.print_seconds * 1000:.1f} | learning rate: 1.200000E-04 |"
                    f" global batch size:  1024 | lm loss: {2.0 + (n % 7) / 100:.6E} | loss scale: 1.0 | grad norm: 0.1"
                )
                yield f'{{"_time":"{format_time(at)}","_msg":"{text}",{stream}}}\n'
            if self.failed_ns and start <= self.failed_ns < end:
                for offset, words in enumerate(FAILURE):
                    text = words.format(node=node_name(number, 0), rank=0)
                    yield (
                        f'{{"_time":"{format_time(self.failed_ns + offset)}","_msg":"{text}",'
                        f'"_stream":"{{job_id=\\"{job}\\",rank=\\"r0\\"}}","job_id":"{job}",'
                        f'"host":"{node_name(number, 0)}","rank":"r0"}}\n'
                    )
            if whole and self.chatter_seconds:
                yield from self._chatter(job, number, start, alive)

    def _chatter(self, job: int, number: int, start: int, end: int) -> Iterator[str]:
        for rank in range(self.ranks):
            node = node_name(number, rank // self.ranks_per_node)
            rest = (
                f'"_stream":"{{job_id=\\"{job}\\",rank=\\"r{rank}\\"}}","job_id":"{job}","host":"{node}",'
                f'"rank":"r{rank}"}}\n'
            )
            for n, at in self._times(number * self.ranks + rank, self.chatter_seconds, start, end):
                text = CHATTER.format(rank=rank, n=n, a=n % 997, b=n % 89, c=n % 31)
                yield f'{{"_time":"{format_time(at)}","_msg":"{text}",{rest}'

    def _times(self, who: int, every: float, start: int, end: int) -> Iterator[tuple[int, int]]:
        """When somebody prints: its own phase, the same whoever asks and whenever."""
        period = int(every * NS)
        first = self.began_ns + (who * 2_654_435_761 % 1_000_003) * period // 1_000_003
        n = max(0, -(-(start - first) // period))
        while (at := first + n * period) < end:
            yield n, at
            n += 1


async def main() -> None:
    told: dict[str, Any] = json.loads(sys.argv[1])
    await serve_until_alone(Made(**told))


if __name__ == "__main__":
    asyncio.run(main())
