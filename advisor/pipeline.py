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
from datetime import datetime
from typing import TypeVar, assert_never

import structlog
from sqlalchemy.exc import InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from advisor.board import Board
from advisor.calm import Calm
from advisor.clock import ClockSet
from advisor.core import codec
from advisor.core.autonomy import Standing
from advisor.core.decide import decide
from advisor.core.document import analysis_document
from advisor.core.model import Decision, Job, Snapshot
from advisor.core.modes import Pause, Subject, paused_until
from advisor.core.policy import Policy
from advisor.core.rules import RuleSet
from advisor.core.words import Action, IncidentKind, Mode, Reason
from advisor.gathering import Gatherer
from advisor.instruments import Instruments
from advisor.isolating import Isolating
from advisor.lasting import Lasting
from advisor.leasing import Leasing
from advisor.measuring import Measurer
from advisor.oldest_first import OldestFirst
from advisor.opining import Opining
from advisor.packed import plain_hash
from advisor.plain_text import error_text
from advisor.ports import Clock, LogSource, MetricsSource, OpinionSource
from advisor.recoveries import Passed
from advisor.replay import Inputs
from advisor.sighting import Sighting, reports_of, scheduler_absent, snapshot_of
from advisor.state_writing import StateWriter
from advisor.store.due import Settings
from advisor.store.errors import Conflict, LeaseLost, NotFound
from advisor.store.leases import Fence
from advisor.store.records import (
    AttemptKey,
    CommittedDecision,
    DecisionRecord,
    DetectorState,
    Milestone,
    MilestoneKind,
)
from advisor.store.store import Store
from advisor.verdicts import (
    Verdict,
    detector_state,
    essence_of,
    is_over,
    lapsed,
    moved_on,
    outline_of,
    own_milestones,
    progress_milestones,
    stop_stands,
    time_to_live,
)

log = structlog.get_logger(__name__)

# Nothing has ended, and nothing was said before: not worth a row.
QUIET = frozenset({Reason.HEALTHY, Reason.OUTCOME_NOT_VISIBLE})
ADVISOR = "advisor"
GENERATIONS_MAX = 100  # per attempt: a decision that flaps stops being told
FAILING_SECONDS_MAX = 300.0  # without one completed tick: then the process ends and its supervisor starts a new one
RETRY_SECONDS = 0.5
PAUSE_SECONDS = 0.02  # between two ticks, so that reports are taken together
PAUSE_SHARE = 0.25  # of the time that the tick took, at most a second
PAUSE_SHARE_MORE = 0.1  # where it ended for its time only, and most of it was spent beside the event loop
KNOWN_MAX = 100_000
COMMITS_AT_ONCE = 50  # decisions in one transaction: as many as are surely stored well before a tick's age is noticed
PUBLISH_SECONDS = 1.0  # when a thousand jobs fail at once, the first must not wait for the last one's commit


T = TypeVar("T")

# Then nothing can be done for any attempt; other errors of the database are one attempt's.
DATABASE_AWAY = (OperationalError, InterfaceError, PoolTimeout)
# Then nothing more of this tick may be stored.
TICK_IS_OVER = (*DATABASE_AWAY, LeaseLost)


