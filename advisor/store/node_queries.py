"""Audit of nodes: who was implicated, by what, and what the history says now.

The list is of nodes with a history, newest implication first. That order changes whenever a node is implicated again,
so the first page fixes a head: later pages show the order as it was then, and no node is missed or seen twice.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Select, and_, func, literal_column, select, tuple_
from sqlalchemy.ext.asyncio import AsyncConnection

from advisor.core.history import PastImplication, node_score
from advisor.core.policy import Policy
from advisor.core.words import NodeState
from advisor.store.audit_queries import NOBODY, refuse
from advisor.store.ids import as_id
from advisor.store.open_advice import reference, reference_columns
from advisor.store.paging import Position, not_newer_than, older_than, page_size, read_cursor, write_cursor
from advisor.store.records import AuditFilter, ImplicationRow, Listing, NodeRow, Page
from advisor.store.sql import AnyRow, any_text, of_attempt, storable
from advisor.store.tables import attempts, implications, node_states

_IMPLICATIONS_MAX = 100
_UNANSWERABLE = ("action", "reason", "mode", "status")


def nodes_statement(wanted: AuditFilter, position: Position | None, size: int) -> Select[Any]:
    """The newest matching implication of each node, newest first."""
    own = implications
    later = implications.alias("later")
    head = position.first if position is not None else None
    no_later = ~(
        select(literal_column("1"))
        .select_from(later)
        .where(
            later.c.cluster == own.c.cluster,
            later.c.node == own.c.node,
            tuple_(later.c.at, later.c.incident_id) > tuple_(own.c.at, own.c.incident_id),
            *_matching(wanted, later.c),
            *([not_newer_than((later.c.at, later.c.incident_id, later.c.node), head)] if head is not None else []),
        )
        .exists()
    )
    order = (own.c.at, own.c.incident_id, own.c.node)
    query = select(own.c.cluster, own.c.node, own.c.at, own.c.incident_id).where(no_later, *_matching(wanted, own.c))
    if position is not None:
        query = query.where(older_than(order, position))
    return query.order_by(*(column.desc() for column in order)).limit(size + 1)


async def list_nodes(
    connection: AsyncConnection, wanted: AuditFilter, page: Page, *, policy: Policy, now: datetime
) -> Listing[NodeRow]:
    refuse(wanted, _UNANSWERABLE, "nodes")
    size = page_size(page)
    position = read_cursor("nodes", wanted, page, (str, str))
    rows = (await connection.execute(nodes_statement(wanted, position, size))).all()
    kept, cursor = rows[:size], ""
    if len(rows) > size:
        head = (
            position.first
            if position is not None and position.first
            else (kept[0].at, (kept[0].incident_id, kept[0].node))
        )
        last = kept[-1]
        cursor = write_cursor("nodes", wanted, Position(at=last.at, ids=(last.incident_id, last.node), first=head))
    places = [(row.cluster, row.node) for row in kept]
    found = await _node_rows(connection, places, policy, now)
    return Listing(rows=tuple(found[place] for place in places), next_cursor=cursor)


async def get_node(
    connection: AsyncConnection, cluster: str, name: str, *, policy: Policy, now: datetime
) -> NodeRow | None:
    """None for a node that neither the scheduler nor any incident has named."""
    place = (storable(cluster), storable(name))
    row = (await _node_rows(connection, [place], policy, now))[place]
    return row if row.implications or row.state_since is not None else None


def _matching(wanted: AuditFilter, columns: Any) -> list[Any]:
    pairs = (
        (wanted.cluster, columns.cluster),
        (wanted.node, columns.node),
        (wanted.job_id, columns.job_id),
        (wanted.user, columns.user_name),
        (wanted.partition, columns.partition),
        (wanted.category, columns.category),
    )
    conditions = [column == storable(value) for value, column in pairs if value]
    if wanted.job_key:
        conditions.append(columns.job_key == (as_id(wanted.job_key) or NOBODY))
    if wanted.since is not None:
        conditions.append(columns.at >= wanted.since)
    if wanted.until is not None:
        conditions.append(columns.at < wanted.until)
    return conditions


async def _node_rows(
    connection: AsyncConnection, places: Sequence[tuple[str, str]], policy: Policy, now: datetime
) -> Mapping[tuple[str, str], NodeRow]:
    if not places:
        return {}
    clusters, names = {cluster for cluster, _ in places}, {name for _, name in places}
    states: dict[tuple[str, str], AnyRow] = {}
    for row in await connection.execute(
        select(node_states).where(node_states.c.cluster == any_text(clusters), node_states.c.name == any_text(names))
    ):
        states[row.cluster, row.name] = row
    newest = await _implications(connection, clusters, names)
    history = await _history(connection, clusters, names, now - timedelta(days=policy.history_window_days))
    return {
        place: NodeRow(
            cluster=place[0],
            name=place[1],
            state=NodeState(states[place].state) if place in states else NodeState.OTHER,
            state_since=states[place].since if place in states else None,
            implications=tuple(newest[place]),
            last_implicated_at=newest[place][0].at if newest[place] else None,
            score=node_score(history[place], now, policy),
        )
        for place in places
    }


async def _implications(
    connection: AsyncConnection, clusters: set[str], names: set[str]
) -> Mapping[tuple[str, str], list[ImplicationRow]]:
    place = func.row_number().over(
        partition_by=(implications.c.cluster, implications.c.node),
        order_by=(implications.c.at.desc(), implications.c.incident_id.desc()),
    )
    ranked = (
        select(implications, place.label("place"))
        .where(implications.c.cluster == any_text(clusters), implications.c.node == any_text(names))
        .subquery("ranked")
    )
    found = await connection.execute(
        select(
            *(ranked.c[name] for name in ("node", "incident_id", "category", "rule", "trust", "role", "weight", "at")),
            *reference_columns(),
        )
        .select_from(ranked)
        .join(attempts, of_attempt(attempts, ranked))
        .where(ranked.c.place <= _IMPLICATIONS_MAX)
        .order_by(ranked.c.at.desc(), ranked.c.incident_id.desc())
    )
    rows: dict[tuple[str, str], list[ImplicationRow]] = defaultdict(list)
    for row in found:
        rows[row.cluster, row.node].append(
            ImplicationRow(
                node=row.node,
                incident_id=row.incident_id,
                attempt=reference(row),
                category=row.category,
                rule=row.rule,
                trust=row.trust,
                role=row.role,
                weight=row.weight,
                at=row.at,
            )
        )
    return rows


async def _history(
    connection: AsyncConnection, clusters: set[str], names: set[str], oldest: datetime
) -> Mapping[tuple[str, str], list[PastImplication]]:
    columns = implications.c
    history: dict[tuple[str, str], list[PastImplication]] = defaultdict(list)
    for row in await connection.execute(
        select(columns.cluster, columns.node, columns.job_key, columns.weight, columns.at).where(
            and_(
                columns.cluster == any_text(clusters),
                columns.node == any_text(names),
                columns.at >= oldest,
                columns.weight > 0,
            )
        )
    ):
        history[row.cluster, row.node].append(PastImplication(job=row.job_key, weight=row.weight, at=row.at))
    return history
