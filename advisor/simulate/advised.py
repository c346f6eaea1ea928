"""The advisor as operator of a world: the real tick, the real core, the real store, on the world's clock.

Only what lies outside is made up: the scheduler and the jobs (`cluster`), what they print (`printing`), the `agent`.

Time leaps. Where nothing is wrong a tick comes every `quiet_seconds`, with everything that was printed meanwhile; from
the moment that something is wrong, or looks as if it were, ticks come as often as in life, on whole seconds. Whether
something is wrong is known to the world only and decides about nothing but when to look. A test lives through short
worlds with every tick of life and compares what was decided and when.
"""

import asyncio
import heapq
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

import structlog

from advisor.board import Board
from advisor.build import build_id
from advisor.core.model import ExitStatus
from advisor.core.policy import Policy
from advisor.core.scan import Scanner
from advisor.core.words import Action, AttemptState, IncidentKind, Mode, NodeState
from advisor.gathering import Gatherer
from advisor.measuring import Measurer
from advisor.pipeline import Pipeline, Rulebook
from advisor.rules.loader import load_rules
from advisor.simulate.agent import ADVISOR, Agent
from advisor.simulate.catalogue import Shape
from advisor.simulate.checks import Checks
from advisor.simulate.cluster import Cluster, Operator, SimAttempt, SimJob, SimNode
from advisor.simulate.printing import EPOCH, Printer, moment
from advisor.simulate.sources import Exporters, JobOutputs, KernelLogs
from advisor.simulate.world import Fault, World
from advisor.store.records import AdviceRow, AgentMode, LemonsWanted, ObservedJob, ObservedNode
from advisor.store.store import Store

QUIET_SECONDS, QUIET_TICKS_MAX = 600.0, 500  # a world of months is looked at less often while all is well
ILL_SECONDS = 1.0  # between ticks, as in life, while something has just happened
STANDING_SECONDS = 5.0  # while a job stands still for longer: what is waited for is minutes away
# For how long ticks come as often as in life: after a crash, until its end comes; after another failure; after an end;
# after what only has to be seen.
CRASHING_SECONDS, FAILING_SECONDS, ENDED_SECONDS, SEEN_SECONDS = 13.0, 25.0, 5.0, 0.5
POLICY = Policy(isolate=True, isolate_dry_run=False)  # the default one, with isolation switched on
# After a failure or an end: when what is decided may change though nothing happens, late lines and deadlines among it.
LATER_SECONDS = (POLICY.isolation_settle_seconds + 1.0, 62.0, POLICY.decision_deadline_seconds + 1.0, 1950.0)


def _tick_after(moment: float) -> float:
    """The tick that comes next in life, where they come every second, whatever happens in between."""
    return moment if math.isinf(moment) else math.floor(moment) + ILL_SECONDS


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """One decision as published, and what the world knew then: `truth` is what the attempt failed of, if it had."""

    at: float
    job_id: str
    attempt: int
    generation: int
    action: Action
    reason: str
    category: str
    exclude: tuple[str, ...]
    ends_live: bool
    root_cause: str
    truth: str


@dataclass(slots=True, kw_only=True)
class Heard:
    """When one failed attempt was first known to have failed, and when something to do about it was advised."""

    detected_at: float | None = None
    advised_at: float | None = None
    action: Action = Action.NONE


