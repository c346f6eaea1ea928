"""Whether we live, and whether we can do our work. For load balancers and supervisors: no caller is asked for."""

import asyncio

from sqlalchemy.exc import SQLAlchemyError
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from advisor.board import Board
from advisor.store.store import Store

STORE_SECONDS = 2.0
TICK_SECONDS_MIN = 30.0  # a tick that is older, and ten intervals old, means that nothing is being decided


def routes(store: Store, board: Board, *, interval_seconds: float) -> list[BaseRoute]:
    """`/healthz`: the event loop turns. `/readyz`: the store answers and ticks are completed; otherwise 503."""

    most = max(TICK_SECONDS_MIN, 10 * interval_seconds)

    async def live(_request: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def ready(_request: Request) -> Response:
        answers = await _store_answers(store)
        age = board.pulse.age_seconds
        fine = answers and age <= most
        document = {"status": "ok" if fine else "not ready", "store": answers, "tick_age_seconds": round(age, 3)}
        return JSONResponse(document, status_code=200 if fine else 503)

    return [Route("/healthz", live), Route("/readyz", ready)]


async def _store_answers(store: Store) -> bool:
    try:
        async with asyncio.timeout(STORE_SECONDS):
            await store.ping()
    except (TimeoutError, SQLAlchemyError):
        return False
    return True
