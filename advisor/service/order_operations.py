"""What operators order about jobs: requests checked, put in force, and told exactly what became of them.

An order is in force when it is stored: advice that it speaks against is taken from every stream in the same moment, and
no decision that has not seen it is committed any more. What an agent may be doing at that very moment is waited for: it
answers for one job at a time, so that its word about the decision that follows comes after whatever it did about an
older one.
"""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import TypeAlias

import structlog

from advisor.board import Board
from advisor.core.isolation import without_room
from advisor.core.model import Order, Snapshot
from advisor.core.words import Action, Mode, OrderKind
from advisor.ports import Clock
from advisor.service import wire
from advisor.service.callers import Caller
from advisor.service.errors import BadRequestError, NotFoundError, TooLateError
from advisor.service.node_operations import why_of
from advisor.store import errors as store_errors
from advisor.store.order_records import OrderGiven, OrderWanted, SinceOrder, StoredOrder
from advisor.store.records import AttemptKey, StoredAttempt
from advisor.store.store import Store
from advisor.v1 import common_pb2, operator_pb2

log = structlog.get_logger(__name__)

WAIT_SECONDS = 6.0  # an action of an agent takes four at most; a caller waits twenty
NOT_DECIDED_SECONDS = 3.0
LOOK_SECONDS = 0.1
AGENT_FRESH = timedelta(seconds=15)
_NOTES_MAX = 16
_Effect: TypeAlias = operator_pb2.OrderEffect.ValueType


