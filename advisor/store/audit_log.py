"""The append-only log of who did what, why and from where."""

import json
from collections.abc import Sequence

from sqlalchemy import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from advisor.store.ids import new_id
from advisor.store.records import AuditEvent
from advisor.store.sql import storable
from advisor.store.tables import audit


async def append(connection: AsyncConnection, event: AuditEvent) -> None:
    """In the caller's transaction: what happened and its record are committed together or not at all."""
    await append_all(connection, [event])


async def append_all(connection: AsyncConnection, events: Sequence[AuditEvent]) -> None:
    await connection.execute(insert(audit), [_values(event) for event in events])


def _values(event: AuditEvent) -> dict[str, object]:
    return {
        "id": new_id(event.at),
        "at": event.at,
        "who": storable(event.who),
        "what": event.what,
        "why": storable(event.why),
        "origin": storable(event.origin),
        "cluster": storable(event.cluster),
        "subject": storable(event.subject),
        "detail": json.dumps(dict(event.detail), sort_keys=True),
    }
