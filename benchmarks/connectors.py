"""What reading job output costs: `python -m benchmarks.connectors [--json] [--lines N] [--sources files,loki,…]`.

For each log source, in one run:

    SOURCE_lines_s, SOURCE_mb_s   pulled end to end: from the source to batches in order, each line once
    SOURCE_bare_lines_s           a bare client that asks the same, reads and drops (httpx; for files the same bytes by
                                  `read`, and where their lines end: copying alone is what memory can do)
    SOURCE_share                  the one by the other; the target is in `TARGETS`
    SOURCE_lines_cpu_s, SOURCE_bare_lines_cpu_s   both per second of our own CPU, whoever else uses the machine
                                  (all medians over `--rounds`, in each of which one is between two of the other)
    SOURCE_paced_lines_s          the same within five questions per second, as the service asks
    SOURCE_signal_p50_ms, p95     from a crash line written to its signal, at one look per second
    SOURCE_questions_job_minute   to the server, with 1,000 jobs that are looked at once per second
    rss_mb                        of this process, after a million lines from each

Stores are real where LOKI_BIN or VICTORIA_LOGS_BIN names a program (`SOURCE_server` says so), else stand-ins in a
process of their own (`benchmarks/_store_server.py`). Shares are told and end nothing: they are of wall time, and on a
machine that others use (`load`) they say less than figures per second of CPU do.
Memory above its target ends the program with 1.
"""

import argparse
import asyncio
import contextlib
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from statistics import median

import httpx
import orjson

from advisor.clock import SystemClock
from advisor.core.scan import FileContext, FileState, Scanner
from advisor.core.words import Trust
from advisor.ports import LogBatch, LogRequest, LogSource
from advisor.rules.loader import load_rules
from benchmarks._progress import now_at, telling
from benchmarks._store_server import STREAMS, text_of
from connectors.logs.files import JobFileLogs
from connectors.logs.loki import Loki
from connectors.logs.store import Labels
from connectors.logs.store_reader import StoreLimits, StoreLogs, to_ns
from connectors.logs.victorialogs import VictoriaLogs, format_time
from connectors.web.access import Access
from connectors.web.pacing import Pace
from connectors.web.server import Server
from tests.contract.stores.world import BINARIES, start_real

SOURCES = ("files", "loki", "victorialogs")
SPAN_SECONDS = 3_000.0  # over which the lines were written, up to a minute ago
TARGETS = {"share": 0.7, "rss_mb": 200.0, "questions_per_second": 5.0}
CRASH = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79 GiB"
CLOCK = SystemClock()
PULL = StoreLimits(patience_seconds=60.0, missing_seconds=1e9, quiet_seconds=1e9)


@dataclass(kw_only=True)
class Shop:
    """One source with its lines in it."""

    kind: str
    lines: int
    first_ns: int
    step_ns: int
    url: str = ""
    real: bool = False
    folder: Path = Path()

    @property
    def started_at(self) -> datetime:
        return datetime.fromtimestamp(self.first_ns / 1e9, UTC) - timedelta(seconds=1)

    def source(self, *, paced: bool = False, limits: StoreLimits = PULL) -> tuple[LogSource, Server | None]:
        if self.kind == "files":
            return JobFileLogs(clock=CLOCK), None
        pace = Pace(CLOCK, per_second=5.0, burst=5.0) if paced else Pace(CLOCK, per_second=1e9, burst=1e9)
        server = Server(Access(url=self.url), clock=CLOCK, pace=pace)
        labels = Labels(node="host", rank="rank", constant=frozenset({"source"}))
        where = '{source="bench"}'
        store = Loki(server, selector=where, labels=labels, chosen=None) if self.kind == "loki" else None
        return StoreLogs(
            "store",
            store or VictoriaLogs(server, selector=where if self.real else "*", labels=labels, chosen=None),
            clock=CLOCK,
            limits=limits,
        ), server

    def request(self, cursor: str, *, started_at: datetime | None = None, job: str = "1") -> LogRequest:
        return LogRequest(
            key=f"{job}/0",
            job_id=job,
            attempt=0,
            user="bench",
            user_id=os.getuid(),
            paths=(str(self.folder / "job.log"),),
            nodes=(),
            started_at=started_at or self.started_at,
            ended_at=None,
            cursor=cursor,
            bytes_max=1 << 20,
        )

    async def push(self, text: str) -> None:
        """One line, now, as a collector writes it."""
        ns = to_ns(CLOCK.now())
        if self.kind == "files":
            with (self.folder / "job.log").open("a") as file:
                file.write(text + "\n")
        else:
            await load(self, [(ns, 0, text)])


