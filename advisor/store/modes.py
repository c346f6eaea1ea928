"""Mode settings: what operators chose, by cluster, partition, job and category. The audit log keeps every change."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from functools import cache
from typing import Any

from sqlalchemy import Select, and_, delete, exists, or_, select, text
from sqlalchemy.dialects.postgresql import insert as upsert
from sqlalchemy.ext.asyncio import AsyncConnection

from advisor.core.modes import ModeChange, ModeSetting, autonomous_within, stopped_by
from advisor.core.words import Action, AttemptState, Mode
from advisor.store.audit_log import append
from advisor.store.errors import NotFound
from advisor.store.records import AuditEvent
from advisor.store.scheduler_memory import remembered_until
from advisor.store.sql import of_attempt, storable
from advisor.store.tables import attempts, decisions, jobs, mode_settings, node_states

_SETTINGS_MAX = 10_000
_PAPER = timedelta(minutes=30)
_PAPER_MAX = 100
_FAILED = [
    state.value
    for state in AttemptState
    if state.ended and state not in {AttemptState.COMPLETED, AttemptState.CANCELLED}
]


async def list_modes(connection: AsyncConnection) -> tuple[ModeSetting, ...]:
    return tuple(
        ModeSetting(
            mode=Mode(row.mode),
            cluster=row.cluster,
            partition=row.partition,
            job_id=row.job_id,
            category=row.category,
            account=row.account,
            percent=row.percent,
            set_by=row.set_by,
            why=row.why,
            set_at=row.set_at,
        )
        for row in await connection.execute(_settings())
    )


@cache
def _settings() -> Select[Any]:
    columns = mode_settings.c
    return (
        select(mode_settings)
        .order_by(columns.cluster, columns.partition, columns.job_id, columns.category, columns.account)
        .limit(_SETTINGS_MAX)
    )


async def set_mode(
    connection: AsyncConnection, setting: ModeSetting, *, who: str, why: str, origin: str, now: datetime
) -> ModeChange:
    """Set or replace the setting for exactly these fields. Monitor for everything removes what is autonomous."""
    setting = replace(_stored_place(setting), set_by=storable(who), why=storable(why), set_at=now)
    await _one_writer(connection)
    stopped = stopped_by(setting, await list_modes(connection))
    for other in stopped:
        detail = {"mode": other.mode.value, "by": "monitor for everything"}
        await _remove(connection, other, who=who, why=why, origin=origin, now=now, detail=detail)
    place = _place(setting)
    chosen = {
        "mode": setting.mode.value,
        "percent": setting.percent,
        "set_by": setting.set_by,
        "why": setting.why,
        "set_at": now,
    }
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
            subject=_subject(setting),
            detail={"mode": setting.mode.value} | _share(setting),
        ),
    )
    still = autonomous_within(setting, await list_modes(connection)) if setting.mode is Mode.MONITOR else ()
    return ModeChange(setting=setting, no_longer_autonomous=stopped, still_autonomous=still)


async def unset_mode(
    connection: AsyncConnection, place: ModeSetting, *, who: str, why: str, origin: str, now: datetime
) -> ModeChange:
    """Remove the setting for exactly these fields. Raises `NotFound`."""
    place = _stored_place(place)
    await _one_writer(connection)
    known = next((item for item in await list_modes(connection) if _place(item) == _place(place)), None)
    if known is None:
        raise NotFound(f"no setting for {place.where}")
    detail = {"mode": known.mode.value}
    await _remove(connection, known, who=who, why=why, origin=origin, now=now, detail=detail)
    return ModeChange(setting=known)


async def ever_reported(connection: AsyncConnection, *, cluster: str, partition: str, job_id: str) -> bool:
    """Whether an agent has shown such a job, or a node of such a partition. Empty = any."""
    cluster, partition, job_id = storable(cluster), storable(partition), storable(job_id)
    fields = ((jobs.c.cluster, cluster), (jobs.c.partition, partition))
    wanted = [column == value for column, value in fields if value]
    if job_id:
        wanted.append(or_(jobs.c.job_id == job_id, jobs.c.slot == job_id))
    seen = (await connection.execute(select(exists(select(jobs.c.key).where(*wanted))))).scalar_one()
    if seen or job_id:
        return bool(seen)
    columns = node_states.c
    of_nodes = [columns.cluster == cluster] if cluster else []
    if partition:
        of_nodes.append(columns.partitions.any_() == partition)
    return bool((await connection.execute(select(exists(select(columns.name).where(*of_nodes))))).scalar_one())


async def left_on_paper(connection: AsyncConnection, setting: ModeSetting, now: datetime) -> tuple[str, ...]:
    """Jobs of its place that failed in monitor mode and are done with, and that their scheduler still knows."""
    place = {"cluster": setting.cluster, "partition": setting.partition, "job_id": setting.job_id}
    place["account"] = setting.account
    mine = [attempts.c[name] == storable(value) for name, value in place.items() if value]
    if setting.category:
        mine.append(decisions.c.category == setting.category)
    found = await connection.execute(
        select(attempts.c.job_id)
        .join(decisions, and_(of_attempt(decisions, attempts), decisions.c.generation == attempts.c.generation))
        .join(jobs, and_(jobs.c.key == attempts.c.job_key, jobs.c.last_number == attempts.c.number))
        .where(
            *mine,
            ~attempts.c.open,
            attempts.c.state.in_(_FAILED),
            decisions.c.created_at >= now - _PAPER,
            decisions.c.mode == Mode.MONITOR.value,
            decisions.c.action == Action.RESTART.value,
            jobs.c.in_scope,
            jobs.c.forgotten_at.is_(None),
            remembered_until() > now,
        )
        .order_by(attempts.c.job_id)
        .limit(_PAPER_MAX)
    )
    return tuple(found.scalars())


async def _one_writer(connection: AsyncConnection) -> None:
    """A stop and a setting made at the same moment have an order: what is set after the stop was set knowingly."""
    await connection.execute(text("LOCK TABLE mode_settings IN SHARE ROW EXCLUSIVE MODE"))


async def _remove(
    connection: AsyncConnection,
    setting: ModeSetting,
    *,
    who: str,
    why: str,
    origin: str,
    now: datetime,
    detail: Mapping[str, str],
) -> None:
    columns = mode_settings.c
    await connection.execute(
        delete(mode_settings).where(
            columns.cluster == setting.cluster,
            columns.partition == setting.partition,
            columns.job_id == setting.job_id,
            columns.category == setting.category,
            columns.account == setting.account,
        )
    )
    await append(
        connection,
        AuditEvent(
            at=now,
            who=who,
            what="mode_removed",
            why=why,
            origin=origin,
            cluster=setting.cluster,
            subject=_subject(setting),
            detail=detail,
        ),
    )


def _stored_place(setting: ModeSetting) -> ModeSetting:
    return replace(
        setting,
        cluster=storable(setting.cluster),
        partition=storable(setting.partition),
        job_id=storable(setting.job_id),
        category=storable(setting.category),
        account=storable(setting.account),
    )


def _place(setting: ModeSetting) -> dict[str, str]:
    return {
        "cluster": setting.cluster,
        "partition": setting.partition,
        "job_id": setting.job_id,
        "category": setting.category,
        "account": setting.account,
    }


def _share(setting: ModeSetting) -> dict[str, str]:
    return {} if setting.percent is None else {"percent": str(setting.percent)}


def _subject(setting: ModeSetting) -> str:
    """Cluster, partition, job and category; the account only where there is one."""
    place = _place(setting)
    account = place.pop("account")
    return "/".join([*(value or "*" for value in place.values()), *([account] if account else [])])
