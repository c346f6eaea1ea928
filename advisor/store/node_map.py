"""Every node at one glance: its state, its score and whether we keep it out, for a map of thousands."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncConnection

from advisor.core.history import PastImplication, node_score
from advisor.core.policy import Policy
from advisor.core.words import NodeState
from advisor.store.node_queries import past_implication
from advisor.store.sql import AnyRow, storable
from advisor.store.tables import implications, isolations, node_states

NODES_MAX = 20_000
IMPLICATIONS_MAX = 100_000  # newest first: those left out weigh the least

_Place = tuple[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class MappedNode:
    """One node of the map. `incidents`: implications within the history window; `isolated`: by us, and not ended."""

    cluster: str
    name: str
    state: NodeState
    reason: str  # the scheduler's, of its state
    partitions: tuple[str, ...]
    score: float  # decayed, now
    incidents: int
    isolated: bool
    dry_run: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeMap:
    """By cluster and name. `capped`: there are more nodes than a map shows."""

    nodes: tuple[MappedNode, ...]
    capped: bool


async def node_map(connection: AsyncConnection, cluster: str, *, policy: Policy, now: datetime) -> NodeMap:
    """All nodes of one cluster ("": of all) that the scheduler shows, that were implicated or are isolated."""
    states = await _states(connection, cluster)
    capped = len(states) > NODES_MAX
    history = await _history(connection, cluster, now - timedelta(days=policy.history_window_days))
    held = await _held(connection, cluster)
    places = sorted(states)[:NODES_MAX] if capped else sorted({*states, *history, *held})
    return NodeMap(
        nodes=tuple(
            _node(place, states.get(place), history.get(place, []), held.get(place), policy, now) for place in places
        ),
        capped=capped,
    )


def _node(
    place: _Place,
    state: AnyRow | None,
    past: list[PastImplication],
    held: AnyRow | None,
    policy: Policy,
    now: datetime,
) -> MappedNode:
    return MappedNode(
        cluster=place[0],
        name=place[1],
        state=NodeState(state.state) if state is not None else NodeState.OTHER,
        reason=state.reason if state is not None else "",
        partitions=tuple(state.partitions) if state is not None else (),
        score=node_score(past, now, policy) if past else 0.0,
        incidents=len(past),
        isolated=held is not None,
        dry_run=held is not None and held.dry_run,
    )


async def _states(connection: AsyncConnection, cluster: str) -> Mapping[_Place, AnyRow]:
    columns = node_states.c
    query = select(columns.cluster, columns.name, columns.state, columns.reason, columns.partitions)
    if cluster:
        query = query.where(columns.cluster == storable(cluster))
    found = await connection.execute(query.order_by(columns.cluster, columns.name).limit(NODES_MAX + 1))
    return {(row.cluster, row.name): row for row in found}


async def _history(
    connection: AsyncConnection, cluster: str, oldest: datetime
) -> Mapping[_Place, list[PastImplication]]:
    columns = implications.c
    query = select(
        columns.cluster,
        columns.node,
        columns.job_key,
        columns.user_name,
        columns.trust,
        columns.unit,
        columns.weight,
        columns.at,
    ).where(columns.at >= oldest, columns.weight > 0)
    if cluster:
        query = query.where(columns.cluster == storable(cluster))
    newest = query.order_by(columns.at.desc(), columns.incident_id.desc(), columns.node.desc()).limit(IMPLICATIONS_MAX)
    past: dict[_Place, list[PastImplication]] = defaultdict(list)
    for row in await connection.execute(newest):
        past[row.cluster, row.node].append(past_implication(row))
    return past


async def _held(connection: AsyncConnection, cluster: str) -> Mapping[_Place, AnyRow]:
    columns = isolations.c
    query = select(columns.cluster, columns.node, columns.dry_run).where(columns.open, columns.ended_at.is_(None))
    if cluster:
        query = query.where(columns.cluster == storable(cluster))
    return {(row.cluster, row.node): row for row in await connection.execute(query.limit(NODES_MAX))}
