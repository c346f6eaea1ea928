"""Isolated nodes: opened, applied, ended, and the breaker. Each change has its audit row in the same transaction.

One row per isolation, kept for ever. It is `open` while an agent has something to do or to watch about it: until it has
ended and our drain is seen to be gone (or to be somebody else's).
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Text, cast, func, insert, select, update
from sqlalchemy.dialects.postgresql import insert as upsert
from sqlalchemy.ext.asyncio import AsyncConnection

from advisor.core.node_isolation import RATE_WINDOW, Cluster, Held, Plan, Want, expires_at, over_caps, plan
from advisor.core.policy import Policy
from advisor.core.words import IsolationEnd, NodeState
from advisor.store.audit_log import append
from advisor.store.errors import NotFound, TooLate
from advisor.store.ids import as_id, new_id
from advisor.store.records import (
    AuditEvent,
    NodeReconciliation,
    ReconciliationReason,
    ReconciliationStatus,
    StoredBreaker,
    StoredIsolation,
)
from advisor.store.sql import AnyRow, any_text, storable
from advisor.store.tables import isolation_breakers, isolations, jobs, node_states

LISTED_MAX = 250
_OPEN_MAX = 10_000
_TEXT_MAX = 1000
_US = "advisor"
BY_HAND = "operator"  # in place of a category
OUR_REASON = r"^advisor: [0-9a-f-]{36} [a-z_]+( : reboot [a-z ]+)*$"  # Slurm writes behind it at a reboot
_ENDED_BY_REPORT = {
    ReconciliationReason.REPAIR_SEEN: IsolationEnd.REPAIR_SEEN,
    ReconciliationReason.DRAINED_BY_OTHERS: IsolationEnd.TAKEN_OVER,
}


async def isolate(
    connection: AsyncConnection, cluster: str, wants: Sequence[Want], *, policy: Policy, now: datetime
) -> Plan:
    """Plan on what is held at this moment, and do it: one writer per cluster at a time."""
    await _one_writer(connection, cluster)
    known = await _cluster(connection, cluster, {want.node for want in wants}, now)
    done = plan(wants, known, policy, now)
    for want in done.opens:
        await _open(connection, cluster, want, policy, now)
    for want in done.acts_now:
        await _act_now(connection, cluster, want, now)
    if done.trips:
        await connection.execute(
            upsert(isolation_breakers)
            .values(cluster=cluster, tripped_at=now, why=storable(done.trips))
            .on_conflict_do_nothing()
        )
        await _audit(connection, cluster, "isolation_breaker_tripped", cluster, now, why=done.trips)
    return done


async def _one_writer(connection: AsyncConnection, cluster: str) -> None:
    await connection.execute(select(func.pg_advisory_xact_lock(func.hashtextextended(f"isolations {cluster}", 0))))


async def _cluster(connection: AsyncConnection, cluster: str, names: set[str], now: datetime) -> Cluster:
    columns = isolations.c
    held = await connection.execute(
        select(columns.node, columns.dry_run, columns.ended_at).where(columns.open, columns.cluster == cluster)
    )
    released = await connection.execute(
        select(columns.node, func.max(columns.ended_at).label("at"))
        .where(columns.cluster == cluster, columns.node == any_text(names), columns.ended_at.is_not(None))
        .group_by(columns.node)
    )
    today = await connection.execute(
        select(func.count())
        .select_from(isolations)
        .where(columns.cluster == cluster, columns.opened_at > now - RATE_WINDOW)
    )
    nodes = await connection.execute(
        select(func.count()).select_from(node_states).where(node_states.c.cluster == cluster)
    )
    tripped = await connection.execute(
        select(isolation_breakers.c.cluster).where(isolation_breakers.c.cluster == cluster)
    )
    return Cluster(
        nodes=nodes.scalar_one(),
        held=tuple(Held(node=row.node, dry_run=row.dry_run, releasing=row.ended_at is not None) for row in held),
        released={row.node: row.at for row in released},
        opened_today=today.scalar_one(),
        tripped=tripped.one_or_none() is not None,
    )


async def _open(connection: AsyncConnection, cluster: str, want: Want, policy: Policy, now: datetime) -> None:
    row = {
        "id": new_id(now),
        "cluster": cluster,
        "node": storable(want.node),
        "generation": 1,
        "dry_run": not want.acts,
        "category": want.category.value,
        "why": storable(want.why)[:_TEXT_MAX],
        "job_key": want.job_key,
        "number": want.number,
        "job_id": want.job_id,
        "opened_at": now,
        "expires_at": expires_at(now, policy),
        "open": True,
        "status": ReconciliationStatus.PENDING.value,
        "reason": ReconciliationReason.UNSPECIFIED.value,
        "detail": "",
    }
    await connection.execute(insert(isolations).values(**row))
    detail = {"node": want.node, "category": want.category.value, "job_id": want.job_id, "dry_run": str(not want.acts)}
    await _audit(connection, cluster, "isolation_opened", str(row["id"]), now, why=want.why, detail=detail)


async def _act_now(connection: AsyncConnection, cluster: str, want: Want, now: datetime) -> None:
    columns = isolations.c
    found = await connection.execute(
        update(isolations)
        .where(columns.open, columns.cluster == cluster, columns.node == want.node, columns.ended_at.is_(None))
        .values(dry_run=False, generation=columns.generation + 1, status=ReconciliationStatus.PENDING.value)
        .returning(columns.id)
    )
    for row in found:
        detail = {"node": want.node, "job_id": want.job_id}
        await _audit(connection, cluster, "isolation_acts", row.id, now, why="no longer on paper only", detail=detail)


async def isolate_by_hand(
    connection: AsyncConnection,
    cluster: str,
    node: str,
    *,
    force: bool,
    who: str,
    why: str,
    origin: str,
    policy: Policy,
    now: datetime,
) -> tuple[StoredIsolation, bool]:
    """An operator's own isolation, and whether anything changed. Within the caps, unless forced, which is audited.

    Raises `NotFound` for a node that no agent has shown, `TooLate` where somebody else has drained it or a cap forbids.
    """
    cluster, node = storable(cluster), storable(node)
    await _one_writer(connection, cluster)
    states = node_states.c
    known = await connection.execute(
        select(states.state, states.reason).where(states.cluster == cluster, states.name == node)
    )
    seen = known.one_or_none()
    if seen is None:
        raise NotFound(f"no node {node} in cluster {cluster}")
    held = await connection.execute(
        select(isolations).where(isolations.c.open, isolations.c.cluster == cluster, isolations.c.node == node)
    )
    row = held.one_or_none()
    if row is not None and row.ended_at is None and not row.dry_run:
        return _stored(row), False
    if row is not None and row.ended_at is not None:
        raise TooLate(f"the last isolation of {node} is being undone: again in a moment")
    ours = re.match(OUR_REASON, seen.reason) is not None
    if seen.state in {NodeState.DRAINED.value, NodeState.DRAINING.value} and not ours:
        raise TooLate(f"{node} is drained by others already ({seen.reason or 'no reason given'}): that is left alone")
    over = over_caps(await _cluster(connection, cluster, {node}, now), node, policy)
    if over and not force:
        raise TooLate(f"{over}; --force isolates it all the same, and is audited")
    detail = {"node": node, "by_hand": "yes"} | ({"forced": over} if over else {})
    values = {"dry_run": False, "opened_by": storable(who), "why": storable(why)[:_TEXT_MAX]}
    pending = {"status": ReconciliationStatus.PENDING.value, "reason": ReconciliationReason.UNSPECIFIED.value}
    if row is not None:
        changing = {**values, **pending, "generation": row.generation + 1, "expires_at": expires_at(now, policy)}
        made = await connection.execute(
            update(isolations).where(isolations.c.id == row.id).values(**changing).returning(isolations)
        )
    else:
        new = {"id": new_id(now), "cluster": cluster, "node": node, "generation": 1, "category": BY_HAND, "job_id": ""}
        times = {"opened_at": now, "expires_at": expires_at(now, policy), "open": True, "detail": ""}
        made = await connection.execute(
            insert(isolations).values(**new, **values, **pending, **times).returning(isolations)
        )
    opened = _stored(made.one())
    await _audit(
        connection,
        cluster,
        "isolation_opened",
        opened.isolation_id,
        now,
        who=who,
        why=why,
        origin=origin,
        detail=detail,
    )
    return opened, True


async def open_isolations(connection: AsyncConnection, cluster: str) -> tuple[StoredIsolation, ...]:
    """Everything that the cluster's agents are to be told, oldest first."""
    columns = isolations.c
    found = await connection.execute(
        select(isolations, jobs.c.partition, jobs.c.account)
        .outerjoin(jobs, jobs.c.key == columns.job_key)
        .where(columns.open, columns.cluster == cluster)
        .order_by(columns.opened_at, columns.id)
        .limit(_OPEN_MAX)
    )
    return tuple(replace(_stored(row), partition=row.partition or "", account=row.account or "") for row in found)


