"""Audit: what happened to one job across its attempts, and to one node, as one row of moments.

A node's history is merged from several tables, each asked for one page behind the same moment by an index of its own:
so the merged page is right, and the next one goes on behind its last event.
"""

import re
from collections.abc import AsyncIterator, Iterator, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Boolean, ColumnElement, literal_column, select
from sqlalchemy.ext.asyncio import AsyncConnection

from advisor.core.policy import Policy
from advisor.core.words import Action
from advisor.store.audit_queries import attempt_rows, attempts_query
from advisor.store.ids import as_id
from advisor.store.node_queries import get_node
from advisor.store.open_advice import reference, reference_columns
from advisor.store.paging import Position, older_than, page_size, read_cursor, write_cursor
from advisor.store.records import (
    AttemptKey,
    AttemptRef,
    AttemptRow,
    EventFilter,
    EventRow,
    JobTimeline,
    NodeEvents,
    Page,
)
from advisor.store.sql import any_id, any_text, of_advice, of_attempt, storable, text_array, wanted_attempts
from advisor.store.tables import (
    PEOPLE,
    advice,
    attempt_states,
    attempts,
    audit,
    decisions,
    implications,
    incidents,
    isolations,
    node_changes,
    reconciliations,
)

EVENTS_MAX = 5000
ISOLATIONS_MAX = 1000
# What follows from what, where both are told of one moment.
_WITHIN_A_MOMENT = (
    *("attempt_state", "requeue_forgotten", "milestone", "incident_opened", "decision", "operator", "action"),
    "incident_closed",
)


async def job_timeline(
    connection: AsyncConnection, *, cluster: str, job_id: str, job_key: str, attempts_max: int
) -> JobTimeline | None:
    """By `job_key` where given, else of the job that had the id last. None: there is no such job."""
    key = as_id(job_key) if job_key else await _last_owner(connection, cluster, job_id)
    if key is None:
        return None
    page = (
        select(attempts.c.job_key, attempts.c.number)
        .where(attempts.c.job_key == key)
        .order_by(attempts.c.number.desc())
        .limit(attempts_max + 1)
        .cte("page")
    )
    found = await attempt_rows(connection, (await connection.execute(attempts_query(page))).all())
    if not found:
        return None
    ordered = sorted(found, key=lambda row: row.attempt.number)[-attempts_max:]
    events = [event async for event in _of_attempts(connection, ordered)]
    events.sort(key=lambda event: (event.at, _WITHIN_A_MOMENT.index(event.kind), event.id))
    return JobTimeline(
        attempts=tuple(ordered),
        events=tuple(events[-EVENTS_MAX:]),
        truncated=len(found) > attempts_max or len(events) > EVENTS_MAX,
    )


async def _last_owner(connection: AsyncConnection, cluster: str, job_id: str) -> str | None:
    query = select(attempts.c.job_key).where(
        attempts.c.cluster == storable(cluster), attempts.c.job_id == storable(job_id)
    )
    last = query.order_by(attempts.c.submitted_at.desc(), attempts.c.job_key.desc()).limit(1)
    key: str | None = (await connection.execute(last)).scalar_one_or_none()
    return key


async def _of_attempts(connection: AsyncConnection, rows: Sequence[AttemptRow]) -> AsyncIterator[EventRow]:
    refs = {_key(row.attempt): row.attempt for row in rows}
    for row in rows:
        for milestone in row.milestones:
            word = milestone.kind.value
            yield EventRow(
                at=milestone.at,
                kind="milestone",
                id=f"{row.attempt.number}/{word}",
                word=word,
                attempt=row.attempt,
                detail=milestone.detail,
            )
    wanted = wanted_attempts(list(refs))
    states = select(attempt_states).join(wanted, of_attempt(attempt_states, wanted))
    for seen in await connection.execute(states.order_by(attempt_states.c.seq.desc()).limit(EVENTS_MAX)):
        yield EventRow(
            at=seen.observed_at,
            kind="attempt_state",
            id=str(seen.seq),
            word=seen.state,
            reason=seen.notice,
            attempt=refs[AttemptKey(job_key=seen.job_key, number=seen.number)],
        )
    for event in await _forgotten(connection, refs):
        yield event
    async for event in _incidents(connection, refs):
        yield event
    decided = await _decisions(connection, refs)
    for event in decided:
        yield event
    for event in await _outcomes(connection, {event.decision_id: event.attempt for event in decided}):
        yield event
    first = rows[0].attempt
    subjects = [*(event.decision_id for event in decided), first.job_key, *_names_of(rows)]
    for event in await _people(connection, subjects):
        yield event


def _names_of(rows: Sequence[AttemptRow]) -> Iterator[str]:
    for row in rows:
        yield row.attempt.job_id
        yield f"{row.attempt.cluster}/{row.attempt.job_id}"


def _key(ref: AttemptRef) -> AttemptKey:
    return AttemptKey(job_key=ref.job_key, number=ref.number)


