"""Audit: decisions, incidents, attempts and nodes, one by one and as filtered lists, newest first.

Every list is one query with a limit, walked along an index that starts with a filtered column and ends with the
list's order (time, ids); what belongs to its rows is fetched by one query per kind.
"""

import zlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any

from sqlalchemy import Column, ColumnElement, FromClause, Select, case, literal, select, true
from sqlalchemy.ext.asyncio import AsyncConnection

from advisor.core.codec import CodecError, decode
from advisor.core.model import Decision, Progress, Signal
from advisor.core.words import AttemptState
from advisor.store.action_queries import reconciliation
from advisor.store.audit_filters import (
    ALWAYS,
    NOBODY,
    Order,
    Spans,
    are_few,
    cut,
    equal,
    month_by_month,
    narrowed,
    of_row,
    page_of,
    refuse,
    within,
)
from advisor.store.documents import unpack_decision, unpack_signals
from advisor.store.errors import Ambiguous, Unreadable
from advisor.store.ids import as_id, span_of
from advisor.store.open_advice import reference, reference_columns
from advisor.store.paging import Position, older_than, page_size, read_cursor
from advisor.store.records import (
    AttemptKey,
    AttemptRow,
    AuditFilter,
    DecisionInputs,
    DecisionRow,
    IncidentRow,
    Listing,
    Milestone,
    MilestoneKind,
    Page,
    Reconciliation,
    ReconciliationStatus,
    UnreadDecision,
)
from advisor.store.scheduler_memory import forgets_at
from advisor.store.sql import AnyRow, any_id, any_time, of_attempt, storable, wanted_attempts
from advisor.store.tables import advice, attempts, blobs, decisions, incidents, jobs, milestones, reconciliations

_ALIKE_SHOWN = 3
_NOT_SHOWN = {"cluster", "job_id", "job_key", "number", "user_name", "account", "seq"}


# decisions


def _decisions_query(ids: Sequence[str], times: Sequence[datetime] = ()) -> Select[Any]:
    """Whole rows of these decisions. `times`: theirs, which tell in which parts of the table they lie."""
    conditions = [decisions.c.id == any_id(ids)]
    if times:
        conditions.append(decisions.c.created_at.between(min(times), max(times)))
    return (
        select(
            *(column for column in decisions.c if column.name not in _NOT_SHOWN),
            advice.c.status,
            advice.c.undone,
            jobs.c.in_scope,
            *reference_columns(),
        )
        .select_from(decisions)
        .join(attempts, of_attempt(attempts, decisions))
        .join(jobs, jobs.c.key == attempts.c.job_key)
        .join(advice, advice.c.decision_id == decisions.c.id)
        .where(*conditions)
    )


def _conditions(wanted: AuditFilter) -> list[ColumnElement[bool]]:
    """All but the status, which is not the decision's own."""
    return of_row(wanted, decisions.c, decisions.c.created_at, decisions.c.nodes) + equal(
        (wanted.category, decisions.c.category),
        (wanted.action, decisions.c.action),
        (wanted.reason, decisions.c.reason),
        (wanted.mode, decisions.c.mode),
    )


def decisions_statement(wanted: AuditFilter, position: Position | None, size: int, *, few: bool = False) -> Select[Any]:
    """Ids and times of one page. `few`: what is filtered but for the status is little enough to be looked at whole."""
    if wanted.status:
        return _by_status(wanted, position, size, few=few)
    order: Order = (decisions.c.created_at, decisions.c.id)
    matching = select(*order).where(*_conditions(wanted))
    if few:
        found = matching.offset(0).subquery("found")
        order = (found.c.created_at, found.c.id)
        matching = select(*order)
    return page_of(matching, order, position, size)


def _by_status(wanted: AuditFilter, position: Position | None, size: int, *, few: bool) -> Select[Any]:
    """The status is in the advice, which is in the same order. One side is walked, the other one asked row by row."""
    own, outcome = decisions.c, advice.c
    if few:
        found = select(own.id, own.created_at).where(*_conditions(wanted)).offset(0).subquery("found")
        has = select(literal(1)).where(outcome.decision_id == found.c.id, *equal((wanted.status, outcome.status)))
        walked, order = found, (found.c.created_at, found.c.id)
    else:
        conditions = [*equal((wanted.status, outcome.status)), *within(wanted, outcome.created_at)]
        columns = (outcome.decision_id.label("id"), outcome.created_at)
        if not narrowed(wanted):
            return page_of(
                select(*columns).where(*conditions), (outcome.created_at, outcome.decision_id), position, size
            )
        if position is not None:
            conditions.append(older_than((outcome.created_at, outcome.decision_id), position))
        walked = select(*columns).where(*conditions).subquery("found")
        order = (walked.c.created_at, walked.c.id)
        has = select(literal(1)).where(
            own.id == walked.c.id, own.created_at == walked.c.created_at, *_conditions(wanted)
        )
    asked = has.offset(0).lateral("asked")
    return page_of(select(*order).select_from(walked).join(asked, true()), order, position, size)