async def load(shop: Shop, rows: list[tuple[int, int, str]]) -> None:
    """Put lines (time, rank, text) into a store."""
    async with httpx.AsyncClient(base_url=shop.url, timeout=120, trust_env=False) as client:
        if not shop.real:
            for ns, _, text in rows:
                await client.post("/bench/push", content=f"{ns} {text}")
        elif shop.kind == "loki":
            streams: dict[int, list[list[str]]] = {}
            for ns, rank, text in rows:
                streams.setdefault(rank, []).append([str(ns), text])
            body = [
                {
                    "stream": {"source": "bench", "job_id": "1", "host": f"node{rank}", "rank": f"r{rank}"},
                    "values": values,
                }
                for rank, values in streams.items()
            ]
            headers = {"Content-Type": "application/json"}
            got = await client.post("/loki/api/v1/push", content=orjson.dumps({"streams": body}), headers=headers)
            assert got.status_code == 204, got.text
        else:
            lines = [
                orjson.dumps(
                    {
                        "_time": format_time(ns),
                        "_msg": text,
                        "source": "bench",
                        "job_id": "1",
                        "host": f"node{rank}",
                        "rank": f"r{rank}",
                    }
                )
                for ns, rank, text in rows
            ]
            where = "/insert/jsonline?_stream_fields=source,job_id,host,rank"
            got = await client.post(where, content=b"\n".join(lines))
            assert got.status_code == 200, got.text


def stand_in(shop: Shop) -> tuple[subprocess.Popen[bytes], str]:
    """A store of ours in a process of its own, and its address."""
    numbers = (str(shop.lines), str(shop.first_ns), str(shop.step_ns))
    command = [sys.executable, "-m", "benchmarks._store_server", shop.kind, *numbers]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.PIPE)
    assert process.stdout is not None
    return process, f"http://127.0.0.1:{int(process.stdout.readline())}"


@contextlib.asynccontextmanager
async def shop_of(kind: str, lines: int) -> AsyncIterator[Shop]:
    step_ns = int(SPAN_SECONDS * 1e9 / lines)
    first_ns = to_ns(CLOCK.now() - timedelta(seconds=SPAN_SECONDS + 300))
    shop = Shop(kind=kind, lines=lines, first_ns=first_ns, step_ns=step_ns)
    with tempfile.TemporaryDirectory(prefix="ra-bench-", dir="/tmp") as name:
        shop.folder = Path(name)
        binary = os.environ.get(BINARIES.get(kind, ""), "")
        if kind == "files":
            with (shop.folder / "job.log").open("w") as file:
                file.writelines(f"{text_of(number)}\n" for number in range(lines))
            yield shop
            return
        process, shop.url = start_real(kind, binary, shop.folder) if binary else stand_in(shop)
        shop.real = bool(binary)
        try:
            if binary:
                for at in range(0, lines, 8_000):
                    some = range(at, min(lines, at + 8_000))
                    await load(shop, [(first_ns + n * step_ns, n % STREAMS, text_of(n)) for n in some])
                if kind == "victorialogs":
                    async with httpx.AsyncClient(base_url=shop.url, trust_env=False) as client:
                        await client.get("/internal/force_flush")
            yield shop
        finally:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()


@dataclass(frozen=True, slots=True)
class Speed:
    """Per second, and lines per second of our CPU."""

    lines: float
    lines_cpu: float
    megabytes: float = 0.0


async def pull(shop: Shop, *, paced: bool, seconds: float = 1e9) -> Speed:
    """Until all lines came or the time is up."""
    source, _ = shop.source(paced=paced)
    lines = size = 0
    cursor, began, spent = "", time.monotonic(), time.process_time()
    while lines < shop.lines and time.monotonic() - began < seconds:
        answer = (await source.read([shop.request(cursor)]))["1/0"]
        assert isinstance(answer, LogBatch), answer
        for chunk in answer.chunks:
            lines += chunk.data.count(b"\n")
            size += len(chunk.data)
        cursor = answer.cursor
    took, spent = time.monotonic() - began, time.process_time() - spent
    await source.close()
    assert lines <= shop.lines, f"{lines} lines of {shop.lines}: some came twice"
    return Speed(lines / took, lines / max(spent, 1e-6), size / took / 1e6)


