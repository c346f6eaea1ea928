"""What all file sources do with their requests: share threads, bytes and time between them fairly.

A source turns each request into a `Plan` (which files, whose); this module reads the plans. Of the bytes of one call
each request gets its share (who has more asks again), requests that were served longest ago come first, files of one
request take turns, and a bound that bites is said (`more`, `Unavailable`).
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from advisor.core.model import Unavailable
from advisor.core.words import UnavailableReason
from advisor.ports import Clock, LogBatch, LogChunk, LogRequest
from connectors.logs.cursor import Cursor, CursorError, Mark, Written, decode
from connectors.logs.opening import Handing, RefusedError, printable
from connectors.logs.quiet import UNSEEN, Quiet
from connectors.logs.tail import Tail, read_tail
from connectors.logs.threads import FileThreads, Mounts, Task, ThreadLimits, Unfinished

SHARE_BYTES_MIN = 4096  # of a request; smaller shares cost more system calls than they are worth
MANY_SHARE_BYTES_MIN = 32 * 1024  # of one of many files: a rank's last words are read at once, others in the next read
SERVED_MAX = 50_000
CURSORS_KEPT_MAX = 64  # of jobs with many files: reading the text again costs more than the files
CURSOR_KEPT_BYTES_MIN = 8192
PART_SECONDS_MAX = 1.0  # for the files of one request on one mount; who was not reached comes first the next time
REMOTE_OPENS_PER_SECOND = 512  # of them, where every look is an open, and every open a question to a file server
HANDED_OPENS_PER_SECOND = 2048  # of them that the root log reader has to open
FILES_FREE = 64  # so many files of one request are opened at every look all the same


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadLimits:
    """`call_bytes_max`: of one `read` over all requests; what is left out comes first the next time."""

    call_bytes_max: int = 64 * 1024 * 1024
    files_max: int = 4096  # per request
    threads: ThreadLimits = field(default_factory=ThreadLimits)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tails:
    """The files to read, and what kept others from being found. `tail` is asked only for those whose turn it is."""

    paths: Sequence[str]
    tail: Callable[[str], Tail]
    handing: Handing | None = None
    unavailable: tuple[Unavailable, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The files of one request. `tails` runs in the reading thread: it may ask the host who a user is."""

    paths: tuple[str, ...]
    owner: str  # whose fault it is if these hang
    tails: Callable[[Sequence[str], Cursor, Cursor], Tails]
    unavailable: tuple[Unavailable, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What the files of one request on one mount gave."""

    chunks: tuple[LogChunk, ...] = ()
    marks: Mapping[str, Mark]
    turn: str = ""
    more: bool = False
    final: bool = False
    unavailable: tuple[Unavailable, ...] = ()


class Budget:
    """Bytes that one call may still take, for all threads together."""

    def __init__(self, bytes_max: int) -> None:
        self._left = bytes_max
        self._lock = threading.Lock()

    @property
    def spent(self) -> bool:
        return self._left <= 0

    def take(self, wanted: int) -> int:
        with self._lock:
            got = max(0, min(wanted, self._left))
            self._left -= got
            return got

    def give_back(self, unused: int) -> None:
        with self._lock:
            self._left += unused


class FileReader:
    """Reads plans. The sources differ in `plan` only."""

    def __init__(
        self,
        name: str,
        *,
        plan: Callable[[LogRequest], Plan | Unavailable],
        clock: Clock,
        limits: ReadLimits,
    ) -> None:
        self._name = name
        self._plan = plan
        self._limits = limits
        self._threads = FileThreads(clock, limits.threads)
        self._mounts = Mounts(clock)
        self._clock = clock
        self._quiet = Quiet()
        self._cursors: dict[str, tuple[Cursor, Written]] = {}  # by their text
        self._served: dict[str, int] = {}
        self._calls = 0

    async def read(self, requests: Sequence[LogRequest]) -> dict[str, LogBatch | Unavailable]:
        self._calls += 1
        if len(self._served) > SERVED_MAX:
            self._served.clear()
        answers: dict[str, LogBatch | Unavailable] = {}
        planned: list[tuple[LogRequest, Plan, Cursor, list[int]]] = []
        tasks: list[Task[Part]] = []
        budget = Budget(self._limits.call_bytes_max)
        fair = max(SHARE_BYTES_MIN, self._limits.call_bytes_max // max(1, len(requests)))
        for request in sorted(requests, key=lambda r: self._served.get(r.key, 0)):
            try:
                cursor, before = self._decoded(request.cursor), self._decoded(request.predecessor)
            except CursorError as error:
                answers[request.key] = Unavailable(
                    source=self._name, reason=UnavailableReason.GARBLED, detail=f"{request.key}: {error}"
                )
                continue
            plan = self._plan(request)
            if isinstance(plan, Unavailable):
                answers[request.key] = plan
                continue
            own = self._tasks(replace(request, bytes_max=min(request.bytes_max, fair)), plan, cursor, before, budget)
            planned.append((request, plan, cursor, list(range(len(tasks), len(tasks) + len(own)))))
            tasks.extend(own)
        results = await self._threads.run(tasks) if tasks else []
        for request, plan, cursor, numbers in planned:
            parts = [(tasks[n], results[n]) for n in numbers]
            answers[request.key] = self._answer(request, plan, cursor, parts)
        return answers

    def remote(self, path: str) -> bool:
        return self._mounts.remote(path)

    async def close(self) -> None:
        await self._threads.close()

    def _tasks(
        self, request: LogRequest, plan: Plan, cursor: Cursor, before: Cursor, budget: Budget
    ) -> list[Task[Part]]:
        by_mount: dict[str, list[str]] = {}
        for path in plan.paths[: self._limits.files_max]:
            by_mount.setdefault(self._mounts.of(path), []).append(path)
        tasks = []
        for mount, paths in by_mount.items():
            share = max(1, request.bytes_max * len(paths) // len(plan.paths))

            def call(paths: Sequence[str] = paths, share: int = share) -> Part:
                return self._part(request.key, plan, paths, cursor, before, share, budget)

            tasks.append(Task(mount=mount, owner=plan.owner, call=call))
        return tasks

    def _part(
        self,
        key: str,
        plan: Plan,
        paths: Sequence[str],
        cursor: Cursor,
        before: Cursor,
        share: int,
        budget: Budget,
    ) -> Part:
        """In a reading thread."""
        try:
            found = plan.tails(paths, cursor, before)
        except RefusedError as why:
            refused = Unavailable(source=self._name, reason=why.reason, detail=why.detail)
            return Part(marks={}, unavailable=(refused,))
        remote = self._mounts.remote(paths[0])
        turns = Turns(
            self._name,
            key,
            cursor,
            share,
            budget,
            quiet=self._quiet,
            trusted_seconds=_trusted_seconds(len(found.paths), REMOTE_OPENS_PER_SECOND) if remote else None,
            handed_seconds=_trusted_seconds(len(found.paths), HANDED_OPENS_PER_SECOND),
            eager=frozenset(paths if len(paths) <= FILES_FREE else ()),
            clock=self._clock,
        )
        try:
            part = read_part(turns, found, cursor, share)
        finally:
            if found.handing is not None:
                found.handing.close()
        return replace(part, unavailable=(*found.unavailable, *part.unavailable))

    def _decoded(self, text: str) -> Cursor:
        known = self._cursors.get(text)
        return known[0] if known is not None else decode(text)

    def _encoded(self, changed: Mapping[str, Mark], turn: str, before: Cursor, text: str) -> str:
        """The same text for the same cursor, without writing it again."""
        changed = {path: mark for path, mark in changed.items() if before.marks.get(path) != mark}
        if not changed and turn == before.turn and text:
            return text
        cursor = Cursor(marks={**before.marks, **changed}, turn=turn)
        _, written = self._cursors.pop(text, (None, None))
        if written is None:
            written = Written(cursor.marks)
        else:
            written.change(changed)
        new = written.text(turn)
        if len(new) >= CURSOR_KEPT_BYTES_MIN:
            if len(self._cursors) >= CURSORS_KEPT_MAX:
                self._cursors.pop(next(iter(self._cursors)))
            self._cursors[new] = (cursor, written)
        return new

    def _answer(
        self, request: LogRequest, plan: Plan, cursor: Cursor, parts: Sequence[tuple[Task[Part], Part | Unfinished]]
    ) -> LogBatch | Unavailable:
        marks: dict[str, Mark] = {}
        chunks: list[LogChunk] = []
        refused = list(plan.unavailable)
        more, final, turn, read = False, bool(parts), "", 0
        for task, part in parts:
            if isinstance(part, Unfinished):
                more, final = more or part is Unfinished.NOT_REACHED, False
                refused.append(self._unfinished(task, part))
                continue
            if part.chunks or not part.more:
                self._served[request.key] = self._calls
            read += len(part.marks)
            marks.update(part.marks)
            chunks.extend(part.chunks)
            refused.extend(part.unavailable)
            more, final, turn = more or part.more, final and part.final, turn or part.turn
        if len(plan.paths) > self._limits.files_max:
            text = f"{request.key}: {len(plan.paths)} files, only the first {self._limits.files_max} are read"
            refused.append(Unavailable(source=self._name, reason=UnavailableReason.LIMIT, detail=text))
        if refused and not read and not chunks and not more:
            return replace(refused[0], detail="; ".join(dict.fromkeys(item.detail for item in refused))[:2000])
        return LogBatch(
            chunks=tuple(chunks),
            cursor=self._encoded(marks, turn, cursor, request.cursor),
            more=more,
            unavailable=tuple(refused),
            final=final,
        )

    def _unfinished(self, task: Task[Part], how: Unfinished) -> Unavailable:
        mount = printable(task.mount)
        seconds = self._limits.threads.deadline_seconds
        match how:
            case Unfinished.TIMED_OUT:
                reason, text = UnavailableReason.TIMEOUT, f"file system {mount} did not answer within {seconds:g} s"
            case Unfinished.STUCK:
                reason, text = (
                    UnavailableReason.TIMEOUT,
                    f"file system {mount}: earlier reads still hang, none is added",
                )
            case Unfinished.NOT_REACHED:
                reason, text = UnavailableReason.LIMIT, f"not reached within {seconds:g} s, comes first the next time"
        return Unavailable(source=self._name, reason=reason, detail=text)


class Turns:
    """The files of one request taking turns for its bytes. Is the `Allowance` of the file whose turn it is."""

    def __init__(
        self,
        source: str,
        key: str,
        cursor: Cursor,
        bytes_max: int,
        budget: Budget,
        *,
        quiet: Quiet,
        trusted_seconds: float | None,
        clock: Clock,
        handed_seconds: float = 0.0,
        eager: frozenset[str] = frozenset(),
    ) -> None:
        self._source, self._key = source, key
        self._cursor = cursor
        self._budget = budget
        self._left = bytes_max
        self._share = 0
        self._quiet = quiet
        self._trusted_seconds, self._handed_seconds, self._eager = trusted_seconds, handed_seconds, eager
        self._clock = clock
        self._until = clock.monotonic() + PART_SECONDS_MAX
        self.marks: dict[str, Mark] = {}
        self.chunks: list[LogChunk] = []
        self.unavailable: list[Unavailable] = []
        self.closed = 0
        self.behind = False  # a file was not looked at, and not lately either

    @property
    def spent(self) -> bool:
        return self._left <= 0 or self._budget.spent

    def take(self, wanted: int) -> int:
        got = self._budget.take(min(wanted, self._left, self._share))
        self._left -= got
        self._share -= got
        return got

    def give_back(self, unused: int) -> None:
        self._budget.give_back(unused)
        self._left += unused
        self._share += unused

    def serve(self, tail: Tail, share: int) -> bool:
        """True when nothing is left to read there now."""
        mark = self.marks.get(tail.path, self._cursor.marks.get(tail.path))
        now = self._clock.monotonic()
        sign = self._quiet.look(tail)
        trusted = self._handed_seconds if sign == UNSEEN else self._trusted_seconds
        if trusted is not None and tail.path in self._eager:
            trusted = 0.0
        if (
            mark is not None
            and sign is not None
            and self._quiet.unchanged(self._key, tail, mark, sign, now=now, trusted_seconds=trusted)
        ):
            self.marks[tail.path] = mark
            self._quiet.looked(self._key, tail, now)
            return True
        if self.spent:
            self.behind = True
            return False
        if now > self._until:
            self.behind = self.behind or not self._quiet.lately(self._key, tail, now)
            return False
        self._share = share
        self._quiet.looked(self._key, tail, now)
        try:
            piece = read_tail(tail, mark, self)
        except RefusedError as refused:
            if tail.optional and refused.reason is UnavailableReason.MISSING:
                self.closed += tail.over
                return True
            self.unavailable.append(Unavailable(source=self._source, reason=refused.reason, detail=refused.detail))
            return True
        self.marks[tail.path] = piece.mark
        self.chunks.extend(piece.chunks)
        self.closed += piece.mark.closed
        if piece.lost:
            text = f"{printable(tail.path)}: {piece.lost} bytes were gone before they were read (truncated or removed)"
            self.unavailable.append(Unavailable(source=self._source, reason=UnavailableReason.STALE, detail=text))
        if piece.more:
            self._quiet.owes(self._key, tail)
            self.behind = True
        elif sign is not None:
            self._quiet.remember(self._key, tail, piece.mark, sign, now=now)
        return not piece.more


def _trusted_seconds(files: int, per_second: int) -> float:
    """How long a file need not be opened where `stat` may be old or says nothing."""
    return 0.0 if files <= FILES_FREE else files / per_second


def read_part(turns: Turns, tails: Tails, cursor: Cursor, bytes_max: int) -> Part:
    """Read some files in turn, `bytes_max` over all of them: first a fair share each, then who needs more.

    Once all bytes are taken no further file is looked at: of thousands most would be looked at in vain, at every read.
    """
    paths = tails.paths
    first = paths.index(cursor.turn) if cursor.turn in paths else 0
    order = [*paths[first:], *paths[:first]] if first else paths
    least = SHARE_BYTES_MIN if len(order) <= FILES_FREE else MANY_SHARE_BYTES_MIN
    unread = _serve(turns, tails, order, max(least, bytes_max // max(1, len(order))))
    turns.behind = False
    unread = _serve(turns, tails, unread, bytes_max)
    turn = ""
    if unread:  # who got nothing comes first the next time, else the one after who got the first share
        position = order.index(unread[0])
        turn = order[(position + (unread[0] in turns.marks)) % len(order)]
    return Part(
        chunks=tuple(turns.chunks),
        marks=turns.marks,
        turn=turn,
        more=turns.behind,
        final=turns.closed == len(paths),
        unavailable=tuple(turns.unavailable),
    )


def _serve(turns: Turns, tails: Tails, order: Sequence[str], share: int) -> list[str]:
    """Those that have more to read."""
    unread: list[str] = []
    for place, path in enumerate(order):
        if turns.spent:
            turns.behind = True
            return [*unread, *order[place:]]
        if not turns.serve(tails.tail(path), share):
            unread.append(path)
    return unread
