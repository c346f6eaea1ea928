"""Threads that read files, so that a file system which hangs costs a few of them and nobody else's time.

A read of a hung network file system cannot be cancelled: its thread is lost until the kernel lets it go. What
is bounded is how many there can be: per owner and mount (one user's odd link must not use up a mount for all), per
mount, and in all. Where a bound is reached, reads are refused at once instead of hanging one more thread.

Threads live for one `run` only and are daemons: a process whose thread hangs in the kernel can still exit.
"""

import asyncio
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Generic, TypeVar

from advisor.ports import Clock

# Clients that answer `stat` from a cache. Lustre, GPFS and Ceph keep theirs coherent.
CACHED_KINDS = frozenset({"nfs", "nfs4", "cifs", "smb3", "9p", "virtiofs", "afs"})

T = TypeVar("T")
Group = tuple[str, str]  # mount and owner


class Unfinished(StrEnum):
    """Why a task has no result."""

    TIMED_OUT = "timed_out"  # it was started and did not come back in time
    STUCK = "stuck"  # not started: earlier reads of the same file system have not come back
    NOT_REACHED = "not_reached"  # not started: the time was up; ask again


@dataclass(frozen=True, slots=True, kw_only=True)
class Task(Generic[T]):
    """`call` reads files of `owner` on `mount`; it must not raise."""

    mount: str
    owner: str
    call: Callable[[], T]


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreadLimits:
    lanes: int = 8
    per_owner_max: int = 2
    per_mount_max: int = 16
    stuck_max: int = 64
    deadline_seconds: float = 2.0  # of one `run`
    patience_seconds: float = 0.3  # a task that takes longer gets its lane replaced


@dataclass(slots=True)
class _Lane:
    task: int | None = None
    since: float = 0.0
    group: Group | None = None
    replaced: bool = False
    ended: bool = False


@dataclass(slots=True)
class _Run(Generic[T]):
    tasks: Sequence[Task[T]]
    results: dict[int, T]
    queues: dict[Group, deque[int]]
    order: deque[Group]
    loop: asyncio.AbstractEventLoop
    changed: asyncio.Event
    lanes: list[_Lane] = field(default_factory=list)
    over: bool = False
    failure: BaseException | None = None


