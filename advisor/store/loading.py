"""All that is known of attempts, for a tick. A fixed number of queries, whatever the number of keys."""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta

import structlog
from sqlalchemy import ColumnElement, and_, case, null, or_, select, tuple_
from sqlalchemy.ext.asyncio import AsyncConnection

from advisor.core.codec import CodecError, decode
from advisor.core.model import (
    Attempt,
    ExitStatus,
    Job,
    NodeFact,
    OpenAdvice,
    Order,
    OurStop,
    PastAttempt,
    Progress,
    Signal,
    Successor,
)
from advisor.core.orders import newest
from advisor.core.policy import Policy
from advisor.core.words import Action, AttemptState, Category, Mode, OrderKind, Reason
from advisor.store.documents import unpack_signals
from advisor.store.node_states import reinstated
from advisor.store.orders import in_force, orders_for
from advisor.store.records import (
    AttemptKey,
    MilestoneKind,
    ReconciliationReason,
    ReconciliationStatus,
    StoredAttempt,
)
from advisor.store.remembered import Remembered
from advisor.store.scheduler_memory import remembered_until
from advisor.store.sql import AnyRow, of_advice, of_attempt, wanted_attempts
from advisor.store.tables import (
    advice,
    attempts,
    decisions,
    detector_states,
    jobs,
    milestones,
    reconciliations,
)

_log = structlog.get_logger(__name__)

_PAST_ATTEMPTS_MAX = 100
_STOP_SLACK = timedelta(seconds=60)  # the scheduler's clock, and an agent that had just heard of it
_AVOIDED_MAX = 4096  # excluded nodes of one attempt whose state is looked up


async def load(
    connection: AsyncConnection,
    keys: Sequence[AttemptKey],
    *,
    policy: Policy,
    now: datetime,
    remembered: Remembered | None = None,
) -> Mapping[AttemptKey, StoredAttempt]:
    """All that is known of each attempt; unknown keys are left out. What `remembered` holds is not read again as long
    as the database says that it is the same."""
    keys = list(dict.fromkeys(keys))
    if not keys:
        return {}
    memory = remembered or Remembered()
    same, clusters = await memory.confirmed(connection, keys, policy=policy, now=now)
    rest = [key for key in keys if key not in same]
    if not rest:
        return same
    loaded = await _load_anew(connection, rest, memory, clusters, policy=policy, now=now)
    return {key: item for key in keys if (item := same.get(key) or loaded.get(key)) is not None}


async def _load_anew(
    connection: AsyncConnection,
    keys: Sequence[AttemptKey],
    memory: Remembered,
    clusters: Sequence[str],
    *,
    policy: Policy,
    now: datetime,
) -> Mapping[AttemptKey, StoredAttempt]:
    wanted = wanted_attempts(keys)
    unread = memory.unread_states(keys)
    rows = {
        AttemptKey(job_key=row.job_key, number=row.number): row
        for row in await connection.execute(
            select(
                *attempts.c,
                *(column for column in jobs.c if column.name not in attempts.c),
                _state_but_of(unread).label("detector_state"),
                detector_states.c.signals,
                remembered_until().label("remembered_until"),
            )
            .select_from(attempts)
            .join(wanted, of_attempt(attempts, wanted))
            .join(jobs, jobs.c.key == attempts.c.job_key)
            .outerjoin(detector_states, of_attempt(detector_states, attempts))
        )
    }
    chains = await _chains(connection, keys)
    excluded = {name for chain in chains.values() for item in chain for name in item.advised_exclusions or ()}
    avoided = {key: _avoided(chain, rows[key].nodes or ()) for key, chain in chains.items() if key in rows}
    put_back = await reinstated(connection, clusters, excluded) if excluded else {}
    acted = await _acted(connection, keys)
    reached = await _milestones(connection, keys)
    before = await _predecessor_states(connection, keys)
    standing = await in_force(connection, {key.job_key for key in keys})
    loaded = {}
    for key, row in rows.items():
        try:
            loaded[key] = _stored(
                key,
                row,
                chains[key],
                acted=acted.get(key, ()),
                reached=reached.get(key, {}),
                predecessor=before.get(key, b""),
                unread=unread.get(key),
                nodes=memory.nodes.facts(row, policy=policy, now=now),
                other_nodes=tuple(
                    fact for name in avoided[key] if (fact := memory.nodes.fact(row.cluster, name)) is not None
                ),
                dependents_running=memory.beside(row),
                put_back=put_back.get(row.cluster, {}),
                orders=orders_for(standing.get(key.job_key, ()), key.number),
                orders_before=orders_for(standing.get(key.job_key, ()), key.number - 1),
            )
        except ValueError as error:  # a word that only a newer build knows: this attempt is its replicas'
            _log.warning("attempt_unreadable", attempt=str(key), error=str(error)[:300])
    memory.take(rows, loaded, alone={key for key, chain in chains.items() if len(chain) == 1})
    return loaded


