"""The tick: snapshot → decide → commit → publish, for every watched attempt.

It is woken by a report or by its interval and then looks at everything; no single event is reacted to. A decision is
committed only when it differs in what matters from the one committed last; otherwise only detector states are saved.
What goes wrong with one attempt is logged and counted and stops no other; when the database is away the whole tick
fails, its age grows, and the watchdog acts on that age.
"""

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

import structlog

from advisor.board import Board
from advisor.core import codec
from advisor.core.decide import decide
from advisor.core.document import analysis_document
from advisor.core.model import Decision, Snapshot
from advisor.core.modes import ModeSetting, effective_mode
from advisor.core.policy import Policy
from advisor.core.rules import RuleSet
from advisor.core.words import Action, AttemptState, IncidentKind, Mode, Reason
from advisor.gathering import Gatherer, Sighting, reports_of, snapshot_of
from advisor.ports import Clock
from advisor.replay import Inputs
from advisor.store.errors import Conflict
from advisor.store.records import (
    AttemptKey,
    DecisionRecord,
    DetectorState,
    Milestone,
    MilestoneKind,
    StoredAttempt,
)
from advisor.store.store import Store

log = structlog.get_logger(__name__)

# Nothing has ended, and nothing was said before: not worth a row.
QUIET = frozenset({Reason.HEALTHY, Reason.OUTCOME_NOT_VISIBLE})
GENERATIONS_MAX = 100  # per attempt: a decision that flaps stops being told
FAILED_TICKS_MAX = 60  # in a row: then the process ends and its supervisor starts a new one
PAUSE_SECONDS = 0.02  # between two ticks, so that reports are taken together
KNOWN_MAX = 100_000


class TicksFailedError(RuntimeError):
    """So many ticks failed in a row that a new process has the better chances."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rulebook:
    """What decides, loaded once: rules, policy, and the build that reads them."""

    rules: RuleSet
    policy: Policy
    build: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """One attempt's decision in this tick. `record` is set when it differs from the newest committed one."""

    sighting: Sighting
    decision: Decision
    essence: str
    record: DecisionRecord | None = None


