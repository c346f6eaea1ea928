"""How fast the audit answers over a year of a large site: `python -m benchmarks.audit [--rows N] [--json]`.

A million decisions of 250,000 jobs, with what belongs to them, in a Postgres of our own as it ships (no tuning): see
tests/integration/store/audit_world.py. Every list is asked with every filter, and decisions with every pair of filters
of which each value is used: what is common, what is rare, and what there is not; the first page (100 rows, read and
decoded as the service does), and pages far behind it. Beside them the references of the same run: one row by its key,
and the newest page as bare psycopg reads its columns, with nothing filtered and nothing decoded.

Two figures for each: the time on the clock, and the time on a processor, of this program and of its database together.
With everything in memory they are the same on a machine that has nothing else to do; where other work runs, too, the
second one tells what the question costs.

Every plan is looked at: one that reads a big table from end to end is told. Target: any first page, p95 < 50 ms.
`--data FOLDER` keeps the database there and uses it again.
"""

import argparse
import asyncio
import json
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import combinations
from pathlib import Path
from typing import Any

import structlog
from psycopg import AsyncConnection as PlainConnection
from sqlalchemy import make_url, text
from sqlalchemy.dialects import postgresql
from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine

from advisor.app import keep_what_is_loaded
from advisor.core.words import Action, Mode
from advisor.store import documents
from advisor.store.action_queries import actions_statement, audit_statement
from advisor.store.audit_queries import attempts_statement, decisions_statement, incidents_statement
from advisor.store.embedded import EmbeddedPostgres
from advisor.store.migrate import migrate
from advisor.store.node_queries import nodes_statement
from advisor.store.records import AuditFilter, EventFilter, Listing, Page, ReconciliationStatus, SignalFilter
from advisor.store.signal_queries import signals_statement
from advisor.store.store import Store
from benchmarks._progress import now_at, telling
from tests.integration.store.audit_world import BIG, YEAR, analyse, fill

FIRST = datetime(2027, 1, 1, tzinfo=UTC)  # months of their own, whatever the day of the run
TARGET_MS = 50.0
PAGE = 100
DEEP_PAGES = 40
_UNANSWERED = {
    "incidents": {"action", "reason", "mode", "status"},
    "attempts": {"category", "action", "reason", "mode", "status"},
    "signals": {"action", "reason", "mode", "status"},
    "actions": set[str](),
    "decisions": set[str](),
    "nodes": {"action", "reason", "mode", "status", "account", "array_job_id", "array_task"},
}


