"""Committing one decision: everything it rests on and everything that follows from it, in one transaction."""

import asyncio
import zlib
from collections.abc import Mapping
from datetime import datetime

from sqlalchemy import literal, select, update
from sqlalchemy.dialects.postgresql import insert as upsert
from sqlalchemy.ext.asyncio import AsyncConnection

from advisor.core.codec import content_hash, encode
from advisor.core.model import Decision, Signal
from advisor.core.words import IncidentKind
from advisor.store.audit_log import append
from advisor.store.documents import pack_signals
from advisor.store.errors import Conflict, NotFound
from advisor.store.ids import content_id
from advisor.store.milestones import record_milestones
from advisor.store.open_advice import close_advice
from advisor.store.records import (
    AttemptKey,
    AuditEvent,
    CommittedDecision,
    DecisionRecord,
    ReconciliationReason,
    ReconciliationStatus,
)
from advisor.store.sql import AnyRow, all_text, storable
from advisor.store.tables import (
    advice,
    attempts,
    blobs,
    decisions,
    implications,
    incidents,
)

# Smaller ones are compressed in less time than a thread needs to take them over.
_THREAD_FROM_BYTES = 100_000


class Content:
    """Compressed blobs of one decision, by hash. Made before the transaction, so that it is short."""

    def __init__(self, plain: Mapping[str, bytes], packed: Mapping[str, bytes]) -> None:
        self.plain_bytes = {name: len(data) for name, data in plain.items()}
        self.packed = packed

    @classmethod
    async def pack(cls, *parts: bytes, known: frozenset[str]) -> "Content":
        """`known`: hashes that the store already holds; they are not packed again."""
        plain = {content_hash(part): part for part in parts}
        packed = {}
        for name, data in plain.items():
            if name in known:
                continue
            if len(data) < _THREAD_FROM_BYTES:
                packed[name] = zlib.compress(data)
            else:
                packed[name] = await asyncio.to_thread(zlib.compress, data)
        return cls(plain, packed)

    async def write(self, connection: AsyncConnection, now: datetime) -> None:
        if not self.packed:
            return
        await connection.execute(
            upsert(blobs).on_conflict_do_nothing(),
            # In one order for all writers: two that share content never wait in a circle.
            [
                {"hash": name, "bytes": data, "plain_bytes": self.plain_bytes[name], "created_at": now}
                for name, data in sorted(self.packed.items())
            ],
        )


async def commit_decision(
    connection: AsyncConnection, record: DecisionRecord, content: Content, *, incarnation: str
) -> CommittedDecision:
    """Raises `Conflict` or `NotFound`. The same record again gives the same answer."""
    decision_bytes = encode(record.decision)
    hashes = {name: content_hash(getattr(record, name)) for name in ("inputs", "rules", "policy")}
    generation = record.seen_generation + 1
    decision_id = content_id(
        "decision",
        incarnation,
        record.key.job_key,
        record.key.number,
        generation,
        *(hashes[name] for name in ("inputs", "rules", "policy")),
        content_hash(decision_bytes),
    )
    owner = await _lock_attempt(connection, record.key)
    if owner.generation != record.seen_generation:
        if owner.generation == generation and await _exists(connection, decision_id):
            return CommittedDecision(decision_id=decision_id, generation=generation)
        raise Conflict(str(record.key), seen=record.seen_generation, newest=owner.generation)
    await content.write(connection, record.created_at)
    incident_id = await _write_incident(connection, record, owner, decision_id)
    await connection.execute(
        upsert(decisions).values(
            **_decision_values(record, owner, incident_id),
            id=decision_id,
            generation=generation,
            incarnation=incarnation,
            decision=decision_bytes,
            inputs_hash=hashes["inputs"],
            rules_hash=hashes["rules"],
            policy_hash=hashes["policy"],
        )
    )
    await connection.execute(
        update(attempts)
        .where(attempts.c.job_key == record.key.job_key, attempts.c.number == record.key.number)
        .values(generation=generation)
    )
    await _publish(connection, record, owner, decision_id, generation)
    if record.milestones:
        await record_milestones(connection, {record.key: record.milestones})
    await append(
        connection,
        AuditEvent(
            at=record.created_at,
            who=record.who,
            what="decision_committed",
            why=record.decision.reason.value,
            cluster=owner.cluster,
            subject=decision_id,
            detail={
                "attempt": str(record.key),
                "job_id": owner.job_id,
                "generation": str(generation),
                "action": record.decision.action.value,
                "category": record.decision.attribution.category.value,
                "mode": record.decision.mode.value,
            },
        ),
    )
    return CommittedDecision(decision_id=decision_id, generation=generation)


async def _lock_attempt(connection: AsyncConnection, key: AttemptKey) -> AnyRow:
    found = await connection.execute(
        select(
            attempts.c.generation,
            attempts.c.cluster,
            attempts.c.job_id,
            attempts.c.user_name,
            attempts.c.partition,
        )
        .where(attempts.c.job_key == key.job_key, attempts.c.number == key.number)
        .with_for_update()
    )
    row = found.one_or_none()
    if row is None:
        raise NotFound(f"no attempt {key}")
    return row


async def _exists(connection: AsyncConnection, decision_id: str) -> bool:
    found = await connection.execute(select(literal(1)).where(decisions.c.id == decision_id))
    return found.one_or_none() is not None


