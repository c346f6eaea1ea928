"""Audit lists beyond decisions: signals, actions, who did what, a job's timeline and a node's history."""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from advisor.core.modes import Pause
from advisor.core.words import AttemptState, Mode
from advisor.store.errors import CursorRefused, FilterRefused
from advisor.store.records import (
    AttemptKey,
    AuditFilter,
    EventFilter,
    Listing,
    Page,
    Reconciliation,
    ReconciliationReason,
    ReconciliationStatus,
    SignalFilter,
)
from advisor.store.store import Store
from tests.integration.store.worlds import CLUSTER, at, decision, pending, record, report, running, seen, signal

pytestmark = pytest.mark.postgres

VERIFIED = ReconciliationStatus.VERIFIED
OBSERVED = ReconciliationReason.OBSERVED


async def decided(store: Store, number: int, *, signals: int = 2, **changes: Any) -> tuple[AttemptKey, str]:
    """Job `number`, decided on from so many signals, with its decision's id."""
    key = await running(store, job_id=str(number), submitted_at=at(number), **changes)
    noticed = replace(
        decision().incident,
        detected_at=at(1000 + number),
        signals=tuple(signal(f"{number}-{place}", at=at(900 + place)) for place in range(signals)),
    )
    blamed = replace(decision().attribution, evidence=(f"{number}-0",))
    committed = await store.commit_decision(
        record(key, created_at=at(1000 + number), decision=decision(incident=noticed, attribution=blamed))
    )
    return key, committed.decision_id


async def told(store: Store, decision_id: str, status: ReconciliationStatus, reason: ReconciliationReason) -> None:
    await store.record_reconciliation(
        decision_id, Reconciliation(status=status, reason=reason, at=at(2000)), who="agent@ctl"
    )


async def whole(fetch: Callable[[Page], Awaitable[Listing[Any]]], size: int) -> list[Any]:
    rows: list[Any] = []
    cursor = ""
    while True:
        listing = await fetch(Page(size=size, cursor=cursor))
        assert len(listing.rows) <= size
        rows += listing.rows
        cursor = listing.next_cursor
        if not cursor:
            return rows


@pytest.mark.parametrize("size", [1, 2, 3, 5, 100])
async def test_signals_come_once_in_pages_of_any_size(store: Store, size: int) -> None:
    """Newest incident first, its signals by time; no page boundary loses or repeats one."""
    for number in range(4):
        await decided(store, number, signals=3)
    rows = await whole(partial(store.audit.signals, SignalFilter()), size)
    assert [row.signal.id for row in rows] == [f"{number}-{place}" for number in (3, 2, 1, 0) for place in range(3)]


async def test_signals_are_filtered_by_themselves_and_by_their_incident(store: Store) -> None:
    """By rule, trust, role and node of the signal; by job, user and account of its incident."""
    await decided(store, 1)
    await decided(store, 2, user="bob", account="chemistry")

    async def ids(wanted: SignalFilter) -> list[str]:
        return [row.signal.id for row in (await store.audit.signals(wanted, Page())).rows]

    assert await ids(SignalFilter(incidents=AuditFilter(account="chemistry"))) == ["2-0", "2-1"]
    assert await ids(SignalFilter(incidents=AuditFilter(user="ada", node="node2"))) == ["1-0", "1-1"]
    assert await ids(SignalFilter(incidents=AuditFilter(node="node1"))) == []  # of the allocation, and not named
    assert await ids(SignalFilter(rule="nvidia.xid", trust="kernel", role="symptom")) == ["2-0", "2-1", "1-0", "1-1"]
    for other in (SignalFilter(rule="nccl.timeout"), SignalFilter(trust="log"), SignalFilter(role="initiating")):
        assert await ids(other) == []
    with pytest.raises(FilterRefused, match="signals cannot be filtered by mode"):
        await store.audit.signals(SignalFilter(incidents=AuditFilter(mode=Mode.MONITOR)), Page())


