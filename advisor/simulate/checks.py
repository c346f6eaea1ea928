"""What must hold in every world, whatever was drawn. Independent of what decides: truth comes from the world.

Each breach is kept with the moment and the command that leads to it again.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from advisor.core.policy import Policy
from advisor.core.words import AttemptState, Mode
from advisor.simulate.cluster import USER, Cluster, SimAttempt, SimJob, SimNode
from advisor.simulate.figures import was_bad
from advisor.simulate.printing import moment
from advisor.simulate.world import DAY, Fault
from advisor.store.records import AdviceRow

WAITS_SECONDS_MAX = 2700.0  # the watchdog's half hour, and a quarter until the world looks again
COUNTED = 100  # past attempts that the ceiling counts
REQUEUE_OF = (AttemptState.FAILED, AttemptState.NODE_FAILURE, AttemptState.OUT_OF_MEMORY, AttemptState.RUNNING)


@dataclass(frozen=True, slots=True, kw_only=True)
class Breach:
    invariant: str
    at: float
    detail: str


class Checks:
    """A `Watcher`, and asked before every act of the agent. `breaches` stays empty."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self.breaches: list[Breach] = []
        self.looks = 0
        self.acts: Counter[str] = Counter()
        self._requeued: set[tuple[str, int]] = set()
        self._open: set[str] = set()

    def _broken(self, cluster: Cluster, invariant: str, detail: str) -> None:
        if len(self.breaches) < 100:
            self.breaches.append(Breach(invariant=invariant, at=cluster.now, detail=detail))

    # before acts

    def requeuing(self, cluster: Cluster, job: SimJob, row: AdviceRow) -> None:
        """At most one requeue per attempt, never of a cancelled or finished one, within the ceiling."""
        self.acts["requeue"] += 1
        attempt = job.last
        self._told(cluster, job, row)
        if job.stopped_by == USER:
            self._broken(cluster, "a user's cancel stands", f"job {job.spec.job_id} attempt {attempt.number}")
        if (job.spec.job_id, attempt.number) in self._requeued:
            self._broken(cluster, "one requeue per attempt", f"job {job.spec.job_id} attempt {attempt.number}")
        self._requeued.add((job.spec.job_id, attempt.number))
        if attempt.state not in REQUEUE_OF:
            self._broken(cluster, "only what failed is restarted", f"job {job.spec.job_id} is {attempt.state}")
        broken = any(cluster.nodes[index].bad is not None for index in attempt.nodes)  # it will fail of it soon
        if attempt.live and attempt.failed_at is None and attempt.spoiled is None and not broken:
            self._broken(
                cluster, "no healthy attempt is ended", f"job {job.spec.job_id}: {row.decision.attribution.root_cause}"
            )
        counted = job.attempts[-COUNTED - 1 :]
        earned = _node_days(counted, cluster.now) * self._policy.restarts_ceiling_per_1000_node_days / 1000
        paid = len(counted) - 1 - _free(counted)  # restarts before this one
        if not row.decision.free and paid >= self._policy.restarts_ceiling + earned:
            self._broken(cluster, "restarts are bounded", f"job {job.spec.job_id} attempt {attempt.number}")

    def stopping(self, cluster: Cluster, job: SimJob, row: AdviceRow) -> None:
        """A job whose infrastructure failed is never stopped."""
        self.acts["stop"] += 1
        self._told(cluster, job, row)
        attempts = [attempt for attempt in job.attempts if attempt.fault is not None]
        fault = attempts[-1].fault if attempts else None
        if fault is None or not fault.cause.hopeless:
            what = fault.cause.name if fault is not None else "nothing"
            self._broken(
                cluster, "no false stop", f"job {job.spec.job_id}: {what} was {row.decision.attribution.root_cause}"
            )

    def excluding(self, cluster: Cluster, job: SimJob, wanted: Iterable[int], row: AdviceRow) -> None:
        """Exclusions stay within their bound, name only nodes that the job has had, and keep what its user excludes."""
        self._told(cluster, job, row)
        nodes = set(wanted) - job.spec.avoids
        if not job.spec.avoids <= set(wanted):
            self._broken(cluster, "a user's own exclusions are kept", f"job {job.spec.job_id}")
        had = {index for attempt in job.attempts for index in attempt.nodes}
        if nodes - had:
            self._broken(
                cluster, "evidence names the job's own nodes", f"job {job.spec.job_id}: {sorted(nodes - had)[:5]}"
            )
        if len(nodes) > self._policy.exclusions_per_job_max:
            self._broken(cluster, "exclusions are bounded", f"job {job.spec.job_id}: {len(nodes)} nodes")

    def isolating(self, cluster: Cluster, index: int) -> None:
        """Caps of isolation hold at every moment, and only what was broken is isolated."""
        self.acts["isolate"] += 1
        if not was_bad(cluster, index, cluster.now):
            self._broken(cluster, "no healthy node is isolated", cluster.world.name_of(index))
        held = sum(node.drained == "advisor" for node in cluster.nodes) + 1
        most = max(
            min(self._policy.isolations_max, int(len(cluster.nodes) * self._policy.isolations_percent_max / 100)), 1
        )
        if held > most:
            self._broken(cluster, "isolation is capped", f"{held} nodes are isolated, at most {most}")

    def undraining(self, cluster: Cluster, index: int) -> None:
        """A drain of somebody else is his to end."""
        by = cluster.nodes[index].drained
        if by != "advisor":
            self._broken(cluster, "drains of others stay", f"{cluster.world.name_of(index)} is drained by {by!r}")

    def offered(self, rows: Iterable[AdviceRow]) -> None:
        """All advice that is open now, as the store has it, whatever the agent was told."""
        self._open = {row.advice_id for row in rows}

    def _told(self, cluster: Cluster, job: SimJob, row: AdviceRow) -> None:
        """Nothing is done without open advice, for this attempt or its waiting successor, that may be acted on."""
        last, number, what = job.last, row.attempt.number, f"job {job.spec.job_id} attempt {job.last.number}"
        if row.advice_id not in self._open or row.expires_at <= moment(cluster.now):
            self._broken(cluster, "no act without open advice", f"{what}, generation {row.generation}")
        if last.number != number and not (last.number == number + 1 and last.state is AttemptState.PENDING):
            self._broken(cluster, "advice is for its own attempt", f"{what} by advice for attempt {number}")
        if row.decision.mode is not Mode.AUTONOMOUS:
            self._broken(cluster, "monitor mode touches nothing", what)

    def replayed(self, cluster: Cluster, what: str, same: bool) -> None:
        """The same inputs give the same bytes."""
        self.acts["replay"] += 1
        if not same:
            self._broken(cluster, "decisions can be replayed", what)

    def looked(self, cluster: Cluster) -> None:
        """No job waits on us past its deadline, if it could never start with our exclusions; none waits for long for
        nodes that others hold while those that we exclude are free.
        """
        self.looks += 1
        for job in cluster.pending:
            attempt = job.last
            waits = cluster.now - attempt.eligible_at
            if waits <= self._policy.decision_deadline_seconds or not job.excluded:
                continue
            usable = [node for node in cluster.nodes if node.usable]
            for nodes in (usable, [node for node in usable if node.job is None and waits > WAITS_SECONDS_MAX]):
                if len(nodes) >= job.spec.nodes > sum(node.index not in job.excluded for node in nodes):
                    self._broken(cluster, "fail open", f"job {job.spec.job_id} waits {waits:.0f} s for our exclusions")
                    break

    # Watcher

    def started(self, job: SimJob, attempt: SimAttempt) -> None:
        self.acts["start"] += 1

    def failing(self, job: SimJob, attempt: SimAttempt, fault: Fault) -> None:
        self.acts["failure"] += 1

    def ended(self, job: SimJob, attempt: SimAttempt) -> None:
        self.acts["end"] += 1

    def requeued(self, job: SimJob, attempt: SimAttempt, by: str) -> None:
        pass

    def node_changed(self, node: SimNode) -> None:
        pass


def _node_days(attempts: Iterable[SimAttempt], now: float) -> float:
    """That the scheduler gave the job."""
    ran = ((attempt, attempt.started_at) for attempt in attempts)
    return sum(
        len(attempt.nodes) * ((now if attempt.ended_at is None else attempt.ended_at) - started) / DAY
        for attempt, started in ran
        if started is not None
    )


def _free(attempts: Iterable[SimAttempt]) -> int:
    """Attempts that the scheduler ended: they spend no budget."""
    ended = (AttemptState.NODE_FAILURE, AttemptState.PREEMPTED)
    return sum(attempt.state in ended for attempt in attempts)
