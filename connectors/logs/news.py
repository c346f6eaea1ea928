"""Inotify as a hint: a change in a folder that output is written to wakes the tick before its interval is over.

A hint only. Nothing is read because of it that would not be read anyway, nothing is missed without it (another host's
writes over NFS, a folder that may not be listed, no watches left): the tick's interval is the floor. And it is cheap
however busy a folder is: each watch fires once and is set again by the next look, and no hint comes before `SHARE`
times as long as the last look took, or `SECONDS_MIN`, whichever is longer.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterable

from asyncinotify import Inotify, Mask

from advisor.ports import Clock

SECONDS_MIN = 0.25
SHARE = 10.0
FOLDERS_MAX = 4096
_CHANGES = Mask.MODIFY | Mask.CREATE | Mask.MOVED_TO | Mask.ONESHOT | Mask.ONLYDIR


class News:
    """Calls `call` soon after something changed. Everything runs in the event loop that `follow` is called in."""

    def __init__(self, clock: Clock, call: Callable[[], None]) -> None:
        self._clock, self._call = clock, call
        self._inotify: Inotify | None = None
        self._failed = False
        self._listening: asyncio.Task[None] | None = None
        self._armed: set[str] = set()
        self._began, self._took = clock.monotonic(), 0.0
        self._timer: asyncio.TimerHandle | None = None

    def follow(self, folders: Iterable[str]) -> None:
        """A look begins: what changes from here on is news. Only folders of local file systems."""
        self._began = self._clock.monotonic()
        inotify = self._opened()
        if inotify is None:
            return
        for folder in folders:
            if folder in self._armed or len(self._armed) >= FOLDERS_MAX:
                continue
            try:
                inotify.add_watch(folder, _CHANGES)
            except OSError:  # not there, not to be listed, or no watch left: it is polled
                continue
            self._armed.add(folder)

    def looked(self) -> None:
        """The look is over."""
        self._took = self._clock.monotonic() - self._began

    async def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._listening is not None:
            self._listening.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._listening
        if self._inotify is not None:
            self._inotify.close()

    def _opened(self) -> Inotify | None:
        if self._inotify is None and not self._failed:
            try:
                self._inotify = Inotify()
            except OSError:  # this user has no instance left: everything is polled
                self._failed = True
                return None
            self._listening = asyncio.create_task(self._listen(self._inotify))
        return self._inotify

    async def _listen(self, inotify: Inotify) -> None:
        async for event in inotify:
            if event.watch is not None:
                self._armed.discard(str(event.watch.path))
            if Mask.Q_OVERFLOW in event.mask:
                self._armed.clear()
            if event.mask & (Mask.MODIFY | Mask.CREATE | Mask.MOVED_TO | Mask.Q_OVERFLOW):
                self._tell_soon()

    def _tell_soon(self) -> None:
        if self._timer is None:
            due = self._began + max(SECONDS_MIN, SHARE * self._took)
            self._timer = asyncio.get_running_loop().call_later(max(0.0, due - self._clock.monotonic()), self._tell)

    def _tell(self) -> None:
        self._timer = None
        self._call()
