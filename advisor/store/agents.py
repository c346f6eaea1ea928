"""The agents beside the schedulers: one per cluster and host."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache
from typing import Any

from sqlalchemy import Text, bindparam, select, update
from sqlalchemy.dialects.postgresql import insert as upsert
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.sql.dml import ReturningUpdate

from advisor.core.codec import CodecError, decode, encode
from advisor.core.model import Unavailable
from advisor.store.audit_log import append
from advisor.store.ids import as_id, new_id
from advisor.store.records import AgentMode, AuditEvent, StopFile, StoredAgent
from advisor.store.sql import AnyRow, id_given, storable, time_given
from advisor.store.tables import agents

_AGENTS_MAX = 1000
_ALL = select(agents).order_by(agents.c.cluster, agents.c.host).limit(_AGENTS_MAX)


async def register_agent(
    connection: AsyncConnection,
    *,
    cluster: str,
    host: str,
    version: str,
    mode: AgentMode,
    scheduler: str,
    requeue_delay: timedelta | None,
    job_memory: timedelta | None,
    missing_rights: Sequence[str],
    now: datetime,
) -> StoredAgent:
    values = {
        "cluster": storable(cluster),
        "host": storable(host),
        "session": new_id(now),
        "version": storable(version),
        "mode": mode.value,
        "scheduler": storable(scheduler),
        "requeue_delay_seconds": None if requeue_delay is None else requeue_delay.total_seconds(),
        "job_memory_seconds": None if job_memory is None else job_memory.total_seconds(),
        "missing_rights": [storable(right) for right in missing_rights],
        "registered_at": now,
        "last_seen_at": now,
    }
    statement = upsert(agents).values(**values)
    changing = {name: statement.excluded[name] for name in values if name not in {"cluster", "host"}}
    found = await connection.execute(
        statement.on_conflict_do_update(index_elements=["cluster", "host"], set_=changing).returning(agents)
    )
    await append(
        connection,
        AuditEvent(
            at=now,
            who=f"agent@{storable(host)}",
            what="agent_registered",
            cluster=cluster,
            subject=f"{storable(cluster)}/{storable(host)}",
            detail={"mode": mode.value, "version": version, "scheduler": scheduler},
        ),
    )
    return _agent(found.one())


async def heartbeat(
    connection: AsyncConnection,
    *,
    cluster: str,
    session: str,
    mode: AgentMode,
    now: datetime,
    stop_file: StopFile | None = None,
) -> bool:
    known = as_id(session)
    if known is None:
        return False
    given = {
        "known": known,
        "of": storable(cluster),
        "now": now,
        "mode_now": mode.value,
        "why_stopped": None if stop_file is None else storable(stop_file.why),
        "stopped_at": None if stop_file is None else stop_file.since,
    }
    return (await connection.execute(_heard(), given)).one_or_none() is not None


@cache
def _heard() -> ReturningUpdate[Any]:
    return (
        update(agents)
        .where(agents.c.session == id_given("known"), agents.c.cluster == bindparam("of", type_=Text()))
        .values(
            mode=bindparam("mode_now"),
            last_seen_at=time_given("now"),
            stopped_why=bindparam("why_stopped"),
            stopped_since=time_given("stopped_at"),
        )
        .returning(agents.c.host)
    )


async def says(connection: AsyncConnection, *, cluster: str, session: str, unavailable: Sequence[Unavailable]) -> None:
    """What an agent cannot read of its scheduler, for replicas that it is not connected to."""
    known = as_id(session)
    if known is not None:
        await connection.execute(
            update(agents)
            .where(agents.c.session == known, agents.c.cluster == storable(cluster))
            .values(unavailable=encode(_Said(unavailable=tuple(unavailable))))
        )


async def said(connection: AsyncConnection) -> tuple[tuple[StoredAgent, tuple[Unavailable, ...]], ...]:
    found = await connection.execute(_ALL)
    return tuple((_agent(row), _unavailable(row.unavailable)) for row in found)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Said:
    unavailable: tuple[Unavailable, ...] = ()


def _unavailable(data: bytes | None) -> tuple[Unavailable, ...]:
    if data is None:
        return ()
    try:
        return decode(_Said, data).unavailable
    except CodecError:
        return ()  # another build's; it is said anew with the next change


async def list_agents(connection: AsyncConnection) -> tuple[StoredAgent, ...]:
    found = await connection.execute(_ALL)
    return tuple(_agent(row) for row in found)


def _agent(row: AnyRow) -> StoredAgent:
    return StoredAgent(
        cluster=row.cluster,
        host=row.host,
        session=row.session,
        version=row.version,
        mode=AgentMode(row.mode),
        scheduler=row.scheduler,
        requeue_delay=_seconds(row.requeue_delay_seconds),
        job_memory=_seconds(row.job_memory_seconds),
        missing_rights=tuple(row.missing_rights),
        registered_at=row.registered_at,
        last_seen_at=row.last_seen_at,
        stop_file=None if row.stopped_why is None else StopFile(why=row.stopped_why, since=row.stopped_since),
    )


def _seconds(value: float | None) -> timedelta | None:
    return None if value is None else timedelta(seconds=value)
