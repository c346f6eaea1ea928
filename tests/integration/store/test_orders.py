"""Operators' orders as the store keeps them: once, audited, ordered in time with decisions, refused too late."""

from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine

from advisor.core.policy import Policy
from advisor.core.words import Action, AttemptState, Category, NodeState, OrderKind, Reason
from advisor.store.errors import Conflict, NotFound, TooLate
from advisor.store.order_records import OrderGiven, OrderWanted
from advisor.store.records import (
    AttemptKey,
    DetectorState,
    ObservedNode,
    Reconciliation,
    ReconciliationReason,
    ReconciliationStatus,
)
from advisor.store.store import Store
from tests.integration.store.worlds import CLUSTER, at, decision, pending, record, report, running, seen

pytestmark = pytest.mark.postgres

S, K = AttemptState, OrderKind


async def failed(store: Store) -> AttemptKey:
    key = await running(store)
    await report(store, seen(S.FAILED, ended_at=at(20), observed_at=at(21)))
    return key


async def order(store: Store, kind: OrderKind, key: AttemptKey, seconds: float = 30, **changes: Any) -> OrderGiven:
    wanted = OrderWanted(kind=kind, key=key, **changes)
    return await store.give_order(wanted, who="ada", why="told so", origin="here", now=at(seconds))


async def applied(store: Store, decision_id: str, seconds: float = 29) -> None:
    news = Reconciliation(status=ReconciliationStatus.APPLIED, reason=ReconciliationReason.OBSERVED, at=at(seconds))
    await store.record_reconciliation(decision_id, news, who="agent")


async def test_an_order_closes_what_it_speaks_against_and_is_loaded(store: Store, url: str) -> None:
    """Nobody is told of the advice any more, the next snapshot holds the order, the audit has who, why, where."""
    key = await failed(store)
    made = await store.commit_decision(record(key))
    given = await order(store, K.VETO, key)
    assert await store.open_advice(CLUSTER, at(31)) == ()
    item = (await store.load([key], now=at(31)))[key]
    assert [(o.kind, o.who, o.why) for o in item.orders] == [(K.VETO, "ada", "told so")]
    assert (item.ordered, item.orders_count, given.changed) == (True, 1, True)
    row = await store.audit.decision(made.decision_id)
    assert row is not None
    assert (row.status, row.reconciliations[-1].reason) == (
        ReconciliationStatus.SUPERSEDED,
        ReconciliationReason.OPERATOR,
    )
    engine = create_async_engine(url)
    async with engine.connect() as connection:
        found = await connection.execute(text("SELECT who, why, origin, subject FROM audit WHERE what = 'order_given'"))
        assert found.all() == [("ada", "told so", "here", given.order.order.id)]
    await engine.dispose()


async def test_what_the_scheduler_has_forgotten_speaks_against_no_order(store: Store) -> None:
    """Nor does the attempt that came of it: both are undone, and the restart is advised again."""
    key = await failed(store)
    made = await store.commit_decision(record(key))
    await applied(store, made.decision_id)
    await report(store, pending(attempt=1, submitted_at=at(30), observed_at=at(31)))
    with pytest.raises(TooLate, match="accepted its restart"):
        await order(store, K.VETO, key, 32)
    await report(store, seen(S.FAILED, ended_at=at(20), observed_at=at(40)))
    again = await store.commit_decision(record(key, seen_generation=1))
    for kind in (K.WITHDRAW, K.VETO):
        assert (await order(store, kind, key, 41)).changed
    await applied(store, again.decision_id, 42)
    with pytest.raises(TooLate, match="accepted its restart"):
        await order(store, K.OVERRIDE, key, 43, action=Action.RESTART)


async def test_a_plain_reset_does_not_take_the_ceilings_away(store: Store) -> None:
    """A second operator who resets the budget of the same attempt finds it done, ceiling and all."""
    key = await failed(store)
    await order(store, K.RESET_BUDGET, key, 30, ceiling=True)
    again = await order(store, K.RESET_BUDGET, key, 31)
    assert (again.changed, again.order.order.ceiling) == (False, True)


