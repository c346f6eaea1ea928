"""Mode settings: what operators chose, by cluster, partition, job and category. The audit log keeps every change."""

from dataclasses import replace
from datetime import datetime

from sqlalchemy import select
from sqlalchemy.dialects.postgresql import insert as upsert
from sqlalchemy.ext.asyncio import AsyncConnection

from advisor.core.modes import ModeSetting
from advisor.core.words import Mode
from advisor.store.audit_log import append
from advisor.store.records import AuditEvent
from advisor.store.sql import storable
from advisor.store.tables import mode_settings

_SETTINGS_MAX = 10_000


async def list_modes(connection: AsyncConnection) -> tuple[ModeSetting, ...]:
    columns = mode_settings.c
    found = await connection.execute(
        select(mode_settings)
        .order_by(columns.cluster, columns.partition, columns.job_id, columns.category)
        .limit(_SETTINGS_MAX)
    )
    return tuple(
        ModeSetting(
            mode=Mode(row.mode),
            cluster=row.cluster,
            partition=row.partition,
            job_id=row.job_id,
            category=row.category,
            set_by=row.set_by,
            why=row.why,
            set_at=row.set_at,
        )
        for row in found
    )


async def set_mode(
    connection: AsyncConnection, setting: ModeSetting, *, who: str, why: str, origin: str, now: datetime
) -> ModeSetting:
    """Set or replace the setting for exactly these fields."""
    setting = replace(
        setting,
        cluster=storable(setting.cluster),
        partition=storable(setting.partition),
        job_id=storable(setting.job_id),
        category=storable(setting.category),
        set_by=storable(who),
        why=storable(why),
        set_at=now,
    )
    place = {
        "cluster": setting.cluster,
        "partition": setting.partition,
        "job_id": setting.job_id,
        "category": setting.category,
    }
    chosen = {"mode": setting.mode.value, "set_by": setting.set_by, "why": setting.why, "set_at": now}
    statement = upsert(mode_settings).values(**place, **chosen)
    await connection.execute(
        statement.on_conflict_do_update(
            index_elements=list(place), set_={name: statement.excluded[name] for name in chosen}
        )
    )
    await append(
        connection,
        AuditEvent(
            at=now,
            who=who,
            what="mode_set",
            why=why,
            origin=origin,
            cluster=setting.cluster,
            subject="/".join(value or "*" for value in place.values()),
            detail={"mode": setting.mode.value},
        ),
    )
    return setting
