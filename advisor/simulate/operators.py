"""Whom the advisor is compared with, in the same worlds.

`nobody`    Slurm alone: what exits is requeued at once (RequeueExit), anywhere; what hangs waits for the collective's
            own time-out; a dead node for SlurmdTimeout.
`excluder`  the same, and every node that the log names is excluded from then on, as simple scripts do.
`person`    somebody who reads logs: after a delay whose median and mean are published (OLMo Hybrid on 512 GPUs: 3 min
            42 s and 38 min 54 s), finding the right node as often as published (Minder's recall, 0.883).
`bound`     knows at once what is wrong and where. It too waits for Slurm and for the job's own start: no software can
            do better in that world.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import log, sqrt

from advisor.core.words import AttemptState
from advisor.simulate.catalogue import Place, Shape
from advisor.simulate.cluster import Cluster, SimAttempt, SimJob
from advisor.simulate.world import Fault

PERSON_MEDIAN_SECONDS = 222.0
PERSON_MEAN_SECONDS = 2334.0
PERSON_FINDS = 0.883
PERSON_STOPS = 0.9  # of hopeless jobs, at the first look
NONSENSE_NOTICED_SECONDS = 7200.0  # until anybody without an advisor looks at a loss that is no number, on average
NAMED_ELSEWHERE = 4  # nodes that others' messages name, besides the culprit's


class Nobody:
    name = "nobody"

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster

    def attempt_failed(self, job: SimJob, attempt: SimAttempt) -> None:
        if attempt.fault is not None and attempt.fault.cause.shape is Shape.NUMERICS:
            wait = nonsense_noticed_after(self.cluster, job, attempt)
            self.cluster.at(self.cluster.now + wait, self._end_nonsense, job, attempt)

    def attempt_ended(self, job: SimJob, attempt: SimAttempt) -> None:
        if attempt.state is AttemptState.FAILED:
            self.go_on(job, attempt)

    def go_on(self, job: SimJob, attempt: SimAttempt) -> None:
        self.cluster.requeue(job, by=self.name)

    def random(self, job: SimJob, attempt: SimAttempt):  # type: ignore[no-untyped-def]  # a Random of this attempt
        return self.cluster.world.stream(self.name, job.spec.job_id, attempt.number)

    def _end_nonsense(self, job: SimJob, attempt: SimAttempt) -> None:
        if attempt.live and job.last is attempt:
            self.go_on(job, attempt)


class Excluder(Nobody):
    name = "excluder"

    def go_on(self, job: SimJob, attempt: SimAttempt) -> None:
        named = set(culprits(attempt.fault))
        if attempt.fault is not None and attempt.fault.cause.others and not attempt.silent:
            count = min(NAMED_ELSEWHERE, len(attempt.nodes))
            named |= set(self.random(job, attempt).sample(attempt.nodes, count))
        wanted = job.excluded | (named & set(attempt.nodes))
        usable = sum(node.usable and node.index not in wanted for node in self.cluster.nodes)
        if usable < job.spec.nodes:  # as such scripts do when a job does not start: begin anew
            wanted = named & set(attempt.nodes)
        self.cluster.requeue(job, by=self.name)
        self.cluster.exclude(job, wanted | job.spec.avoids)


class Person(Nobody):
    name = "person"

    def go_on(self, job: SimJob, attempt: SimAttempt) -> None:
        sigma = sqrt(2 * log(PERSON_MEAN_SECONDS / PERSON_MEDIAN_SECONDS))
        wait = self.random(job, attempt).lognormvariate(log(PERSON_MEDIAN_SECONDS), sigma)
        self.cluster.at(self.cluster.now + wait, self._look, job, attempt)

    def _look(self, job: SimJob, attempt: SimAttempt) -> None:
        if job.over or job.last is not attempt:
            return
        random = self.cluster.world.stream("look", job.spec.job_id, attempt.number)
        found, stops = random.random() < PERSON_FINDS, random.random() < PERSON_STOPS
        if attempt.fault is not None and attempt.fault.cause.hopeless and stops:
            self.cluster.cancel(job, by=self.name)
            return
        self.cluster.requeue(job, by=self.name, exclude=culprits(attempt.fault) if found else ())


class Bound(Nobody):
    name = "bound"

    def attempt_failed(self, job: SimJob, attempt: SimAttempt) -> None:
        # Not from within what happens to the attempt: after it, at the same moment.
        self.cluster.at(self.cluster.now, self._at_once, job, attempt)

    def attempt_ended(self, job: SimJob, attempt: SimAttempt) -> None:
        if attempt.state is AttemptState.NODE_FAILURE:
            self.cluster.exclude(job, self._bad() | job.spec.avoids)

    def _at_once(self, job: SimJob, attempt: SimAttempt) -> None:
        if job.last is not attempt or attempt.fault is None:
            return
        if attempt.fault.cause.hopeless:
            self.cluster.cancel(job, by=self.name)
            return
        self.cluster.requeue(job, by=self.name)
        self.cluster.exclude(job, self._bad() | job.spec.avoids)
        for index in attempt.fault.nodes if attempt.fault.cause.shape is Shape.GONE else ():
            self.cluster.set_down(index)  # so that nothing waits for it

    def _bad(self) -> set[int]:
        return {node.index for node in self.cluster.nodes if node.bad is not None and node.bad.own_hardware}


def nonsense_noticed_after(cluster: Cluster, job: SimJob, attempt: SimAttempt) -> float:
    """Seconds until somebody sees by himself that the numbers are no numbers; the same whoever else is there."""
    random = cluster.world.stream("nonsense", job.spec.job_id, attempt.number)
    return random.expovariate(1 / NONSENSE_NOTICED_SECONDS)


def culprits(fault: Fault | None) -> tuple[int, ...]:
    """The nodes that are truly to blame."""
    return fault.nodes if fault is not None and fault.cause.place is Place.NODE else ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    name: str
    make: Callable[[Cluster], Nobody]


OPERATORS = tuple(Made(name=kind.name, make=kind) for kind in (Nobody, Excluder, Person, Bound))
