"""The composition root: everything is made here, in order, and closed in the reverse order.

Errors on the way up are `StartError`: one line that says what to do. Started once, the service ends on SIGTERM or
SIGINT, or when nothing works any more (then with an error, for its supervisor to start it again).
"""

import asyncio
import contextlib
import gc
import importlib.util
import os
import signal
import socket
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from importlib.metadata import packages_distributions
from pathlib import Path

import structlog
from sqlalchemy.exc import SQLAlchemyError
from starlette.routing import BaseRoute

from advisor.board import Board
from advisor.brought_rules import BroughtRules
from advisor.build import DISTRIBUTION, version
from advisor.cancelling import cancel
from advisor.clock import FollowingClock, SystemClock
from advisor.config import Config, ConfigError, read_dsn
from advisor.configured import (
    decision_link,
    load_rulebook,
    load_seal_key,
    load_site_rules,
    open_channels,
    open_opinions,
    open_sources,
    open_traces,
)
from advisor.core.autonomy import EarningRules
from advisor.core.people import ShadowRules
from advisor.core.scan import Scanner
from advisor.earning import SWITCHED_OFF, Earning
from advisor.gathering import Gatherer
from advisor.instruments import Instruments
from advisor.leasing import Leasing, newcomer_at
from advisor.measuring import Measurer
from advisor.metrics_sources import open_metrics
from advisor.notifying import Notifying
from advisor.opining import Opining
from advisor.pipeline import Pipeline, Rulebook, TicksFailedError
from advisor.ports import Clock, LogSource, MetricsSource, Newsworthy
from advisor.reporting import Reporting
from advisor.retaining import Retention
from advisor.sealing import Sealer
from advisor.service.agent_servicer import AgentServicer, AgentServices
from advisor.service.audit_servicer import AuditServicer
from advisor.service.calls import Calls
from advisor.service.dashboard.faults import error_page
from advisor.service.dashboard.pages import Dashboard, Pages
from advisor.service.dashboard.rendering import Renderer
from advisor.service.dashboard.verbs import Verbs
from advisor.service.errors import ServiceError
from advisor.service.http import api as http_api
from advisor.service.http import health as http_health
from advisor.service.http import metrics as http_metrics
from advisor.service.operator_servicer import OperatorServicer, OperatorServices, SourceHealth
from advisor.service.report_servicer import ReportServicer, ReportServices
from advisor.serving import Front, address_of
from advisor.source_health import all_healths
from advisor.store.embedded import EmbeddedPostgres
from advisor.store.errors import ServerLost, StoreError
from advisor.store.hints import Hints
from advisor.store.migrate import migrate, newest_revision
from advisor.store.store import Store
from advisor.tracing import Tracing
from advisor.write_watch import WriteWatch
from connectors.logs.root_reader import RootReader
from connectors.logs.rules_files import JobRulesFiles

log = structlog.get_logger(__name__)

GARBAGE = (100_000, 20, 50)  # objects, and rounds, between two looks for what holds itself
IMPORT_NAMES = ("advisor", "connectors", "slurm_plugin", "watchdog")
POSTGRES_CHECK_SECONDS = 0.5
POSTGRES_PAUSE_SECONDS_MAX = 30.0  # between two starts of one that dies again and again, on a full disk say
POSTGRES_ASK_SECONDS = 30.0
POSTGRES_MUTE_SECONDS = 600.0  # one that lives and answers nobody for longer replays no log: it is stuck
POSTGRES_WELL_SECONDS = 60.0  # who lived for so long died of something new


class StartError(Exception):
    """The service cannot start or go on; the text is one line that says why and what to do."""


