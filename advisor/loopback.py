"""The dashboard in a browser on this host: a page on 127.0.0.1 that is only its caller's, while his command runs.

The service itself listens on no port for this. The command passes what the browser asks on to the service, over the
Unix socket, where the kernel says who runs the command, or over TLS with his token: so a page shows and does what he
may, and is audited as his. Who else can reach the port gets nothing:

* the address that is printed holds a token that is good once, for a short time; it is exchanged for a cookie that no
  script can read and no other site's page can have sent (`HttpOnly`, `SameSite=Strict`);
* cookies do not tell ports apart, and another user of the host may have one: so a connection's other end must belong to
  the user who runs the command, as the kernel's table of connections says;
* `Host` must be the very address, against names that are made to point here (DNS rebinding), and what changes something
  must come from a page of this address (`Origin`), beside the form tokens of the pages themselves.
"""

import hmac
import os
import secrets
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import httpx
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response, StreamingResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from advisor.ports import Clock
from advisor.service.http.headers import SecureHeaders

ADDRESS = "127.0.0.1"
TOKEN_SECONDS = 300.0
BODY_BYTES_MAX = 1024 * 1024
_HOP = frozenset(
    {
        *("connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "te", "trailer"),
        *("transfer-encoding", "upgrade", "content-length", "strict-transport-security"),
    }
)
# What pages remember in a browser: how they look, and what to say once. Our own cookie stays here.
_PASSED_COOKIES = ("theme", "notice")
_NOT_PASSED_ON = _HOP | {"cookie", "authorization", "x-forwarded-for", "forwarded"}

OwnerOf = Callable[[str, int, int], int | None]


def owner_of_connection(address: str, port: int, to: int) -> int | None:
    """The uid behind the other end of a connection to our port `to`, None when the kernel does not tell.

    Of an end that nobody holds open any more (it has no inode) the table says root, whoever it was.
    """
    end = f"{_hex(address)}:{port:04X}"
    ours = f"{_hex(ADDRESS)}:{to:04X}"
    with Path("/proc/net/tcp").open(encoding="ascii") as table:
        for line in table:
            fields = line.split()
            if len(fields) > 9 and fields[1] == end and fields[2] == ours:
                return int(fields[7]) if fields[9] != "0" else None
    return None


def _hex(address: str) -> str:
    return "".join(f"{int(part):02X}" for part in reversed(address.split(".")))


class Loopback:
    """An ASGI application. `upstream` reaches the service and shows it who we are."""

    def __init__(
        self,
        upstream: httpx.AsyncClient,
        *,
        port: int,
        clock: Clock,
        hours: float,
        owner_of: OwnerOf = owner_of_connection,
    ) -> None:
        self._upstream = upstream
        self._port = port
        self._clock = clock
        self._owner_of = owner_of
        self._host = f"{ADDRESS}:{port}"
        self._cookie = f"advisor_{port}"
        self._once: str | None = secrets.token_urlsafe(32)
        self._session = secrets.token_urlsafe(32)
        now = clock.monotonic()
        self._once_until = now + TOKEN_SECONDS
        self._until = now + hours * 3600
        self._app: ASGIApp = SecureHeaders(self._answer)

    @property
    def url(self) -> str:
        """To be opened once."""
        return f"http://{self._host}/open?token={self._once}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, send)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        request = Request(scope, receive)
        refusal = self._refusal(request)
        if refusal:
            answer: Response = PlainTextResponse(f"{refusal}\n", status_code=403)
        elif request.url.path == "/open":
            answer = self._exchange(request)
        elif not self._knows(request):
            text = "Run `advisor dashboard` again: its address can be opened once, and this browser has not.\n"
            answer = PlainTextResponse(text, status_code=403)
        else:
            answer = await self._pass_on(request)
        await answer(scope, receive, send)

    def _refusal(self, request: Request) -> str:
        """Why nothing is said to this connection, "" when there is no reason."""
        if request.headers.getlist("host") != [self._host]:
            return f"This is not {self._host}."
        client = request.client
        owner = self._owner_of(client.host, client.port, self._port) if client is not None else None
        if owner != os.geteuid():
            return "This page belongs to another user of this host."
        if request.method not in {"GET", "HEAD"}:
            if request.headers.get("origin") != f"http://{self._host}":
                return "This came from a page of another site."
            if request.headers.get("sec-fetch-site", "same-origin") != "same-origin":
                return "This came from a page of another site."
        return ""

    def _exchange(self, request: Request) -> Response:
        """The token for the cookie: once, whether it was right or not."""
        once, self._once = self._once, None
        given = request.query_params.get("token", "")
        good = once is not None and hmac.compare_digest(given.encode(), once.encode())
        if not good or self._clock.monotonic() > self._once_until or request.method != "GET":
            text = "This address has been opened before, or too late: run `advisor dashboard` again.\n"
            return PlainTextResponse(text, status_code=403)
        answer = RedirectResponse("/", status_code=303)
        answer.set_cookie(self._cookie, self._session, httponly=True, samesite="strict", path="/")
        return answer

    def _knows(self, request: Request) -> bool:
        given = request.cookies.get(self._cookie, "")
        return self._clock.monotonic() < self._until and hmac.compare_digest(given.encode(), self._session.encode())

    async def _pass_on(self, request: Request) -> Response:
        body = bytearray()
        async for part in request.stream():
            body += part
            if len(body) > BODY_BYTES_MAX:
                return PlainTextResponse("That is too large.\n", status_code=413)
        passed = [(name, value) for name, value in request.headers.items() if name not in _NOT_PASSED_ON]
        kept = [f"{name}={request.cookies[name]}" for name in _PASSED_COOKIES if name in request.cookies]
        if kept:
            passed.append(("cookie", "; ".join(kept)))
        self._upstream.cookies.clear()  # they are the browser's to keep
        target = request.url.path + (f"?{request.url.query}" if request.url.query else "")
        asked = self._upstream.build_request(request.method, target, headers=passed, content=bytes(body))
        try:
            answer = await self._upstream.send(asked, stream=True)
        except httpx.HTTPError as error:
            text = f"The advisor does not answer ({type(error).__name__}): is `advisor serve` running?\n"
            return PlainTextResponse(text, status_code=502)
        headers = {name: value for name, value in answer.headers.items() if name not in _HOP}
        return StreamingResponse(_parts(answer), status_code=answer.status_code, headers=headers)


async def _parts(answer: httpx.Response) -> AsyncIterator[bytes]:
    """As they come: pages that are kept up to date are answers without end."""
    try:
        async for part in answer.aiter_raw():
            yield part
    except httpx.HTTPError:
        return  # the service ended it; so do we
    finally:
        await answer.aclose()
