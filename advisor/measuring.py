"""From metrics sources to sightings: which attempts are measured when, and what their telemetry says.

A source is asked at its own interval, once for all attempts, and never waited for longer than `PATIENCE_SECONDS`: the
question goes on beside the tick and its answer is taken by a later one. An attempt that has ended is looked at at once,
for a scrape takes a while to show what ended it, and again until it can show nothing more.

What happened is added to the attempt's signals. What holds now (`Sighting.conditions`) is part of the snapshot only
while it holds; it is kept here, with the newest samples, and comes back one interval after another replica took over.
"""

import asyncio
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

import structlog

from advisor.core.columns import Columns
from advisor.core.hostlist import short
from advisor.core.measured import Span
from advisor.core.model import Signal, Unavailable
from advisor.core.rules import RuleSet
from advisor.core.scan import Scanned, fold_signals
from advisor.core.scan_state import FileState
from advisor.core.telemetry_watch import watch
from advisor.core.words import UnavailableReason
from advisor.gathering import Answered
from advisor.instruments import Instruments
from advisor.ports import Clock, MetricsBatch, MetricsRequest, MetricsSource
from advisor.sighting import Sighting, SourceState
from advisor.store.records import AttemptKey

log = structlog.get_logger(__name__)

PATIENCE_SECONDS = 0.4
READ_SECONDS_MAX = 60.0  # connectors have deadlines of their own; this one keeps a defect from stopping a source
ENDED_SECONDS = 3.0  # between two looks at an attempt that has ended
AFTER_END = timedelta(seconds=90)  # what came later ended nothing (`detection.NODE_FACT_LAG`)
FIRST_LOOK = timedelta(minutes=10)  # before which nothing is asked about an attempt that nobody has looked at
ABSORB_SECONDS_MAX = 0.25  # of one source in one tick; the rest of its answers comes with the next ones
GPUS = "gpus"  # in place of a file's name
AGAIN_INTERVALS = 9  # asked again where no samples are at hand: what the newest conditions are made of


@dataclass(slots=True)
class _Kept:
    """Of one attempt and one source. Lost with the process, and made anew from what is asked again."""

    recent: Columns = field(default_factory=Columns)
    conditions: tuple[Signal, ...] = ()
    problems: tuple[str, ...] = ()
    looked_at: float = 0.0


@dataclass(slots=True)
class _Line:
    """One source, the question to it that is on its way, and what of its last answers was not looked at yet."""

    source: MetricsSource
    kept: dict[AttemptKey, _Kept] = field(default_factory=dict)
    task: "asyncio.Task[Mapping[str, MetricsBatch | Unavailable]] | None" = None
    requests: Mapping[AttemptKey, MetricsRequest] = field(default_factory=dict)
    jobs: Mapping[str, str] = field(default_factory=dict)
    left: deque[tuple[AttemptKey, MetricsRequest, MetricsBatch | Unavailable]] = field(default_factory=deque)
    seen_at: datetime | None = None
    broken: bool = False


