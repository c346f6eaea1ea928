"""Audit lists: filtered, newest first, in pages that stay as they are while rows arrive."""

import base64
import json
import re
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import timedelta
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.dialects import postgresql
from sqlalchemy.ext.asyncio import create_async_engine

from advisor.core.words import Action, AttemptState, Mode, Role, Trust
from advisor.service.outgoing import decision_message
from advisor.store.action_queries import actions_statement, audit_statement
from advisor.store.audit_filters import narrowed
from advisor.store.audit_queries import attempts_statement, decisions_statement, incidents_statement
from advisor.store.errors import Ambiguous, CursorRefused, FilterRefused, PageRefused
from advisor.store.node_queries import failures_statement, nodes_statement
from advisor.store.paging import Position
from advisor.store.records import (
    AttemptKey,
    AuditFilter,
    EventFilter,
    LemonsWanted,
    Listing,
    Page,
    Reconciliation,
    ReconciliationReason,
    ReconciliationStatus,
    SignalFilter,
    UnreadDecision,
)
from advisor.store.signal_queries import signals_statement
from advisor.store.store import Store
from tests.integration.store.worlds import (
    CLUSTER,
    at,
    decision,
    healthy,
    implication,
    record,
    register,
    report,
    running,
    seen,
)

pytestmark = pytest.mark.postgres

ALL = AuditFilter()


async def decided(store: Store, number: int, **changes: Any) -> AttemptKey:
    """Job `number`, running and decided on a little later than those before it."""
    key = await running(store, job_id=str(number), submitted_at=at(number), **changes)
    noticed = replace(decision().incident, detected_at=at(1000 + number))
    await store.commit_decision(record(key, created_at=at(1000 + number), decision=decision(incident=noticed)))
    return key


async def test_an_attempt_tells_until_when_its_scheduler_remembers_it(store: Store) -> None:
    """By what the agent said of its MinJobAge; nothing while it runs, and where Slurm forgets nothing."""
    await register(store, now=at(0), job_memory=timedelta(minutes=10))
    await report(store, seen(), seen(AttemptState.FAILED, job_id="8", ended_at=at(59), observed_at=at(60)))
    rows = (await store.audit.attempts(ALL, Page())).rows
    assert {row.attempt.job_id: row.remembered_until for row in rows} == {"7": None, "8": at(659)}
    await register(store, now=at(100), job_memory=timedelta(0))
    assert {row.remembered_until for row in (await store.audit.attempts(ALL, Page())).rows} == {None}


async def every_page(fetch: Callable[[Page], Awaitable[Listing[Any]]], size: int) -> list[list[Any]]:
    pages = []
    cursor = ""
    while True:
        listing = await fetch(Page(size=size, cursor=cursor))
        pages.append(list(listing.rows))
        cursor = listing.next_cursor
        if not cursor:
            return pages


async def test_pages_are_whole_and_newest_first(store: Store) -> None:
    """Pages of three together are each list, newest first, and the last one has no cursor."""
    for number in range(7):
        await decided(store, number)
    for fetch in (store.audit.decisions, store.audit.incidents, store.audit.attempts):
        pages = await every_page(partial(fetch, ALL), 3)
        assert [len(page) for page in pages] == [3, 3, 1]
        assert [row.attempt.job_id for page in pages for row in page] == ["6", "5", "4", "3", "2", "1", "0"]


async def test_the_beginning_of_an_id_finds_it_unless_several_share_it(store: Store) -> None:
    """Of seventeen ids two begin alike: that beginning names both, and each whole id and longer beginning finds one."""
    for number in range(17):
        await decided(store, number)
    ids = sorted(row.decision_id for row in (await store.audit.decisions(ALL, Page(size=50))).rows)
    one, other = next(pair for pair in pairwise(ids) if pair[0][0] == pair[1][0])
    with pytest.raises(Ambiguous, match=f"{one}.*give more of it"):
        await store.audit.decision(one[0])
    for text_given in (one, one[:20], one[:20].upper(), one.replace("-", "")[:18]):
        found = await store.audit.decision(text_given)
        assert found is not None
        assert found.decision_id == one
    inputs = await store.audit.decision_inputs(other[:20])
    assert inputs is not None
    assert inputs.decision_id == other
    assert inputs.rules
    assert inputs.policy
    without = await store.audit.decision_inputs(other, held=[inputs.rules_hash, "x"])
    assert without == replace(inputs, rules=b"")
    for nobody in ("", "-", "%", "xyz", one[:7] + "-", one + "0"):
        assert await store.audit.decision(nobody) is None