def check_import_names() -> None:
    """Refuse to run beside another distribution that provides one of our import names (PyPI has a `watchdog`)."""
    providers = packages_distributions()
    here = Path(__file__).resolve().parent.parent
    for name in IMPORT_NAMES:
        others = sorted(set(providers.get(name, ())) - {DISTRIBUTION})
        if others:
            raise StartError(f"the package {others[0]} also provides '{name}': uninstall it, or use an own environment")
        spec = importlib.util.find_spec(name)
        folder = Path(spec.origin).resolve().parent.parent if spec is not None and spec.origin else None
        if folder != here:
            raise StartError(f"'{name}' comes from {folder}, not from {here}: use an environment of its own")


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """What a started service shows to who started it."""

    socket: Path
    store: Store
    board: Board
    pipeline: Pipeline


class Service:
    """One service. `async with Service(config) as running:` then `await service.until_stopped()`.

    Must be entered from the main thread: the kernel ties our Postgres' life to the thread that starts it.
    """

    def __init__(
        self,
        config: Config,
        *,
        clock: Clock | None = None,
        make_sources: Callable[[Config, Clock], Sequence[LogSource]] = open_sources,
        make_metrics: Callable[[Config, Clock], Sequence[MetricsSource]] = open_metrics,
    ) -> None:
        self._config = config
        self._clock = FollowingClock(clock or SystemClock())
        self._make_sources = make_sources
        self._make_metrics = make_metrics
        self._stack = AsyncExitStack()
        self._postgres: EmbeddedPostgres | None = None
        self._error: BaseException | None = None
        self._instruments = Instruments(self._clock)
        self._stop = asyncio.Event()

    async def __aenter__(self) -> Running:
        try:
            return await self._open()
        except BaseException as error:
            await self._stack.aclose()
            if isinstance(error, ConfigError | ServiceError | StoreError | SQLAlchemyError):
                raise StartError(_sentence(error)) from error
            raise

    async def __aexit__(self, *_: object) -> None:
        log.info("service_stopping")
        notify("STOPPING=1")
        await self._stack.aclose()
        log.info("service_stopped")

    async def _open(self) -> Running:
        config, clock, stack = self._config, self._clock, self._stack
        rulebook = load_rulebook(config)
        seal_key = load_seal_key(config)
        site = load_site_rules(config)
        for problem in site.problems if site is not None else ():
            log.warning("site_rules_have_problems", problem=problem)
        readers = [str(item.root_reader) for item in config.logs if item.root_reader is not None]
        reader = JobRulesFiles(clock=clock, root_reader=RootReader(readers[0]) if readers else None)
        stack.push_async_callback(reader.close)
        brought = BroughtRules(clock=clock, reader=reader, site=site)
        sources = self._make_sources(config, clock)
        metrics = self._make_metrics(config, clock)
        everything: tuple[LogSource | MetricsSource, ...] = (*sources, *metrics)
        for source in everything:
            stack.push_async_callback(source.close)
        self._instruments = Instruments(clock, version=version(), build=rulebook.build)
        tracing = open_traces(config)
        stack.callback(tracing.close)
        measurer = Measurer(
            sources=metrics,
            rules=rulebook.rules,
            clock=clock,
            signals_max=rulebook.policy.signals_max,
            instruments=self._instruments,
        )
        stack.push_async_callback(measurer.close)
        opinions = open_opinions(config, clock)
        for opinion in opinions:
            stack.push_async_callback(opinion.close)
        opining = Opining(
            sources=opinions,
            # One of its own: the gatherer's is used by other threads.
            scanner=Scanner(rulebook.rules) if opinions else None,
            clock=clock,
            signals_max=rulebook.policy.signals_max,
        )
        stack.push_async_callback(opining.close)
        front = Front(config.service, clock)
        stack.callback(front.release)
        front.reserve()  # a second service is refused before it touches a database
        url = self._database()
        await migrate(url)
        read_url = self._database_again(url)
        store = await Store.open(
            url,
            read_url=read_url,
            policy=rulebook.policy,
            lease_seconds=config.replicas.lease_seconds,
        )
        stack.push_async_callback(store.close)
        board = Board(store, clock)
        leasing, hints = self._leasing(store, board, front.place, read_url or (lambda: url), rulebook.build)
        for source in sources:
            if isinstance(source, Newsworthy):
                source.on_news(board.wake.set)
        pipeline, gatherer = self._pipeline(
            rulebook, store, board, sources, brought, measurer, opining, tracing, leasing
        )
        healths = partial(all_healths, gatherer, measurer, opining)
        stack.push_async_callback(front.close)
        stack.push_async_callback(board.close)
        await leasing.join()  # before anybody is heard: what is reported is stamped by the database's time
        stack.push_async_callback(leasing.leave)
        calls = self._calls(rulebook, store, board, healths)
        renderer = Renderer(clock)
        routes = self._routes(calls, store, board, rulebook, renderer, healths)
        await front.open(calls, routes, error_page(renderer))
        write_watch = WriteWatch(store=store, board=board, clock=clock)
        for work in (leasing.run(), hints.send(), hints.listen(leasing.heard), pipeline.run(), write_watch.run()):
            stack.push_async_callback(cancel, self._start(work))
        await self._earn(store, board)
        sealer = Sealer(
            history=store.history(),
            key=seal_key,
            clock=clock,
            interval_seconds=config.seal.interval_seconds,
            instruments=self._instruments,
        )
        stack.push_async_callback(cancel, self._start(sealer.run()))
        if config.retention.months:
            retention = Retention(history=store.history(), key=seal_key, clock=clock, months=config.retention.months)
            stack.push_async_callback(cancel, self._start(retention.run()))
        channels = open_channels(config, clock)
        if channels:
            telling = Notifying(store=store, channels=channels, clock=clock, instruments=self._instruments)
            stack.push_async_callback(cancel, self._start(telling.run()))
        if self._postgres is not None:
            stack.push_async_callback(cancel, self._start(self._guard_postgres(self._postgres)))
        log.info(
            "service_started",
            version=version(),
            build=rulebook.build,
            socket=str(config.service.socket),
            http_socket=str(config.service.http_path),
            incarnation=store.incarnation,
            rules=len(rulebook.rules.rules),
            sources=[source.name for source in everything],
        )
        return Running(socket=config.service.socket, store=store, board=board, pipeline=pipeline)

    def _routes(
        self,
        calls: Calls,
        store: Store,
        board: Board,
        rulebook: Rulebook,
        renderer: Renderer,
        healths: Callable[[], Sequence[SourceHealth]],
    ) -> list[list[BaseRoute]]:
        """Everything that HTTP serves comes together here."""
        interval, policy = self._config.tick.interval_seconds, rulebook.policy
        dashboard = Dashboard(
            calls=calls,
            store=store,
            clock=self._clock,
            renderer=renderer,
            suspect_score=policy.suspect_score,
            history_window_days=policy.history_window_days,
        )
        return [
            http_health.routes(store, board, interval_seconds=interval),
            http_metrics.routes(self._instruments, store, board, healths),
            http_api.routes(calls),
            Pages(dashboard).routes(),
            Verbs(dashboard).routes(),
        ]

    def _leasing(
        self, store: Store, board: Board, place: str, dsn: Callable[[], str], build: str
    ) -> tuple[Leasing, Hints]:
        """This process among others over the same database."""
        host = socket.gethostname()
        newcomer = newcomer_at(
            self._clock.now(),
            host=host,
            pid=os.getpid(),
            place=place,
            address=address_of(self._config.service, host),
            version=version(),
            build=build,
            schema=newest_revision(),
            jobs_max=self._config.tick.attempts_max,
        )
        hints = Hints(dsn, newcomer.replica_id, store.replicas.hint)
        leasing = Leasing(
            store=store,
            board=board,
            clock=self._clock,
            newcomer=newcomer,
            lease_seconds=self._config.replicas.lease_seconds,
            attempts_max=self._config.tick.attempts_max,
            tell=hints.tell,
            instruments=self._instruments,
        )
        return leasing, hints

    def _database(self) -> str:
        store = self._config.store
        if store.dsn_file is not None:
            return read_dsn(store.dsn_file)
        self._postgres = EmbeddedPostgres(self._config.service.data_dir, user=store.postgres_user or None)
        self._stack.callback(self._postgres.stop)
        return self._postgres.start()

    def _database_again(self, first: str) -> Callable[[], str] | None:
        """Reads the DSN once more: whoever fails a database over may write another one."""
        path, known, problem = self._config.store.dsn_file, first, ""
        if path is None:
            return None

        def read() -> str:
            nonlocal known, problem
            try:
                found = read_dsn(path)
            except ConfigError as error:
                if str(error) != problem:
                    log.warning("dsn_unreadable", error=str(error))
                problem = str(error)
                return known
            if found != known:
                log.info("dsn_changed")
            known, problem = found, ""
            return found

        return read

    def _pipeline(
        self,
        rulebook: Rulebook,
        store: Store,
        board: Board,
        sources: Sequence[LogSource],
        brought: BroughtRules,
        measurer: Measurer,
        opining: Opining,
        tracing: Tracing,
        leasing: Leasing,
    ) -> tuple[Pipeline, Gatherer]:
        config = self._config
        gatherer = Gatherer(
            sources=sources,
            scanner=Scanner(rulebook.rules),
            clock=self._clock,
            read_bytes_max=config.tick.read_bytes_max,
            signals_max=rulebook.policy.signals_max,
            brought=brought,
            instruments=self._instruments,
        )
        pipeline = Pipeline(
            store=store,
            board=board,
            gatherer=gatherer,
            measurer=measurer,
            opining=opining,
            rulebook=rulebook,
            clock=self._clock,
            default_mode=config.default_mode,
            earns=config.autonomy.enabled,
            leasing=leasing,
            interval_seconds=config.tick.interval_seconds,
            attempts_max=config.tick.attempts_max,
            on_tick=lambda: notify("WATCHDOG=1"),
            instruments=self._instruments,
            on_passed=tracing.passed,
        )
        return pipeline, gatherer

    def _calls(
        self,
        rulebook: Rulebook,
        store: Store,
        board: Board,
        healths: Callable[[], Sequence[SourceHealth]],
    ) -> Calls:
        """What every service of the contract does for a caller."""
        config, policy, clock = self._config.service, rulebook.policy, self._clock
        agent = AgentServices(
            store=store,
            board=board,
            clock=clock,
            keepalive_seconds=config.keepalive_seconds,
            observations_max=config.observations_max,
            evidence_max=policy.evidence_max,
            instruments=self._instruments,
        )
        operator = OperatorServices(
            store=store,
            board=board,
            clock=clock,
            version=version(),
            started_at=clock.now(),
            default_mode=self._config.default_mode,
            sources=healths,
        )
        report = ReportServices(
            store=store, reporting=self._reporting(store), clock=clock, link=decision_link(self._config)
        )
        audit = AuditServicer(
            store=store, clock=clock, evidence_max=policy.evidence_max, suspect_score=policy.suspect_score
        )
        return Calls(
            {
                "AgentService": lambda caller: AgentServicer(agent, caller),
                "AuditService": lambda _caller: audit,
                "OperatorService": lambda caller: OperatorServicer(operator, caller),
                "ReportService": lambda caller: ReportServicer(report, caller),
            },
            called=self._instruments.called,
        )

    def _reporting(self, store: Store) -> Reporting:
        shadow = self._config.shadow
        rules = ShadowRules(window_seconds=shadow.window_hours * 3600, tool_reasons=shadow.tool_reasons)
        return Reporting(store, rules)

    async def _earn(self, store: Store, board: Board) -> None:
        """Let categories become autonomous by themselves, where that is enabled; else nothing earned is left."""
        chosen, clock = self._config.autonomy, self._clock
        if not chosen.enabled:
            if await store.forget_earned(why=SWITCHED_OFF, now=clock.now()):
                log.warning("autonomy_lost", why=SWITCHED_OFF)
            return
        rules = EarningRules(
            categories=frozenset(chosen.categories),
            agreement_min=chosen.agreement_min,
            count_min=chosen.count_min,
            fall_below=chosen.fall_below,
            with_stop=chosen.with_stop,
            rest_days=chosen.rest_days,
        )
        earning = Earning(
            store=store,
            reporting=self._reporting(store),
            board=board,
            clock=clock,
            rules=rules,
            window_days=chosen.window_days,
            interval_seconds=chosen.interval_seconds,
        )
        self._stack.push_async_callback(cancel, self._start(earning.run()))

    def _start(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        """Run for as long as the service; its error is the service's error."""
        task = asyncio.create_task(work)

        def ended(done: asyncio.Task[None]) -> None:
            error = None if done.cancelled() else done.exception()
            if error is not None:
                self._error = self._error or error
                self._stop.set()

        task.add_done_callback(ended)
        return task

    async def _guard_postgres(self, postgres: EmbeddedPostgres) -> None:
        """Start our Postgres again when it died. In the event loop, which runs in the main thread.

        For as long as it takes, more and more slowly: what keeps it from running may be a full disk, which a new
        process of ours would not cure, and nobody would be left to say so.
        """
        deaths, started = 0, self._clock.monotonic()
        answered = asked = started
        while True:
            await self._clock.sleep(POSTGRES_CHECK_SECONDS)
            now = self._clock.monotonic()
            if now - asked > POSTGRES_ASK_SECONDS:
                asked = now
                if await asyncio.to_thread(postgres.answers):
                    answered = now
                elif now - max(answered, started) > POSTGRES_MUTE_SECONDS:
                    log.warning("postgres_mute", seconds=round(now - answered))
                    postgres.end()
            try:
                postgres.check()
                continue
            except ServerLost as error:
                deaths = deaths + 1 if self._clock.monotonic() - started < POSTGRES_WELL_SECONDS else 1
                log.warning("postgres_lost", error=str(error), deaths=deaths)
            if deaths > 1:
                await self._clock.sleep(min(2.0 ** (deaths - 1), POSTGRES_PAUSE_SECONDS_MAX))
            try:
                postgres.start_again()
            except (StoreError, OSError) as error:
                log.warning("postgres_not_started", error=str(error))
            started = self._clock.monotonic()

    def stop(self) -> None:
        self._stop.set()

    async def until_stopped(self) -> None:
        """Returns after `stop`; raises what the service cannot go on from."""
        await self._stop.wait()
        if self._error is not None:
            raise self._error


async def serve(config: Config, *, ready: Callable[[Running], None] = lambda _running: None) -> None:
    """Run until SIGTERM or SIGINT. Raises `StartError`."""
    service = Service(config)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, service.stop)
    async with service as running:
        keep_what_is_loaded()
        notify("READY=1")
        ready(running)
        try:
            await service.until_stopped()
        except (TicksFailedError, StoreError) as error:
            raise StartError(_sentence(error)) from error


def keep_what_is_loaded() -> None:
    """Modules, tables and rules stay until the end: not to be looked through for garbage.

    Every full collection did so, and everything stood still for 50 to 100 ms, mostly in the middle of an answer. What a
    tick of thousands of jobs makes lives until the next one, so it is looked through seldom: with Python's own numbers
    that took a fifth of every tick. Nearly all of it goes without being looked for.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GARBAGE)


def notify(state: str) -> None:
    """Tell systemd, when it asked to be told (sd_notify). Failing to must not stop the service."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
        sender.setblocking(False)
        sender.sendto(state.encode(), f"\0{address[1:]}" if address[0] == "@" else address)


def _sentence(error: BaseException) -> str:
    if isinstance(error, ConfigError):
        return f"configuration: {error}"
    if isinstance(error, SQLAlchemyError):
        first = str(error).strip().splitlines()[0]
        return f"the database cannot be used: {first}"
    return str(error)
