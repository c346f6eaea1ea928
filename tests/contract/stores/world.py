"""One world per log source for the suites that all of them pass: files, Loki, VictoriaLogs.

The two stores are fakes in this process, or real servers where LOKI_BIN or VICTORIA_LOGS_BIN names a program.
"""

import asyncio
import json
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import httpx

from advisor.core.line_filter import LineFilter
from advisor.core.model import Unavailable
from advisor.core.words import UnavailableReason
from advisor.ports import LogBatch, LogRequest, LogSource
from connectors.logs.files import JobFileLogs
from connectors.logs.loki import Loki
from connectors.logs.store import Labels
from connectors.logs.store_reader import StoreLimits, StoreLogs, to_ns
from connectors.logs.victorialogs import VictoriaLogs
from connectors.web.access import Access
from connectors.web.pacing import Breaker, Pace
from connectors.web.server import Server
from tests.contract.stores.fake_loki import ENTRIES_MAX, FakeLoki
from tests.contract.stores.fake_victorialogs import FakeVictoriaLogs, time_text
from tests.contract.stores.front import Front, Upstream
from tests.contract.world import StandingClock

KINDS = ("files", "loki", "victorialogs")
STORES = ("loki", "victorialogs")
BINARIES = {"loki": "LOKI_BIN", "victorialogs": "VICTORIA_LOGS_BIN"}
STARTED_SECONDS_AGO = 30
_tags = iter(range(1, 1 << 30))


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """One line in a store. `at`: seconds from the world's clock, `ns` on top of it."""

    text: str
    at: float = -1.0
    ns: int = 0
    node: str = "node1"
    job: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict)