async def test_full_last_page_has_no_cursor(store: Store) -> None:
    """A list that ends with a full page says so."""
    for number in range(4):
        await decided(store, number)
    assert [len(page) for page in await every_page(partial(store.audit.decisions, ALL), 2)] == [2, 2]


async def test_cursor_is_stable_while_rows_arrive(store: Store) -> None:
    """Rows that arrive between two pages are neither on the second page nor do they push one off it."""
    for number in range(4):
        await decided(store, number)
    first = await store.audit.decisions(ALL, Page(size=2))
    await decided(store, 100)
    second = await store.audit.decisions(ALL, Page(size=2, cursor=first.next_cursor))
    assert [row.attempt.job_id for row in (*first.rows, *second.rows)] == ["3", "2", "1", "0"]


async def test_nodes_keep_their_order_while_implicated_again(store: Store) -> None:
    """A node that is implicated again between two pages of nodes is neither missed nor seen twice."""
    for number in range(4):
        key = await running(store, job_id=str(number))
        blamed = replace(decision().attribution, implications=(implication(f"node{number}"),))
        await store.commit_decision(record(key, created_at=at(100 + number), decision=decision(attribution=blamed)))
    first = await store.audit.nodes(ALL, Page(size=2), now=at(200))
    again = await running(store, job_id="99")
    blamed = replace(decision().attribution, implications=(implication("node0"), implication("node9")))
    await store.commit_decision(record(again, created_at=at(150), decision=decision(attribution=blamed)))
    second = await store.audit.nodes(ALL, Page(size=2, cursor=first.next_cursor), now=at(200))
    assert [row.name for row in (*first.rows, *second.rows)] == ["node3", "node2", "node1", "node0"]
    assert second.next_cursor == ""
    assert [row.name for row in (await store.audit.nodes(ALL, Page(), now=at(200))).rows][:2] == ["node9", "node0"]


async def test_decision_filters(store: Store) -> None:
    """Each field of the filter keeps what it names, and fields combine."""
    mine = await decided(store, 1)
    await decided(store, 2, user="bob", partition="cpu")
    third = await running(store, job_id="3")
    stopped = decision(action=Action.STOP, mode=Mode.AUTONOMOUS)
    committed = await store.commit_decision(record(third, created_at=at(1003), decision=stopped))
    await store.record_reconciliation(
        committed.decision_id,
        Reconciliation(status=ReconciliationStatus.VERIFIED, reason=ReconciliationReason.OBSERVED, at=at(1004)),
        who="agent",
    )
    await store.commit_decision(record(await running(store, job_id="4"), created_at=at(1004), decision=healthy()))

    async def ids(**wanted: Any) -> list[str]:
        rows = (await store.audit.decisions(AuditFilter(**wanted), Page())).rows
        return [row.attempt.job_id for row in rows]

    assert await ids() == ["4", "3", "2", "1"]
    assert await ids(user="bob") == ["2"]
    assert await ids(partition="cpu") == ["2"]
    assert await ids(job_id="3") == ["3"]
    assert await ids(job_key=mine.job_key) == ["1"]
    assert await ids(job_key="not a key") == []
    assert await ids(node="node2") == ["3", "2", "1"]
    assert await ids(node="node1") == []
    assert await ids(category="none") == ["4"]
    assert await ids(action=Action.STOP) == ["3"]
    assert await ids(reason="healthy") == ["4"]
    assert await ids(mode=Mode.AUTONOMOUS) == ["3"]
    assert await ids(status=ReconciliationStatus.VERIFIED) == ["3"]
    assert await ids(since=at(1002), until=at(1004)) == ["3", "2"]
    assert await ids(cluster="other") == []
    assert await ids(cluster=CLUSTER, node="node2", user="ada") == ["3", "1"]