@dataclass(slots=True, kw_only=True)
class Outcome:
    """What the advisor did in one world, beyond what the cluster shows."""

    isolated: list[tuple[int, float]] = field(default_factory=list)
    lemons: set[int] = field(default_factory=set)
    ticks: int = 0
    said: list[Said] = field(default_factory=list)
    heard: dict[tuple[str, int], Heard] = field(default_factory=dict)


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
        self._often_until = 0.0
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
        pass  # told as a watcher

    def attempt_ended(self, job: SimJob, attempt: SimAttempt) -> None:
        pass

    def started(self, job: SimJob, attempt: SimAttempt) -> None:
        self._seen(job, SEEN_SECONDS)

    def failing(self, job: SimJob, attempt: SimAttempt, fault: Fault) -> None:
        self._seen(job, CRASHING_SECONDS if fault.cause.shape is Shape.CRASH else FAILING_SECONDS)
        self._again_later()

    def ended(self, job: SimJob, attempt: SimAttempt) -> None:
        self._seen(job, ENDED_SECONDS)
        self._again_later()

    def requeued(self, job: SimJob, attempt: SimAttempt, by: str) -> None:
        self._seen(job, SEEN_SECONDS)

    def node_changed(self, node: SimNode) -> None:
        self._nodes[node.index] = None
        self._look_often(SEEN_SECONDS)

    def _seen(self, job: SimJob, seconds: float) -> None:
        self._agent.changed[job.spec.job_id] = None
        self._look_often(seconds)

    def _again_later(self) -> None:
        for seconds in LATER_SECONDS:
            heapq.heappush(self._later, _tick_after(self.cluster.now + seconds))

    def _look_often(self, seconds: float) -> None:
        self._often_until = max(self._often_until, self.cluster.now + seconds)

    # the run

    async def run(self, until: float, *, leap: bool = True) -> None:
        """To the end of the world. `leap`: no ticks while nothing can change; else one every second."""
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
                due = self._due(at, quiet_seconds) if leap else at + ILL_SECONDS
            at = min(due, _tick_after(max(self.cluster.next_event, at)), until)
        self.cluster.advance(until)
        await self.look()
        await self._measurer.close()
        await self._board.close()

    def _due(self, at: float, quiet_seconds: float) -> float:
        """When to look next, though nothing happens until then: often while something is wrong."""
        while self._later and self._later[0] <= at:
            heapq.heappop(self._later)
        later = self._later[0] if self._later else float("inf")
        if at < self._often_until:
            return min(at + ILL_SECONDS, later)
        if any(job.last.live and (job.last.failed_at or job.last.spoiled) is not None for job in self._running()):
            return min(at + STANDING_SECONDS, later)
        return min(at + quiet_seconds, later)

    def _running(self) -> Iterator[SimJob]:
        return (job for job in self.cluster.jobs.values() if not job.over)

    async def look(self) -> None:
        """Report what changed, tick, act: one round of agent and advisor."""
        self._clock.seconds = self.cluster.now
        await self._report()
        await self._pipeline.tick()
        self.outcome.ticks += 1
        for row in await self.store.open_advice(self.place, self._clock.now()):
            self._note(row)
            await self._agent.apply(row)
        if self.act:
            self._agent.tend_jobs()
        await self._agent.tend_nodes(await self.store.open_isolations(self.place))
        if self._agent.changed or self._nodes:
            await self._report()
        if self.act:  # what a person excludes is his
            self.checks.looked(self.cluster)

    def _note(self, row: AdviceRow) -> None:
        """For whoever asks afterwards what was decided, and how soon."""
        if row.advice_id in self._noted:
            return
        self._noted.add(row.advice_id)
        decision, key = row.decision, (row.attempt.job_id, row.attempt.number)
        attempt = self.cluster.jobs[row.attempt.job_id].attempts[row.attempt.number]
        fault, now = attempt.fault, self.cluster.now
        self.outcome.said.append(
            Said(
                at=now,
                job_id=row.attempt.job_id,
                attempt=row.attempt.number,
                generation=row.generation,
                action=decision.action,
                reason=decision.reason.value,
                category=decision.attribution.category.value,
                exclude=decision.isolation.exclude_for_job,
                ends_live=decision.may_end_live_attempt,
                root_cause=decision.attribution.root_cause,
                truth=fault.cause.name if fault is not None else "",
            )
        )
        if fault is None:
            return
        heard = self.outcome.heard.setdefault(key, Heard())
        if heard.detected_at is None and decision.incident.kind is not IncidentKind.NONE:
            heard.detected_at = now
        doable = decision.may_end_live_attempt or not attempt.live
        if heard.advised_at is None and decision.action is not Action.NONE and doable:
            heard.advised_at, heard.action = now, decision.action

    async def _report(self) -> None:
        jobs = [self._observed(self.cluster.jobs[name]) for name in self._agent.changed]
        nodes = [self._observed_node(self.cluster.nodes[index]) for index in self._nodes]
        self._nodes = {}
        self._agent.changed.clear()
        self._board.heard(self.place, ())
        if jobs or nodes:
            await self.store.record_observations(self.place, jobs, nodes, complete=False, now=self._clock.now())

    def _observed(self, job: SimJob) -> ObservedJob:
        attempt, spec, name = job.last, job.spec, self.cluster.world.name_of
        marked_attempt, generation = self._agent.marks.get(spec.job_id, (0, 0))
        fitting = sum(node.usable and node.index not in job.excluded for node in self.cluster.nodes)
        return ObservedJob(
            job_id=spec.job_id,
            attempt=attempt.number,
            submitted_at=moment(attempt.submitted_at),
            user=spec.user,
            state=attempt.state,
            observed_at=self._clock.now(),
            eligible_at=moment(attempt.eligible_at),
            started_at=moment(attempt.started_at) if attempt.started_at is not None else None,
            ended_at=moment(attempt.ended_at) if attempt.ended_at is not None else None,
            exit=ExitStatus(code=attempt.exit_code, signal=0) if attempt.ended_at is not None else None,
            nodes=tuple(map(name, attempt.nodes)) if attempt.nodes else None,
            nodes_requested=spec.nodes,
            tasks=spec.nodes * self.cluster.world.scenario.gpus_per_node,
            excluded_nodes=tuple(map(name, sorted(job.excluded))),
            our_excluded_nodes=tuple(map(name, sorted(job.excluded))),
            partition="gpu",
            array_job_id=spec.array_job_id,
            array_task=spec.array_task,
            name=f"train-{spec.job_id}",
            requeueable=True,
            batch=True,
            stdout_path=f"/world/{spec.job_id}.out",
            in_scope=True,
            marked_generation=generation if attempt.state is AttemptState.PENDING else 0,
            marked_attempt=marked_attempt if attempt.state is AttemptState.PENDING else 0,
            nodes_fitting=fitting,
            gpus=spec.nodes * self.cluster.world.scenario.gpus_per_node,
        )

    def _observed_node(self, node: SimNode) -> ObservedNode:
        state = NodeState.UP
        if node.down:
            state = NodeState.DOWN
        elif node.silent:
            state = NodeState.NOT_RESPONDING
        elif node.drained:
            state = NodeState.DRAINING if node.job is not None else NodeState.DRAINED
        return ObservedNode(
            name=self.cluster.world.name_of(node.index),
            state=state,
            observed_at=self._clock.now(),
            reason=node.drained,
            partitions=("gpu",),
        )

    @property
    def isolated(self) -> list[tuple[int, float]]:
        return self._agent.isolated

    async def find_lemons(self) -> None:
        """Who is on the list of nodes that fail again and again, as of now."""
        found = await self.store.lemons(LemonsWanted(cluster=self.place, limit=250), now=self._clock.now())
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
) -> tuple[Cluster, Advised]:
    """The whole of one world under the advisor. `acts`: somebody else acts, and it watches."""
    printer = Printer()
    cluster = Cluster(world, watchers=[printer])
    printer.cluster = cluster
    advised = Advised(cluster, printer, store, checks, act=acts is None, name=name, agent=agent)
    cluster.watchers.append(advised)
    cluster.watchers.append(checks)
    cluster.operator = advised if acts is None else Together(acts(cluster), advised)
    await advised.run(world.seconds, leap=leap)
    await advised.find_lemons()
    advised.outcome.isolated = advised.isolated
    return cluster, advised