@dataclass
class World:
    """`tag` keeps the worlds of one real server apart."""

    kind: str
    clock: StandingClock
    folder: Path
    front: Front | None = None
    fake: FakeLoki | FakeVictoriaLogs | None = None
    direct: httpx.AsyncClient | None = None
    sources: list[LogSource] = field(default_factory=list)
    tag: str = field(default_factory=lambda: f"t{os.getpid()}x{next(_tags)}")

    @property
    def real(self) -> bool:
        return self.direct is not None

    @property
    def job(self) -> str:
        return f"{self.tag}7"

    @property
    def page_lines(self) -> int:
        """What a Loki of this world gives at once."""
        return 5_000 if self.real else ENTRIES_MAX

    def ns(self, line: Written) -> int:
        return to_ns(self.clock.now()) + round(line.at * 1000) * 1_000_000 + line.ns

    async def write(self, *lines: Written | str, tenant: str = "") -> None:
        rows = [line if isinstance(line, Written) else Written(text=line) for line in lines]
        rows = [row if row.job else replace(row, job=self.job) for row in rows]
        if self.kind == "files":
            for row in rows:
                (self.folder / f"{row.job}-node2.log").touch()
                with (self.folder / f"{row.job}-{row.node}.log").open("ab") as file:
                    file.write(row.text.encode("utf-8", "surrogatepass") + b"\n")
        elif self.kind == "loki":
            await self._push_loki(rows, tenant)
        else:
            await self._push_victorialogs(rows, tenant)

    async def _push_loki(self, rows: Sequence[Written], tenant: str) -> None:
        streams: dict[tuple[str, str], list[Any]] = {}
        for row in rows:
            streams.setdefault((row.job, row.node), []).append((self.ns(row), row.text, row.metadata))
        for (job, node), values in streams.items():
            labels = {"source": self.tag, "job_id": job, "host": node}
            if isinstance(self.fake, FakeLoki):
                self.fake.push(labels, values, tenant)
                continue
            assert self.direct is not None
            for at in range(0, len(values), 2_000):
                piece = [[str(ns), text, dict(meta)] for ns, text, meta in values[at : at + 2_000]]
                body = {"streams": [{"stream": labels, "values": piece}]}
                got = await self.direct.post("/loki/api/v1/push", json=body, headers=_org(tenant))
                assert got.status_code == 204, got.text

    async def _push_victorialogs(self, rows: Sequence[Written], tenant: str) -> None:
        flat = [
            {
                "_time": time_text(self.ns(row)),
                "_msg": row.text,
                "source": self.tag,
                "job_id": row.job,
                "host": row.node,
                **row.metadata,
            }
            for row in rows
        ]
        fields = ("source", "job_id", "host")
        if isinstance(self.fake, FakeVictoriaLogs):
            self.fake.push(flat, fields, tenant or "0:0")
            return
        assert self.direct is not None
        account, _, project = (tenant or "0:0").partition(":")
        got = await self.direct.post(
            f"/insert/jsonline?_stream_fields={','.join(fields)}&_time_field=_time&_msg_field=_msg",
            content="\n".join(json.dumps(row) for row in flat),
            headers={"AccountID": account, "ProjectID": project},
        )
        assert got.status_code == 200, got.text
        await self.direct.get("/internal/force_flush")

    def request(self, cursor: str = "", **changes: Any) -> LogRequest:
        job = changes.get("job_id", self.job)
        values: dict[str, Any] = {
            "key": f"{job}/0",
            "job_id": job,
            "attempt": 0,
            "user": "tester",
            "user_id": os.getuid(),
            "paths": tuple(str(self.folder / f"{job}-node{n}.log") for n in (1, 2)),
            "nodes": ("node1", "node2"),
            "started_at": self.clock.now() - timedelta(seconds=STARTED_SECONDS_AGO),
            "ended_at": None,
            "cursor": cursor,
            "bytes_max": 1 << 20,
        }
        return LogRequest(**(values | changes))

    def server(self, *, tenant: str = "", pace: Pace | None = None, **access: Any) -> Server:
        assert self.front is not None
        headers = {}
        if tenant and self.kind == "loki":
            headers = {"X-Scope-OrgID": tenant}
        elif tenant:
            account, _, project = tenant.partition(":")
            headers = {"AccountID": account, "ProjectID": project}
        seconds = 60.0 if self.real else 10.0
        values: dict[str, Any] = {"url": self.front.url, "headers": headers, "timeout_seconds": seconds}
        return Server(
            Access(**(values | access)),
            clock=self.clock,
            pace=pace or Pace(self.clock, per_second=1e6, burst=1e6),
            breaker=Breaker(self.clock, first_seconds=0.02, max_seconds=0.1),
        )

    def store(self, server: Server, *, chosen: LineFilter | None = None, labels: Labels | None = None) -> Any:
        """Typed loosely: tests reach for both kinds."""
        where = f'{{source="{self.tag}"}}'
        named = labels or Labels(node="host")
        named = replace(named, constant=frozenset({"source"}))
        make = Loki if self.kind == "loki" else VictoriaLogs
        return make(server, selector=where, labels=named, chosen=chosen)

    def make(
        self,
        *,
        limits: StoreLimits | None = None,
        chosen: LineFilter | None = None,
        labels: Labels | None = None,
        **server: Any,
    ) -> LogSource:
        source: LogSource
        if self.kind == "files":
            source = JobFileLogs(clock=self.clock)
            self.sources.append(source)
            return source
        limits = limits or StoreLimits(patience_seconds=100.0, missing_seconds=0.0, quiet_seconds=0.0, filter_lines=0)
        store = self.store(self.server(**server), chosen=chosen, labels=labels)
        source = StoreLogs("store", store, clock=self.clock, limits=limits)
        self.sources.append(source)
        return source


def _org(tenant: str) -> dict[str, str]:
    return {"X-Scope-OrgID": tenant} if tenant else {}


@asynccontextmanager
async def world_of(kind: str, urls: Mapping[str, str]) -> AsyncIterator[World]:
    """`urls`: of the real servers that run."""
    folder = Path(tempfile.mkdtemp(prefix="ra-logs-", dir="/tmp"))
    world = World(kind=kind, clock=StandingClock(), folder=folder)
    upstream: Upstream | None = None
    try:
        if kind != "files":
            if kind in urls:
                upstream = Upstream(urls[kind])
                world.direct = httpx.AsyncClient(base_url=urls[kind], timeout=60, trust_env=False)
                world.front = Front(upstream)
            else:
                fake = FakeLoki() if kind == "loki" else FakeVictoriaLogs()
                world.fake, world.front = fake, Front(fake)
            await world.front.start()
        yield world
    finally:
        for source in world.sources:
            await source.close()
        if world.front is not None:
            await world.front.stop()
        for client in (upstream, world.direct):
            if client is not None:
                await (client.close() if isinstance(client, Upstream) else client.aclose())
        shutil.rmtree(folder)


# Reading as the pipeline does


async def ask(source: LogSource, request: LogRequest) -> LogBatch | Unavailable:
    answers = await source.read([request])
    assert set(answers) == {request.key}
    return answers[request.key]


