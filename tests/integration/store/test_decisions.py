"""Decisions and advice: committed whole or not at all, one generation after the other."""

import asyncio
from dataclasses import replace

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine

from advisor.core.codec import content_hash, encode
from advisor.core.model import Incident
from advisor.core.words import Action, IncidentKind
from advisor.store.errors import Conflict, NotFound
from advisor.store.records import (
    AttemptKey,
    AuditFilter,
    CommittedDecision,
    Milestone,
    MilestoneKind,
    Page,
    Reconciliation,
    ReconciliationReason,
    ReconciliationStatus,
)
from advisor.store.store import Store
from tests.integration.store.worlds import CLUSTER, at, decision, healthy, implication, record, running, signal

pytestmark = pytest.mark.postgres


def outcome(
    status: ReconciliationStatus, reason: ReconciliationReason = ReconciliationReason.OBSERVED, seconds: float = 30
) -> Reconciliation:
    return Reconciliation(status=status, reason=reason, at=at(seconds))


async def count(url: str, table: str) -> int:
    engine = create_async_engine(url)
    async with engine.connect() as connection:
        found = (await connection.execute(text(f"SELECT count(*) FROM {table}"))).scalar_one()
    await engine.dispose()
    return int(found)


async def test_commit_keeps_every_byte(store: Store) -> None:
    """The inputs, rules, policy and decision come back byte for byte, under the hash that the decision names."""
    inputs = b'{"lines":"' + b"x" * 300_000 + b'"}'
    committed = await store.commit_decision(record(await running(store), inputs=inputs))
    kept = await store.audit.decision_inputs(committed.decision_id)
    assert kept is not None
    assert (kept.inputs, kept.rules, kept.policy) == (inputs, b'{"rules":1}', b'{"policy":1}')
    assert kept.decision == encode(decision())
    assert (kept.inputs_hash, kept.build) == (content_hash(inputs), "test-1")


async def test_decision_with_what_came_of_it(store: Store) -> None:
    """A decision is shown with its attempt, incident, reconciliations in order, milestones and newest status."""
    key = await running(store)
    milestone = Milestone(kind=MilestoneKind.DETECTED, at=at(20))
    committed = await store.commit_decision(record(key, milestones=(milestone,)))
    for status in (ReconciliationStatus.APPLIED, ReconciliationStatus.VERIFIED):
        await store.record_reconciliation(committed.decision_id, outcome(status), who="agent@host")
    row = await store.audit.decision(committed.decision_id)
    assert row is not None
    assert (row.generation, row.decision, row.partition) == (1, decision(), "gpu")
    assert (row.attempt.job_id, row.attempt.user, row.attempt.number) == ("7", "ada", 0)
    assert [item.status.value for item in row.reconciliations] == ["applied", "verified"]
    assert (row.status, row.milestones) == (ReconciliationStatus.VERIFIED, (milestone,))
    incident = await store.audit.incident(row.incident_id)
    assert incident is not None
    assert (incident.category, incident.implicated_nodes) == ("gpu_hardware", ("node2",))
    assert [item.id for item in incident.signals] == ["s1", "s0"]
    assert (incident.opened_at, incident.closed_at) == (at(20), at(30))


async def test_stale_snapshot_is_a_conflict(store: Store, url: str) -> None:
    """A decision made on an older generation is refused, and nothing of it is kept."""
    key = await running(store)
    await store.commit_decision(record(key))
    before = [await count(url, table) for table in ("decisions", "blobs", "audit", "advice")]
    with pytest.raises(Conflict, match="decided on generation 0, but the newest is 1"):
        await store.commit_decision(record(key, decision=healthy(), inputs=b"other"))
    assert [await count(url, table) for table in ("decisions", "blobs", "audit", "advice")] == before