class FileThreads:
    """Runs reads in threads under `limits`. One instance per source; safe for concurrent `run`s of one event loop."""

    def __init__(self, clock: Clock, limits: ThreadLimits | None = None) -> None:
        self._clock = clock
        self._limits = limits or ThreadLimits()
        self._lock = threading.Condition()
        self._reading: dict[int, _Lane] = {}  # lanes whose read has not come back, of this and of earlier runs
        self._closed = False

    @property
    def stuck(self) -> int:
        """Reads that take longer than our patience, whoever still waits for them."""
        with self._lock:
            return len(self._late())

    async def run(self, tasks: Sequence[Task[T]]) -> list[T | Unfinished]:
        """A result for each task, within `deadline_seconds` and a little, whatever the file systems do."""
        if self._closed:
            raise RuntimeError("the source is closed")
        queues: dict[Group, deque[int]] = {}
        for number, task in enumerate(tasks):
            queues.setdefault((task.mount, task.owner), deque()).append(number)
        run: _Run[T] = _Run(tasks, {}, queues, deque(queues), asyncio.get_running_loop(), asyncio.Event())
        deadline = self._clock.monotonic() + self._limits.deadline_seconds
        try:
            for _ in range(min(self._limits.lanes, len(tasks))):
                self._start_lane(run)
            await self._wait(run, deadline)
        finally:
            with self._lock:
                run.over = True
                results = dict(run.results)
                begun = {lane.task for lane in run.lanes if lane.group is not None}
                self._lock.notify_all()
        if run.failure is not None:
            raise run.failure
        answers: list[T | Unfinished] = []
        for number, task in enumerate(tasks):
            answers.append(results[number] if number in results else self._unfinished(task, number in begun))
        return answers

    async def close(self) -> None:
        """No more runs. Threads that hang in the kernel are daemons and are left behind."""
        self._closed = True

    def _unfinished(self, task: Task[T], begun: bool) -> Unfinished:
        if begun:
            return Unfinished.TIMED_OUT
        with self._lock:
            hopeless = self._hopeless((task.mount, task.owner))
            return Unfinished.STUCK if hopeless else Unfinished.NOT_REACHED

    async def _wait(self, run: _Run[T], deadline: float) -> None:
        while not all(lane.ended for lane in run.lanes):
            run.changed.clear()
            now = self._clock.monotonic()
            if now >= deadline:
                return
            for _ in range(self._replace_late(run, now)):
                self._start_lane(run)
            try:
                async with asyncio.timeout(min(deadline - now, self._limits.patience_seconds)):
                    await run.changed.wait()
            except TimeoutError:
                continue

    def _replace_late(self, run: _Run[T], now: float) -> int:
        """How many new lanes the waiting tasks need in place of those that are late."""
        with self._lock:
            late = [
                lane for lane in run.lanes if lane.group is not None and not lane.replaced and self._is_late(lane, now)
            ]
            for lane in late:
                lane.replaced = True
            self._lock.notify_all()
            return len(late) if any(run.queues.values()) else 0

    def _start_lane(self, run: _Run[T]) -> None:
        with self._lock:
            if len(self._late()) >= self._limits.stuck_max:
                return
            lane = _Lane()
            run.lanes.append(lane)
        threading.Thread(target=self._work, args=(run, lane), name="file-read", daemon=True).start()

    def _work(self, run: _Run[T], lane: _Lane) -> None:
        try:
            while (number := self._next(run, lane)) is not None:
                result = run.tasks[number].call()
                with self._lock:
                    run.results[number] = result
                    self._release(lane)
        except BaseException as error:  # a programmer's: raised where the run is awaited
            run.failure = error
        finally:
            with self._lock:
                self._release(lane)
                lane.ended = True
                self._lock.notify_all()
            try:
                run.loop.call_soon_threadsafe(run.changed.set)
            except RuntimeError:  # the loop is gone, and with it whoever waited
                run.over = True

    def _next(self, run: _Run[T], lane: _Lane) -> int | None:
        """The next task whose owner and mount are within their bounds, groups taking turns; None when none will be."""
        with self._lock:
            while not run.over:
                wait = False
                for _ in range(len(run.order)):
                    group = run.order.popleft()
                    if not run.queues[group]:
                        continue
                    run.order.append(group)
                    if self._allowed(group):
                        lane.task, lane.group, lane.since = run.queues[group].popleft(), group, self._clock.monotonic()
                        lane.replaced = False
                        self._reading[id(lane)] = lane
                        return lane.task
                    wait = wait or not self._hopeless(group)
                if not wait:
                    return None
                self._lock.wait(self._limits.patience_seconds)
            return None

    # All below with the lock held.

    def _is_late(self, lane: _Lane, now: float) -> bool:
        return now - lane.since > self._limits.patience_seconds

    def _late(self) -> list[_Lane]:
        now = self._clock.monotonic()
        return [lane for lane in self._reading.values() if self._is_late(lane, now)]

    def _allowed(self, group: Group) -> bool:
        return self._within(self._reading.values(), group)

    def _hopeless(self, group: Group) -> bool:
        """So many reads of this group hang that waiting for one to come back is no use."""
        late = self._late()
        return len(late) >= self._limits.stuck_max or not self._within(late, group)

    def _within(self, lanes: Iterable[_Lane], group: Group) -> bool:
        """One more than `lanes` keeps the bounds of this owner and mount."""
        groups = [lane.group for lane in lanes if lane.group is not None and lane.group[0] == group[0]]
        return groups.count(group) < self._limits.per_owner_max and len(groups) < self._limits.per_mount_max

    def _release(self, lane: _Lane) -> None:
        """The lane's read came back."""
        if self._reading.pop(id(lane), None) is not None:
            lane.group = None
            self._lock.notify_all()


class Mounts:
    """Which mount a path lies on by its text alone: asking the file system could hang on the very mount in question."""

    def __init__(self, clock: Clock, *, table: Path = Path("/proc/self/mountinfo"), keep_seconds: float = 30.0) -> None:
        self._clock = clock
        self._table = table
        self._keep_seconds = keep_seconds
        self._read_at: float | None = None
        self._points: dict[str, str] = {}

    def of(self, path: str) -> str:
        now = self._clock.monotonic()
        if self._read_at is None or now - self._read_at > self._keep_seconds:
            self._read_at, self._points = now, self._load()
        point = path
        while point and point not in self._points:
            point = point.rpartition("/")[0]
        return point or "/"

    def remote(self, path: str) -> bool:
        """What `stat` says of a file there may be a minute old."""
        point = self.of(path)  # first: it may read the table
        kind = self._points.get(point, "")
        return kind in CACHED_KINDS or kind.startswith("fuse.")

    def _load(self) -> dict[str, str]:
        """Mount point → kind of file system; of several mounts on one point the last is the one seen."""
        try:
            lines = self._table.read_bytes().splitlines()
        except OSError:
            return {}
        found = {}
        for line in lines:
            fields = line.split(b" ")
            if len(fields) > 4:
                kind = fields[fields.index(b"-") + 1] if b"-" in fields[:-1] else b""
                found[_unescape(fields[4])] = kind.decode("ascii", "replace")
        return found


def _unescape(point: bytes) -> str:
    """Mount points have blanks and backslashes as three octal digits."""
    for code in (b"040", b"011", b"012", b"134"):
        point = point.replace(b"\\" + code, bytes([int(code, 8)]))
    return os.fsdecode(point)