async def test_filters_of_incidents_and_attempts(store: Store) -> None:
    """Incidents and attempts are filtered by what they are."""
    await decided(store, 1)
    second = await running(store, job_id="2")
    await store.commit_decision(record(second, created_at=at(1002), decision=healthy()))
    third = await running(store, job_id="3", nodes=("node7",))
    listed = await store.audit.incidents(AuditFilter(category="gpu_hardware", node="node2", user="ada"), Page())
    assert [row.attempt.job_id for row in listed.rows] == ["1"]
    assert (await store.audit.incidents(AuditFilter(category="numerics"), Page())).rows == ()
    found = await store.audit.attempts(AuditFilter(node="node7"), Page())
    assert [row.attempt.job_key for row in found.rows] == [third.job_key]
    assert {row.attempt.job_id for row in (await store.audit.attempts(ALL, Page())).rows} == {"1", "2", "3"}
    implicated = await store.audit.nodes(AuditFilter(user="ada", category="gpu_hardware"), Page(), now=at(0))
    assert [row.name for row in implicated.rows] == ["node2"]
    assert (await store.audit.nodes(AuditFilter(user="bob"), Page(), now=at(0))).rows == ()


async def test_lists_refuse_what_they_cannot_answer(store: Store) -> None:
    """A filter by something that only decisions have is an error elsewhere, not ignored."""
    wanted = AuditFilter(action=Action.STOP)
    with pytest.raises(FilterRefused, match="nodes cannot be filtered by action: decisions can"):
        await store.audit.nodes(wanted, Page(), now=at(0))
    with pytest.raises(FilterRefused, match="incidents cannot be filtered by action"):
        await store.audit.incidents(wanted, Page())
    with pytest.raises(FilterRefused, match="attempts cannot be filtered by category"):
        await store.audit.attempts(AuditFilter(category="storage"), Page())


async def test_node_with_its_history(store: Store) -> None:
    """A node is shown with its implications, newest first, and its decayed score over all jobs."""
    await decided(store, 1)
    await decided(store, 2)
    node = await store.audit.node(CLUSTER, "node2", now=at(1002) + timedelta(days=7))
    assert node is not None
    assert [row.attempt.job_id for row in node.implications] == ["2", "1"]
    assert (node.implications[0].rule, node.implications[0].trust) == ("nvidia.xid", "kernel")
    assert node.score == pytest.approx(0.95, rel=1e-3)
    assert node.last_implicated_at == at(1002)
    assert await store.audit.node(CLUSTER, "node77", now=at(0)) is None
    assert await store.audit.node("other", "node2", now=at(0)) is None


async def failed(store: Store, number: int, *nodes: str, hours: float = 0.0, user: str = "ada", **changes: Any) -> None:
    """Job `number` met a failure of these nodes, as the kernel tells, so many hours after the first one."""
    key = await running(store, job_id=str(number), submitted_at=at(number), user=user)
    blamed = tuple(replace(implication(node), **changes) for node in nodes)
    moment = at(1000 + hours * 3600)
    told = decision(
        attribution=replace(decision().attribution, implications=blamed),
        incident=replace(decision().incident, detected_at=moment),
    )
    await store.commit_decision(record(key, created_at=moment, decision=told))


