"""Hints between replicas."""

import asyncio

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine

from advisor.store.hints import ADVICE, CHANNEL, TICK, Hints
from advisor.store.store import Store

pytestmark = pytest.mark.postgres


async def test_a_hint_reaches_the_others_and_a_lost_listener_comes_back(store: Store, url: str) -> None:
    """Not whoever gave it; and after its connection was ended by the database it listens again."""
    heard: asyncio.Queue[str] = asyncio.Queue()
    own: list[str] = []
    one, two = (Hints(lambda: url, name, store.replicas.hint) for name in ("one", "two"))
    tasks = [asyncio.create_task(work) for work in (one.send(), one.listen(own.append), two.listen(heard.put_nowait))]
    engine = create_async_engine(url)
    try:
        async with asyncio.timeout(30), engine.connect() as connection:
            await _listening(connection, 2)
            one.tell(TICK)
            one.tell(TICK)
            assert await heard.get() == TICK
            ended = text("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query = :query")
            await connection.execute(ended, {"query": f"LISTEN {CHANNEL}"})
            await connection.commit()
            await _listening(connection, 2)
            one.tell(ADVICE)
            assert await heard.get() == ADVICE
        assert heard.empty(), "what comes together is told once"
        assert own == []
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await engine.dispose()


async def _listening(connection: AsyncConnection, count: int) -> None:
    looked = text(
        "SELECT count(*) FROM pg_stat_activity WHERE query = :query AND state = 'idle' AND datname = current_database()"
    )
    while True:
        found = await connection.execute(looked, {"query": f"LISTEN {CHANNEL}"})
        await connection.commit()
        if found.scalar_one() == count:
            return
        await asyncio.sleep(0.05)
