"""The contract as JSON over HTTP, its OpenAPI document, and exports. `routes` is what `app` composes.

Every request becomes a message of the contract and goes through `Calls`, as one over gRPC does: who may call what,
whose jobs he sees and which text is withheld is decided there. A client that goes away has its query cancelled.
"""

import asyncio
import contextlib
from collections.abc import Coroutine
from typing import Any

import orjson
from google.protobuf.message import Message
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from advisor.service.calls import Calls
from advisor.service.http.application import caller_of
from advisor.service.http.contract import PREFIX, Exposed, exposed
from advisor.service.http.exports import Exports
from advisor.service.http.json_messages import as_document, from_body, from_query
from advisor.service.http.openapi import document


def routes(calls: Calls) -> list[BaseRoute]:
    exports = Exports(calls)
    found: list[BaseRoute] = [_route(calls, operation) for operation in exposed()]
    found.append(Route(f"{PREFIX}/export/{{kind}}", exports.answer))
    described = orjson.dumps(document(), option=orjson.OPT_INDENT_2)

    async def openapi(_request: Request) -> Response:
        return Response(described, media_type="application/json")

    found.append(Route("/openapi.json", openapi))
    return found


def _route(calls: Calls, operation: Exposed) -> Route:
    async def answer(request: Request) -> Response:
        if operation.verb == "GET":
            message = from_query(operation, request.query_params.multi_items(), request.path_params)
        else:
            message = from_body(operation, request.headers.get("content-type", ""), await request.body())
        asked = calls.unary(caller_of(request), operation.method, message, operation.answer)
        return await unless_left(request, _answer(asked))

    route = Route(operation.path, answer, methods=[operation.verb], name=operation.name)
    if route.methods is not None:
        route.methods.discard("HEAD")
    return route


async def _answer(asked: Coroutine[Any, Any, Message]) -> Response:
    found = await asked
    # A page of decisions takes tens of milliseconds to be written as JSON: not in the event loop.
    body = await asyncio.to_thread(_written, found)
    return Response(body, media_type="application/json")


def _written(message: Message) -> bytes:
    return orjson.dumps(as_document(message))


async def unless_left(request: Request, work: Coroutine[Any, Any, Response]) -> Response:
    """The answer, or nothing as soon as the client has gone: then `work` is cancelled, and its query with it."""
    task = asyncio.create_task(work)
    gone = asyncio.create_task(_gone(request))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientDisconnect
        return task.result()
    finally:
        for pending in (task, gone):
            pending.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.gather(task, gone, return_exceptions=True)


async def _gone(request: Request) -> None:
    while True:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            return