async def test_what_another_build_wrote_spoils_only_its_own_row(store: Store, url: str) -> None:
    """Its decision, evidence and progress are told as unreadable, with id, build and columns; the page is whole."""
    for number in range(3):
        await decided(store, number)
    rows = (await store.audit.decisions(ALL, Page())).rows
    engine = create_async_engine(url)
    async with engine.begin() as connection:
        await connection.execute(text("SET LOCAL session_replication_role = replica"))  # the tables are append-only
        for spoil in (
            "UPDATE decisions SET decision = :data WHERE job_id = '1'",
            "UPDATE incidents SET signals = :data WHERE job_id = '1'",
            "UPDATE attempts SET progress = :data, last_step = 77 WHERE job_id = '1'",
        ):
            await connection.execute(text(spoil), {"data": b'{"new":1}'})
    await engine.dispose()
    listed = (await store.audit.decisions(ALL, Page())).rows
    assert [row.decision for row in (listed[0], listed[2])] == [rows[0].decision, rows[2].decision]
    unread = listed[1].decision
    assert isinstance(unread, UnreadDecision)
    assert (listed[1].decision_id, listed[1].build) == (rows[1].decision_id, rows[1].build)
    assert (unread.action, unread.category) == (rows[1].decision.action, "gpu_hardware")
    assert f"build {rows[1].build!r}" in unread.why
    assert await store.audit.decision(rows[1].decision_id) == listed[1]
    message = decision_message(listed[1], incarnation="i", evidence_max=9)
    assert message.unreadable == message.advice.explanation == unread.why
    assert (message.advice.advice_id, message.advice.category) == (rows[1].decision_id, "gpu_hardware")
    incidents = (await store.audit.incidents(ALL, Page())).rows
    assert [bool(row.unreadable) for row in incidents] == [False, True, False]
    assert [row.progress.last_step for row in (await store.audit.attempts(ALL, Page())).rows][1] == 77


async def test_lemons_are_ranked_with_their_evidence(store: Store) -> None:
    """Worst first; several jobs within the hour are one failure; what a log says, and what only follows, is none."""
    for number, hours in enumerate((0, 20, 20.5, 40)):
        await failed(store, number, "node1", hours=hours, user=("ada", "bob")[number % 2])
    for number, hours in enumerate((30, 35, 39, 41), 10):
        await failed(store, number, "node2", hours=hours)
    for number, hours in enumerate((1, 5, 9), 20):
        await failed(store, number, "node3", hours=hours, trust=Trust.LOG)
        await failed(store, number + 10, "node4", hours=hours, role=Role.SYMPTOM)
    now = at(1000 + 42 * 3600)
    found = await store.audit.lemons(LemonsWanted(), now=now)
    assert [(row.name, len(row.failures), row.jobs, row.users) for row in found.rows] == [
        ("node2", 4, 4, 1),
        ("node1", 3, 4, 2),
    ]
    assert [item.attempt.job_id for item in found.rows[1].failures] == ["3", "1", "0"]
    assert (found.rows[0].cluster, found.rows[0].failures[0].rule, found.capped) == (CLUSTER, "nvidia.xid", False)

    async def names(**wanted: Any) -> list[str]:
        return [row.name for row in (await store.audit.lemons(LemonsWanted(**wanted), now=now)).rows]

    assert await names(limit=1) == ["node2"]
    assert await names(node="node1") == ["node1"]
    assert await names(cluster="other") == []
    assert await names(failures_min=4) == ["node2"]
    assert (await store.audit.lemons(LemonsWanted(), now=now + timedelta(days=31))).rows == ()


async def test_attempt_by_id_is_the_last_owners(store: Store) -> None:
    """An id that was reused names its last owner; the key names the other one for ever."""
    old = await running(store, user="ada")
    new = await running(store, user="bob", submitted_at=at(86400), observed_at=at(86401))
    by_id = await store.audit.attempt(cluster=CLUSTER, job_id="7", number=0)
    assert by_id is not None
    assert by_id.attempt.job_key == new.job_key
    by_key = await store.audit.attempt(cluster="", job_id="", number=0, job_key=old.job_key)
    assert by_key is not None
    assert (by_key.attempt.user, by_key.job_name, by_key.in_scope) == ("ada", "train", True)
    assert await store.audit.attempt(cluster=CLUSTER, job_id="7", number=5) is None
    assert await store.audit.attempt(cluster="", job_id="", number=0, job_key="junk") is None


@pytest.mark.parametrize("identifier", ["", "junk", "00000000-0000-0000-0000-000000000000", "%s", "\0"])
async def test_unknown_ids_are_nothing(store: Store, identifier: str) -> None:
    """Whatever somebody sends as an id, the answer is that there is no such thing."""
    assert await store.audit.decision(identifier) is None
    assert await store.audit.decision_inputs(identifier) is None
    assert await store.audit.incident(identifier) is None


