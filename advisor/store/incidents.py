"""Incidents and the nodes that they implicate, as newly committed decisions see them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import ARRAY, DateTime, Text, Uuid, cast, column, exists, func, update
from sqlalchemy.dialects.postgresql import insert as upsert
from sqlalchemy.ext.asyncio import AsyncConnection

from advisor.core.model import Decision, Implication, Signal
from advisor.core.words import IncidentKind
from advisor.store.documents import pack_signals
from advisor.store.ids import content_id
from advisor.store.records import AttemptKey, DecisionRecord
from advisor.store.sql import AnyRow, any_id, storable, storable_names
from advisor.store.tables import implications, incidents

_IDS = ARRAY(Uuid(as_uuid=False))


@dataclass(frozen=True, slots=True, kw_only=True)
class Noticed:
    """A decision that is being committed. `owner`: its attempt's row, locked."""

    record: DecisionRecord
    owner: AnyRow
    decision_id: str

    @property
    def incident_id(self) -> str:
        """Each attempt has one incident."""
        return content_id("incident", self.record.key.job_key, self.record.key.number)

    @property
    def wrong(self) -> bool:
        return self.record.decision.incident.kind is not IncidentKind.NONE


async def write_incidents(connection: AsyncConnection, noticed: Sequence[Noticed]) -> Mapping[AttemptKey, str | None]:
    """Each attempt's one incident, as its decision sees it. None when nothing is wrong and nothing ever was."""
    noticed = sorted(noticed, key=lambda item: item.incident_id)
    closed = await _close(connection, [item for item in noticed if not item.wrong])
    written = [item for item in noticed if item.wrong]
    if written:
        statement = upsert(incidents)
        changing = ("kind", "category", "root_cause", "closed_at", "implicated_nodes", "signals", "decision_id")
        await connection.execute(
            statement.on_conflict_do_update(
                index_elements=["id"], set_={name: statement.excluded[name] for name in changing}
            ),
            [_incident_values(item) for item in written],
        )
    present = [item for item in noticed if item.wrong or item.incident_id in closed]
    await _write_implications(connection, present)
    found: dict[AttemptKey, str | None] = dict.fromkeys(item.record.key for item in noticed)
    return found | {item.record.key: item.incident_id for item in present}


async def _close(connection: AsyncConnection, healthy: Sequence[Noticed]) -> frozenset[str]:
    """Incidents that are not seen any more; returns which of them there are."""
    if not healthy:
        return frozenset()
    given = (
        func.unnest(
            cast([item.incident_id for item in healthy], _IDS),
            cast([item.decision_id for item in healthy], _IDS),
            cast([item.record.created_at for item in healthy], ARRAY(DateTime(timezone=True))),
        )
        .table_valued(
            column("id", Uuid(as_uuid=False)),
            column("decision_id", Uuid(as_uuid=False)),
            column("closed_at", DateTime(timezone=True)),
            name="healthy",
        )
        .render_derived()
    )
    found = await connection.execute(
        update(incidents)
        .where(incidents.c.id == given.c.id)
        .values(closed_at=given.c.closed_at, decision_id=given.c.decision_id)
        .returning(incidents.c.id)
    )
    return frozenset(found.scalars())


def _incident_values(item: Noticed) -> dict[str, object]:
    record, decision, owner = item.record, item.record.decision, item.owner
    return {
        "id": item.incident_id,
        "job_key": record.key.job_key,
        "number": record.key.number,
        "cluster": owner.cluster,
        "job_id": owner.job_id,
        "user_name": owner.user_name,
        "account": owner.account,
        "partition": owner.partition,
        "kind": decision.incident.kind.value,
        "category": decision.attribution.category.value,
        "root_cause": storable(decision.attribution.root_cause),
        "opened_at": decision.incident.detected_at or record.created_at,
        "closed_at": None,
        "implicated_nodes": storable_names(*decision.attribution.nodes),
        "signals": pack_signals(_decisive_first(decision)),
        "decision_id": item.decision_id,
    }


async def _write_implications(connection: AsyncConnection, noticed: Sequence[Noticed]) -> None:
    """One row per node and incident. A node that is no longer named keeps its row, with no weight."""
    if not noticed:
        return
    rows = [(item, node, implication) for item in noticed for node, implication in sorted(_heaviest(item).items())]
    named = (
        func.unnest(
            cast([item.incident_id for item, _, _ in rows], _IDS),
            cast([node for _, node, _ in rows], ARRAY(Text())),
        )
        .table_valued(column("incident_id", Uuid(as_uuid=False)), column("node", Text()), name="named")
        .render_derived()
    )
    still = (
        exists()
        .select_from(named)
        .where(named.c.incident_id == implications.c.incident_id, named.c.node == implications.c.node)
    )
    await connection.execute(
        update(implications)
        .where(
            implications.c.incident_id == any_id(item.incident_id for item in noticed),
            implications.c.weight != 0,
            ~still,
        )
        .values(weight=0.0)
    )
    if not rows:
        return
    statement = upsert(implications)
    changing = ("weight", "trust", "role", "category", "rule", "unit")
    await connection.execute(
        statement.on_conflict_do_update(
            index_elements=["incident_id", "node"], set_={name: statement.excluded[name] for name in changing}
        ),
        [_implication_values(item, node, implication) for item, node, implication in rows],
    )


def _heaviest(item: Noticed) -> Mapping[str, Implication]:
    """By node."""
    if not item.wrong:
        return {}
    ordered = sorted(item.record.decision.attribution.implications, key=lambda implication: implication.weight)
    return {storable(implication.node): implication for implication in ordered}


def _implication_values(item: Noticed, node: str, implication: Implication) -> dict[str, object]:
    owner, key = item.owner, item.record.key
    return {
        "incident_id": item.incident_id,
        "node": node,
        "cluster": owner.cluster,
        "job_key": key.job_key,
        "number": key.number,
        "job_id": owner.job_id,
        "user_name": owner.user_name,
        "partition": owner.partition,
        "weight": implication.weight,
        "trust": implication.trust.value,
        "role": implication.role.value,
        "category": implication.category.value,
        "rule": storable(implication.rule),
        "unit": storable(implication.unit),
        "at": item.record.created_at,
    }


def _decisive_first(decision: Decision) -> tuple[Signal, ...]:
    rank = {signal_id: place for place, signal_id in enumerate(decision.attribution.evidence)}
    return tuple(sorted(decision.incident.signals, key=lambda signal: rank.get(signal.id, len(rank))))
