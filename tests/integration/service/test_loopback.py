"""The dashboard's page on 127.0.0.1: once, for one user, from its own pages only."""

import asyncio
import os
import signal
import socket
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Route

from advisor.clock import SystemClock
from advisor.loopback import Loopback, OwnerOf, owner_of_connection
from advisor.service.callers import Accounts, Callers
from advisor.service.http.application import caller_of, compose
from advisor.service.http.browsers import FIELD, check_csrf, csrf_token
from advisor.service.http.identity import by_account
from advisor.service.http.serving import HttpServer
from advisor.service.owned_socket import OwnedSocket


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="page-") as name:
        yield Path(name)


@dataclass(slots=True)
class StoppedClock:
    """Stands still until it is moved."""

    at: float = 0.0
    real: SystemClock = field(default_factory=SystemClock)

    def now(self) -> datetime:
        return self.real.now()

    def monotonic(self) -> float:
        return self.at

    async def sleep(self, seconds: float) -> None:
        await self.real.sleep(seconds)


def _routes() -> list[BaseRoute]:
    async def show(request: Request) -> Response:
        shown = {"name": caller_of(request).name, "csrf": csrf_token(request), "seen": dict(request.headers)}
        return JSONResponse(shown | {"query": request.url.query})

    async def change(request: Request) -> Response:
        form = await request.form()
        check_csrf(request, form)
        return JSONResponse({"who": caller_of(request).uid, "why": form["why"]})

    async def live(_request: Request) -> Response:
        async def parts() -> AsyncIterator[bytes]:
            yield b"data: first\n\n"
            await asyncio.Event().wait()

        return StreamingResponse(parts(), media_type="text/event-stream")

    return [Route("/", show), Route("/change", change, methods=["POST"]), Route("/live", live)]


@asynccontextmanager
async def page_of(
    folder: Path, *, owner_of: OwnerOf = owner_of_connection
) -> AsyncIterator[tuple[Loopback, StoppedClock]]:
    """A service on its Unix socket, and the page that the command shows."""
    own = OwnedSocket(folder / "s")
    identify = by_account(Callers(Accounts(), SystemClock()))
    service = HttpServer(compose([_routes()], identify=identify, body_bytes_max=10_000), own.bind(), connections_max=64)
    await service.start()
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setblocking(False)
    clock = StoppedClock()
    upstream = httpx.AsyncClient(transport=httpx.AsyncHTTPTransport(uds=str(folder / "s")), base_url="http://advisor")
    page = Loopback(upstream, port=listener.getsockname()[1], clock=clock, hours=1, owner_of=owner_of)
    front = HttpServer(page, listener, connections_max=64)
    await front.start()
    try:
        yield page, clock
    finally:
        await front.stop()
        await upstream.aclose()
        await service.stop()
        own.remove()
        own.release()


def browser_of(page: Loopback) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=page.url.partition("/open")[0], trust_env=False, timeout=10)


