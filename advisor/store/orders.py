"""What operators order about jobs: given, taken back, and seen by decisions. Each change has its audit row.

An order and a decision of the same attempt have an order in time: both lock the attempt's row, and a decision that was
made without an order that is there by now is in conflict and made again. Advice that an order speaks against is closed
in the order's own transaction, so that nobody is told of it any more; what an agent had done before is on record, and
then the order is refused with it.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

from sqlalchemy import ColumnElement, and_, func, insert, or_, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from advisor.core.model import Order
from advisor.core.words import Action, Category, OrderKind, Reason
from advisor.store.audit_log import append
from advisor.store.errors import NotFound, TooLate
from advisor.store.ids import as_id, new_id
from advisor.store.open_advice import take_back
from advisor.store.order_facts import WAITING, Facts, check, look, may_be_ordered
from advisor.store.order_records import OrderGiven, OrderWanted, SinceOrder, StoredOrder
from advisor.store.records import AttemptKey, AttemptRef, AuditEvent, ReconciliationReason, ReconciliationStatus
from advisor.store.scheduler_memory import remembered_until
from advisor.store.sql import AnyRow, any_id, of_attempt, storable
from advisor.store.tables import attempts, decisions, jobs, node_states, orders, reconciliations

LISTED_MAX = 250
_TEXT_MAX = 1000
_OFFSET_MAX = 2**31 - 1
_OF_ATTEMPT = sorted(kind.value for kind in OrderKind if kind.of_attempt)
_ABOUT_NODES = frozenset({OrderKind.EXCLUDE, OrderKind.SPARE})


async def find_attempt(
    connection: AsyncConnection, *, cluster: str, job_id: str, number: int | None, decision_id: str = ""
) -> tuple[AttemptKey, AttemptRef]:
    """Which attempt is meant: that of a decision, the one named, or the newest that has begun. Raises `NotFound`."""
    columns = (attempts.c.job_key, attempts.c.number, attempts.c.state, attempts.c.submitted_at, jobs.c.cluster)
    query = select(*columns, jobs.c.job_id, jobs.c.user_name).join(jobs, jobs.c.key == attempts.c.job_key)
    if decision_id:
        query = query.join(decisions, of_attempt(decisions, attempts)).where(decisions.c.id == as_id(decision_id))
    else:
        newest = (
            select(jobs.c.key)
            .where(jobs.c.cluster == storable(cluster), _named(storable(job_id)))
            .order_by(jobs.c.first_seen_at.desc())
            .limit(1)
            .scalar_subquery()
        )
        meant = attempts.c.withdrawn_generation.is_(None) if number is None else attempts.c.number == number
        query = query.where(attempts.c.job_key == newest, meant)
    found = (await connection.execute(query.order_by(attempts.c.number.desc()).limit(LISTED_MAX))).all()
    row = next((item for item in found if item.state not in WAITING), found[0] if found else None)
    if row is None:
        what = f"attempt {number} of job {job_id}" if number is not None else f"job {job_id}"
        raise NotFound(f"no decision {decision_id}" if decision_id else f"no {storable(what)} in cluster {cluster}")
    key = AttemptKey(job_key=row.job_key, number=row.number)
    ref = AttemptRef(
        cluster=row.cluster,
        job_id=row.job_id,
        job_key=row.job_key,
        number=row.number,
        user=row.user_name,
        submitted_at=row.submitted_at,
    )
    return key, ref


def _named(job_id: str) -> ColumnElement[bool]:
    """As Slurm prints it: 123, 123_4 (a task of an array), 123+1 (a component of a heterogeneous job)."""
    leader, plus, offset = job_id.partition("+")
    if plus and offset.isdecimal():
        return and_(jobs.c.het_job_id == leader, jobs.c.het_offset == min(int(offset), _OFFSET_MAX))
    return jobs.c.slot == job_id if "_" in job_id else jobs.c.job_id == job_id


async def give(
    connection: AsyncConnection, wanted: OrderWanted, *, who: str, why: str, origin: str, now: datetime
) -> OrderGiven:
    """Put it in force. The same once more changes nothing. Raises `NotFound`, and `TooLate` with what has happened."""
    facts = await look(connection, wanted.key, now)
    standing = await _standing(connection, wanted.key.job_key)
    if wanted.kind is OrderKind.WITHDRAW and facts.decision is not None:
        override = next((o for o in standing if _is_override_of(o, wanted.key)), None)
        if override is not None and facts.decision.reason == Reason.OPERATOR.value:
            ordered = override.order.action
            if ordered is not None and ordered in facts.accepted:
                raise TooLate(
                    f"the scheduler accepted its {ordered.value} at {facts.accepted[ordered]:%H:%M:%SZ} already"
                )
            return await _lift(connection, override, who=who, why=why, origin=origin, now=now)
        wanted = _of_newest(wanted, facts)
    same = next((order for order in standing if _same(order, wanted)), None)
    if same is not None and not _came_to_nothing(same, facts):
        return OrderGiven(order=same, changed=False, orders=facts.row.orders)
    check(wanted, facts, standing)
    if wanted.kind is OrderKind.EXCLUDE:
        await _must_exist(connection, facts.row.cluster, storable(wanted.node))
    for replaced in [order for order in standing if _replaces(wanted, order)]:
        await _end(connection, replaced, who=who, why=f"replaced: {why}", now=now)
    row = {
        "id": new_id(now),
        "kind": wanted.kind.value,
        "cluster": facts.row.cluster,
        "job_key": wanted.key.job_key,
        "number": wanted.key.number,
        "job_id": facts.row.job_id,
        "user_name": facts.row.user_name,
        "decision_id": facts.decision.id if facts.decision is not None and wanted.kind.of_attempt else None,
        "action": wanted.action.value if wanted.action is not None else None,
        "category": wanted.category.value if wanted.category is not None else None,
        "node": storable(wanted.node),
        "ends_live": wanted.ends_live,
        "ceiling": wanted.ceiling,
        "set_by": storable(who),
        "why": storable(why)[:_TEXT_MAX],
        "origin": storable(origin),
        "set_at": now,
    }
    await connection.execute(insert(orders).values(**row))
    if wanted.kind.of_attempt:
        await take_back(connection, wanted.key, f"{wanted.kind.value} by {storable(who)}", now)
    seen = await _counted(connection, wanted.key, now)
    order = await _one(connection, str(row["id"]))
    await _audit(connection, order, "order_given", who=who, why=why, origin=origin, now=now)
    return OrderGiven(order=order, changed=True, orders=seen)


async def _must_exist(connection: AsyncConnection, cluster: str, node: str) -> None:
    """A misspelt node would take the room of one that is at fault, and the scheduler would refuse it.

    Where no agent has shown any node yet, nothing is known and every name is taken.
    """
    shown = select(node_states.c.name).where(node_states.c.cluster == cluster)
    if (await connection.execute(shown.where(node_states.c.name == node))).first() is not None:
        return
    if (await connection.execute(shown.limit(1))).first() is not None:
        raise NotFound(f"no node {node} in cluster {cluster}")


async def lift(
    connection: AsyncConnection, order_id: str, *, who: str, why: str, origin: str, now: datetime
) -> OrderGiven:
    """It holds no longer. Once more changes nothing. Raises `NotFound`."""
    key = as_id(order_id)
    found = None if key is None else await connection.execute(select(orders).where(orders.c.id == key))
    row = None if found is None else found.one_or_none()
    if row is None:
        raise NotFound(f"no order {storable(order_id)[:64]!r}")
    order = _stored(row)
    facts = await look(connection, order.key, now)
    order = await _one(connection, order.order.id)
    if order.lifted_at is not None:
        return OrderGiven(order=order, changed=False, orders=facts.row.orders)
    return await _lift(connection, order, who=who, why=why, origin=origin, now=now)


async def _lift(
    connection: AsyncConnection, order: StoredOrder, *, who: str, why: str, origin: str, now: datetime
) -> OrderGiven:
    await _end(connection, order, who=who, why=why, now=now)
    if order.order.kind is OrderKind.OVERRIDE:
        await take_back(connection, order.key, f"override taken back by {storable(who)}", now)
    seen = await _counted(connection, order.key, now)
    lifted = await _one(connection, order.order.id)
    await _audit(connection, lifted, "order_lifted", who=who, why=why, origin=origin, now=now)
    return OrderGiven(order=lifted, changed=True, orders=seen)


async def in_force(connection: AsyncConnection, job_keys: Iterable[str]) -> Mapping[str, tuple[StoredOrder, ...]]:
    """By job, oldest first. Served by `orders_in_force_idx`, which holds only what is in force."""
    found = await connection.execute(
        select(orders)
        .where(orders.c.job_key == any_id(set(job_keys)), orders.c.lifted_at.is_(None))
        .order_by(orders.c.set_at, orders.c.id)
    )
    by_job: dict[str, list[StoredOrder]] = defaultdict(list)
    for row in found:
        by_job[row.job_key].append(_stored(row))
    return {key: tuple(items) for key, items in by_job.items()}


def orders_for(standing: Sequence[StoredOrder], number: int) -> tuple[Order, ...]:
    """Those that bear on one attempt: its own, the job's nodes, and budgets that were reset at or before it."""
    return tuple(
        item.order
        for item in standing
        if (item.order.kind in _ABOUT_NODES)
        or (item.order.attempt == number if item.order.kind.of_attempt else item.order.attempt <= number)
    )


