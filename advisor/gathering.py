"""From sources to sightings: which bytes are asked for, how they are scanned, and what is remembered of them.

One `Sighting` per watched attempt. What the next attempt writes into the same file starts from a fresh `TickState`, and
reading it begins where this one's reading ended.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

import structlog

from advisor.brought_rules import BroughtRules
from advisor.core import job_watch
from advisor.core.model import Signal, SourceReport, Unavailable
from advisor.core.scan import FileContext, FileState, Room, Scanned, Scanner, fold_signals, room_of
from advisor.core.words import Trust, UnavailableReason
from advisor.instruments import Instruments
from advisor.ports import Clock, LogBatch, LogChunk, LogRequest, LogSource
from advisor.sighting import Sighting, SourceState, TickState, decoded_state, nodes_away
from advisor.store.records import AttemptKey, StoredAttempt
from advisor.turns import Paces, Piece, Turns, bytes_of

log = structlog.get_logger(__name__)

ROUNDS_MAX = 256  # reads of one attempt in one tick; what is left comes with the next
ROUNDS_SLOW_MAX = 16  # of a source that has taken its time
GATHER_SECONDS_MAX = 1.5  # which is this, of reading and scanning
SCAN_SECONDS_MAX = 1.0  # of one source in one tick; what was read beyond it is read again in the next
SCAN_SECONDS_SHARED = 0.4  # of it for second and later turns where several users' jobs wait for their tick
READ_SECONDS_MAX = 10.0  # connectors have deadlines of their own; this one keeps a defect from stopping the tick
BEFORE_START = timedelta(seconds=5)  # clocks of nodes and scheduler


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """How a source served its newest requests. `first`: one of the things that it could not read, of job `job_id`."""

    at: datetime
    attempts: int
    failed: int
    first: Unavailable | None
    job_id: str = ""


class Gatherer:
    """Reads all sources for all attempts, in few calls, and scans what is new."""

    def __init__(
        self,
        *,
        sources: Sequence[LogSource],
        scanner: Scanner,
        clock: Clock,
        read_bytes_max: int,
        signals_max: int,
        brought: BroughtRules | None = None,
        instruments: Instruments | None = None,
    ) -> None:
        self._instruments = instruments or Instruments(clock)
        self.sources = tuple(sources)
        self.brought = brought or BroughtRules(clock=clock)
        self._scanner = scanner
        self._clock = clock
        self._signals_max = signals_max
        self._absorbing = asyncio.Lock()
        self._turns = Turns()
        self._paces = Paces(bytes_max=read_bytes_max)
        self._broken: set[str] = set()  # sources whose last read raised or hung: told once
        self._looked: dict[tuple[str, AttemptKey], datetime] = {}  # when a source was asked last and gave all it had
        self._decoded: dict[AttemptKey, tuple[bytes, TickState]] = {}  # decoding costs more than comparing bytes
        self._put_off: dict[AttemptKey, tuple[TickState, TickState]] = {}  # what is stored, and what is not yet
        self.last: dict[str, Answered] = {}

    def forget(self, jobs: Iterable[str]) -> None:
        """What is remembered of these jobs' attempts may be older than what is stored: another replica had them."""
        gone = frozenset(jobs)
        self._decoded = {key: known for key, known in self._decoded.items() if key.job_key not in gone}
        self._put_off = {key: states for key, states in self._put_off.items() if key.job_key not in gone}
        self._looked = {place: at for place, at in self._looked.items() if place[1].job_key not in gone}

    def sight(self, items: Iterable[StoredAttempt]) -> list[Sighting]:
        """Begin a tick. An attempt's first read begins where reading the attempt before it ended."""
        kept: dict[AttemptKey, tuple[bytes, TickState]] = {}
        sightings = []
        for item in items:
            stored = self._stored(item.key, item.detector_state)
            kept[item.key] = (item.detector_state, stored)
            state = self._newest(item.key, stored)
            if not state.sources and item.predecessor_state:
                earlier = AttemptKey(job_key=item.key.job_key, number=item.key.number - 1)
                before = self._newest(earlier, self._stored(earlier, item.predecessor_state))
                begun = {name: SourceState(predecessor=held.cursor) for name, held in before.sources.items()}
                state = replace(state, sources=begun)
            away = nodes_away(state.away, item)
            if away != state.away:
                state = replace(state, away=away)
            sightings.append(Sighting(item=item, stored=stored, state=state, signals=item.signals))
        self._decoded = kept
        self._put_off = {key: states for key, states in self._put_off.items() if key in kept}
        self._looked = {place: at for place, at in self._looked.items() if place[1] in kept}
        self._turns.keep(kept)
        self._paces.keep({_user(sighting) for sighting in sightings})
        return sightings

    def saved(self, states: Mapping[AttemptKey, tuple[bytes, TickState]]) -> None:
        """What is in the database now, and what it says: it need not be read from there."""
        self._decoded.update(states)

    def put_off(self, sightings: Iterable[Sighting]) -> None:
        """Their states are saved in a later tick, which goes on from them. Who takes over reads again what is lost."""
        self._put_off.update((sighting.key, (sighting.stored, sighting.state)) for sighting in sightings)

    def _stored(self, key: AttemptKey, data: bytes) -> TickState:
        known = self._decoded.get(key)
        return known[1] if known is not None and known[0] == data else decoded_state(key, data)

    def _newest(self, key: AttemptKey, stored: TickState) -> TickState:
        """What was left last: what is stored, unless that was to be saved later and nobody has saved another since."""
        before, newer = self._put_off.get(key, (None, stored))
        return newer if before is stored else stored

    async def gather(self, sightings: Sequence[Sighting], *, set_at: datetime | None = None) -> None:
        """Bring every sighting up to date. A source that fails is a value; a scan that fails is that job's alone.

        `set_at`: when somebody set the clock that is followed.
        """
        await self.brought.refresh(sighting.item for sighting in sightings)
        await asyncio.gather(*(self._gather_from(source, sightings) for source in self.sources))
        await asyncio.to_thread(self._let_time_pass, sightings, set_at)

    def _let_time_pass(self, sightings: Sequence[Sighting], set_at: datetime | None) -> None:
        """Log rules wait for lines that do not come, too."""
        now = self._clock.now()
        for sighting in sightings:
            if sighting.failed is not None or not (self.brought.concern(sighting.item) or sighting.state.watch.runs):
                continue
            try:
                self._let_rules_wait(sighting, now, set_at)
            except Exception as error:  # one job's rules must not stop the others' tick
                sighting.failed = error

    def _let_rules_wait(self, sighting: Sighting, now: datetime, set_at: datetime | None) -> None:
        before = sighting.state.watch
        logs = [held for source in self.sources if (held := self._held(sighting, source)) is not None]
        watch = self.brought.after(
            before,
            sighting.item,
            now,
            restarts=lambda: sighting.progress.in_job_restarts,
            unread=_unread(logs),
            final=bool(logs) and all(held.final for held in logs),
            set_at=set_at,
        )
        if watch != before:
            sighting.state = replace(sighting.state, watch=watch)

    @staticmethod
    def _held(sighting: Sighting, source: LogSource) -> SourceState | None:
        return sighting.state.sources.get(source.name) if source.trust is Trust.LOG else None

    def rule_signals(
        self,
        sighting: Sighting,
        reports: Sequence[SourceReport],
        now: datetime,
        *,
        set_at: datetime | None = None,
    ) -> tuple[Signal, ...]:
        """What log rules of the job and the site say of the attempt now. `set_at`: also of a step since `gather`."""
        sets = self.brought.of(sighting.item)
        if not sets:
            return ()
        logs = [report for report in reports if report.trust is Trust.LOG]
        readable = bool(logs) and not any(report.unavailable is not None or report.capped for report in logs)
        item = sighting.item
        watch = job_watch.since_set(sighting.state.watch, set_at, now)
        return job_watch.signals(watch, sets, item.job, item.attempt, now, readable=readable and not sighting.more)

    async def _gather_from(self, source: LogSource, sightings: Sequence[Sighting]) -> None:
        asked = [sighting for sighting in sightings if _wants(sighting, source.name)]
        shared = len({_user(sighting) for sighting in asked}) > 1
        left, slow_at = SCAN_SECONDS_MAX, self._clock.monotonic() + GATHER_SECONDS_MAX
        for turn in range(ROUNDS_MAX):
            if turn >= ROUNDS_SLOW_MAX and self._clock.monotonic() >= slow_at:
                break
            if not asked or left <= (SCAN_SECONDS_MAX - SCAN_SECONDS_SHARED if shared and turn else 0):
                break
            requests = {str(item.key): self._request(item, source) for item in asked}
            asked_at, asked_from = self._clock.now(), self._clock.monotonic()
            answers = await self._read(source, list(requests.values()))
            seen_at = self._clock.now()
            self._instruments.source_answered(source.name, self._clock.monotonic() - asked_from, answers)
            async with self._absorbing:  # sources answer side by side, but write into a sighting one after the other
                began = self._clock.monotonic()
                again = await asyncio.to_thread(self._absorb_all, source, asked, answers, seen_at, began + left, shared)
                left -= self._clock.monotonic() - began
            self._looked.update(_looked_through(source, asked, answers, again, asked_at))
            self._remember(source, answers, {key: request.job_id for key, request in requests.items()}, seen_at)
            asked = again
        for sighting in asked:
            sighting.more = True

    async def _read(self, source: LogSource, requests: Sequence[LogRequest]) -> Mapping[str, LogBatch | Unavailable]:
        """What the source answers. One that raises or hangs is absent for this tick, and no more than that."""
        try:
            async with asyncio.timeout(READ_SECONDS_MAX):
                answers = await source.read(requests)
        except Exception as error:  # the boundary to a connector: its defect is not ours
            if source.name not in self._broken:
                log.exception("source_failed", source=source.name)
            self._broken.add(source.name)
            late = isinstance(error, TimeoutError)
            absent = Unavailable(
                source=source.name,
                reason=UnavailableReason.TIMEOUT if late else UnavailableReason.GARBLED,
                detail=f"no answer within {READ_SECONDS_MAX:g} s" if late else f"the connector failed: {error!r:.200}",
            )
            return {request.key: absent for request in requests}
        self._broken.discard(source.name)
        return answers

    def _request(self, sighting: Sighting, source: LogSource) -> LogRequest:
        item, held = sighting.item, sighting.state.sources.get(source.name, SourceState())
        return LogRequest(
            key=str(item.key),
            job_id=item.job.job_id,
            attempt=item.key.number,
            user=item.job.user,
            user_id=item.user_id,
            paths=tuple(path for path in (item.stdout_path, item.stderr_path) if path),
            nodes=item.attempt.nodes or (),
            started_at=item.attempt.started_at,
            ended_at=item.attempt.ended_at,
            cursor=held.cursor,
            bytes_max=self._paces.of(source.name, _user(sighting)),
            predecessor=held.predecessor,
            whole=bool(self.brought.of(item)) or self.brought.awaited(item),
        )

    def _absorb_all(
        self,
        source: LogSource,
        asked: Sequence[Sighting],
        answers: Mapping[str, LogBatch | Unavailable],
        seen_at: datetime,
        until: float,
        shared: bool,
    ) -> list[Sighting]:
        """Scan answers until it is late; returns the sightings that have more to read.

        Every user has a turn before anybody has a second one, and the first is scanned however late it is: whatever
        one user's jobs write, it delays those of others by one read at most. When all have had theirs and others than
        the loud one wait for the tick to end, it ends earlier: nobody's failure is decided on before that.
        """
        again = []
        waiting = {sighting.key: sighting for sighting in asked}
        pieces = [
            Piece(key=key, user=_user(item), size=bytes_of(answers.get(str(key)))) for key, item in waiting.items()
        ]
        firsts = len({piece.user for piece in pieces if piece.size})
        soon = until - (SCAN_SECONDS_MAX - SCAN_SECONDS_SHARED) if shared else until
        for place, piece in enumerate(self._turns.order(source.name, pieces)):
            sighting = waiting[piece.key]
            missing = Unavailable(source=source.name, reason=UnavailableReason.GARBLED, detail="no answer to a request")
            answer = answers.get(str(sighting.key), missing)
            began = self._clock.monotonic()
            if piece.size and place and began >= (until if firsts > 0 else soon):
                again.append(sighting)  # its cursor stays: the same bytes are read again
                continue
            firsts -= piece.size > 0
            self._turns.served(source.name, piece)
            try:
                if self._absorb(source, sighting, answer, seen_at):
                    again.append(sighting)
            except Exception as error:  # one job's log must not stop the others' tick
                sighting.failed = error
            if piece.size:
                self._paces.took(source.name, piece, self._clock.monotonic() - began)
        return again

    def _absorb(self, source: LogSource, sighting: Sighting, answer: LogBatch | Unavailable, seen_at: datetime) -> bool:
        before = sighting.state.sources.get(source.name, SourceState())
        if _says_nothing(answer, before):
            return False
        unread = _unread([held for other in self.sources if (held := self._held(sighting, other)) is not None])
        if isinstance(answer, Unavailable):
            held, more = replace(before, unavailable=(answer,), capped=False), False
        else:
            held, more = self._scan(source, sighting, before, answer, seen_at), answer.more
        if held != before:
            sighting.state = replace(sighting.state, sources={**sighting.state.sources, source.name: held})
        if isinstance(answer, LogBatch) and answer.chunks and source.trust is Trust.LOG:
            pieces = _pieces(source, before, answer)
            watch = self.brought.apply(
                sighting.state.watch,
                sighting.item,
                pieces,
                seen_at,
                restarts=lambda: sighting.progress.in_job_restarts,
                unread=unread,
            )
            if watch is not sighting.state.watch:
                sighting.state = replace(sighting.state, watch=watch)
        return more

    def _scan(
        self, source: LogSource, sighting: Sighting, held: SourceState, batch: LogBatch, seen_at: datetime
    ) -> SourceState:
        files = dict(held.files)
        lines, foreign, newest = held.lines, held.foreign, held.newest_at
        chunks = list(batch.chunks)
        if batch.final:
            # Nothing follows: a last line without its newline counts too.
            open_ended = [name for name, state in files.items() if state.tail and all(c.file != name for c in chunks)]
            chunks.extend(LogChunk(file=name, offset=files[name].offset, data=b"") for name in open_ended)
        last = {chunk.file: at for at, chunk in enumerate(chunks)}
        of, room, kin = sighting.signals, room_of(sighting.signals, self._signals_max), str(sighting.key)
        for at, chunk in enumerate(chunks):
            before = files.get(chunk.file, FileState())
            looked_at = self._looked.get((source.name, sighting.key)) or before.progress.last_line_at
            if of is not sighting.signals:
                of, room = sighting.signals, room_of(sighting.signals, self._signals_max)
            context = _context(source, sighting.item, chunk, looked_at, kin, room)
            scanned = self._scanner.scan(
                context,
                before,
                chunk.data,
                fresh=chunk.fresh,
                final=batch.final and last[chunk.file] == at,
                seen_at=seen_at,
                skipped=chunk.skipped,
            )
            if chunk.backlog:
                scanned = _within_attempt(scanned, sighting.item)
            files[chunk.file] = scanned.state
            if scanned.signals or scanned.repeats:
                sighting.signals = fold_signals(sighting.signals, scanned, self._signals_max)
            lines += scanned.lines
            foreign += scanned.foreign
            newest = max((moment for moment in (newest, scanned.newest_at) if moment is not None), default=None)
        return replace(
            held,
            cursor=batch.cursor,
            files=files,
            final=batch.final,
            lines=lines,
            foreign=foreign,
            newest_at=newest,
            capped=batch.more,
            unavailable=batch.unavailable,
        )

    def _remember(
        self,
        source: LogSource,
        answers: Mapping[str, LogBatch | Unavailable],
        jobs: Mapping[str, str],
        seen_at: datetime,
    ) -> None:
        """How the source answered last, for `status` and `doctor`."""
        failures = [(key, answer) for key, answer in answers.items() if isinstance(answer, Unavailable)]
        parts = [
            (key, part)
            for key, answer in answers.items()
            if isinstance(answer, LogBatch)
            for part in answer.unavailable
        ]
        key, first = next(iter((*failures, *parts)), ("", None))
        self.last[source.name] = Answered(
            at=seen_at, attempts=len(answers), failed=len(failures), first=first, job_id=jobs.get(key, "")
        )