class OrderOperations:
    """The part of the operators' service that is about orders. One per caller."""

    def __init__(self, store: Store, board: Board, clock: Clock, caller: Caller) -> None:
        self._store, self._board, self._clock, self._caller = store, board, clock, caller

    async def veto(self, request: operator_pb2.VetoRequest) -> operator_pb2.OrderAnswer:
        return await self._give(request.target, request.why, kind=OrderKind.VETO)

    async def withdraw(self, request: operator_pb2.WithdrawRequest) -> operator_pb2.OrderAnswer:
        return await self._give(request.target, request.why, kind=OrderKind.WITHDRAW)

    async def override(self, request: operator_pb2.OverrideRequest) -> operator_pb2.OrderAnswer:
        action = wire.from_wire(Action, request.action, "action")
        if action is Action.NONE:
            raise BadRequestError("action: restart or stop; that nothing is done is a veto")
        if action is Action.STOP and not request.confirm:
            raise BadRequestError("confirm: a stop ends the job for good; say that it is meant")
        answer = await self._give(
            request.target, request.why, kind=OrderKind.OVERRIDE, action=action, ends_live=request.confirm
        )
        ordered = {Action.RESTART: "restart", Action.STOP: "stop"}[action]
        decided = wire.from_wire(Action, answer.action, "action", otherwise=Action.NONE)
        if answer.decision_id and decided is not action:
            answer.notes.append(f"it was decided otherwise all the same: {decided}; see decisions show")
        if action is Action.RESTART and not request.confirm and not await self._has_ended(request.target):
            answer.notes.append(f"a live attempt is not ended for the {ordered}: --confirm says that it may be")
        return answer

    async def _has_ended(self, target: operator_pb2.JobTarget) -> bool:
        item = await self._store.load_one(await attempt_meant(self._store, target), now=self._clock.now())
        return item is not None and item.attempt.state.ended

    async def exclude(self, request: operator_pb2.ExcludeRequest) -> operator_pb2.OrderAnswer:
        node, key = _node(request.node), await attempt_meant(self._store, request.target)
        before = await self._store.load_one(key, now=self._clock.now())
        answer = await self._give(request.target, request.why, kind=OrderKind.EXCLUDE, node=node)
        if before is not None:
            answer.notes.extend(self._without_room(before, node))
        return answer

    async def spare(self, request: operator_pb2.SpareRequest) -> operator_pb2.OrderAnswer:
        return await self._give(request.target, request.why, kind=OrderKind.SPARE, node=_node(request.node))

    async def reset_budget(self, request: operator_pb2.ResetBudgetRequest) -> operator_pb2.OrderAnswer:
        return await self._give(request.target, request.why, kind=OrderKind.RESET_BUDGET, ceiling=request.ceiling)

    async def lift(self, request: operator_pb2.LiftOrderRequest) -> operator_pb2.OrderAnswer:
        why = why_of(request.why)
        order_id = wire.text_of(request.order_id, "order_id", most=wire.NAME_MAX)
        try:
            given = await self._store.lift_order(
                order_id, who=self._caller.name, why=why, origin=self._caller.origin, now=self._clock.now()
            )
        except store_errors.NotFound as error:
            raise NotFoundError(f"there is {error}") from None
        return await self._told(given, {}, under_way=False)

    async def list_orders(self, request: operator_pb2.ListOrdersRequest) -> operator_pb2.ListOrdersResponse:
        found = await self._store.orders(
            cluster=wire.cluster_of(request.cluster) if request.HasField("cluster") else "",
            job_id=wire.text_of(request.job_id, "job_id", most=wire.NAME_MAX),
            lifted=request.lifted,
            now=self._clock.now(),
        )
        return operator_pb2.ListOrdersResponse(orders=[order_message(item) for item in found])

    async def _give(
        self,
        target: operator_pb2.JobTarget,
        why: str,
        *,
        kind: OrderKind,
        action: Action | None = None,
        node: str = "",
        ends_live: bool = False,
        ceiling: bool = False,
    ) -> operator_pb2.OrderAnswer:
        why = why_of(why)
        key = await attempt_meant(self._store, target)
        before = await self._store.since_order(key, 0)
        await self._refuse_users_own(kind, key, node)
        wanted = OrderWanted(kind=kind, key=key, action=action, node=node, ends_live=ends_live, ceiling=ceiling)
        try:
            given = await self._store.give_order(
                wanted, who=self._caller.name, why=why, origin=self._caller.origin, now=self._clock.now()
            )
        except store_errors.NotFound as error:
            raise NotFoundError(f"there is {error}") from None
        except store_errors.TooLate as error:
            raise TooLateError(f"too late: {error}") from None
        under_way = before.mode == Mode.AUTONOMOUS.value and before.action not in {"", Action.NONE.value}
        answer = await self._told(given, before.accepted, under_way=under_way)
        if given.changed and before.action != Action.RESTART.value and answer.action == common_pb2.ACTION_RESTART:
            await self._tell_of_restart(answer, given.order)
        return answer

    async def _tell_of_restart(self, answer: operator_pb2.OrderAnswer, order: StoredOrder) -> None:
        """An order about the job, not about what is done with this attempt, and its first effect is a restart."""
        item = await self._store.load_one(order.key, now=self._clock.now())
        if order.order.kind.of_attempt or item is None or not item.attempt.state.ended:
            return
        since = await self._store.since_order(order.key, item.orders_count)
        if since.mode != Mode.AUTONOMOUS.value:
            answer.says += ": on paper, its mode is monitor"
        elif not item.job.in_scope:
            answer.says += ": on paper, the job is not in scope"
        else:
            answer.says += ": the job has ended, and is put into the queue again"
            job = order.ref.job_id
            answer.notes.append(f"advisor veto {job} keeps it from that, if it comes before the agent has acted")

    async def _refuse_users_own(self, kind: OrderKind, key: AttemptKey, node: str) -> None:
        if kind is not OrderKind.SPARE:
            return
        item = await self._store.load_one(key, now=self._clock.now())
        if item is not None and node in item.user_excluded:
            raise TooLateError(f"{node} is excluded by the job's user, not by us: that is left alone")

    def _without_room(self, before: StoredAttempt, node: str) -> list[str]:
        """An exclusion by hand comes before those of evidence: whoever gives it hears which of them it costs."""
        order = Order(
            id="",
            kind=OrderKind.EXCLUDE,
            who=self._caller.name,
            at=self._clock.now(),
            attempt=before.key.number,
            node=node,
        )
        snapshot = Snapshot(
            job=before.job,
            attempt=before.attempt,
            past=before.past,
            nodes=before.nodes,
            advice=before.advice,
            nodes_fitting=before.nodes_fitting,
            user_excluded=before.user_excluded,
            other_nodes=before.other_nodes,
            orders=(*before.orders, order),
        )
        left_out = without_room(snapshot, self._store.policy)
        return [f"no room is left to avoid {left.node} too: {left.detail}" for left in left_out[:_NOTES_MAX]]

    async def _told(
        self, given: OrderGiven, accepted: Mapping[Action, datetime], *, under_way: bool
    ) -> operator_pb2.OrderAnswer:
        """Take back what may not be acted on any more, decide again at once, and say what came of it."""
        order = given.order
        message = operator_pb2.OrderAnswer(order=order_message(order))
        if not given.changed:
            message.effect = operator_pb2.ORDER_EFFECT_UNCHANGED
            message.says = f"{said_of(order)} already, by {order.lifted_by or order.order.who}: nothing was changed"
            await self._name_decision(message, await self._store.since_order(order.key, given.orders))
            return message
        log.warning(
            "order_given" if order.lifted_at is None else "order_lifted",
            order=order.order.id,
            kind=order.order.kind,
            job=order.ref.job_id,
            attempt=order.key.number,
            who=self._caller.name,
        )
        await self._board.refresh((order.ref.cluster,))
        self._board.stir()
        since = await self._await(order, given.orders, under_way=under_way)
        effect, says = _outcome(order, since, accepted, under_way=under_way)
        message.effect, message.says = effect, says
        await self._name_decision(message, since)
        if since.mode == Mode.MONITOR.value and order.order.kind is OrderKind.OVERRIDE and order.lifted_at is None:
            message.notes.append("its mode is monitor: nothing is applied until it is autonomous (advisor mode set)")
        return message

    async def _name_decision(self, message: operator_pb2.OrderAnswer, since: SinceOrder) -> None:
        if since.decided:
            message.decision_id, message.generation = since.decision_id, since.generation
            message.action = wire.to_wire(Action(since.action))

    async def _await(self, order: StoredOrder, count: int, *, under_way: bool) -> SinceOrder:
        """Until a decision follows it and, where something may be under way, the agent has spoken of that decision."""
        began = self._clock.monotonic()
        view = self._board.views().get(order.ref.cluster)
        heard = view is not None and self._clock.now() - view.heard_at <= AGENT_FRESH
        while True:
            since = await self._store.since_order(order.key, count)
            waited = self._clock.monotonic() - began
            if since.decided and (since.told is not None or not under_way or not heard):
                return since
            if waited >= (WAIT_SECONDS if since.decided else NOT_DECIDED_SECONDS):
                return since
            await self._clock.sleep(LOOK_SECONDS)


