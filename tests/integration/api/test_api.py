"""The contract as JSON over HTTP: reads, verbs, errors with their cause, and what a client that leaves behind."""

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import httpx
import psycopg
import pytest

from advisor.clock import SystemClock
from advisor.core.words import Category
from advisor.service.http.contract import exposed
from advisor.store.store import Store
from tests.integration.api.world import SECRET, app_of, decided, served, two_users
from tests.integration.store.worlds import CLUSTER

pytestmark = pytest.mark.postgres


@pytest.fixture
async def client(store: Store) -> AsyncIterator[httpx.AsyncClient]:
    """Of root, unless a request says otherwise."""
    transport = httpx.ASGITransport(app=app_of(store))
    headers = {"X-Test-Caller": "root"}
    async with httpx.AsyncClient(transport=transport, base_url="http://advisor", headers=headers) as opened:
        yield opened


async def get(client: httpx.AsyncClient, path: str, caller: str = "root", **query: Any) -> httpx.Response:
    return await client.get(f"/api/v1{path}", params=query or None, headers={"X-Test-Caller": caller})


async def test_a_list_is_read_page_by_page(store: Store, client: httpx.AsyncClient) -> None:
    """Each cursor leads to the next page; filters are parameters by their plain names."""
    for number in range(5):
        await decided(store, number)
    seen, cursor = [], ""
    while True:
        page = (await get(client, "/decisions", user="ada", page_size=2, cursor=cursor)).json()
        seen += [item["advice"]["attempt"]["job_id"] for item in page["decisions"]]
        cursor = page["next_cursor"]
        if not cursor:
            break
    assert seen == ["4", "3", "2", "1", "0"]
    restarts = await get(client, "/decisions", action="restart", mode="MODE_MONITOR", status="withheld")
    assert len(restarts.json()["decisions"]) == 5
    assert (await get(client, "/decisions", action="stop")).json() == {"decisions": [], "next_cursor": ""}


async def test_every_kind_of_thing_is_read(store: Store, client: httpx.AsyncClient) -> None:
    """One decision with its evidence, its incident, the job's timeline, the node's history, signals, actions, audit."""
    name = await decided(store, 7)
    found = (await get(client, f"/decisions/{name[:13]}")).json()
    assert found["advice"]["evidence"][0]["text"] == "NVRM: Xid 79"
    assert found["reconciliations"][0]["reason"] == "RECONCILIATION_REASON_MONITOR_MODE"
    incident = (await get(client, f"/incidents/{found['incident_id']}")).json()
    assert incident["attempt"]["job_id"] == "7"
    timeline = (await get(client, "/timeline", cluster=CLUSTER, job_id=7)).json()
    assert [event["kind"] for event in timeline["events"]] == [
        *("attempt_state", "incident_opened", "decision", "action", "incident_closed")
    ]
    history = (await get(client, f"/clusters/{CLUSTER}/nodes/node2/history")).json()
    assert [event["kind"] for event in history["events"]] == ["implicated", "excluded"]
    assert len((await get(client, "/signals", rule="nvidia.xid", node="node2")).json()["signals"]) == 1
    assert len((await get(client, "/actions", reason="monitor_mode")).json()["actions"]) == 1
    audit = (await get(client, "/audit", subject=name, everything="true")).json()
    assert {row["what"] for row in audit["records"]} == {"decision_committed", "advice_reconciled"}
    attempt = (await get(client, "/attempt", cluster=CLUSTER, job_id=7)).json()
    assert attempt["nodes"] == ["node1", "node2", "node3", "node4"]
    inputs = (await get(client, f"/decisions/{name}/inputs")).json()
    assert inputs["inputs"] == "eyJzbmFwc2hvdCI6MX0="