async def test_the_address_is_good_once_and_then_the_cookie_is(folder: Path) -> None:
    """The token is exchanged for a cookie that no script reads; opened again, also by a guess, it gives nothing."""
    async with page_of(folder) as (page, _), browser_of(page) as browser, browser_of(page) as other:
        url = page.url
        assert (await browser.get("/")).status_code == 403
        opened = await browser.get(url)
        assert (opened.status_code, opened.headers["location"]) == (303, "/")
        cookie = opened.headers["set-cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=strict" in cookie
        shown = await browser.get("/?a=b%26c")
        assert shown.json()["query"] == "a=b%26c"
        assert "cookie" not in shown.json()["seen"]
        assert "frame-ancestors 'none'" in shown.headers["Content-Security-Policy"]
        assert (await other.get(url)).status_code == 403
        assert (await other.get("/")).status_code == 403


async def test_cookies_of_pages_are_the_browsers(folder: Path) -> None:
    """How pages look and what they say once is passed on as the browser has it; our own cookie and others' are not."""
    async with page_of(folder) as (page, _), browser_of(page) as browser:
        await browser.get(page.url)
        for name in ("theme", "notice", "other"):
            browser.cookies.set(name, "a%20b", domain="127.0.0.1")
        shown = await browser.get("/")
        assert shown.json()["seen"]["cookie"] == "theme=a%20b; notice=a%20b"
        browser.cookies.delete("theme")
        browser.cookies.delete("notice")
        assert "cookie" not in (await browser.get("/")).json()["seen"]


async def test_a_wrong_token_uses_the_address_up(folder: Path) -> None:
    """Nobody can guess twice."""
    async with page_of(folder) as (page, _), browser_of(page) as browser:
        url = page.url
        assert (await browser.get("/open?token=guess")).status_code == 403
        assert (await browser.get(url)).status_code == 403


async def test_token_and_cookie_end_with_their_time(folder: Path) -> None:
    """Minutes after it was printed the address is dead; hours after it was opened the page is."""
    async with page_of(folder) as (page, clock), browser_of(page) as browser:
        clock.at = 301
        assert (await browser.get(page.url)).status_code == 403
    async with page_of(folder) as (page, clock), browser_of(page) as browser:
        await browser.get(page.url)
        clock.at = 3599
        assert (await browser.get("/")).status_code == 200
        clock.at = 3601
        assert (await browser.get("/")).status_code == 403


async def test_a_name_that_was_made_to_point_here_is_refused(folder: Path) -> None:
    """Only the very address that was printed is answered, cookie or not."""
    async with page_of(folder) as (page, _), browser_of(page) as browser:
        await browser.get(page.url)
        port = page.url.split(":")[2].split("/")[0]
        for host in (f"evil.example:{port}", f"localhost:{port}", "127.0.0.1", f"127.0.0.1:{port}.evil.example"):
            assert (await browser.get("/", headers={"Host": host})).status_code == 403


@pytest.mark.parametrize("owner", [os.geteuid() + 1, None])
async def test_another_user_of_the_host_is_refused_with_the_right_cookie(folder: Path, owner: int | None) -> None:
    """The connection itself must be of the user who runs the command, and one that the kernel does not know is not."""
    async with page_of(folder, owner_of=lambda *_: owner) as (page, _), browser_of(page) as browser:
        answer = await browser.get(page.url)
    assert answer.status_code == 403
    assert "another user" in answer.text


def test_who_closes_his_end_at_once_is_not_taken_for_root() -> None:
    """The kernel calls an end that nobody holds any more root's: it is nobody's."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        client = socket.create_connection(("127.0.0.1", port))
        accepted, (address, end) = listener.accept()
        with accepted:
            assert owner_of_connection(address, end, port) == os.geteuid()
            client.sendall(b"GET /open?token=x HTTP/1.1\r\n\r\n")
            client.close()
            assert owner_of_connection(address, end, port) is None


async def test_what_changes_something_comes_from_our_own_pages(folder: Path) -> None:
    """A form needs its page's origin and its token; the service then sees the user who runs the command."""
    async with page_of(folder) as (page, _), browser_of(page) as browser:
        await browser.get(page.url)
        token = (await browser.get("/")).json()["csrf"]
        form = {FIELD: token, "why": "because"}
        own = {"Origin": str(browser.base_url).rstrip("/")}
        for headers in (
            {},
            {"Origin": "http://evil.example"},
            {"Origin": "null"},
            own | {"Sec-Fetch-Site": "cross-site"},
        ):
            assert (await browser.post("/change", data=form, headers=headers)).status_code == 403
        assert (await browser.post("/change", data={"why": "x"}, headers=own)).status_code == 403
        assert (await browser.post("/change", data=form | {FIELD: "0" * 64}, headers=own)).status_code == 403
        changed = await browser.post("/change", data=form, headers=own)
        assert changed.json() == {"who": os.geteuid(), "why": "because"}


async def test_live_pages_come_through_as_they_are_made(folder: Path) -> None:
    """A part of an answer without end arrives before the end."""
    async with page_of(folder) as (page, _), browser_of(page) as browser:
        await browser.get(page.url)
        async with asyncio.timeout(10), browser.stream("GET", "/live") as answer:
            assert await anext(answer.aiter_raw()) == b"data: first\n\n"


async def test_the_command_prints_the_address_and_ends_with_it(folder: Path) -> None:
    """`advisor dashboard` serves until it is interrupted, and then nothing listens any more."""
    async with page_of(folder):
        line = ("-m", "advisor", "dashboard", "--socket", str(folder / "s"), "--no-browser")
        command = await asyncio.create_subprocess_exec(sys.executable, *line, stdout=asyncio.subprocess.PIPE)
        assert command.stdout is not None
        async with asyncio.timeout(60):
            said = (await command.stdout.readline()).decode()
            url = said.split()[-1]
            async with httpx.AsyncClient(trust_env=False, follow_redirects=True) as browser:
                assert (await browser.get(url)).json()["name"]
            command.send_signal(signal.SIGINT)
            assert await command.wait() == 0
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", int(url.split(":")[2].split("/")[0]))