async def test_the_same_order_twice_is_one(store: Store) -> None:
    """Saying it again changes nothing, and lifting it twice neither."""
    key = await failed(store)
    first, again = [await order(store, K.VETO, key, seconds) for seconds in (30, 31)]
    assert (again.changed, again.order.order.id, again.orders) == (False, first.order.order.id, 1)
    lifts = [
        await store.lift_order(first.order.order.id, who="bob", why="fine", origin="", now=at(s)) for s in (32, 33)
    ]
    assert [item.changed for item in lifts] == [True, False]
    assert (lifts[1].order.lifted_by, lifts[1].order.lifted_at) == ("bob", at(32))
    assert (await store.load([key], now=at(34)))[key].orders == ()
    with pytest.raises(NotFound):
        await store.lift_order("nothing", who="bob", why="", origin="", now=at(35))


async def test_a_decision_that_did_not_see_the_order_is_not_committed(store: Store) -> None:
    """Whatever was decided before it and is committed after it is in conflict, so that a veto holds at once."""
    key = await failed(store)
    stale = record(key)
    given = await order(store, K.VETO, key)
    with pytest.raises(Conflict):
        await store.commit_decision(stale)
    assert not (await store.since_order(key, given.orders)).decided
    await store.commit_decision(record(key, seen_orders=1, decision=decision(action=Action.NONE, reason=Reason.VETOED)))
    since = await store.since_order(key, given.orders)
    assert (since.decided, since.generation, since.reason) == (True, 1, "vetoed")
    assert not (await store.load([key], now=at(33)))[key].ordered


@pytest.mark.parametrize("kind", [K.VETO, K.WITHDRAW, K.OVERRIDE])
async def test_what_the_scheduler_accepted_cannot_be_ordered_away(store: Store, kind: OrderKind) -> None:
    """The refusal says what happened and when."""
    key = await failed(store)
    made = await store.commit_decision(record(key))
    await applied(store, made.decision_id)
    with pytest.raises(TooLate, match="accepted its restart at 12:00:29Z"):
        await order(store, kind, key, action=Action.RESTART if kind is K.OVERRIDE else None)


async def test_an_accepted_restart_is_stopped_while_its_successor_waits(store: Store) -> None:
    """Our own waiting attempt can be called off; once it runs, or when others queued it, it is refused."""
    key = await failed(store)
    made = await store.commit_decision(record(key))
    await report(store, pending(attempt=1, submitted_at=at(28), observed_at=at(29)))
    with pytest.raises(TooLate, match="others have requeued it"):
        await order(store, K.OVERRIDE, key, action=Action.STOP)
    await applied(store, made.decision_id)
    assert (await order(store, K.OVERRIDE, key, action=Action.STOP)).changed
    await report(store, seen(attempt=1, submitted_at=at(28), started_at=at(40), observed_at=at(41)))
    with pytest.raises(TooLate, match="attempt 1 has started at 12:00:40Z"):
        await order(store, K.VETO, key, 42)


@pytest.mark.parametrize("state", [S.COMPLETED, S.CANCELLED])
async def test_nothing_is_ordered_about_what_is_over_for_good(store: Store, state: AttemptState) -> None:
    """A completed or cancelled attempt is neither vetoed nor overridden."""
    key = await running(store)
    await report(store, seen(state, ended_at=at(20), observed_at=at(21)))
    with pytest.raises(TooLate, match=f"was {state.value} already"):
        await order(store, K.OVERRIDE, key, action=Action.RESTART)


async def test_a_withdrawal_names_what_it_takes_back(store: Store) -> None:
    """The action and the cause of the newest decision; without advice there is nothing to take back."""
    key = await failed(store)
    with pytest.raises(TooLate, match="nothing was advised"):
        await order(store, K.WITHDRAW, key)
    await store.commit_decision(record(key))
    held = (await order(store, K.WITHDRAW, key)).order.order
    assert (held.action, held.category) == (Action.RESTART, Category.GPU_HARDWARE)
    await store.commit_decision(record(key, 1, seen_orders=1, decision=decision(action=Action.NONE)))
    assert not (await order(store, K.WITHDRAW, key)).changed


