"""What is known of an attempt at the moment of an order, and what can be ordered no more because it has happened."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import ColumnElement, and_, func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from advisor.core.words import Action, AttemptState, OrderKind
from advisor.store.errors import NotFound, TooLate
from advisor.store.order_records import OrderWanted, StoredOrder
from advisor.store.records import AttemptKey, ReconciliationStatus
from advisor.store.scheduler_memory import forgotten_as_said, remembered_until
from advisor.store.sql import AnyRow
from advisor.store.tables import advice, attempts, decisions, jobs, reconciliations

WAITING = (AttemptState.PENDING.value, AttemptState.REQUEUE_HELD.value)
_NOT_STARTED = (*WAITING, AttemptState.COMPLETING.value)  # said of a next attempt
_ID_SHOWN = 13  # characters of an order's id, as `orders list` shows it
_OVER = (AttemptState.COMPLETED, AttemptState.CANCELLED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What is known of the attempt at the moment of the order, under its lock."""

    row: AnyRow
    successor: AnyRow | None
    decision: AnyRow | None  # the newest
    accepted: Mapping[Action, datetime]  # by the scheduler, of any generation, and not forgotten by it since
    forgotten: bool

    @property
    def state(self) -> AttemptState:
        return AttemptState(self.row.state)


async def look(connection: AsyncConnection, key: AttemptKey, now: datetime | None) -> Facts:
    """Under the attempt's lock, which a commit takes too; without one where nothing is changed (`now` is None)."""
    query = (
        select(
            attempts,
            jobs.c.forgotten_at,
            jobs.c.batch,
            jobs.c.requeueable,
            remembered_until().label("remembered_until"),
        )
        .join(jobs, jobs.c.key == attempts.c.job_key)
        .where(attempts.c.job_key == key.job_key, attempts.c.number == key.number)
    )
    if now is not None:
        query = query.with_for_update(of=attempts)
    row = (await connection.execute(query)).one_or_none()
    if row is None:
        raise NotFound(f"no attempt {key}")
    later = await connection.execute(
        select(
            attempts.c.number,
            attempts.c.state,
            attempts.c.started_at,
            attempts.c.marked_attempt,
            attempts.c.marked_generation,
        )
        .where(
            attempts.c.job_key == key.job_key,
            attempts.c.number > key.number,
            attempts.c.withdrawn_generation.is_(None),
        )
        .order_by(attempts.c.number)
        .limit(1)
    )
    newest = await connection.execute(
        select(
            decisions.c.id,
            decisions.c.generation,
            decisions.c.action,
            decisions.c.reason,
            decisions.c.category,
            decisions.c.mode,
            decisions.c.created_at,
        ).where(
            and_(decisions.c.job_key == key.job_key, decisions.c.number == key.number),
            decisions.c.generation == row.generation,
        )
    )
    accepted = await connection.execute(
        select(advice.c.action, func.min(reconciliations.c.at).label("at"))
        .join(reconciliations, reconciliations.c.decision_id == advice.c.decision_id)
        .where(
            advice.c.job_key == key.job_key,
            advice.c.number == key.number,
            advice.c.applied,
            ~advice.c.undone,
            reconciliations.c.status.in_([ReconciliationStatus.APPLIED.value, ReconciliationStatus.VERIFIED.value]),
        )
        .group_by(advice.c.action)
    )
    until = row.remembered_until
    gone = row.forgotten_at is not None or (now is not None and until is not None and until <= now)
    return Facts(
        row=row,
        successor=later.one_or_none(),
        decision=newest.one_or_none(),
        accepted={Action(item.action): item.at for item in accepted},
        forgotten=gone,
    )


def may_be_ordered(now: datetime) -> ColumnElement[bool]:
    """Of the query's `attempts`: nothing that has happened makes every order too late, as `check` says. Until then
    orders about it bind, decided about or not."""
    later = attempts.alias("later")
    gone_on = (
        select(later.c.number)
        .where(
            later.c.job_key == attempts.c.job_key,
            later.c.number > attempts.c.number,
            later.c.withdrawn_generation.is_(None),
            later.c.state.not_in(_NOT_STARTED),
        )
        .exists()
    )
    remembered = func.coalesce(remembered_until() > now, True)
    return and_(attempts.c.state.not_in(_OVER), ~forgotten_as_said(), remembered, ~gone_on)


def check(wanted: OrderWanted, facts: Facts, standing: Sequence[StoredOrder]) -> None:
    """Raises `TooLate`: what was ordered can change nothing any more, because of what has happened already."""
    if not wanted.kind.of_attempt:
        return
    number = wanted.key.number
    after = facts.successor
    if after is not None and after.state not in _NOT_STARTED:
        started = f" at {after.started_at:%H:%M:%SZ}" if after.started_at is not None else ""
        raise TooLate(f"attempt {after.number} has started{started}: nothing of attempt {number} is left to order")
    if facts.state in _OVER:
        raise TooLate(f"attempt {number} was {facts.state.value} already: nothing is done about it")
    if facts.forgotten:
        raise TooLate("the scheduler has forgotten the job: nothing can be done about it any more")
    for action, at in facts.accepted.items():
        if action is Action.STOP or wanted.action is not Action.STOP or wanted.kind is not OrderKind.OVERRIDE:
            raise TooLate(f"the scheduler accepted its {action.value} at {at:%H:%M:%SZ} already")
    if wanted.kind is OrderKind.OVERRIDE:
        _check_override(wanted, facts, standing)
    if wanted.kind is OrderKind.WITHDRAW and (facts.decision is None or facts.decision.action == Action.NONE.value):
        said = (
            "nothing was advised"
            if facts.decision is None
            else f"the newest decision is none ({facts.decision.reason})"
        )
        raise TooLate(f"{said}: there is nothing to take back; a veto keeps it so")


def _check_override(wanted: OrderWanted, facts: Facts, standing: Sequence[StoredOrder]) -> None:
    veto = next((o for o in standing if o.order.kind is OrderKind.VETO and o.key == wanted.key), None)
    if veto is not None:
        command = f"advisor orders lift {veto.order.id[:_ID_SHOWN]}"
        raise TooLate(f"{veto.order.who} vetoed it ({veto.order.why}): lift the veto first ({command})")
    if facts.successor is not None and Action.RESTART not in facts.accepted:
        raise TooLate(f"others have requeued it: attempt {facts.successor.number} is theirs to stop or keep")
    if wanted.action is Action.RESTART and (facts.row.batch is False or facts.row.requeueable is False):
        raise TooLate("the scheduler does not requeue this job: not a batch job, or --no-requeue")
