"""The scheduler and the training jobs of one world, event by event.

What a scheduler does that matters here: priorities, exclusions, drains, dead nodes and the requeue that follows,
preemption, its own delay before a requeued job may start. What a job does: it starts up, trains, stands still to save,
and fails as the world has drawn. Nobody in here decides anything: an `Operator` is told when an attempt has ended or
stands still, and calls `requeue`, `cancel` and `drain` as people and programs do.

Progress is closed-form: an attempt that trains costs one event however long it trains.
"""

import heapq
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import count, islice
from typing import Protocol

from advisor.core.words import AttemptState
from advisor.simulate.catalogue import Cause, Place, Shape
from advisor.simulate.world import HOUR, Fault, JobSpec, World, application_failures

FAIL_SECONDS = (2.0, 12.0)  # from the first rank's death to the end of the job
BAD_SECONDS = (5.0, 300.0)  # how long a job lasts on a node that is bad already
WRITING_SHARE = 0.3  # of jobs that use a file system just when it goes away
WAITING_CANCELLED = 0.5  # share of cancels that are of jobs which wait to run again, if there are any
USER = "user"  # who cancels his own job
NOTICED_SHARE = 1 / 3  # of SlurmdTimeout, until the scheduler says that a node does not respond


@dataclass(slots=True, kw_only=True)
class SimNode:
    index: int
    job: "SimJob | None" = None
    bad: Fault | None = None  # what is broken, until it is repaired or passes
    dead: bool = False  # it does not answer, whether anybody has noticed or not
    down: bool = False
    silent: bool = False  # the scheduler has noticed that it does not respond
    drained: str = ""  # by whom
    # When a job first met each fault of its own hardware, by the fault: one that several jobs meet is one failure.
    failures: dict[int, float] = field(default_factory=dict)

    @property
    def usable(self) -> bool:
        return not (self.down or self.drained or self.silent)


@dataclass(slots=True, kw_only=True)
class SimAttempt:
    """One execution. `resume`: the step that it begins after. `spoiled`: from this step on all is worthless."""

    number: int
    submitted_at: float
    eligible_at: float
    resume: int
    state: AttemptState = AttemptState.PENDING
    nodes: tuple[int, ...] = ()
    started_at: float | None = None
    ended_at: float | None = None
    exit_code: int = 0
    fault: Fault | None = None  # what makes it fail, once it does
    silent: bool = False  # its failure shows in no line
    failed_at: float | None = None  # no step is completed after it
    spoiled: int | None = None
    requeued_by: str = ""
    struck_at: float | None = None  # when it began to fail, or to compute nonsense

    @property
    def live(self) -> bool:
        return self.state is AttemptState.RUNNING


@dataclass(slots=True, kw_only=True)
class SimJob:
    spec: JobSpec
    attempts: list[SimAttempt]
    excluded: set[int] = field(default_factory=set)
    application: tuple[tuple[float, Cause], ...] = ()
    trained: float = 0.0  # seconds, over all attempts: when the program fails by itself counts in these
    over: bool = False  # nobody will start it again
    stopped_by: str = ""
    stopped_at: float | None = None
    finished: bool = False

    @property
    def last(self) -> SimAttempt:
        return self.attempts[-1]


class Operator(Protocol):
    """Somebody who sees to it that jobs go on."""

    name: str

    def attempt_failed(self, job: SimJob, attempt: SimAttempt) -> None:
        """An attempt has begun to fail: it will end, or stands still, or computes nonsense. Not seen by everybody."""
        ...

    def attempt_ended(self, job: SimJob, attempt: SimAttempt) -> None: ...


class Watcher(Protocol):
    """Whoever prints, and whoever checks: told of everything, changes nothing."""

    def started(self, job: SimJob, attempt: SimAttempt) -> None: ...
    def failing(self, job: SimJob, attempt: SimAttempt, fault: Fault) -> None: ...
    def ended(self, job: SimJob, attempt: SimAttempt) -> None: ...
    def requeued(self, job: SimJob, attempt: SimAttempt, by: str) -> None: ...
    def node_changed(self, node: SimNode) -> None: ...


