"""What an attempt's situation is, in the words that the decision table asks in.

Each property answers one question from the snapshot and the three steps before; none of them decides anything.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta

from advisor.core import hang, orders
from advisor.core.before_end import save_until
from advisor.core.budgets import Spent, durable_progress, spent
from advisor.core.detection import unsaved
from advisor.core.divergence import checkpoint_before
from advisor.core.job_rules import is_asked_hang
from advisor.core.model import Attribution, Incident, Isolation, OpenAdvice, Order, OurStop, Signal, Snapshot, Successor
from advisor.core.policy import Policy
from advisor.core.traceless import INFRASTRUCTURE, blameless
from advisor.core.words import Action, AttemptState, Category, IncidentKind, Mode, OrderKind, Reason, Role, Trust

_SCHEDULER_ENDED = frozenset({AttemptState.PREEMPTED, AttemptState.NODE_FAILURE, AttemptState.TIME_LIMIT})
_UPDATABLE = frozenset({AttemptState.PENDING, AttemptState.COMPLETING})
_HARDWARE = frozenset({Category.GPU_HARDWARE, Category.NODE_HARDWARE, Category.INTERCONNECT})

_SKEW = timedelta(
    seconds=5
)  # two clocks differ by less; kernel records of so long before an attempt are read as its own
_TO_SHOW_LIFE = timedelta(seconds=300)
_GUESS = 0.5
_LATE = timedelta(seconds=60)  # from a record to its being read: longer than sources usually take


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """One attempt at one moment. `spent` is what its past attempts cost."""

    snapshot: Snapshot
    incident: Incident
    attribution: Attribution
    isolation: Isolation
    policy: Policy
    now: datetime
    spent: Spent

    # who did what

    @property
    def state(self) -> AttemptState:
        return self.snapshot.attempt.state

    @property
    def cancelled(self) -> bool:
        """By its user or an administrator: this attempt, or the successor that somebody then cancelled."""
        if self.state is AttemptState.CANCELLED:
            return not self.snapshot.stopped_by_us
        if self.successor_cancelled:
            return not self.successor_stopped
        # The scheduler's own state outranks a log line that says "CANCELLED".
        return self.attribution.category is Category.USER_CANCEL and self.state not in _SCHEDULER_ENDED

    @property
    def held(self) -> bool:
        """Held or suspended. We never place a hold, so it is somebody else's."""
        held_states = {AttemptState.REQUEUE_HELD, AttemptState.SUSPENDED}
        successor = self.snapshot.successor
        return (
            self.snapshot.attempt.held
            or self.state in held_states
            or (successor is not None and (successor.held or successor.state is AttemptState.SUSPENDED))
        )

    @property
    def kept_by_scheduler(self) -> bool:
        """The scheduler itself put the failed attempt back and keeps it until somebody releases it: a rule of the
        site's for certain exit codes, nobody's hold. So it failed, nobody has requeued it, and our word is waited for.
        """
        successor = self.snapshot.successor
        return successor is not None and successor.state is AttemptState.REQUEUE_HELD and not successor.held

    @property
    def our_restart(self) -> OpenAdvice | None:
        """Our advice to restart this attempt, once it was followed."""
        advice, successor = self.snapshot.advice, self.snapshot.successor
        if advice is None or advice.action is not Action.RESTART:
            return None
        # Where an agent acts, a successor that carries no mark yet is ours too: the agent died, or is about to mark it.
        # And an attempt that is ending while it is to be restarted is most likely ended by us: whether the scheduler
        # accepted it is on its way here. The agent waits with an ending attempt until it knows who ended it.
        told = self.snapshot.job.mode is Mode.AUTONOMOUS
        begun = (successor is not None and (successor.by_us or told)) or (told and self.outcome_unknown)
        return advice if advice.applied or begun else None

    @property
    def our_stop(self) -> OurStop | None:
        """Our stop of this attempt, where it may have been carried out: the end that is seen is ours until an agent
        says that it had nothing to do.
        """
        stop = self.snapshot.stop
        if stop is None or stop.unreported or stop.attempt != self.snapshot.attempt.number:
            return None
        if self.successor is not None:
            return stop if self.successor_cancelled else None
        return stop if self.state is AttemptState.CANCELLED or self.outcome_unknown else None

    @property
    def stop_accepted(self) -> bool:
        return self.snapshot.stop is not None and self.snapshot.stop.applied

    @property
    def stop_unreported(self) -> bool:
        """It was cancelled while our stop was out, and whether by that nobody knows."""
        stop = self.snapshot.stop
        if stop is None or not stop.unreported:
            return False
        if stop.attempt == self.snapshot.attempt.number and self.successor is not None:
            return self.successor_cancelled
        return self.state is AttemptState.CANCELLED

    @property
    def successor_cancelled(self) -> bool:
        return self.successor is not None and self.successor.state is AttemptState.CANCELLED

    @property
    def successor_stopped(self) -> bool:
        """The successor was cancelled by us: by our stop of this attempt, or by one of its own."""
        after = self.successor
        return after is not None and self.successor_cancelled and (after.stopped or self.our_stop is not None)

    @property
    def veto(self) -> Order | None:
        return orders.newest(self.snapshot.orders, OrderKind.VETO)

    @property
    def override(self) -> Order | None:
        return orders.newest(self.snapshot.orders, OrderKind.OVERRIDE)

    @property
    def ordered_restart(self) -> bool:
        return self.override is not None and self.override.action is Action.RESTART

    @property
    def ordered_stop(self) -> bool:
        """A job that others requeued is theirs to stop; our own restart of it may still be called off."""
        return self.override is not None and self.override.action is Action.STOP

    @property
    def stoppable(self) -> bool:
        ours = self.successor is None or (self.successor.by_us and self.successor_updatable)
        return ours and not self.outcome_unknown

    @property
    def _ordered_to_end(self) -> bool:
        """An operator ordered that this live attempt is ended. Never for a restart that could not follow."""
        order = self.override
        if order is None or not order.ends_live or self.state is not AttemptState.RUNNING:
            return False
        job = self.snapshot.job
        possible = job.batch is not False and job.requeueable is not False and not self.spent.at_ceiling
        return self.ordered_stop or (possible and not self.snapshot.dependents_running)

    @property
    def gives_back(self) -> bool:
        """The waiting successor avoids a node for our sake that an operator says it need not avoid."""
        if self.successor is None:
            return False
        avoided = set(self.successor.excluded_nodes) - set(self.snapshot.user_excluded)
        return not avoided.isdisjoint(orders.spared(self.snapshot.orders))

    @property
    def successor(self) -> Successor | None:
        return self.snapshot.successor

    @property
    def successor_updatable(self) -> bool:
        return self.successor is not None and self.successor.state in _UPDATABLE

    # how far it is with this attempt

    @property
    def complete(self) -> bool:
        """It reached its end: by its exit, or by its own word with no step known to be lost. What its processes printed
        and returned after that is teardown.
        """
        if self.state is AttemptState.COMPLETED:
            return True
        finished = self.snapshot.progress.finished and self.state is AttemptState.FAILED
        return finished and self.incident.kind is IncidentKind.NONE and not unsaved(self.snapshot)

    @property
    def outcome_unknown(self) -> bool:
        """Ended or ending, and it is not visible yet whether somebody cancelled it. Offline, evidence decides."""
        if self.snapshot.offline or self.kept_by_scheduler:
            return False
        ending = self.state in {AttemptState.COMPLETING, AttemptState.OTHER}
        return ending or (self.state.live and self.snapshot.attempt.ended_at is not None)

    @property
    def failed(self) -> bool:
        """The attempt is over and did not complete, or it may be ended by us."""
        if self.snapshot.offline and (not self.state.ended or self.incident.kind is IncidentKind.NONE):
            return self._failed_by_evidence
        return self.state.ended or self.kept_by_scheduler or self.may_end_live_attempt

    @property
    def _failed_by_evidence(self) -> bool:
        # A bundle is all there will ever be: nobody will come back and see the exit.
        attempt = self.snapshot.attempt
        exited = self.incident.ended or (
            attempt.exit is not None and (attempt.exit.code, attempt.exit.signal) != (0, 0)
        )
        silent = hang.silence(self.snapshot)
        match self.incident.kind:
            case IncidentKind.HANG:
                return True
            case IncidentKind.CRASH:
                gone_quiet = silent is not None and silent >= self.policy.offline_silence_seconds
                return exited or gone_quiet or not self.state.live
            case IncidentKind.DIVERGENCE:
                # NaN for good never ends by itself, and all that is computed from it is lost.
                lost = self.state.live and self.attribution.category is Category.NUMERICS
                return exited or (lost and not self.snapshot.progress.numbers.finite)
            case IncidentKind.STRAGGLER | IncidentKind.NONE:
                return False

    @property
    def may_end_live_attempt(self) -> bool:
        return self.hung_past_limit or self.fatal_hardware or self._ordered_to_end

    @property
    def hung_past_limit(self) -> bool:
        """A live attempt that shows no progress for longer than policy allows, as far as its log can be read."""
        since = self._hang_limit_at
        return since is not None and self.now >= since

    @property
    def _hang_limit_at(self) -> datetime | None:
        if self.incident.kind is not IncidentKind.HANG or self.state is not AttemptState.RUNNING:
            return None
        if any(report.trust is Trust.LOG and report.unavailable for report in self.snapshot.sources):
            return None  # silence of a log that cannot be read is not silence of the job
        asked = [item.seen_at for item in self.incident.signals if is_asked_hang(item)]
        if asked:
            return min(asked)  # the job has said itself how long its silence may be
        due = hang.expected(self.snapshot, self.policy)
        if due is not None:
            return due.ends_at
        # Nothing is expected of it, and yet a library says that it hangs: not before it has long said nothing new.
        told = min((item.seen_at for item in self.incident.signals), default=self.now)
        return hang.quiet_since(self.snapshot, told) + timedelta(seconds=self.policy.hang_startup_seconds)

    @property
    def fatal_hardware(self) -> bool:
        """A live attempt with trusted fatal hardware, and no progress for long enough since."""
        since = self._fatal_limit_at
        return since is not None and self.now >= since

    @property
    def _fatal_limit_at(self) -> datetime | None:
        if self.state is not AttemptState.RUNNING or self.attribution.category not in _HARDWARE:
            return None
        if not self.incident.trusted_fatal or not self.attribution.trusted or not self.attribution.nodes:
            return None
        records = [item for item in self.incident.signals if item.trust.trusted and item.id in self._evidence]
        times = [at for at in map(self._counts_from, records) if at is not None]
        if not times:
            return None
        progress = self.snapshot.progress
        quiet_since = max(min(times), progress.last_at) if progress.last_at is not None else min(times)
        # A job with long steps is not silent between two of them, nor one whose lines come late or not at all.
        usual = max(2 * (progress.interval_seconds or 0.0), hang.usual_silence(progress))
        wait = max(self.policy.trusted_fatal_grace_seconds, min(usual, self.policy.hang_seconds))
        ends_at = quiet_since + timedelta(seconds=wait)
        late = all(item.at is not None and item.seen_at - item.at > _LATE for item in records)
        due = hang.expected(self.snapshot, self.policy) if late and quiet_since > min(times) else None
        # What is read late of a fault that steps went on after did not stop them: then only a hang's limit counts.
        return ends_at if due is None else max(ends_at, due.ends_at)

    def _counts_from(self, signal: Signal) -> datetime | None:
        """From when a record can end a start-up. None: it was there when the attempt began, so it is of whoever had the
        node before, and of a part that may have been reset since.

        Clocks differ: what came just after, on a node that other jobs have suffered from, may be theirs as well. There
        the start-up gets time to show that it lives.
        """
        at, began = _time_of(signal), self.snapshot.attempt.started_at
        if began is None:
            return at
        came = min(at, signal.seen_at)
        if came <= began:
            return None
        if came > began + _SKEW:
            return at
        others = any(fact.other_jobs for fact in self.snapshot.nodes if fact.name in signal.nodes)
        return began + _TO_SHOW_LIFE if others else at

    @property
    def _evidence(self) -> frozenset[str]:
        return frozenset(self.attribution.evidence)

    # what it looks like

    @property
    def scheduler_event(self) -> bool:
        """The scheduler itself ended the attempt; what a log says about it does not count."""
        if self.state in _SCHEDULER_ENDED:
            return True
        return self.attribution.category is Category.SCHEDULER_EVENT and any(
            item.trust is Trust.SCHEDULER and item.id in self._evidence for item in self.incident.signals
        )

    @property
    def time_limit_in_vain(self) -> bool:
        """Ran into its time limit without getting anywhere, as far as is known."""
        return self.state is AttemptState.TIME_LIMIT and not durable_progress(
            self.snapshot.past, self.snapshot.progress
        )

    @property
    def excludes_new_nodes(self) -> bool:
        """This incident's own evidence adds nodes that the next attempt avoids."""
        return not set(self.attribution.nodes).isdisjoint(self.isolation.exclude_for_job)

    @property
    def budget_left(self) -> bool:
        spent, budget = self.spent, self.policy.restarts_per_root_cause
        if not blameless(self.attribution):
            return spent.root_cause < budget
        if 2 * spent.alike < spent.root_cause:
            # Now here, now there: few programs fail like that, and for twice as long they are believed.
            return spent.root_cause < 2 * max(budget, self.policy.restarts_unexplained)
        # At the same point whatever the nodes, or with a word of the program for it: that is the program.
        unknown = self.attribution.category is Category.UNKNOWN
        against_job = spent.confirmed or (unknown and (spent.elsewhere or self._said_something))
        return spent.alike < (budget if against_job else max(budget, self.policy.restarts_unexplained))

    @property
    def _said_something(self) -> bool:
        """The job's own output has a beginning of the failure, though none that tells whose it is."""
        return any(
            item.role is Role.INITIATING and not item.trust.trusted
            for item in self.incident.signals
            if item.id in self._evidence
        )

    @property
    def certain_to_fail_again(self) -> bool:
        """Certain by its kind, unless an earlier attempt shows that the job could start. A failure that is certain
        although this attempt took steps (an exceeded quota) needs no such doubt.
        """
        if not self.attribution.certain or self.attribution.trusted:
            return False
        started = self.snapshot.progress.last_step is not None
        return started or all(attempt.last_step is None for attempt in self.snapshot.past)

    @property
    def failed_alike_before(self) -> bool:
        """The same failure at the same progress, seen often enough to be sure that the job itself is the cause."""
        if self.attribution.trusted or self.attribution.category in INFRASTRUCTURE or not self.attribution.fingerprint:
            return False
        if self.attribution.category is not Category.UNKNOWN and self.attribution.confidence < _GUESS:
            return False  # a cause that is more likely another one is no proof against the job: its budget bounds it
        known_step = self.snapshot.progress.last_step is not None
        if not known_step and not self.attribution.deterministic:
            return False
        if self.attribution.category is Category.UNKNOWN and any(item.unavailable for item in self.snapshot.sources):
            return False  # what could not be read may be what tells the two failures apart
        enough = self.policy.confirmation_retries + (1 if self._retried_where_it_failed else 0)
        return self.spent.same_failure >= (enough if self.attribution.deterministic else max(1, enough))

    @property
    def _retried_where_it_failed(self) -> bool:
        """The retry that was to confirm it ran on nodes that it should have avoided: that proves nothing."""
        newest = next(reversed(self.snapshot.past), None)
        if newest is None or newest.reason is not Reason.CONFIRMATION_RETRY:
            return False
        avoided = set(newest.excluded_nodes) & set(newest.nodes)
        return not avoided.isdisjoint(self.snapshot.attempt.nodes or ())

    # when

    @property
    def settle_base(self) -> datetime | None:
        """From when on slower facts are awaited: the attempt's end or the first evidence, whichever is later; for a
        live attempt, when it could first be ended. Evidence that keeps coming never moves it.
        """
        ended_at = self.snapshot.attempt.ended_at
        if ended_at is None and self._may_end_at is not None:
            return self._may_end_at
        seen = min((item.seen_at for item in self.incident.signals), default=None)
        known = [moment for moment in (ended_at, self.incident.visible_at or seen) if moment is not None]
        return max(known, default=self.incident.detected_at)

    @property
    def _may_end_at(self) -> datetime | None:
        return min((at for at in (self._hang_limit_at, self._fatal_limit_at) if at is not None), default=None)

    @property
    def save_until(self) -> datetime | None:
        """Until when a live attempt that may be ended is given time to save."""
        may_end_at = self._may_end_at if self.may_end_live_attempt else None
        return None if may_end_at is None else save_until(may_end_at, self.incident.kind, self.policy)

    @property
    def settles_at(self) -> datetime | None:
        """When the evidence has settled, never later than the decision deadline. None: nothing is waited for."""
        if self.snapshot.offline or self.settle_base is None:
            return None
        by_category = self.policy.settle_seconds
        longest = max(by_category.values(), default=0.0)
        settles_at = self.settle_base + timedelta(seconds=by_category.get(self.attribution.category, longest))
        return settles_at if self.decision_deadline is None else min(settles_at, self.decision_deadline)

    @property
    def settled(self) -> bool:
        return self.settles_at is None or self.now >= self.settles_at

    @property
    def decision_deadline(self) -> datetime | None:
        """By then the job may start whatever we think: counted from the attempt's end, or from what stands for it."""
        base = self.snapshot.attempt.ended_at or self.settle_base
        return None if base is None else base + timedelta(seconds=self.policy.decision_deadline_seconds)

    @property
    def resume_step(self) -> int | None:
        """The newest checkpoint that is known: this attempt's, else that of the latest attempt that had one. Where the
        numbers went bad, the newest before that.
        """
        onset = self.snapshot.progress.numbers.onset
        if onset is not None and self.attribution.category is Category.NUMERICS:
            return checkpoint_before(self.snapshot, onset)
        if self.snapshot.progress.checkpoint_step is not None:
            return self.snapshot.progress.checkpoint_step
        steps = (attempt.checkpoint_step for attempt in reversed(self.snapshot.past))
        return next((step for step in steps if step is not None), None)


def assess(
    snapshot: Snapshot,
    incident: Incident,
    attribution: Attribution,
    isolation: Isolation,
    policy: Policy,
    now: datetime,
) -> Situation:
    """The situation of one attempt, with what its past attempts have spent."""
    return Situation(
        snapshot=snapshot,
        incident=incident,
        attribution=attribution,
        isolation=isolation,
        policy=policy,
        now=now,
        spent=spent(snapshot, attribution, policy, now),
    )


def _time_of(signal: Signal) -> datetime:
    return signal.at or signal.seen_at
