"""Exports: whole lists as files, in bounded memory, and readers that are slow, leave, or come in numbers."""

import asyncio
import csv
import io
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from google.protobuf.message import Message
from starlette.requests import HTTPConnection

from advisor.service.callers import Caller, Role, granted
from advisor.service.calls import Calls
from advisor.service.errors import UnauthenticatedError
from advisor.service.http import exports
from advisor.service.http.api import routes
from advisor.service.http.application import compose
from advisor.store.store import Store
from advisor.v1 import audit_pb2, common_pb2
from tests.integration.api.world import CALLERS, app_of, decided

pytestmark = pytest.mark.postgres


@pytest.fixture
async def client(store: Store) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(app=app_of(store))
    headers = {"X-Test-Caller": "root"}
    async with httpx.AsyncClient(transport=transport, base_url="http://advisor", headers=headers) as opened:
        yield opened


async def test_a_list_is_exported_whole_across_pages(
    store: Store, client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All rows of all pages once, as JSON lines and as CSV; filters and limit hold; an empty list is an empty file."""
    monkeypatch.setattr(exports, "_PAGE", 2)
    for number in range(5):
        await decided(store, number, text="=cmd|' /C calc'!A0")
    answer = await client.get("/api/v1/export/decisions", params={"user": "ada"})
    rows = [json.loads(line) for line in answer.text.splitlines()]
    assert [row["advice"]["attempt"]["job_id"] for row in rows] == ["4", "3", "2", "1", "0"]
    assert answer.headers["content-disposition"] == 'attachment; filename="decisions.jsonl"'
    table = await client.get("/api/v1/export/actions", params={"format": "csv", "limit": "3"})
    cells = list(csv.DictReader(io.StringIO(table.text, newline="")))
    assert [row["attempt.job_id"] for row in cells] == ["4", "3", "2"]
    assert {row["outcome.detail"] for row in cells} == {"'=cmd|' /C calc'!A0"}
    assert (await client.get("/api/v1/export/decisions", params={"user": "nobody"})).text == ""
    empty = await client.get("/api/v1/export/incidents", params={"user": "nobody", "format": "csv"})
    assert len(empty.text.splitlines()) == 1


class _Endless:
    """Lists without end; counts what was asked for."""

    def __init__(self) -> None:
        self.pages = 0

    async def ListActions(self, request: Any, context: Any) -> Message:  # noqa: N802
        self.pages += 1
        ref = common_pb2.AttemptRef(job_id="7", user="ada")
        rows = [audit_pb2.ActionTaken(decision_id=f"{self.pages}-{row}", attempt=ref) for row in range(250)]
        return audit_pb2.ListActionsResponse(actions=rows, next_cursor="more")


async def _root(_request: object) -> Caller:
    return CALLERS["root"]


class _Reader:
    """An ASGI client that takes so much and then nothing more, or leaves."""

    def __init__(self, most: int) -> None:
        self.left = most
        self.taken = 0
        self.started = asyncio.Event()
        self.stalled = asyncio.Event()
        self.leave = asyncio.Event()

    async def send(self, message: Any) -> None:
        self.started.set()
        if self.left <= 0:
            self.stalled.set()
            await asyncio.Event().wait()
        self.left -= 1
        self.taken += len(message.get("body", b""))

    async def receive(self) -> Any:
        if not self.started.is_set():
            return {"type": "http.request", "body": b"", "more_body": False}
        await self.leave.wait()
        return {"type": "http.disconnect"}


def _scope() -> dict[str, Any]:
    return {
        "type": "http",
        "method": "GET",
        "path": "/api/v1/export/actions",
        "raw_path": b"/api/v1/export/actions",
        "query_string": b"",
        "headers": [],
        "scheme": "http",
        "server": ("advisor", 80),
        "client": None,
        "http_version": "1.1",
        "asgi": {"version": "3.0", "spec_version": "2.4"},
        "root_path": "",
    }


async def test_a_slow_reader_costs_one_page_and_is_broken_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """While nobody reads nothing more is asked for; after a while the connection is given up, and its place is free."""
    endless = _Endless()
    app = compose([routes(Calls({"AuditService": lambda _caller: endless}))], identify=_root, body_bytes_max=1000)
    reader = _Reader(most=4)
    monkeypatch.setattr(exports, "STALLED_SECONDS", 0.2)
    monkeypatch.setattr(exports, "AT_ONCE_MAX", 1)
    served = asyncio.create_task(app(_scope(), reader.receive, reader.send))
    await asyncio.wait_for(reader.stalled.wait(), 10)
    asked = endless.pages
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://advisor") as client:
        crowded = await client.get("/api/v1/export/actions?limit=1")
        assert (crowded.status_code, crowded.headers["Retry-After"]) == (429, "10")
        await asyncio.wait_for(served, 10)  # without the end of the answer: the server closes the connection
        assert endless.pages == asked <= 4
        assert (await client.get("/api/v1/export/actions?limit=1")).status_code == 200


async def test_slow_readers_leave_a_place_for_operators() -> None:
    """Who is no operator has one export at a time, and together they have one place less than there are."""
    app = compose(
        [routes(Calls({"AuditService": lambda _caller: _Endless()}))], identify=_by_header, body_bytes_max=1000
    )
    held: list[asyncio.Task[None]] = []
    for name in ("eve", "vera", "ada"):
        reader = _Reader(most=2)
        scope = _scope() | {"headers": [(b"x-test-caller", name.encode())]}
        held.append(asyncio.create_task(app(scope, reader.receive, reader.send)))
        await asyncio.wait_for(reader.stalled.wait(), 10)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://advisor") as client:
        told = {}
        for name in ("eve", "joan", "root"):
            answer = await client.get("/api/v1/export/actions?limit=1", headers={"X-Test-Caller": name})
            told[name] = (answer.status_code, answer.text[:300])
    assert (told["eve"][0], told["joan"][0], told["root"][0]) == (429, 429, 200)
    assert "an export of yours is running" in told["eve"][1]
    for task in held:
        task.cancel()
    await asyncio.gather(*held, return_exceptions=True)


async def _by_header(request: HTTPConnection) -> Caller:
    name = request.headers.get("x-test-caller", "")
    role = Role.ADMIN if name == "root" else Role.VIEWER
    return Caller(name=name, roles=granted(role))


async def test_an_export_ends_when_its_token_is_taken_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is asked again who reads, as long as the list goes on: the answer is broken off without its end."""
    endless = _Endless()

    async def identify(_request: object) -> Caller:
        if endless.pages >= 3:
            raise UnauthenticatedError("the token is not known")
        return CALLERS["root"]

    app = compose([routes(Calls({"AuditService": lambda _caller: endless}))], identify=identify, body_bytes_max=1000)
    monkeypatch.setattr(exports, "CALLER_SECONDS", 0.0)
    reader = _Reader(most=1000)
    with pytest.raises(UnauthenticatedError):
        await app(_scope(), reader.receive, reader.send)
    assert endless.pages == 3


async def test_a_reader_that_leaves_ends_its_export() -> None:
    """A client that goes away in the middle stops the pages, and its place is free."""
    endless = _Endless()
    app = compose([routes(Calls({"AuditService": lambda _caller: endless}))], identify=_root, body_bytes_max=1000)
    for _ in range(exports.AT_ONCE_MAX + 1):
        reader = _Reader(most=3)
        served = asyncio.create_task(app(_scope(), reader.receive, reader.send))
        await asyncio.wait_for(reader.stalled.wait(), 10)
        served.cancel()  # as uvicorn does
        with pytest.raises(asyncio.CancelledError):
            await served
        asked = endless.pages
        await asyncio.sleep(0)
        assert endless.pages == asked
