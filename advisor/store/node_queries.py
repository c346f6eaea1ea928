"""Audit of nodes: who was implicated, by what, what the history says now, and who fails again and again.

The list is of nodes with a history, newest implication first. That order changes whenever a node is implicated again,
so the first page fixes a head: later pages show the order as it was then, and no node is missed or seen twice.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import (
    ARRAY,
    FromClause,
    Select,
    Text,
    and_,
    cast,
    column,
    func,
    literal_column,
    select,
    true,
    tuple_,
)
from sqlalchemy.ext.asyncio import AsyncConnection

from advisor.core.history import HARDWARE, Lemon, NodeImplication, PastImplication, lemons, node_score, recurrence
from advisor.core.policy import Policy
from advisor.core.words import Category, NodeState, Role, Trust
from advisor.store.audit_filters import NOBODY, refuse
from advisor.store.ids import as_id
from advisor.store.open_advice import reference, reference_columns
from advisor.store.paging import Position, not_newer_than, older_than, page_size, read_cursor, write_cursor
from advisor.store.records import AuditFilter, ImplicationRow, LemonRow, Lemons, LemonsWanted, Listing, NodeRow, Page
from advisor.store.sql import AnyRow, any_text, of_attempt, storable
from advisor.store.tables import attempts, implications, node_states

_IMPLICATIONS_MAX = 100
_IMPLICATIONS_LISTED = 10  # with each node of a list
FAILURES_MAX = 20_000  # looked at for one list of lemons
_UNANSWERABLE = ("action", "reason", "mode", "status", "account", "array_job_id", "array_task")


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
    found = await _node_rows(connection, places, policy, now, _IMPLICATIONS_LISTED)
    return Listing(rows=tuple(found[place] for place in places), next_cursor=cursor)


async def get_node(
    connection: AsyncConnection, cluster: str, name: str, *, policy: Policy, now: datetime
) -> NodeRow | None:
    """None for a node that neither the scheduler nor any incident has named."""
    place = (storable(cluster), storable(name))
    row = (await _node_rows(connection, [place], policy, now, _IMPLICATIONS_MAX))[place]
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
    connection: AsyncConnection, places: Sequence[tuple[str, str]], policy: Policy, now: datetime, most: int
) -> Mapping[tuple[str, str], NodeRow]:
    if not places:
        return {}
    clusters, names = {cluster for cluster, _ in places}, {name for _, name in places}
    states = await _states(connection, clusters, names)
    newest = await _implications(connection, places, most)
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
    connection: AsyncConnection, places: Sequence[tuple[str, str]], most: int
) -> Mapping[tuple[str, str], list[ImplicationRow]]:
    """The newest ones of each, by one walk along the index per node: some nodes have thousands."""
    wanted = _wanted(places)
    own = implications.c
    newest = (
        select(implications)
        .where(own.cluster == wanted.c.cluster, own.node == wanted.c.node)
        .order_by(own.at.desc(), own.incident_id.desc())
        .limit(most)
        .lateral("newest")
    )
    found = await connection.execute(
        select(
            *(newest.c[name] for name in ("node", "incident_id", "category", "rule", "trust", "role", "weight", "at")),
            *reference_columns(),
        )
        .select_from(wanted)
        .join(newest, true())
        .join(attempts, of_attempt(attempts, newest))
        .order_by(newest.c.at.desc(), newest.c.incident_id.desc())
    )
    rows: dict[tuple[str, str], list[ImplicationRow]] = defaultdict(list)
    for row in found:
        rows[row.cluster, row.node].append(_implication(row))
    return rows


def _wanted(places: Sequence[tuple[str, str]]) -> FromClause:
    """As a table `places(cluster, node)`."""
    return (
        func.unnest(
            cast([cluster for cluster, _ in places], ARRAY(Text())), cast([name for _, name in places], ARRAY(Text()))
        )
        .table_valued(column("cluster", Text()), column("node", Text()), name="places")
        .render_derived()
    )


async def _history(
    connection: AsyncConnection, clusters: set[str], names: set[str], oldest: datetime
) -> Mapping[tuple[str, str], list[PastImplication]]:
    columns = implications.c
    history: dict[tuple[str, str], list[PastImplication]] = defaultdict(list)
    for row in await connection.execute(
        select(
            columns.cluster,
            columns.node,
            columns.job_key,
            columns.user_name,
            columns.trust,
            columns.unit,
            columns.weight,
            columns.at,
        ).where(
            and_(
                columns.cluster == any_text(clusters),
                columns.node == any_text(names),
                columns.at >= oldest,
                columns.weight > 0,
            )
        )
    ):
        history[row.cluster, row.node].append(past_implication(row))
    return history


def failures_statement(cluster: str, node: str, oldest: datetime, size: int) -> Select[Any]:
    """The newest failures of nodes' own hardware, of which trusted sources tell."""
    own = implications.c
    query = select(implications, *reference_columns()).join(attempts, of_attempt(attempts, implications))
    query = query.where(
        own.at >= oldest,
        own.role == Role.INITIATING.value,
        own.trust.in_([trust.value for trust in Trust if trust.trusted]),
        own.category.in_(sorted(category.value for category in HARDWARE)),
    )
    if cluster:
        query = query.where(own.cluster == storable(cluster))
    if node:
        query = query.where(own.node == storable(node))
    return query.order_by(own.at.desc(), own.incident_id.desc(), own.node.desc()).limit(size)


