"""The agent of a world: the short list of rules by which the real one acts (docs/architecture.md).

Advice for attempt N is applied to N or to its direct pending successor; a live attempt is ended only by advice that
says so; nothing is done twice; what is not autonomous is only looked at. `Checks` are asked before every act and know
the truth, so that an agent that breaks a rule is caught whatever it thinks.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from advisor.core.words import Action, AttemptState, Mode
from advisor.ports import Clock
from advisor.simulate.checks import Checks
from advisor.simulate.cluster import Cluster, Move, SimJob
from advisor.store.records import (
    AdviceRow,
    AttemptKey,
    Milestone,
    MilestoneKind,
    NodeReconciliation,
    Reconciliation,
    ReconciliationReason,
    ReconciliationStatus,
    StoredIsolation,
)
from advisor.store.store import Store

ADVISOR = "advisor"
PENDING_SECONDS_MAX = 1800.0  # the watchdog's pending_minutes


@dataclass(slots=True, kw_only=True)
class Agent:
    """`changed`: jobs to be reported again. `marks`: job → (attempt advised on, generation), our mark on it."""

    cluster: Cluster
    store: Store
    checks: Checks
    clock: Clock
    place: str  # the cluster's name in the store
    index: Mapping[str, int]  # of nodes by name
    act: bool = True
    changed: dict[str, None] = field(default_factory=dict)
    ours: dict[str, tuple[int, ...]] = field(default_factory=dict)  # job → nodes excluded for it, most certain first
    marks: dict[str, tuple[int, int]] = field(default_factory=dict)
    isolated: list[tuple[int, float]] = field(default_factory=list)
    _done: set[str] = field(default_factory=set)  # advice that is final
    _isolations: dict[str, int] = field(default_factory=dict)

    async def apply(self, row: AdviceRow) -> None:
        decision, job = row.decision, self.cluster.jobs.get(row.attempt.job_id)
        if row.advice_id in self._done or job is None or not self.is_told(row):
            return
        match decision.action:
            case Action.NONE:
                await self.settle(row, ReconciliationStatus.ALREADY_SATISFIED, ReconciliationReason.NOTHING_TO_DO)
            case _ if self.moved_on(row, job):
                await self.settle(row, ReconciliationStatus.WITHHELD, ReconciliationReason.ATTEMPT_MOVED_ON)
            case _ if not self.may_act(row, job):
                return  # it waits for the attempt's end
            case Action.RESTART:
                await self.restart(row, job)
            case Action.STOP:
                await self.stop(row, job)

    def is_told(self, row: AdviceRow) -> bool:
        """What is not autonomous is only looked at."""
        return self.act and row.decision.mode is Mode.AUTONOMOUS

    def moved_on(self, row: AdviceRow, job: SimJob) -> bool:
        number, last = row.attempt.number, job.last
        begun = last.number == number + 1 and last.state is not AttemptState.PENDING
        return job.over or last.number > number + 1 or begun

    def may_act(self, row: AdviceRow, job: SimJob) -> bool:
        """A live attempt is ended only by advice that says so."""
        mine = job.last.number == row.attempt.number
        return not (mine and job.last.live and not row.decision.may_end_live_attempt)

    def may_requeue(self, row: AdviceRow, job: SimJob) -> bool:
        """Only the attempt that the advice is for; its pending successor is updated, not requeued."""
        return job.last.number == row.attempt.number

    async def stop(self, row: AdviceRow, job: SimJob) -> None:
        self.checks.stopping(self.cluster, job, row)
        if self.cluster.cancel(job, by=ADVISOR) is Move.DONE:
            self.changed[job.spec.job_id] = None
        await self.settle(row, ReconciliationStatus.VERIFIED, ReconciliationReason.OBSERVED)

    async def restart(self, row: AdviceRow, job: SimJob) -> None:
        decision, number = row.decision, row.attempt.number
        reached = []
        if decision.delay_until is not None and decision.delay_until > self.clock.now():
            return
        if self.may_requeue(row, job):
            self.checks.requeuing(self.cluster, job, row)
            if self.cluster.requeue(job, by=ADVISOR) is Move.REFUSED:
                await self.settle(row, ReconciliationStatus.WITHHELD, ReconciliationReason.ATTEMPT_MOVED_ON)
                return
            reached.append(MilestoneKind.REQUEUE_ACCEPTED)
        wanted = self.wanted(row, job)
        usable = sum(node.usable and node.index not in wanted for node in self.cluster.nodes)
        if usable >= job.spec.nodes or not wanted:
            self.checks.excluding(self.cluster, job, wanted, row)
            names = row.decision.isolation.exclude_for_job
            self.ours[job.spec.job_id] = tuple(self.index[name] for name in names if name in self.index)
            if wanted != job.excluded:
                self.cluster.exclude(job, wanted)
        mark = (number, row.generation)
        if reached or self.marks.get(job.spec.job_id) != mark:
            self.marks[job.spec.job_id] = mark
            self.changed[job.spec.job_id] = None
            reached.append(MilestoneKind.UPDATE_ACCEPTED)
            now = self.clock.now()
            key = AttemptKey(job_key=row.attempt.job_key, number=number)
            await self.store.record_milestones({key: [Milestone(kind=kind, at=now) for kind in reached]})
        if decision.settled:
            await self.settle(row, ReconciliationStatus.VERIFIED, ReconciliationReason.OBSERVED)

    def wanted(self, row: AdviceRow, job: SimJob) -> set[int]:
        """Nodes that the next attempt shall avoid: ours, and those that the user himself excludes."""
        ours = {self.index[name] for name in row.decision.isolation.exclude_for_job if name in self.index}
        return ours | job.spec.avoids

    async def settle(self, row: AdviceRow, status: ReconciliationStatus, reason: ReconciliationReason) -> None:
        self._done.add(row.advice_id)
        news = Reconciliation(status=status, reason=reason, at=self.clock.now())
        await self.store.record_reconciliation(row.advice_id, news, who="agent world")

    def tend_jobs(self) -> None:
        """A waiting job that cannot start because of exclusions loses the least certain, as few as will do, busy nodes
        counted; one that waits for very long loses all, as the watchdog sees to.
        """
        for job in [job for job in self.cluster.pending if job.excluded - job.spec.avoids]:
            usable = {node.index for node in self.cluster.nodes if node.usable}
            kept = [index for index in self.ours.get(job.spec.job_id, ()) if index in job.excluded]
            if self.cluster.now - job.last.eligible_at > PENDING_SECONDS_MAX:
                kept = []
            elif len(usable - job.excluded) < job.spec.nodes <= len(usable):
                while kept and len(usable - set(kept)) < job.spec.nodes:
                    kept.pop()
            if (left := set(kept) | job.spec.avoids) != job.excluded:
                self.cluster.exclude(job, left)
                self.changed[job.spec.job_id] = None

    async def tend_nodes(self, wanted: tuple[StoredIsolation, ...]) -> None:
        """Nodes that the cluster is to avoid are drained, and given back when that is over."""
        for item in wanted:
            index = self.index[item.node]
            node = self.cluster.nodes[index]
            if item.ended_at is not None:
                if self.may_undrain(index):
                    self.checks.undraining(self.cluster, index)
                    self.cluster.undrain(index)
                await self._node_settled(item, ReconciliationReason.OBSERVED)
            elif not item.dry_run and item.isolation_id not in self._isolations and self.act:
                self._isolations[item.isolation_id] = index
                self.isolated.append((index, self.cluster.now))
                self.checks.isolating(self.cluster, index)
                self.cluster.drain(index, by=ADVISOR)
                await self._node_settled(item, ReconciliationReason.OBSERVED)
            elif item.isolation_id in self._isolations and not node.drained:
                await self._node_settled(item, ReconciliationReason.REPAIR_SEEN)

    def may_undrain(self, index: int) -> bool:
        """Only what we drained ourselves."""
        return self.cluster.nodes[index].drained == ADVISOR

    async def _node_settled(self, item: StoredIsolation, reason: ReconciliationReason) -> None:
        news = NodeReconciliation(
            generation=item.generation, status=ReconciliationStatus.VERIFIED, reason=reason, at=self.clock.now()
        )
        await self.store.record_node_reconciliation(item.isolation_id, news, cluster=self.place, who="agent world")
