"""The advisor as operator of a world: the real tick, the real core, the real store, on the world's clock.

Only what lies outside is made up: the scheduler and the jobs (`cluster`), what they print (`printing`), and the agent,
which here is the short list of rules by which the real one acts (docs/architecture.md): advice for attempt N is applied
to N or to its direct pending successor, a live attempt is ended only by advice that says so, nothing is done twice.

Time jumps. Where nothing is wrong a tick comes every `quiet_seconds`, with everything that was printed meanwhile; from
the moment that something is wrong, or looks as if it were, ticks come as often as in life. Whether something is wrong
is known to the world only and decides about nothing but when to look.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime

import structlog

from advisor.board import Board
from advisor.build import build_id
from advisor.core.model import ExitStatus
from advisor.core.policy import Policy
from advisor.core.scan import Scanner
from advisor.core.words import Action, AttemptState, Mode, NodeState
from advisor.gathering import Gatherer
from advisor.measuring import Measurer
from advisor.pipeline import Pipeline, Rulebook
from advisor.rules.loader import load_rules
from advisor.simulate.checks import Checks
from advisor.simulate.cluster import Cluster, Move, SimAttempt, SimJob, SimNode
from advisor.simulate.printing import EPOCH, Printer, moment
from advisor.simulate.sources import Exporters, JobOutputs, KernelLogs
from advisor.simulate.world import World
from advisor.store.records import (
    AdviceRow,
    AgentMode,
    AttemptKey,
    LemonsWanted,
    Milestone,
    MilestoneKind,
    NodeReconciliation,
    ObservedJob,
    ObservedNode,
    Reconciliation,
    ReconciliationReason,
    ReconciliationStatus,
    StoredIsolation,
)
from advisor.store.store import Store

QUIET_SECONDS = 600.0
ILL_SECONDS = 1.0  # between ticks, as in life, while something has just happened
STANDING_SECONDS = 5.0  # while a job stands still for longer: what is waited for is minutes away
# For how long ticks come as often as in life: after a failure, after an end, after what only has to be seen.
FAILING_SECONDS, ENDED_SECONDS, SEEN_SECONDS = 25.0, 8.0, 0.5
POLICY = Policy(isolate=True, isolate_dry_run=False)
PROGRESS_EVERY = 4096


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


@dataclass(slots=True, kw_only=True)
class Outcome:
    """What the advisor did in one world, beyond what the cluster shows."""

    isolated: list[tuple[int, float]] = field(default_factory=list)
    lemons: set[int] = field(default_factory=set)
    ticks: int = 0
    decisions: int = 0
    detection_seconds: list[float] = field(default_factory=list)


class Advised:
    """An `Operator` and a `Watcher`: it acts between events, never within them."""

    name = "advisor"

    def __init__(
        self, cluster: Cluster, printer: Printer, store: Store, checks: Checks, *, act: bool = True, name: str = "world"
    ) -> None:
        self.cluster, self.printer, self.store, self.checks = cluster, printer, store, checks
        self.place = name  # as the store knows the cluster
        self.act = act
        self.outcome = Outcome()
        self._clock = WorldClock()
        self._changed: dict[str, None] = {}
        self._nodes: dict[int, None] = {}
        self._often_until = 0.0
        self._marks: dict[str, tuple[int, int]] = {}  # job → (attempt advised on, generation)
        self._done: set[str] = set()  # advice that is final
        self._isolations: dict[str, int] = {}
        self._index = {cluster.world.name_of(node.index): node.index for node in cluster.nodes}
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
        self._seen(job, FAILING_SECONDS)

    def attempt_ended(self, job: SimJob, attempt: SimAttempt) -> None:
        self._seen(job, ENDED_SECONDS)

    def started(self, job: SimJob, attempt: SimAttempt) -> None:
        self._seen(job, SEEN_SECONDS)

    def failing(self, job: SimJob, attempt: SimAttempt, fault: object) -> None:
        self._seen(job, FAILING_SECONDS)

    def ended(self, job: SimJob, attempt: SimAttempt) -> None:
        self._seen(job, ENDED_SECONDS)

    def requeued(self, job: SimJob, attempt: SimAttempt, by: str) -> None:
        self._seen(job, SEEN_SECONDS)

    def node_changed(self, node: SimNode) -> None:
        self._nodes[node.index] = None
        self._look_often(SEEN_SECONDS)

    def _seen(self, job: SimJob, seconds: float) -> None:
        self._changed[job.spec.job_id] = None
        self._look_often(seconds)

    def _look_often(self, seconds: float) -> None:
        self._often_until = max(self._often_until, self.cluster.now + seconds)

    # the run

    async def run(self, until: float, *, quiet_seconds: float = QUIET_SECONDS) -> None:
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
        at = 0.0
        while at < until:
            self.cluster.advance(at)
            await self.look()
            at = min(self._next(at, quiet_seconds), until)
        self.cluster.advance(until)
        await self.look()
        await self._measurer.close()
        await self._board.close()

    def _next(self, at: float, quiet_seconds: float) -> float:
        """When to look next: at once when something happens, often while something is wrong."""
        event = max(self.cluster.next_event, at) + 0.2
        if at < self._often_until:
            return min(at + ILL_SECONDS, event)
        if any(job.last.live and (job.last.failed_at or job.last.spoiled) is not None for job in self._running()):
            return min(at + STANDING_SECONDS, event)
        return min(at + quiet_seconds, event)

    def _running(self) -> Iterator[SimJob]:
        return (job for job in self.cluster.jobs.values() if not job.over)

    async def look(self) -> None:
        """Report what changed, tick, act: one round of agent and advisor."""
        self._clock.seconds = self.cluster.now
        await self._report()
        await self._pipeline.tick()
        self.outcome.ticks += 1
        for row in await self.store.open_advice(self.place, self._clock.now()):
            await self._apply(row)
        await self._tend_nodes(await self.store.open_isolations(self.place))
        if self._changed or self._nodes:
            await self._report()
        self.checks.looked(self.cluster)

    async def _report(self) -> None:
        jobs = [self._observed(self.cluster.jobs[name]) for name in self._changed]
        nodes = [self._observed_node(self.cluster.nodes[index]) for index in self._nodes]
        self._changed, self._nodes = {}, {}
        self._board.heard(self.place, ())
        if jobs or nodes:
            await self.store.record_observations(self.place, jobs, nodes, complete=False, now=self._clock.now())

    def _observed(self, job: SimJob) -> ObservedJob:
        attempt, spec, name = job.last, job.spec, self.cluster.world.name_of
        marked_attempt, generation = self._marks.get(spec.job_id, (0, 0))
        fitting = sum(
            not (node.down or node.drained or node.silent) and node.index not in job.excluded
            for node in self.cluster.nodes
        )
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

    # the agent

    async def _apply(self, row: AdviceRow) -> None:
        decision, job = row.decision, self.cluster.jobs.get(row.attempt.job_id)
        if row.advice_id in self._done or job is None or not self.act or decision.mode is not Mode.AUTONOMOUS:
            return
        self.outcome.decisions += 1
        number, last = row.attempt.number, job.last
        moved_on = last.number > number + 1 or (last.number == number + 1 and last.state is not AttemptState.PENDING)
        match decision.action:
            case Action.NONE:
                await self._settle(row, ReconciliationStatus.ALREADY_SATISFIED, ReconciliationReason.NOTHING_TO_DO)
            case _ if moved_on or job.over:
                await self._settle(row, ReconciliationStatus.WITHHELD, ReconciliationReason.ATTEMPT_MOVED_ON)
            case _ if last.number == number and last.live and not decision.may_end_live_attempt:
                return  # it waits for the attempt's end
            case Action.RESTART:
                await self._restart(row, job)
            case Action.STOP:
                self.checks.stopping(self.cluster, job, row)
                if self.cluster.cancel(job, by=self.name) is Move.DONE:
                    self._changed[job.spec.job_id] = None
                await self._settle(row, ReconciliationStatus.VERIFIED, ReconciliationReason.OBSERVED)

    async def _restart(self, row: AdviceRow, job: SimJob) -> None:
        decision, number = row.decision, row.attempt.number
        reached = []
        if decision.delay_until is not None and decision.delay_until > self._clock.now():
            return
        if job.last.number == number:
            self.checks.requeuing(self.cluster, job, row)
            if self.cluster.requeue(job, by=self.name) is Move.REFUSED:
                await self._settle(row, ReconciliationStatus.WITHHELD, ReconciliationReason.ATTEMPT_MOVED_ON)
                return
            reached.append(MilestoneKind.REQUEUE_ACCEPTED)
        wanted = {self._index[name] for name in decision.isolation.exclude_for_job if name in self._index}
        usable = sum(node.usable and node.index not in wanted for node in self.cluster.nodes)
        if usable >= job.spec.nodes or not wanted:
            self.checks.excluding(self.cluster, job, wanted)
            self.cluster.exclude(job, wanted)
        self._marks[job.spec.job_id] = (number, row.generation)
        self._changed[job.spec.job_id] = None
        reached.append(MilestoneKind.UPDATE_ACCEPTED)
        now = self._clock.now()
        key = AttemptKey(job_key=row.attempt.job_key, number=number)
        await self.store.record_milestones({key: [Milestone(kind=kind, at=now) for kind in reached]})
        if decision.settled:
            await self._settle(row, ReconciliationStatus.VERIFIED, ReconciliationReason.OBSERVED)

    async def _settle(self, row: AdviceRow, status: ReconciliationStatus, reason: ReconciliationReason) -> None:
        self._done.add(row.advice_id)
        news = Reconciliation(status=status, reason=reason, at=self._clock.now())
        await self.store.record_reconciliation(row.advice_id, news, who="agent world")

    async def _tend_nodes(self, wanted: tuple[StoredIsolation, ...]) -> None:
        for item in wanted:
            index = self._index[item.node]
            node = self.cluster.nodes[index]
            if item.ended_at is not None:
                if node.drained == self.name:
                    self.cluster.undrain(index)
                await self._node_settled(item, ReconciliationReason.OBSERVED)
            elif not item.dry_run and item.isolation_id not in self._isolations and self.act:
                self._isolations[item.isolation_id] = index
                self.outcome.isolated.append((index, self.cluster.now))
                self.checks.isolating(self.cluster, index)
                self.cluster.drain(index, by=self.name)
                await self._node_settled(item, ReconciliationReason.OBSERVED)
            elif item.isolation_id in self._isolations and not node.drained and node.job is None:
                await self._node_settled(item, ReconciliationReason.REPAIR_SEEN)

    async def _node_settled(self, item: StoredIsolation, reason: ReconciliationReason) -> None:
        news = NodeReconciliation(
            generation=item.generation, status=ReconciliationStatus.VERIFIED, reason=reason, at=self._clock.now()
        )
        await self.store.record_node_reconciliation(item.isolation_id, news, cluster=self.place, who="agent world")

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


async def advise(
    world: World, store: Store, checks: Checks, *, act: bool = True, name: str = "world"
) -> tuple[Cluster, Advised]:
    """The whole of one world under the advisor. `act` False: it watches, and somebody else acts."""
    printer = Printer()
    cluster = Cluster(world, watchers=[printer])
    printer.cluster = cluster
    advised = Advised(cluster, printer, store, checks, act=act, name=name)
    cluster.watchers.append(advised)
    cluster.watchers.append(checks)
    cluster.operator = advised
    days = 7.0 * 86_400.0
    for week in range(int(world.seconds // days)):
        cluster.at(days * (week + 1), lambda: None)
    await advised.run(world.seconds)
    await advised.find_lemons()
    return cluster, advised
