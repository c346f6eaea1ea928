"""Asking an HTTP server: bounded in time, bytes and number of questions, and left alone after it failed.

httpx rather than aiohttp: when a server breaks a chunked answer off (VictoriaLogs does, at its own time-out), httpx
says so at once; aiohttp 3.14 waits for its total time-out.

Errors: `AskError` (this module's only one) is everything that a server, a network or a file of credentials can do
wrong, with the reason that a source gives on. Its text is for people and holds no secret.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass

import httpx

from advisor.core.lines import cap, decode
from advisor.core.words import UnavailableReason
from advisor.ports import Clock
from connectors.web.access import Access, AccessError, Credentials
from connectors.web.pacing import Breaker, Pace

ERROR_BYTES_MAX = 2_000
RESERVE = 2.0  # questions that what is not urgent leaves to what is
PIECE_BYTES_MIN = 256 * 1024  # of an answer, but its last
ANSWER_BYTES_MAX = 64 * 1024 * 1024
RETRY_AFTER_SECONDS_MAX = 3_600.0
_JSON = {"Content-Type": "application/json"}


class AskError(Exception):
    """`status`: the server's, 0 without one. `broken`: the answer broke off, or was too much: less may work.
    `wait_seconds`: how long the server wants to be left alone.
    """

    def __init__(
        self,
        reason: UnavailableReason,
        detail: str,
        *,
        status: int = 0,
        broken: bool = False,
        wait_seconds: float = 0.0,
    ) -> None:
        super().__init__(detail)
        self.reason = reason
        self.detail = detail
        self.status = status
        self.broken = broken
        self.wait_seconds = wait_seconds

    @property
    def fault(self) -> bool:
        """The server's, so that it is left alone for a while: not a question that it does not take."""
        too_much = self.broken and self.reason is UnavailableReason.LIMIT
        return not (too_much or self.status in {400, 422})


@dataclass(slots=True)
class Host:
    """One of many hosts that are reached alike (the exporters of all nodes): each is left alone after its own failures.

    `why` and `reason`: of its newest failure.
    """

    url: str
    breaker: Breaker
    why: str = ""
    reason: UnavailableReason = UnavailableReason.REFUSED