class Move(StrEnum):
    """What came of an order."""

    DONE = "done"
    REFUSED = "refused"


class Cluster:
    def __init__(self, world: World, *, watchers: Iterable[Watcher] = ()) -> None:
        self.world = world
        self.now = 0.0
        self.nodes = [SimNode(index=index) for index in range(world.scenario.nodes)]
        self.jobs: dict[str, SimJob] = {}
        self.pending: list[SimJob] = []
        self.operator: Operator | None = None
        self.watchers = list(watchers)
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()
        self._schedule_due = False
        self._arrays: defaultdict[str, list[SimJob]] = defaultdict(list)  # tasks by array
        for spec in world.jobs:
            self.at(spec.submitted_at, self._submit, spec)
        for fault in world.faults:
            self.at(fault.at, self._strike, fault)
        for at in world.preemptions:
            self.at(at, self._preempt)
        for at in world.cancels:
            self.at(at, self._user_cancels)
        for at in world.drains:
            self.at(at, self._admin_drains)

    # time

    def at(self, moment: float, act: Callable[..., None], *arguments: object) -> None:
        heapq.heappush(self._heap, (max(moment, self.now), next(self._order), lambda: act(*arguments)))

    @property
    def next_event(self) -> float:
        return self._heap[0][0] if self._heap else float("inf")

    def advance(self, until: float) -> None:
        """Everything that happens up to `until`, in order."""
        while self._heap and self._heap[0][0] <= until:
            moment, _, act = heapq.heappop(self._heap)
            self.now = max(self.now, moment)
            act()
        self.now = max(self.now, until)

    # progress

    def steps(self, job: SimJob, attempt: SimAttempt, at: float) -> int:
        """The step last completed at that time."""
        return attempt.resume + self._trained(job.spec, attempt, at)[0]

    def saved(self, job: SimJob, attempt: SimAttempt, at: float) -> int:
        """The step that the next attempt can resume from."""
        every = job.spec.save_every
        done, whole = self._trained(job.spec, attempt, at)
        step = attempt.resume + whole * every
        if job.spec.steps is not None and attempt.resume + done >= job.spec.steps:
            step = job.spec.steps
        return step if attempt.spoiled is None else min(step, attempt.spoiled // every * every)

    def first_step_at(self, attempt: SimAttempt) -> float | None:
        return None if attempt.started_at is None else attempt.started_at + self.world.scenario.initialise_seconds

    def time_of(self, job: SimJob, attempt: SimAttempt, step: int) -> float:
        """When the attempt will have completed that step, if nothing happens."""
        begun = self.first_step_at(attempt)
        assert begun is not None  # noqa: S101 -- only asked of attempts that run
        further = max(step - attempt.resume, 0)
        saves = max(further - 1, 0) // job.spec.save_every
        return begun + further * job.spec.step_seconds + saves * self.world.scenario.checkpoint_seconds

    def _trained(self, spec: JobSpec, attempt: SimAttempt, at: float) -> tuple[int, int]:
        """Steps completed by this attempt alone, and how many checkpoints of it are whole."""
        begun = self.first_step_at(attempt)
        if begun is None:
            return 0, 0
        end = min(moment for moment in (at, attempt.failed_at, attempt.ended_at) if moment is not None)
        seconds = max(end - begun, 0.0)
        cycle = spec.save_every * spec.step_seconds + self.world.scenario.checkpoint_seconds
        whole, rest = divmod(seconds, cycle)
        steps = int(whole) * spec.save_every + min(spec.save_every, int(rest / spec.step_seconds))
        if spec.steps is not None:
            steps = min(steps, max(spec.steps - attempt.resume, 0))
        return steps, int(whole)

    # orders of operators

    def requeue(self, job: SimJob, *, by: str, exclude: Iterable[int] = ()) -> Move:
        """The next attempt, which waits for the scheduler's own delay. A live one is ended first."""
        attempt = job.last
        if job.over or attempt.state in {AttemptState.PENDING, AttemptState.COMPLETED, AttemptState.CANCELLED}:
            return Move.REFUSED
        if attempt.live:
            self._end(job, attempt, AttemptState.OTHER, tell=False)
        job.excluded |= set(exclude)
        self._next_attempt(job, by)
        return Move.DONE

    def exclude(self, job: SimJob, nodes: Iterable[int]) -> None:
        """For the attempt that waits, and those after it: the list as a whole."""
        job.excluded = set(nodes)
        self._schedule_soon()

    def cancel(self, job: SimJob, *, by: str) -> Move:
        if job.over:
            return Move.REFUSED
        attempt = job.last
        job.over, job.stopped_by, job.stopped_at = True, by, self.now
        if attempt.live:
            self._end(job, attempt, AttemptState.CANCELLED, tell=False)
        elif attempt.state is AttemptState.PENDING:
            attempt.state, attempt.ended_at = AttemptState.CANCELLED, self.now
            self.pending.remove(job)
            for watcher in self.watchers:
                watcher.ended(job, attempt)
        return Move.DONE

    def drain(self, index: int, *, by: str) -> None:
        """No job starts on it any more; it is looked at, and repaired when something is broken."""
        node = self.nodes[index]
        if node.drained:
            return
        node.drained = by
        self._tell_node(node)
        random = self.world.stream("repair", index, len(node.failures))
        hours = random.lognormvariate(0.0, 0.6) * self.world.scenario.repair_hours if node.bad is not None else 2.0
        self.at(self.now + hours * HOUR, self._repaired, node)

    def set_down(self, index: int) -> None:
        """What an administrator who is certain may do about a node that does not answer."""
        node = self.nodes[index]
        node.down = True
        self._tell_node(node)
        self._schedule_soon()

    def undrain(self, index: int) -> None:
        node = self.nodes[index]
        node.drained = ""
        self._tell_node(node)
        self._schedule_soon()

    # what happens by itself

    def _submit(self, spec: JobSpec) -> None:
        first = SimAttempt(number=0, submitted_at=self.now, eligible_at=self.now, resume=0)
        job = SimJob(
            spec=spec,
            attempts=[first],
            excluded=set(spec.avoids),
            application=application_failures(self.world, spec),
        )
        self.jobs[spec.job_id] = job
        self._arrays[spec.array_job_id].append(job)
        self._wait(job)
        for watcher in self.watchers:
            watcher.requeued(job, first, "")

    def _wait(self, job: SimJob) -> None:
        self.pending.append(job)
        self.at(job.last.eligible_at + self.world.scenario.schedule_seconds, self._schedule_soon)

    def _schedule_soon(self) -> None:
        if not self._schedule_due:
            self._schedule_due = True
            self.at(self.now, self._schedule)

    def _schedule(self) -> None:
        self._schedule_due = False
        ready = [job for job in self.pending if job.last.eligible_at <= self.now]
        free: list[int] | None = None
        for job in sorted(ready, key=lambda one: (-one.spec.priority, one.last.submitted_at, one.spec.job_id)):
            if free is None:
                free = [node.index for node in self.nodes if node.usable and node.job is None]
            if self._throttled(job.spec) or self._completing(job):
                continue
            enough = len(free) >= job.spec.nodes
            fitting = (index for index in free if index not in job.excluded)
            chosen = list(islice(fitting, job.spec.nodes)) if enough else []
            if len(chosen) < job.spec.nodes:
                if job.spec.priority > 0:
                    return  # nobody overtakes it
                continue
            taken = set(chosen)
            free = [index for index in free if index not in taken]
            self.pending.remove(job)
            self._start(job, tuple(chosen))

    def _throttled(self, spec: JobSpec) -> bool:
        """As many tasks of its array run as may run at once."""
        if spec.array_limit is None:
            return False
        return sum(job.last.live for job in self._arrays[spec.array_job_id]) >= spec.array_limit

    def _completing(self, job: SimJob) -> bool:
        """A node of the last attempt does not answer: until it is DOWN the scheduler waits for it to clean up."""
        before = job.attempts[-2].nodes if len(job.attempts) > 1 else ()
        return any(self.nodes[index].dead and not self.nodes[index].down for index in before)

    def _start(self, job: SimJob, nodes: tuple[int, ...]) -> None:
        attempt = job.last
        attempt.state, attempt.nodes, attempt.started_at = AttemptState.RUNNING, nodes, self.now
        for index in nodes:
            self.nodes[index].job = job
        for watcher in self.watchers:
            watcher.started(job, attempt)
        bad = [fault for index in nodes if (fault := self.nodes[index].bad) is not None]
        if bad:
            first = min(bad, key=lambda fault: fault.number)
            delay = self.world.stream("bad", job.spec.job_id, attempt.number).uniform(*BAD_SECONDS)
            self.at(self.now + delay, self._fails_again, job, attempt, first)
        spec, begun = job.spec, self.now + self.world.scenario.initialise_seconds
        if spec.mistake is not None and attempt.resume <= spec.mistake_step:
            fault = Fault(number=-1, at=0.0, cause=spec.mistake, nodes=())
            moment = self.time_of(job, attempt, spec.mistake_step) if spec.mistake_step else begun - 30.0
            self.at(max(moment, self.now + 5.0), self._fail, job, attempt, fault)
        for after, cause in job.application:
            if after > job.trained + 1.0:  # the one that it has just failed of does not come again
                self.at(
                    begun + after - job.trained, self._fail, job, attempt, Fault(number=-2, at=0, cause=cause, nodes=())
                )
                break
        if spec.steps is not None:
            self.at(self.time_of(job, attempt, spec.steps) + 10.0, self._complete, job, attempt)

    def _fails_again(self, job: SimJob, attempt: SimAttempt, fault: Fault) -> None:
        """On a node that was bad when the attempt started, and still is."""
        if any(self.nodes[index].bad is fault for index in attempt.nodes):
            self._fail(job, attempt, fault)

    def _strike(self, fault: Fault) -> None:
        """A fault of the world happens: to places first, then to the jobs that are there."""
        met: dict[str, SimJob] = {}
        for index in fault.nodes:
            node = self.nodes[index]
            if fault.bad_until > fault.at and fault.cause.place is not Place.STORAGE:
                node.bad = fault
                self.at(fault.bad_until, self._passes, node, fault)
            if fault.cause.shape is Shape.GONE and not node.dead:
                self._goes(node, fault)
            if node.job is not None:
                met[node.job.spec.job_id] = node.job
        for job in met.values():
            writes = self.world.stream("writes", fault.number, job.spec.job_id).random() < WRITING_SHARE
            if fault.cause.place is not Place.STORAGE or writes:
                self._fail(job, job.last, fault)

    def _goes(self, node: SimNode, fault: Fault) -> None:
        node.dead = True
        timeout = self.world.scenario.node_timeout_seconds
        self.at(self.now + timeout * NOTICED_SHARE, self._noticed, node)
        self.at(self.now + timeout, self._lost, node)
        hours = self.world.stream("back", node.index, fault.number).lognormvariate(0.0, 0.6)
        self.at(self.now + max(timeout + 60.0, hours * self.world.scenario.repair_hours * HOUR), self._repaired, node)

    def _noticed(self, node: SimNode) -> None:
        if node.dead:
            node.silent = True
            self._tell_node(node)

    def _lost(self, node: SimNode) -> None:
        if not node.dead:
            return
        node.down, job = True, node.job
        self._tell_node(node)
        self._schedule_soon()
        if job is not None and job.last.live:
            self._end(job, job.last, AttemptState.NODE_FAILURE)
            if not job.over and job.last.state is AttemptState.NODE_FAILURE:
                self._next_attempt(job, "scheduler")

    def _fail(self, job: SimJob, attempt: SimAttempt, fault: Fault) -> None:
        if not attempt.live or attempt.failed_at is not None or job.last is not attempt:
            return
        node = self.nodes[fault.nodes[0]] if fault.own_hardware else None
        if node is not None and fault.number not in node.failures:
            node.failures[fault.number] = self.now
        attempt.fault, attempt.struck_at = fault, self.now
        quiet = self.world.stream("silent", job.spec.job_id, attempt.number).random()
        attempt.silent = quiet < self.world.scenario.noise.failures_silent
        random = self.world.stream("end", job.spec.job_id, attempt.number)
        match fault.cause.shape:
            case Shape.NUMERICS:
                attempt.spoiled = self.steps(job, attempt, self.now)
            case Shape.CRASH:
                attempt.failed_at = self.now
                self.at(self.now + random.uniform(*FAIL_SECONDS), self._crash, job, attempt, 1)
            case Shape.HANG:
                attempt.failed_at = self.now
                self.at(self.now + self.world.scenario.collective_timeout_seconds, self._crash, job, attempt, 134)
            case Shape.GONE:
                attempt.failed_at = self.now
        for watcher in self.watchers:
            watcher.failing(job, attempt, fault)
        if self.operator is not None:
            self.operator.attempt_failed(job, attempt)

    def _crash(self, job: SimJob, attempt: SimAttempt, code: int) -> None:
        if attempt.live:
            attempt.exit_code = code
            self._end(job, attempt, AttemptState.FAILED)

    def _complete(self, job: SimJob, attempt: SimAttempt) -> None:
        if attempt.live and attempt.failed_at is None:
            job.over, job.finished = True, attempt.spoiled is None
            self._end(job, attempt, AttemptState.COMPLETED)

    def _end(self, job: SimJob, attempt: SimAttempt, state: AttemptState, *, tell: bool = True) -> None:
        begun = self.first_step_at(attempt)
        if begun is not None:
            job.trained += max((attempt.failed_at or self.now) - begun, 0.0)
        attempt.state, attempt.ended_at = state, self.now
        for index in attempt.nodes:
            self.nodes[index].job = None
        for watcher in self.watchers:
            watcher.ended(job, attempt)
        if tell and self.operator is not None:
            self.operator.attempt_ended(job, attempt)
        self._schedule_soon()

    def _next_attempt(self, job: SimJob, by: str) -> None:
        before = job.last
        resume = max(self.saved(job, before, self.now), 0)
        attempt = SimAttempt(
            number=before.number + 1,
            submitted_at=self.now,
            eligible_at=self.now + self.world.scenario.requeue_delay_seconds,
            resume=resume,
            requeued_by=by,
        )
        job.attempts.append(attempt)
        self._wait(job)
        for watcher in self.watchers:
            watcher.requeued(job, attempt, by)

    def _preempt(self) -> None:
        """Somebody more important takes the nodes of one small job; the scheduler starts it again by itself."""
        candidates = [job for job in self.jobs.values() if job.last.live and not job.spec.priority]
        if candidates:
            job = self.world.stream("preempted", self.now).choice(sorted(candidates, key=lambda one: one.spec.job_id))
            self._end(job, job.last, AttemptState.PREEMPTED, tell=False)
            self._next_attempt(job, "scheduler")

    def _user_cancels(self) -> None:
        """A user is done with one of his small jobs, often with one that has failed and waits to run again."""
        random = self.world.stream("cancelled", self.now)
        small = [job for job in self.jobs.values() if not job.over and not job.spec.priority]
        again = [job for job in small if job.last.state is AttemptState.PENDING and job.last.number]
        chosen = again if again and random.random() < WAITING_CANCELLED else small
        if chosen:
            self.cancel(random.choice(sorted(chosen, key=lambda one: one.spec.job_id)), by=USER)

    def _admin_drains(self) -> None:
        """A node is wanted for something else; what runs on it goes on."""
        self.drain(self.world.stream("drained", self.now).randrange(len(self.nodes)), by="admin")

    def _passes(self, node: SimNode, fault: Fault) -> None:
        """The site's own checks have found it, or it was of the passing kind."""
        if node.bad is not fault:
            return
        if fault.own_hardware and not node.drained and not node.down:
            self.drain(node.index, by="health check")
        else:
            node.bad = None

    def _repaired(self, node: SimNode) -> None:
        node.bad, node.dead, node.down, node.silent, node.drained = None, False, False, False, ""
        self._tell_node(node)
        self._schedule_soon()

    def _tell_node(self, node: SimNode) -> None:
        for watcher in self.watchers:
            watcher.node_changed(node)