async def list_isolations(
    connection: AsyncConnection, *, cluster: str, node: str, ended: bool
) -> tuple[StoredIsolation, ...]:
    """Newest first, at most LISTED_MAX. `ended`: also those that have ended."""
    columns = isolations.c
    where: list[ColumnElement[bool]] = []
    if cluster:
        where.append(columns.cluster == storable(cluster))
    if node:
        where.append(columns.node == storable(node))
    if not ended:
        where.append(columns.open)
    found = await connection.execute(
        select(isolations).where(*where).order_by(columns.opened_at.desc(), columns.id.desc()).limit(LISTED_MAX)
    )
    return tuple(_stored(row) for row in found)


async def orphaned(connection: AsyncConnection, cluster: str) -> tuple[tuple[str, str, str], ...]:
    """(cluster, node, reason) of nodes drained with a reason of ours that no open isolation accounts for."""
    states, columns = node_states.c, isolations.c
    known = (
        select(columns.id)
        .where(
            columns.open,
            columns.cluster == states.cluster,
            columns.node == states.name,
            states.reason.like(func.concat("advisor: ", cast(columns.id, Text()), " %")),
        )
        .exists()
    )
    drained = (NodeState.DRAINED.value, NodeState.DRAINING.value)
    where = [states.state.in_(drained), states.reason.regexp_match(OUR_REASON), ~known]
    if cluster:
        where.append(states.cluster == storable(cluster))
    found = await connection.execute(
        select(states.cluster, states.name, states.reason)
        .where(*where)
        .order_by(states.cluster, states.name)
        .limit(LISTED_MAX)
    )
    return tuple((row.cluster, row.name, row.reason) for row in found)