class Server:
    """One server under one `Access`, or many `Host`s. Safe for concurrent use in one event loop."""

    def __init__(
        self,
        access: Access,
        *,
        clock: Clock,
        pace: Pace | None = None,
        breaker: Breaker | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
        connections_max: int = 8,
    ) -> None:
        self.access = access
        self.pace = pace or Pace(clock, per_second=5.0, burst=5.0)
        self.breaker = breaker or Breaker(clock)
        self._host = Host(access.url, self.breaker)
        self.asked = 0  # questions so far
        self._credentials = Credentials(access)
        self._transport = transport
        self._connections_max = connections_max
        self._client: httpx.AsyncClient | None = None
        self._stamps: object = None

    async def fetch(
        self,
        path: str,
        form: Mapping[str, str],
        *,
        method: str = "POST",
        headers: Mapping[str, str] | None = None,
        urgent: bool = True,
        host: Host | None = None,
        bytes_max: int = ANSWER_BYTES_MAX,
        body: bytes | None = None,
        answers: frozenset[int] = frozenset(),
    ) -> bytes:
        """The whole answer. `body`: JSON instead of a form. `answers`: statuses that are the server's word on this
        question, and no fault of its own. Raises `AskError`.
        """
        async with self.stream(
            path, form, method=method, headers=headers, urgent=urgent, host=host, body=body, answers=answers
        ) as pieces:
            got = bytearray()
            async for piece in pieces:
                got += piece
                if len(got) > bytes_max:
                    text = f"answer of more than {bytes_max >> 20} MiB"
                    raise AskError(UnavailableReason.LIMIT, text, broken=True)
            return bytes(got)

    @contextlib.asynccontextmanager
    async def stream(
        self,
        path: str,
        form: Mapping[str, str],
        *,
        method: str = "POST",
        headers: Mapping[str, str] | None = None,
        urgent: bool = True,
        host: Host | None = None,
        body: bytes | None = None,
        answers: frozenset[int] = frozenset(),
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """The answer piece by piece, once it is our turn. Raises `AskError`, also from within the iteration."""
        host = host or self._host
        left = host.breaker.left_seconds
        if left > 0:
            raise AskError(host.reason, f"{host.why}; not asked again for {left:.1f} s")
        await self.pace.turn(reserve=0.0 if urgent else RESERVE)
        self.asked += 1
        # For the whole answer: the client's own time-outs begin anew with every byte that trickles in.
        until = asyncio.get_running_loop().time() + self.access.timeout_seconds
        try:
            async with self._translated():
                client = await self._ready()
                request = client.build_request(
                    method,
                    host.url.rstrip("/") + path,
                    params=dict(form) if method == "GET" else None,
                    data=dict(form) if method == "POST" and body is None else None,
                    content=body,
                    headers={**_JSON, **(headers or {}), **self._credentials.headers()}
                    if body is not None
                    else {**(headers or {}), **self._credentials.headers()},
                )
                async with asyncio.timeout_at(until):
                    response = await self._send(client, request)
                try:
                    pieces = response.aiter_raw()
                    if response.status_code != 200:
                        raise await self._refused(response, _within(until, pieces, ERROR_BYTES_MAX))
                    _check_plain(response)
                    yield _within(until, pieces, PIECE_BYTES_MIN)
                finally:
                    await response.aclose()
        except AskError as error:
            error.detail = self._credentials.without_secrets(error.detail)  # a server may say what it was told
            error.args = (error.detail,)
            if error.fault and error.status not in answers:
                host.why, host.reason = error.detail, error.reason
                host.breaker.failed(error.wait_seconds)
            raise
        host.breaker.succeeded()

    async def close(self) -> None:
        if self._client is not None:
            await self._client.aclose()
            self._client = None

    async def _ready(self) -> httpx.AsyncClient:
        stamps = self._credentials.tls_stamps()
        if self._client is None or stamps != self._stamps:
            await self.close()
            access = self.access
            context = self._credentials.tls()
            self._client = httpx.AsyncClient(
                verify=context if context is not None else False,
                transport=self._transport,
                # How long an answer may take is bounded by `stream`: a clock for each read costs more than reading.
                timeout=httpx.Timeout(None, connect=access.connect_seconds, pool=access.timeout_seconds),
                limits=httpx.Limits(
                    max_connections=self._connections_max,
                    max_keepalive_connections=self._connections_max,
                    keepalive_expiry=30.0,
                ),
                follow_redirects=False,  # a redirect could carry our credentials elsewhere
                trust_env=False,
                headers={"Accept-Encoding": "identity", "User-Agent": "recovery-advisor"},
            )
            self._stamps = stamps
        return self._client

    @staticmethod
    async def _send(client: httpx.AsyncClient, request: httpx.Request) -> httpx.Response:
        """Once more where a kept connection turned out to be closed: the server never saw the question."""
        try:
            return await client.send(request, stream=True)
        except (httpx.RemoteProtocolError, httpx.ReadError, httpx.WriteError):
            return await client.send(request, stream=True)

    @contextlib.asynccontextmanager
    async def _translated(self) -> AsyncIterator[None]:
        seconds = self.access.timeout_seconds
        try:
            yield
        except AccessError as error:
            raise AskError(UnavailableReason.PERMISSION, str(error)) from error
        except httpx.ConnectTimeout as error:
            raise AskError(UnavailableReason.TIMEOUT, "no connection in time") from error
        except (httpx.TimeoutException, TimeoutError) as error:
            raise AskError(UnavailableReason.TIMEOUT, f"no answer within {seconds:g} s", broken=True) from error
        except httpx.ConnectError as error:
            raise AskError(UnavailableReason.REFUSED, f"cannot connect: {cap(str(error), 200)}") from error
        except httpx.HTTPError as error:
            text = f"the answer broke off: {type(error).__name__}: {cap(str(error), 200)}"
            raise AskError(UnavailableReason.GARBLED, text, broken=True) from error
        except httpx.InvalidURL as error:
            raise AskError(UnavailableReason.NOT_CONFIGURED, f"no usable address: {error}") from error

    @staticmethod
    async def _refused(response: httpx.Response, pieces: AsyncIterator[bytes]) -> AskError:
        """Whatever is not 200. What the server says is shown, as text that it chose: capped and harmless."""
        got = b""
        async for piece in pieces:
            got += piece
            if len(got) > ERROR_BYTES_MAX:
                break
        status = response.status_code
        said = cap(" ".join(decode(got[:ERROR_BYTES_MAX]).split()), 300)
        wait = response.headers.get("retry-after", "")
        return AskError(
            _REASONS.get(status, UnavailableReason.REFUSED),
            f"HTTP {status}{': ' if said else ''}{said}",
            status=status,
            broken=status in {408, 504},
            wait_seconds=min(float(wait), RETRY_AFTER_SECONDS_MAX) if wait.isascii() and wait.isdigit() else 0.0,
        )


_REASONS = {
    401: UnavailableReason.PERMISSION,
    403: UnavailableReason.PERMISSION,
    404: UnavailableReason.NOT_CONFIGURED,
    408: UnavailableReason.TIMEOUT,
    429: UnavailableReason.LIMIT,
    504: UnavailableReason.TIMEOUT,
}


def _check_plain(response: httpx.Response) -> None:
    """We ask for answers as they are: packed ones could be any size once they are unpacked. Raises `AskError`."""
    packed = response.headers.get("content-encoding", "identity").strip().lower()
    if packed not in {"", "identity"}:
        raise AskError(UnavailableReason.GARBLED, f"an answer packed as {cap(decode(packed.encode()), 40)}, unasked")


async def _within(until: float, pieces: AsyncIterator[bytes], bytes_min: int) -> AsyncIterator[bytes]:
    """So many bytes together, for every wait has its price: nobody does anything with less before the rest is there.
    Raises `TimeoutError` for what comes later, by the event loop's clock.
    """
    now = asyncio.get_running_loop().time
    more = True
    while more:
        if now() > until:
            raise TimeoutError
        got: list[bytes] = []
        size = 0
        async with asyncio.timeout_at(until):
            while size < bytes_min:
                piece = await anext(pieces, None)
                if piece is None:
                    more = False
                    break
                got.append(piece)
                size += len(piece)
        if got:
            yield b"".join(got)