@pytest.mark.parametrize("size", [-1, 251])
async def test_page_size_is_bounded(store: Store, size: int) -> None:
    """A page of no or too many rows is an error."""
    with pytest.raises(PageRefused, match="1 to 250"):
        await store.audit.decisions(ALL, Page(size=size))


def forged(document: str) -> str:
    return base64.urlsafe_b64encode(document.encode()).decode().rstrip("=")


@pytest.mark.parametrize(
    "cursor",
    [
        *("x", "é", "=", "a" * 5000, forged("[]"), forged("{}"), forged("[" * 2000)),
        *(forged('["decisions","","now",[1]]'), forged('["decisions","",true,["a"]]')),
        *(forged('["decisions","",99999999999999999999999,["a"]]'), forged('["decisions","",-1,["a"]]')),
    ],
)
async def test_garbage_is_no_cursor(store: Store, cursor: str) -> None:
    """A cursor that is not one of ours is refused with one clear error."""
    for fetch in (store.audit.decisions, store.audit.incidents, store.audit.attempts):
        with pytest.raises(CursorRefused):
            await fetch(ALL, Page(cursor=cursor))
    with pytest.raises(CursorRefused):
        await store.audit.nodes(ALL, Page(cursor=cursor), now=at(0))


@pytest.mark.parametrize(("name", "number"), [("x", 2**31), ("\0", 2**63), ("\ud800", -1), ("9" * 400, 10**30)])
async def test_a_forged_cursor_names_what_no_row_can_have(store: Store, name: str, number: int) -> None:
    """Where a column cannot hold it the cursor is refused as other garbage is; the database does not fail on it."""
    for job in (1, 2):
        await decided(store, job, nodes=("node1",))
    nodes, history = (
        partial(store.audit.nodes, now=at(0)),
        partial(store.audit.node_history, CLUSTER, "node2", now=at(2000)),
    )
    asked: list[tuple[Any, Any]] = [
        *((fetch, ALL) for fetch in (store.audit.decisions, store.audit.incidents, store.audit.attempts, nodes)),
        *(
            (store.audit.signals, SignalFilter()),
            (store.audit.records, EventFilter(everything=True)),
            (history, EventFilter()),
        ),
    ]
    refused = 0
    for fetch, wanted in asked:
        cursor = (await fetch(wanted, Page(size=1))).next_cursor
        if cursor:
            document = json.loads(base64.urlsafe_b64decode(cursor + "=="))
            document[3] = [name if isinstance(item, str) and item != "node_state" else item for item in document[3]]
            document[3] = [number if isinstance(item, int) else item for item in document[3]]
            try:
                await fetch(wanted, Page(cursor=forged(json.dumps(document))))
            except CursorRefused:
                refused += 1
    assert refused >= 4


async def test_cursor_belongs_to_its_list_and_filter(store: Store) -> None:
    """A cursor of another list or filter would give nonsense, so it is refused."""
    for number in range(3):
        await decided(store, number)
    cursor = (await store.audit.decisions(ALL, Page(size=1))).next_cursor
    with pytest.raises(CursorRefused, match="another list or filter"):
        await store.audit.incidents(ALL, Page(cursor=cursor))
    with pytest.raises(CursorRefused, match="another list or filter"):
        await store.audit.decisions(AuditFilter(user="ada"), Page(cursor=cursor))


