"""Tasks of the service end when it stops, also those that took the first word for another error."""

import asyncio

from advisor.cancelling import cancel


async def test_a_task_that_swallowed_its_cancellation_ends_all_the_same() -> None:
    """A database's error came in the place of the cancellation once, and the task tried again."""
    swallowed = 0

    async def stubborn() -> None:
        nonlocal swallowed
        while True:
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                swallowed += 1
                if swallowed > 1:
                    raise

    task = asyncio.create_task(stubborn())
    await asyncio.sleep(0)
    async with asyncio.timeout(10):
        await cancel(task)
    assert task.cancelled()
    assert swallowed == 2


async def test_a_task_that_failed_before_is_no_news() -> None:
    """Its error was told when it came."""

    async def failing() -> None:
        raise OSError("gone")

    task = asyncio.create_task(failing())
    await asyncio.sleep(0)
    await cancel(task)
    assert task.done()
