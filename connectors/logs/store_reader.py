"""From requests for attempts to few questions to a log store, and back: `LogSource` over any `LogStore`.

**Few questions.** Attempts that were read up to about the same moment are asked for in one question, up to
`jobs_per_question` of them; a question goes from the oldest moment that one of them still needs. So the number of
questions depends on the number of thousands of jobs, not of jobs. The server's pace bounds them in any case: what it
does not allow now is asked at the next tick, who waited longest first.

**Nothing lost, nothing twice.** Collectors deliver late and out of order, and VictoriaLogs shows a line seconds after
it took it. So a read begins `near_seconds` before the last one's end, and every `sweep_seconds` one begins
`overlap_seconds` before; lines that the cursor knows are left out. A line that is later than that is never seen:
the overlap is the bound, and it is the operator's to choose. Lines older than ones already delivered of their stream
are given as a stream of their own, `NAME (late)`, for a step that comes late must not look like one that went back.

**Never in the way.** A slow store does not hold the tick: after `patience_seconds` the questions go on in the
background and the attempts are answered "nothing new". Only when the store's own time-out is over they are
`Unavailable`. An answer that is too much at once, or that broke off, makes the next question's window half as long.

**Filtered where it pays.** A filter costs a store more than it saves while jobs print little: so it is used once
answers hold `filter_lines`, and tried without again after `filter_seconds`.

**Left out is not silent.** Where the store filters for us, attempts from which nothing came for a while are counted
without the filter, all in one question, and the number is told as `LogChunk.skipped`.

**Empty is not absent.** A wrong tenant is answered with 200 and nothing. So an attempt of which the store never showed
a line is looked for without the filter, and answered `Unavailable(missing)` until it has one.
"""

import asyncio
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any
from zlib import crc32

from advisor.core.hostlist import short
from advisor.core.model import Unavailable
from advisor.core.words import Trust, UnavailableReason
from advisor.ports import Clock, LogBatch, LogChunk, LogRequest
from connectors.logs.ahead import Ahead
from connectors.logs.cursor import CursorError
from connectors.logs.pile import Pile, Stretch
from connectors.logs.store import NS, Answer, Ask, LogStore, Stream
from connectors.logs.store_cursor import Known, Position, decode, encode, line_sum, stream_hash
from connectors.web.server import AskError

LATE = " (late)"
FORGET_SECONDS = 600.0
SWEEP_ANSWERS_MAX = 8
COUNT_SECONDS_MAX = 86_400.0  # servers bound how far back a count may go
EVER_SECONDS = 30 * 86_400.0
BEHIND_SECONDS_MAX = 86_400.0  # that our clock may be behind the scheduler's: servers bound how far a question reaches
KNOWN_AHEAD = 3  # times as many lines may be remembered, where they are dated after now
NEVER_SEEN = "no stream was ever seen for this selector, no line of any job: are tenant and selector right?"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreLimits:
    """See the module. `ahead_seconds`: how far clocks of nodes may be ahead of ours; `behind`: of the scheduler's."""

    near_seconds: float = 10.0
    overlap_seconds: float = 120.0
    sweep_seconds: float = 15.0
    settle_seconds: float = 10.0
    ahead_seconds: float = 600.0
    behind_seconds: float = 5.0
    window_seconds: float = 3600.0  # of one question about the past
    window_seconds_min: float = 1.0
    patience_seconds: float = 0.4
    quiet_seconds: float = 60.0  # without any line of any attempt: is the tenant still right?
    missing_seconds: float = 10.0  # between two looks for attempts without a line
    pulse_seconds: float = 10.0  # between two counts of lines left out
    jobs_per_question: int = 1_000
    questions_at_once: int = 3
    answer_bytes: int = 16 * 1024 * 1024
    known_max: int = 20_000  # lines remembered of one attempt
    filter_lines: int = 5_000  # of an answer, from which on the store is asked to leave out what no rule speaks of
    filter_seconds: float = 300.0


@dataclass(slots=True)
class _Wish:
    """One request with its decoded cursor and the stretch of time that it asks for."""

    request: LogRequest
    position: Position
    start_ns: int
    last_ns: int  # no line from there on is the attempt's
    sweep: bool
    live: bool


@dataclass(slots=True)
class _Heard:
    """Until when lines of an attempt are accounted for, which stream spoke last, and lines left out since."""

    until_ns: int
    stream: str
    skipped: int = 0


