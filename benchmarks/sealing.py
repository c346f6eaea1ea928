"""What seals cost: rows sealed and verified per second, and what committing decisions takes with and without a sealer.

    python -m benchmarks.sealing [--commits N] [--json]

Commits of ten decisions each, with inputs of 30 kB, on the embedded Postgres with durable commits; the same number
with nobody sealing (the reference), and while a sealer seals every second (30 times as often as by default), in turns
of fifty. Then a backlog of as many rows is sealed at once and verified.
"""

import argparse
import asyncio
import contextlib
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import structlog
from sqlalchemy.ext.asyncio import create_async_engine

from advisor.clock import SystemClock
from advisor.sealing import Sealer
from advisor.seals.chain import Chain
from advisor.seals.keys import SealKey
from advisor.store import seal_verify
from advisor.store.embedded import EmbeddedPostgres
from advisor.store.migrate import migrate
from advisor.store.records import AttemptKey, DecisionRecord
from advisor.store.store import Store
from benchmarks._progress import now_at, telling
from tests.integration.store.worlds import CLUSTER, decision, seen

TOGETHER = 10
TURN = 50
INPUT_BYTES = 30_000
SEAL_SECONDS = 1.0
START = datetime(2026, 11, 1, tzinfo=UTC)


async def keys(store: Store, count: int) -> list[AttemptKey]:
    jobs = [seen(job_id=str(number), submitted_at=START, observed_at=START) for number in range(count)]
    recorded = await store.record_observations(CLUSTER, jobs, (), complete=False, now=START)
    return list(recorded.changed)


def records(chosen: Sequence[AttemptKey], generation: int, noise: random.Random) -> list[DecisionRecord]:
    return [
        DecisionRecord(
            key=key,
            seen_generation=generation,
            decision=decision(),
            analysis_json='{"schema":"advisor.analysis/1"}' + " " * 2_000,
            inputs=noise.randbytes(INPUT_BYTES // 2).hex().encode(),
            rules=b'{"rules":1}',
            policy=b'{"policy":1}',
            build="bench",
            created_at=START + timedelta(seconds=generation),
            time_to_live=timedelta(seconds=240),
        )
        for key in chosen
    ]


async def committed(store: Store, chosen: Sequence[AttemptKey], first: int, noise: random.Random) -> list[float]:
    """Seconds of `TURN` commits, one after the other."""
    took = []
    for generation in range(first, first + TURN):
        batch = records(chosen, generation, noise)
        began = time.perf_counter()
        await store.commit_decisions(batch)
        took.append(time.perf_counter() - began)
    return took


def quantile(values: Sequence[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


async def measure(url: str, commits: int) -> dict[str, float]:
    await migrate(url)
    store = await Store.open(url)
    noise, chosen = random.Random(7), await keys(store, TOGETHER)
    key = SealKey.new()
    found: dict[str, list[float]] = {"without": [], "with": []}
    generation = 0
    sealer = Sealer(history=store.history(), key=key, clock=SystemClock(), interval_seconds=SEAL_SECONDS)
    sealed = 0
    await committed(store, chosen, generation, noise)  # warm
    generation += TURN
    while len(found["with"]) < commits:
        now_at(f"{len(found['with'])} of {commits} commits with a sealer, and as many without")
        found["without"] += await committed(store, chosen, generation, noise)
        generation += TURN
        sealed += await sealer.once()  # the turn before is not this turn's work
        running = asyncio.create_task(sealer.run())
        found["with"] += await committed(store, chosen, generation, noise)
        generation += TURN
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running
    now_at("rows that are sealed at once, and verified")
    await sealer.once()
    for _ in range(max(1, commits // TURN)):
        await committed(store, chosen, generation, noise)
        generation += TURN
    began = time.perf_counter()
    rows = await sealer.once()
    seal_seconds = time.perf_counter() - began
    engine = create_async_engine(url)
    chain = Chain(trusted={key.public.fingerprint: key.public})
    began = time.perf_counter()
    async with engine.connect() as connection:
        wrong = [finding async for finding in seal_verify.read_chain(connection, chain)]
        wrong += [finding async for finding in seal_verify.check_rows(connection, chain, told=lambda *_: None)]
    verify_seconds = time.perf_counter() - began
    await engine.dispose()
    await store.close()
    if wrong:
        raise SystemExit(f"the chain is not as it was: {wrong[0]}")
    all_rows = sum(item.rows.rows for items in chain.sealed.values() for item in items)
    return {
        "commits": float(len(found["with"])),
        "commit_ms_p50_without": 1e3 * quantile(found["without"], 0.5),
        "commit_ms_p50_with": 1e3 * quantile(found["with"], 0.5),
        "commit_ms_p95_without": 1e3 * quantile(found["without"], 0.95),
        "commit_ms_p95_with": 1e3 * quantile(found["with"], 0.95),
        "sealed_rows": float(rows),
        "sealed_rows_per_second": rows / seal_seconds,
        "verified_rows": float(all_rows),
        "verified_rows_per_second": all_rows / verify_seconds,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--commits", type=int, default=400)
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args()
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    with tempfile.TemporaryDirectory(prefix="adv-seal-") as folder:
        Path(folder).chmod(0o755)
        with EmbeddedPostgres(Path(folder)) as server, telling():
            found = asyncio.run(measure(server.url, chosen.commits))
    if chosen.json:
        print(json.dumps(found))
        return
    print(f"commits of {TOGETHER} decisions on {os.cpu_count()} cores, reference: the same without a sealer")
    for share in ("p50", "p95"):
        without, with_it = found[f"commit_ms_{share}_without"], found[f"commit_ms_{share}_with"]
        print(f"  {share}  {without:6.1f} ms without   {with_it:6.1f} ms with   ratio {with_it / without:.2f}")
    print(f"sealed    {found['sealed_rows_per_second']:8.0f} rows/s ({found['sealed_rows']:.0f} rows at once)")
    print(f"verified  {found['verified_rows_per_second']:8.0f} rows/s ({found['verified_rows']:.0f} rows)")


if __name__ == "__main__":
    main()