async def _chains(connection: AsyncConnection, keys: Sequence[AttemptKey]) -> Mapping[AttemptKey, list[AnyRow]]:
    """All attempts of the job from long enough before each wanted one on, with their newest decisions, by number."""
    wanted = wanted_attempts(keys)
    found = await connection.execute(
        select(
            wanted.c.number.label("wanted_number"),
            attempts.c.job_key,
            attempts.c.number,
            attempts.c.state,
            attempts.c.nodes,
            attempts.c.started_at,
            attempts.c.ended_at,
            attempts.c.eligible_at,
            attempts.c.excluded_nodes,
            attempts.c.our_excluded_nodes,
            attempts.c.held,
            attempts.c.marked_generation,
            attempts.c.marked_attempt,
            attempts.c.withdrawn_generation,
            attempts.c.nodes_fitting,
            attempts.c.first_step,
            attempts.c.last_step,
            attempts.c.checkpoint_step,
            advice.c.undone,
            decisions.c.generation,
            decisions.c.category,
            decisions.c.fingerprint,
            decisions.c.reason,
            decisions.c.action,
            decisions.c.trusted,
            decisions.c.implicated_nodes,
            decisions.c.excluded_nodes.label("advised_exclusions"),
            decisions.c.created_at,
            decisions.c.expires_at,
        )
        .join(wanted, attempts.c.job_key == wanted.c.job_key)
        .outerjoin(advice, and_(of_attempt(advice, attempts), advice.c.generation == attempts.c.generation))
        .outerjoin(decisions, of_advice(decisions, advice))
        .where(attempts.c.number >= wanted.c.number - _PAST_ATTEMPTS_MAX)
        .order_by(attempts.c.job_key, attempts.c.number)
    )
    chains: dict[AttemptKey, list[AnyRow]] = defaultdict(list)
    for row in found:
        chains[AttemptKey(job_key=row.job_key, number=row.wanted_number)].append(row)
    return chains


async def _acted(connection: AsyncConnection, keys: Sequence[AttemptKey]) -> Mapping[AttemptKey, Sequence[AnyRow]]:
    """What the scheduler has accepted, by any generation: a refinement does not undo a requeue. Of stops, which end an
    attempt for good, all, and those of the attempts just before and after: an agent may be doing, or have done them.
    Nothing that it has forgotten since.
    """
    wanted = wanted_attempts(keys)
    stop = advice.c.action == Action.STOP.value
    said = (
        select(reconciliations.c.reason)
        .where(reconciliations.c.decision_id == advice.c.decision_id)
        .order_by(reconciliations.c.seq.desc())
        .limit(1)
        .scalar_subquery()
    )
    found = await connection.execute(
        select(
            wanted.c.job_key,
            wanted.c.number.label("wanted_number"),
            advice.c.number,
            advice.c.action,
            advice.c.applied,
            advice.c.open,
            advice.c.status,
            advice.c.created_at,
            advice.c.expires_at,
            case((stop, said)).label("said"),  # what came of it last
            decisions.c.reason,
            decisions.c.mode,
        )
        .join(wanted, and_(advice.c.job_key == wanted.c.job_key, advice.c.number.between(*_beside(wanted.c.number))))
        .join(decisions, of_advice(decisions, advice))
        .where(~advice.c.undone, or_(and_(advice.c.applied, advice.c.number == wanted.c.number), stop))
        .order_by(advice.c.job_key, advice.c.number, advice.c.generation)
    )
    acted: dict[AttemptKey, list[AnyRow]] = defaultdict(list)
    for row in found:
        acted[AttemptKey(job_key=row.job_key, number=row.wanted_number)].append(row)
    return acted


def _beside(number: ColumnElement[int]) -> tuple[ColumnElement[int], ColumnElement[int]]:
    return number - 1, number + 1


async def _milestones(
    connection: AsyncConnection, keys: Sequence[AttemptKey]
) -> Mapping[AttemptKey, Mapping[MilestoneKind, datetime]]:
    wanted = wanted_attempts(keys)
    reached: dict[AttemptKey, dict[MilestoneKind, datetime]] = defaultdict(dict)
    for row in await connection.execute(
        select(milestones.c.job_key, milestones.c.number, milestones.c.kind, milestones.c.at).join(
            wanted, of_attempt(milestones, wanted)
        )
    ):
        reached[AttemptKey(job_key=row.job_key, number=row.number)][MilestoneKind(row.kind)] = row.at
    return reached


