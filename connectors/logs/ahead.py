"""Asks a store for what comes next of the past while what came is being looked at: server and we work at the same time.

At most one answer is held, and it is the one that will be asked for next, so that no question is asked in vain but the
last. Nothing is asked ahead about the present: there is nothing yet.
"""

import asyncio
from dataclasses import dataclass, replace

from connectors.logs.store import Answer, Ask, LogStore


@dataclass(frozen=True, slots=True)
class _Asked:
    ask: Ask
    task: asyncio.Task[Answer]


class Ahead:
    """In front of a store's `lines`. One question about the past at a time is followed by the next."""

    def __init__(self, store: LogStore) -> None:
        self._store = store
        self._next: _Asked | None = None

    async def lines(self, ask: Ask) -> Answer:
        """Raises what the store does."""
        if ask.urgent:
            return await self._store.lines(ask)
        asked, self._next = self._next, None
        if asked is not None and _alike(asked.ask, ask):
            answer = await asked.task
        else:
            await _drop(asked)
            answer = await self._store.lines(ask)
        if self._next is None and ask.start_ns < answer.until_ns < ask.end_ns:
            following = replace(ask, start_ns=answer.until_ns)
            self._next = _Asked(following, asyncio.create_task(self._store.lines(following)))
        return answer

    async def close(self) -> None:
        await _drop(self._next)
        self._next = None


def _alike(asked: Ask, ask: Ask) -> bool:
    """The answer to the one is one to the other: it may end earlier, and says so."""
    return asked.end_ns <= ask.end_ns and replace(asked, end_ns=ask.end_ns) == ask


async def _drop(asked: _Asked | None) -> None:
    if asked is not None:
        asked.task.cancel()
        await asyncio.gather(asked.task, return_exceptions=True)