def _outcome(
    order: StoredOrder, since: SinceOrder, accepted: Mapping[Action, datetime], *, under_way: bool
) -> tuple[_Effect, str]:
    what = said_of(order)
    done = since.accepted.get(order.order.action) if order.order.action is not None else None
    if order.lifted_at is not None and order.order.kind is OrderKind.OVERRIDE and done and done >= order.order.at:
        happened = f"the scheduler had accepted the {order.order.action} at {done:%H:%M:%SZ}: that is not undone"
        return operator_pb2.ORDER_EFFECT_OVERTAKEN, f"{what}, but {happened}"
    late = {action: at for action, at in since.accepted.items() if action not in accepted}
    late.pop(order.order.action if order.order.kind is OrderKind.OVERRIDE else None, None)  # type: ignore[arg-type]  # None is in no mapping
    if late and order.order.kind.of_attempt and order.lifted_at is None:
        action, at = next(iter(late.items()))
        happened = f"the agent was acting at that moment: the scheduler accepted the {action} at {at:%H:%M:%SZ}"
        return operator_pb2.ORDER_EFFECT_OVERTAKEN, f"{what}, but {happened}"
    if not since.decided:
        return operator_pb2.ORDER_EFFECT_RECORDED, f"{what}: it bears on what is decided from now on"
    decided = f"{what}; decided now: {since.action} ({since.reason})"
    if not order.order.kind.of_attempt:
        return operator_pb2.ORDER_EFFECT_RECORDED, decided
    if under_way and since.told is None:
        return operator_pb2.ORDER_EFFECT_UNCONFIRMED, f"{decided}; the agent has not confirmed that it let go"
    return operator_pb2.ORDER_EFFECT_IN_FORCE, decided