def values(rows: int) -> Mapping[str, tuple[Any, ...]]:
    """Of each filter: what is common, what is rare, and (where there is such a thing) what there is not."""
    jobs = rows // 4
    return {
        "cluster": ("alps", "tatra", "nowhere"),
        "job_id": (str(jobs // 2), str(jobs - 3), "x"),
        "user": ("user0", "user150", "user290", "nobody"),
        "account": ("account0", "account39", "none"),
        "partition": ("alps-h100", "tatra-cpu", "alps-none"),
        "node": ("node0", "node1", "node1500", "nodex"),
        "category": ("none", "gpu_hardware", "host_out_of_memory", "x"),
        "action": (Action.RESTART, Action.STOP),
        "reason": ("nodes_implicated", "startup_error", "x"),
        "mode": (Mode.MONITOR, Mode.AUTONOMOUS),
        "status": tuple(
            ReconciliationStatus(name) for name in ("superseded", "verified", "expired", "abandoned", "applied")
        ),
        "array_job_id": (str(jobs // 1000 * 500), "x"),
        "since": (FIRST + YEAR - timedelta(days=1), FIRST + timedelta(days=30)),
        "until": (FIRST + timedelta(days=20), FIRST + timedelta(days=200)),
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Took:
    """Milliseconds on the clock, and on a processor."""

    wall: float
    busy: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """Every asking of one list with one filter."""

    name: str
    took: tuple[Took, ...]

    @property
    def walls(self) -> list[float]:
        return [item.wall for item in self.took]

    @property
    def busy(self) -> list[float]:
        return [item.busy for item in self.took]

    @property
    def p95(self) -> float:
        return percentile(self.busy, 0.95)


class Processors:
    """Time on processors so far: ours, and that of the database's processes that serve us."""

    def __init__(self) -> None:
        self._backends: list[Path] = []

    def watch(self, server: int) -> None:
        """The children of the Postgres with this process id, as they are now."""
        found = []
        for folder in Path("/proc").iterdir():
            if folder.name.isdigit():
                with suppress(OSError):
                    if int((folder / "stat").read_text().rpartition(")")[2].split()[1]) == server:
                        found.append(folder / "schedstat")
        self._backends = found

    def seconds(self) -> float:
        database = 0
        for path in self._backends:
            with suppress(OSError):
                database += int(path.read_text().split()[0])
        return time.process_time() + database / 1e9


PROCESSORS = Processors()


def percentile(found: Sequence[float], share: float) -> float:
    ordered = sorted(found)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


@contextmanager
def folder(kept: Path | None) -> Iterator[Path]:
    if kept is not None:
        kept.mkdir(mode=0o755, parents=True, exist_ok=True)
        yield kept
        return
    made = Path(tempfile.mkdtemp(prefix="audit-bench-"))
    made.chmod(0o755)
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)


async def prepare(url: str, rows: int) -> float:
    """Fill the database, unless it is; seconds that it took."""
    await migrate(url)
    started = time.monotonic()
    engine = create_async_engine(url, hide_parameters=True)
    async with engine.begin() as connection:
        present = (await connection.execute(text("SELECT count(*) FROM decisions"))).scalar_one()
        if present == 0:
            await connection.execute(text("SET LOCAL synchronous_commit = off"))
            await connection.execute(text("SET LOCAL maintenance_work_mem = '512MB'"))
            now_at(f"filling the database with {rows} decisions")
            await fill(connection, rows, FIRST)
    async with engine.connect() as connection:
        plain = await connection.execution_options(isolation_level="AUTOCOMMIT")
        if present == 0:
            now_at("vacuum and statistics")
            await plain.execute(text("VACUUM"))
            await analyse(plain, BIG)
    await engine.dispose()
    return time.monotonic() - started


async def once(ask: Callable[[], Awaitable[Any]]) -> tuple[Took, Any]:
    documents._decision.cache_clear()  # what is decoded once is not decoded again: not what a first page costs
    documents.unpack_signals.cache_clear()
    started, busy = time.perf_counter(), PROCESSORS.seconds()
    found = await ask()
    wall = (time.perf_counter() - started) * 1000
    return Took(wall=wall, busy=(PROCESSORS.seconds() - busy) * 1000), found


Fetch = Callable[[AuditFilter, Page], Awaitable[Listing[Any]]]


def lists(store: Store) -> Mapping[str, Fetch]:
    now = FIRST + YEAR
    return {
        "decisions": store.audit.decisions,
        "incidents": store.audit.incidents,
        "attempts": store.audit.attempts,
        "actions": store.audit.actions,
        "signals": lambda wanted, page: store.audit.signals(SignalFilter(incidents=wanted), page),
        "nodes": lambda wanted, page: store.audit.nodes(wanted, page, now=now),
    }


STATEMENTS: dict[str, Callable[..., Any]] = {
    "decisions": decisions_statement,
    "actions": actions_statement,
    "incidents": incidents_statement,
    "attempts": attempts_statement,
    "signals": signals_statement,
    "nodes": nodes_statement,
}


async def first_pages(store: Store, rows: int, repeats: int) -> list[Timed]:
    found = []
    for kind, fetch in lists(store).items():
        asked: dict[str, list[AuditFilter]] = {"all": [AuditFilter()]}
        for name, given in values(rows).items():
            if name not in _UNANSWERED[kind]:
                asked[name] = [AuditFilter(**{name: value}) for value in given]
        for name, filters in asked.items():
            now_at(f"first pages: {kind} by {name}")
            times = []
            for wanted in filters:
                for _ in range(max(repeats, 20 // len(filters))):
                    took, _ = await once(lambda wanted=wanted, fetch=fetch: fetch(wanted, Page(size=PAGE)))
                    times.append(took)
            found.append(Timed(name=f"{kind} by {name}", took=tuple(times)))
    return found


async def pairs(store: Store, rows: int, kind: str) -> list[Timed]:
    """Every two filters with all their values: what is common with what is rare, and what never meets."""
    fetch, found = lists(store)[kind], []
    for one, other in combinations([name for name in values(rows) if name not in _UNANSWERED[kind]], 2):
        now_at(f"{kind} by {one} and {other}")
        times = []
        for first in values(rows)[one]:
            for second in values(rows)[other]:
                wanted = replace(AuditFilter(**{one: first}), **{other: second})
                took, _ = await once(lambda wanted=wanted: fetch(wanted, Page(size=PAGE)))
                times.append(took)
        found.append(Timed(name=f"{kind} by {one} and {other}", took=tuple(times)))
    return found


async def deep_pages(store: Store, rows: int) -> list[Timed]:
    """Pages far behind the first one, by walking there."""
    found = []
    for kind, fetch in lists(store).items():
        for name in ("all", "cluster", "user", "status"):
            if name in _UNANSWERED[kind]:
                continue
            wanted = AuditFilter() if name == "all" else AuditFilter(**{name: values(rows)[name][0]})
            now_at(f"later pages: {kind} by {name}")
            times, cursor = [], ""
            for _ in range(DEEP_PAGES):
                page = Page(size=PAGE, cursor=cursor)
                took, listing = await once(lambda page=page, wanted=wanted, fetch=fetch: fetch(wanted, page))
                times.append(took)
                cursor = listing.next_cursor
                if not cursor:
                    break
            found.append(Timed(name=f"{kind} by {name}", took=tuple(times[1:] or times)))
    return found


async def people(store: Store) -> list[Timed]:
    """Who did what: operators' actions, and everything."""
    asked = {
        "audit": EventFilter(),
        "audit by who": EventFilter(who="operator3"),
        "audit by nobody": EventFilter(who="nobody"),
        "audit by what": EventFilter(what="paused"),
        "audit by cluster": EventFilter(cluster="tatra"),
        "audit, everything": EventFilter(everything=True),
        "audit by subject, everything": EventFilter(everything=True, subject="7"),
        "audit since": EventFilter(since=FIRST + YEAR - timedelta(days=3)),
    }
    found = []
    for name, wanted in asked.items():
        times = [(await once(lambda wanted=wanted: store.audit.records(wanted, Page(size=PAGE))))[0] for _ in range(20)]
        found.append(Timed(name=name, took=tuple(times)))
    return found


_BARE = """
SELECT d.*, a.submitted_at, j.in_scope, v.status FROM (
    SELECT created_at, id FROM decisions WHERE created_at >= %(since)s ORDER BY created_at DESC, id DESC LIMIT 101
) AS page JOIN decisions AS d USING (created_at, id) JOIN attempts AS a USING (job_key, number)
JOIN jobs AS j ON j.key = d.job_key JOIN advice AS v ON v.decision_id = d.id
"""


async def bare(url: str, server: int) -> list[Timed]:
    """What a page of decisions costs at the least: its columns, by psycopg alone."""
    plain = make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)
    values = {"since": FIRST + YEAR - timedelta(days=30)}
    async with await PlainConnection.connect(plain, autocommit=True) as connection:
        PROCESSORS.watch(server)

        async def ask() -> object:
            return await (await connection.execute(_BARE, values)).fetchall()

        await ask()
        return [Timed(name="a page by bare psycopg (reference)", took=tuple([(await once(ask))[0] for _ in range(20)]))]


async def single(store: Store, rows: int) -> list[Timed]:
    """One decision with its evidence (the reference), a job's timeline, a node's history."""
    listing = await store.audit.decisions(AuditFilter(user="user150"), Page(size=20))
    ids = [row.decision_id for row in listing.rows]
    jobs = [row.attempt.job_id for row in listing.rows]
    clusters = [row.attempt.cluster for row in listing.rows]
    now = FIRST + YEAR
    one = [(await once(lambda name=name: store.audit.decision(name)))[0] for name in ids]
    timeline = [
        (await once(lambda c=c, j=j: store.audit.job_timeline(cluster=c, job_id=j, attempts_max=20)))[0]
        for c, j in zip(clusters, jobs, strict=True)
    ]
    history = [
        (await once(lambda n=n: store.audit.node_history("alps", f"node{n}", EventFilter(), Page(size=PAGE), now=now)))[
            0
        ]
        for n in (*range(10), *range(1000, 1010))
    ]
    return [
        Timed(name="one decision (reference)", took=tuple(one)),
        Timed(name="a job's timeline", took=tuple(timeline)),
        Timed(name="a node's history", took=tuple(history)),
    ]


async def plans(url: str, rows: int) -> tuple[dict[str, list[str]], list[str]]:
    """Which indexes serve each list and filter, and what reads a big table from end to end."""
    engine = create_async_engine(url, hide_parameters=True)
    used: dict[str, set[str]] = {}
    scanned = []
    async with engine.connect() as connection:
        for kind, build in STATEMENTS.items():
            for name, given in {"all": ("",), **values(rows)}.items():
                if name in _UNANSWERED[kind]:
                    continue
                for value in given:
                    wanted = AuditFilter() if name == "all" else AuditFilter(**{name: value})
                    plan = await explain(connection, build(wanted, None, PAGE))
                    scanned += [f"{kind} by {name}={value}: {table}" for table in full_scans(plan)]
                    used.setdefault(f"{kind} by {name}", set()).update(page_indexes(plan))
        for wanted_events in (EventFilter(), EventFilter(everything=True), EventFilter(who="operator3")):
            plan = await explain(connection, audit_statement(wanted_events, None, PAGE))
            scanned += [f"audit {wanted_events}: {table}" for table in full_scans(plan)]
            used.setdefault("audit", set()).update(page_indexes(plan))
    await engine.dispose()
    return {name: sorted(found) for name, found in used.items()}, scanned


async def explain(connection: AsyncConnection, statement: Any) -> str:
    query = statement.compile(dialect=postgresql.dialect(), compile_kwargs={"literal_binds": True})
    await connection.execute(text("SET LOCAL jit = off"))
    found = await connection.execute(text(f"EXPLAIN {query}".replace(":", r"\:")))
    return "\n".join(found.scalars())


_PART = re.compile(r"_(?:\d{4}_\d{2}|old|rest)(?=_|$)")


def full_scans(plan: str) -> list[str]:
    """Big tables read from end to end; parts without rows cost nothing and do not count."""
    found = []
    for match in re.finditer(r"Seq Scan on (\w+)(?: \w+)?  \(cost=\S+ rows=(\d+)", plan):
        table, expected = _PART.sub("", match[1]), int(match[2])
        if table in BIG and expected > 1:
            found.append(table)
    return found


def page_indexes(plan: str) -> set[str]:
    return {
        _PART.sub("", re.sub(r"_idx\d$", "_idx", name))
        for name in re.findall(r"(?:using|Bitmap Index Scan on) (\w+)", plan)
        if not name.endswith(("_pkey", "_pkey_old"))
    }


def options_given() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000, help="decisions (1,000,000)")
    parser.add_argument("--repeats", type=int, default=5, help="askings of each value (5)")
    parser.add_argument("--data", type=Path, help="keep the database in this folder, and use it again")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser.parse_args()


def figures(parts: Mapping[str, Sequence[Timed]]) -> dict[str, Any]:
    return {
        part: {
            item.name: {
                "busy_p50_ms": percentile(item.busy, 0.5),
                "busy_p95_ms": item.p95,
                "wall_p50_ms": percentile(item.walls, 0.5),
                "wall_p95_ms": percentile(item.walls, 0.95),
            }
            for item in found
        }
        for part, found in parts.items()
    }


def show(part: str, found: Sequence[Timed]) -> None:
    busy = [ms for item in found for ms in item.busy]
    walls = [ms for item in found for ms in item.walls]
    print(
        f"\n{part}: {len(found)} of {len(busy)} askings; on a processor p50 {percentile(busy, 0.5):.1f} ms, "
        f"p95 {percentile(busy, 0.95):.1f} ms, max {max(busy):.1f} ms; on the clock p50 "
        f"{percentile(walls, 0.5):.1f} ms, p95 {percentile(walls, 0.95):.1f} ms; "
        f"above {TARGET_MS:.0f} ms by their own p95: "
        f"{sum(item.p95 > TARGET_MS for item in found)}"
    )
    for item in sorted(found, key=lambda item: -item.p95)[:12]:
        print(
            f"  {item.name:<44} p50 {percentile(item.busy, 0.5):6.1f}  p95 {item.p95:6.1f}  "
            f"clock p95 {percentile(item.walls, 0.95):7.1f}"
        )


async def measure(url: str, server: int, options: argparse.Namespace) -> int:
    took = await prepare(url, options.rows)
    store = await Store.open(url)
    try:
        await asyncio.gather(
            *(store.audit.decisions(AuditFilter(), Page(size=1)) for _ in range(4))
        )  # all connections open
        PROCESSORS.watch(server)
        await single(store, options.rows)  # caches of catalogues are warm
        keep_what_is_loaded()
        parts = {
            "first pages": await first_pages(store, options.rows, options.repeats),
            "who did what": await people(store),
            "single things": [*await single(store, options.rows), *await bare(url, server)],
            "decisions by two filters": await pairs(store, options.rows, "decisions"),
            "actions by two filters": await pairs(store, options.rows, "actions"),
            "later pages": await deep_pages(store, options.rows),
        }
    finally:
        await store.close()
    now_at("plans of every question")
    used, scanned = await plans(url, options.rows)
    if options.json:
        print(json.dumps({"rows": options.rows, **figures(parts), "indexes": used, "full_scans": scanned}))
        return 0
    print(f"{options.rows} decisions, ready after {took:.0f} s")
    for part, found in parts.items():
        show(part, found)
    print("\nindexes that serve first pages")
    for name, indexes in used.items():
        print(f"  {name:<28} {', '.join(indexes)}")
    print(f"\nbig tables read from end to end: {len(scanned)}")
    for line in scanned[:20]:
        print(f"  {line}")
    return 0


def main() -> int:
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    options = options_given()
    with telling(), folder(options.data) as place, EmbeddedPostgres(place / "data") as server:
        pid = int(next(place.rglob("postmaster.pid")).read_text().split()[0])
        return asyncio.run(measure(server.url_of("postgres"), pid, options))


if __name__ == "__main__":
    sys.exit(main())
