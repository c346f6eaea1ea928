"""Committing decisions: everything each rests on and everything that follows from it, in one transaction.

Many at once, since a fabric event lets a thousand jobs fail together: one statement per table, whatever the number. A
decision that is in conflict is left out and the others are committed; one decision is always there whole or not at all.
Locks are taken in one order by all writers (attempts, then advice, then incidents, each by its key), so that two that
commit, or a commit and an acknowledgement, never wait in a circle.
"""

import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TypeAlias

from sqlalchemy import select, update
from sqlalchemy.dialects.postgresql import insert as upsert
from sqlalchemy.ext.asyncio import AsyncConnection

from advisor.core.codec import content_hash, encode
from advisor.store.audit_log import append_all
from advisor.store.errors import Conflict, NotFound
from advisor.store.ids import content_id
from advisor.store.incidents import Noticed, write_incidents
from advisor.store.leases import Fence
from advisor.store.milestones import record_milestones
from advisor.store.open_advice import supersede
from advisor.store.records import AttemptKey, AuditEvent, CommittedDecision, DecisionRecord, ReconciliationStatus
from advisor.store.sql import AnyRow, any_id, of_attempt, storable, storable_names, wanted_attempts
from advisor.store.tables import advice, attempts, blobs, decisions

_KNOWN_MAX = 1000
_KNOWN_FOR = timedelta(days=1)

