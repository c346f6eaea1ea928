"""An HTTP server small enough to misbehave on purpose: what stands between a connector and a log store in the tests.

Behind it is a fake store in this process or a real one; faults are the front's own, so that both fail alike.
"""

import asyncio
import ssl
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from urllib.parse import parse_qs, urlsplit

import httpx


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    path: str
    form: Mapping[str, str]
    headers: Mapping[str, str]
    raw: bytes = b""


@dataclass(slots=True, kw_only=True)
class Told:
    """`body` in one piece has a length; in several it is chunked. `cut`: the connection ends after so many bytes of
    the body, without its proper end. `last_words`: put in before that, as VictoriaLogs does.
    """

    status: int = 200
    body: bytes | AsyncIterator[bytes] = b""
    kind: str = "application/json"
    headers: Mapping[str, str] = field(default_factory=dict)
    cut: int | None = None
    last_words: bytes = b""


Behind = Callable[[Asked], Awaitable[Told]]
Fault = Callable[[Asked, Behind], Awaitable[Told | None]]  # None: the connection is closed without a word


class Front:
    """`faults` are used up one per question, in order; `always` is for every one."""

    def __init__(self, behind: Behind, *, tls: ssl.SSLContext | None = None) -> None:
        self.behind = behind
        self.faults: list[Fault] = []
        self.always: Fault | None = None
        self.asked: list[Asked] = []
        self._tls = tls
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.port = 0

    @property
    def url(self) -> str:
        return f"{'https' if self._tls else 'http'}://{'localhost' if self._tls else '127.0.0.1'}:{self.port}"

    async def start(self, port: int = 0) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", port, ssl=self._tls, limit=1 << 24)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
            for task in list(self._tasks):
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            for writer in list(self._open):
                writer.transport.abort()
            await self._server.wait_closed()
            self._server = None

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._open.add(writer)
        try:
            while await self._one(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError, ssl.SSLError, asyncio.CancelledError):
            pass
        finally:
            self._open.discard(writer)
            self._tasks.discard(task)
            writer.transport.abort()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        method, target, _ = head[0].split(" ")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:]) if name}
        body = await reader.readexactly(int(headers.get("content-length", "0")))
        split = urlsplit(target)
        pairs = {
            **parse_qs(split.query),
            **(parse_qs(body.decode()) if "form" in headers.get("content-type", "") else {}),
        }
        form = {name: values[-1] for name, values in pairs.items()}
        asked = Asked(path=split.path, form=form, headers=headers, raw=body)
        self.asked.append(asked)
        fault = self.faults.pop(0) if self.faults else self.always
        told = await (fault(asked, self.behind) if fault is not None else self.behind(asked))
        if told is None:
            return False
        await self._tell(writer, told)
        return told.cut is None and method != "HEAD"

    @staticmethod
    async def _tell(writer: asyncio.StreamWriter, told: Told) -> None:
        fields = {"Content-Type": told.kind, **told.headers}
        if isinstance(told.body, bytes):
            fields["Content-Length"] = str(len(told.body))
        else:
            fields["Transfer-Encoding"] = "chunked"
        lines = [f"HTTP/1.1 {told.status} X", *(f"{name}: {value}" for name, value in fields.items()), "", ""]
        writer.write("\r\n".join(lines).encode())
        if isinstance(told.body, bytes):
            writer.write(told.body if told.cut is None else told.body[: told.cut])
            await writer.drain()
            return
        sent = 0
        async for piece in told.body:
            if told.cut is not None and sent + len(piece) >= told.cut:
                piece = piece[: told.cut - sent]
                writer.write(b"%x\r\n%s\r\n" % (len(piece), piece) if piece else b"")
                writer.write(told.last_words)
                await writer.drain()
                return
            sent += len(piece)
            if piece:
                writer.write(b"%x\r\n%s\r\n" % (len(piece), piece))
                await writer.drain()
        writer.write(b"0\r\n\r\n")
        await writer.drain()


# Faults


def says(status: int, text: str = "", **headers: str) -> Fault:
    async def fault(_: Asked, __: Behind) -> Told:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return Told(status=status, body=text.encode(), kind="text/plain; charset=utf-8", headers=named)

    return fault


async def hangs_up(_: Asked, __: Behind) -> None:
    return None


async def never_answers(_: Asked, __: Behind) -> Told:
    await asyncio.get_running_loop().create_future()
    raise AssertionError


def cuts(share: float, last_words: bytes = b"") -> Fault:
    """The body ends after a share of its bytes."""

    async def fault(asked: Asked, behind: Behind) -> Told:
        told = await behind(asked)
        told.cut = int(len(told.body) * share) if isinstance(told.body, bytes) else 200
        told.last_words = last_words
        return told

    return fault


def garbles(text: bytes) -> Fault:
    async def fault(_: Asked, __: Behind) -> Told:
        return Told(body=text)

    return fault


async def passes(asked: Asked, behind: Behind) -> Told:
    return await behind(asked)


class Upstream:
    """A real server behind the front."""

    def __init__(self, url: str) -> None:
        self.client = httpx.AsyncClient(base_url=url, timeout=60, trust_env=False)

    async def __call__(self, asked: Asked) -> Told:
        passed = {"x-scope-orgid", "accountid", "projectid", "x-loki-response-encoding-flags"}
        headers = {name: value for name, value in asked.headers.items() if name in passed}
        got = await self.client.post(asked.path, data=dict(asked.form), headers=headers)
        return Told(status=got.status_code, body=got.content, kind=got.headers.get("content-type", "text/plain"))

    async def close(self) -> None:
        await self.client.aclose()


async def serve_until_alone(behind: Behind) -> None:
    """As a process of its own: prints the port, and ends when whoever started it has closed our standard input."""
    front = Front(behind)
    await front.start()
    print(front.port, flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    await front.stop()
