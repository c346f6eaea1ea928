"""`/metrics`: what `advisor.instruments` counted, and how things stand at this moment.

How things stand is read anew for each scrape, within `STORE_SECONDS`; where the database does not answer, `store_up` is
0 and what it would have told is left out or not a number, which is not the same as zero.
"""

import asyncio
import math
from collections.abc import Callable, Sequence

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from sqlalchemy.exc import SQLAlchemyError
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from advisor.board import Board
from advisor.core.words import Mode
from advisor.instruments import Instruments
from advisor.service.access import require
from advisor.service.http.application import caller_of
from advisor.service.operator_servicer import SourceHealth
from advisor.store.records import AgentMode
from advisor.store.store import Store

STORE_SECONDS = 3.0


def routes(
    instruments: Instruments, store: Store, board: Board, sources: Callable[[], Sequence[SourceHealth]]
) -> list[BaseRoute]:
    scraping = asyncio.Lock()  # two scrapes at once would see each other's half-set values

    async def metrics(request: Request) -> Response:
        require(caller_of(request), "GET /metrics")
        async with scraping:
            _from_memory(instruments, board, sources())
            await _from_store(instruments, store, board)
            text = generate_latest(instruments.registry)
        return Response(text, media_type=CONTENT_TYPE_LATEST)

    return [Route("/metrics", metrics)]


def _from_memory(instruments: Instruments, board: Board, sources: Sequence[SourceHealth]) -> None:
    instruments.tick_age.set(board.pulse.age_seconds)
    instruments.oldest_tick_age.set(board.tick_age_seconds)
    for gauge in (instruments.source_up, instruments.source_newest):
        gauge.clear()
    for source in sources:
        instruments.source_up.labels(source.name).set(source.available)
        if source.newest_at is not None:
            instruments.source_newest.labels(source.name).set(source.newest_at.timestamp())


async def _from_store(instruments: Instruments, store: Store, board: Board) -> None:
    for gauge in instruments.as_stored:
        gauge.clear()
    try:
        async with asyncio.timeout(STORE_SECONDS):
            await _ask_store(instruments, store, board)
    except (TimeoutError, SQLAlchemyError):
        for gauge in instruments.as_stored:
            gauge.clear()
        instruments.open_incidents.set(math.nan)
        instruments.autonomous.set(math.nan)
        instruments.store_up.set(0)
    else:
        instruments.store_up.set(1)


async def _ask_store(instruments: Instruments, store: Store, board: Board) -> None:
    instruments.open_incidents.set(await store.open_incident_count())
    instruments.autonomous.set(sum(item.mode is Mode.AUTONOMOUS for item in await store.modes()))
    agents = await store.agents()
    for cluster in sorted({agent.cluster for agent in agents}):
        instruments.open_advice.labels(cluster).set(len(await board.open_for(cluster)))
        isolated = [item for item in await store.open_isolations(cluster) if item.ended_at is None]
        instruments.isolated.labels(cluster).set(sum(not item.dry_run for item in isolated))
        instruments.paused.labels(cluster).set(board.paused_until(cluster) is not None)
        instruments.breaker.labels(cluster).set(0)
    for breaker in await store.breakers():
        instruments.breaker.labels(breaker.cluster).set(1)
    for agent in agents:
        place = (agent.cluster, agent.host)
        instruments.agent_seen.labels(*place).set(agent.last_seen_at.timestamp())
        instruments.agent_acts.labels(*place).set(agent.mode is AgentMode.ACT and not agent.missing_rights)
        instruments.agent_stopped.labels(*place).set(agent.stop_file is not None)