_ROWS = 6000
_UNANSWERED = {
    "incidents": ("action", "reason", "mode", "status"),
    "signals": ("action", "reason", "mode", "status"),
    "attempts": ("action", "reason", "mode", "status"),
    "nodes": (
        *("action", "reason", "mode", "status", "account", "array_job_id", "array task", "account and status"),
        "account and category",
    ),
}
_BIG = ("decisions", "attempts", "incidents", "implications", "advice", "jobs", "reconciliations")
# A few thousand rows of the shape that a year leaves behind: 400 jobs a user, one node in 300 attempts.
_FILL = f"""
INSERT INTO jobs SELECT md5('j' || i)::uuid, 'alps', i::text, i::text, 'user' || i % 15, NULL, 'n', 'part' || i % 4, '',
  true, true, true, '', NULL, 4, '', NULL, '', NULL, 0, t, t, NULL
  FROM (SELECT i, timestamptz '2026-01-01' + i * interval '1 minute' AS t FROM generate_series(1, {_ROWS}) i) g;
INSERT INTO attempts (job_key, number, cluster, job_id, user_name, partition, state, submitted_at, nodes,
  excluded_nodes, our_excluded_nodes, held, pending_reason, stdout_path, stderr_path, marked_generation, marked_attempt,
  observed_at,  first_seen_at, generation, open, in_job_restarts, foreign_count)
  SELECT key, 0, cluster, job_id, user_name, partition, 'failed', first_seen_at,
  ARRAY['node' || job_id::int % 300, 'node' || (job_id::int + 1) % 300], '{{}}', '{{}}', false, '', '', '', 0, 0,
  first_seen_at, first_seen_at, 1, false, 0, 0 FROM jobs;
INSERT INTO blobs VALUES ('h', '', 0, now());
INSERT INTO decisions SELECT md5('d' || job_id)::uuid, job_key, 0, 1, md5('i')::uuid, cluster, job_id, user_name,
  partition, 'category' || job_id::int % 12, CASE WHEN job_id::int % 9 = 0 THEN 'stop' ELSE 'restart' END,
  'reason' || job_id::int % 20,
  CASE WHEN job_id::int % 70 = 0 THEN 'autonomous' ELSE 'monitor' END,
  nodes, '', true, false, nodes, nodes, md5('x' || job_id)::uuid, '', '{{}}',
  'h', 'h', 'h', 'b', submitted_at, submitted_at FROM attempts;
INSERT INTO advice SELECT id, cluster, job_key, 0, 1, action, created_at, expires_at,
  CASE WHEN job_id::int % 50 = 0 THEN 'abandoned' ELSE 'verified' END, false, true FROM decisions;
INSERT INTO incidents SELECT incident_id, job_key, 0, cluster, job_id, user_name, partition, 'crash', category, '',
  created_at, created_at, nodes, '', id FROM decisions;
INSERT INTO implications SELECT id, node, cluster, job_key, 0, job_id, user_name, partition, 1, 'log', 'initiating',
  category, 'r', opened_at FROM incidents, unnest(implicated_nodes) AS node;
UPDATE jobs SET account = 'account' || job_id::int % 30, array_job_id = (job_id::int / 50)::text,
  array_task = job_id::int % 50;
SET LOCAL session_replication_role = replica;
UPDATE decisions SET account = 'account' || job_id::int % 30;
SET LOCAL session_replication_role = DEFAULT;
UPDATE attempts SET account = 'account' || job_id::int % 30;
UPDATE incidents SET account = 'account' || job_id::int % 30;
INSERT INTO reconciliations (decision_id, status, reason, detail, at, excluded_nodes, dropped_nodes, decided_at)
  SELECT decision_id, status, CASE status WHEN 'abandoned' THEN 'reason7' ELSE 'observed' END, '', created_at, '{{}}',
  '{{}}', created_at FROM advice;
INSERT INTO audit (id, at, who, what, why, origin, cluster, subject, detail)
  SELECT md5('a' || id)::uuid, created_at, CASE WHEN job_id::int % 100 = 0 THEN 'ada' ELSE 'advisor' END,
  CASE WHEN job_id::int % 100 = 0 THEN 'paused' ELSE 'decision_committed' END, '', '', cluster, id::text, '{{}}'
  FROM decisions;
ANALYZE;
"""


