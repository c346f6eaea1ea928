"""The advisor as operator of a world: the real tick, the real core, the real store, on the world's clock.

Only what lies outside is made up: the scheduler and the jobs (`cluster`), what they print (`printing`), the `agent`.

Time leaps. A tick comes on the next whole second after something has happened, or can be read now, and after a tick
that led to anything; when a decision said that it would look again, or its time is over; at moments at which what is
decided may change though nothing happens (`LATER_SECONDS`); every five seconds while a job stands still; and every
`QUIET_SECONDS` with everything that was printed meanwhile. That something stands still is known to the world only and
decides about nothing but when to look. A test lives through short worlds with every tick of life and compares.
"""

import asyncio
import heapq
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Protocol

import structlog

from advisor.board import Board
from advisor.build import build_id
from advisor.core import codec
from advisor.core.policy import Policy
from advisor.core.scan import Scanner
from advisor.core.words import Mode
from advisor.gathering import Gatherer
from advisor.measuring import Measurer
from advisor.pipeline import Pipeline, Rulebook
from advisor.replay import Packed, reproduce
from advisor.rules.loader import load_rules
from advisor.simulate.agent import ADVISOR, Agent
from advisor.simulate.catalogue import Shape
from advisor.simulate.checks import Checks
from advisor.simulate.cluster import Cluster, Operator, SimAttempt, SimJob, SimNode
from advisor.simulate.operators import nonsense_noticed_after
from advisor.simulate.outcome import Outcome
from advisor.simulate.printing import EPOCH, Printer, moment
from advisor.simulate.showing import observed_job, observed_node
from advisor.simulate.sources import SCRAPE_SECONDS, Exporters, JobOutputs, KernelLogs
from advisor.simulate.world import DAY, Fault, World
from advisor.store.records import AdviceRow, AgentMode, AuditFilter, LemonsWanted, Page
from advisor.store.store import Store

QUIET_SECONDS, QUIET_TICKS_MAX = 1800.0, 500  # a world of months is looked at less often while all is well
REPLAYED = 10  # decisions of each world, at least if there are so many
TICK_SECONDS = 1.0
NONSENSE_SECONDS = 120.0  # after its beginning it has been seen, or will be whenever somebody looks
STANDING_SECONDS = 5.0  # while a job stands still: what is waited for is minutes away
POLICY = Policy(isolate=True, isolate_dry_run=False)  # the default one, with isolation switched on
# When what is decided may change though nothing happens. While hardware is broken under a live attempt: the end of
# its grace, by the pace of its steps. After a failure or an end: evidence against nodes has settled, deadlines are
# over, and the watchdog's half hour.
_GRACE = POLICY.trusted_fatal_grace_seconds
GRACE_SECONDS = (*(_GRACE + second for second in range(8)), *(2 * _GRACE + second for second in range(8)))
LATER_SECONDS = (POLICY.isolation_settle_seconds + 1.0, POLICY.decision_deadline_seconds + 1.0, 1950.0)
SCRAPES = 2  # after a failure, that may show it

Progress = Callable[[float], None]  # told of the world's time


def _tick_at(moment: float) -> float:
    """The first tick of life that sees it: they come every second, whatever happens in between."""
    return moment if math.isinf(moment) else math.ceil(moment / TICK_SECONDS) * TICK_SECONDS


def _stands(attempt: SimAttempt, now: float) -> bool:
    """It stands still, or has just begun to compute nonsense."""
    nonsense = attempt.spoiled is not None and now - (attempt.struck_at or 0.0) < NONSENSE_SECONDS
    return attempt.live and (attempt.failed_at is not None or nonsense)