async def list_decisions(
    connection: AsyncConnection, wanted: AuditFilter, page: Page, spans: Spans = ALWAYS
) -> Listing[DecisionRow]:
    size = page_size(page)
    position = read_cursor("decisions", wanted, page, (str,))
    matching = select(decisions.c.id).where(*_conditions(wanted))
    few = bool(wanted.status or wanted.node) and await are_few(connection, matching, wanted)
    build = partial(decisions_statement, few=few)
    # By status the advice is walked, which is one table; what is few is asked for once.
    months = ALWAYS if wanted.status or few else spans
    found = await month_by_month(connection, build, wanted, position, size, months)
    kept, cursor = cut(found, size, "decisions", wanted, lambda row: Position(at=row.created_at, ids=(row.id,)))
    if not kept:
        return Listing(rows=(), next_cursor="")
    query = _decisions_query([row.id for row in kept], [row.created_at for row in kept])
    whole = {row.id: row for row in await connection.execute(query)}
    rows = [whole[row.id] for row in kept if row.id in whole]
    return Listing(rows=await _decision_rows(connection, rows), next_cursor=cursor)


async def _whole_id(connection: AsyncConnection, ids_of: Column[Any], text: str) -> str | None:
    """Of one table's ids the one that `text` is, or is the beginning of. Raises `Ambiguous`."""
    known = as_id(text)
    span = span_of(text) if known is None else None
    if span is None:
        return known
    found = await connection.execute(select(ids_of).where(ids_of.between(*span)).order_by(ids_of).limit(_ALIKE_SHOWN))
    ids = tuple(found.scalars())
    if len(ids) > 1:
        raise Ambiguous(text, ids)
    return ids[0] if ids else None


async def get_decision(connection: AsyncConnection, decision_id: str) -> DecisionRow | None:
    known = await _whole_id(connection, decisions.c.id, decision_id)
    if known is None:
        return None
    rows = (await connection.execute(_decisions_query([known]))).all()
    found = await _decision_rows(connection, rows)
    return found[0] if found else None


async def get_decision_inputs(
    connection: AsyncConnection, decision_id: str, held: Sequence[str] = ()
) -> DecisionInputs | None:
    """`held`: hashes of rules and policies that are not to be read again."""
    known = await _whole_id(connection, decisions.c.id, decision_id)
    if known is None:
        return None
    inputs, rules, policy = blobs.alias("inputs"), blobs.alias("rules"), blobs.alias("policy")
    found = await connection.execute(
        select(
            decisions.c.id,
            decisions.c.decision,
            decisions.c.inputs_hash,
            decisions.c.build,
            decisions.c.rules_hash,
            decisions.c.policy_hash,
            inputs.c.bytes.label("inputs"),
            case((rules.c.hash.not_in(held), rules.c.bytes)).label("rules"),
            case((policy.c.hash.not_in(held), policy.c.bytes)).label("policy"),
        )
        .join(inputs, inputs.c.hash == decisions.c.inputs_hash)
        .join(rules, rules.c.hash == decisions.c.rules_hash)
        .join(policy, policy.c.hash == decisions.c.policy_hash)
        .where(decisions.c.id == known)
    )
    row = found.one_or_none()
    if row is None:
        return None
    return DecisionInputs(
        decision_id=row.id,
        inputs_hash=row.inputs_hash,
        inputs=zlib.decompress(row.inputs),
        rules_hash=row.rules_hash,
        rules=zlib.decompress(row.rules) if row.rules is not None else b"",
        policy_hash=row.policy_hash,
        policy=zlib.decompress(row.policy) if row.policy is not None else b"",
        decision=bytes(row.decision),
        build=row.build,
    )