async def test_a_conflict_within_a_batch_is_its_own(store: Store, url: str) -> None:
    """Of decisions committed together, one overtaken, one of nobody and one sent again leave the others as they are."""
    first, overtaken, known, last = [await running(store, job_id=f"2{number}") for number in range(4)]
    await store.commit_decision(record(overtaken))
    before = await store.commit_decision(record(known))
    unknown = AttemptKey(job_key="0" * 32, number=0)
    detected = Milestone(kind=MilestoneKind.DETECTED, at=at(20))
    outcomes = await store.commit_decisions(
        [
            record(last, inputs=b"last"),
            record(overtaken, decision=healthy(), inputs=b"overtaken"),
            record(unknown),
            record(known),
            record(first, inputs=b"first", milestones=(detected,)),
        ]
    )
    assert isinstance(outcomes[1], Conflict)
    assert isinstance(outcomes[2], NotFound)
    assert outcomes[3] == before
    for outcome, key, inputs in ((outcomes[0], last, b"last"), (outcomes[4], first, b"first")):
        assert isinstance(outcome, CommittedDecision)
        kept = await store.audit.decision_inputs(outcome.decision_id)
        assert kept is not None
        assert kept.inputs == inputs
        row = await store.audit.decision(outcome.decision_id)
        assert row is not None
        assert (row.attempt.job_key, row.status) == (key.job_key, ReconciliationStatus.PENDING)
        assert row.milestones == ((detected,) if key == first else ())
    assert [await count(url, table) for table in ("decisions", "advice", "incidents")] == [4, 4, 4]
    assert await count(url, "audit WHERE what = 'decision_committed'") == 4
    assert await count(url, "blobs") == 2 + 3  # what was overtaken left none


async def test_a_batch_is_what_its_decisions_are_alone(store: Store) -> None:
    """New generations, a healthy one among them, supersede, close and implicate each for its own attempt."""
    keys = [await running(store, job_id=f"3{number}") for number in range(3)]
    await store.commit_decisions([record(key) for key in keys])
    blamed = replace(decision().attribution, nodes=("node3",), implications=(implication("node3"),))
    await store.commit_decisions(
        [
            record(keys[0], 1, decision=healthy(), created_at=at(30)),
            record(keys[1], 1, decision=decision(attribution=blamed), created_at=at(31)),
        ]
    )
    opened = {row.key: row.generation for row in await store.open_advice(CLUSTER, at(32))}
    assert opened == {keys[0]: 2, keys[1]: 2, keys[2]: 1}
    listed = {row.attempt.job_key: row for row in (await store.audit.incidents(AuditFilter(), Page())).rows}
    assert [listed[key.job_key].closed_at for key in keys] == [at(30), None, None]
    assert await _weighing(store, "node2") == {keys[2].job_key}
    assert await _weighing(store, "node3") == {keys[1].job_key}


async def _weighing(store: Store, name: str) -> set[str]:
    """Jobs whose incidents name the node now."""
    node = await store.audit.node(CLUSTER, name, now=at(33))
    assert node is not None
    return {item.attempt.job_key for item in node.implications if item.weight > 0}


async def test_two_replicas_decide_at_once(store: Store) -> None:
    """Of two different decisions on the same generation that are committed at once, one wins."""
    key = await running(store)
    results = await asyncio.gather(
        store.commit_decision(record(key)),
        store.commit_decision(record(key, decision=healthy())),
        return_exceptions=True,
    )
    assert sorted(type(result).__name__ for result in results) == ["CommittedDecision", "Conflict"]


async def test_commit_again_is_the_same_commit(store: Store, url: str) -> None:
    """A commit whose answer was lost can be sent again: it gives the same id and adds nothing."""
    key = await running(store)
    first = await store.commit_decision(record(key))
    assert await store.commit_decision(record(key)) == first
    assert await count(url, "decisions") == 1


async def test_unknown_attempt(store: Store) -> None:
    """A decision about an attempt that does not exist is refused."""
    with pytest.raises(NotFound):
        await store.commit_decision(record(AttemptKey(job_key="0" * 32, number=0)))


async def test_common_content_is_stored_once(store: Store, url: str) -> None:
    """Rules and policy that many decisions share are one blob each."""
    for number in range(5):
        key = await running(store, job_id=f"1{number}")
        await store.commit_decision(record(key, inputs=f"inputs {number}".encode()))
    assert await count(url, "blobs") == 2 + 5


