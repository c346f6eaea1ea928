"""HTTP on its Unix socket, with real connections: who calls, what errors look like, what is bounded."""

import asyncio
import contextlib
import os
import pwd
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
from sqlalchemy.exc import OperationalError
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import BaseRoute, Route

from advisor.clock import SystemClock
from advisor.service.callers import Accounts, Callers
from advisor.service.errors import (
    BadRequestError,
    ForbiddenError,
    NotFoundError,
    TooLateError,
    TooOftenError,
    UnauthenticatedError,
)
from advisor.service.http.application import caller_of, compose
from advisor.service.http.identity import by_account
from advisor.service.http.serving import HttpServer
from advisor.service.owned_socket import OwnedSocket
from tests.integration.service.flood import accepted_together
from tests.integration.service.world import configuration, short_folder, world_of

BODY_BYTES_MAX = 10_000
# So many connections of each of six accounts, held until the end of its input.
COLLUDING = """
import os, socket, sys
for uid in range(65001, 65007):
    if os.fork() == 0:
        os.setresuid(uid, uid, uid)
        held = []
        for _ in range(int(sys.argv[2])):
            one = socket.socket(socket.AF_UNIX)
            one.connect(sys.argv[1])
            held.append(one)
        os.write(1, b"held\\n")
        sys.stdin.read()
        os._exit(0)
sys.stdin.read()
"""
ERRORS: dict[str, Exception] = {
    "bad": BadRequestError("field: is bad"),
    "missing": NotFoundError("there is no such thing"),
    "unknown": UnauthenticatedError("show a token"),
    "forbidden": ForbiddenError("not for you"),
    "late": TooLateError("it has started already"),
    "often": TooOftenError("too many calls", retry_seconds=2.4),
    "store": OperationalError("SELECT secret", {}, Exception("gone")),
    "broken": KeyError("a secret detail"),
}


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="http-") as name:
        Path(name).chmod(0o755)  # other accounts connect too
        yield Path(name)


def _routes() -> list[BaseRoute]:
    async def who(request: Request) -> Response:
        caller = caller_of(request)
        return JSONResponse({"name": caller.name, "uid": caller.uid, "origin": caller.origin})

    async def fail(request: Request) -> Response:
        raise ERRORS[request.path_params["how"]]

    async def echo(request: Request) -> Response:
        return PlainTextResponse(f"{len(await request.body())}")

    return [Route("/who", who), Route("/fail/{how}", fail), Route("/echo", echo, methods=["POST"])]


@asynccontextmanager
async def served(path: Path, connections_max: int = 32) -> AsyncIterator[HttpServer]:
    callers = Callers(Accounts(), SystemClock())
    app = compose(
        [_routes()],
        identify=by_account(callers),
        body_bytes_max=BODY_BYTES_MAX,
        error_page=lambda _request, status, text: PlainTextResponse(f"page {status} {text}", status),
    )
    own = OwnedSocket(path)
    server = HttpServer(app, own.bind(), connections_max=connections_max, is_staff=callers.is_staff)
    await server.start()
    try:
        yield server
    finally:
        await server.stop()
        own.remove()
        own.release()


def client_of(path: Path) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.AsyncHTTPTransport(uds=str(path)), base_url="http://advisor", timeout=20)


async def test_the_kernels_word_about_the_caller_reaches_the_endpoint(folder: Path) -> None:
    """An endpoint knows the account behind the connection, whatever the request claims."""
    async with served(folder / "s"), client_of(folder / "s") as client:
        answer = await client.get("/who", headers={"X-Forwarded-For": "10.0.0.1", "X-Forwarded-User": "eve"})
    name = pwd.getpwuid(os.geteuid()).pw_name
    assert answer.json() == {"name": name, "uid": os.geteuid(), "origin": "unix socket"}