class Pipeline:
    def __init__(
        self,
        *,
        store: Store,
        board: Board,
        gatherer: Gatherer,
        rulebook: Rulebook,
        clock: Clock,
        default_mode: Mode,
        interval_seconds: float,
        attempts_max: int,
        on_tick: Callable[[], None] = lambda: None,
    ) -> None:
        self._store = store
        self._board = board
        self._gatherer = gatherer
        self._rulebook = rulebook
        self._clock = clock
        self._default_mode = default_mode
        self._interval_seconds = interval_seconds
        self._attempts_max = attempts_max
        self._on_tick = on_tick
        self._packed_rules = codec.encode(rulebook.rules)
        self._packed_policy = codec.encode(rulebook.policy)
        self._over: set[AttemptKey] = set()
        self._reached: set[tuple[AttemptKey, MilestoneKind]] = set()
        self._failing: set[AttemptKey] = set()
        self._settles_at: datetime | None = None
        self._more = False

    async def run(self) -> None:
        """Tick until cancelled. Raises `TicksFailedError` when nothing works any more."""
        failed = 0
        while True:
            self._board.wake.clear()
            try:
                await self.tick()
                failed = 0
            except Exception as error:
                failed += 1
                log.exception("tick_failed", error=type(error).__name__, in_a_row=failed)
                if failed >= FAILED_TICKS_MAX:
                    raise TicksFailedError(f"{failed} ticks failed in a row, the last with {error}") from error
            await self._pause()

    async def _pause(self) -> None:
        await self._clock.sleep(PAUSE_SECONDS)
        seconds = self._interval_seconds
        if self._more:
            return
        if self._settles_at is not None:
            seconds = min(seconds, max((self._settles_at - self._clock.now()).total_seconds(), PAUSE_SECONDS))
        try:
            async with asyncio.timeout(seconds):
                await self._board.wake.wait()
        except TimeoutError:
            pass

    async def tick(self) -> None:
        """Look at every watched attempt once."""
        began = self._clock.monotonic()
        now = self._clock.now()
        expired = await self._store.expire_advice(now)
        sightings = await self._sight(now)
        await self._gatherer.gather(sightings)
        verdicts = await self._conclude(sightings)
        committed = await self._commit(verdicts)
        if expired or committed:
            await self._board.refresh()
            await self._board.refresh({verdict.sighting.item.job.cluster for verdict in committed})
        await self._save(verdicts, now)
        await self._record_milestones(verdicts)
        failed = sum(sighting.failed is not None for sighting in sightings)
        self._more = any(sighting.more and sighting.failed is None for sighting in sightings)
        took = self._clock.monotonic() - began
        self._board.tick_completed(took_seconds=took, watched=len(sightings), failed_jobs=failed)
        self._on_tick()

    async def _sight(self, now: datetime) -> list[Sighting]:
        keys = await self._store.watched(now)
        if len(keys) > self._attempts_max:
            log.warning("attempts_capped", watched=len(keys), most=self._attempts_max)
            keys = keys[: self._attempts_max]
        stored = await self._store.load(keys, now=now)
        return self._gatherer.sight(stored.values())

    async def _conclude(self, sightings: Sequence[Sighting]) -> list[Verdict]:
        """Decide for all, off the event loop: streams and reports go on meanwhile."""
        settings = self._with_default(await self._store.modes())
        views = self._board.views()
        now = self._clock.now()

        def conclude_all() -> list[Verdict]:
            verdicts = []
            for sighting in sightings:
                if sighting.failed is not None:
                    continue
                try:
                    view = views.get(sighting.item.job.cluster)
                    reports = reports_of(sighting, self._gatherer.sources, view, now)
                    verdicts.append(
                        self._verdict(sighting, snapshot_of(sighting, reports, Mode.MONITOR), settings, now)
                    )
                except Exception as error:  # the boundary of one job's tick
                    sighting.failed = error
            return verdicts

        verdicts = await asyncio.to_thread(conclude_all)
        for sighting in sightings:
            self._tell_failure(sighting)
        waits = [v.decision.settles_at for v in verdicts if v.decision.settles_at is not None]
        self._settles_at = min((moment for moment in waits if moment > now), default=None)
        return verdicts

    def _with_default(self, settings: Sequence[ModeSetting]) -> tuple[ModeSetting, ...]:
        """The configured default holds where no operator has set a mode for everything."""
        if any(setting.fields_set == 0 for setting in settings):
            return tuple(settings)
        return (*settings, ModeSetting(mode=self._default_mode))

    def _tell_failure(self, sighting: Sighting) -> None:
        key = sighting.key
        if sighting.failed is None:
            self._failing.discard(key)
        elif key not in self._failing:
            self._failing.add(key)
            job = sighting.item.job.job_id
            log.error("job_tick_failed", attempt=str(key), job=job, exc_info=sighting.failed)

    def _verdict(
        self, sighting: Sighting, snapshot: Snapshot, settings: Sequence[ModeSetting], now: datetime
    ) -> Verdict:
        """Pure but for its inputs: decide, find the mode for the category found, compare with what was committed."""
        rules, policy = self._rulebook.rules, self._rulebook.policy
        decision = decide(snapshot, rules, policy, now)
        job = snapshot.job
        mode = effective_mode(settings, job.cluster, job.partition, job.job_id, decision.attribution.category)
        if mode is not job.mode:
            # The mode is part of the snapshot, so that the stored inputs give the stored decision.
            snapshot = replace(snapshot, job=replace(job, mode=mode))
            decision = decide(snapshot, rules, policy, now)
        essence = essence_of(decision)
        if not self._differs(sighting, decision, essence) and not self._lapsed(sighting.item, decision, now):
            return Verdict(sighting=sighting, decision=decision, essence=essence)
        detector = codec.content_hash(codec.encode(sighting.state))
        record = DecisionRecord(
            key=sighting.key,
            seen_generation=sighting.item.generation,
            decision=decision,
            analysis_json=json.dumps(analysis_document(decision, snapshot), ensure_ascii=True, separators=(",", ":")),
            inputs=codec.encode(Inputs(snapshot=snapshot, now=now, detector=detector)),
            rules=self._packed_rules,
            policy=self._packed_policy,
            build=self._rulebook.build,
            created_at=now,
            time_to_live=timedelta(seconds=policy.advice_time_to_live_seconds),
        )
        return Verdict(sighting=sighting, decision=decision, essence=essence, record=record)

    def _differs(self, sighting: Sighting, decision: Decision, essence: str) -> bool:
        item, state = sighting.item, sighting.state
        if item.generation == 0:
            return decision.reason not in QUIET or decision.incident.kind is not IncidentKind.NONE
        if item.generation >= GENERATIONS_MAX or _moved_on(item):
            return False
        if state.generation == item.generation:
            return essence != state.essence
        # The service died between commit and save: the advice itself is what is left to compare with.
        return item.advice is None or _outline(decision) != (
            item.advice.action,
            item.advice.reason,
            item.advice.category,
            tuple(sorted(item.advice.exclude_nodes)),
        )

    def _lapsed(self, item: StoredAttempt, decision: Decision, now: datetime) -> bool:
        """Nobody could apply the advice in its time, and an agent that is back still could: say it again."""
        advice = item.advice
        if advice is None or advice.applied or decision.action is Action.NONE or decision.mode is Mode.MONITOR:
            return False
        lived = timedelta(seconds=self._rulebook.policy.advice_time_to_live_seconds)
        reachable = item.job.in_scope and item.successor is None and not item.forgotten
        return reachable and item.generation < GENERATIONS_MAX and now >= advice.created_at + lived

    async def _commit(self, verdicts: Sequence[Verdict]) -> list[Verdict]:
        committed = []
        for verdict in verdicts:
            if verdict.record is None:
                continue
            sighting = verdict.sighting
            told = self._clock.now() if verdict.decision.action is not Action.NONE else None
            record = replace(verdict.record, milestones=_own_milestones(verdict, verdict.record.created_at, told))
            try:
                done = await self._store.commit_decision(record)
            except Conflict as error:
                log.info("decision_conflicted", attempt=str(sighting.key), error=str(error))
                continue
            sighting.state = replace(sighting.state, essence=verdict.essence, generation=done.generation)
            committed.append(verdict)
            decision = verdict.decision
            log.info(
                "decision_committed",
                decision=done.decision_id,
                attempt=str(sighting.key),
                job=sighting.item.job.job_id,
                generation=done.generation,
                action=decision.action,
                reason=decision.reason,
                category=decision.attribution.category,
                exclude=decision.isolation.exclude_for_job,
                mode=decision.mode,
            )
        return committed

    async def _save(self, verdicts: Sequence[Verdict], looked_at: datetime) -> None:
        """Detector states that changed, all in one transaction, dated by the moment that the tick began to look."""
        states: dict[AttemptKey, DetectorState] = {}
        over = {v.sighting.key for v in verdicts if v.sighting.item.attempt.state.ended}
        for verdict in verdicts:
            sighting = verdict.sighting
            # Once more when it is over, also without a change: the store closes what was looked at since its end.
            if sighting.changed or sighting.key in over - self._over:
                states[sighting.key] = DetectorState(
                    state=codec.encode(sighting.state),
                    progress=sighting.progress,
                    signals=sighting.signals,
                    foreign=sighting.foreign,
                )
        if states:
            await self._store.save_states(states, now=looked_at)
        self._over = over

    async def _record_milestones(self, verdicts: Sequence[Verdict]) -> None:
        """Those that come with no new decision: progress made, and a fault seen that changes nothing."""
        now = self._clock.now()
        reached: dict[AttemptKey, list[Milestone]] = {}
        for verdict in verdicts:
            key = verdict.sighting.key
            own = [(key, item) for item in _own_milestones(verdict, now, None)] if verdict.record is None else []
            for owner, item in (*own, *_progress_milestones(verdict.sighting)):
                if (owner, item.kind) not in self._reached:
                    reached.setdefault(owner, []).append(item)
        if not reached:
            return
        await self._store.record_milestones(reached)
        if len(self._reached) > KNOWN_MAX:
            self._reached.clear()
        self._reached.update((key, item.kind) for key, items in reached.items() for item in items)


