"""What came of a world: effective training time and its parts, nodes and GPU-hours lost, stops right and wrong."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass

from advisor.simulate.cluster import USER, Cluster, SimAttempt, SimJob
from advisor.simulate.world import DAY, HOUR


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """Where the wall-clock time of one job went, in seconds. They add up to it, but for the attempt that goes on."""

    useful: float = 0.0  # steps that are kept
    saving: float = 0.0
    starting: float = 0.0  # from the scheduler's start to the first step
    noticing: float = 0.0  # from a failure to the end of its attempt
    deciding: float = 0.0  # from that end to the requeue
    waiting: float = 0.0  # for the scheduler
    repeated: float = 0.0  # steps trained twice, or for nothing

    @property
    def wall(self) -> float:
        return float(sum(asdict(self).values()))


def parts_of(cluster: Cluster, job: SimJob, until: float) -> Parts:
    spec = job.spec
    useful_steps = kept_steps(cluster, job, until)
    starting = noticing = deciding = waiting = saving = trained = 0.0
    for attempt, after in zip(job.attempts, (*job.attempts[1:], None), strict=True):
        started = attempt.started_at if attempt.started_at is not None else until
        waiting += max(started - attempt.submitted_at, 0.0)
        if attempt.started_at is None:
            continue
        ended = attempt.ended_at if attempt.ended_at is not None else until
        stands = min(attempt.failed_at if attempt.failed_at is not None else ended, ended)
        first = min(attempt.started_at + cluster.world.scenario.initialise_seconds, stands)
        starting += first - attempt.started_at
        steps = cluster.steps(job, attempt, until) - attempt.resume
        trained += steps * spec.step_seconds
        saving += max(stands - first - steps * spec.step_seconds, 0.0)
        noticing += ended - stands
        if after is not None:
            deciding += max(after.submitted_at - ended, 0.0)
    useful = useful_steps * spec.step_seconds
    return Parts(
        useful=useful,
        saving=saving,
        starting=starting,
        noticing=noticing,
        deciding=deciding,
        waiting=waiting,
        repeated=max(trained - useful, 0.0),
    )


def kept_steps(cluster: Cluster, job: SimJob, until: float) -> int:
    """What a training has to show for its time: the steps of the attempt that goes on, or the last checkpoint."""
    attempt = job.last
    if attempt.live and attempt.failed_at is None:
        step = cluster.steps(job, attempt, until)
        return step if attempt.spoiled is None else min(step, attempt.spoiled)
    if attempt.started_at is None:
        return attempt.resume
    return cluster.saved(job, attempt, until)


def ettr(cluster: Cluster, job: SimJob, until: float) -> float:
    """Effective training time ratio: time in steps that are kept, of all time since submission."""
    return kept_steps(cluster, job, until) * job.spec.step_seconds / max(until - job.spec.submitted_at, 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Of one operator in one world."""

    ettr: float
    parts: Parts
    failures: int
    failures_of_nodes: int
    retries_per_incident: float  # attempts that failed of the same cause and place again, per failure
    gpu_hours_lost: float  # allocated, or waited for, and not kept; all jobs
    wrong_exclusions: int  # healthy nodes that a job was kept from, summed over its attempts
    healthy_nodes_isolated: int
    false_stops: int
    hopeless: int
    hopeless_stopped: int
    attempts_of_hopeless: int
    finished: int
    node_days: float


def figures_of(cluster: Cluster, *, isolated: Iterable[tuple[int, float]] = (), until: float) -> Figures:
    """`isolated`: (node, when) of each isolation for the cluster."""
    scenario = cluster.world.scenario
    big = cluster.jobs.get("1")
    failed = [(job, attempt) for job in cluster.jobs.values() for attempt in job.attempts if attempt.fault is not None]
    again = sum(_again(job, attempt) for job, attempt in failed)
    left = [job for job in cluster.jobs.values() if job.stopped_by != USER]  # not cancelled by their own users
    hopeless = [job for job in left if job.spec.mistake is not None and _showed(job) and not _is_confirmed(job)]
    stopped = [job for job in left if job.stopped_by]
    lost = 0.0
    for job in cluster.jobs.values():
        parts = parts_of(cluster, job, until)
        lost += (parts.wall - parts.useful) * job.spec.nodes * scenario.gpus_per_node / HOUR
    return Figures(
        ettr=ettr(cluster, big, until) if big is not None else 0.0,
        parts=parts_of(cluster, big, until) if big is not None else Parts(),
        failures=len(failed),
        failures_of_nodes=sum(attempt.fault.own_hardware for _, attempt in failed if attempt.fault is not None),
        retries_per_incident=again / max(len(failed), 1),
        gpu_hours_lost=lost,
        wrong_exclusions=sum(wrongly_excluded(cluster, job) for job in cluster.jobs.values()),
        healthy_nodes_isolated=sum(not was_bad(cluster, node, at) for node, at in isolated),
        false_stops=sum(not _hopeless_now(job) for job in stopped),
        hopeless=len(hopeless),
        hopeless_stopped=sum(bool(job.stopped_by) for job in hopeless),
        attempts_of_hopeless=sum(len(job.attempts) for job in hopeless),
        finished=sum(job.finished for job in cluster.jobs.values()),
        node_days=scenario.nodes * until / DAY,
    )


def was_bad(cluster: Cluster, index: int, at: float) -> bool:
    """Whether the node's own hardware had failed within a day before, or was broken."""
    return any(
        fault.own_hardware and index in fault.nodes and fault.at <= at <= max(fault.bad_until, fault.at) + DAY
        for fault in cluster.world.faults
    )


def wrongly_excluded(cluster: Cluster, job: SimJob) -> int:
    """Nodes that the job avoids at the end of the world although nothing was ever wrong with them."""
    return sum(not was_ever_bad(cluster, index) for index in job.excluded - job.spec.avoids)


def was_ever_bad(cluster: Cluster, index: int) -> bool:
    return any(fault.own_hardware and index in fault.nodes for fault in cluster.world.faults)


def _again(job: SimJob, attempt: SimAttempt) -> bool:
    before = job.attempts[attempt.number - 1].fault if attempt.number else None
    return before is not None and attempt.fault is not None and before.number == attempt.fault.number


def _showed(job: SimJob) -> bool:
    return any(attempt.fault is not None and attempt.fault.cause.hopeless for attempt in job.attempts)


def _is_confirmed(job: SimJob) -> bool:
    """It has failed once and runs or waits for the one retry that shows whether it fails again, when the world ends."""
    failures = sum(attempt.fault is not None and attempt.fault.cause.hopeless for attempt in job.attempts)
    return failures == 1 and not job.over and job.last.ended_at is None


def _hopeless_now(job: SimJob) -> bool:
    fault = job.last.fault
    return fault is not None and fault.cause.hopeless


def lemons_of(cluster: Cluster, *, failures: int = 3, days: float = 30.0) -> frozenset[int]:
    """Nodes whose own hardware failed so often within so many days, jobs being on them: what is to be found."""
    return frozenset(node.index for node in cluster.nodes if _often(sorted(node.failures.values()), failures, days))


def _often(moments: Sequence[float], failures: int, days: float) -> bool:
    pairs = zip(moments, moments[failures - 1 :], strict=False)
    return any(last - first <= days * DAY for first, last in pairs)
