"""Who makes a request: found before any route sees it."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from starlette.requests import HTTPConnection, Request
from starlette.types import ASGIApp, Receive, Scope, Send

from advisor.service.callers import NOBODY, Caller, Callers


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """What the other end of a connection shows before it says a word. `uid`: on a Unix socket, from the kernel."""

    uid: int | None = None
    address: str = ""


Identify = Callable[[HTTPConnection], Awaitable[Caller]]


def connection_of(request: HTTPConnection) -> Connection:
    """The protocol puts it there, see `serving`; a request that came otherwise came from nobody."""
    found = getattr(request.state, "connection", None)
    return found if isinstance(found, Connection) else Connection()


def by_account(callers: Callers) -> Identify:
    """On a Unix socket the kernel vouches for the account."""

    async def identify(request: HTTPConnection) -> Caller:
        uid = connection_of(request).uid
        return NOBODY if uid is None else await callers.find(uid)

    return identify


class FindCaller:
    """Puts the caller into `request.state.caller`."""

    def __init__(self, app: ASGIApp, *, identify: Identify) -> None:
        self._app = app
        self._identify = identify

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            request = Request(scope)
            request.state.caller = await self._identify(request)
        await self._app(scope, receive, send)