async def bare(shop: Shop) -> Speed:
    """A client that asks for windows as full, reads and drops."""
    began, spent = time.monotonic(), time.process_time()
    if shop.kind == "files":
        with (shop.folder / "job.log").open("rb", buffering=0) as file:
            while data := file.read(1 << 20):
                data.count(b"\n")
    else:
        await bare_store(shop)
    return Speed(shop.lines / (time.monotonic() - began), shop.lines / (time.process_time() - spent))


async def bare_store(shop: Shop) -> None:
    # The same bytes as we are sent: as they are, and from Loki with labels apart.
    headers = {"Accept-Encoding": "identity", "X-Loki-Response-Encoding-Flags": "categorize-labels"}
    end_ns = shop.first_ns + shop.lines * shop.step_ns
    async with httpx.AsyncClient(base_url=shop.url, timeout=120, trust_env=False, headers=headers) as client:
        per_question = 5_000 if shop.kind == "loki" else 35_000
        for start_ns in range(shop.first_ns, end_ns, per_question * shop.step_ns):
            until_ns = min(end_ns, start_ns + per_question * shop.step_ns)
            if shop.kind == "loki":
                path, form = (
                    "/loki/api/v1/query_range",
                    {
                        "query": '{source="bench", job_id="1"}',
                        "start": str(start_ns),
                        "end": str(until_ns),
                        "limit": str(per_question),
                        "direction": "forward",
                    },
                )
            else:
                where = '({source="bench"})' if shop.real else "(*)"
                query = f'_time:[{format_time(start_ns)}, {format_time(until_ns)}) {where} "job_id":="1"'
                query += ' | fields "_time","_msg","_stream","job_id","host","rank"'
                path, form = "/select/logsql/query", {"query": query}
            async with client.stream("POST", path, data=form) as response:
                assert response.status_code == 200
                async for _ in response.aiter_raw():
                    pass


