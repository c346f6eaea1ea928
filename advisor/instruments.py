"""What the service measures of itself and of recoveries, in Prometheus' terms. `docs/metrics.md` says what for.

Labels are words of ours and names of clusters and sources, never of jobs, users or nodes: what is counted stays small
however many of them there are. Seconds and bytes, as Prometheus' conventions want it. One `Instruments` per process.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, PlatformCollector, ProcessCollector
from prometheus_client.gc_collector import GCCollector

from advisor.core.model import Decision, Job, Unavailable
from advisor.core.words import AttemptState, IncidentKind
from advisor.ports import Clock, LogBatch, MetricsBatch
from advisor.recoveries import RESTART, STEPS, WHOLE, Passed, Recoveries
from advisor.sighting import Sighting
from advisor.store.records import (
    AttemptKey,
    Milestone,
    MilestoneKind,
    ReconciliationReason,
    ReconciliationStatus,
)

PREFIX = "recovery_advisor"

_TICK_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_RECOVERY_BUCKETS = (0.25, 0.5, 1, 2, 3, 5, 10, 15, 30, 60, 120, 300, 600, 1800, 3600, 14_400)
_CALL_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
_KNOWN_MAX = 100_000


class Instruments:
    """Counters and histograms; `registry` holds them all and is what `/metrics` shows."""

    def __init__(self, clock: Clock, *, version: str = "", build: str = "") -> None:
        self._clock = clock
        self._began_at = clock.now()
        self._recoveries = Recoveries(self._began_at)
        self._over: set[AttemptKey] = set()
        self._new: set[AttemptKey] = set()
        self._clusters: set[str] = set()
        self.registry = registry = CollectorRegistry(auto_describe=True)
        ProcessCollector(registry=registry)
        PlatformCollector(registry=registry)
        GCCollector(registry=registry)

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"{PREFIX}_{name}", text, labels, registry=registry)

        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(f"{PREFIX}_{name}", text, labels, registry=registry)

        def histogram(name: str, text: str, buckets: Sequence[float], *labels: str) -> Histogram:
            return Histogram(f"{PREFIX}_{name}", text, labels, buckets=buckets, registry=registry)

        gauge("build_info", "1, with what runs.", "version", "build").labels(version, build).set(1)
        # the tick
        self._ticks = counter("ticks", "Ticks, by whether they completed.", "outcome")
        self._tick = histogram("tick_duration_seconds", "Time of one whole tick.", _TICK_BUCKETS)
        self._stage = histogram("tick_stage_duration_seconds", "Time of one stage of a tick.", _TICK_BUCKETS, "stage")
        self._failures = counter("attempt_failures", "Attempts whose own part of a tick failed.")
        self.tick_age = gauge("tick_age_seconds", "Since a tick last completed or got on.")
        self.oldest_tick_age = gauge(
            "oldest_tick_age_seconds", "The same of the replica whose tick is oldest and that holds jobs."
        )
        self.watched = gauge("watched_attempts", "Attempts that the last tick looked at.")
        self.unwatched = gauge(
            "unwatched_attempts", "Attempts that no replica has room to look at (tick.attempts_max)."
        )
        self.failing = gauge("failing_attempts", "Attempts whose own part of the last tick failed.")
        # replicas
        self._turns_lost = counter("leases_lost", "Ticks that were dropped because this replica's lease had run out.")
        self._inherited = counter("jobs_taken_over", "Jobs taken over from replicas that had died.")
        self.jobs_held = gauge("jobs_held", "Jobs whose lease this replica has.")
        self.replicas_live = gauge("replicas_live", "Replicas that live and tick, as this one sees it.")
        self.replicas_lost = gauge("replicas_lost", "Replicas that died in the last hours and were not replaced.")
        # sources
        self._asked = histogram(
            "source_request_duration_seconds", "Time of one request to a source.", _CALL_BUCKETS, "source"
        )
        self._answers = counter(
            "source_answers",
            "Answers of a source about one attempt; reason is empty when it gave one.",
            "source",
            "reason",
        )
        self._bytes = counter("source_read_bytes", "Bytes of log that a source gave.", "source")
        self._samples = counter("source_samples", "Samples that a metrics source gave.", "source")
        self.source_up = gauge("source_up", "1 while a source serves anybody.", "source")
        self.source_newest = gauge("source_answered_timestamp_seconds", "When a source answered last.", "source")
        # the four steps
        self._incidents = counter("incidents", "Incidents opened.", "kind")
        self._decisions = counter("decisions", "Decisions committed.", "action", "category", "reason", "mode")
        self._conflicts = counter("decision_conflicts", "Decisions that another one overtook.")
        self._capped = counter("isolation_withheld", "Nodes that a decision named and that a cap or a rule held back.")
        self._opened = counter("isolations_opened", "Nodes isolated for the cluster.", "cluster", "dry_run")
        self._refused = counter("isolations_refused", "Wanted isolations that caps or the breaker refused.", "cluster")
        # what asking costs the scheduler
        self._rpcs = counter("scheduler_rpcs", "RPCs that agents sent to the scheduler.", "cluster")
        self._rpcs_told: dict[tuple[str, str], int] = {}
        # what came of it
        self._reconciled = counter("advice_reconciled", "Reports of agents about advice.", "status", "reason")
        self._steps = histogram(
            "recovery_stage_duration_seconds", "Stages of recoveries, as they end.", _RECOVERY_BUCKETS, "stage"
        )
        self._recovery = histogram(
            "recovery_duration_seconds", "From the fault's being visible to the first new progress.", _RECOVERY_BUCKETS
        )
        self._notices = counter("notifications", "Messages to people, by what became of them.", "channel", "outcome")
        self._sealed = counter("sealed_rows", "Rows of the audit that were sealed.")
        self._seal_failures = counter("seal_failures", "Rounds of the sealer that failed.")
        # what operators of training jobs know by these names
        self._created = counter("jobs_created", "Jobs seen for the first time.", "cluster")
        self._successful = counter("jobs_successful", "Attempts that completed.", "cluster")
        self._failed = counter(
            "jobs_failed", "Attempts that ended otherwise, cancelled ones left out.", "cluster", "state"
        )
        self._deleted = counter("jobs_deleted", "Attempts that were cancelled.", "cluster")
        self._restarted = counter("jobs_restarted", "Restarts that the scheduler accepted from us.", "cluster")
        self._detection = histogram(
            "jobs_fault_detection_latency_seconds", "From a fault's being visible to its detection.", _RECOVERY_BUCKETS
        )
        self._restart = histogram(
            "jobs_restart_latency_seconds", "From detection to the next attempt's running.", _RECOVERY_BUCKETS
        )
        # as the last scrape found them
        self.store_up = gauge("store_up", "1 when the database answered this scrape.")
        self.open_incidents = gauge("open_incidents", "Incidents that are open.")
        self.open_advice = gauge("open_advice", "Advice that an agent may act on.", "cluster")
        self.isolated = gauge("isolated_nodes", "Nodes isolated now.", "cluster")
        self.breaker = gauge(
            "isolation_breaker_tripped", "1 while the breaker keeps nodes from being isolated.", "cluster"
        )
        self.paused = gauge("paused", "1 while nothing is acted on; cluster is empty for all.", "cluster")
        self.autonomous = gauge("autonomous_settings", "Mode settings that let the agent act.")
        self.agent_seen = gauge("agent_last_seen_timestamp_seconds", "When an agent spoke last.", "cluster", "host")
        self.agent_acts = gauge("agent_may_act", "1 when the agent may act and has the rights.", "cluster", "host")
        self.agent_stopped = gauge(
            "agent_stop_file", "1 while the agent's stop file is there: nothing is done.", "cluster", "host"
        )
        self.as_stored = (
            self.open_advice,
            self.isolated,
            self.breaker,
            self.paused,
            self.agent_seen,
            self.agent_acts,
            self.agent_stopped,
        )
        self._calls = histogram("call_duration_seconds", "Calls answered.", _CALL_BUCKETS, "method", "code")

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Times one stage of a tick, also when it fails."""
        began = self._clock.monotonic()
        try:
            yield
        finally:
            self._stage.labels(name).observe(self._clock.monotonic() - began)

    def tick_completed(self, took_seconds: float, *, watched: int, failing: int, unwatched: int = 0) -> None:
        self._ticks.labels("completed").inc()
        self._tick.observe(took_seconds)
        self.watched.set(watched)
        self.failing.set(failing)
        self.unwatched.set(unwatched)

    def turn_taken(self, *, held: int, live: int, taken_over: int) -> None:
        self.jobs_held.set(held)
        self.replicas_live.set(live)
        self._inherited.inc(taken_over)

    def lease_lost(self) -> None:
        self._turns_lost.inc()

    def tick_failed(self) -> None:
        self._ticks.labels("failed").inc()

    def attempt_failed(self) -> None:
        self._failures.inc()

    def source_answered(
        self, source: str, seconds: float, answers: Mapping[str, LogBatch | MetricsBatch | Unavailable]
    ) -> None:
        """One request to a source, with what it gave about each attempt."""
        self._asked.labels(source).observe(seconds)
        read, samples = 0, 0
        reasons: dict[str, int] = {}
        for answer in answers.values():
            match answer:
                case Unavailable():
                    reasons[answer.reason.value] = reasons.get(answer.reason.value, 0) + 1
                    continue
                case LogBatch():
                    # What a defective connector gives instead of bytes is noticed where its attempt is looked at.
                    read += sum(len(chunk.data) for chunk in answer.chunks if isinstance(chunk.data, bytes))
                case MetricsBatch():
                    samples += len(answer.samples)
            reasons[""] = reasons.get("", 0) + 1
        for reason, count in reasons.items():
            self._answers.labels(source, reason).inc(count)
        self._bytes.labels(source).inc(read)
        self._samples.labels(source).inc(samples)

    def decided(self, decision: Decision, *, first: bool) -> None:
        """A decision was committed; `first`: of its attempt."""
        self._decisions.labels(
            decision.action.value,
            decision.attribution.category.value,
            decision.reason.value,
            decision.mode.value,
        ).inc()
        self._capped.inc(len(decision.isolation.withheld))
        if first and decision.incident.kind is not IncidentKind.NONE:
            self._incidents.labels(decision.incident.kind.value).inc()

    def conflicted(self) -> None:
        self._conflicts.inc()

    def isolations_judged(self, cluster: str, *, opened: int, on_paper: int, refused: int) -> None:
        self._opened.labels(cluster, "false").inc(opened)
        self._opened.labels(cluster, "true").inc(on_paper)
        self._refused.labels(cluster).inc(refused)

    def scheduler_asked(self, cluster: str, session: str, total: int) -> None:
        """`total` RPCs since that agent's start; what it sent before we first heard of it is not counted."""
        before = self._rpcs_told.get((cluster, session), total)
        self._rpcs_told = {key: told for key, told in self._rpcs_told.items() if key[0] != cluster}
        self._rpcs_told[cluster, session] = total
        self._rpcs.labels(cluster).inc(max(total - before, 0))

    def reconciled(self, status: str, reason: str) -> None:
        self._reconciled.labels(status, reason).inc()

    def notified(self, channel: str, outcome: str) -> None:
        self._notices.labels(channel, outcome).inc()

    def sealed(self, rows: int) -> None:
        self._sealed.inc(rows)

    def seal_failed(self) -> None:
        self._seal_failures.inc()

    def called(self, method: str, code: str, seconds: float) -> None:
        self._calls.labels(method, code).observe(seconds)

    def sighted(self, sightings: Sequence[Sighting]) -> tuple[tuple[Job, Passed], ...]:
        """Attempts as the tick loaded them: jobs that came, attempts that ended, stages that others reported."""
        passed: list[tuple[Job, Passed]] = []
        for sighting in sightings:
            item = sighting.item
            self._from_zero(item.job.cluster)
            if item.milestones:
                passed += ((item.job, one) for one in self.reached(item.job.cluster, item.key, item.milestones))
            submitted_at = item.attempt.submitted_at
            came = item.key.number == 0 and submitted_at is not None and submitted_at >= self._began_at
            if came and _added(self._new, item.key):
                self._created.labels(item.job.cluster).inc()
            ended_at = item.attempt.ended_at
            if not item.attempt.state.ended or ended_at is None or ended_at < self._began_at:
                continue
            if _added(self._over, item.key):
                self._ended(item.job.cluster, item.attempt.state)
        return tuple(passed)

    def _from_zero(self, cluster: str) -> None:
        """A series that begins at one has not increased, for Prometheus: those that alerts ask about begin at zero."""
        if cluster in self._clusters:
            return
        self._clusters.add(cluster)
        for counter in (self._created, self._successful, self._deleted, self._restarted, self._refused):
            counter.labels(cluster)
        for state in AttemptState:
            if state.ended and state not in {AttemptState.COMPLETED, AttemptState.CANCELLED}:
                self._failed.labels(cluster, state.value)
        for status in (ReconciliationStatus.WITHHELD, ReconciliationStatus.ABANDONED, ReconciliationStatus.PENDING):
            for reason in (ReconciliationReason.SCHEDULER_REFUSED, ReconciliationReason.PERMISSION):
                self._reconciled.labels(status.value, reason.value)

    def channel(self, name: str) -> None:
        """Messages will go to this channel."""
        for outcome in ("sent", "failed", "given_up"):
            self._notices.labels(name, outcome)

    def _ended(self, cluster: str, state: AttemptState) -> None:
        match state:
            case AttemptState.COMPLETED:
                self._successful.labels(cluster).inc()
            case AttemptState.CANCELLED:
                self._deleted.labels(cluster).inc()
            case _:
                self._failed.labels(cluster, state.value).inc()

    def reached(
        self, cluster: str, key: AttemptKey, milestones: Mapping[MilestoneKind, datetime] | Sequence[Milestone]
    ) -> tuple[Passed, ...]:
        """Milestones of one attempt, in whatever order and how often they come."""
        if not isinstance(milestones, Mapping):
            milestones = {item.kind: item.at for item in milestones}
        passed = self._recoveries.note(key, milestones)
        for item in passed:
            seconds = item.took.total_seconds()
            if item.stage in STEPS:
                self._steps.labels(item.stage.name).observe(seconds)
            match item.stage.name:
                case WHOLE.name:
                    self._recovery.observe(seconds)
                case RESTART.name:
                    self._restart.observe(seconds)
                case "detect":
                    self._detection.observe(seconds)
                case "accept":
                    self._restarted.labels(cluster).inc()
        return passed


def _added(known: set[AttemptKey], key: AttemptKey) -> bool:
    """True the first time."""
    if key in known:
        return False
    if len(known) >= _KNOWN_MAX:
        known.clear()
    known.add(key)
    return True