async def test_withdrawing_an_override_lifts_it(store: Store) -> None:
    """What the advisor itself thinks holds again."""
    key = await failed(store)
    override = await order(store, K.OVERRIDE, key, action=Action.STOP, ends_live=True)
    stop = decision(action=Action.STOP, reason=Reason.OPERATOR, ordered_by="ada", order=override.order.order.id)
    await store.commit_decision(record(key, seen_orders=1, decision=stop))
    taken = await order(store, K.WITHDRAW, key)
    assert (taken.order.order.kind, taken.order.lifted_by) == (K.OVERRIDE, "ada")
    assert (await store.load([key], now=at(40)))[key].orders == ()
    assert await store.open_advice(CLUSTER, at(40)) == ()


async def test_a_vetoed_attempt_is_not_overridden(store: Store) -> None:
    """The veto has to be lifted first, and a newer override replaces an older one."""
    key = await failed(store)
    await order(store, K.OVERRIDE, key, action=Action.RESTART)
    await order(store, K.OVERRIDE, key, 31, action=Action.STOP)
    assert [o.action for o in (await store.load([key], now=at(32)))[key].orders] == [Action.STOP]
    await order(store, K.VETO, key, 33)
    with pytest.raises(TooLate, match="ada vetoed it"):
        await order(store, K.OVERRIDE, key, 34, action=Action.RESTART)


async def test_exclusions_and_budgets_are_the_jobs_and_vetoes_the_attempts(store: Store) -> None:
    """They hold for attempts to come; what was spared last holds; a veto ends with its attempt."""
    key = await failed(store)
    await order(store, K.VETO, key)
    await order(store, K.EXCLUDE, key, 31, node="node9")
    await order(store, K.SPARE, key, 32, node="node9")
    await order(store, K.RESET_BUDGET, key, 33, ceiling=True)
    recorded = await report(store, seen(attempt=1, submitted_at=at(40), started_at=at(41), observed_at=at(42)))
    later = next(item for item in recorded.changed if item.number == 1)
    held = (await store.load([later], now=at(43)))[later].orders
    assert [(o.kind, o.node, o.ceiling) for o in held] == [(K.SPARE, "node9", False), (K.RESET_BUDGET, "", True)]
    found = await store.orders(job_id="7", lifted=True, now=at(43))
    assert [item.order.kind for item in found] == [K.RESET_BUDGET, K.SPARE, K.EXCLUDE, K.VETO]


async def test_an_attempt_that_was_done_with_is_looked_at_again(store: Store) -> None:
    """A stop in monitor mode is final at once; an order opens the attempt until a decision has seen it."""
    key = await failed(store)
    await store.save_states({})
    await store.commit_decision(record(key))
    made = await order(store, K.RESET_BUDGET, key)
    assert key in await store.watched(at(31))
    assert (await store.since_order(key, made.orders)).decided is False


async def listed(store: Store, seconds: float, *, lifted: bool = False) -> list[OrderKind]:
    return [item.order.kind for item in await store.orders(cluster=CLUSTER, lifted=lifted, now=at(seconds))]


async def done_with(store: Store, key: AttemptKey, seconds: float, **changes: Any) -> str:
    """What is decided of the attempt is committed, and it is looked at no more. The decision's id."""
    loaded = (await store.load([key], now=at(seconds)))[key]
    made = await store.commit_decision(
        record(key, seen_orders=loaded.orders_count, created_at=at(seconds + 1), **changes)
    )
    await store.save_states({key: DetectorState(state=b"", progress=loaded.progress, seen_over=True)})
    return made.decision_id


async def test_what_is_listed_as_holding_ends_with_its_attempt(store: Store) -> None:
    """A veto or an override holds for as long as something may be decided about its attempt; nodes are the job's."""
    key = await failed(store)
    await order(store, K.OVERRIDE, key, 30, action=Action.STOP)
    await order(store, K.EXCLUDE, key, 31, node="node3")
    assert await listed(store, 31) == [K.EXCLUDE, K.OVERRIDE]
    made = await done_with(store, key, 32)
    news = Reconciliation(status=ReconciliationStatus.VERIFIED, reason=ReconciliationReason.OBSERVED, at=at(34))
    await store.record_reconciliation(made, news, who="agent")
    assert await store.watched(at(3_000)) == ()
    assert await listed(store, 3_000) == [K.EXCLUDE]
    assert await listed(store, 3_000, lifted=True) == [K.EXCLUDE, K.OVERRIDE]


