"""Queues before the store: short, fair, and empty afterwards."""

import asyncio

import pytest

from advisor.service.errors import TooOftenError
from advisor.service.limits import Queues


async def test_few_wait_and_more_are_sent_away() -> None:
    """One works and two wait; the next one is told at once, and another key does not notice."""
    queues, free, done = Queues(waiting=2, together=2), asyncio.Event(), []

    async def work(key: str) -> None:
        async with queues.turn(key):
            await free.wait()
            done.append(key)

    working = [asyncio.create_task(work("a")) for _ in range(3)]
    await asyncio.sleep(0)
    with pytest.raises(TooOftenError, match="2 reports of 'a' wait"):
        await work("a")
    other = asyncio.create_task(work("b"))
    await asyncio.sleep(0)
    free.set()
    await asyncio.gather(*working, other)
    assert sorted(done) == ["a", "a", "a", "b"]


async def test_who_gives_up_waiting_leaves_his_place() -> None:
    """A caller that is gone holds nothing: its place is free for the next one."""
    queues = Queues(waiting=1, together=1)
    async with queues.turn("a"):
        waits = asyncio.create_task(queues.turn("a").__aenter__())
        await asyncio.sleep(0)
        waits.cancel()
        await asyncio.gather(waits, return_exceptions=True)
        after = asyncio.create_task(queues.turn("a").__aenter__())
        await asyncio.sleep(0)
        assert not after.done()
    await after