async def _predecessor_states(connection: AsyncConnection, keys: Sequence[AttemptKey]) -> Mapping[AttemptKey, bytes]:
    wanted = wanted_attempts(keys)
    found = await connection.execute(
        select(wanted.c.job_key, wanted.c.number, detector_states.c.state).join(
            detector_states,
            and_(detector_states.c.job_key == wanted.c.job_key, detector_states.c.number == wanted.c.number - 1),
        )
    )
    return {AttemptKey(job_key=row.job_key, number=row.number): row.state for row in found}


def _avoided(chain: Sequence[AnyRow], allocated: Sequence[str]) -> tuple[str, ...]:
    """Nodes outside the allocation that the user's exclusions and ours name, the user's first."""
    ours = (name for item in chain for name in item.advised_exclusions or ())
    names, own = dict.fromkeys((*chain[-1].excluded_nodes, *ours)), frozenset(allocated)
    return tuple(name for name in names if name not in own)[:_AVOIDED_MAX]


def _stored(
    key: AttemptKey,
    row: AnyRow,
    chain: Sequence[AnyRow],
    *,
    acted: Sequence[AnyRow],
    reached: Mapping[MilestoneKind, datetime],
    predecessor: bytes,
    unread: bytes | None,
    nodes: tuple[NodeFact, ...],
    other_nodes: tuple[NodeFact, ...],
    dependents_running: bool,
    put_back: Mapping[str, datetime],
    orders: tuple[Order, ...],
    orders_before: tuple[Order, ...],
) -> StoredAttempt:
    chain = [item for item in chain if item.number == key.number or item.withdrawn_generation is None]
    own = next(item for item in chain if item.number == key.number)
    later = [item for item in chain if item.number > key.number]
    latest = chain[-1]
    state, signals, progress = _detector(key, row, unread)
    ours = set(latest.our_excluded_nodes)
    ends = {item.number: item.ended_at for item in chain}
    stops = _stops(acted, {item.number: ends.get(item.number + 1, item.ended_at) for item in chain})
    # No agent ends a waiting attempt that others put into the queue.
    called_off = _our_stop(stops.get(key.number - 1), orders_before) if _by_us(own, key.number - 1) else None
    applied = frozenset(Action(item.action) for item in acted if item.applied and item.number == key.number)
    return StoredAttempt(
        key=key,
        job=_job(row),
        attempt=_attempt(row),
        successor=_successor(key, later[0], stopped=later[0].number in stops) if later else None,
        past=tuple(_past(item, put_back) for item in chain if item.number < key.number),
        nodes=nodes,
        other_nodes=other_nodes,
        advice=_advice(own, applied),
        advice_expires_at=own.expires_at,
        remembered_until=row.remembered_until,
        generation=row.generation,
        user_excluded=tuple(name for name in latest.excluded_nodes if name not in ours),
        dependents_running=dependents_running,
        orders=orders,
        orders_count=row.orders,
        ordered=row.orders != row.orders_decided,
        stop=_our_stop(stops.get(key.number), orders) or called_off,
        nodes_fitting=latest.nodes_fitting,
        job_name=row.name,
        user_id=row.user_id,
        stdout_path=row.stdout_path,
        stderr_path=row.stderr_path,
        job_rules=row.job_rules,
        detector_state=state,
        predecessor_state=predecessor,
        signals=signals,
        progress=progress,
        foreign=row.foreign_count,
        milestones=reached,
        observed_at=row.observed_at,
        forgotten=row.forgotten_at is not None,
        undone=bool(own.undone),
    )


def _job(row: AnyRow) -> Job:
    return Job(
        key=row.job_key,
        cluster=row.cluster,
        job_id=row.job_id,
        user=row.user_name,
        partition=row.partition,
        account=row.account,
        batch=row.batch,
        requeueable=row.requeueable,
        in_scope=row.in_scope,
        restarts_max=row.restarts_max,
        nodes_requested=row.nodes_requested,
    )


def _attempt(row: AnyRow) -> Attempt:
    nodes = None if row.nodes is None else tuple(row.nodes)
    # One task per node may be a launcher that starts the ranks itself: then the tasks say nothing about the ranks.
    one_per_rank = bool(nodes) and row.tasks is not None and row.tasks > len(nodes or ())
    even = one_per_rank and row.tasks % len(nodes or ()) == 0
    return Attempt(
        number=row.number,
        state=AttemptState(row.state),
        nodes=nodes,
        exit=None if row.exit_code is None else ExitStatus(code=row.exit_code, signal=row.exit_signal or 0),
        submitted_at=row.submitted_at,
        started_at=row.started_at,
        ended_at=row.ended_at,
        world_size=row.tasks if one_per_rank else None,
        tasks_per_node=row.tasks // len(nodes or ()) if even else None,
        held=row.held,
        pending_reason=row.pending_reason,
    )