def _user(sighting: Sighting) -> tuple[str, str]:
    return sighting.item.job.cluster, sighting.item.job.user


def _wants(sighting: Sighting, source: str) -> bool:
    attempt, held = sighting.item.attempt, sighting.state.sources.get(source)
    begun = attempt.started_at is not None or attempt.ended_at is not None or attempt.state.live
    return sighting.failed is None and begun and not (held is not None and held.final)


def _says_nothing(answer: LogBatch | Unavailable, held: SourceState) -> bool:
    """All is as it was: so for most attempts at most looks."""
    return (
        isinstance(answer, LogBatch)
        and not (answer.chunks or answer.more or answer.final or held.capped)
        and (answer.cursor, answer.unavailable) == (held.cursor, held.unavailable)
    )


def _unread(logs: Iterable[SourceState]) -> bool:
    """No line of the attempt was read so far."""
    return not any(held.files for held in logs)


def _pieces(source: LogSource, before: SourceState, batch: LogBatch) -> list[job_watch.Piece]:
    """The same bytes as the scanner gets, for log rules. Lines are numbered as the scanner numbers them."""
    pieces: list[job_watch.Piece] = []
    seen: set[str] = set()
    for chunk in batch.chunks:
        known = before.files.get(chunk.file) if chunk.file not in seen else None
        seen.add(chunk.file)
        pieces.append(
            job_watch.Piece(
                file=chunk.file,
                data=chunk.data,
                fresh=chunk.fresh,
                old=chunk.backlog,
                line=known.line if known is not None else None,
            )
        )
    return pieces