async def test_healthy_decision_opens_no_incident(store: Store) -> None:
    """Where nothing is wrong there is a decision and no incident."""
    committed = await store.commit_decision(record(await running(store), decision=healthy()))
    row = await store.audit.decision(committed.decision_id)
    assert row is not None
    assert row.incident_id == ""
    assert await store.open_incident_count() == 0


async def test_incident_ends_when_nothing_is_wrong_any_more(store: Store) -> None:
    """An incident that a later generation no longer sees is closed, and keeps what it was."""
    key = await running(store)
    first = await store.commit_decision(record(key))
    await store.commit_decision(record(key, 1, decision=healthy(), created_at=at(50)))
    row = await store.audit.decision(first.decision_id)
    assert row is not None
    incident = await store.audit.incident(row.incident_id)
    assert incident is not None
    assert (incident.kind, incident.closed_at) == ("crash", at(50))
    node = await store.audit.node(CLUSTER, "node2", now=at(51))
    assert node is not None
    assert node.score == 0.0


async def test_one_incident_per_attempt(store: Store) -> None:
    """Generations of one attempt refine one incident, which keeps the time it was opened."""
    key = await running(store)
    await store.commit_decision(record(key))
    later = Incident(kind=IncidentKind.HANG, signals=(signal(),), detected_at=at(99))
    await store.commit_decision(record(key, 1, decision=decision(incident=later), created_at=at(99)))
    listed = await store.audit.incidents(AuditFilter(), Page())
    assert [(row.kind, row.opened_at) for row in listed.rows] == [("hang", at(20))]


async def test_only_the_newest_generation_is_open(store: Store) -> None:
    """A new generation supersedes the one before, in the open advice and in its record."""
    key = await running(store)
    first = await store.commit_decision(record(key, decision=decision(settled=False)))
    second = await store.commit_decision(record(key, 1, created_at=at(22)))
    opened = await store.open_advice(CLUSTER, at(23))
    assert [(row.advice_id, row.generation, row.key) for row in opened] == [(second.decision_id, 2, key)]
    assert opened[0].decision == decision()
    row = await store.audit.decision(first.decision_id)
    assert row is not None
    assert row.status is ReconciliationStatus.SUPERSEDED
    assert row.reconciliations[-1].reason is ReconciliationReason.NEWER_GENERATION


async def test_advice_of_other_clusters_is_not_shown(store: Store) -> None:
    """An agent is given the advice of its own cluster only."""
    await store.commit_decision(record(await running(store)))
    assert await store.open_advice("other", at(23)) == ()


async def test_advice_ends_with_its_time_to_live(store: Store) -> None:
    """Advice past its time is not open, and once swept its record says EXPIRED."""
    committed = await store.commit_decision(record(await running(store)))
    assert len(await store.open_advice(CLUSTER, at(260))) == 1
    assert await store.open_advice(CLUSTER, at(261)) == ()
    assert [
        await store.expire_advice(at(260)),
        await store.expire_advice(at(261)),
        await store.expire_advice(at(262)),
    ] == [
        0,
        1,
        0,
    ]
    row = await store.audit.decision(committed.decision_id)
    assert row is not None
    assert (row.status, len(row.reconciliations)) == (ReconciliationStatus.EXPIRED, 1)


@pytest.mark.parametrize(
    ("news", "still_open"),
    [
        (outcome(ReconciliationStatus.PENDING), True),
        (outcome(ReconciliationStatus.APPLIED), True),
        (outcome(ReconciliationStatus.WITHHELD, ReconciliationReason.STILL_COMPLETING), True),
        (outcome(ReconciliationStatus.WITHHELD, ReconciliationReason.CAP_REQUEUES), True),
        (outcome(ReconciliationStatus.WITHHELD, ReconciliationReason.CANCELLED), False),
        (outcome(ReconciliationStatus.WITHHELD, ReconciliationReason.MONITOR_MODE), False),
        (outcome(ReconciliationStatus.VERIFIED), False),
        (outcome(ReconciliationStatus.ALREADY_SATISFIED), False),
        (outcome(ReconciliationStatus.ABANDONED, ReconciliationReason.GONE), False),
    ],
    ids=lambda value: f"{value.status}-{value.reason}" if isinstance(value, Reconciliation) else str(value),
)
async def test_what_keeps_advice_open(store: Store, news: Reconciliation, still_open: bool) -> None:
    """Advice stays open while something may still come of it."""
    committed = await store.commit_decision(record(await running(store)))
    await store.record_reconciliation(committed.decision_id, news, who="agent")
    assert (len(await store.open_advice(CLUSTER, at(31))) == 1) is still_open