def _decision_values(record: DecisionRecord, owner: AnyRow, incident_id: str | None) -> dict[str, object]:
    decision = record.decision
    implicated = _names(*decision.attribution.nodes)
    return {
        "job_key": record.key.job_key,
        "number": record.key.number,
        "cluster": owner.cluster,
        "job_id": owner.job_id,
        "user_name": owner.user_name,
        "partition": owner.partition,
        "category": decision.attribution.category.value,
        "action": decision.action.value,
        "reason": decision.reason.value,
        "mode": decision.mode.value,
        "nodes": _names(
            *implicated,
            *(item.node for item in decision.attribution.implications),
            *decision.isolation.exclude_for_job,
            *decision.isolation.isolate_for_cluster,
        ),
        "fingerprint": storable(decision.attribution.fingerprint),
        "settled": decision.settled,
        "trusted": decision.attribution.trusted,
        "implicated_nodes": implicated,
        "excluded_nodes": _names(*decision.isolation.exclude_for_job),
        "incident_id": incident_id,
        "analysis": storable(record.analysis_json),
        "build": record.build,
        "created_at": record.created_at,
        "expires_at": record.created_at + record.time_to_live,
    }


async def _write_incident(
    connection: AsyncConnection, record: DecisionRecord, owner: AnyRow, decision_id: str
) -> str | None:
    """The attempt's one incident, as this decision sees it. None when nothing is wrong and nothing ever was."""
    decision = record.decision
    incident_id = content_id("incident", record.key.job_key, record.key.number)
    if decision.incident.kind is IncidentKind.NONE:
        found = await connection.execute(
            update(incidents)
            .where(incidents.c.id == incident_id)
            .values(closed_at=record.created_at, decision_id=decision_id)
            .returning(incidents.c.id)
        )
        if found.one_or_none() is None:
            return None
        await _write_implications(connection, record, owner, incident_id)
        return incident_id
    statement = upsert(incidents).values(
        id=incident_id,
        job_key=record.key.job_key,
        number=record.key.number,
        cluster=owner.cluster,
        job_id=owner.job_id,
        user_name=owner.user_name,
        partition=owner.partition,
        kind=decision.incident.kind.value,
        category=decision.attribution.category.value,
        root_cause=storable(decision.attribution.root_cause),
        opened_at=decision.incident.detected_at or record.created_at,
        closed_at=None,
        implicated_nodes=_names(*decision.attribution.nodes),
        signals=pack_signals(_decisive_first(decision)),
        decision_id=decision_id,
    )
    changing = ("kind", "category", "root_cause", "closed_at", "implicated_nodes", "signals", "decision_id")
    await connection.execute(
        statement.on_conflict_do_update(
            index_elements=["id"], set_={name: statement.excluded[name] for name in changing}
        )
    )
    await _write_implications(connection, record, owner, incident_id)
    return incident_id


async def _write_implications(
    connection: AsyncConnection, record: DecisionRecord, owner: AnyRow, incident_id: str
) -> None:
    """One row per node and incident. A node that is no longer named keeps its row, with no weight."""
    heaviest = {}
    if record.decision.incident.kind is not IncidentKind.NONE:
        for item in sorted(record.decision.attribution.implications, key=lambda item: item.weight):
            heaviest[storable(item.node)] = item
    await connection.execute(
        update(implications)
        .where(
            implications.c.incident_id == incident_id,
            implications.c.node != all_text(heaviest),
            implications.c.weight != 0,
        )
        .values(weight=0.0)
    )
    if not heaviest:
        return
    statement = upsert(implications)
    changing = ("weight", "trust", "role", "category", "rule", "unit")
    await connection.execute(
        statement.on_conflict_do_update(
            index_elements=["incident_id", "node"], set_={name: statement.excluded[name] for name in changing}
        ),
        [
            {
                "incident_id": incident_id,
                "node": node,
                "cluster": owner.cluster,
                "job_key": record.key.job_key,
                "number": record.key.number,
                "job_id": owner.job_id,
                "user_name": owner.user_name,
                "partition": owner.partition,
                "weight": item.weight,
                "trust": item.trust.value,
                "role": item.role.value,
                "category": item.category.value,
                "rule": storable(item.rule),
                "unit": storable(item.unit),
                "at": record.created_at,
            }
            for node, item in sorted(heaviest.items())
        ],
    )


async def _publish(
    connection: AsyncConnection, record: DecisionRecord, owner: AnyRow, decision_id: str, generation: int
) -> None:
    await close_advice(
        connection,
        advice.c.job_key == record.key.job_key,
        advice.c.number == record.key.number,
        status=ReconciliationStatus.SUPERSEDED,
        reason=ReconciliationReason.NEWER_GENERATION,
        at=record.created_at,
        detail=f"by generation {generation}",
    )
    await connection.execute(
        upsert(advice).values(
            decision_id=decision_id,
            cluster=owner.cluster,
            job_key=record.key.job_key,
            number=record.key.number,
            generation=generation,
            action=record.decision.action.value,
            created_at=record.created_at,
            expires_at=record.created_at + record.time_to_live,
            status=ReconciliationStatus.PENDING.value,
            open=True,
            applied=False,
        )
    )


def _names(*names: str) -> list[str]:
    return [storable(name) for name in dict.fromkeys(names)]


def _decisive_first(decision: Decision) -> tuple[Signal, ...]:
    rank = {signal_id: place for place, signal_id in enumerate(decision.attribution.evidence)}
    return tuple(sorted(decision.incident.signals, key=lambda signal: rank.get(signal.id, len(rank))))