def _by_us(row: AnyRow, before: int) -> bool:
    """Our restart of the attempt `before` made it."""
    return bool(row.marked_generation > 0 and row.marked_attempt == before)


def _may_be_our_stop(row: AnyRow) -> bool:
    return Action(row.action) is Action.STOP and (row.applied or Mode(row.mode) is Mode.AUTONOMOUS)


def _stops(acted: Sequence[AnyRow], ends: Mapping[int, datetime | None]) -> Mapping[int, AnyRow]:
    """By attempt, the newest stop that was accepted or may just be; where there is none, the newest whose end nobody
    reported. `ends`: when what such a stop would have ended did.
    """
    mine = [item for item in acted if _may_be_our_stop(item)]
    since = {item.number: item.created_at for item in reversed(mine)}
    unreported = {
        number: item
        for number, item in {item.number: item for item in mine}.items()
        if _unreported(item, since[number], ends.get(number))
    }
    return unreported | {item.number: item for item in mine if item.applied or item.open}


def _unreported(row: AnyRow, since: datetime, ended_at: datetime | None) -> bool:
    """Whether it may have been carried out, and no agent says so or that it was not. `since`: it was out then."""
    status, said = ReconciliationStatus(row.status), ReconciliationReason(row.said or ReconciliationReason.UNSPECIFIED)
    gone = status is ReconciliationStatus.ABANDONED and said is ReconciliationReason.GONE
    if status is not ReconciliationStatus.EXPIRED and not gone and said is not ReconciliationReason.STOP_UNREPORTED:
        return False
    return ended_at is None or since - _STOP_SLACK <= ended_at <= row.expires_at + _STOP_SLACK


def _our_stop(row: AnyRow | None, orders: Sequence[Order]) -> OurStop | None:
    if row is None:
        return None
    reason, order = Reason(row.reason), newest(orders, OrderKind.OVERRIDE)
    ordered = reason is Reason.OPERATOR and order is not None and order.action is Action.STOP
    return OurStop(
        attempt=row.number,
        reason=reason,
        applied=row.applied,
        order=order if ordered else None,
        unreported=not row.applied and not row.open,
    )


def _successor(key: AttemptKey, row: AnyRow, *, stopped: bool) -> Successor:
    return Successor(
        number=row.number,
        state=AttemptState(row.state),
        by_us=_by_us(row, key.number),
        eligible_at=row.eligible_at,
        excluded_nodes=tuple(row.excluded_nodes),
        held=row.held,
        stopped=stopped,
    )


def _past(row: AnyRow, put_back: Mapping[str, datetime]) -> PastAttempt:
    """`put_back`: nodes that somebody reinstated, and when: what was excluded before that is spent."""
    decided = row.generation is not None
    excluded = tuple(row.advised_exclusions) if decided else ()
    return PastAttempt(
        number=row.number,
        category=Category(row.category) if decided else Category.UNKNOWN,
        fingerprint=row.fingerprint if decided else "",
        reason=Reason(row.reason) if decided else None,
        action=Action(row.action) if decided else None,
        implicated_nodes=tuple(row.implicated_nodes) if decided else (),
        excluded_nodes=tuple(node for node in excluded if node not in put_back or put_back[node] < row.created_at),
        trusted=row.trusted if decided else False,
        nodes=tuple(row.nodes or ()),
        first_step=row.first_step,
        last_step=row.last_step,
        checkpoint_step=row.checkpoint_step,
        started_at=row.started_at,
        ended_at=row.ended_at,
    )


def _advice(row: AnyRow, applied: frozenset[Action]) -> OpenAdvice | None:
    if row.generation is None:
        return None
    return OpenAdvice(
        generation=row.generation,
        action=Action(row.action),
        exclude_nodes=tuple(row.advised_exclusions),
        category=Category(row.category),
        reason=Reason(row.reason),
        created_at=row.created_at,
        applied=Action(row.action) in applied,
    )


def _state_but_of(unread: Collection[AttemptKey]) -> ColumnElement[bytes]:
    if not unread:
        return detector_states.c.state
    known = tuple_(detector_states.c.job_key, detector_states.c.number).in_([(k.job_key, k.number) for k in unread])
    return case((known, null()), else_=detector_states.c.state)


def _detector(key: AttemptKey, row: AnyRow, unread: bytes | None) -> tuple[bytes, tuple[Signal, ...], Progress]:
    state = row.detector_state if unread is None else unread
    if state is None:
        return b"", (), Progress()
    try:
        return state, unpack_signals(row.signals), decode(Progress, row.progress)
    except CodecError as error:
        # Another build wrote it. The sources are read again from the attempt's beginning.
        _log.warning("detector_state_unreadable", attempt=str(key), error=str(error))
        return b"", (), Progress()
