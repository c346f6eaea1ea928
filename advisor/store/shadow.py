"""What people say they did, and which categories earned their autonomy. The audit log keeps every change of both."""

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import delete, insert, select, text
from sqlalchemy.dialects.postgresql import insert as upsert
from sqlalchemy.ext.asyncio import AsyncConnection

from advisor.core.autonomy import Earned, numbers
from advisor.core.people import Said
from advisor.core.words import Category
from advisor.store.audit_log import append
from advisor.store.errors import NotFound
from advisor.store.ids import new_id
from advisor.store.records import AttemptKey, AuditEvent
from advisor.store.sql import AnyRow, storable, storable_names
from advisor.store.tables import attempts, earned_autonomy, shadow_records

_EARNED_MAX = 10_000
_WHY_CHARACTERS_MAX = 4096


async def record(connection: AsyncConnection, key: AttemptKey, said: Said, *, origin: str, now: datetime) -> str:
    """Keep what somebody says was done about an attempt; the newest record counts. Raises `NotFound`."""
    found = await connection.execute(
        select(attempts.c.cluster, attempts.c.job_id).where(
            attempts.c.job_key == key.job_key, attempts.c.number == key.number
        )
    )
    row = found.one_or_none()
    if row is None:
        raise NotFound(f"no attempt {key}")
    record_id = new_id(now)
    await connection.execute(
        insert(shadow_records).values(
            id=record_id,
            job_key=key.job_key,
            number=key.number,
            cluster=row.cluster,
            did=said.did.value,
            nodes=storable_names(*said.nodes),
            did_at=said.did_at,
            who=storable(said.who),
            why=storable(said.why)[:_WHY_CHARACTERS_MAX],
            origin=storable(origin),
            at=now,
        )
    )
    await append(
        connection,
        AuditEvent(
            at=now,
            who=said.who,
            what="shadow_recorded",
            why=said.why,
            origin=origin,
            cluster=row.cluster,
            subject=str(key),
            detail={"job_id": row.job_id, "did": said.did.value, "did_at": said.did_at.isoformat()}
            | ({"nodes": ",".join(said.nodes)} if said.nodes else {}),
        ),
    )
    return record_id


async def earned(connection: AsyncConnection) -> tuple[Earned, ...]:
    """What each category earned or lost last, by cluster."""
    own = earned_autonomy.c
    found = await connection.execute(select(earned_autonomy).order_by(own.cluster, own.category).limit(_EARNED_MAX))
    return tuple(_earned(row) for row in found)


async def set_earned(connection: AsyncConnection, changes: Sequence[Earned]) -> tuple[Earned, ...]:
    """Write changes with their audit rows. What another replica has written meanwhile is left out; the rest is told."""
    await connection.execute(text("LOCK TABLE earned_autonomy IN SHARE ROW EXCLUSIVE MODE"))
    known = {(item.cluster, item.category): item for item in await earned(connection)}
    done = []
    for change in changes:
        before = known.get((change.cluster, change.category))
        if before is not None and (before.held, before.with_stop) == (change.held, change.with_stop):
            continue
        values = {
            "cluster": storable(change.cluster),
            "category": change.category.value,
            "held": change.held,
            "with_stop": change.with_stop,
            "agreed": change.agreed,
            "counted": change.counted,
            "lower": change.lower,
            "why": storable(change.why),
            "since": change.since,
        }
        statement = upsert(earned_autonomy).values(**values)
        await connection.execute(
            statement.on_conflict_do_update(
                index_elements=["cluster", "category"], set_={name: statement.excluded[name] for name in values}
            )
        )
        await _audit(connection, change, "autonomy_earned" if change.held else "autonomy_lost")
        done.append(change)
    return tuple(done)


async def forget_earned(connection: AsyncConnection, *, why: str, now: datetime) -> int:
    """Nothing is earned any more: the configuration switched it off."""
    found = await connection.execute(delete(earned_autonomy).returning(earned_autonomy))
    rows = [_earned(row) for row in found]
    for item in rows:
        if item.held:
            await _audit(connection, item, "autonomy_switched_off", why=why, at=now)
    return sum(item.held for item in rows)


async def _audit(
    connection: AsyncConnection, item: Earned, what: str, *, why: str = "", at: datetime | None = None
) -> None:
    event = AuditEvent(
        at=at or item.since,
        who="advisor",
        what=what,
        why=why or item.why,
        cluster=item.cluster,
        subject=f"{item.cluster}/{item.category.value}",
        detail=numbers(item),
    )
    await append(connection, event)


def _earned(row: AnyRow) -> Earned:
    return Earned(
        cluster=row.cluster,
        category=Category(row.category),
        held=row.held,
        agreed=row.agreed,
        counted=row.counted,
        lower=row.lower,
        since=row.since,
        with_stop=row.with_stop,
        why=row.why,
    )