class TicksFailedError(RuntimeError):
    """Ticks have failed for so long that a new process has the better chances."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rulebook:
    """What decides, loaded once: rules, policy, and the build that reads them."""

    rules: RuleSet
    policy: Policy
    build: str


def alone(sighting: Sighting, work: Callable[[Sighting], T]) -> T | None:
    """What `work` gives; None where it or what came before has failed: one job's error stops no other's tick."""
    if sighting.failed is not None:
        return None
    try:
        return work(sighting)
    except Exception as error:  # the boundary of one job's tick
        sighting.failed = error
        return None


class Pipeline:
    def __init__(
        self,
        *,
        store: Store,
        board: Board,
        gatherer: Gatherer,
        measurer: Measurer | None = None,
        opining: Opining | None = None,
        rulebook: Rulebook,
        clock: Clock,
        default_mode: Mode,
        earns: bool = False,
        leasing: Leasing | None = None,
        interval_seconds: float,
        attempts_max: int,
        on_tick: Callable[[], None] = lambda: None,
        instruments: Instruments | None = None,
        on_passed: Callable[[Job, Passed], None] = lambda _job, _passed: None,
    ) -> None:
        self._store = store
        self._board = board
        self._gatherer = gatherer
        self._measurer = measurer
        self._opining = opining
        self._rulebook = rulebook
        self._clock = clock
        self._default_mode = default_mode
        self._earns = earns
        self._leasing = leasing  # None: nobody else ticks anything of this database
        self.interval_seconds = interval_seconds
        self._attempts_max = attempts_max
        self._on_tick = on_tick
        self._instruments = instruments or Instruments(clock)
        self._on_passed = on_passed
        self._packed_rules = codec.encode(rulebook.rules)
        self._packed_policy = codec.encode(rulebook.policy)
        self._isolating = Isolating(store, rulebook.policy, self._instruments)
        if leasing is not None:
            leasing.on_forgotten(gatherer.forget)
            leasing.on_forgotten(self._isolating.forget)
            if measurer is not None:
                leasing.on_forgotten(measurer.forget)
        self._lasting = Lasting()
        self._calm = Calm(rulebook.policy)
        if leasing is not None:
            leasing.on_forgotten(self._calm.forget)
        self._looks, self._saves = OldestFirst(), OldestFirst()
        self._writer = StateWriter()
        self._over: dict[AttemptKey, bool] = {}  # of attempts that are over: what was saved of whether that was seen
        self._reached: set[tuple[AttemptKey, MilestoneKind]] = set()
        self._failing: set[AttemptKey] = set()
        self._left_out = 0  # attempts that nobody has room to look at
        self._settles_at: datetime | None = None
        self._more = False
        self._incarnation = ""
        self._unsure = False  # the last tick failed: what it committed, the board may not show

    async def run(self) -> None:
        """Tick until cancelled. Raises `TicksFailedError` when nothing works any more."""
        failing_since: float | None = None
        while True:
            self._board.wake.clear()
            try:
                await self.tick()
                failing_since = None
            except LeaseLost:
                # Others may have what we had: what was in hand is dropped, and the next turn says what is left.
                self._unsure = True
                if self._leasing is not None:
                    self._leasing.lost()
                await self._clock.sleep(RETRY_SECONDS)
            except Exception as error:
                self._unsure = True
                if failing_since is None:
                    failing_since = self._clock.monotonic()
                    log.exception("tick_failed")
                seconds = self._clock.monotonic() - failing_since
                self._instruments.tick_failed()
                self._board.tick_failed(error_text(error))
                log.warning("tick_failing", error=error_text(error), seconds=round(seconds, 1))
                # Without a database a new process fares no better, and nobody would be left to say what is wrong.
                if seconds >= FAILING_SECONDS_MAX and not isinstance(error, DATABASE_AWAY):
                    raise TicksFailedError(f"no tick succeeded for {seconds:.0f} s, the last: {error}") from error
                await self._clock.sleep(RETRY_SECONDS)
            await self._pause()

    async def _pause(self) -> None:
        # After a long tick a longer pause: reports are answered, and a storm of them does not take a whole core.
        took = self._board.pulse.took_seconds
        share = PAUSE_SHARE_MORE if self._more else PAUSE_SHARE
        pause = min(max(PAUSE_SECONDS, share * took), 1.0)
        await self._clock.sleep(pause)
        # From one tick's beginning to the next one's.
        seconds = max(self.interval_seconds - took - pause, 0.0)
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
        stage = self._instruments.stage
        began = self._clock.monotonic()
        now = self._clock.now()
        with stage("sight"):
            keys = await (self._leasing.turn() if self._leasing is not None else self._store.watched(now))
            due = await self._store.due(now)
            # Nearly always there is nothing to close: a lock for nothing would be one more wait for the disk.
            expired = due.advice and await self._store.expire_advice(now, fence=self._fence)
            released = due.isolations and await self._isolating.expire(now, self._fence)
            self._begin_anew()
            sightings = await self._sight(keys, now)
        with stage("gather"):
            clock = self._clock_set
            await self._gatherer.gather(sightings, set_at=clock.at if clock is not None else None)
        if self._measurer is not None:
            with stage("measure"):
                await self._measurer.gather(sightings)
        if self._opining is not None:
            await self._opining.gather(sightings)
        with stage("conclude"):
            verdicts = await self._conclude(sightings, began)
        with stage("commit"):
            committed = await self._commit(verdicts)
        with stage("isolate"):
            # What could not be stored is no reason to drain a node: nobody could say later why it was.
            told = {verdict.sighting.key for verdict in committed}
            stored = [v for v in verdicts if v.record is None or v.sighting.key in told]
            isolated = await self._isolating.isolate(stored, now, self._fence)
        with stage("publish"):
            if expired or committed or released or isolated or self._board.due or self._unsure:
                await self._board.refresh(also={verdict.sighting.item.job.cluster for verdict in committed})
        with stage("save"):
            await self._save(verdicts, committed)
            await self._record_milestones(verdicts)
        self._unsure = False
        self._failing = {sighting.key for sighting in sightings if sighting.failed is not None}
        self._more = any(sighting.more and sighting.failed is None for sighting in sightings)
        took = self._clock.monotonic() - began
        failing, left_out = len(self._failing), self._left_out
        self._board.tick_completed(took_seconds=took, watched=len(sightings), failed_jobs=failing, unwatched=left_out)
        self._instruments.tick_completed(took, watched=len(sightings), failing=failing, unwatched=left_out)
        self._on_tick()

    def _begin_anew(self) -> None:
        """In another incarnation of the store: what was stored in the former one may not be."""
        if self._incarnation != self._store.incarnation:
            self._incarnation = self._store.incarnation
            self._unsure = True
            self._over.clear()
            self._reached.clear()
            self._isolating.begin_anew()

    @property
    def _sources(self) -> tuple[LogSource | MetricsSource | OpinionSource, ...]:
        return (
            *self._gatherer.sources,
            *(self._measurer.sources if self._measurer is not None else ()),
            *(self._opining.sources if self._opining is not None else ()),
        )

    @property
    def _fence(self) -> Fence | None:
        """What every write of this tick rests on. Raises `LeaseLost`."""
        return self._leasing.fence if self._leasing is not None else None

    @property
    def _clock_set(self) -> ClockSet | None:
        """When somebody set the clock that is followed, as far as it was looked at."""
        return self._leasing.clock_set if self._leasing is not None else None

    async def _sight(self, keys: Sequence[AttemptKey], now: datetime) -> list[Sighting]:
        if self._leasing is None:
            # The store names the most important ones first.
            keys, left_out = keys[: self._attempts_max], len(keys[self._attempts_max :])
        else:
            left_out = self._leasing.unwatched
        if left_out and not self._left_out:
            log.warning("attempts_capped", watched=len(keys), unwatched=left_out, most=self._attempts_max)
        self._left_out = left_out
        stored = await self._store.load(keys, now=now)
        if self._leasing is not None:
            self._leasing.refuse(key.job_key for key in keys if key not in stored)
        sightings = self._gatherer.sight(stored.values())
        for job, passed in self._instruments.sighted(sightings):
            self._on_passed(job, passed)
        return sightings

    async def _conclude(self, sightings: Sequence[Sighting], began: float) -> list[Verdict]:
        """Decide for all, off the event loop: streams and reports go on meanwhile. `began`: the tick did."""
        settings = await self._store.settings()
        now, counted = self._clock.now(), self._clock.monotonic()
        standing, pauses = self._standing(settings), settings.pauses
        views = self._board.views()
        clusters = {sighting.item.job.cluster for sighting in sightings}
        absent = {cluster: scheduler_absent(views.get(cluster), now) for cluster in clusters}
        clock = self._clock_set

        def conclude(sighting: Sighting, *, waits: bool) -> Verdict:
            cluster = sighting.item.job.cluster
            known = self._calm.verdict(sighting, absent[cluster], now) if not waits else None
            if known is not None:
                return known
            progress = self._lasting.steady(
                sighting.key,
                sighting.progress,
                started=sighting.item.attempt.started_at,
                now=now,
                began=began,
                counted=counted,
                clock=clock,
            )
            if waits:
                return self._calm.standing(sighting)
            report = self._gatherer.brought.report(sighting.item)
            others = () if report is None else (report,)
            reports = reports_of(sighting, self._sources, views.get(cluster), now, others=others)
            said = self._gatherer.rule_signals(sighting, reports, now, set_at=clock.at if clock is not None else None)
            snapshot = snapshot_of(sighting, reports, Mode.MONITOR, said, progress=progress)
            verdict = self._verdict(sighting, snapshot, standing, pauses, now)
            if not self._gatherer.brought.of(sighting.item):
                self._calm.note(verdict, snapshot, absent[cluster])
            return verdict

        def conclude_all() -> list[Verdict]:
            going = [
                sighting.key
                for sighting in sightings
                if alone(sighting, lambda one: self._calm.goes_on(one, absent[one.item.job.cluster], now))
            ]
            waiting = frozenset(going) - self._looks.take(going)
            verdicts = (alone(one, lambda one: conclude(one, waits=one.key in waiting)) for one in sightings)
            return [verdict for verdict in verdicts if verdict is not None]

        keys = {sighting.key for sighting in sightings}
        self._calm.keep(keys)
        self._lasting.keep(keys)
        self._writer.keep(keys)
        verdicts = await asyncio.to_thread(conclude_all)
        if self._clock_set is not clock:
            # Set meanwhile: until when nothing is due was reckoned by the clock as it was, and may be hours from now.
            self._calm.keep(())
        for sighting in sightings:
            if sighting.failed is not None:
                self._fail(sighting, sighting.failed)
        waits = [v.decision.settles_at for v in verdicts if v.decision.settles_at is not None]
        self._settles_at = min((moment for moment in waits if moment > now), default=None)
        return verdicts

    def _standing(self, settings: Settings) -> Standing:
        """What people set, then what categories earned, then the configured default."""
        earned = settings.earned if self._earns else ()
        return Standing(settings=settings.modes, earned=earned, default=self._default_mode)

    def _fail(self, sighting: Sighting, error: Exception) -> None:
        """This attempt's tick has failed: told when it begins to, counted while it does."""
        sighting.failed = error
        self._instruments.attempt_failed()
        if sighting.key not in self._failing:
            job = sighting.item.job.job_id
            log.error("job_tick_failed", attempt=str(sighting.key), job=job, exc_info=error)

    def _verdict(
        self,
        sighting: Sighting,
        snapshot: Snapshot,
        standing: Standing,
        pauses: Sequence[Pause],
        now: datetime,
    ) -> Verdict:
        """Pure but for its inputs: decide, find the mode for the category found, compare with what was committed."""
        rules, policy = self._rulebook.rules, self._rulebook.policy
        decision = decide(snapshot, rules, policy, now)
        job = snapshot.job
        subject = Subject(
            cluster=job.cluster,
            partition=job.partition,
            account=job.account,
            job_id=job.job_id,
            job_key=job.key,
            category=decision.attribution.category,
        )
        mode = standing.mode(subject, decision.action)
        if mode is not job.mode:
            # The mode is part of the snapshot, so that the stored inputs give the stored decision.
            moded = replace(snapshot, job=replace(job, mode=mode))
            concluded = decide(moded, rules, policy, now)
            # What a category has earned for restarts holds for no stop that the mode itself brings about.
            if standing.mode(subject, concluded.action) is mode:
                snapshot, decision = moded, concluded
        essence = essence_of(decision)
        # What operators said since the newest decision is answered by one of its own, also where it comes to the same.
        answers = sighting.item.ordered and sighting.item.generation > 0 and not moved_on(sighting.item)
        again = answers or (sighting.item.generation < GENERATIONS_MAX and lapsed(sighting.item, decision, now))
        if not again and not self._differs(sighting, decision, essence):
            return Verdict(sighting=sighting, decision=decision, essence=essence)
        detector = plain_hash(self._writer.write(sighting.key, sighting.state))
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
            seen_orders=sighting.item.orders_count,
            who=decision.ordered_by or ADVISOR,
            time_to_live=time_to_live(sighting.item, policy, now, paused_until(pauses, job.cluster, now)),
        )
        return Verdict(sighting=sighting, decision=decision, essence=essence, record=record)

    def _differs(self, sighting: Sighting, decision: Decision, essence: str) -> bool:
        item, state = sighting.item, sighting.state
        if item.generation == 0:
            return decision.reason not in QUIET or decision.incident.kind is not IncidentKind.NONE
        if item.generation >= GENERATIONS_MAX or moved_on(item) or stop_stands(item, decision):
            return False
        if state.generation == item.generation:
            return essence != state.essence
        # The service died between commit and save: the advice itself is what is left to compare with.
        return item.advice is None or outline_of(decision) != (
            item.advice.action,
            item.advice.reason,
            item.advice.category,
            tuple(sorted(item.advice.exclude_nodes)),
        )

    async def _commit(self, verdicts: Sequence[Verdict]) -> list[Verdict]:
        """Some at a time, each lot in one transaction: advice is told, and the tick seen to be alive, in between."""
        committed: list[Verdict] = []
        told_at = self._clock.monotonic()
        due = [(verdict, verdict.record) for verdict in verdicts if verdict.record is not None]
        for at in range(0, len(due), COMMITS_AT_ONCE):
            if committed and self._clock.monotonic() - told_at >= PUBLISH_SECONDS:
                await self._board.refresh({earlier.sighting.item.job.cluster for earlier in committed})
                told_at = self._clock.monotonic()
            done = await self._commit_lot(due[at : at + COMMITS_AT_ONCE])
            committed += done
            if done:
                self._board.tick_advanced()
                self._on_tick()
        return committed

    async def _commit_lot(self, lot: Sequence[tuple[Verdict, DecisionRecord]]) -> list[Verdict]:
        now = self._clock.now()
        records = []
        for verdict, record in lot:
            told = now if verdict.decision.action is not Action.NONE else None
            records.append(replace(record, milestones=own_milestones(verdict, record.created_at, told)))
        try:
            outcomes = await self._store.commit_decisions(records, fence=self._fence)
        except TICK_IS_OVER:
            raise
        except Exception as error:  # one of them cannot be stored: which?
            if len(lot) == 1:
                self._fail(lot[0][0].sighting, error)
                return []
            log.warning("decisions_not_committed", count=len(lot), error=error_text(error))
            return [verdict for one in lot for verdict in await self._commit_lot([one])]
        committed = []
        for (verdict, _), record, outcome in zip(lot, records, outcomes, strict=True):
            match outcome:
                case CommittedDecision():
                    self._committed(verdict, outcome)
                    self._note(verdict.sighting, verdict.sighting.key, record.milestones)
                    committed.append(verdict)
                case Conflict():
                    self._instruments.conflicted()
                    log.info("decision_conflicted", attempt=str(verdict.sighting.key), error=str(outcome))
                case NotFound():
                    self._fail(verdict.sighting, outcome)
                case _:
                    assert_never(outcome)
        return committed

    def _committed(self, verdict: Verdict, done: CommittedDecision) -> None:
        sighting, decision = verdict.sighting, verdict.decision
        sighting.state = replace(sighting.state, essence=verdict.essence, generation=done.generation)
        self._instruments.decided(decision, first=done.generation == 1)
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

    async def _save(self, verdicts: Sequence[Verdict], committed: Sequence[Verdict]) -> None:
        """Detector states that changed, all in one transaction."""
        stored = {verdict.sighting.key for verdict in committed}
        # The store closes what was looked at since its end: not where what was decided then could not be stored.
        over = {
            verdict.sighting.key: verdict.sighting.failed is None
            and (verdict.record is None or verdict.sighting.key in stored)
            for verdict in verdicts
            if is_over(verdict.sighting.item)
        }
        # Once more when it is over, also without a change.
        due = self._due_now(
            [
                v.sighting
                for v in verdicts
                if v.sighting.changed or over.get(v.sighting.key) is not self._over.get(v.sighting.key)
            ]
        )
        states: dict[AttemptKey, DetectorState] = {}
        for sighting in due:
            try:
                seen_over = over.get(sighting.key, False)
                states[sighting.key] = detector_state(sighting, self._writer, seen_over=seen_over)
            except codec.CodecError as error:
                over.pop(sighting.key, None)
                self._fail(sighting, error)
        try:
            await self._store.save_states(states, fence=self._fence)
            self._gatherer.saved({s.key: (states[s.key].state, s.state) for s in due if s.key in states})
        except TICK_IS_OVER:
            raise
        except Exception:  # one of them cannot be stored: which?
            log.exception("states_not_saved", count=len(states))
            for sighting in [each for each in due if each.key in states]:
                try:
                    await self._store.save_states({sighting.key: states[sighting.key]}, fence=self._fence)
                except TICK_IS_OVER:
                    raise
                except Exception as error:  # the boundary of one job's tick
                    over.pop(sighting.key, None)
                    self._fail(sighting, error)
        self._over = over

    def _due_now(self, changed: Sequence[Sighting]) -> list[Sighting]:
        """Those that are saved in this tick. What was only read on waits for its turn where there is much of it."""
        later = [
            s.key
            for s in changed
            # Of one that was over and is not after all, that is told at once, too.
            if not is_over(s.item) and s.key not in self._over
            if s.signals is s.item.signals and s.only_read_on(s.stored)
        ]
        waiting = frozenset(later) - self._saves.take(later)
        self._gatherer.put_off(sighting for sighting in changed if sighting.key in waiting)
        return [sighting for sighting in changed if sighting.key not in waiting]

    async def _record_milestones(self, verdicts: Sequence[Verdict]) -> None:
        """Those that come with no new decision: progress made, and a fault seen that changes nothing."""
        now = self._clock.now()
        reached: dict[AttemptKey, list[Milestone]] = {}
        of: dict[AttemptKey, Sighting] = {}
        for verdict in verdicts:
            key = verdict.sighting.key
            own = [(key, item) for item in own_milestones(verdict, now, None)] if verdict.record is None else []
            for owner, item in (*own, *progress_milestones(verdict.sighting)):
                if (owner, item.kind) not in self._reached:
                    reached.setdefault(owner, []).append(item)
                    of[owner] = verdict.sighting
        if not reached:
            return
        await self._store.record_milestones(reached, fence=self._fence)
        for owner, items in reached.items():
            self._note(of[owner], owner, items)
        if len(self._reached) > KNOWN_MAX:
            self._reached.clear()
        self._reached.update((key, item.kind) for key, items in reached.items() for item in items)

    def _note(self, sighting: Sighting, owner: AttemptKey, milestones: Sequence[Milestone]) -> None:
        for passed in self._instruments.reached(sighting.item.job.cluster, owner, milestones):
            self._on_passed(sighting.item.job, passed)