async def end(
    connection: AsyncConnection,
    cluster: str,
    node: str,
    *,
    by: IsolationEnd,
    who: str,
    why: str,
    origin: str = "",
    now: datetime,
) -> StoredIsolation:
    """The isolation of a node ends; its agent is told to undo our drain. Raises `NotFound`."""
    cluster, node = storable(cluster), storable(node)
    await _one_writer(connection, cluster)
    columns = isolations.c
    which = (columns.cluster == cluster, columns.node == node)
    found = await _end(connection, *which, by=by, who=who, why=why, origin=origin, now=now)
    if not found:
        raise NotFound(f"no isolation of node {node} in cluster {cluster}")
    return found[0]


async def expire(connection: AsyncConnection, now: datetime) -> tuple[StoredIsolation, ...]:
    """End what is past its time to live."""
    why = "nobody did anything about the node in its time"
    return await _end(
        connection, isolations.c.expires_at <= now, by=IsolationEnd.TIME_TO_LIVE, who=_US, why=why, now=now
    )


async def _end(
    connection: AsyncConnection,
    *which: ColumnElement[bool],
    by: IsolationEnd,
    who: str,
    why: str,
    origin: str = "",
    now: datetime,
) -> tuple[StoredIsolation, ...]:
    columns = isolations.c
    # Seen undone, or another's by now: then there is nothing left for an agent to do.
    left = by in {IsolationEnd.REPAIR_SEEN, IsolationEnd.TAKEN_OVER}
    found = await connection.execute(
        update(isolations)
        .where(columns.open, columns.ended_at.is_(None), *which)
        .values(
            generation=columns.generation + 1,
            ended_at=now,
            ended_by=by.value,
            ended_why=storable(why)[:_TEXT_MAX],
            # What was only on paper leaves nothing to undo either.
            open=~columns.dry_run if not left else False,
            **({} if left else {"status": ReconciliationStatus.PENDING.value, "detail": ""}),
        )
        .returning(isolations)
    )
    rows = tuple(_stored(row) for row in found)
    for row in rows:
        detail = {"node": row.node, "by": by.value, "dry_run": str(row.dry_run)}
        said = {"who": who, "why": why, "origin": origin}
        await _audit(connection, row.cluster, "isolation_ended", row.isolation_id, now, **said, detail=detail)
    return rows


async def record(
    connection: AsyncConnection, isolation_id: str, news: NodeReconciliation, *, cluster: str, who: str
) -> StoredIsolation:
    """What an agent says came of one generation. What is said of an older one changes nothing. Raises `NotFound`."""
    key = as_id(isolation_id)
    columns = isolations.c
    found = None
    if key is not None:
        which = select(isolations).where(columns.id == key, columns.cluster == storable(cluster)).with_for_update()
        found = (await connection.execute(which)).one_or_none()
    if found is None:
        raise NotFound(f"no isolation {storable(isolation_id)[:64]!r}")
    before = _stored(found)
    said = (news.status, news.reason, storable(news.detail)[:_TEXT_MAX])
    if news.generation != before.generation or not before.open or said == (before.status, before.reason, before.detail):
        return before
    ends = _ENDED_BY_REPORT.get(news.reason) if news.final and before.ended_at is None else None
    drained = before.drained_at
    if news.status is ReconciliationStatus.VERIFIED and before.ended_at is None:
        drained = drained or news.at
    # An end whose drain is undone, or is not ours any more, is done with.
    stays = not (before.ended_at is not None and news.final)
    await connection.execute(
        update(isolations)
        .where(columns.id == key)
        .values(status=said[0].value, reason=said[1].value, detail=said[2], drained_at=drained, open=stays)
    )
    await _audit(
        connection,
        before.cluster,
        "isolation_reconciled",
        before.isolation_id,
        news.at,
        who=who,
        why=news.reason.value,
        detail={"node": before.node, "generation": str(before.generation), "status": news.status.value},
    )
    if ends is not None:
        await _end(connection, columns.id == key, by=ends, who=who, why=said[2] or ends.value, now=news.at)
    again = await connection.execute(select(isolations).where(columns.id == key))
    return _stored(again.one())


