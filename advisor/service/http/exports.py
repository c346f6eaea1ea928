"""Whole lists as files: JSON lines or CSV, page by page, with no more than a page in memory.

No connection of the database is held between two pages, so that a slow reader costs a socket; one that takes nothing
for a while is broken off. A file that could not be finished ends without the end of its transfer, which every HTTP
client reports.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from functools import partial
from typing import Any

from google.protobuf.message import Message
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Message as AsgiMessage
from starlette.types import Receive, Scope, Send

from advisor.exporting import FORMATS, head, lines
from advisor.service.callers import Caller, Role
from advisor.service.calls import Calls
from advisor.service.errors import BadRequestError, NotFoundError, TooOftenError
from advisor.service.http.application import caller_of
from advisor.service.http.contract import Exposed, by_name
from advisor.service.http.json_messages import from_query

# Kind → the method that lists it.
KINDS = {
    "decisions": "ListDecisions",
    "incidents": "ListIncidents",
    "attempts": "ListAttempts",
    "signals": "ListSignals",
    "actions": "ListActions",
    "nodes": "ListNodes",
    "audit": "ListAudit",
}
AT_ONCE_MAX = 4
ROWS_MAX = 5_000_000
STALLED_SECONDS = 60.0
CALLER_SECONDS = 10.0  # who asks is asked for again: a token may have been taken back
_PAGE = 250
_MEDIA = {"jsonl": "application/jsonl", "csv": "text/csv; charset=utf-8; header=present"}


class Exports:
    """`answer` is the endpoint. A few exports at once; one of each account that is no operator's."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._running: Counter[str] = Counter()  # by account
        self._operations = by_name()

    async def answer(self, request: Request) -> Response:
        kind = request.path_params["kind"]
        if kind not in KINDS:
            raise NotFoundError(f"there is no export of {kind[:64]!r}: there are {', '.join(KINDS)}")
        operation = self._operations[KINDS[kind]]
        form, most, asked = _read(operation, request)
        caller = caller_of(request)
        self._refuse_too_many(caller)
        self._running[caller.name] += 1
        finished = partial(self._finished, caller.name)
        try:
            pages = self._pages(request, operation, asked)
            first = await anext(pages)  # what is refused is refused before an answer has begun
            name = f'attachment; filename="{kind}.{form}"'
            return _Stalling(
                self._lines(first, pages, operation, form, most),
                media_type=_MEDIA[form],
                headers={"Content-Disposition": name},
                finished=finished,
            )
        except BaseException:
            finished()
            raise

    def _refuse_too_many(self, caller: Caller) -> None:
        """The last place, and more than one, are for operators: nobody else keeps them waiting by reading slowly."""
        operates = bool(caller.roles & Role.OPERATOR)
        if not operates and self._running[caller.name]:
            raise TooOftenError("an export of yours is running: try again when it has ended", retry_seconds=10)
        most = AT_ONCE_MAX if operates else AT_ONCE_MAX - 1
        if self._running.total() >= most:
            raise TooOftenError(f"{most} exports are running: try again", retry_seconds=10)

    def _finished(self, name: str) -> None:
        self._running[name] -= 1
        if not self._running[name]:
            del self._running[name]

    async def _pages(self, request: Request, operation: Exposed, asked: Any) -> AsyncIterator[Any]:
        asked.page.page_size = _PAGE
        loop = asyncio.get_running_loop()
        caller, known = caller_of(request), loop.time()
        while True:
            if loop.time() - known > CALLER_SECONDS:
                caller, known = await request.state.caller_again(), loop.time()
            again = operation.request()
            again.CopyFrom(asked)
            answer: Any = await self._calls.unary(caller, operation.method, again, operation.answer)
            yield answer
            if not answer.next_cursor:
                return
            asked.page.cursor = answer.next_cursor

    async def _lines(
        self, first: Message, pages: AsyncIterator[Any], operation: Exposed, form: str, most: int
    ) -> AsyncIterator[str]:
        field = next(item for item in operation.gives.fields if item.is_repeated)
        assert field.message_type is not None  # noqa: S101 -- lists are of messages
        yield head(field.message_type, form)
        left, page = most, first
        while True:
            rows = list(getattr(page, field.name))[:left]
            left -= len(rows)
            if rows:
                yield await asyncio.to_thread(_written, rows, form)
            if left <= 0:
                return
            following = await anext(pages, None)
            if following is None:
                return
            page = following


def _read(operation: Exposed, request: Request) -> tuple[str, int, Any]:
    """The format, how many rows at most, and the list's request."""
    own = {"format": "jsonl", "limit": str(ROWS_MAX)}
    query = []
    for name, value in request.query_params.multi_items():
        if name in {"page_size", "cursor"}:
            raise BadRequestError(f"{name}: an export has no pages")
        if name in own:
            own[name] = value
        else:
            query.append((name, value))
    if own["format"] not in FORMATS:
        raise BadRequestError(f"format: {own['format'][:64]!r} is not one of {', '.join(FORMATS)}")
    limit = own["limit"]
    if not limit.isascii() or not limit.isdigit() or not 1 <= int(limit[:12]) <= ROWS_MAX:
        raise BadRequestError(f"limit: {limit[:64]!r} is not a number from 1 to {ROWS_MAX}")
    return own["format"], int(limit), from_query(operation, query, {})


def _written(rows: Sequence[Message], form: str) -> str:
    return "".join(lines(rows, form))


class _Stalling(StreamingResponse):
    """Breaks off when the reader takes nothing for `STALLED_SECONDS`; tells when it is over, however it ends."""

    def __init__(self, content: AsyncIterator[str], *, finished: Any, **options: Any) -> None:
        super().__init__(content, **options)
        self._finished = finished

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_soon(message: AsgiMessage) -> None:
            async with asyncio.timeout(STALLED_SECONDS):
                await send(message)

        try:
            await super().__call__(scope, receive, send_soon)
        finally:
            self._finished()
