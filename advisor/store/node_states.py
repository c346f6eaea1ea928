"""Recording nodes as the scheduler shows them, and every change of theirs.

A change is kept for good: it tells later what people or their tools did to a node, and what became of it.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta

from sqlalchemy import and_, insert, select
from sqlalchemy.dialects.postgresql import insert as upsert
from sqlalchemy.ext.asyncio import AsyncConnection

from advisor.core.words import NodeState
from advisor.store.merging import LATE_AT_MOST
from advisor.store.node_book import NodeBook
from advisor.store.records import AttemptKey, ObservedNode
from advisor.store.sql import AnyRow, any_text, storable, text_array
from advisor.store.tables import attempts, node_changes, node_states

_REASON_CHARACTERS_MAX = 1024
# Left by somebody's hand only. A node that was DOWN may come back by itself, repaired or not.
_DRAINED = frozenset({NodeState.DRAINED, NodeState.DRAINING})
_OUT_OF_SERVICE = _DRAINED | {NodeState.DOWN}


def node_rows() -> NodeBook:
    """What reports are compared with."""
    return NodeBook(
        columns=("cluster", "name", "state", "reason", "partitions", "since", "observed_at", "reinstated_at")
    )


async def record_nodes(
    connection: AsyncConnection, cluster: str, observed: Sequence[ObservedNode], book: NodeBook
) -> tuple[AttemptKey, ...]:
    """Write changed nodes. Returns the open attempts that run on a node whose state changed.

    `book`: of `node_rows`, used for this cluster alone, within the lock of its reports.
    """
    if not observed:
        return ()
    await book.refresh(connection, (cluster,))
    once = len({node.name for node in observed}) == len(observed)
    newest: dict[str, ObservedNode] = {}
    for node in observed:
        if once and _as_known(book.rows.get((cluster, node.name)), node):
            continue
        name = storable(node.name)
        if name not in newest or newest[name].observed_at <= node.observed_at:
            newest[name] = node
    rows, changed, history = [], [], []
    for name, node in newest.items():
        before = book.rows.get((cluster, name))
        if before is not None and timedelta(0) < before.observed_at - node.observed_at <= LATE_AT_MOST:
            continue
        same_state = before is not None and before.state == node.state.value
        partitions = [storable(partition) for partition in node.partitions]
        reason = storable(node.reason)[:_REASON_CHARACTERS_MAX]
        if before is not None and same_state and (before.reason, before.partitions) == (reason, partitions):
            continue
        if before is not None and not same_state:
            changed.append(name)
        if _worth_keeping(before, node.state, reason):
            history.append(
                {
                    "cluster": cluster,
                    "name": name,
                    "before": None if before is None else before.state,
                    "state": node.state.value,
                    "reason": reason,
                    "at": node.observed_at,
                }
            )
        rows.append(
            {
                "cluster": cluster,
                "name": name,
                "state": node.state.value,
                "reason": reason,
                "partitions": partitions,
                "since": before.since if before is not None and same_state else node.observed_at,
                "observed_at": node.observed_at,
                "reinstated_at": _reinstated(before, node),
            }
        )
    if rows:
        statement = upsert(node_states)
        columns = ("state", "reason", "partitions", "since", "observed_at", "reinstated_at")
        await connection.execute(
            statement.on_conflict_do_update(
                index_elements=["cluster", "name"], set_={name: statement.excluded[name] for name in columns}
            ),
            rows,
        )
    if history:
        await connection.execute(insert(node_changes), history)
    if not changed:
        return ()
    touched = await connection.execute(
        select(attempts.c.job_key, attempts.c.number).where(
            and_(attempts.c.open, attempts.c.cluster == cluster, attempts.c.nodes.overlap(text_array(changed)))
        )
    )
    return tuple(AttemptKey(job_key=row.job_key, number=row.number) for row in touched)


def _as_known(before: AnyRow | None, node: ObservedNode) -> bool:
    """Nothing is new of it. True of nearly all, so it is asked first."""
    return (
        before is not None
        and before.state == node.state
        and before.reason == node.reason
        and before.partitions == list(node.partitions)
    )


def _worth_keeping(before: AnyRow | None, state: NodeState, reason: str) -> bool:
    """A change of state, and of the reason of what is out of service. A node that is first seen up has not changed."""
    if before is None:
        return state is not NodeState.UP
    return before.state != state.value or (state in _OUT_OF_SERVICE and before.reason != reason)


async def reinstated(
    connection: AsyncConnection, clusters: Iterable[str], names: Iterable[str]
) -> Mapping[str, Mapping[str, datetime]]:
    """When those of the nodes that were ever put back were last put back: by cluster, then by name."""
    found = await connection.execute(
        select(node_states.c.cluster, node_states.c.name, node_states.c.reinstated_at).where(
            node_states.c.cluster == any_text(clusters),
            node_states.c.name == any_text(names),
            node_states.c.reinstated_at.is_not(None),
        )
    )
    times: dict[str, dict[str, datetime]] = {}
    for row in found:
        times.setdefault(row.cluster, {})[row.name] = row.reinstated_at
    return times


def _reinstated(before: AnyRow | None, node: ObservedNode) -> datetime | None:
    if before is None:
        return None
    put_back = NodeState(before.state) in _DRAINED and node.state is NodeState.UP
    return node.observed_at if put_back else before.reinstated_at