def essence_of(decision: Decision) -> str:
    """What matters of a decision to whoever acts on it: not its wording, its evidence or when it was made."""
    return codec.content_hash(
        json.dumps(
            [
                decision.action,
                decision.reason,
                decision.mode,
                decision.incident.kind,
                decision.attribution.category,
                decision.attribution.fingerprint,
                sorted(decision.attribution.nodes),
                list(decision.isolation.exclude_for_job),
                sorted(decision.isolation.isolate_for_cluster),
                decision.may_end_live_attempt,
                decision.free,
                decision.resume_step if decision.action is Action.RESTART else None,
                None if decision.start_not_before is None else decision.start_not_before.isoformat(),
                None if decision.delay_until is None else decision.delay_until.isoformat(),
            ]
        ).encode()
    )


def _outline(decision: Decision) -> tuple[object, ...]:
    return (
        decision.action,
        decision.reason,
        decision.attribution.category,
        tuple(sorted(decision.isolation.exclude_for_job)),
    )


def _moved_on(item: StoredAttempt) -> bool:
    """The next attempt has started: what is decided about this one can no longer be applied to anything."""
    successor = item.successor
    return successor is not None and (
        successor.state.live or (successor.state.ended and successor.state is not AttemptState.CANCELLED)
    )


def _own_milestones(verdict: Verdict, detected_at: datetime, advised_at: datetime | None) -> tuple[Milestone, ...]:
    """When the fault could be read, when we read it, and when advice was given."""
    found = []
    if verdict.decision.incident.kind is not IncidentKind.NONE:
        visible = verdict.decision.incident.visible_at or detected_at
        found.append(Milestone(kind=MilestoneKind.FAULT_VISIBLE, at=visible))
        found.append(Milestone(kind=MilestoneKind.DETECTED, at=max(detected_at, visible)))
    if advised_at is not None:
        found.append(Milestone(kind=MilestoneKind.ADVISED, at=advised_at))
    return tuple(item for item in found if item.kind not in verdict.sighting.item.milestones)


def _progress_milestones(sighting: Sighting) -> list[tuple[AttemptKey, Milestone]]:
    progress, past = sighting.progress, sighting.item.past
    if not past or past[-1].number != sighting.key.number - 1 or progress.first_at is None:
        return []
    before = AttemptKey(job_key=sighting.key.job_key, number=past[-1].number)
    found = [(before, Milestone(kind=MilestoneKind.FIRST_PROGRESS, at=progress.first_at))]
    failed_at = past[-1].last_step
    if failed_at is not None and progress.last_step is not None and progress.last_step >= failed_at:
        lost = max(failed_at - progress.first_step, 0) if progress.first_step is not None else 0
        at = progress.last_at or progress.first_at
        found.append((before, Milestone(kind=MilestoneKind.CAUGHT_UP, at=at, detail=f"steps lost: {lost}")))
    return found
