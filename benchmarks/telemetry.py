"""How long does one scrape of all GPUs of a job take? `python -m benchmarks.telemetry [--json] [--nodes N] [--server]`.

Samples of ten fields of every GPU are absorbed scrape by scrape (`advisor.core.telemetry_watch.watch`), as a tick does
at each interval: counters that grew, GPUs that differ from their peers, GPUs that vanished. Reference, in the same run:
the same questions answered GPU by GPU in plain Python (what the tests keep as the oracle), over the same samples.

    columns_s       CPU seconds of one scrape, the middle of several
    one_by_one_s    the same, GPU by GPU
    peers_s         of `columns_s`, the comparison with peers alone

With `--server` a real Prometheus (Debian's) is filled with exporters' text of so many nodes and asked by the connector:

    pull_s, bare_s  seconds from question to samples, and of a bare client that reads the same answer and drops it
    answer_mb, questions
"""

import argparse
import asyncio
import json
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

import httpx

from advisor.clock import SystemClock
from advisor.core import peers
from advisor.core.columns import Columns, Sample
from advisor.core.measured import CLOCK, NVLINK, PCIE_REPLAY, POWER, TENSOR, UTILISATION, XID, Span
from advisor.core.telemetry import taken
from advisor.core.telemetry_watch import watch
from advisor.ports import MetricsBatch, MetricsRequest
from advisor.rules.loader import load_rules
from benchmarks._progress import now_at, telling
from connectors.metrics.prometheus import PrometheusMetrics
from connectors.web.access import Access
from connectors.web.pacing import Pace
from connectors.web.server import Server
from tests.contract.metrics.exporter import cluster, exporting
from tests.contract.metrics.real import prometheus
from tests.unit.core_detect import slow_telemetry

GPUS = 8
SCRAPES = 13
ROUNDS = 5
STARTED = datetime(2026, 3, 1, tzinfo=UTC)
INTERVAL = timedelta(seconds=15)
FIELDS: Mapping[str, tuple[float, float]] = {  # usual value, and by how much it varies
    XID: (0, 0),
    UTILISATION: (98, 2),
    TENSOR: (0.55, 0.1),
    POWER: (640, 30),
    CLOCK: (1900, 40),
    PCIE_REPLAY: (3, 0),
    NVLINK: (0, 0),
    "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL": (0, 0),
    "DCGM_FI_DEV_ROW_REMAP_FAILURE": (0, 0),
    "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS": (0, 0),
}


def scrape(number: int, nodes: tuple[str, ...], random: Random) -> list[Sample]:
    at = STARTED + number * INTERVAL
    traffic = number * 9e11
    return [
        Sample(
            at=at,
            node=node,
            gpu=gpu,
            field=name,
            value=traffic if name == NVLINK else usual + (random.random() * spread if spread else 0),
        )
        for node in nodes
        for gpu in range(GPUS)
        for name, (usual, spread) in FIELDS.items()
    ]


def cpu_seconds(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


def compare(nodes_count: int) -> dict[str, float]:
    """One more scrape of a job that has been watched for a while, both ways."""
    rules, random = load_rules(()), Random(7)
    by_id, xids = rules.by_id(), rules.xids
    nodes = tuple(f"node{number:05}" for number in range(nodes_count))
    facts: dict[str, Any] = {"nodes": nodes, "started_at": STARTED - timedelta(hours=1), "ranks_per_node": GPUS}
    span, slow_span = Span(**facts), slow_telemetry.Span(**facts)
    scrapes = [scrape(number, nodes, random) for number in range(SCRAPES)]
    recent = Columns()
    for one in scrapes[:-1]:
        recent = watch(recent, one, by_id, xids, span, source="m", seen_at=STARTED).recent

    def columns() -> None:
        watch(recent, scrapes[-1], by_id, xids, span, source="m", seen_at=STARTED)

    together, _ = taken(recent, scrapes[-1], span)
    kept = [sample for one in scrapes[-4:] for sample in one]  # about what is kept between two scrapes

    return {
        "gpus": nodes_count * GPUS,
        "samples": len(scrapes[-1]),
        "columns_s": statistics.median(cpu_seconds(columns) for _ in range(ROUNDS)),
        "peers_s": statistics.median(cpu_seconds(lambda: peers.events(together, span)) for _ in range(ROUNDS)),
        "one_by_one_s": statistics.median(
            cpu_seconds(lambda: slow_telemetry.events_of(kept, slow_span)) for _ in range(3 if nodes_count < 500 else 1)
        ),
    }


async def pull(url: str, nodes: tuple[str, ...]) -> dict[str, float]:
    clock = SystemClock()
    server = Server(Access(url=url), clock=clock, pace=Pace(clock, per_second=1e6, burst=1e6))
    source = PrometheusMetrics("m", server, interval_seconds=15.0)
    now = clock.now()
    request = MetricsRequest(key="j", nodes=nodes, since=now - timedelta(seconds=15), until=now)
    times, got = [], None
    for _ in range(ROUNDS):
        began = time.perf_counter()
        got = (await source.read([request]))["j"]
        times.append(time.perf_counter() - began)
    assert isinstance(got, MetricsBatch), got
    questions = server.asked / ROUNDS
    bare, size = [], 0
    async with httpx.AsyncClient(timeout=60, trust_env=False) as client:
        for _ in range(ROUNDS):
            began, size = time.perf_counter(), 0
            for at in range(0, len(nodes), 1_500):
                for host in (False, True):
                    form = {"query": source.query(nodes[at : at + 1_500], host=host), "step": "15"}
                    form |= {"start": f"{now.timestamp():.3f}", "end": f"{now.timestamp():.3f}"}
                    answer = await client.post(f"{url}/api/v1/query_range", data=form)
                    size += len(answer.content)
            bare.append(time.perf_counter() - began)
    await source.close()
    return {
        "pull_s": statistics.median(times),
        "bare_s": statistics.median(bare),
        "pull_samples": len(got.samples),
        "answer_mb": size / 1e6,
        "questions": questions,
    }


def served(nodes_count: int) -> dict[str, float]:
    shown = cluster(nodes=nodes_count, gpus=GPUS)
    with exporting(shown), prometheus(shown, scrape_ms=10_000) as server:
        server.scraped()
        return asyncio.run(pull(server.url, tuple(shown.nodes)))


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--nodes", type=int, default=256)
    parser.add_argument("--server", action="store_true")
    options = parser.parse_args()
    with telling():
        now_at(f"{SCRAPES} scrapes of {options.nodes} nodes, both ways")
        found = compare(options.nodes)
        now_at("a Prometheus is filled and asked")
        found |= served(options.nodes) if options.server else {}
    if options.json:
        print(json.dumps(found))
        return 0
    ratio = found["one_by_one_s"] / found["columns_s"]
    print(f"{found['gpus']:.0f} GPUs, {found['samples']:.0f} samples a scrape")
    print(f"columns    {found['columns_s']:.4f} s, of which peers {found['peers_s']:.4f} s")
    print(f"one by one {found['one_by_one_s']:.4f} s: {ratio:.0f} times as long")
    if options.server:
        print(
            f"from a real Prometheus: {found['pull_samples']:.0f} samples in {found['pull_s']:.3f} s with"
            f" {found['questions']:.0f} questions, {found['answer_mb']:.1f} MB; a bare client {found['bare_s']:.3f} s"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