async def list_orders(
    connection: AsyncConnection, *, cluster: str, job_id: str, lifted: bool, now: datetime
) -> tuple[StoredOrder, ...]:
    """Newest first, at most LISTED_MAX. `lifted`: also those that hold no longer, lifted or of an attempt that is over
    for good: nothing is decided about it, and nothing can be ordered any more.
    """
    where: list[ColumnElement[bool]] = []
    if not lifted:
        to_be_decided = or_(attempts.c.open, may_be_ordered(now))
        bears = select(attempts.c.number).where(of_attempt(attempts, orders), to_be_decided).exists()
        where = [orders.c.lifted_at.is_(None), or_(orders.c.kind.not_in(_OF_ATTEMPT), bears)]
    if cluster:
        where.append(orders.c.cluster == storable(cluster))
    if job_id:
        where.append(orders.c.job_id == storable(job_id))
    query = select(orders).where(*where).order_by(orders.c.set_at.desc(), orders.c.id.desc()).limit(LISTED_MAX)
    return tuple(_stored(row) for row in await connection.execute(query))


async def since(connection: AsyncConnection, key: AttemptKey, count: int) -> SinceOrder:
    """`count`: how many orders of the attempt a decision must have seen."""
    facts = await look(connection, key, None)
    decision = facts.decision
    decided = decision is not None and facts.row.orders_decided >= count
    told = None
    if decision is not None and decided:
        last = await connection.execute(
            select(reconciliations.c.status, reconciliations.c.reason)
            .where(reconciliations.c.decision_id == decision.id)
            .order_by(reconciliations.c.seq.desc())
            .limit(1)
        )
        said = last.one_or_none()
        told = (ReconciliationStatus(said.status), ReconciliationReason(said.reason)) if said is not None else None
    return SinceOrder(
        decided=decided,
        decision_id=decision.id if decision is not None else "",
        generation=decision.generation if decision is not None else 0,
        action=decision.action if decision is not None else "",
        reason=decision.reason if decision is not None else "",
        mode=decision.mode if decision is not None else "",
        told=told,
        accepted=facts.accepted,
    )