class WorldClock:
    """The world's time. Sleeping is nobody's business here."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def now(self) -> datetime:
        return moment(self.seconds)

    def monotonic(self) -> float:
        return self.seconds

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(0)


class MakeAgent(Protocol):
    """`Agent`, or one that breaks a rule, to see that it is caught."""

    def __call__(
        self,
        *,
        cluster: Cluster,
        store: Store,
        checks: Checks,
        clock: "WorldClock",
        place: str,
        index: dict[str, int],
        act: bool,
    ) -> Agent: ...


class Advised:
    """An `Operator` and a `Watcher`: it acts between events, never within them."""

    name = ADVISOR

    def __init__(
        self,
        cluster: Cluster,
        printer: Printer,
        store: Store,
        checks: Checks,
        *,
        act: bool = True,
        name: str = "world",
        agent: MakeAgent = Agent,
    ) -> None:
        self.cluster, self.printer, self.store, self.checks = cluster, printer, store, checks
        self.place = name  # as the store knows the cluster
        self.act = act
        self.outcome = Outcome()
        self._clock = WorldClock()
        self._nodes: dict[int, None] = {}
        self._led_to_something = False  # the last look
        self._list_at = DAY  # when somebody looks at the list of nodes that fail again and again
        self._later: list[float] = []  # a heap
        self._noted: set[str] = set()  # advice
        self._index = {cluster.world.name_of(node.index): node.index for node in cluster.nodes}
        self._agent = agent(
            cluster=cluster, store=store, checks=checks, clock=self._clock, place=name, index=self._index, act=act
        )
        rules = load_rules()
        self._board = Board(store, self._clock)
        self._measurer = Measurer(
            sources=(Exporters(cluster),), rules=rules, clock=self._clock, signals_max=POLICY.signals_max
        )
        self._pipeline = Pipeline(
            store=store,
            board=self._board,
            gatherer=Gatherer(
                sources=(JobOutputs(printer), KernelLogs(cluster, printer)),
                scanner=Scanner(rules),
                clock=self._clock,
                read_bytes_max=4_000_000,
                signals_max=POLICY.signals_max,
            ),
            measurer=self._measurer,
            rulebook=Rulebook(rules=rules, policy=POLICY, build=build_id()),
            clock=self._clock,
            default_mode=Mode.AUTONOMOUS if act else Mode.MONITOR,
            interval_seconds=1.0,
            attempts_max=20_000,
        )

    # Operator and Watcher: remember, and look soon

    def attempt_failed(self, job: SimJob, attempt: SimAttempt) -> None:
        """Told as a watcher. A live job that computes nonsense is not ours to end: people look at its loss."""
        if self.act and attempt.fault is not None and attempt.fault.cause.shape is Shape.NUMERICS:
            wait = nonsense_noticed_after(self.cluster, job, attempt)
            self.cluster.at(self.cluster.now + wait, self._person_ends, job, attempt)

    def _person_ends(self, job: SimJob, attempt: SimAttempt) -> None:
        if attempt.live and job.last is attempt:
            self.cluster.requeue(job, by="user")

    def attempt_ended(self, job: SimJob, attempt: SimAttempt) -> None:
        pass

    def started(self, job: SimJob, attempt: SimAttempt) -> None:
        self._agent.changed[job.spec.job_id] = None

    def failing(self, job: SimJob, attempt: SimAttempt, fault: Fault) -> None:
        self._agent.changed[job.spec.job_id] = None
        self._again_later(*(() if fault.cause.shape is Shape.CRASH else GRACE_SECONDS))

    def ended(self, job: SimJob, attempt: SimAttempt) -> None:
        self._agent.changed[job.spec.job_id] = None
        self._again_later()

    def requeued(self, job: SimJob, attempt: SimAttempt, by: str) -> None:
        self._agent.changed[job.spec.job_id] = None

    def node_changed(self, node: SimNode) -> None:
        self._nodes[node.index] = None
        if node.silent and not node.down:
            self._again_later(*GRACE_SECONDS)

    def _again_later(self, *besides: float) -> None:
        now = self.cluster.now
        for seconds in (*LATER_SECONDS, *besides):
            self._look_at(now + seconds)
        for scrape in range(1, SCRAPES + 1):
            self._look_at((now // SCRAPE_SECONDS + scrape) * SCRAPE_SECONDS)

    def _look_at(self, moment: float) -> None:
        heapq.heappush(self._later, _tick_at(moment))

    # the run

    async def run(self, until: float, *, leap: bool = True, progress: Progress = lambda at: None) -> None:
        """To the end of the world. `leap`: no ticks while nothing can change; else one every second. `progress` is
        told of the time after each tick.
        """
        await self.store.register_agent(
            cluster=self.place,
            host="world",
            version="world",
            mode=AgentMode.ACT if self.act else AgentMode.OBSERVE,
            scheduler="world",
            requeue_delay=moment(self.cluster.world.scenario.requeue_delay_seconds) - EPOCH,
            job_memory=moment(300.0) - EPOCH,
            missing_rights=(),
            now=self._clock.now(),
        )
        self._nodes = {node.index: None for node in self.cluster.nodes}
        at, quiet_seconds = 0.0, max(QUIET_SECONDS, until / QUIET_TICKS_MAX)
        due = 0.0  # a look that nothing need have happened for
        while at < until:
            self.cluster.advance(at)
            if at >= due or self._agent.changed or self._nodes:
                await self.look()
                progress(at)
                if at >= self._list_at:
                    await self.find_lemons()
                    self._list_at = at + DAY
                due = self._due(at, quiet_seconds) if leap else at + TICK_SECONDS
            happens = min(self.cluster.next_event, self.printer.next_readable)
            at = min(due, max(_tick_at(happens), at + TICK_SECONDS), until)
        self.cluster.advance(until)
        await self.look()
        await self._measurer.close()
        await self._board.close()

    def _due(self, at: float, quiet_seconds: float) -> float:
        """When to look next, though nothing happens until then."""
        while self._later and self._later[0] <= at:
            heapq.heappop(self._later)
        later = self._later[0] if self._later else float("inf")
        if self._led_to_something:
            return min(at + TICK_SECONDS, later)
        if any(_stands(job.last, at) for job in self._running()):
            return min(at + STANDING_SECONDS, later)
        return min(at + quiet_seconds, later)

    def _running(self) -> Iterator[SimJob]:
        return (job for job in self.cluster.jobs.values() if not job.over)

    async def look(self) -> None:
        """Report what changed, tick, act: one round of agent and advisor."""
        self._clock.seconds = self.cluster.now
        before = len(self._noted)
        reported = bool(self._agent.changed or self._nodes)
        await self._report()
        await self._pipeline.tick()
        self.outcome.ticks += 1
        rows = await self.store.open_advice(self.place, self._clock.now())
        self.checks.offered(rows)
        for row in rows:
            self._note(row)
            await self._agent.apply(row)
        if self.act:
            self._agent.tend_jobs()
        await self._agent.tend_nodes(await self.store.open_isolations(self.place))
        acted = bool(self._agent.changed or self._nodes)
        if acted:
            await self._report()
        self._led_to_something = reported or acted or len(self._noted) > before
        if self.act:  # what a person excludes is his
            self.checks.looked(self.cluster)

    def _note(self, row: AdviceRow) -> None:
        """What was decided; and the moments at which it says that it may decide otherwise."""
        if row.advice_id in self._noted:
            return
        self._noted.add(row.advice_id)
        decision = row.decision
        attempt = self.cluster.jobs[row.attempt.job_id].attempts[row.attempt.number]
        for moment_of in (decision.settles_at, decision.delay_until, decision.decision_deadline, row.expires_at):
            if moment_of is not None:
                self._look_at((moment_of - EPOCH).total_seconds())
        self.outcome.note(row, attempt, self.cluster.now)

    async def _report(self) -> None:
        cluster, marks = self.cluster, self._agent.marks
        jobs = [observed_job(cluster, cluster.jobs[name], marks.get(name, (0, 0))) for name in self._agent.changed]
        nodes = [observed_node(cluster, cluster.nodes[index]) for index in self._nodes]
        self._nodes = {}
        self._agent.changed.clear()
        self._board.heard(self.place, ())
        if jobs or nodes:
            await self.store.record_observations(self.place, jobs, nodes, complete=False, now=self._clock.now())

    async def replay(self) -> None:
        """Some of the decisions, made again from what was stored with them."""
        listing = await self.store.audit.decisions(AuditFilter(cluster=self.place), Page(size=REPLAYED * 10))
        for row in listing.rows[:: max(1, len(listing.rows) // REPLAYED)]:
            stored = await self.store.audit.decision_inputs(row.decision_id)
            if stored is None:
                self.checks.replayed(self.cluster, f"{row.decision_id}: its inputs are gone", same=False)
                continue
            again = reproduce(Packed(inputs=stored.inputs, rules=stored.rules, policy=stored.policy))
            self.checks.replayed(self.cluster, row.decision_id, same=codec.encode(again) == stored.decision)

    @property
    def isolated(self) -> list[tuple[int, float]]:
        return self._agent.isolated

    async def find_lemons(self) -> None:
        """Who is on the list of nodes that fail again and again, as of now. Somebody looks at it once a day."""
        found = await self.store.audit.lemons(LemonsWanted(cluster=self.place, limit=250), now=self._clock.now())
        self.outcome.lemons |= {self._index[row.name] for row in found.rows if row.name in self._index}


@contextmanager
def quiet_log() -> Iterator[None]:
    """A world says thousands of times what the service says once a day."""
    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    try:
        yield
    finally:
        structlog.configure(**before)


class Together:
    """Somebody acts, and the advisor watches him."""

    def __init__(self, acts: Operator, watches: Advised) -> None:
        self.name = "monitor"
        self._both = (acts, watches)

    def attempt_failed(self, job: SimJob, attempt: SimAttempt) -> None:
        for one in self._both:
            one.attempt_failed(job, attempt)

    def attempt_ended(self, job: SimJob, attempt: SimAttempt) -> None:
        for one in self._both:
            one.attempt_ended(job, attempt)


async def advise(
    world: World,
    store: Store,
    checks: Checks,
    *,
    acts: Callable[[Cluster], Operator] | None = None,
    name: str = "world",
    agent: MakeAgent = Agent,
    leap: bool = True,
    progress: Progress = lambda at: None,
) -> tuple[Cluster, Advised]:
    """The whole of one world under the advisor. `acts`: somebody else acts, and it watches."""
    printer = Printer()
    cluster = Cluster(world, watchers=[printer])
    printer.cluster = cluster
    advised = Advised(cluster, printer, store, checks, act=acts is None, name=name, agent=agent)
    cluster.watchers.append(advised)
    cluster.watchers.append(checks)
    cluster.operator = advised if acts is None else Together(acts(cluster), advised)
    await advised.run(world.seconds, leap=leap, progress=progress)
    await advised.replay()
    await advised.find_lemons()
    advised.outcome.isolated = advised.isolated
    return cluster, advised
