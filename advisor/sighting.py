"""One watched attempt during one tick: what is remembered of it, what its sources gave, and the snapshot made of it.

A `TickState` (cursors and parser states) is persisted with every tick or soon after, so that who takes over continues
where the last one stopped. It belongs to one attempt only. Nothing here reads anything.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

import structlog

from advisor.board import SchedulerView
from advisor.core import codec, progress
from advisor.core.gpu_indices import with_indices
from advisor.core.job_watch import Watch
from advisor.core.model import NodeFact, Progress, Signal, Snapshot, SourceReport, Unavailable
from advisor.core.scan import FileState
from advisor.core.words import Mode, NodeState, Trust, UnavailableReason
from advisor.packed import plain
from advisor.ports import LogSource, MetricsSource, OpinionSource
from advisor.store.records import AttemptKey, StoredAttempt

log = structlog.get_logger(__name__)

SCHEDULER_STALE = timedelta(seconds=15)  # an agent speaks every second or two
SCHEDULER = "scheduler"
SILENT = Unavailable(source=SCHEDULER, reason=UnavailableReason.STALE, detail="the agent is silent")


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceState:
    """One source of one attempt. `final`: all its bytes were delivered, it is not asked again."""

    cursor: str = ""
    predecessor: str = ""
    files: Mapping[str, FileState] = field(default_factory=dict)
    final: bool = False
    lines: int = 0
    foreign: int = 0
    newest_at: datetime | None = None
    capped: bool = False
    unavailable: tuple[Unavailable, ...] = ()

    def stands_as(self, before: "SourceState") -> bool:
        """It answers as it did, whatever was read meanwhile."""
        return self is before or (self.final, self.capped, self.unavailable) == (
            before.final,
            before.capped,
            before.unavailable,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Away:
    """A node of the allocation that the scheduler lost: the worst it was called, and since when it is away."""

    state: NodeState
    since: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TickState:
    """What one tick leaves for the next. `essence`: what matters of the decision committed as `generation`.

    `watch`: what log rules of the job and the site have seen.
    """

    sources: Mapping[str, SourceState] = field(default_factory=dict)
    watch: Watch = field(default_factory=Watch)
    away: Mapping[str, Away] = field(default_factory=dict)
    essence: str = ""
    generation: int = 0


@dataclass(slots=True, kw_only=True)
class Sighting:
    """One attempt during one tick: filled source by source. `failed`: its own tick ended with this error."""

    item: StoredAttempt
    stored: TickState
    state: TickState
    signals: tuple[Signal, ...]
    conditions: tuple[Signal, ...] = ()  # what measurements say that holds now; not kept
    more: bool = False
    failed: Exception | None = None
    _combined: tuple[TickState, Progress] | None = field(default=None, init=False)  # of files it is made anew

    @property
    def key(self) -> AttemptKey:
        return self.item.key

    @property
    def changed(self) -> bool:
        """This tick has something to save."""
        return self.state is not self.stored or self.signals is not self.item.signals

    def only_read_on(self, before: TickState) -> bool:
        """Since `before` sources were read on, and that is all that the state tells of."""
        state = self.state
        return (
            state.watch is before.watch
            and state.away is before.away
            and (state.generation, state.essence) == (before.generation, before.essence)
            and state.sources.keys() == before.sources.keys()
            and all(held.stands_as(before.sources[name]) for name, held in state.sources.items())
        )

    @property
    def progress(self) -> Progress:
        if self._combined is None or self._combined[0] is not self.state:
            sources = self.state.sources.values()
            files = {name: held.progress for source in sources for name, held in source.files.items()}
            self._combined = self.state, progress.combine(files) if files else self.item.progress
        return self._combined[1]

    @property
    def foreign(self) -> int:
        return sum(source.foreign for source in self.state.sources.values())


def decoded_state(key: AttemptKey, data: bytes) -> TickState:
    """What the last tick left; nothing where another build wrote it."""
    if not data:
        return TickState()
    try:
        return codec.decode(TickState, plain(data))
    except codec.CodecError as error:
        # Written by another build: reading starts again at the attempt's beginning, signals are kept by their ids.
        log.warning("detector_state_unreadable", attempt=str(key), error=str(error))
        return TickState()


def reports_of(
    sighting: Sighting,
    sources: Iterable[LogSource | MetricsSource | OpinionSource],
    scheduler: SchedulerView | None,
    now: datetime,
    *,
    others: Iterable[SourceReport] = (),
) -> tuple[SourceReport, ...]:
    """What every source gave for this attempt, so far. A source that could not answer says so."""
    reports = [_scheduler_report(sighting.item, scheduler, now), *others]
    for source in sources:
        held = sighting.state.sources.get(source.name)
        if held is None or (not held.cursor and not held.unavailable and not held.lines):
            continue  # not asked yet: the attempt has not begun
        first = held.unavailable[0] if held.unavailable else None
        reports.append(
            SourceReport(
                source=source.name,
                trust=source.trust,
                unavailable=first,
                newest_at=held.newest_at,
                lines=held.lines,
                foreign=held.foreign,
                capped=held.capped,
            )
        )
        reports.extend(
            SourceReport(source=source.name, trust=source.trust, unavailable=part) for part in held.unavailable[1:8]
        )
    return tuple(reports)


def scheduler_absent(view: SchedulerView | None, now: datetime) -> Unavailable | None:
    """What is missing of the scheduler: what its agent says, or the agent itself."""
    unavailable = view.unavailable[0] if view is not None and view.unavailable else None
    if unavailable is None and (view is None or now - view.heard_at > SCHEDULER_STALE):
        return SILENT
    return unavailable


def _scheduler_report(item: StoredAttempt, view: SchedulerView | None, now: datetime) -> SourceReport:
    unavailable = scheduler_absent(view, now)
    return SourceReport(source=SCHEDULER, trust=Trust.SCHEDULER, unavailable=unavailable, newest_at=item.observed_at)


def nodes_away(before: Mapping[str, Away], item: StoredAttempt) -> Mapping[str, Away]:
    """Which nodes the attempt has lost. While it lives, a node that is back was never lost; at its end the list stays:
    that a dead node is repaired and answers again does not change why the attempt ended.
    """
    live = item.attempt.state.live and item.attempt.ended_at is None
    away = {} if live else dict(before)
    for fact in item.nodes:
        if fact.state not in {NodeState.DOWN, NodeState.NOT_RESPONDING}:
            continue
        known = before.get(fact.name)
        if known is None:
            away[fact.name] = Away(state=fact.state, since=fact.since)
        else:
            # First it does not answer, much later it is called down: it went away when it stopped answering.
            worst = NodeState.DOWN if NodeState.DOWN in {known.state, fact.state} else fact.state
            since = min((moment for moment in (known.since, fact.since) if moment is not None), default=None)
            away[fact.name] = Away(state=worst, since=since)
    return away


def _with_away(nodes: tuple[NodeFact, ...], away: Mapping[str, Away]) -> tuple[NodeFact, ...]:
    return tuple(
        replace(fact, state=lost.state, since=lost.since) if (lost := away.get(fact.name)) is not None else fact
        for fact in nodes
    )


def snapshot_of(
    sighting: Sighting,
    reports: tuple[SourceReport, ...],
    mode: Mode,
    rule_signals: tuple[Signal, ...] = (),
    *,
    progress: Progress,
) -> Snapshot:
    """All that is known about the attempt now: the only input of its decision beside rules and policy.

    `rule_signals`: what log rules say now; not kept, since they are made anew at every tick. `progress`: the
    sighting's, with its times by the clock as it is now (`advisor.lasting`).
    """
    item = sighting.item
    files = [held for source in sighting.state.sources.values() for held in source.files.values()]
    return Snapshot(
        job=replace(item.job, mode=mode),
        attempt=item.attempt,
        signals=(
            *with_indices(sighting.signals, (held.gpus for held in files)),
            *sighting.conditions,
            *rule_signals,
        ),
        progress=progress,
        sources=reports,
        successor=item.successor,
        past=item.past,
        nodes=_with_away(item.nodes, sighting.state.away),
        advice=item.advice,
        nodes_fitting=item.nodes_fitting,
        user_excluded=item.user_excluded,
        other_nodes=item.other_nodes,
        dependents_running=item.dependents_running,
        orders=item.orders,
        stop=item.stop,
    )