def _of_newest(wanted: OrderWanted, facts: Facts) -> OrderWanted:
    """A withdrawal is about what the newest decision advises, for its cause."""
    decision = facts.decision
    if decision is None or decision.action == Action.NONE.value:
        return wanted
    return OrderWanted(
        kind=wanted.kind, key=wanted.key, action=Action(decision.action), category=Category(decision.category)
    )


def _same(order: StoredOrder, wanted: OrderWanted) -> bool:
    held = order.order
    if held.kind is not wanted.kind or held.node != wanted.node:
        return False
    if wanted.kind in _ABOUT_NODES:
        return True
    # A reset of the ceiling, too, is a reset of the budget: asked again for less, it goes on holding.
    alike = (held.action, held.category) == (wanted.action, wanted.category) and (held.ceiling or not wanted.ceiling)
    if wanted.kind is OrderKind.WITHDRAW and wanted.action is None:
        alike = True  # nothing newer was advised since
    return held.attempt == wanted.key.number and alike and (held.ends_live or not wanted.ends_live)


def _came_to_nothing(order: StoredOrder, facts: Facts) -> bool:
    """What it overrides is done with, and nothing was done about it: ordered again, it is meant."""
    held = order.order
    return held.kind is OrderKind.OVERRIDE and not facts.row.open and held.action not in facts.accepted