async def list_lemons(connection: AsyncConnection, wanted: LemonsWanted, *, policy: Policy, now: datetime) -> Lemons:
    """Nodes that failed by themselves at least so often within the window, worst first, with the evidence."""
    oldest = now - timedelta(days=policy.history_window_days)
    query = failures_statement(wanted.cluster, wanted.node, oldest, FAILURES_MAX + 1)
    rows = (await connection.execute(query)).all()
    capped = len(rows) > FAILURES_MAX
    of_cluster: dict[str, list[NodeImplication]] = defaultdict(list)
    shown: dict[tuple[str, str], ImplicationRow] = {}
    for row in rows[:FAILURES_MAX]:
        shown[row.incident_id, row.node] = _implication(row)
        of_cluster[row.cluster].append(
            NodeImplication(
                node=row.node,
                incident=row.incident_id,
                job=row.job_key,
                weight=row.weight,
                at=row.at,
                trust=Trust(row.trust),
                role=Role(row.role),
                category=Category(row.category),
                rule=row.rule,
                user=row.user_name,
            )
        )
    ranked = [
        (cluster, lemon)
        for cluster, items in of_cluster.items()
        for lemon in lemons(items, now, policy, failures_min=wanted.failures_min)
    ]
    ranked.sort(key=lambda item: (-item[1].score, item[0], item[1].node))
    ranked = ranked[: wanted.limit]
    states = await _states(connection, {c for c, _ in ranked}, {lemon.node for _, lemon in ranked})
    return Lemons(
        rows=tuple(_lemon(cluster, lemon, shown, states.get((cluster, lemon.node)), now) for cluster, lemon in ranked),
        capped=capped,
    )


def _lemon(
    cluster: str, lemon: Lemon, shown: Mapping[tuple[str, str], ImplicationRow], state: AnyRow | None, now: datetime
) -> LemonRow:
    up = state is not None and state.state == NodeState.UP.value
    since = state.since if state is not None and up else None
    days = max((now - since) / timedelta(days=1), 0.0) if since is not None else None
    return LemonRow(
        cluster=cluster,
        name=lemon.node,
        score=lemon.score,
        jobs=lemon.jobs,
        users=lemon.users,
        failures=tuple(shown[item.incident, item.node] for item in lemon.failures[:_IMPLICATIONS_MAX]),
        up_since=since,
        fails_within_week=recurrence(days) if days is not None else None,
    )


async def _states(connection: AsyncConnection, clusters: set[str], names: set[str]) -> Mapping[tuple[str, str], AnyRow]:
    if not names:
        return {}
    query = select(node_states).where(
        node_states.c.cluster == any_text(clusters), node_states.c.name == any_text(names)
    )
    return {(row.cluster, row.name): row for row in await connection.execute(query)}


def _implication(row: AnyRow) -> ImplicationRow:
    return ImplicationRow(
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


def past_implication(row: AnyRow) -> PastImplication:
    return PastImplication(
        job=row.job_key,
        weight=row.weight,
        at=row.at,
        user=row.user_name,
        trusted=Trust(row.trust).trusted,
        unit=row.unit,
    )