async def _decision_rows(connection: AsyncConnection, rows: Sequence[AnyRow]) -> tuple[DecisionRow, ...]:
    if not rows:
        return ()
    outcomes: dict[str, list[Reconciliation]] = defaultdict(list)
    for row in await connection.execute(
        select(reconciliations)
        .where(
            reconciliations.c.decision_id == any_id(row.id for row in rows),
            reconciliations.c.decided_at == any_time(row.created_at for row in rows),
        )
        .order_by(reconciliations.c.seq)
    ):
        outcomes[row.decision_id].append(reconciliation(row))
    reached = await _milestones(connection, rows)
    return tuple(
        DecisionRow(
            decision_id=row.id,
            attempt=reference(row),
            partition=row.partition,
            generation=row.generation,
            decision=_decision(row),
            analysis_json=row.analysis,
            incident_id=row.incident_id or "",
            inputs_hash=row.inputs_hash,
            rules_hash=row.rules_hash,
            policy_hash=row.policy_hash,
            build=row.build,
            created_at=row.created_at,
            expires_at=row.expires_at,
            status=ReconciliationStatus(row.status),
            reconciliations=tuple(outcomes[row.id]),
            milestones=reached[_key(row)],
            in_scope=row.in_scope,
            undone=row.undone,
        )
        for row in rows
    )


def _decision(row: AnyRow) -> Decision | UnreadDecision:
    """One row that this build cannot read is told as such: the others of its page are."""
    try:
        return unpack_decision(row.id, row.build, row.decision)
    except Unreadable as error:
        return UnreadDecision(
            why=str(error),
            action=row.action,
            reason=row.reason,
            category=row.category,
            mode=row.mode,
            excluded_nodes=tuple(row.excluded_nodes),
        )


# incidents


def _incidents_query(page: FromClause) -> Select[Any]:
    return (
        select(
            *(column for column in incidents.c if column.name not in {"cluster", "job_id", "job_key", "number"}),
            *reference_columns(),
        )
        .select_from(page)
        .join(incidents, incidents.c.id == page.c.id)
        .join(attempts, of_attempt(attempts, incidents))
    )


def incidents_statement(
    wanted: AuditFilter, position: Position | None, size: int, *, only_open: bool = False
) -> Select[Any]:
    conditions = of_row(wanted, incidents.c, incidents.c.opened_at, incidents.c.implicated_nodes)
    conditions += equal((wanted.category, incidents.c.category))
    if only_open:
        conditions.append(incidents.c.closed_at.is_(None))
    order = (incidents.c.opened_at, incidents.c.id)
    found = page_of(select(incidents.c.id).where(*conditions), order, position, size).cte("page")
    return _incidents_query(found).order_by(*(column.desc() for column in order))


async def list_incidents(
    connection: AsyncConnection, wanted: AuditFilter, page: Page, *, only_open: bool = False
) -> Listing[IncidentRow]:
    refuse(wanted, ("action", "reason", "mode", "status"), "incidents")
    size = page_size(page)
    kind = "open incidents" if only_open else "incidents"
    position = read_cursor(kind, wanted, page, (str,))
    rows = (await connection.execute(incidents_statement(wanted, position, size, only_open=only_open))).all()
    kept, cursor = cut(rows, size, kind, wanted, lambda row: Position(at=row.opened_at, ids=(row.id,)))
    return Listing(rows=tuple(_incident(row) for row in kept), next_cursor=cursor)


async def get_incident(connection: AsyncConnection, incident_id: str) -> IncidentRow | None:
    known = await _whole_id(connection, incidents.c.id, incident_id)
    if known is None:
        return None
    page = select(incidents.c.id).where(incidents.c.id == known).cte("page")
    row = (await connection.execute(_incidents_query(page))).one_or_none()
    return None if row is None else _incident(row)


def _incident(row: AnyRow) -> IncidentRow:
    signals: tuple[Signal, ...] = ()
    unreadable = ""
    try:
        signals = unpack_signals(row.signals)
    except CodecError as error:
        unreadable = f"its evidence was written by another build, in another form: {error}"
    return IncidentRow(
        incident_id=row.id,
        attempt=reference(row),
        kind=row.kind,
        category=row.category,
        root_cause=row.root_cause,
        opened_at=row.opened_at,
        closed_at=row.closed_at,
        implicated_nodes=tuple(row.implicated_nodes),
        signals=signals,
        unreadable=unreadable,
    )


# attempts