def _filters() -> dict[str, AuditFilter]:
    values = {
        "cluster": CLUSTER,
        "job_id": "77",
        "job_key": "a5771bce-93e2-00c3-6f7c-d9dfd0e5deaa",
        "user": "user3",
        "partition": "part2",
        "node": "node42",
        "category": "category5",
        "action": Action.STOP,
        "reason": "reason7",
        "mode": Mode.AUTONOMOUS,
        "status": ReconciliationStatus.ABANDONED,
        "since": at(-86400 * 20),
        "account": "account7",
        "array_job_id": "7",
    }
    return {name: AuditFilter(**{name: value}) for name, value in values.items()} | {  # type: ignore[arg-type]
        "nothing": ALL,
        "array task": AuditFilter(array_job_id="7", array_task=3),
        "account and status": AuditFilter(account="account7", status=ReconciliationStatus.ABANDONED),
        "account and category": AuditFilter(account="account7", category="category5"),
        "status and user": AuditFilter(status=ReconciliationStatus.ABANDONED, user="user5"),
        "user and node": AuditFilter(user="user3", node="node42"),
        "cluster and category and since": AuditFilter(cluster=CLUSTER, category="category5", since=at(-86400 * 20)),
    }


async def test_every_list_is_served_by_an_index(url: str) -> None:
    """No list query, with any filter, on the first page or a later one, reads a big table from end to end."""
    middle = at(-86400 * 200)
    nobody = "a5771bce-93e2-00c3-6f7c-d9dfd0e5deaa"
    lists: dict[str, tuple[Callable[..., Any], Position]] = {
        "decisions": (decisions_statement, Position(at=middle, ids=(nobody,))),
        "incidents": (incidents_statement, Position(at=middle, ids=(nobody,))),
        "attempts": (attempts_statement, Position(at=middle, ids=(nobody, 0))),
        "nodes": (nodes_statement, Position(at=middle, ids=(nobody, "node42"), first=(middle, (nobody, "node42")))),
        "signals": (signals_statement, Position(at=middle, ids=(nobody, 0, "s"))),
        "actions": (actions_statement, Position(at=middle, ids=(nobody, 1))),
        "few decisions": (partial(decisions_statement, few=True), Position(at=middle, ids=(nobody,))),
        "few actions": (partial(actions_statement, few=True), Position(at=middle, ids=(nobody, 1))),
    }
    engine = create_async_engine(url)
    scanned = []
    async with engine.connect() as connection:
        for statement in _FILL.split(";\n"):
            if statement.strip():
                await connection.execute(text(statement))
        for kind, (build, later) in lists.items():
            for name, wanted in _filters().items():
                if name in _UNANSWERED.get(kind, ()) or (kind == "attempts" and "category" in name):
                    continue
                if kind.startswith("few") and not (wanted.status and narrowed(wanted)):
                    continue
                for position in (None, later):
                    query = build(wanted, position, 100).compile(
                        dialect=postgresql.dialect(), compile_kwargs={"literal_binds": True}
                    )
                    plan = "\n".join((await connection.execute(text(f"EXPLAIN {query}".replace(":", r"\:")))).scalars())
                    scanned += [
                        f"{kind} by {name}, {'later' if position else 'first'} page:\n{plan}"
                        for table in _BIG
                        if re.search(rf"Seq Scan on {table}(_old)? ", plan)  # parts of other months are empty
                    ]
        for events in (EventFilter(), EventFilter(who="ada"), EventFilter(everything=True), EventFilter(subject="x")):
            query = audit_statement(events, None, 100).compile(
                dialect=postgresql.dialect(), compile_kwargs={"literal_binds": True}
            )
            plan = "\n".join((await connection.execute(text(f"EXPLAIN {query}".replace(":", r"\:")))).scalars())
            scanned += [f"{events}:\n{plan}"] * ("Seq Scan on audit_old" in plan)
        for cluster, node in (("", ""), (CLUSTER, ""), (CLUSTER, "node42"), ("", "node42")):
            query = failures_statement(cluster, node, at(-86400 * 20), 100).compile(
                dialect=postgresql.dialect(), compile_kwargs={"literal_binds": True}
            )
            plan = "\n".join((await connection.execute(text(f"EXPLAIN {query}".replace(":", r"\:")))).scalars())
            scanned += [
                f"lemons of {cluster!r}, {node!r}:\n{plan}"
                for t in _BIG
                if re.search(rf"Seq Scan on {t}(_old)? ", plan)
            ]
    await engine.dispose()
    assert not scanned, "\n\n".join(scanned)