async def test_reconciliation_is_idempotent(store: Store) -> None:
    """What is reported again and again is recorded once; what is final is not opened again by a late report."""
    committed = await store.commit_decision(record(await running(store)))
    verified = outcome(ReconciliationStatus.VERIFIED)
    for seconds in (30, 31, 32):
        await store.record_reconciliation(committed.decision_id, replace(verified, at=at(seconds)), who="agent")
    await store.record_reconciliation(committed.decision_id, outcome(ReconciliationStatus.APPLIED), who="agent")
    row = await store.audit.decision(committed.decision_id)
    assert row is not None
    assert (row.status, len(row.reconciliations)) == (ReconciliationStatus.VERIFIED, 2)
    assert await store.open_advice(CLUSTER, at(40)) == ()


async def test_superseded_stays_superseded(store: Store) -> None:
    """A late report about replaced advice is recorded, tells that the scheduler accepted it, and opens nothing."""
    key = await running(store)
    first = await store.commit_decision(record(key))
    await store.commit_decision(record(key, 1, decision=decision(explanation="refined")))
    for status in (ReconciliationStatus.APPLIED, ReconciliationStatus.VERIFIED):
        await store.record_reconciliation(first.decision_id, outcome(status), who="agent")
    row = await store.audit.decision(first.decision_id)
    assert row is not None
    assert row.status is ReconciliationStatus.SUPERSEDED
    advice = (await store.load([key], now=at(40)))[key].advice
    assert advice is not None
    assert advice.applied
    assert [item.generation for item in await store.open_advice(CLUSTER, at(40))] == [2]


@pytest.mark.parametrize("advice_id", ["", "nonsense", "00000000-0000-0000-0000-000000000000"])
async def test_reconciliation_of_unknown_advice(store: Store, advice_id: str) -> None:
    """A report about advice that never was is an error, not a new row."""
    with pytest.raises(NotFound):
        await store.record_reconciliation(advice_id, outcome(ReconciliationStatus.APPLIED), who="agent")


async def test_hostile_text_is_kept(store: Store) -> None:
    """NUL bytes and broken characters of a user's log do not keep a decision from being committed."""
    hostile = replace(decision().attribution, root_cause="bad\0byte", nodes=("no\0de",), fingerprint="\0")
    made = decision(
        attribution=hostile,
        incident=Incident(kind=IncidentKind.CRASH, signals=(signal(text="\0 and \ud800"),), detected_at=at(20)),
        action=Action.STOP,
    )
    committed = await store.commit_decision(
        record(await running(store), decision=made, analysis_json='{"text":"\\u0000"}')
    )
    row = await store.audit.decision(committed.decision_id)
    assert row is not None
    assert row.decision == made
    assert row.analysis_json == '{"text":"\\u0000"}'


async def test_audit_names_who_and_why(store: Store, url: str) -> None:
    """Each decision and reconciliation leaves an audit row with who did it and why."""
    committed = await store.commit_decision(record(await running(store)))
    await store.record_reconciliation(committed.decision_id, outcome(ReconciliationStatus.VERIFIED), who="agent@host")
    engine = create_async_engine(url)
    async with engine.connect() as connection:
        rows = await connection.execute(
            text("SELECT who, what, why FROM audit WHERE subject = :id ORDER BY seq"), {"id": committed.decision_id}
        )
        assert [tuple(row) for row in rows] == [
            ("advisor", "decision_committed", "nodes_implicated"),
            ("agent@host", "advice_reconciled", "observed"),
        ]
    await engine.dispose()