@pytest.mark.parametrize(
    ("how", "status", "code"),
    [
        ("bad", 400, "bad_request"),
        ("unknown", 401, "unauthenticated"),
        ("forbidden", 403, "forbidden"),
        ("missing", 404, "not_found"),
        ("late", 409, "too_late"),
        ("often", 429, "too_often"),
        ("broken", 500, "internal"),
        ("store", 503, "unavailable"),
    ],
)
async def test_errors_are_answered_by_kind_and_ours_are_not_shown(
    folder: Path, how: str, status: int, code: str
) -> None:
    """Each error has its status and code, its text when it is for the caller, and no detail when it is not."""
    async with served(folder / "s"), client_of(folder / "s") as client:
        answer = await client.get(f"/fail/{how}")
    assert answer.status_code == status
    assert answer.json()["code"] == code
    assert "secret" not in answer.text
    if how in {"bad", "missing", "unknown", "forbidden", "late", "often"}:
        assert answer.json()["detail"] == str(ERRORS[how])
    assert answer.headers.get("Retry-After") == {"often": "2", "store": "1"}.get(how)
    assert answer.headers.get("WWW-Authenticate") == ("Bearer" if how == "unknown" else None)


async def test_people_get_a_page_and_programs_get_json(folder: Path) -> None:
    """Who asks for HTML gets the error as a page, also where no route exists."""
    async with served(folder / "s"), client_of(folder / "s") as client:
        page = await client.get("/nowhere", headers={"Accept": "text/html,application/xhtml+xml"})
        plain = await client.get("/nowhere")
        wrong = await client.get("/echo")
    assert (page.status_code, page.text) == (404, "page 404 Not Found")
    assert plain.headers["Content-Type"] == "application/problem+json"
    assert (plain.json()["code"], plain.json()["detail"]) == ("not_found", "Not Found")
    assert (wrong.status_code, wrong.json()["code"]) == (405, "method_not_allowed")


async def test_every_answer_is_strict_about_browsers(folder: Path) -> None:
    """The headers are on answers and errors alike, and nothing is kept by caches."""
    async with served(folder / "s"), client_of(folder / "s") as client:
        for path in ("/who", "/nowhere", "/fail/broken"):
            headers = (await client.get(path)).headers
            assert "default-src 'none'" in headers["Content-Security-Policy"]
            assert "frame-ancestors 'none'" in headers["Content-Security-Policy"]
            assert headers["X-Content-Type-Options"] == "nosniff"
            assert headers["Cache-Control"] == "no-store"
            assert "server" not in headers


async def _chunks(count: int) -> AsyncIterator[bytes]:
    for _ in range(count):
        yield b"x" * 1000


async def test_bodies_are_bounded_whether_their_length_is_announced_or_not(folder: Path) -> None:
    """A body at the bound is read; a larger one is refused with 413 by its announced and by its real length."""
    async with served(folder / "s"), client_of(folder / "s") as client:
        assert (await client.post("/echo", content=b"x" * BODY_BYTES_MAX)).text == str(BODY_BYTES_MAX)
        assert (await client.post("/echo", content=b"x" * (BODY_BYTES_MAX + 1))).status_code == 413
        assert (await client.post("/echo", content=_chunks(10))).text == str(BODY_BYTES_MAX)
        assert (await client.post("/echo", content=_chunks(11))).status_code == 413


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"Origin": "http://advisor"}, 200),
        ({"Origin": "http://advisor", "Sec-Fetch-Site": "same-origin"}, 200),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-site"}, 403),
    ],
)
async def test_what_changes_something_may_not_come_from_another_site(
    folder: Path, headers: dict[str, str], status: int
) -> None:
    """A browser tells whose page sends a form; programs tell nothing and are known by other means."""
    async with served(folder / "s"), client_of(folder / "s") as client:
        assert (await client.post("/echo", content=b"x", headers=headers)).status_code == status
        assert (await client.get("/who", headers=headers)).status_code == 200


