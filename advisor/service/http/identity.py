"""Who makes a request: found before any route sees it, and counted against his limit."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial

from starlette.requests import HTTPConnection, Request
from starlette.types import ASGIApp, Receive, Scope, Send

from advisor.service.authentication import Authentication
from advisor.service.callers import NOBODY, Caller, Callers
from advisor.service.limits import RateLimits
from advisor.service.relaying import Peers


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """The other end of a connection, as the kernel tells it. `name`: of a relay's end, "" for others."""

    uid: int | None = None
    name: str = ""


Identify = Callable[[HTTPConnection], Awaitable[Caller]]


def connection_of(request: HTTPConnection) -> Connection:
    """The protocol puts it there, see `serving`; a request that came otherwise came from nobody."""
    found = getattr(request.state, "connection", None)
    return found if isinstance(found, Connection) else Connection()


def by_account(callers: Callers) -> Identify:
    """On a Unix socket the kernel vouches for the account, and nothing else is looked at."""

    async def identify(request: HTTPConnection) -> Caller:
        uid = connection_of(request).uid
        return NOBODY if uid is None else await callers.find(uid)

    return identify


def by_door(peers: Peers, authentication: Authentication) -> Identify:
    """Behind the TLS door: by the certificate of the connection, or by the token of the request."""

    async def identify(request: HTTPConnection) -> Caller:
        request.scope["scheme"] = "https"
        connected = peers.find(connection_of(request).name)
        given = request.headers.getlist("authorization")
        return await authentication.caller(connected, given[0] if len(given) == 1 else "")

    return identify


class FindCaller:
    """Puts the caller into `request.state.caller`, and how to ask again who it is into `caller_again`."""

    def __init__(self, app: ASGIApp, *, identify: Identify, limits: RateLimits | None) -> None:
        self._app = app
        self._identify = identify
        self._limits = limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            request = Request(scope)
            caller = await self._identify(request)
            request.state.caller = caller
            request.state.caller_again = partial(self._identify, request)
            if self._limits is not None:
                self._limits.take(caller)
        await self._app(scope, receive, send)