@dataclass(frozen=True, slots=True)
class _Pass:
    """A stretch of time that one answer could not hold: how far it was read, in how many. `sweep`: it began at the
    oldest moment.
    """

    reached_ns: int
    sweep: bool
    answers: int


@dataclass(slots=True)
class _Left:
    """What was read for one attempt and did not fit into its last batch, for the cursor that this batch ended with."""

    cursor: str
    pile: Pile
    until_ns: int
    wish: _Wish


@dataclass(slots=True)
class _Running:
    task: asyncio.Task[Answer]
    wishes: Mapping[str, _Wish]
    ask: Ask
    since: float
    asked_ns: int


def to_ns(at: datetime) -> int:
    return (at - _EPOCH) // timedelta(microseconds=1) * 1000


def from_ns(ns: int) -> datetime:
    return _EPOCH + timedelta(microseconds=ns // 1000)


class StoreLogs:
    """Implements `LogSource` over a `LogStore`."""

    def __init__(
        self,
        name: str,
        store: LogStore,
        *,
        clock: Clock,
        trust: Trust = Trust.LOG,
        limits: StoreLimits | None = None,
        whole: bool = False,
        of_nodes: bool = False,
        written: Callable[[int, Stream, bytes], bytes] | None = None,
    ) -> None:
        """`of_nodes`: lines are of nodes instead of jobs. `written`: a line as it is given on; as it is without."""
        self.name = name
        self.trust = trust
        self.store = store
        self._ahead = Ahead(store)
        self._clock = clock
        self._limits = limits or StoreLimits()
        self._whole = whole
        self._of_nodes = of_nodes
        self._written = written
        self._window_seconds = self._limits.window_seconds
        self._running: list[_Running] = []
        self._left: dict[str, _Left] = {}
        self._given: dict[str, tuple[str, LogBatch]] = {}
        self._reached: dict[
            str, tuple[str, Position]
        ] = {}  # what the newest cursor of each says, which need not be read
        self._passes: dict[str, _Pass] = {}
        self._served: dict[str, float] = {}
        self._wanted: dict[str, float] = {}
        self._heard: dict[str, _Heard] = {}
        self._pulse: asyncio.Task[None] | None = None
        self._pulsed = clock.monotonic()
        self._counting: asyncio.Task[None] | None = None
        self._counted = -1e9
        self._told = (0, clock.monotonic())  # what a scheduler said the time was, and when
        self._missing: dict[str, Unavailable | None] = {}  # None: it has lines, though none was sent
        self._fruitful = clock.monotonic()
        self._filtering_until = -1e9 if self._limits.filter_lines else 1e18
        self._closed = False

    async def read(self, requests: Sequence[LogRequest]) -> Mapping[str, LogBatch | Unavailable]:
        if self._closed:
            raise RuntimeError("the source is closed")
        answers: dict[str, LogBatch | Unavailable] = {}
        wishes: dict[str, _Wish] = {}
        now_ns = to_ns(self._clock.now())
        end_ns = self._end(requests, now_ns)
        by_job: dict[str, list[LogRequest]] = {}
        for request in requests:
            by_job.setdefault(request.job_id, []).append(request)
        for request in requests:
            planned = self._plan(request, by_job[request.job_id], now_ns, end_ns)
            if isinstance(planned, _Wish):
                wishes[request.key] = planned
            else:
                answers[request.key] = planned
        busy = {key for running in self._running for key in running.wishes}
        self._start([wish for key, wish in wishes.items() if key not in busy], now_ns, end_ns)
        await self._wait()
        for running in [item for item in self._running if item.task.done()]:
            self._running.remove(running)
            answers.update(self._finish(running, wishes))
        for key, wish in wishes.items():
            # No answer yet. That is nothing new, and no absence before the store's own time is over.
            answers.setdefault(key, LogBatch(chunks=(), cursor=wish.request.cursor))
        await self._look_for_missing(wishes, answers, now_ns, end_ns)
        if self.store.filters and not self._whole:
            await self._count_left_out(wishes, answers, now_ns)
        self._forget(requests)
        return answers

    async def close(self) -> None:
        self._closed = True
        tasks: list[asyncio.Task[Any]] = [running.task for running in self._running]
        tasks.extend(task for task in (self._counting, self._pulse) if task is not None)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._running.clear()
        await self._ahead.close()
        await self.store.close()

    # Planning

    def _plan(
        self, request: LogRequest, neighbours: Sequence[LogRequest], now_ns: int, end_ns: int
    ) -> _Wish | LogBatch | Unavailable:
        try:
            position = self._position(request)
        except CursorError as error:
            return self._absent(UnavailableReason.GARBLED, f"{request.key}: {error}")
        begun = request.started_at or request.ended_at
        if begun is None:
            return self._absent(UnavailableReason.MISSING, f"{request.key}: the attempt has not started")
        given = self._given.get(request.key)
        if given is not None and given[0] == request.cursor and given[1].chunks:
            return given[1]  # it was not taken: the same bytes again
        limits = self._limits
        first_ns, last_ns = self._span(request, begun, neighbours, end_ns)
        if first_ns >= end_ns:
            text = f"{request.key}: our clock is {(first_ns - now_ns) // NS} seconds behind its start: is it right?"
            return self._absent(UnavailableReason.MISSING, text)
        left = self._left.pop(request.key, None)
        if left is not None and left.cursor == request.cursor:
            left.wish.request, left.wish.position = request, position
            return self._cut(left.wish, left.pile, left.until_ns, (), now_ns)
        # Never from ahead of our clock on: where that is behind the scheduler's, it would look as if it were set back.
        near_ns = now_ns - int(limits.near_seconds * NS)
        if not position.read_ns:
            begin_ns = min(first_ns, near_ns)
            position = replace(position, read_ns=begin_ns, settled_ns=begin_ns, swept_ns=now_ns)
        elif min(position.settled_ns, position.read_ns) > now_ns:
            # The clock was set back by more than the overlap. What was there before that was delivered, and what is
            # still known of it is left out; else all would be lost until the clock is where it was.
            known = {
                name: frozenset(entry for entry in item if entry[0] < end_ns) for name, item in position.streams.items()
            }
            streams = {name: item for name, item in known.items() if item}
            position = replace(position, read_ns=near_ns, settled_ns=near_ns, swept_ns=now_ns, streams=streams)
            self._passes.pop(request.key, None)
        under_way = self._passes.get(request.key)
        if under_way is not None:
            sweep, start_ns = under_way.sweep, max(under_way.reached_ns, position.settled_ns)
        else:
            sweep = self._sweeps(request.key, position.swept_ns, now_ns) or last_ns <= now_ns
            near_ns = position.read_ns - int(limits.near_seconds * NS)
            start_ns = max(first_ns, position.settled_ns, 0 if sweep else near_ns)
        live = now_ns - start_ns <= int((limits.overlap_seconds + limits.sweep_seconds * 2) * NS)
        return _Wish(request, position, start_ns, last_ns, sweep, live)

    def _position(self, request: LogRequest) -> Position:
        """Raises `CursorError`."""
        cursor, position = self._reached.get(request.key, ("", Position()))
        return position if cursor == request.cursor else decode(request.cursor)

    def _sweeps(self, key: str, swept_ns: int, now_ns: int) -> bool:
        """Every attempt at moments of its own: thousands that are swept together hold up whatever is new meanwhile."""
        every_ns = max(1, int(self._limits.sweep_seconds * NS))
        own_ns = crc32(key.encode()) * NS // 1000 % every_ns
        return (now_ns - own_ns) // every_ns != (swept_ns - own_ns) // every_ns

    def _span(
        self, request: LogRequest, begun: datetime, neighbours: Sequence[LogRequest], end_ns: int
    ) -> tuple[int, int]:
        """The time whose lines are the attempt's, for the job's other attempts have the same label."""
        limits = self._limits
        first_ns = to_ns(begun) - int(limits.behind_seconds * NS)
        last_ns = end_ns
        if request.ended_at is not None:
            last_ns = to_ns(request.ended_at) + int(limits.settle_seconds * NS)
        for other in neighbours:
            if other.attempt < request.attempt and other.ended_at is not None:
                first_ns = max(first_ns, to_ns(other.ended_at))
            if other.attempt > request.attempt and other.started_at is not None:
                ended_ns = to_ns(request.ended_at) if request.ended_at is not None else 0
                last_ns = min(last_ns, max(ended_ns, to_ns(other.started_at) - int(limits.behind_seconds * NS)))
        return first_ns, last_ns

    def _end(self, requests: Sequence[LogRequest], now_ns: int) -> int:
        """Until when stores are asked. No job has started in the future: where one has, our clock is behind, and
        lines are dated by clocks that are not. Asking for too much costs little; positions follow our own clock.
        """
        now, (told_ns, told) = self._clock.monotonic(), self._told
        said = [to_ns(at) for request in requests for at in (request.started_at, request.ended_at) if at is not None]
        latest_ns = min(max(said, default=0), now_ns + int(BEHIND_SECONDS_MAX * NS))
        elapsed_ns = told_ns + int((now - told) * NS)
        if latest_ns > elapsed_ns:
            self._told, elapsed_ns = (latest_ns, now), latest_ns
        real_ns = max(now_ns, min(elapsed_ns, now_ns + int(BEHIND_SECONDS_MAX * NS)))
        return real_ns + int(self._limits.ahead_seconds * NS)

    def _start(self, wishes: Sequence[_Wish], now_ns: int, end_ns: int) -> None:
        """Questions for as many wishes as may be asked at once: the present first, then the past, oldest turn first."""
        limits = self._limits
        for whole in (False, True):
            chosen = [wish for wish in wishes if (self._whole or wish.request.whole) is whole]
            chosen.sort(key=lambda wish: self._served.get(wish.request.key, 0.0))
            live = [wish for wish in chosen if wish.live]
            # Apart: a question begins at the oldest moment that one of its attempts needs.
            for alike in ([w for w in live if w.sweep], [w for w in live if not w.sweep]):
                for at in range(0, len(alike), limits.jobs_per_question):
                    group = alike[at : at + limits.jobs_per_question]
                    self._ask(group, min(wish.start_ns for wish in group), end_ns, whole, now_ns)
            past = [wish for wish in chosen if not wish.live]
            while past and len(self._running) < limits.questions_at_once:
                start_ns = past[0].start_ns
                reach_ns = start_ns + int(self._window_seconds * NS) // 8
                group = [wish for wish in past if start_ns <= wish.start_ns <= reach_ns][: limits.jobs_per_question]
                self._ask(group, start_ns, end_ns, whole, now_ns)
                taken = {wish.request.key for wish in group}
                past = [wish for wish in past if wish.request.key not in taken]

    def _ask(self, wishes: Sequence[_Wish], start_ns: int, end_ns: int, whole: bool, now_ns: int) -> None:
        if len(self._running) >= self._limits.questions_at_once:
            return
        until_ns = start_ns + int(self._window_seconds * NS)
        ask = Ask(
            jobs=() if self._of_nodes else tuple(sorted({wish.request.job_id for wish in wishes})),
            start_ns=start_ns,
            end_ns=end_ns if until_ns >= now_ns else until_ns,
            whole=whole or self._clock.monotonic() >= self._filtering_until,
            bytes_max=self._limits.answer_bytes,
            urgent=wishes[0].live,
        )
        task = asyncio.create_task(self._ahead.lines(ask))
        known = {wish.request.key: wish for wish in wishes}
        self._running.append(_Running(task, known, ask, self._clock.monotonic(), now_ns))

    async def _wait(self) -> None:
        if self._running:
            tasks = [running.task for running in self._running]
            await asyncio.wait(tasks, timeout=self._limits.patience_seconds)

    def _forget(self, requests: Sequence[LogRequest]) -> None:
        """What was kept for attempts that nobody asks for any more. One call may be about some of them only."""
        now = self._clock.monotonic()
        self._wanted.update(dict.fromkeys((request.key for request in requests), now))
        for key in [key for key, at in self._wanted.items() if now - at > FORGET_SECONDS]:
            del self._wanted[key]
            for held in (
                self._left,
                self._passes,
                self._given,
                self._reached,
                self._served,
                self._missing,
                self._heard,
            ):
                held.pop(key, None)

    # Answers

    def _finish(self, running: _Running, wishes: Mapping[str, _Wish]) -> dict[str, LogBatch | Unavailable]:
        limits = self._limits
        try:
            answer = running.task.result()
        except AskError as error:
            if error.broken:
                seconds = (min(running.ask.end_ns, running.asked_ns) - running.ask.start_ns) / NS
                self._window_seconds = max(limits.window_seconds_min, min(self._window_seconds, seconds) / 2)
            absent = self._absent(error.reason, error.detail)
            return {key: absent for key in running.wishes if key in wishes}
        self._window_seconds = min(limits.window_seconds, self._window_seconds * 2)
        if running.ask.whole and sum(len(stream.times) for stream in answer.streams) >= limits.filter_lines > 0:
            self._filtering_until = self._clock.monotonic() + limits.filter_seconds
        by_subject: dict[str, list[Stream]] = {}
        for stream in answer.streams:
            by_subject.setdefault(short(stream.node or "") if self._of_nodes else stream.job, []).append(stream)
        if by_subject:
            self._fruitful = self._clock.monotonic()
        found: dict[str, LogBatch | Unavailable] = {}
        for key, asked in running.wishes.items():
            wish = wishes.get(key)
            if wish is None or wish.request.cursor != asked.request.cursor:
                continue  # meanwhile it began anew, or ended
            self._served[key] = running.since
            asked.request, asked.last_ns = wish.request, wish.last_ns
            if self._of_nodes:
                nodes = wish.request.nodes
                mine = [stream for node, some in by_subject.items() if node in nodes for stream in some]
            else:
                mine = by_subject.get(wish.request.job_id, [])
            found[key] = self._batch(asked, mine, answer, running.asked_ns)
        return found

    def _batch(self, wish: _Wish, streams: Sequence[Stream], answer: Answer, asked_ns: int) -> LogBatch:
        """What is new for one attempt."""
        fresh = [_new(wish, stream).between(wish.start_ns, wish.last_ns) for stream in streams]
        return self._cut(wish, Pile(fresh), min(answer.until_ns, asked_ns), answer.gaps, asked_ns)

    def _cut(self, wish: _Wish, pile: Pile, until_ns: int, gaps: tuple[str, ...], now_ns: int) -> LogBatch:
        """The next lines that fit, and the cursor after them; the rest is kept for that cursor."""
        taken, next_ns = pile.take(wish.request.bytes_max)
        rest = next_ns is not None
        reached_ns = min(until_ns, next_ns) if next_ns is not None else until_ns
        complete = not rest and until_ns >= min(now_ns, wish.last_ns)
        over = complete and wish.sweep and wish.request.ended_at is not None and wish.last_ns <= now_ns
        horizon_ns = now_ns - int(self._limits.overlap_seconds * NS)
        before = self._passes.pop(wish.request.key, None)
        answers = 1 + (before.answers if before is not None else 0)
        # A flood may not keep what is new waiting: what is not old enough to be settled is swept again anyway.
        flooded = answers >= SWEEP_ANSWERS_MAX and reached_ns >= horizon_ns and wish.last_ns > now_ns
        swept = wish.sweep and (complete or flooded)
        if not complete and not swept:
            self._passes[wish.request.key] = _Pass(reached_ns, wish.sweep, answers)
        young = now_ns - wish.position.read_ns < self._limits.sweep_seconds * NS
        if complete and not (taken or over or swept or gaps) and young and wish.request.cursor:
            return LogBatch(chunks=(), cursor=wish.request.cursor)  # nothing to remember: writing it is saved
        position = self._advanced(wish, taken, reached_ns, now_ns, swept=swept)
        cursor = encode(position)
        self._reached[wish.request.key] = cursor, position
        if rest:
            self._left[wish.request.key] = _Left(cursor, pile, until_ns, wish)
        batch = LogBatch(
            chunks=self._chunks(wish, taken),
            cursor=cursor,
            more=not complete,
            unavailable=tuple(self._absent(UnavailableReason.LIMIT, gap) for gap in gaps),
            final=over,
        )
        self._given[wish.request.key] = (wish.request.cursor, batch)
        return batch

    def _advanced(
        self, wish: _Wish, taken: Sequence[Stretch], reached_ns: int, now_ns: int, *, swept: bool
    ) -> Position:
        limits, before = self._limits, wish.position
        read_ns = max(before.read_ns, reached_ns)
        settled_ns = before.settled_ns
        if wish.sweep or not wish.live:
            # Only a read that began at the oldest moment settles, and only what was old enough when it was read.
            settled_ns = max(settled_ns, min(reached_ns, now_ns - int(limits.overlap_seconds * NS)))
        # The newest lines are remembered also where none is asked for again: our clock may be set back.
        newest_ns = max(
            (part.stream.times[part.high - 1] for part in taken if part.high > part.low),
            default=max((max(item)[0] for item in before.streams.values() if item), default=settled_ns),
        )
        oldest_ns = min(settled_ns, newest_ns - int(limits.near_seconds * NS))
        known = {name: {entry for entry in item if entry[0] >= oldest_ns} for name, item in before.streams.items()}
        for part in taken:
            times, texts, marks = part.stream.times, part.stream.texts, part.stream.marks
            first = bisect_left(times, oldest_ns, part.low, part.high)
            if first < part.high:
                entries = ((times[at], line_sum(texts[at], marks[at])) for at in range(first, part.high))
                known.setdefault(stream_hash(part.stream.name), set()).update(entries)
        times = sorted(entry[0] for item in known.values() for entry in item)
        most = limits.known_max
        if len(times) > most and times[-most - 1] >= now_ns:
            most = min(most * KNOWN_AHEAD, len(times) - bisect_left(times, now_ns))
        if len(times) > most:
            # Too many to remember: what was written before is not asked for again.
            oldest_ns = times[-most - 1] + 1
            settled_ns = max(settled_ns, oldest_ns)
        kept = {name: frozenset(entry for entry in item if entry[0] >= oldest_ns) for name, item in known.items()}
        return Position(
            read_ns=read_ns,
            settled_ns=settled_ns,
            swept_ns=now_ns if swept else before.swept_ns,
            alive=before.alive or bool(taken),
            streams={name: item for name, item in kept.items() if item},
        )

    def _chunks(self, wish: _Wish, taken: Sequence[Stretch]) -> tuple[LogChunk, ...]:
        """One chunk per stream, and one for its late lines."""
        chunks = []
        for part in taken:
            stream = part.stream
            known = _delivered(wish, stream)
            newest = max(known)[0] if known else 0
            punctual = bisect_left(stream.times, newest, part.low, part.high) if known else part.low
            if part.low < punctual:
                chunks.append(self._chunk(stream, part.low, punctual, stream.name + LATE))
            if punctual < part.high:
                chunks.append(self._chunk(stream, punctual, part.high, stream.name))
        return tuple(chunks)

    def _chunk(self, stream: Stream, low: int, high: int, name: str) -> LogChunk:
        texts = stream.texts[low:high]
        if self._written is not None:
            moments = stream.times[low:high]
            texts = [self._written(ns, stream, text) for ns, text in zip(moments, texts, strict=True)]
        texts.append(b"")
        modified_at = from_ns(stream.times[high - 1])
        return LogChunk(file=name, offset=0, data=b"\n".join(texts), node=stream.node, modified_at=modified_at)

    # Absence

    async def _look_for_missing(
        self, wishes: Mapping[str, _Wish], answers: dict[str, LogBatch | Unavailable], now_ns: int, end_ns: int
    ) -> None:
        """Attempts of which no line was ever seen: has the store any, sent or not? And has it still any at all?"""
        unseen = {}
        for key, wish in wishes.items():
            answer = answers[key]
            if isinstance(answer, LogBatch) and not answer.chunks and not decode(answer.cursor).alive:
                unseen[key] = wish
        limits, now = self._limits, self._clock.monotonic()
        quiet = bool(wishes) and now - self._fruitful > limits.quiet_seconds
        due = now - self._counted >= (limits.missing_seconds if unseen else limits.quiet_seconds)
        if (unseen or quiet) and due and self._counting is None:
            self._counted = now
            self._counting = asyncio.create_task(self._count(unseen or wishes, now_ns, end_ns))
        if self._counting is not None:
            await asyncio.wait({self._counting}, timeout=limits.patience_seconds)
            if self._counting.done():
                counted, self._counting = self._counting, None
                counted.result()
        for key in wishes:
            answer, missing = answers[key], self._missing.get(key)
            if not isinstance(answer, LogBatch) or answer.chunks or key not in self._missing:
                continue
            if missing is None and key in unseen:
                answers[key] = replace(answer, cursor=encode(replace(decode(answer.cursor), alive=True)))
            elif missing is not None and answer.final:
                answers[key] = replace(answer, unavailable=(*answer.unavailable, missing))
            elif missing is not None:
                answers[key] = missing

    async def _count(self, wishes: Mapping[str, _Wish], now_ns: int, end_ns: int) -> None:
        """Raises nothing that a server can do."""
        limits = self._limits
        chosen = dict(list(wishes.items())[: limits.jobs_per_question])
        oldest_ns = min(wish.start_ns for wish in chosen.values()) - int(limits.overlap_seconds * NS)
        start_ns = max(oldest_ns, now_ns - int(COUNT_SECONDS_MAX * NS))
        jobs = sorted({wish.request.job_id for wish in chosen.values()})
        try:
            counts = await self.store.counts(jobs, start_ns, end_ns)
            rest = [job for job in jobs if job not in counts]
            later = await self.store.counts(rest, end_ns, end_ns + int(COUNT_SECONDS_MAX * NS)) if rest else {}
            anything = bool(counts) or await self.store.anything(now_ns - int(limits.window_seconds * NS), now_ns)
            ever = anything or await self.store.anything(now_ns - int(EVER_SECONDS * NS), now_ns)
        except AskError as error:
            absent = self._absent(error.reason, f"looking for lines of jobs: {error.detail}")
            self._missing.update(dict.fromkeys(chosen, absent))
            return
        for key, wish in chosen.items():
            if wish.request.job_id in counts:
                self._missing[key] = None
            elif wish.request.job_id in later:
                text = f"{key}: all its lines are dated later than {from_ns(end_ns):%H:%M:%S} UTC: is our clock behind?"
                self._missing[key] = self._absent(UnavailableReason.MISSING, text)
            elif not anything:
                text = (
                    NEVER_SEEN if not ever else "the store has no line of any job for an hour: is anything collected?"
                )
                self._missing[key] = self._absent(UnavailableReason.MISSING, text)
            elif not wish.position.alive:
                text = f"{key}: the store has no line of job {wish.request.job_id}"
                self._missing[key] = self._absent(UnavailableReason.MISSING, text)
            else:
                self._missing[key] = None

    # Lines left out

    async def _count_left_out(
        self, wishes: Mapping[str, _Wish], answers: dict[str, LogBatch | Unavailable], now_ns: int
    ) -> None:
        """Tell of attempts from which nothing came for a while how many lines were left out meanwhile."""
        quiet: dict[str, _Wish] = {}
        for key, wish in wishes.items():
            answer = answers[key]
            if not isinstance(answer, LogBatch) or wish.request.whole or wish.request.ended_at is not None:
                continue
            heard = self._heard.setdefault(key, _Heard(now_ns, "output"))
            if answer.chunks:
                heard.until_ns, heard.stream, heard.skipped = now_ns, answer.chunks[-1].file, 0
                continue
            if heard.skipped:
                told = LogChunk(
                    file=heard.stream, offset=0, data=b"", skipped=heard.skipped, modified_at=from_ns(heard.until_ns)
                )
                answers[key] = replace(answer, chunks=(told,))
                heard.skipped = 0
            quiet[key] = wish
        limits, now = self._limits, self._clock.monotonic()
        if quiet and self._pulse is None and now - self._pulsed >= limits.pulse_seconds:
            self._pulsed = now
            self._pulse = asyncio.create_task(self._take_pulse(quiet, now_ns))
        if self._pulse is not None:
            await asyncio.wait({self._pulse}, timeout=limits.patience_seconds)
            if self._pulse.done():
                pulse, self._pulse = self._pulse, None
                pulse.result()

    async def _take_pulse(self, quiet: Mapping[str, _Wish], now_ns: int) -> None:
        """Raises nothing that a server can do: the questions for lines tell what is wrong with it."""
        start_ns = now_ns - int(self._limits.pulse_seconds * NS)
        try:
            counts = await self.store.counts(sorted({wish.request.job_id for wish in quiet.values()}), start_ns, now_ns)
        except AskError:
            return
        for key, wish in quiet.items():
            heard = self._heard.get(key)
            if heard is not None and heard.until_ns < start_ns + NS:
                heard.skipped, heard.until_ns = counts.get(wish.request.job_id, 0), now_ns

    def _absent(self, reason: UnavailableReason, detail: str) -> Unavailable:
        return Unavailable(source=self.name, reason=reason, detail=detail)


def _new(wish: _Wish, stream: Stream) -> Stream:
    """Without the lines that were delivered already."""
    known = _delivered(wish, stream)
    if not known:
        return stream
    sums = map(line_sum, stream.texts, stream.marks)
    return stream.chosen([at for at, entry in enumerate(zip(stream.times, sums, strict=True)) if entry not in known])


def _delivered(wish: _Wish, stream: Stream) -> Known:
    known = wish.position.streams
    return known.get(stream_hash(stream.name), frozenset()) if known else frozenset()
