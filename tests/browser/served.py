"""The dashboard as a service serves it: real routes, real store, real HTTP on a loopback port, in a thread of its own.

Playwright's synchronous interface and its browser stay in the test's thread.
"""

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, TypeVar

from starlette.requests import HTTPConnection

from advisor.board import Board
from advisor.core.people import ShadowRules
from advisor.core.policy import Policy
from advisor.core.words import Mode
from advisor.reporting import Reporting
from advisor.service.audit_servicer import AuditServicer
from advisor.service.callers import Caller, Proof, Role, granted
from advisor.service.calls import Calls
from advisor.service.dashboard.faults import error_page
from advisor.service.dashboard.pages import Dashboard, Pages
from advisor.service.dashboard.rendering import Renderer
from advisor.service.dashboard.verbs import Verbs
from advisor.service.http.application import compose
from advisor.service.http.serving import HttpServer
from advisor.service.operator_servicer import OperatorServicer, OperatorServices, SourceHealth
from advisor.service.report_servicer import ReportServicer, ReportServices
from advisor.store.store import Store
from tests.browser.seeded import Seeded, seed
from tests.browser.writing import NOW

Result = TypeVar("Result")

POLICY = Policy(isolate=True, isolate_dry_run=False, isolation_settle_seconds=0.0)
OPERATOR = Caller(name="ops-kim", roles=granted(Role.ADMIN), proof=Proof.PAGE)
VIEWER = Caller(name="visitor", roles=granted(Role.VIEWER), proof=Proof.PAGE)
SOURCES = (
    SourceHealth(name="job-output", kind="log, not trusted", available=True, newest_at=NOW - timedelta(seconds=1)),
    SourceHealth(name="kernel", kind="kernel, trusted", available=True, newest_at=NOW - timedelta(seconds=2)),
    SourceHealth(
        name="dcgm",
        kind="telemetry, trusted",
        available=False,
        reason="timeout",
        detail="6 of 6 attempts: job 4711: prometheus:9090 did not answer within 5 s",
        newest_at=NOW - timedelta(seconds=190),
    ),
)

# One page of each kind, by what it is called in tests.
PAGES = {
    "now": "/",
    "incidents": "/incidents",
    "incident": "/incidents/{incident_id}",
    "decisions": "/decisions",
    "decision": "/decisions/{decision_id}",
    "hostile decision": "/decisions/{hostile_decision_id}",
    "jobs": "/jobs",
    "job": "/jobs/{job_key}",
    "hostile job": "/jobs/{hostile_job_key}",
    "nodes": "/nodes",
    "node": "/nodes/alps/{node}",
    "shadow": "/shadow",
    "reliability": "/reliability?by=user",
    "audit": "/audit",
    "controls": "/controls",
    "help": "/help",
    "empty list": "/decisions?job=424242",
}


@dataclass(slots=True)
class HandClock:
    """The wall stands still unless it is moved; whoever sleeps has slept at once."""

    moment: datetime = NOW
    slept: float = 0.0

    def now(self) -> datetime:
        return self.moment

    def monotonic(self) -> float:
        return (self.moment - NOW).total_seconds() + self.slept

    async def sleep(self, seconds: float) -> None:
        self.slept += seconds
        await asyncio.sleep(0)


@dataclass(slots=True, kw_only=True)
class Site:
    """A running site. `caller` is who every request comes from; `sources` what the now page is told."""

    base: str
    clock: HandClock
    loop: asyncio.AbstractEventLoop
    store: Store
    names: Seeded
    caller: Caller = OPERATOR
    sources: Sequence[SourceHealth] = SOURCES

    @contextmanager
    def seen_by(self, caller: Caller) -> Iterator[None]:
        """While in it, every request comes from `caller`."""
        before, self.caller = self.caller, caller
        try:
            yield
        finally:
            self.caller = before

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Do something in the site's own event loop."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(30)


def path_of(name: str, served: Site) -> str:
    names = served.names
    return PAGES[name].format(**{field: getattr(names, field) for field in type(names).__dataclass_fields__})


@contextmanager
def site(url: str, *, nodes: int = 1024, history: int = 70) -> Iterator[Site]:
    """Seed the database at `url` and serve it."""
    ready = threading.Event()
    made: list[Site] = []
    errors: list[BaseException] = []
    stop: list[asyncio.Event] = []

    async def main() -> None:
        async with _serving(url, nodes, history) as running:
            stop.append(asyncio.Event())
            made.append(running)
            ready.set()
            await stop[0].wait()

    def work() -> None:
        try:
            asyncio.run(main())
        except BaseException as error:  # handed to the thread that waits
            errors.append(error)
        finally:
            ready.set()

    thread = threading.Thread(target=work, name="site")
    thread.start()
    ready.wait(120)
    if errors:
        raise errors[0]
    try:
        yield made[0]
    finally:
        made[0].loop.call_soon_threadsafe(stop[0].set)
        thread.join(30)
    if errors:
        raise errors[0]


@asynccontextmanager
async def _serving(url: str, nodes: int, history: int) -> AsyncIterator[Site]:
    clock = HandClock()
    store = await Store.open(url, policy=POLICY)
    names = await seed(store, nodes=nodes, history=history)
    board = Board(store, clock)
    board.tick_completed(took_seconds=0.18, watched=42, failed_jobs=0)
    listener = socket.create_server(("127.0.0.1", 0))
    running = Site(
        base=f"http://127.0.0.1:{listener.getsockname()[1]}",
        clock=clock,
        loop=asyncio.get_running_loop(),
        store=store,
        names=names,
    )
    operator = OperatorServices(
        store=store,
        board=board,
        clock=clock,
        version="0.1.0",
        started_at=NOW - timedelta(days=3),
        default_mode=Mode.MONITOR,
        sources=lambda: running.sources,
    )
    audit = AuditServicer(store=store, clock=clock, evidence_max=50, suspect_score=POLICY.suspect_score)
    reports = ReportServices(store=store, reporting=Reporting(store, ShadowRules()), clock=clock)
    calls = Calls(
        {
            "AuditService": lambda _: audit,
            "OperatorService": lambda caller: OperatorServicer(operator, caller),
            "ReportService": lambda caller: ReportServicer(reports, caller),
        }
    )
    renderer = Renderer(clock)
    dashboard = Dashboard(
        calls=calls,
        store=store,
        clock=clock,
        renderer=renderer,
        suspect_score=POLICY.suspect_score,
        history_window_days=POLICY.history_window_days,
    )

    async def identify(_request: HTTPConnection) -> Caller:
        return running.caller

    app = compose(
        [Pages(dashboard).routes(), Verbs(dashboard).routes()],
        identify=identify,
        body_bytes_max=65_536,
        error_page=error_page(renderer),
    )
    server = HttpServer(app, listener, connections_max=64)
    await server.start()
    try:
        yield running
    finally:
        await server.stop()
        await board.close()
        await store.close()