def attempts_query(page: FromClause) -> Select[Any]:
    return (
        select(
            *reference_columns(),
            attempts.c.state,
            attempts.c.started_at,
            attempts.c.ended_at,
            attempts.c.nodes,
            attempts.c.progress,
            attempts.c.first_step,
            attempts.c.last_step,
            attempts.c.checkpoint_step,
            attempts.c.resumed_step,
            attempts.c.in_job_restarts,
            attempts.c.foreign_count,
            attempts.c.partition,
            attempts.c.withdrawn_generation,
            forgets_at().label("remembered_until"),
            jobs.c.name,
            jobs.c.in_scope,
        )
        .select_from(page)
        .join(attempts, of_attempt(attempts, page))
        .join(jobs, jobs.c.key == attempts.c.job_key)
    )


def attempts_statement(wanted: AuditFilter, position: Position | None, size: int) -> Select[Any]:
    conditions = of_row(wanted, attempts.c, attempts.c.submitted_at, attempts.c.nodes)
    order = (attempts.c.submitted_at, attempts.c.job_key, attempts.c.number)
    keys = select(attempts.c.job_key, attempts.c.number).where(*conditions)
    found = page_of(keys, order, position, size).cte("page")
    return attempts_query(found).order_by(*(column.desc() for column in order))


async def list_attempts(connection: AsyncConnection, wanted: AuditFilter, page: Page) -> Listing[AttemptRow]:
    refuse(wanted, ("category", "action", "reason", "mode", "status"), "attempts")
    size = page_size(page)
    position = read_cursor("attempts", wanted, page, (str, int))
    rows = (await connection.execute(attempts_statement(wanted, position, size))).all()
    kept, cursor = cut(
        rows,
        size,
        "attempts",
        wanted,
        lambda row: Position(at=row.submitted_at, ids=(row.job_key, row.number)),
    )
    return Listing(rows=await attempt_rows(connection, kept), next_cursor=cursor)


async def get_attempt(
    connection: AsyncConnection, *, cluster: str, job_id: str, number: int, job_key: str
) -> AttemptRow | None:
    """By `job_key` where given, else of the job that had the id last."""
    query = select(attempts.c.job_key, attempts.c.number).where(attempts.c.number == number)
    if job_key:
        query = query.where(attempts.c.job_key == (as_id(job_key) or NOBODY))
    else:
        query = query.where(attempts.c.cluster == storable(cluster), attempts.c.job_id == storable(job_id))
    page = query.order_by(attempts.c.submitted_at.desc(), attempts.c.job_key.desc()).limit(1).cte("page")
    found = await attempt_rows(connection, (await connection.execute(attempts_query(page))).all())
    return found[0] if found else None


async def attempt_rows(connection: AsyncConnection, rows: Sequence[AnyRow]) -> tuple[AttemptRow, ...]:
    reached = await _milestones(connection, rows)
    return tuple(
        AttemptRow(
            attempt=reference(row),
            state=AttemptState(row.state),
            started_at=row.started_at,
            ended_at=row.ended_at,
            nodes=tuple(row.nodes or ()),
            progress=_progress(row),
            foreign=row.foreign_count,
            partition=row.partition,
            job_name=row.name,
            in_scope=row.in_scope,
            milestones=reached[_key(row)],
            withdrawn=row.withdrawn_generation is not None,
            remembered_until=row.remembered_until,
        )
        for row in rows
    )


def _progress(row: AnyRow) -> Progress:
    """What another build wrote in a form of its own is read from the columns: they hold what a list shows."""
    try:
        return Progress() if row.progress is None else decode(Progress, row.progress)
    except CodecError:
        return Progress(
            first_step=row.first_step,
            last_step=row.last_step,
            checkpoint_step=row.checkpoint_step,
            resumed_step=row.resumed_step,
            in_job_restarts=row.in_job_restarts,
        )


# what they share


def _key(row: AnyRow) -> AttemptKey:
    return AttemptKey(job_key=row.job_key, number=row.number)


async def _milestones(
    connection: AsyncConnection, rows: Sequence[AnyRow]
) -> Mapping[AttemptKey, tuple[Milestone, ...]]:
    reached: dict[AttemptKey, tuple[Milestone, ...]] = defaultdict(tuple)
    if not rows:
        return reached
    table = wanted_attempts(list(dict.fromkeys(_key(row) for row in rows)))
    for row in await connection.execute(
        select(milestones).join(table, of_attempt(milestones, table)).order_by(milestones.c.at, milestones.c.kind)
    ):
        reached[_key(row)] += (Milestone(kind=MilestoneKind(row.kind), at=row.at, detail=row.detail),)
    return reached