UNANSWERABLE: list[tuple[str, dict[str, Any], int, str | None]] = [
    ("/decisions", {"colour": "red"}, 400, "colour"),
    ("/decisions", {"since": "yesterday"}, 400, "since"),
    ("/decisions", {"since": ""}, 400, "since"),
    ("/decisions", {"action": "explode"}, 400, "action"),
    ("/decisions", {"action": "ACTION_UNSPECIFIED"}, 400, "action"),
    ("/decisions", {"page_size": "251"}, 400, "page_size"),
    ("/decisions", {"page_size": "-1"}, 400, "page_size"),
    ("/decisions", {"page_size": "99999999999"}, 400, "page_size"),
    ("/decisions", {"page_size": "٣"}, 400, "page_size"),
    ("/decisions", {"user": ["ada", "bob"]}, 400, "user"),
    ("/decisions", {"user": "a" * 300}, 400, "user"),
    ("/decisions", {"user": "a\0"}, 400, "user"),
    ("/decisions", {"filter.user": "ada"}, 400, "user"),
    ("/decisions", {"array_task": "1"}, 400, None),
    ("/decisions", {"cursor": "junk"}, 400, None),
    ("/attempts", {"category": "storage"}, 400, None),
    ("/decisions", {"category": "gpu_hardwar"}, 400, "category"),
    ("/incidents", {"category": "GPU_HARDWARE"}, 400, "category"),
    ("/export/decisions", {"category": "gpu_hardwar"}, 400, "category"),
    ("/isolations", {"ended": "maybe"}, 400, "ended"),
    ("/clusters/a b/nodes/n", {}, 400, "cluster"),
    ("/export/decisions", {"format": "xml"}, 400, "format"),
    ("/export/decisions", {"limit": "0"}, 400, "limit"),
    ("/export/decisions", {"cursor": "x"}, 400, "cursor"),
    ("/export/secrets", {}, 404, None),
    ("/decisions/00000000-0000-0000-0000-000000000000", {}, 404, None),
    ("/nowhere", {}, 404, None),
]
UNUSABLE = [
    (b'{"why":"x"}', "text/plain", "Content-Type: must be application/json"),
    (b"{", "application/json", "body: not JSON"),
    (b"[" * 20000, "application/json", "body: not JSON"),
    (b"[]", "application/json", "body: must be a JSON object"),
    (b'{"colour":1}', "application/json", "colour"),
    (b'{"until":"soon"}', "application/json", "until"),
    (b'{"why":"\\ud800"}', "application/json", "body: "),
    (b'{"why":NaN}', "application/json", "body: not JSON"),
    (b"", "application/json", "until: must be set"),
]


async def test_what_cannot_be_answered_is_a_problem_with_its_cause(client: httpx.AsyncClient) -> None:
    """The answer is a problem document that names the parameter where one is to blame."""
    for path, query, status, location in UNANSWERABLE:
        answer = await get(client, path, **query)
        assert answer.status_code == status, (path, query, answer.text)
        assert answer.headers["content-type"] == "application/problem+json"
        document = answer.json()
        assert (document["status"], document["type"][:21]) == (status, "urn:recovery-advisor:")
        assert document["detail"]
        if location is not None:
            assert [item["location"] for item in document["errors"]] == [location], (path, query)


async def test_an_unknown_category_is_answered_with_those_there_are(client: httpx.AsyncClient) -> None:
    """It would match nothing, which looks like good news."""
    told = (await get(client, "/decisions", category="gpu_hardwar")).json()["detail"]
    assert told == f"filter.category: 'gpu_hardwar' is not one of {', '.join(Category)}"


async def test_a_body_that_cannot_be_used_is_refused(client: httpx.AsyncClient) -> None:
    """Wrong types, broken and deep JSON, unknown fields: 400 with what is wrong."""
    for body, content_type, told in UNUSABLE:
        answer = await client.post("/api/v1/pause", content=body, headers={"Content-Type": content_type})
        assert answer.status_code == 400, body
        assert told in answer.json()["detail"], (body, answer.text)


async def test_an_operators_verb_is_a_post_and_is_audited(client: httpx.AsyncClient) -> None:
    """A pause by POST is in force and in the audit; the same path by GET is not served."""
    until = SystemClock().now() + timedelta(hours=1)
    body = {"cluster": CLUSTER, "until": until.isoformat(), "why": "power"}
    answer = await client.post("/api/v1/pause", json=body)
    assert answer.status_code == 200, answer.text
    assert (await get(client, "/pauses")).json()["pauses"][0]["why"] == "power"
    audit = (await get(client, "/audit", what="paused")).json()["records"]
    assert [(row["who"], row["why"]) for row in audit] == [("root", "power")]
    assert (await get(client, "/pause")).status_code == 405


async def test_who_may_not_is_refused_alike_everywhere(client: httpx.AsyncClient) -> None:
    """Nobody gets 401 and the wrong role 403, from every operation and export."""
    for operation in exposed():
        path = operation.path.replace("{", "").replace("}", "")
        asked = {"json": {}} if operation.verb == "POST" else {}
        for caller, status in (("", 401), ("bob", 403)):
            answer = await client.request(operation.verb, path, headers={"X-Test-Caller": caller}, **asked)
            if caller == "" or operation.verb == "POST":
                assert answer.status_code == status, (operation.name, caller, answer.text)
    assert (await get(client, "/export/audit", caller="vera")).status_code == 403
    assert (await get(client, "/export/decisions", caller="")).status_code == 401