def _looked_through(
    source: LogSource,
    asked: Iterable[Sighting],
    answers: Mapping[str, LogBatch | Unavailable],
    again: Iterable[Sighting],
    at: datetime,
) -> Mapping[tuple[str, AttemptKey], datetime]:
    """Of which attempts the source has given all that was written until `at`."""
    left = {sighting.key for sighting in again}
    return {
        (source.name, sighting.key): at
        for sighting in asked
        if sighting.key not in left and isinstance(answers.get(str(sighting.key)), LogBatch)
    }


def _context(
    source: LogSource, item: StoredAttempt, chunk: LogChunk, looked_at: datetime | None, kin: str, room: Room | None
) -> FileContext:
    """`looked_at`: None at the first look at an attempt of which nothing was read: since its start."""
    attempt = item.attempt
    return FileContext(
        source=source.name,
        trust=source.trust,
        file=chunk.file,
        kin=kin,
        room=room,
        node=chunk.node,
        nodes=attempt.nodes,
        started_at=attempt.started_at,
        tasks_per_node=attempt.tasks_per_node,
        world_size=attempt.world_size,
        rank_nodes=attempt.rank_nodes,
        live=not chunk.backlog,
        written_at=chunk.modified_at,
        looked_at=looked_at or attempt.started_at,
    )


def _within_attempt(scanned: Scanned, item: StoredAttempt) -> Scanned:
    """Of bytes that were there before our first look, only lines with their own time within the attempt count."""
    started = item.attempt.started_at
    kept = tuple(
        signal
        for signal in scanned.signals
        if signal.at is not None and (started is None or signal.at >= started - BEFORE_START)
    )
    return replace(scanned, signals=kept)
