"""Brings Slurm to what open advice wants, one job at a time, and says what came of it.

Each pass plans again from what Slurm shows: that is what makes a repeat harmless and a crash recoverable. What is
kept here is only what was already said, who is being attended to, and when requeues happened; the last is seeded from
our marks after a restart.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypeAlias

import structlog

from advisor.v1 import agent_pb2, common_pb2
from slurm_plugin import guard, mark, sharing, wire
from slurm_plugin.applier import Apply
from slurm_plugin.apply import Result
from slurm_plugin.backlog import Backlog, urgency
from slurm_plugin.briefing import Briefing
from slurm_plugin.clock import Clock
from slurm_plugin.config import AgentConfig
from slurm_plugin.guard import Phase, Reason, Status, phase_of
from slurm_plugin.link import Outgoing
from slurm_plugin.looks import MAINTENANCE_FRESH_SECONDS, Looks
from slurm_plugin.saving import Saving
from slurm_plugin.squeue import JobRow, SlurmError
from slurm_plugin.unreported import Unreported

log = structlog.get_logger(__name__)

ATTENDED_MAX = 8
PAUSES_SECONDS = (0.1, 0.3, 1.0)  # between looks after an action, before polling takes over
RETRY_SECONDS = 5.0  # after Slurm refused
REQUEUE_WINDOW_SECONDS = 60.0

Kind: TypeAlias = common_pb2.MilestoneKind.ValueType
_VERB_MILESTONES: dict[str, Kind] = {
    "requeue": common_pb2.MILESTONE_KIND_REQUEUE_ACCEPTED,
    "requeue_incomplete": common_pb2.MILESTONE_KIND_REQUEUE_ACCEPTED,
    "release": common_pb2.MILESTONE_KIND_REQUEUE_ACCEPTED,
    "update": common_pb2.MILESTONE_KIND_UPDATE_ACCEPTED,
}
_COUNTED = frozenset({"requeue", "requeue_incomplete", "release", "cancel"})  # against the cap
# A wait that is worth telling: the others are over in a moment or would only repeat what observations show.
_TOLD_WAITS = frozenset(
    {
        Reason.CAP_REQUEUES,
        Reason.SCHEDULER_UNAVAILABLE,
        Reason.STOP_FILE,
        Reason.PAUSED,
        Reason.MAINTENANCE,
        Reason.SAVING,
    }
)


@dataclass(slots=True, kw_only=True)
class Reconciler:
    """`put` queues a report, `told` reports one job at once."""

    config: AgentConfig
    looks: Looks
    apply: Apply
    clock: Clock
    put: Callable[[Outgoing], None]
    told: Callable[[JobRow], Awaitable[None]]
    unreported: Unreported
    missing_right: str = ""
    briefing: Briefing = field(init=False)
    saving: Saving = field(init=False)
    backlog: Backlog = field(init=False)
    _open: dict[str, guard.Advice] = field(default_factory=dict)
    _said: dict[str, tuple[Status, Reason, str]] = field(default_factory=dict)
    busy: set[str] = field(default_factory=set)
    _retry_at: dict[str, float] = field(default_factory=dict)
    _requeues: deque[float] = field(default_factory=deque)
    _counted: set[tuple[str, int]] = field(default_factory=set)  # (job, restarts) of what is in `_requeues`
    _moments: dict[tuple[str, int], set[Kind]] = field(default_factory=dict)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)
    _under_way: dict[str, tuple[guard.Advice, asyncio.Event]] = field(default_factory=dict)  # by job, set: taken back
    _acting: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(ATTENDED_MAX))

    def __post_init__(self) -> None:
        wanted = self.config.before_kill
        signals = tuple(name for name in (wanted.dump_signal, wanted.save_signal) if name)
        self.saving = Saving(signals=signals, wait_seconds_max=wanted.wait_seconds_max)
        self.briefing = Briefing(config=self.config, looks=self.looks, saving=self.saving)
        self.backlog = Backlog(per_minute=self.config.caps.requeues_per_minute)

    def heard(self, open_advice: Sequence[guard.Advice]) -> None:
        """All open advice, as of now. New advice is attended to at once, the rest at the next pass."""
        before, self._open = self._open, {advice.advice_id: advice for advice in open_advice}
        self.unreported.heard(open_advice)
        for advice, withdrawn in self._under_way.values():
            if not self._wanted(advice):
                withdrawn.set()
        self._said = {key: value for key, value in self._said.items() if key in self._open}
        self._retry_at = {key: value for key, value in self._retry_at.items() if key.partition(" ")[0] in self._open}
        for advice in self._ordered(self.looks.rows):
            if advice.advice_id not in before:
                log.info(
                    "advice_heard",
                    job=advice.job_id,
                    attempt=advice.attempt,
                    advice=advice.advice_id,
                    generation=advice.generation,
                    action=advice.action,
                    exclude=list(advice.exclude),
                    autonomous=advice.autonomous,
                )
                self._attend(advice)

    def _wanted(self, advice: guard.Advice) -> bool:
        """Whether what is being done is still advised. A refinement of the same restart does not hold it up."""
        about = (advice.job_key, advice.attempt, advice.action)
        return any((other.job_key, other.attempt, other.action) == about for other in self._open.values())

    def told_nothing(self) -> None:
        """Another store listens, or one that was restored: what it does not know is said again."""
        self._said.clear()
        self.unreported.told_nothing()

    def reconcile(self, rows: Mapping[str, JobRow]) -> None:
        """One pass over all open advice with the rows of a full look."""
        if not self.looks.looked:
            return
        waiting: list[JobRow] = []
        for advice in self._ordered(rows):
            row = rows.get(advice.job_id)
            outcome = self._plan(advice, row)
            if row is not None and _capped(outcome):
                waiting.append(row)
            status = outcome_status(outcome, self._applied(advice))
            if isinstance(outcome, guard.Steps) or status != self._status(advice) or self._shares(advice, row, outcome):
                self._attend(advice)

        if self.looks.settings is not None:
            memory = self.looks.settings.min_job_age_seconds
            self.backlog.look(waiting, memory_seconds=memory, now=self.clock.wall())

    def _ordered(self, rows: Mapping[str, JobRow]) -> list[guard.Advice]:
        """Those whose turn comes first where there is not room for all."""
        return sorted(self._open.values(), key=lambda advice: urgency(rows.get(advice.job_id)))

    def seen(self, rows: Sequence[JobRow]) -> None:
        """Milestones that Slurm's own records show, for jobs that carry our mark."""
        now = self.clock.wall()
        for row in rows:
            fragment = mark.find(row.admin_comment) if row.admin_comment else None
            if fragment is not None and fragment.advised and fragment.attempt == row.restarts - 1:
                self._seed(row, now)
                self._successor_moments(row, fragment, now)
        if len(rows) > 1:
            held = {row.job_id for row in rows}
            self._moments = {key: value for key, value in self._moments.items() if key[0] in held}
            self._counted = {key for key in self._counted if key[0] in held}

    async def close(self) -> None:
        """Let actions under way end: they are short, and bounded by themselves."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=5.0)
        for task in self._tasks:
            task.cancel()

    # --- one advice --------------------------------------------------------------------------------------------

    def _attend(self, advice: guard.Advice) -> None:
        late = self.clock.monotonic() < self._retry_at.get(advice.advice_id, 0.0)
        jobs = self._touched(advice)
        if late or not jobs.isdisjoint(self.busy):
            return
        self.busy |= jobs
        task = asyncio.create_task(self._attended(advice, jobs))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _touched(self, advice: guard.Advice) -> frozenset[str]:
        """Whose AdminComment may be written: two processes that write the same one would lose a mark."""
        row = self.looks.rows.get(advice.job_id)
        companions = self.briefing.companions(advice, row) if row is not None else ()
        return frozenset({advice.job_id, *(companion.job_id for companion in companions)})

    async def _attended(self, advice: guard.Advice, jobs: frozenset[str]) -> None:
        try:
            async with self._acting:
                for pause in (*PAUSES_SECONDS, None):
                    # Many wait here for their turn. What was withdrawn or replaced meanwhile is nobody's advice now.
                    current = self._open.get(advice.advice_id)
                    if current is None or await self._once(current) or pause is None:
                        break
                    await asyncio.sleep(pause)
        except SlurmError as error:
            self._say(advice, None, Status.PENDING, Reason.SCHEDULER_UNAVAILABLE, str(error))
        finally:
            self.busy -= jobs

    async def _once(self, advice: guard.Advice) -> bool:
        """Look, plan, act if planned. True when there is nothing more to do in this round."""
        known = self.looks.rows.get(advice.job_id)
        capped = self._plan(advice, known)
        if _capped(capped):
            # A thousand that wait for the cap are not looked at one by one: the next listing shows them all.
            self._conclude(advice, known, capped)
            return True
        row = await self.looks.one(advice.job_id)
        if row is not None:
            await self.told(row)
            self.seen((row,))
        if isinstance(self._plan(advice, row), guard.Steps):
            await self.looks.read_maintenance(MAINTENANCE_FRESH_SECONDS)
        current = self._open.get(advice.advice_id)
        if current is None:
            return True  # withdrawn or replaced while we looked
        advice = current  # or paused
        outcome = self._plan(advice, row)
        if not isinstance(outcome, guard.Steps) or row is None:
            if row is not None and self._shares(advice, row, outcome):
                await self._share(advice, row)
            if row is not None and not self._applied(advice) and self.unreported.unclear(advice, row, outcome):
                if not await self.unreported.find_out(advice, row):
                    return False
                outcome = self.unreported.answered(advice, outcome)
            self._conclude(advice, row, outcome)
            return True
        result = await self._act(advice, row)
        return result.status not in {Status.APPLIED, Status.PENDING}

    def _plan(self, advice: guard.Advice, row: JobRow | None) -> guard.Outcome:
        outcome = guard.plan(
            advice,
            row,
            self._limits(advice, row),
            now=self.clock.wall(),
            monotonic=self.clock.monotonic(),
            around=self.briefing.around(advice, row),
        )
        return self.unreported.answered(advice, outcome)

    def _limits(self, advice: guard.Advice, row: JobRow | None) -> guard.Limits:
        horizon = self.clock.monotonic() - REQUEUE_WINDOW_SECONDS
        while self._requeues and self._requeues[0] < horizon:
            self._requeues.popleft()
        left = self.config.caps.requeues_per_minute - len(self._requeues)
        return self.briefing.limits(advice, row, requeues_left=left, missing_right=bool(self.missing_right))

    def _shares(self, advice: guard.Advice, row: JobRow | None, outcome: guard.Outcome) -> bool:
        """Whether a job beside this one lacks exclusions that it should have, although this one needs nothing."""
        status = outcome_status(outcome, self._applied(advice))
        if row is None or status is None or not sharing.wanted(advice, *status):
            return False
        now = self.clock.monotonic()
        late = now < self._retry_at.get(f"{advice.advice_id} shares", 0.0) or now >= advice.expires_monotonic
        acts = self.config.mode == "act" and not self.missing_right
        return not late and acts and self.briefing.lacking(advice, row)

    async def _share(self, advice: guard.Advice, row: JobRow) -> None:
        self._retry_at[f"{advice.advice_id} shares"] = self.clock.monotonic() + RETRY_SECONDS
        if guard.identity(advice, row) is not None:
            return
        request = self.briefing.request(advice, row, self._limits(advice, row), shares_only=True)
        result = await self.apply(request, asyncio.Event())
        log.info("exclusions_shared", job=advice.job_id, advice=advice.advice_id, shared=list(result.shared))

    async def _act(self, advice: guard.Advice, row: JobRow) -> Result:
        request = self.briefing.request(advice, row, self._limits(advice, row))
        # Reserved before, so that several at once do not pass the cap together.
        reserved, key = self.clock.monotonic(), (advice.job_id, advice.attempt + 1)
        known = key in self._counted
        self._requeues.append(reserved)
        self._counted.add(key)
        withdrawn = asyncio.Event()
        self._under_way[advice.job_id] = (advice, withdrawn)
        try:
            result = await self.apply(request, withdrawn)
        finally:
            del self._under_way[advice.job_id]
        if not any(verb.name in _COUNTED for verb in result.done):
            with suppress(ValueError):  # it took so long that it counts no more
                self._requeues.remove(reserved)
            if not known:
                self._counted.discard(key)
        log.info(
            "advice_applied" if result.status is Status.APPLIED else "advice_not_applied",
            job=advice.job_id,
            attempt=advice.attempt,
            advice=advice.advice_id,
            generation=advice.generation,
            status=result.status,
            reason=result.reason,
            detail=result.detail,
            done=[verb.name for verb in result.done],
            excluded=list(result.excluded),
            shared=list(result.shared),
        )
        for verb in result.done:
            if verb.name in _VERB_MILESTONES:
                self._moment(advice.job_id, _ref(self.config.cluster, advice), _VERB_MILESTONES[verb.name], verb.at)
        self.looks.silence.went_down(sum(verb.name == "down" for verb in result.done), self.clock.monotonic())
        if result.reason is Reason.SAVING:
            self.saving.asked(advice, heard=bool(result.done), now=self.clock.monotonic())
        if result.reason is Reason.SCHEDULER_UNAVAILABLE:
            self.unreported.lost(advice)
        if result.reason is Reason.PERMISSION:
            self.missing_right = result.detail or "the scheduler refuses our updates"
            log.error("rights_missing", detail=self.missing_right, mode="observe from now on")
        if result.status is Status.APPLIED or result.status is Status.WITHHELD:
            self._say(advice, row, result.status, result.reason, result.detail, result=result)
        if result.status is Status.WITHHELD:
            self._retry_at[advice.advice_id] = self.clock.monotonic() + RETRY_SECONDS
        return result

    def dropped(self, row: JobRow, result: Result) -> None:
        """Exclusions of ours were given back so that the job can start: said about the advice that set them.

        The mark names it: another agent may have set them, or this one before a restart.
        """
        ours = mark.find(row.admin_comment)
        if ours is None or not ours.advice or ours.attempt != row.restarts - 1:
            return
        advice = guard.Advice(
            advice_id=ours.advice,
            incarnation=ours.incarnation,
            job_key=ours.job,
            job_id=row.job_id,
            attempt=ours.attempt,
            submitted_at=0,
            user=row.user,
            generation=ours.generation,
            action=guard.Action.RESTART,
            expires_monotonic=self.clock.monotonic(),
        )
        self._say(advice, row, Status.VERIFIED, result.reason, result.detail, result=result)

    # --- saying it ---------------------------------------------------------------------------------------------

    def _status(self, advice: guard.Advice) -> tuple[Status, Reason] | None:
        said = self._said.get(advice.advice_id)
        return (said[0], said[1]) if said is not None else None

    def _applied(self, advice: guard.Advice) -> bool:
        said = self._said.get(advice.advice_id)
        return said is not None and said[0] in {Status.APPLIED, Status.VERIFIED}

    def _conclude(self, advice: guard.Advice, row: JobRow | None, outcome: guard.Outcome) -> None:
        status = outcome_status(outcome, self._applied(advice))
        if status is None or isinstance(outcome, guard.Steps):
            return
        self._say(advice, row, status[0], status[1], outcome.detail)

    def _say(
        self,
        advice: guard.Advice,
        row: JobRow | None,
        status: Status,
        reason: Reason,
        detail: str,
        *,
        result: Result | None = None,
    ) -> None:
        if self._said.get(advice.advice_id) == (status, reason, detail):
            return
        self._said[advice.advice_id] = (status, reason, detail)
        excluded = result.excluded if result is not None else (row.excluded or () if row is not None else ())
        log.info(
            "advice_reconciled", job=advice.job_id, advice=advice.advice_id, status=status, reason=reason, detail=detail
        )
        self.put(
            agent_pb2.ReportReconciliationRequest(
                cluster=self.config.cluster,
                advice_id=advice.advice_id,
                attempt=_ref(self.config.cluster, advice),
                generation=advice.generation,
                status=wire.status(status),
                reason=wire.reason(reason),
                detail=wire.clean(detail, 1000),
                at=wire.stamp(self.clock.wall()),
                excluded_nodes=excluded,
                dropped_nodes=result.dropped if result is not None else (),
            )
        )

    # --- milestones --------------------------------------------------------------------------------------------

    def _seed(self, row: JobRow, now: float) -> None:
        """After a restart, what we requeued within the last minute still counts against the cap, each requeue once."""
        age = now - (row.submit or 0)
        key = (row.job_id, row.restarts)
        if key not in self._counted and 0 <= age < REQUEUE_WINDOW_SECONDS:
            self._counted.add(key)
            self._requeues.append(self.clock.monotonic() - age)

    def _successor_moments(self, row: JobRow, fragment: mark.Mark, now: float) -> None:
        phase = phase_of(row.state)
        started = phase in {Phase.RUNNING, Phase.SUSPENDED} and row.start is not None
        if not started and phase is not Phase.PENDING:
            return
        who = common_pb2.AttemptRef(
            job_key=fragment.job,
            cluster=self.config.cluster,
            job_id=row.job_id,
            attempt=fragment.attempt,
            user=row.user,
        )
        released = min(now, row.start) if started and row.start is not None else now
        self._moment(row.job_id, who, common_pb2.MILESTONE_KIND_NODES_RELEASED, released)
        if row.eligible is not None and row.eligible <= now:
            # A dead node can hold the job beyond its eligible time, which Slurm then leaves in the past.
            at = max(row.eligible, min(released, row.start) if started and row.start is not None else row.eligible)
            self._moment(row.job_id, who, common_pb2.MILESTONE_KIND_ELIGIBLE, at)
        if started and row.start is not None:
            self._moment(row.job_id, who, common_pb2.MILESTONE_KIND_RUNNING, row.start)

    def _moment(self, job_id: str, who: common_pb2.AttemptRef, kind: Kind, at: float) -> None:
        known = self._moments.setdefault((job_id, who.attempt), set())
        if kind in known:
            return
        known.add(kind)
        milestone = agent_pb2.Milestone(attempt=who, kind=kind, at=wire.stamp(at))
        self.put(agent_pb2.ReportMilestonesRequest(cluster=self.config.cluster, milestones=[milestone]))


def outcome_status(outcome: guard.Outcome, applied: bool) -> tuple[Status, Reason] | None:
    """What an outcome means for the advice; None when there is nothing to say (yet). Never back from APPLIED."""
    match outcome:
        case guard.Satisfied():
            if outcome.by_us or applied:
                return Status.VERIFIED, Reason.OBSERVED
            return Status.ALREADY_SATISFIED, outcome.reason
        case guard.Withheld():
            return outcome.status, outcome.reason
        case guard.Wait():
            told = outcome.reason in _TOLD_WAITS and not applied
            return (Status.PENDING, outcome.reason) if told else None
        case guard.Steps():
            return None


def _capped(outcome: guard.Outcome) -> bool:
    return isinstance(outcome, guard.Wait) and outcome.reason is Reason.CAP_REQUEUES


def _ref(cluster: str, advice: guard.Advice) -> common_pb2.AttemptRef:
    return common_pb2.AttemptRef(
        job_key=advice.job_key,
        cluster=cluster,
        job_id=advice.job_id,
        attempt=advice.attempt,
        submitted_at=wire.stamp(advice.submitted_at) if advice.submitted_at else None,
        user=advice.user,
    )
