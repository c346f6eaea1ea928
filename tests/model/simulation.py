"""Time, processes and faults of a simulated site: one thread, one event loop, and no second of real waiting.

The programs under test are the real ones, asynchronous and blocking alike. Time is the loop's own and jumps from timer
to timer. What would run in a thread runs in a greenlet: it can be held at any port, which is how a process is stopped
(SIGSTOP) in the middle of a blocking call. A process acts on the world through ports only, and every port passes
`Process.gate`: a dead process has no effect any more, a stopped one has its effect when it is continued.
"""

import asyncio
import selectors
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from greenlet import getcurrent, greenlet

T = TypeVar("T")
EPOCH = 1_800_000_000.0  # wall time at the simulation's beginning


class KilledError(BaseException):
    """Raised at a port of a process that is dead: nothing of it may catch this as an error of the port."""


class DeadlockError(RuntimeError):
    """Nobody has anything to do and nobody waits for time."""


class _Selector(selectors.DefaultSelector):
    """Real sockets are served at once; without any, time jumps to the next timer."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> Any:
        ready = super().select(0)
        if ready or timeout == 0:
            return ready
        if timeout is None:
            raise DeadlockError
        self.now += max(timeout, 0.0)
        return ready


class Loop(asyncio.SelectorEventLoop):
    """An event loop whose time is simulated and whose threads are greenlets of this one."""

    def __init__(self) -> None:
        self._simulated = _Selector()
        super().__init__(self._simulated)

    def time(self) -> float:
        return self._simulated.now

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:  # type: ignore[override]  # a Future is what is awaited
        future: asyncio.Future[Any] = self.create_future()

        def body() -> None:
            try:
                result = func(*args)
            except BaseException as error:
                if not future.done():
                    future.set_exception(error)
                future.add_done_callback(_retrieve)
            else:
                if not future.done():
                    future.set_result(result)

        greenlet(body).switch()
        return future


def _retrieve(future: asyncio.Future[Any]) -> None:
    if not future.cancelled():
        future.exception()


def block_on(future: asyncio.Future[T]) -> T:
    """Wait in blocking code, which must run in a greenlet of the loop."""
    if not future.done():
        me = getcurrent()
        assert me.parent is not None, "blocking code must run in an executor of the simulation's loop"
        future.add_done_callback(lambda _: me.switch())
        me.parent.switch()
    return future.result()


def sleep_blocking(loop: asyncio.AbstractEventLoop, seconds: float) -> None:
    future: asyncio.Future[None] = loop.create_future()
    loop.call_later(seconds, future.set_result, None)
    block_on(future)


@dataclass(slots=True, eq=False)
class Process:
    """One process. `refused` counts what did not happen, or happened late, because it was dead or stopped."""

    name: str
    loop: asyncio.AbstractEventLoop
    alive: bool = True
    stopped: bool = False
    refused: int = 0
    on_kill: list[Callable[[], None]] = field(default_factory=list)
    _waiting: list[asyncio.Future[None]] = field(default_factory=list)

    @property
    def works(self) -> bool:
        return self.alive and not self.stopped

    def kill(self) -> None:
        """kill -9."""
        if not self.alive:
            return
        self.alive, self.stopped = False, False
        for clean in self.on_kill:
            clean()
        self._release()

    def stop(self) -> None:
        self.stopped = self.alive

    def go_on(self) -> None:
        self.stopped = False
        self._release()

    def gate(self) -> None:
        """For blocking code: raises when dead, waits while stopped."""
        while not self.works:
            self.refused += 1
            if not self.alive:
                raise KilledError(self.name)
            block_on(self._wait())

    async def passed(self) -> None:
        """The same for asynchronous code."""
        while not self.works:
            self.refused += 1
            if not self.alive:
                raise KilledError(self.name)
            await self._wait()

    def _wait(self) -> asyncio.Future[None]:
        future: asyncio.Future[None] = self.loop.create_future()
        self._waiting.append(future)
        return future

    def _release(self) -> None:
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            if not future.done():
                future.set_result(None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Clock:
    """The agent's clock port on simulated time."""

    loop: asyncio.AbstractEventLoop

    def wall(self) -> float:
        return EPOCH + self.loop.time()

    def monotonic(self) -> float:
        return 1_000.0 + self.loop.time()

    def boot(self) -> float:
        return 1_000.0 + self.loop.time()
