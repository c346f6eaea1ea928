"""Bodies are bounded before anybody reads them, in size and in time."""

import asyncio

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from advisor.service.http.answers import BodyTooLargeError, BodyTooSlowError

BODY_SECONDS = 30.0


class BoundBodies:
    """Refuses by the announced length at once, and by what really comes as soon as it is too much."""

    def __init__(self, app: ASGIApp, *, bytes_max: int) -> None:
        self._app = app
        self._most = bytes_max

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        announced = Headers(scope=scope).get("content-length", "")
        if announced.isdigit() and (len(announced) > 18 or int(announced) > self._most):
            raise BodyTooLargeError(self._most)
        loop = asyncio.get_running_loop()
        until = loop.time() + BODY_SECONDS
        seen, complete = 0, False

        async def receive_bounded() -> Message:
            nonlocal seen, complete
            if complete:  # waiting for the client to go away may take as long as it likes
                return await receive()
            try:
                async with asyncio.timeout_at(until):
                    message = await receive()
            except TimeoutError:
                raise BodyTooSlowError from None
            complete = not message.get("more_body", False)
            seen += len(message.get("body", b""))
            if seen > self._most:
                raise BodyTooLargeError(self._most)
            return message

        await self._app(scope, receive_bounded, send)
