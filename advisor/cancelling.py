"""How a task of ours is ended for good."""

import asyncio
from typing import Any

CANCEL_SECONDS = 0.5  # then it is asked again to end


async def cancel(task: asyncio.Task[Any]) -> None:
    """Until it has ended: a query that is cancelled may fail with the database's own error instead, which a task that
    tries again after such errors takes for one of those. What it ended with is told elsewhere.
    """
    while not task.done():
        task.cancel()
        await asyncio.wait({task}, timeout=CANCEL_SECONDS)
    if not task.cancelled():
        task.exception()