def said_of(order: StoredOrder) -> str:
    """What an order is, in words: `attempt 2 of job 17 is vetoed`."""
    held, job = order.order, f"job {order.ref.job_id}"
    attempt = f"attempt {held.attempt} of {job}"
    match held.kind:
        case OrderKind.VETO:
            what = f"{attempt} is vetoed"
        case OrderKind.WITHDRAW:
            what = f"{held.action or 'advice'} for {held.category or 'what was found'} of {attempt} is taken back"
        case OrderKind.OVERRIDE:
            what = f"{held.action} of {attempt} is ordered"
        case OrderKind.EXCLUDE:
            what = f"{job} avoids {held.node}"
        case OrderKind.SPARE:
            what = f"{job} need not avoid {held.node}"
        case OrderKind.RESET_BUDGET:
            what = f"the budget of {job} counts from attempt {held.attempt}"
            if held.ceiling:
                what = f"budget and ceiling of {job} count from attempt {held.attempt}"
    return what if order.lifted_at is None else f"lifted: {what}"


async def attempt_meant(store: Store, target: operator_pb2.JobTarget) -> AttemptKey:
    """Raises `BadRequestError` and `NotFoundError`."""
    if bool(target.decision_id) == bool(target.job_id):
        raise BadRequestError("target: give decision_id, or cluster and job_id")
    try:
        if target.decision_id:
            text = wire.text_of(target.decision_id, "target.decision_id", most=wire.NAME_MAX)
            row = await store.audit.decision(text)
            if row is None:
                raise NotFoundError(f"there is no decision {text[:64]!r}")
            key, _ = await store.find_attempt(decision_id=row.decision_id)
        else:
            key, _ = await store.find_attempt(
                cluster=wire.cluster_of(target.cluster),
                job_id=wire.text_of(target.job_id, "target.job_id", most=wire.NAME_MAX),
                number=wire.attempt_number(target.attempt, "target.attempt") if target.HasField("attempt") else None,
            )
    except store_errors.Ambiguous as error:
        raise BadRequestError(f"target.decision_id: {error}") from None
    except store_errors.NotFound as error:
        raise NotFoundError(f"there is {error}") from None
    return key


def _node(name: str) -> str:
    return wire.node_names((name,), "node")[0]


def order_message(item: StoredOrder) -> operator_pb2.Order:
    held = item.order
    return operator_pb2.Order(
        order_id=held.id,
        kind=held.kind,
        attempt=wire.ref_message(item.ref),
        action=wire.to_wire(held.action) if held.action is not None else common_pb2.ACTION_UNSPECIFIED,
        category=held.category or "",
        node=held.node,
        ends_live=held.ends_live,
        ceiling=held.ceiling,
        decision_id=item.decision_id,
        set_by=held.who,
        why=wire.clean(held.why),
        origin=item.origin,
        set_at=wire.stamp(held.at),
        lifted_at=wire.stamp(item.lifted_at),
        lifted_by=item.lifted_by,
        lifted_why=wire.clean(item.lifted_why),
    )