def _replaces(wanted: OrderWanted, order: StoredOrder) -> bool:
    held = order.order
    if wanted.kind in _ABOUT_NODES:
        return held.kind in _ABOUT_NODES and held.node == wanted.node
    return held.kind is wanted.kind and held.attempt == wanted.key.number


def _is_override_of(order: StoredOrder, key: AttemptKey) -> bool:
    return order.order.kind is OrderKind.OVERRIDE and order.key == key


async def _counted(connection: AsyncConnection, key: AttemptKey, now: datetime) -> int:
    """One order more, for every attempt of the job that a tick may still decide about.

    The named one is looked at again although it was done with, if the scheduler may still know it.
    """
    mine = and_(attempts.c.job_key == key.job_key, attempts.c.number == key.number)
    await connection.execute(
        update(attempts).where(mine, func.coalesce(remembered_until() > now, True)).values(open=True)
    )
    found = await connection.execute(
        update(attempts)
        .where(attempts.c.job_key == key.job_key, attempts.c.open | (attempts.c.number == key.number))
        .values(orders=attempts.c.orders + 1)
        .returning(attempts.c.number, attempts.c.orders)
    )
    return int(next(row.orders for row in found if row.number == key.number))


async def _standing(connection: AsyncConnection, job_key: str) -> tuple[StoredOrder, ...]:
    return (await in_force(connection, [job_key])).get(job_key, ())


async def _end(connection: AsyncConnection, order: StoredOrder, *, who: str, why: str, now: datetime) -> None:
    values = {"lifted_at": now, "lifted_by": storable(who), "lifted_why": storable(why)[:_TEXT_MAX]}
    await connection.execute(update(orders).where(orders.c.id == order.order.id).values(**values))


async def _one(connection: AsyncConnection, order_id: str) -> StoredOrder:
    return _stored((await connection.execute(select(orders).where(orders.c.id == order_id))).one())


async def _audit(
    connection: AsyncConnection, order: StoredOrder, what: str, *, who: str, why: str, origin: str, now: datetime
) -> None:
    held = order.order
    detail = {
        "kind": held.kind.value,
        "job_id": order.ref.job_id,
        "job_key": order.key.job_key,
        "attempt": str(order.key.number),
        "action": held.action.value if held.action is not None else "",
        "node": held.node,
        "ends_live": "yes" if held.ends_live else "",
        "ceiling": "yes" if held.ceiling else "",
        "decision": order.decision_id,
    }
    event = AuditEvent(
        at=now,
        who=who,
        what=what,
        why=why,
        origin=origin,
        cluster=order.ref.cluster,
        subject=held.id,
        detail={name: value for name, value in detail.items() if value},
    )
    await append(connection, event)


def _stored(row: AnyRow) -> StoredOrder:
    return StoredOrder(
        order=Order(
            id=row.id,
            kind=OrderKind(row.kind),
            who=row.set_by,
            at=row.set_at,
            attempt=row.number,
            why=row.why,
            action=Action(row.action) if row.action is not None else None,
            category=Category(row.category) if row.category is not None else None,
            node=row.node,
            ends_live=row.ends_live,
            ceiling=row.ceiling,
        ),
        key=AttemptKey(job_key=row.job_key, number=row.number),
        ref=AttemptRef(
            cluster=row.cluster, job_id=row.job_id, job_key=row.job_key, number=row.number, user=row.user_name
        ),
        origin=row.origin,
        decision_id=row.decision_id or "",
        lifted_at=row.lifted_at,
        lifted_by=row.lifted_by or "",
        lifted_why=row.lifted_why or "",
    )