async def record_probe(
    connection: AsyncConnection,
    cluster: str,
    node: str,
    *,
    passed: bool,
    who: str,
    why: str,
    origin: str = "",
    policy: Policy,
    now: datetime,
) -> StoredIsolation:
    """What the site's own test of a node said. Passed: it is reinstated; failed: its time begins anew."""
    cluster, node = storable(cluster), storable(node)
    await _one_writer(connection, cluster)
    columns = isolations.c
    changes: dict[str, Any] = {"probed_at": now, "probe_passed": passed}
    if not passed:
        changes["expires_at"] = expires_at(now, policy)
    found = await connection.execute(
        update(isolations)
        .where(columns.open, columns.ended_at.is_(None), columns.cluster == cluster, columns.node == node)
        .values(**changes)
        .returning(isolations)
    )
    row = found.one_or_none()
    if row is None:
        raise NotFound(f"no isolation of node {node} in cluster {cluster}")
    detail = {"node": node, "passed": str(passed)}
    await _audit(connection, cluster, "node_probed", row.id, now, who=who, why=why, origin=origin, detail=detail)
    if not passed:
        return _stored(row)
    passed_by = IsolationEnd.PROBE_PASSED
    return await end(connection, cluster, node, by=passed_by, who=who, why=why, origin=origin, now=now)


async def breakers(connection: AsyncConnection) -> tuple[StoredBreaker, ...]:
    found = await connection.execute(
        select(isolation_breakers).order_by(isolation_breakers.c.cluster).limit(LISTED_MAX)
    )
    return tuple(StoredBreaker(cluster=row.cluster, tripped_at=row.tripped_at, why=row.why) for row in found)


async def reset_breaker(
    connection: AsyncConnection, cluster: str, *, who: str, why: str, origin: str = "", now: datetime
) -> StoredBreaker:
    """Nodes may be isolated again. Raises `NotFound` when it has not tripped."""
    columns = isolation_breakers.c
    found = await connection.execute(
        isolation_breakers.delete().where(columns.cluster == storable(cluster)).returning(isolation_breakers)
    )
    row = found.one_or_none()
    if row is None:
        raise NotFound(f"no tripped breaker of cluster {storable(cluster)}")
    detail = {"tripped_at": row.tripped_at.isoformat(), "tripped_why": row.why}
    said = {"who": who, "why": why, "origin": origin}
    await _audit(connection, row.cluster, "isolation_breaker_reset", row.cluster, now, **said, detail=detail)
    return StoredBreaker(cluster=row.cluster, tripped_at=row.tripped_at, why=row.why)


async def _audit(
    connection: AsyncConnection,
    cluster: str,
    what: str,
    subject: str,
    now: datetime,
    *,
    who: str = _US,
    why: str = "",
    origin: str = "",
    detail: Mapping[str, str] | None = None,
) -> None:
    event = AuditEvent(
        at=now,
        who=who,
        what=what,
        why=why[:_TEXT_MAX],
        origin=origin,
        cluster=cluster,
        subject=subject,
        detail=detail or {},
    )
    await append(connection, event)


def _stored(row: AnyRow) -> StoredIsolation:
    return StoredIsolation(
        isolation_id=row.id,
        cluster=row.cluster,
        node=row.node,
        generation=row.generation,
        dry_run=row.dry_run,
        category=row.category,
        why=row.why,
        job_id=row.job_id,
        job_key=row.job_key or "",
        opened_by=row.opened_by,
        opened_at=row.opened_at,
        expires_at=row.expires_at,
        open=row.open,
        status=ReconciliationStatus(row.status),
        reason=ReconciliationReason(row.reason),
        detail=row.detail,
        drained_at=row.drained_at,
        ended_at=row.ended_at,
        ended_by=IsolationEnd(row.ended_by) if row.ended_by else None,
        ended_why=row.ended_why or "",
        probed_at=row.probed_at,
        probe_passed=row.probe_passed,
    )