async def batch(source: LogSource, request: LogRequest) -> LogBatch:
    """The first answer that is neither absence by a pause nor empty of news."""
    answer = await ask(source, request)
    assert isinstance(answer, LogBatch), answer
    return answer


@dataclass
class Reader:
    """Keeps the cursor and everything that came, as the pipeline and its store do. `restart`: another process."""

    world: World
    source: LogSource
    job: str = ""
    cursor: str = ""
    got: list[tuple[str, bytes]] = field(default_factory=list)
    cut: dict[str, bytes] = field(default_factory=dict)
    absent: list[Unavailable] = field(default_factory=list)
    changes: dict[str, Any] = field(default_factory=dict)
    final: bool = False

    async def read(self) -> LogBatch | Unavailable:
        """Until nothing more is there now."""
        for _ in range(2_000):
            request = self.world.request(self.cursor, job_id=self.job or self.world.job, **self.changes)
            answer = await ask(self.source, request)
            if isinstance(answer, Unavailable):
                self.absent.append(answer)
                return answer
            for chunk in answer.chunks:
                *lines, cut = (self.cut.pop(chunk.file, b"") + chunk.data).split(b"\n")
                if cut:
                    assert self.world.kind == "files", "a chunk of a store ends with its last line"
                    self.cut[chunk.file] = cut
                self.got.extend((chunk.file, line) for line in lines)
            self.absent.extend(answer.unavailable)
            self.cursor, self.final = answer.cursor, answer.final
            if not answer.more:
                return answer
        raise AssertionError("it does not end")

    async def restart(self, source: LogSource) -> None:
        await self.source.close()
        self.source = source

    @property
    def texts(self) -> list[str]:
        return [text.decode("utf-8", "replace") for _, text in self.got]


# Real servers


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def start_real(kind: str, binary: str, folder: Path) -> tuple[subprocess.Popen[bytes], str]:
    """The server with its data in `folder`, ready; its address."""
    port, grpc = _free_port(), _free_port()
    url = f"http://127.0.0.1:{port}"
    if kind == "loki":
        config = folder / "loki.yaml"
        config.write_text(LOKI_CONFIG.format(port=port, grpc=grpc, folder=folder))
        command = [binary, f"-config.file={config}"]
    else:
        command = [
            binary,
            f"-storageDataPath={folder}/data",
            f"-httpListenAddr=127.0.0.1:{port}",
            "-retentionPeriod=10y",
            "-loggerLevel=ERROR",
        ]
    with (folder / "log").open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, stdin=subprocess.DEVNULL, cwd=folder)
    ready = f"{url}/ready" if kind == "loki" else f"{url}/health"
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline:
        if process.poll() is not None:
            break
        try:
            if httpx.get(ready, timeout=2, trust_env=False).status_code == 200:
                return process, url
        except httpx.HTTPError:
            pass
        time.sleep(0.2)
    process.kill()
    raise RuntimeError(f"{binary} does not start: {(folder / 'log').read_text(errors='replace')[-2000:]}")


LOKI_CONFIG = """
auth_enabled: false
server:
  http_listen_address: 127.0.0.1
  http_listen_port: {port}
  grpc_listen_address: 127.0.0.1
  grpc_listen_port: {grpc}
  log_level: error
common:
  instance_addr: 127.0.0.1
  path_prefix: {folder}
  storage: {{filesystem: {{chunks_directory: {folder}/chunks, rules_directory: {folder}/rules}}}}
  replication_factor: 1
  ring: {{kvstore: {{store: inmemory}}}}
schema_config:
  configs:
    - {{from: 2020-10-24, store: tsdb, object_store: filesystem, schema: v13, index: {{prefix: i_, period: 24h}}}}
limits_config:
  ingestion_rate_mb: 1000
  ingestion_burst_size_mb: 1000
  per_stream_rate_limit: 1GB
  per_stream_rate_limit_burst: 1GB
  max_streams_per_user: 0
  max_global_streams_per_user: 0
  allow_structured_metadata: true
  reject_old_samples: false
analytics: {{reporting_enabled: false}}
"""

__all__ = [
    "BINARIES",
    "KINDS",
    "STORES",
    "LogBatch",
    "Reader",
    "Unavailable",
    "UnavailableReason",
    "World",
    "Written",
    "ask",
    "asyncio",
    "batch",
    "datetime",
    "start_real",
    "world_of",
]