class Measurer:
    """Reads all metrics sources for all attempts, in few calls."""

    def __init__(
        self,
        *,
        sources: Sequence[MetricsSource],
        rules: RuleSet,
        clock: Clock,
        signals_max: int,
        instruments: Instruments | None = None,
    ) -> None:
        self._instruments = instruments or Instruments(clock)
        self.sources = tuple(sources)
        self.last: dict[str, Answered] = {}
        self._rules = rules.by_id()
        self._xids = rules.xids
        self._clock = clock
        self._signals_max = signals_max
        self._lines = [_Line(source) for source in self.sources]

    async def gather(self, sightings: Sequence[Sighting]) -> None:
        """Bring every sighting as far as its sources answer. A source that fails is a value."""
        await asyncio.gather(*(self._gather_from(line, sightings) for line in self._lines))

    def problems(self, source: str, key: AttemptKey) -> tuple[str, ...]:
        kept = next((line.kept.get(key) for line in self._lines if line.source.name == source), None)
        return kept.problems if kept is not None else ()

    def forget(self, jobs: Iterable[str]) -> None:
        """Another replica had these jobs: their samples are asked for again, and answers on their way do not count."""
        gone = frozenset(jobs)
        for line in self._lines:
            line.kept = {key: kept for key, kept in line.kept.items() if key.job_key not in gone}
            line.requests = {key: asked for key, asked in line.requests.items() if key.job_key not in gone}
            line.left = deque(item for item in line.left if item[0].job_key not in gone)

    async def close(self) -> None:
        """Ends what is on its way; the sources are closed by whoever opened them."""
        tasks = [line.task for line in self._lines if line.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _gather_from(self, line: _Line, sightings: Sequence[Sighting]) -> None:
        known = {sighting.key: sighting for sighting in sightings}
        line.kept = {key: kept for key, kept in line.kept.items() if key in known}
        if line.task is None and not line.left:
            self._start(line, sightings)
        task = line.task
        if task is not None:
            await asyncio.wait({task}, timeout=PATIENCE_SECONDS)
            if task.done():
                line.task, line.seen_at = None, self._clock.now()
                self._take(line, task.result(), line.seen_at)
        if line.left and line.seen_at is not None:
            await asyncio.to_thread(self._absorb_some, line, known, line.seen_at)
        for sighting in sightings:
            kept = line.kept.get(sighting.key)
            if kept is not None and kept.conditions:
                sighting.conditions = (*sighting.conditions, *kept.conditions)

    def _start(self, line: _Line, sightings: Iterable[Sighting]) -> None:
        now, monotonic = self._clock.now(), self._clock.monotonic()
        requests = {}
        for sighting in sightings:
            request = self._request(line, sighting, now, monotonic)
            if request is not None:
                requests[sighting.key] = request
        if not requests:
            return
        line.requests = requests
        line.jobs = {str(s.key): s.item.job.job_id for s in sightings if s.key in requests}
        line.task = asyncio.create_task(self._read(line, list(requests.values())))

    def _request(self, line: _Line, sighting: Sighting, now: datetime, monotonic: float) -> MetricsRequest | None:
        """What to ask about one attempt now, if anything."""
        attempt = sighting.item.attempt
        held = sighting.state.sources.get(line.source.name, SourceState())
        begun = attempt.started_at is not None or attempt.ended_at is not None or attempt.state.live
        if sighting.failed is not None or not begun or held.final or not attempt.nodes:
            return None
        ended_at, interval = attempt.ended_at, line.source.interval_seconds
        kept = line.kept.get(sighting.key)
        read_to = datetime.fromisoformat(held.cursor) if held.cursor else None
        if kept is not None:
            # The first look after the end comes at once.
            fresh = ended_at is not None and (read_to is None or read_to <= ended_at)
            wait = 0.0 if fresh and not held.unavailable else ENDED_SECONDS if ended_at is not None else interval
            if monotonic - kept.looked_at < min(wait, interval):
                return None
        until = now if ended_at is None else min(now, ended_at + AFTER_END)
        first = max((ended_at or now) - FIRST_LOOK, (attempt.started_at or now) - timedelta(seconds=2 * interval))
        since = read_to or first
        if kept is None or not kept.recent.fields:
            since = max(since - timedelta(seconds=AGAIN_INTERVALS * interval), first) if read_to is not None else first
        if since >= until:
            since = until - timedelta(seconds=interval)
        nodes = tuple(short(node) for node in attempt.nodes)
        return MetricsRequest(key=str(sighting.key), nodes=nodes, since=since, until=until)

    async def _read(self, line: _Line, requests: Sequence[MetricsRequest]) -> Mapping[str, MetricsBatch | Unavailable]:
        """What the source answers. One that raises or hangs is absent, and no more than that."""
        began = self._clock.monotonic()
        answers = await self._answers(line, requests)
        self._instruments.source_answered(line.source.name, self._clock.monotonic() - began, answers)
        return answers

    async def _answers(
        self, line: _Line, requests: Sequence[MetricsRequest]
    ) -> Mapping[str, MetricsBatch | Unavailable]:
        name = line.source.name
        try:
            async with asyncio.timeout(READ_SECONDS_MAX):
                answers = await line.source.read(requests)
        except Exception as error:  # the boundary to a connector: its defect is not ours
            if not line.broken:
                log.exception("source_failed", source=name)
            line.broken = True
            late = isinstance(error, TimeoutError)
            reason = UnavailableReason.TIMEOUT if late else UnavailableReason.GARBLED
            detail = f"no answer within {READ_SECONDS_MAX:g} s" if late else f"the connector failed: {error!r:.200}"
            absent = Unavailable(source=name, reason=reason, detail=detail)
            return {request.key: absent for request in requests}
        line.broken = False
        return answers

    def _take(self, line: _Line, answers: Mapping[str, MetricsBatch | Unavailable], seen_at: datetime) -> None:
        missing = Unavailable(source=line.source.name, reason=UnavailableReason.GARBLED, detail="no answer")
        line.left = deque((key, request, answers.get(str(key), missing)) for key, request in line.requests.items())
        monotonic = self._clock.monotonic()
        for key in line.requests:
            line.kept.setdefault(key, _Kept()).looked_at = monotonic
        self._remember(line, line.requests, answers, seen_at)

    def _absorb_some(self, line: _Line, known: Mapping[AttemptKey, Sighting], seen_at: datetime) -> None:
        """As many answers as there is time for; at least one."""
        until = self._clock.monotonic() + ABSORB_SECONDS_MAX
        while line.left:
            key, request, answer = line.left.popleft()
            sighting = known.get(key)
            if sighting is None or sighting.failed is not None:
                continue
            kept = line.kept.setdefault(key, _Kept())
            try:
                self._absorb(line.source, sighting, kept, request, answer, seen_at)
            except Exception as error:  # one job's samples must not stop the others' tick
                sighting.failed = error
            if self._clock.monotonic() >= until:
                break

    def _absorb(
        self,
        source: MetricsSource,
        sighting: Sighting,
        kept: _Kept,
        request: MetricsRequest,
        answer: MetricsBatch | Unavailable,
        seen_at: datetime,
    ) -> None:
        attempt = sighting.item.attempt
        before = sighting.state.sources.get(source.name, SourceState())
        last = attempt.ended_at + AFTER_END if attempt.ended_at is not None else None
        over = last is not None and request.until >= last
        if isinstance(answer, Unavailable):
            # What it said before need not hold any more. That nothing came until it was over is final, too.
            kept.conditions = ()
            held = replace(before, unavailable=(answer,), final=over)
        else:
            span = Span(
                nodes=request.nodes,
                started_at=attempt.started_at,
                ended_at=attempt.ended_at,
                ranks_per_node=attempt.tasks_per_node,
                blur=timedelta(seconds=source.blur_seconds),
            )
            found = watch(
                kept.recent, answer.samples, self._rules, self._xids, span, source=source.name, seen_at=seen_at
            )
            kept.recent, kept.conditions, kept.problems = found.recent, found.conditions, answer.problems
            if found.events:
                scanned = Scanned(state=FileState(), signals=found.events)
                sighting.signals = fold_signals(sighting.signals, scanned, self._signals_max)
            newest = max((sample.at for sample in answer.samples), default=None)
            held = replace(
                before,
                cursor=answer.until.isoformat(),
                final=over and answer.until >= request.until,
                lines=before.lines + len(answer.samples),
                foreign=before.foreign + found.foreign,
                newest_at=max((at for at in (before.newest_at, newest) if at is not None), default=None),
                capped=answer.until < request.until,
                unavailable=_silent(source.name, answer),
                files=_with_gpus(before.files, answer.gpus),
            )
        if held != before:
            sighting.state = replace(sighting.state, sources={**sighting.state.sources, source.name: held})

    def _remember(
        self,
        line: _Line,
        requests: Mapping[AttemptKey, MetricsRequest],
        answers: Mapping[str, MetricsBatch | Unavailable],
        seen_at: datetime,
    ) -> None:
        """How the source answered last, for `status` and `doctor`."""
        name = line.source.name
        failures: list[tuple[str, Unavailable]] = []
        parts: list[tuple[str, Unavailable]] = []
        for key, answer in answers.items():
            if isinstance(answer, Unavailable):
                failures.append((key, answer))
            else:
                parts.extend((key, part) for part in _silent(name, answer))
        key, first = next(iter((*failures, *parts)), ("", None))
        self.last[name] = Answered(
            at=seen_at, attempts=len(requests), failed=len(failures), first=first, job_id=line.jobs.get(key, "")
        )


def _with_gpus(files: Mapping[str, FileState], gpus: Mapping[str, int]) -> Mapping[str, FileState]:
    """What a source tells of GPUs' addresses is kept as what a file tells of them: kernel lines know no index."""
    if not gpus:
        return files
    known = files.get(GPUS, FileState())
    return files if known.gpus == gpus else {**files, GPUS: replace(known, gpus=dict(sorted(gpus.items())))}


def _silent(source: str, answer: MetricsBatch) -> tuple[Unavailable, ...]:
    """Nodes that the source told nothing of are not well: they are not known."""
    if not answer.silent:
        return ()
    told = [f"{node} ({why})" if (why := answer.silent_why.get(node)) else node for node in answer.silent[:8]]
    names = ", ".join(told) + (f" and {len(answer.silent) - 8} more" if len(answer.silent) > 8 else "")
    detail = f"{len(answer.silent)} nodes without samples: {names}"
    return (Unavailable(source=source, reason=UnavailableReason.STALE, detail=detail),)