async def test_a_veto_is_listed_as_long_as_it_keeps_something_from_happening(store: Store) -> None:
    """Nothing is decided any more about what failed under it; but until Slurm forgets the job an override would be
    carried out, and it is the veto that refuses that: by the id that the list shows.
    """
    key = await failed(store)
    given = await order(store, K.VETO, key)
    await done_with(store, key, 31, decision=decision(action=Action.NONE, reason=Reason.VETOED))
    assert await store.watched(at(40)) == ()
    assert await listed(store, 40) == [K.VETO]
    with pytest.raises(TooLate, match=f"orders lift {given.order.order.id[:13]}"):
        await order(store, K.OVERRIDE, key, 41, action=Action.RESTART)
    assert await listed(store, 3_000) == []
    with pytest.raises(TooLate, match="has forgotten the job"):
        await order(store, K.OVERRIDE, key, 3_000, action=Action.RESTART)


async def test_a_veto_holds_no_longer_where_the_job_went_on_without_it(store: Store) -> None:
    """Its user has requeued the job: while that waits, the veto keeps a restart of ours from it; not once it runs."""
    key = await failed(store)
    await order(store, K.VETO, key)
    await done_with(store, key, 31, decision=decision(action=Action.NONE, reason=Reason.VETOED))
    await report(store, pending(attempt=1, submitted_at=at(40), observed_at=at(41)))
    assert await listed(store, 42) == [K.VETO]
    await report(store, seen(attempt=1, submitted_at=at(40), started_at=at(50), observed_at=at(51)))
    await store.watched(at(52))
    assert await listed(store, 52) == []


async def test_the_attempt_meant_is_the_newest_that_has_begun(store: Store) -> None:
    """A waiting successor is not what advice is for; a number or a decision names another."""
    key = await failed(store)
    made = await store.commit_decision(record(key))
    await report(store, pending(attempt=1, submitted_at=at(28), observed_at=at(29)))
    found = [
        (await store.find_attempt(cluster=CLUSTER, job_id="7"))[0].number,
        (await store.find_attempt(cluster=CLUSTER, job_id="7", number=1))[0].number,
        (await store.find_attempt(decision_id=made.decision_id))[0].number,
    ]
    assert found == [0, 1, 0]
    with pytest.raises(NotFound):
        await store.find_attempt(cluster=CLUSTER, job_id="8")


async def isolate(store: Store, node: str, *, force: bool = False) -> tuple[str, bool]:
    item, changed = await store.isolate_by_hand(
        CLUSTER, node, force=force, who="ada", why="smells", origin="here", now=at(50)
    )
    return item.opened_by, changed


async def test_a_node_is_isolated_by_hand_within_the_caps(url: str) -> None:
    """Once; beyond the caps only with force; a node drained by others, or an unknown one, is refused."""
    policy = Policy(isolations_max=1, isolations_percent_max=100.0)
    store = await Store.open(url, policy=policy)
    nodes = [ObservedNode(name=f"node{i}", state=NodeState.UP, observed_at=at(0)) for i in range(1, 4)]
    theirs = ObservedNode(name="node4", state=NodeState.DRAINED, observed_at=at(0), reason="bob: DIMM")
    await store.record_observations(CLUSTER, (), (*nodes, theirs), complete=False, now=at(0))
    assert [await isolate(store, "node1") for _ in range(2)] == [("ada", True), ("ada", False)]
    with pytest.raises(TooLate, match="1 node isolated already: at most 1 of 4"):
        await isolate(store, "node2")
    assert await isolate(store, "node2", force=True) == ("ada", True)
    with pytest.raises(TooLate, match=r"drained by others already \(bob: DIMM\)"):
        await isolate(store, "node4", force=True)
    with pytest.raises(NotFound):
        await isolate(store, "node9")
    held = {(i.node, i.dry_run) for i in await store.open_isolations(CLUSTER)}
    assert held == {("node1", False), ("node2", False)}
    await store.close()