async def latency(shop: Shop, scanner: Scanner, samples: int) -> tuple[float, float]:
    """Milliseconds from a line written to its signal: p50 and p95."""
    source, _ = shop.source(paced=True, limits=replace(PULL, patience_seconds=0.4))
    started_at = CLOCK.now() - timedelta(seconds=5)
    states: dict[str, FileState] = {}
    seen: dict[str, float] = {}
    written: dict[str, float] = {}
    cursor = ""
    context = FileContext(source="s", trust=Trust.LOG, file="f")
    if shop.kind == "files":
        (shop.folder / "job.log").write_text("")
    for number in range(samples * 3):
        turn = time.monotonic()
        if number < samples:
            await asyncio.sleep((number * 0.37) % 0.9)
            written[f"{number}.00 MiB"] = time.monotonic()
            await shop.push(CRASH.replace("2.00 GiB", f"{number}.00 MiB"))
        await asyncio.sleep(max(0.0, turn + 1.0 - time.monotonic()))
        for _ in range(16):
            answer = (await source.read([shop.request(cursor, started_at=started_at)]))["1/0"]
            if not isinstance(answer, LogBatch):
                break
            for chunk in answer.chunks:
                found = scanner.scan(
                    replace(context, file=chunk.file),
                    states.get(chunk.file, FileState()),
                    chunk.data,
                    fresh=chunk.fresh,
                    final=False,
                    seen_at=CLOCK.now(),
                )
                states[chunk.file] = replace(found.state, repeats=())
                for signal in found.signals:
                    for name in written:
                        if f"allocate {name}" in signal.text:
                            seen.setdefault(name, time.monotonic())
            cursor = answer.cursor
            if not answer.more:
                break
        if len(seen) == samples:
            break
    await source.close()
    assert len(seen) == samples, f"{shop.kind}: {samples - len(seen)} lines gave no signal"
    delays = sorted((seen[name] - written[name]) * 1000 for name in seen)
    return delays[len(delays) // 2], delays[min(len(delays) - 1, int(len(delays) * 0.95))]


async def questions(shop: Shop, seconds: float) -> float:
    """Questions per job and minute, with 1,000 jobs at one look per second."""
    limits = StoreLimits(missing_seconds=10.0)
    source, server = shop.source(paced=True, limits=limits)
    if server is None:
        return 0.0
    started_at = CLOCK.now() - timedelta(seconds=5)
    cursors: dict[str, str] = {}
    began = time.monotonic()
    while time.monotonic() - began < seconds:
        turn = time.monotonic()
        requests = [shop.request(cursors.get(str(n), ""), started_at=started_at, job=str(n)) for n in range(1_000)]
        for key, answer in (await source.read(requests)).items():
            if isinstance(answer, LogBatch):
                cursors[key.split("/")[0]] = answer.cursor
        await asyncio.sleep(max(0.0, turn + 1.0 - time.monotonic()))
    took = time.monotonic() - began
    await source.close()
    return server.asked / 1_000 / (took / 60)


def rss_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


async def speeds(shop: Shop, rounds: int) -> dict[str, float | str]:
    """Rounds of one between two of the other, so that what else the machine does meets both alike."""
    kind, pulled, bares = shop.kind, [], [await bare(shop)]
    for number in range(rounds):
        now_at(f"{kind}: reading all, {number} of {rounds} rounds")
        pulled.append(await pull(shop, paced=False))
        bares.append(await bare(shop))
    shares = [2 * one.lines / (a.lines + b.lines) for one, (a, b) in zip(pulled, pairwise(bares), strict=True)]
    return {
        f"{kind}_lines_s": round(median(one.lines for one in pulled)),
        f"{kind}_mb_s": round(median(one.megabytes for one in pulled), 2),
        f"{kind}_bare_lines_s": round(median(one.lines for one in bares)),
        f"{kind}_share": round(median(shares), 3),
        f"{kind}_shares": " ".join(f"{share:.2f}" for share in sorted(shares)),
        f"{kind}_lines_cpu_s": round(median(one.lines_cpu for one in pulled)),
        f"{kind}_bare_lines_cpu_s": round(median(one.lines_cpu for one in bares)),
    }


async def measure(
    kind: str, lines: int, samples: int, rounds: int, scanner: Callable[[], Scanner]
) -> dict[str, float | str]:
    now_at(f"{kind}: {lines} lines are written")
    async with shop_of(kind, lines) as shop:
        figures: dict[str, float | str] = {}
        if kind != "files":
            figures[f"{kind}_server"] = "real" if shop.real else "stand-in"
        figures |= await speeds(shop, rounds)
        figures[f"{kind}_load"] = round(os.getloadavg()[0], 1)
        if kind != "files":
            figures[f"{kind}_paced_lines_s"] = round((await pull(shop, paced=True, seconds=15)).lines)
        figures["rss_mb"] = round(rss_mb(), 1)  # before the rules are loaded: of reading alone
        now_at(f"{kind}: from {samples} lines to their signals")
        p50, p95 = await latency(shop, scanner(), samples)
        figures[f"{kind}_signal_p50_ms"], figures[f"{kind}_signal_p95_ms"] = round(p50), round(p95)
        if kind != "files":
            figures[f"{kind}_questions_job_minute"] = round(await questions(shop, 12.0), 3)
        return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--lines", type=int, default=1_000_000)
    parser.add_argument("--samples", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sources", default=",".join(SOURCES))
    parser.add_argument("--one", choices=SOURCES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        rules: list[Scanner] = []

        def scanner() -> Scanner:
            rules.append(Scanner(load_rules()))
            return rules[0]

        with telling():
            found = asyncio.run(measure(options.one, options.lines, options.samples, options.rounds, scanner))
        print(json.dumps(found))
        return
    figures: dict[str, float | str] = {"lines": options.lines}
    worst = 0.0
    for kind in options.sources.split(","):
        # A process for each: memory is measured by its highest point.
        numbers = ("--lines", str(options.lines), "--samples", str(options.samples), "--rounds", str(options.rounds))
        command = [sys.executable, "-m", "benchmarks.connectors", "--one", kind, *numbers]
        found = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
        worst = max(worst, found.pop("rss_mb"))
        figures |= found
    figures["rss_mb"] = worst
    if options.json:
        print(json.dumps(figures))
    else:
        for name, value in figures.items():
            target = TARGETS.get("share" if name.endswith("_share") else name)
            print(f"{name:<36} {value:>14}{'' if target is None else f'   target {target:g}'}")
    if worst > TARGETS["rss_mb"]:
        sys.exit(1)


if __name__ == "__main__":
    main()