@pytest.mark.parametrize(
    "sent",
    [
        b"\x00\xff\x16\x03\x01" * 20 + b"\r\n\r\n",
        b"GET /who HTTP/1.1\r\n\r\n",
        b"POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: -5\r\n\r\n",
        b"POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd",
        b"GET /who HTTP/1.1\r\nHost: a\r\nX: " + b"x" * 900_000 + b"\r\n\r\n",
        b"GET /" + b"x" * 900_000 + b" HTTP/1.1\r\nHost: a\r\n\r\n",
    ],
)
async def test_what_is_not_http_is_answered_with_400_or_not_at_all(folder: Path, sent: bytes) -> None:
    """Garbage, contradictions and endless headers end their own connection and no other."""
    async with served(folder / "s"):
        reader, writer = await asyncio.open_unix_connection(str(folder / "s"))
        writer.write(sent)
        answer = b""
        with contextlib.suppress(ConnectionError):  # closed while we still write
            async with asyncio.timeout(10):
                answer = await reader.read()
        assert answer == b"" or answer.startswith(b"HTTP/1.1 400")
        writer.close()
        async with client_of(folder / "s") as client:
            assert (await client.get("/who")).status_code == 200


async def test_one_peer_cannot_take_all_connections(folder: Path) -> None:
    """More than a quarter of the connections are not given to one account; those it has go on."""
    async with served(folder / "s", connections_max=8), client_of(folder / "s") as client:
        assert (await client.get("/who")).status_code == 200
        held = [await asyncio.open_unix_connection(str(folder / "s")) for _ in range(2)]
        ended = await asyncio.gather(*(_ended(reader) for reader, _ in held))
        assert ended == [False, True]
        assert (await client.get("/who")).status_code == 200
        for _, writer in held:
            writer.close()


async def test_the_staff_is_who_the_configuration_names() -> None:
    """Accounts with a role are known before they first call, everybody else is not of them."""
    callers = Callers(Accounts(operators=("daemon",), agents=("no such account",)), SystemClock())
    await callers.prepare()
    others = [uid for uid in (os.geteuid(), pwd.getpwnam("daemon").pw_uid, 65001) if callers.is_staff(uid)]
    assert others == [os.geteuid(), pwd.getpwnam("daemon").pw_uid]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to be several accounts")
async def test_accounts_that_collude_leave_the_staff_its_connections(folder: Path) -> None:
    """Six accounts hold what they can get, more than there are connections: root still gets a new one, each time."""
    async with served(folder / "s", connections_max=8):
        others = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", COLLUDING, str(folder / "s"), "4"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        assert others.stdin is not None
        assert others.stdout is not None
        for _ in range(6):
            assert await others.stdout.readline() == b"held\n"
        for _ in range(3):
            async with client_of(folder / "s") as client:
                assert (await client.get("/who")).status_code == 200
        others.stdin.close()
        await others.wait()


async def test_a_flood_of_connections_leaves_the_event_loop_to_others(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Few of those that wait are accepted before a tick, or whoever else shares the loop, has its turn."""
    async with served(folder / "s"):
        assert await accepted_together(folder / "s", monkeypatch) <= 8


async def _ended(reader: asyncio.StreamReader) -> bool:
    try:
        async with asyncio.timeout(0.5):
            return await reader.read(1) == b""
    except TimeoutError:
        return False
    except ConnectionResetError:
        return True


async def test_stopping_leaves_no_socket_and_frees_the_lock(folder: Path) -> None:
    """After stop and release nothing of ours is left in the folder."""
    async with served(folder / "s"):
        assert {path.name for path in _left(folder)} == {"s", "s.lock"}
        with pytest.raises(Exception, match="served already"):
            OwnedSocket(folder / "s").reserve()
    assert _left(folder) == []


def _left(folder: Path) -> Sequence[Path]:
    return list(folder.iterdir())


@pytest.mark.postgres
async def test_the_service_says_whether_it_lives_and_is_ready() -> None:
    """A started service answers both; /readyz names the store and the age of the last tick."""
    with short_folder() as folder:
        async with world_of(folder):
            path = configuration(folder).service.http_path
            async with client_of(path) as client:
                assert (await client.get("/healthz")).json() == {"status": "ok"}
                ready = await client.get("/readyz")
            assert ready.status_code == 200
            assert ready.json()["store"] is True
            assert ready.json()["tick_age_seconds"] < 30
        assert not path.exists()