async def _incidents(connection: AsyncConnection, refs: dict[AttemptKey, AttemptRef]) -> AsyncIterator[EventRow]:
    wanted = wanted_attempts(list(refs))
    columns = incidents.c
    for row in await connection.execute(
        select(
            *(columns.id, columns.job_key, columns.number, columns.kind, columns.category, columns.root_cause),
            *(columns.opened_at, columns.closed_at),
        ).join(wanted, of_attempt(incidents, wanted))
    ):
        ref = refs[AttemptKey(job_key=row.job_key, number=row.number)]
        yield EventRow(
            at=row.opened_at,
            kind="incident_opened",
            id=row.id,
            word=row.kind,
            reason=row.category,
            attempt=ref,
            incident_id=row.id,
            detail=row.root_cause,
        )
        if row.closed_at is not None:
            yield EventRow(at=row.closed_at, kind="incident_closed", id=row.id, attempt=ref, incident_id=row.id)


async def _decisions(connection: AsyncConnection, refs: dict[AttemptKey, AttemptRef]) -> list[EventRow]:
    wanted = wanted_attempts(list(refs))
    columns = decisions.c
    found = await connection.execute(
        select(
            *(columns.id, columns.job_key, columns.number, columns.generation, columns.action, columns.reason),
            *(columns.mode, columns.excluded_nodes, columns.incident_id, columns.created_at),
        )
        .join(wanted, of_attempt(decisions, wanted))
        .order_by(columns.created_at.desc())
        .limit(EVENTS_MAX)
    )
    return [
        EventRow(
            at=row.created_at,
            kind="decision",
            id=row.id,
            word=row.action,
            reason=row.reason,
            attempt=refs[AttemptKey(job_key=row.job_key, number=row.number)],
            decision_id=row.id,
            incident_id=row.incident_id or "",
            detail=f"generation {row.generation}, {row.mode}"
            + (f", excluding {', '.join(row.excluded_nodes)}" if row.excluded_nodes else ""),
        )
        for row in found
    ]


async def _outcomes(connection: AsyncConnection, of: dict[str, AttemptRef | None]) -> list[EventRow]:
    if not of:
        return []
    found = await connection.execute(
        select(reconciliations)
        .where(reconciliations.c.decision_id == any_id(of))
        .order_by(reconciliations.c.seq.desc())
        .limit(EVENTS_MAX)
    )
    return [
        EventRow(
            at=row.at,
            kind="action",
            id=str(row.seq),
            word=row.status,
            reason=row.reason,
            attempt=of[row.decision_id],
            decision_id=row.decision_id,
            detail=row.detail,
        )
        for row in found
    ]


async def _forgotten(connection: AsyncConnection, refs: dict[AttemptKey, AttemptRef]) -> list[EventRow]:
    """Requeues that the scheduler has forgotten: the attempt itself only tells it until it is requeued again."""
    of = {str(key): ref for key, ref in refs.items()}
    found = await connection.execute(
        select(audit)
        .where(audit.c.subject == any_text(of), audit.c.what == "requeue_forgotten")
        .order_by(audit.c.at.desc(), audit.c.id.desc())
        .limit(EVENTS_MAX)
    )
    return [EventRow(at=row.at, kind="requeue_forgotten", id=row.id, attempt=of[row.subject]) for row in found]


async def _people(connection: AsyncConnection, subjects: Sequence[str]) -> list[EventRow]:
    """What people did to these."""
    query = select(audit).where(
        audit.c.subject == any_text(storable(subject) for subject in dict.fromkeys(subjects)),
        literal_column(f"({PEOPLE})", Boolean()),
    )
    found = await connection.execute(query.order_by(audit.c.at.desc(), audit.c.id.desc()).limit(EVENTS_MAX))
    return [
        EventRow(at=row.at, kind="operator", id=row.id, word=row.what, detail=row.why, who=row.who) for row in found
    ]


async def node_history(
    connection: AsyncConnection,
    cluster: str,
    name: str,
    wanted: EventFilter,
    page: Page,
    *,
    policy: Policy,
    now: datetime,
) -> NodeEvents | None:
    """None for a node that neither the scheduler nor any incident has named."""
    size = page_size(page)
    position = read_cursor("node history", wanted, page, (str, str))
    node = await get_node(connection, cluster, name, policy=policy, now=now)
    if node is None:
        return None
    asked = _NodePage(cluster=storable(cluster), name=storable(name), wanted=wanted, position=position, size=size)
    events = [
        *await asked.implications(connection),
        *await asked.exclusions(connection),
        *await asked.isolations(connection),
        *await asked.changes(connection),
    ]
    events = sorted(filter(asked.holds, events), key=_newest, reverse=True)
    kept, cursor = events[:size], ""
    if len(events) > size:
        last = kept[-1]
        cursor = write_cursor("node history", wanted, Position(at=last.at, ids=(last.kind, last.id)))
    return NodeEvents(node=node, events=tuple(kept), next_cursor=cursor)


def _newest(event: EventRow) -> tuple[datetime, str, str]:
    return event.at, event.kind, event.id