Outcome: TypeAlias = CommittedDecision | Conflict | NotFound


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """One record with what can be made of it without the database."""

    record: DecisionRecord
    decision: bytes
    inputs_hash: str
    rules_hash: str
    policy_hash: str
    decision_id: str

    @property
    def generation(self) -> int:
        return self.record.seen_generation + 1

    @property
    def hashes(self) -> tuple[str, str, str]:
        return (self.inputs_hash, self.rules_hash, self.policy_hash)

    @property
    def committed(self) -> CommittedDecision:
        return CommittedDecision(decision_id=self.decision_id, generation=self.generation)


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Prepared records in the order that they came in, and their content: compressed, by hash."""

    items: tuple[Prepared, ...]
    packed: Mapping[str, bytes]
    plain_bytes: Mapping[str, int]

    @classmethod
    def of(cls, records: Sequence[DecisionRecord], *, incarnation: str, known: frozenset[str]) -> "Batch":
        """`known`: hashes that the store already holds; they are not packed again. Slow: not for the event loop.

        Raises `CodecError`, and ValueError for two decisions about one attempt.
        """
        if len({record.key for record in records}) < len(records):
            raise ValueError("two decisions about one attempt in one batch")
        names: dict[bytes, str] = {}  # rules and policy come again with every record
        items = []
        for record in records:
            for part in (record.inputs, record.rules, record.policy):
                if part not in names:
                    names[part] = content_hash(part)
            items.append(_prepared(record, names, incarnation))
        return cls(
            items=tuple(items),
            packed={name: zlib.compress(part) for part, name in names.items() if name not in known},
            plain_bytes={name: len(part) for part, name in names.items()},
        )


def _prepared(record: DecisionRecord, names: Mapping[bytes, str], incarnation: str) -> Prepared:
    decision = encode(record.decision)
    hashes = (names[record.inputs], names[record.rules], names[record.policy])
    return Prepared(
        record=record,
        decision=decision,
        inputs_hash=hashes[0],
        rules_hash=hashes[1],
        policy_hash=hashes[2],
        decision_id=content_id(
            "decision",
            incarnation,
            record.key.job_key,
            record.key.number,
            record.seen_generation + 1,
            *hashes,
            content_hash(decision),
        ),
    )


@dataclass(slots=True)
class KnownContent:
    """Content that is surely stored, for decisions of ours refer to it, and need not be packed again."""

    _referred: Mapping[str, datetime] = field(default_factory=dict)  # when last, by hash

    def of(self, records: Iterable[DecisionRecord]) -> frozenset[str]:
        """Where decisions that refer to it are too young for retention to have dropped."""
        now = max((record.created_at for record in records), default=None)
        return frozenset(name for name, at in self._referred.items() if now is not None and now - at < _KNOWN_FOR)

    def keep(self, batch: Batch, outcomes: Sequence[Outcome]) -> None:
        """What was committed: only now it is surely there. Rules and policy come again with every decision."""
        common = {
            name: item.record.created_at
            for item, outcome in zip(batch.items, outcomes, strict=True)
            if isinstance(outcome, CommittedDecision)
            for name in (item.rules_hash, item.policy_hash)
        }
        kept = self._referred if len(self._referred) < _KNOWN_MAX else {}
        self._referred = {**kept, **common}


async def commit_decisions(
    connection: AsyncConnection, batch: Batch, *, incarnation: str, fence: Fence | None = None
) -> tuple[Outcome, ...]:
    """One outcome per record, in order. The same record again gives the same answer and changes nothing.

    `fence`: which replica decided, by which lease; the caller has seen that it holds.
    """
    owners = await _lock_attempts(connection, [item.record.key for item in batch.items])
    again = [item for item in batch.items if _generation(owners, item) == item.generation]
    kept = await _existing(connection, [item.decision_id for item in again])
    outcomes: list[Outcome] = []
    due: list[Noticed] = []
    for item in batch.items:
        key, owner = item.record.key, owners.get(item.record.key)
        if owner is None:
            outcomes.append(NotFound(f"no attempt {key}"))
        elif owner.generation == item.record.seen_generation and owner.orders == item.record.seen_orders:
            due.append(Noticed(record=item.record, owner=owner, decision_id=item.decision_id))
            outcomes.append(item.committed)
        elif item.decision_id in kept:
            outcomes.append(item.committed)
        else:
            outcomes.append(Conflict(str(key), seen=item.record.seen_generation, newest=owner.generation))
    if due:
        prepared = {item.decision_id: item for item in batch.items}
        written = [(prepared[item.decision_id], item) for item in due]
        await _write(connection, batch, written, incarnation=incarnation, fence=fence)
    return tuple(outcomes)


def _generation(owners: Mapping[AttemptKey, AnyRow], item: Prepared) -> int | None:
    owner = owners.get(item.record.key)
    return None if owner is None else owner.generation


async def _lock_attempts(connection: AsyncConnection, keys: Sequence[AttemptKey]) -> Mapping[AttemptKey, AnyRow]:
    wanted = wanted_attempts(keys)
    found = await connection.execute(
        select(
            attempts.c.job_key,
            attempts.c.number,
            attempts.c.generation,
            attempts.c.orders,
            attempts.c.cluster,
            attempts.c.job_id,
            attempts.c.user_name,
            attempts.c.account,
            attempts.c.partition,
        )
        .join(wanted, of_attempt(attempts, wanted))
        .order_by(attempts.c.job_key, attempts.c.number)
        .with_for_update(of=attempts)
    )
    return {AttemptKey(job_key=row.job_key, number=row.number): row for row in found}


async def _existing(connection: AsyncConnection, ids: Sequence[str]) -> frozenset[str]:
    if not ids:
        return frozenset()
    found = await connection.execute(select(decisions.c.id).where(decisions.c.id == any_id(ids)))
    return frozenset(found.scalars())


async def _write(
    connection: AsyncConnection,
    batch: Batch,
    due: Sequence[tuple[Prepared, Noticed]],
    *,
    incarnation: str,
    fence: Fence | None,
) -> None:
    """What was not there before, of decisions whose attempts are locked."""
    due = sorted(due, key=lambda pair: pair[1].record.key)
    records = {item.record.key: item.record for item, _ in due}
    await _write_content(connection, batch, due)
    newer = {key: (record.seen_generation + 1, record.created_at) for key, record in records.items()}
    await supersede(connection, newer)
    incident_ids = await write_incidents(connection, [noticed for _, noticed in due])
    await connection.execute(
        upsert(decisions),
        [
            {
                **_decision_values(item.record, noticed.owner, incident_ids[item.record.key]),
                "id": item.decision_id,
                "generation": item.generation,
                "incarnation": incarnation,
                "decision": item.decision,
                "inputs_hash": item.inputs_hash,
                "rules_hash": item.rules_hash,
                "policy_hash": item.policy_hash,
            }
            for item, noticed in due
        ],
    )
    wanted = wanted_attempts(list(records))
    # They are locked, and at the generation that was seen, with the orders that were.
    counted = {"generation": attempts.c.generation + 1, "orders_decided": attempts.c.orders}
    await connection.execute(update(attempts).where(of_attempt(attempts, wanted)).values(**counted))
    await connection.execute(upsert(advice), [_advice_values(item, noticed.owner) for item, noticed in due])
    await record_milestones(connection, {key: record.milestones for key, record in records.items()})
    await append_all(connection, [_audit(item, noticed.owner, fence) for item, noticed in due])


async def _write_content(connection: AsyncConnection, batch: Batch, due: Iterable[tuple[Prepared, Noticed]]) -> None:
    """In one order for all writers: two that share content never wait in a circle."""
    created: dict[str, datetime] = {}
    for item, _ in due:
        for name in item.hashes:
            if name in batch.packed:
                created.setdefault(name, item.record.created_at)
    if created:
        await connection.execute(
            upsert(blobs).on_conflict_do_nothing(),
            [
                {"hash": name, "bytes": batch.packed[name], "plain_bytes": batch.plain_bytes[name], "created_at": at}
                for name, at in sorted(created.items())
            ],
        )


def _decision_values(record: DecisionRecord, owner: AnyRow, incident_id: str | None) -> dict[str, object]:
    decision = record.decision
    implicated = storable_names(*decision.attribution.nodes)
    return {
        "job_key": record.key.job_key,
        "number": record.key.number,
        "cluster": owner.cluster,
        "job_id": owner.job_id,
        "user_name": owner.user_name,
        "account": owner.account,
        "partition": owner.partition,
        "category": decision.attribution.category.value,
        "action": decision.action.value,
        "reason": decision.reason.value,
        "mode": decision.mode.value,
        "nodes": storable_names(
            *implicated,
            *(item.node for item in decision.attribution.implications),
            *decision.isolation.exclude_for_job,
            *decision.isolation.isolate_for_cluster,
        ),
        "fingerprint": storable(decision.attribution.fingerprint),
        "settled": decision.settled,
        "trusted": decision.attribution.trusted,
        "implicated_nodes": implicated,
        "excluded_nodes": storable_names(*decision.isolation.exclude_for_job),
        "incident_id": incident_id,
        "analysis": storable(record.analysis_json),
        "build": record.build,
        "created_at": record.created_at,
        "expires_at": record.created_at + record.time_to_live,
    }


def _advice_values(item: Prepared, owner: AnyRow) -> dict[str, object]:
    record = item.record
    return {
        "decision_id": item.decision_id,
        "cluster": owner.cluster,
        "job_key": record.key.job_key,
        "number": record.key.number,
        "generation": item.generation,
        "action": record.decision.action.value,
        "created_at": record.created_at,
        "expires_at": record.created_at + record.time_to_live,
        "status": ReconciliationStatus.PENDING.value,
        "open": True,
        "applied": False,
    }


def _audit(item: Prepared, owner: AnyRow, fence: Fence | None) -> AuditEvent:
    record = item.record
    by = (
        {"replica": fence.replica_id, "epoch": str(fence.epochs.get(record.key.job_key, 0))}
        if fence is not None
        else {}
    )
    return AuditEvent(
        at=record.created_at,
        who=record.who,
        what="decision_committed",
        why=record.decision.reason.value,
        cluster=owner.cluster,
        subject=item.decision_id,
        detail={
            "attempt": str(record.key),
            "job_id": owner.job_id,
            "generation": str(item.generation),
            "action": record.decision.action.value,
            "category": record.decision.attribution.category.value,
            "mode": record.decision.mode.value,
            **by,
        },
    )
