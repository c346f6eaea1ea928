"""Nodes that carry our drain for an isolation that the store has forgotten: taken over, so that it still has an end.

A restored backup knows nothing of what was isolated after it. The reason on the node names the isolation: it is opened
again under its own id, counts against the caps, and ends like any other: by repair, an operator, or its time to live.
"""

import asyncio
import re
from collections.abc import Callable
from datetime import datetime

import structlog
from sqlalchemy import select
from sqlalchemy.dialects.postgresql import insert as upsert
from sqlalchemy.ext.asyncio import AsyncConnection

from advisor.core.node_isolation import expires_at
from advisor.core.policy import Policy
from advisor.core.words import NodeState
from advisor.store.audit_log import append
from advisor.store.ids import as_id
from advisor.store.isolations import OUR_REASON
from advisor.store.records import AuditEvent, ReconciliationReason, ReconciliationStatus
from advisor.store.sql import any_id
from advisor.store.tables import isolations, node_states

_log = structlog.get_logger(__name__)

_FRESH_SECONDS = 600.0
_OFTEN_SECONDS = 10.0
_SELDOM_SECONDS = 600.0
_WHY = "drained for an isolation that was forgotten with a restored backup"
_NAMED = re.compile(r"advisor: ([0-9a-f-]{36}) ([a-z_]+)", re.ASCII)
_NODES_MAX = 1000


def _now() -> float:
    return asyncio.get_running_loop().time()


class Adopting:
    """When they are looked for: often in the first minutes of an incarnation, of which each has one of these, since
    agents tell all nodes within moments of coming back; and now and then from there on, for an agent that comes later.

    A look that fails, or whose transaction does, is taken again at the next time and not at once: the drain stays on
    its node meanwhile, and whatever is wrong with it must not keep ticks from all else that they do.
    """

    def __init__(self, clock: Callable[[], float] = _now) -> None:
        self._clock = clock
        self._next_at = clock()
        self._fresh_until = self._next_at + _FRESH_SECONDS

    @property
    def is_due(self) -> bool:
        return self._next_at <= self._clock()

    async def look(self, connection: AsyncConnection, *, policy: Policy, now: datetime) -> None:
        """Take over what there is, where it is time to."""
        if not self.is_due:
            return
        at = self._clock()
        self._next_at = at + (_OFTEN_SECONDS if at < self._fresh_until else _SELDOM_SECONDS)
        for node in await adopt(connection, policy=policy, now=now):
            _log.warning("isolation_adopted", node=node)


async def adopt(connection: AsyncConnection, *, policy: Policy, now: datetime) -> tuple[str, ...]:
    """Idempotent. Returns the nodes."""
    states = node_states.c
    drained = await connection.execute(
        select(states.cluster, states.name, states.reason, states.since)
        .where(
            states.state.in_([NodeState.DRAINED.value, NodeState.DRAINING.value]),
            states.reason.regexp_match(OUR_REASON),
        )
        .order_by(states.cluster, states.name)
        .limit(_NODES_MAX)
    )
    named = {}
    for row in drained:
        found = _NAMED.match(row.reason)
        key = as_id(found.group(1)) if found is not None else None
        if found is not None and key is not None:
            named[key] = (row, found.group(2))
    if not named:
        return ()
    known = await connection.execute(select(isolations.c.id).where(isolations.c.id == any_id(list(named))))
    for key in known.scalars():
        del named[key]
    adopted = []
    for key, (row, category) in named.items():
        values = {
            "id": key,
            "cluster": row.cluster,
            "node": row.name,
            "generation": 1,
            "dry_run": False,
            "category": category,
            "why": _WHY,
            "job_id": "",
            "opened_at": now,
            "expires_at": expires_at(now, policy),
            "open": True,
            "status": ReconciliationStatus.VERIFIED.value,
            "reason": ReconciliationReason.OBSERVED.value,
            "detail": "",
            "drained_at": row.since,
        }
        made = await connection.execute(
            upsert(isolations).values(**values).on_conflict_do_nothing().returning(isolations.c.id)
        )
        if made.one_or_none() is None:
            continue  # another one of that node is open: the agent holds to that
        adopted.append(row.name)
        detail = {"node": row.name, "category": category}
        event = AuditEvent(
            at=now, who="advisor", what="isolation_adopted", why=_WHY, cluster=row.cluster, subject=key, detail=detail
        )
        await append(connection, event)
    return tuple(adopted)