async def test_an_incident_that_grows_between_two_pages_repeats_nothing(store: Store) -> None:
    """Signals that arrive behind the cursor are told, none twice, and those before it are left to the next look."""
    key, _ = await decided(store, 1, signals=4)
    first = await store.audit.signals(SignalFilter(), Page(size=2))
    grown = replace(
        decision().incident,
        detected_at=at(1001),
        signals=tuple(signal(name, at=at(when)) for name, when in (("1-0", 900), ("early", 899), ("1-1", 901)))
        + tuple(signal(f"1-{place}", at=at(900 + place)) for place in (2, 3, 4)),
    )
    await store.commit_decision(record(key, 1, created_at=at(1500), decision=decision(incident=grown)))
    rest = await store.audit.signals(SignalFilter(), Page(size=10, cursor=first.next_cursor))
    assert [row.signal.id for row in (*first.rows, *rest.rows)] == ["1-0", "1-1", "1-2", "1-3", "1-4"]


async def test_a_filter_that_matches_nothing_for_long_still_comes_to_an_end(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page looks at so many incidents and goes on behind them: the one match is found, pages later."""
    monkeypatch.setattr("advisor.store.signal_queries.INCIDENTS_LOOKED_AT", 2)
    for number in range(7):
        await decided(store, number, signals=1)
    wanted = SignalFilter(rule="nobody.has.it")
    first = await store.audit.signals(wanted, Page())
    assert first.rows == ()
    assert first.next_cursor
    assert await whole(partial(store.audit.signals, wanted), 100) == []
    assert len(await whole(partial(store.audit.signals, SignalFilter()), 100)) == 7


@pytest.mark.parametrize("size", [1, 2, 3, 100])
async def test_actions_come_once_newest_decision_first(store: Store, size: int) -> None:
    """What was told last about a decision comes first; the same with a filter by what came of it."""
    for number in range(3):
        _, name = await decided(store, number)
        await told(store, name, ReconciliationStatus.APPLIED, ReconciliationReason.UNSPECIFIED)
        await told(store, name, VERIFIED, OBSERVED)
    rows = await whole(partial(store.audit.actions, AuditFilter(user="ada")), size)
    assert [(row.attempt.job_id, row.outcome.status.value) for row in rows] == [
        (job, status) for job in ("2", "1", "0") for status in ("verified", "applied")
    ]
    for wanted in (AuditFilter(status=VERIFIED), AuditFilter(reason="observed", cluster=CLUSTER)):
        rows = await whole(partial(store.audit.actions, wanted), size)
        assert [row.attempt.job_id for row in rows] == ["2", "1", "0"]


async def test_actions_are_filtered_by_their_decision(store: Store) -> None:
    """Account, node and category are the decision's; what is superseded by us is among the actions."""
    key, first = await decided(store, 1)
    await store.commit_decision(record(key, 1, created_at=at(1100)))
    listed = (
        await store.audit.actions(AuditFilter(account="physics", node="node2", category="gpu_hardware"), Page())
    ).rows
    assert [(row.decision_id, row.outcome.reason.value) for row in listed] == [(first, "newer_generation")]
    assert listed[0].decided_at == at(1001)
    assert (await store.audit.actions(AuditFilter(account="nobody"), Page())).rows == ()


async def test_decisions_incidents_and_attempts_by_account_and_array(store: Store) -> None:
    """An array's tasks are found together and one by one, by every list of jobs' affairs; nodes refuse it."""
    for task in (0, 1):
        await decided(store, 70 + task, array_job_id="70", array_task=task, account="bio")
    await decided(store, 9)
    for fetch in (store.audit.decisions, store.audit.incidents, store.audit.attempts, store.audit.actions):
        for wanted, jobs in (
            (AuditFilter(array_job_id="70"), {"70", "71"}),
            (AuditFilter(array_job_id="70", array_task=0), {"70"}),
            (AuditFilter(account="bio"), {"70", "71"}),
            (AuditFilter(account="bio", array_job_id="71"), set()),
        ):
            if fetch == store.audit.actions:
                jobs = set()
            assert {row.attempt.job_id for row in (await fetch(wanted, Page())).rows} == jobs
        with pytest.raises(FilterRefused, match="give array_job_id, too"):
            await fetch(AuditFilter(array_task=0), Page())
    with pytest.raises(FilterRefused, match="nodes cannot be filtered by array_job_id"):
        await store.audit.nodes(AuditFilter(array_task=0, array_job_id="70"), Page(), now=at(0))


async def test_who_did_what_leaves_out_what_the_advisor_does_by_itself(store: Store) -> None:
    """Operators' actions are listed and filtered; with `everything` decisions and agents' words come, too."""
    _, name = await decided(store, 1)
    await told(store, name, VERIFIED, OBSERVED)
    for number, who in enumerate(("ada", "bob", "ada")):
        pause = Pause(cluster=CLUSTER, until=at(9000 + number), set_by=who, why="power", set_at=at(3000 + number))
        await store.pause(pause, who=who, origin="unix socket", now=at(3000 + number))

    async def found(**wanted: Any) -> list[tuple[str, str]]:
        rows = await whole(partial(store.audit.records, EventFilter(**wanted)), 2)
        return [(row.event.what, row.event.who) for row in rows]

    paused = [("paused", "ada"), ("paused", "bob"), ("paused", "ada")]
    assert [row for row in await found() if row[1] != "advisor"] == paused
    assert await found(who="bob") == [("paused", "bob")]
    assert await found(since=at(3001), until=at(3002)) == [("paused", "bob")]
    assert await found(cluster="other") == []
    assert ("decision_committed", "advisor") in await found(everything=True)
    assert await found(everything=True, subject=name, what="advice_reconciled") == [("advice_reconciled", "agent@ctl")]
    first = await store.audit.records(EventFilter(), Page(size=1))
    with pytest.raises(CursorRefused, match="another list or filter"):
        await store.audit.records(EventFilter(who="ada"), Page(cursor=first.next_cursor))


async def test_a_forgotten_requeue_is_in_the_lists_and_stays_in_the_history(store: Store) -> None:
    """Of the job and of the node that it would have avoided; the attempt itself tells it until it comes again."""
    key, name = await decided(store, 7)
    await told(store, name, VERIFIED, OBSERVED)
    failed = seen(AttemptState.FAILED, submitted_at=at(7), observed_at=at(1100), ended_at=at(1090))
    await report(store, failed)
    again = pending(attempt=1, submitted_at=at(1200), observed_at=at(1200))
    await report(store, again)
    await report(store, replace(failed, observed_at=at(1300)))

    async def shown() -> tuple[list[bool], bool, list[tuple[str, int]], list[str]]:
        job = await store.audit.job_timeline(cluster="", job_id="", job_key=key.job_key, attempts_max=10)
        made = await store.audit.decision(name)
        node = await store.audit.node_history(CLUSTER, "node2", EventFilter(), Page(), now=at(5000))
        assert job is not None
        assert made is not None
        assert node is not None
        lost = [(event.kind, event.attempt.number) for event in job.events if event.attempt and "forg" in event.kind]
        excluded = [event.detail for event in node.events if event.kind == "excluded"]
        return [row.withdrawn for row in job.attempts], made.undone, lost, excluded

    of_both = ([("requeue_forgotten", 1)], ["monitor, and forgotten by the scheduler"])
    assert await shown() == ([False, True], True, *of_both)
    await report(store, replace(again, submitted_at=at(1400), observed_at=at(1400)))
    assert await shown() == ([False, False], True, *of_both)


async def test_a_jobs_timeline_goes_across_its_attempts(store: Store) -> None:
    """States, incident, decision and outcome of both attempts, oldest first; the key and the id find the same job."""
    key, name = await decided(store, 7)
    await told(store, name, VERIFIED, OBSERVED)
    await report(store, seen(AttemptState.FAILED, submitted_at=at(7), observed_at=at(1100), ended_at=at(1090)))
    again = seen(attempt=1, submitted_at=at(1200), observed_at=at(1300), started_at=at(1250))
    await report(store, again)
    found = await store.audit.job_timeline(cluster=CLUSTER, job_id="7", attempts_max=10)
    assert found is not None
    assert [row.attempt.number for row in found.attempts] == [0, 1]
    assert not found.truncated
    told_of = [(event.kind, event.word, event.attempt.number) for event in found.events if event.attempt is not None]
    assert told_of == [
        ("attempt_state", "running", 0),
        ("incident_opened", "crash", 0),
        ("decision", "restart", 0),
        ("attempt_state", "failed", 0),
        ("attempt_state", "running", 1),
        ("action", "verified", 0),
        ("incident_closed", "", 0),
    ]
    assert found == await store.audit.job_timeline(cluster="", job_id="", job_key=key.job_key, attempts_max=10)
    last = await store.audit.job_timeline(cluster=CLUSTER, job_id="7", attempts_max=1)
    assert last is not None
    assert ([row.attempt.number for row in last.attempts], last.truncated) == ([1], True)
    for nobody in ({"job_id": "8"}, {"job_id": "", "job_key": "junk"}):
        assert await store.audit.job_timeline(cluster=CLUSTER, attempts_max=1, **nobody) is None


@pytest.mark.parametrize("size", [1, 2, 3, 100])
async def test_a_nodes_history_in_pages_is_whole(store: Store, size: int) -> None:
    """Implications and exclusions of one moment are merged from their tables, each once, newest first."""
    for number in (1, 2, 3):
        await decided(store, number)
    events: list[Any] = []
    cursor = ""
    while True:
        page = Page(size=size, cursor=cursor)
        found = await store.audit.node_history(CLUSTER, "node2", EventFilter(), page, now=at(5000))
        assert found is not None
        events += found.events
        cursor = found.next_cursor
        if not cursor:
            break
    assert [(event.kind, event.attempt.job_id) for event in events] == [
        (kind, job) for job in ("3", "2", "1") for kind in ("implicated", "excluded")
    ]
    since = await store.audit.node_history(CLUSTER, "node2", EventFilter(since=at(1003)), Page(), now=at(5000))
    assert since is not None
    assert len(since.events) == 2
    assert await store.audit.node_history(CLUSTER, "nobody", EventFilter(), Page(), now=at(0)) is None


async def test_lists_go_on_from_month_to_month(store: Store) -> None:
    """Rows of several months come newest first, each once, whatever the page; spans of time cut across months."""
    month = 31 * 86400
    for number in range(6):  # two in each of three months
        key = await running(store, job_id=str(number), submitted_at=at(number))
        moment = at(number // 2 * month + number)
        committed = await store.commit_decision(record(key, created_at=moment))
        outcome = Reconciliation(status=VERIFIED, reason=OBSERVED, at=moment)
        await store.record_reconciliation(committed.decision_id, outcome, who="agent@ctl")
    newest_first = ["5", "4", "3", "2", "1", "0"]
    for size in (1, 2, 3, 100):
        for fetch, wanted in (
            (store.audit.decisions, AuditFilter(user="ada")),
            (store.audit.decisions, AuditFilter(status=VERIFIED)),
            (store.audit.actions, AuditFilter(user="ada")),
            (store.audit.actions, AuditFilter(reason="observed")),
        ):
            rows = await whole(partial(fetch, wanted), size)
            assert [row.attempt.job_id for row in rows] == newest_first
        events = await whole(
            partial(store.audit.records, EventFilter(everything=True, what="decision_committed")), size
        )
        assert [row.event.detail["job_id"] for row in events] == newest_first
    across = AuditFilter(since=at(1), until=at(2 * month + 5))
    assert [row.attempt.job_id for row in await whole(partial(store.audit.decisions, across), 2)] == [
        "4",
        "3",
        "2",
        "1",
    ]
    assert (await store.audit.decisions(AuditFilter(since=at(5), until=at(5)), Page())).rows == ()
    assert (await store.audit.decisions(AuditFilter(since=at(9 * month)), Page())).rows == ()