async def test_text_of_others_logs_is_in_no_answer(store: Store, client: httpx.AsyncClient) -> None:
    """What stands in ada's log is read by her and by operators; not by a viewer, nor by bob, from any read."""
    name, _ = await two_users(store)
    incident = (await get(client, f"/decisions/{name}")).json()["incident_id"]
    paths = [
        *(f"/{kind}" for kind in ("decisions", "incidents", "attempts", "signals", "actions", "nodes", "lemons")),
        *(f"/decisions/{name}", f"/decisions/{name}/inputs", f"/incidents/{incident}"),
        *("/audit?everything=true", f"/timeline?cluster={CLUSTER}&job_id=1", f"/attempt?cluster={CLUSTER}&job_id=1"),
        *(f"/clusters/{CLUSTER}/nodes/node2", f"/clusters/{CLUSTER}/nodes/node2/history", "/shadow-report"),
        *(f"/export/{kind}?format={form}" for kind in ("decisions", "signals", "actions") for form in ("jsonl", "csv")),
    ]
    told = dict.fromkeys(("ada", "olga", "vera", "bob"), 0)
    for path in paths:
        for caller in told:
            answer = await get(client, path, caller=caller)
            assert answer.status_code in {200, 403, 404}, (path, caller, answer.text)
            told[caller] += SECRET in answer.text
    assert (told["vera"], told["bob"]) == (0, 0)
    assert told["ada"] >= 8
    assert told["olga"] >= 8
    theirs = (await get(client, "/decisions", caller="bob")).json()["decisions"]
    assert [item["advice"]["attempt"]["user"] for item in theirs] == ["bob"]
    assert (await get(client, "/decisions", caller="bob", user="ada")).status_code == 403
    assert (await get(client, f"/decisions/{name}", caller="bob")).status_code == 404


async def test_the_served_document_is_the_committed_one(client: httpx.AsyncClient) -> None:
    """/openapi.json needs no caller, and is docs/openapi.json."""
    answer = await client.get("/openapi.json", headers={"X-Test-Caller": ""})
    with open("docs/openapi.json", encoding="utf-8") as file:  # noqa: PTH123, ASYNC230
        assert answer.json() == json.load(file)


async def test_a_client_that_leaves_takes_its_query_with_it(store: Store, url: str) -> None:
    """A query that waits is cancelled in the database when the connection ends, long before any time limit."""
    await decided(store, 1)
    plain = url.replace("+psycopg", "")
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"

    async def until(blocked: int, watcher: psycopg.AsyncConnection[Any]) -> None:
        async with asyncio.timeout(1.5):  # lock_timeout would be later
            while True:
                row = await (await watcher.execute(waiting)).fetchone()
                if row is not None and row[0] == blocked:
                    return
                await asyncio.sleep(0.01)

    async with (
        served(store) as address,
        await psycopg.AsyncConnection.connect(plain) as holder,
        await psycopg.AsyncConnection.connect(plain, autocommit=True) as watcher,
        httpx.AsyncClient(base_url=address, headers={"X-Test-Caller": "root"}) as client,
    ):
        await holder.execute("LOCK TABLE attempts IN ACCESS EXCLUSIVE MODE")
        asked = asyncio.create_task(client.get("/api/v1/attempts"))
        await until(1, watcher)
        asked.cancel()
        await until(0, watcher)
        await holder.rollback()
        assert (await client.get("/api/v1/attempts")).status_code == 200


async def test_an_absent_database_is_503_with_a_sentence(store: Store, url: str, client: httpx.AsyncClient) -> None:
    """When nobody answers a list says so, and says when to try again; so does an export, before it has begun."""
    name = url.split("/")[-1].split("?")[0]
    with psycopg.connect(url.replace("+psycopg", "").replace(name, "postgres"), autocommit=True) as admin:
        admin.execute(f"ALTER DATABASE {name} WITH ALLOW_CONNECTIONS false")  # type: ignore[call-overload]
        admin.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", (name,))
        for path in ("/decisions", "/export/decisions"):
            answer = await get(client, path)
            assert (answer.status_code, answer.json()["code"]) == (503, "unavailable")
            assert answer.headers["Retry-After"] == "1"
            assert "does not answer" in answer.json()["detail"]
