"""Recording nodes as the scheduler shows them."""

from collections.abc import Mapping, Sequence

from sqlalchemy import and_, select
from sqlalchemy.dialects.postgresql import insert as upsert
from sqlalchemy.ext.asyncio import AsyncConnection

from advisor.store.records import AttemptKey, ObservedNode
from advisor.store.sql import AnyRow, any_text, storable, text_array
from advisor.store.tables import attempts, node_states

_REASON_CHARACTERS_MAX = 1024


async def record_nodes(
    connection: AsyncConnection, cluster: str, observed: Sequence[ObservedNode]
) -> tuple[AttemptKey, ...]:
    """Write changed nodes. Returns the open attempts that run on a node whose state changed."""
    newest: dict[str, ObservedNode] = {}
    for node in observed:
        name = storable(node.name)
        if name not in newest or newest[name].observed_at <= node.observed_at:
            newest[name] = node
    if not newest:
        return ()
    found = await connection.execute(
        select(node_states).where(node_states.c.cluster == cluster, node_states.c.name == any_text(newest))
    )
    known: Mapping[str, AnyRow] = {row.name: row for row in found}
    rows, changed = [], []
    for name, node in newest.items():
        before = known.get(name)
        if before is not None and before.observed_at > node.observed_at:
            continue
        same_state = before is not None and before.state == node.state.value
        partitions = [storable(partition) for partition in node.partitions]
        reason = storable(node.reason)[:_REASON_CHARACTERS_MAX]
        if before is not None and same_state and (before.reason, before.partitions) == (reason, partitions):
            continue
        if before is not None and not same_state:
            changed.append(name)
        rows.append(
            {
                "cluster": cluster,
                "name": name,
                "state": node.state.value,
                "reason": reason,
                "partitions": partitions,
                "since": before.since if before is not None and same_state else node.observed_at,
                "observed_at": node.observed_at,
            }
        )
    if rows:
        statement = upsert(node_states)
        columns = ("state", "reason", "partitions", "since", "observed_at")
        await connection.execute(
            statement.on_conflict_do_update(
                index_elements=["cluster", "name"], set_={name: statement.excluded[name] for name in columns}
            ),
            rows,
        )
    if not changed:
        return ()
    touched = await connection.execute(
        select(attempts.c.job_key, attempts.c.number).where(
            and_(attempts.c.open, attempts.c.cluster == cluster, attempts.c.nodes.overlap(text_array(changed)))
        )
    )
    return tuple(AttemptKey(job_key=row.job_key, number=row.number) for row in touched)