class _NodePage:
    """One page of one node's history, asked of each table."""

    def __init__(self, *, cluster: str, name: str, wanted: EventFilter, position: Position | None, size: int) -> None:
        self._cluster = cluster
        self._name = name
        self._wanted = wanted
        self._position = position
        self._size = size

    def holds(self, event: EventRow) -> bool:
        """Whether it belongs behind the last page: isolations are asked for whole."""
        since, until, position = self._wanted.since, self._wanted.until, self._position
        if (since is not None and event.at < since) or (until is not None and event.at >= until):
            return False
        return position is None or _newest(event) < (position.at, *position.ids)

    def _span(self, kind: str, at: ColumnElement[Any], row_id: ColumnElement[Any]) -> list[ColumnElement[bool]]:
        """Rows behind the last page, whose order is (at, kind, id)."""
        conditions: list[ColumnElement[bool]] = []
        if self._wanted.since is not None:
            conditions.append(at >= self._wanted.since)
        if self._wanted.until is not None:
            conditions.append(at < self._wanted.until)
        if self._position is not None:
            last_at, (last_kind, last_id) = self._position.at, self._position.ids
            if kind == last_kind:
                text = str(last_id)
                value = int(text) if kind == "node_state" and re.fullmatch(r"[0-9]{1,19}", text) else text
                conditions.append(older_than((at, row_id), Position(at=last_at, ids=(value,))))
            else:
                conditions.append(at <= last_at if kind < str(last_kind) else at < last_at)
        return conditions

    async def implications(self, connection: AsyncConnection) -> list[EventRow]:
        own = implications.c
        found = await connection.execute(
            select(implications, *reference_columns())
            .join(attempts, of_attempt(attempts, implications))
            .where(
                own.cluster == self._cluster, own.node == self._name, *self._span("implicated", own.at, own.incident_id)
            )
            .order_by(own.at.desc(), own.incident_id.desc())
            .limit(self._size + 1)
        )
        return [
            EventRow(
                at=row.at,
                kind="implicated",
                id=row.incident_id,
                word=row.category,
                reason=row.rule,
                attempt=reference(row),
                incident_id=row.incident_id,
                node=self._name,
                detail=f"{row.role}, {row.trust}, weight {row.weight:.2f}"
                if row.weight
                else "a later look no longer names it",
            )
            for row in found
        ]

    async def exclusions(self, connection: AsyncConnection) -> list[EventRow]:
        own = decisions.c
        found = await connection.execute(
            select(
                *(own.id, own.action, own.reason, own.mode, own.incident_id, own.created_at),
                advice.c.undone,
                *reference_columns(),
            )
            .join(attempts, of_attempt(attempts, decisions))
            .join(advice, of_advice(decisions, advice))
            .where(
                own.nodes.contains(text_array([self._name])),
                own.excluded_nodes.contains(text_array([self._name])),
                own.action == Action.RESTART.value,  # of others they are what a restart would avoid
                own.cluster == self._cluster,
                *self._span("excluded", own.created_at, own.id),
            )
            .order_by(own.created_at.desc(), own.id.desc())
            .limit(self._size + 1)
        )
        return [
            EventRow(
                at=row.created_at,
                kind="excluded",
                id=row.id,
                word=row.action,
                reason=row.reason,
                attempt=reference(row),
                decision_id=row.id,
                incident_id=row.incident_id or "",
                node=self._name,
                detail=f"{row.mode}, and forgotten by the scheduler" if row.undone else row.mode,
            )
            for row in found
        ]

    async def isolations(self, connection: AsyncConnection) -> list[EventRow]:
        """All there are (a node is not isolated a thousand times), each a moment or several."""
        own = isolations.c
        found = (
            await connection.execute(
                select(isolations)
                .where(own.cluster == self._cluster, own.node == self._name)
                .order_by(own.opened_at.desc(), own.id.desc())
                .limit(ISOLATIONS_MAX)
            )
        ).all()
        events = []
        for row in found:
            for kind, at, word, detail in (
                ("isolated", row.opened_at, "dry_run" if row.dry_run else "", row.why),
                ("drained", row.drained_at, "", row.detail),
                ("isolation_ended", row.ended_at, row.ended_by or "", row.ended_why or ""),
                ("probe", row.probed_at, "passed" if row.probe_passed else "failed", ""),
            ):
                if at is not None:
                    events.append(
                        EventRow(
                            at=at,
                            kind=kind,
                            id=row.id,
                            word=word,
                            reason=row.category,
                            isolation_id=row.id,
                            node=self._name,
                            detail=detail,
                        )
                    )
        people = await _people(connection, [self._name, f"{self._cluster}/{self._name}"])
        return [*events, *people]

    async def changes(self, connection: AsyncConnection) -> list[EventRow]:
        own = node_changes.c
        found = await connection.execute(
            select(node_changes)
            .where(own.cluster == self._cluster, own.name == self._name, *self._span("node_state", own.at, own.seq))
            .order_by(own.at.desc(), own.seq.desc())
            .limit(self._size + 1)
        )
        return [
            EventRow(
                at=row.at,
                kind="node_state",
                id=f"{row.seq:020}",
                word=row.state,
                reason=row.before or "",
                node=self._name,
                detail=row.reason,
            )
            for row in found
        ]
