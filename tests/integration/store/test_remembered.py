"""What a store remembers of attempts is what it would read anew, whoever wrote meanwhile."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest
from psycopg import AsyncConnection
from sqlalchemy import Engine, event

from advisor.core.model import Progress
from advisor.core.modes import Pause
from advisor.core.words import AttemptState, NodeState, OrderKind
from advisor.store.order_records import OrderWanted
from advisor.store.records import AttemptKey, DetectorState, Milestone, MilestoneKind, ObservedNode
from advisor.store.remembered import LARGE_BYTES
from advisor.store.store import Store
from tests.integration.store.test_loading import statements
from tests.integration.store.worlds import (
    CLUSTER,
    at,
    begun_in_turn,
    decision,
    implication,
    pending,
    record,
    register,
    report,
    running,
    seen,
)

pytestmark = pytest.mark.postgres

STATE = DetectorState(state=b"\x00 cursor", progress=Progress(first_step=1, last_step=50, last_at=at(30)), foreign=3)
Step = Callable[[Store, AttemptKey], Awaitable[object]]


def _nodes(*states: NodeState, second: float) -> list[ObservedNode]:
    return [
        ObservedNode(name=f"node{n}", state=state, reason="", observed_at=at(second), partitions=("gpu",))
        for n, state in enumerate(states, 1)
    ]


async def _other_fails_on_node2(store: Store, _: AttemptKey) -> None:
    other = await running(store, job_id="9", user="bob")
    said = decision()
    said = replace(said, attribution=replace(said.attribution, implications=(implication("node2"),)))
    await store.commit_decision(record(other, decision=said))


async def _milestone(store: Store, key: AttemptKey) -> None:
    await store.record_milestones({key: [Milestone(kind=MilestoneKind.RUNNING, at=at(40))]})


async def _agent(store: Store, _: AttemptKey) -> None:
    await register(store, now=at(41))


def _order(kind: OrderKind, node: str = "") -> Step:
    async def give(store: Store, key: AttemptKey) -> None:
        wanted = OrderWanted(kind=kind, key=key, node=node)
        await store.give_order(wanted, who="eve", why="so", origin="test", now=at(42))

    return give


STEPS: dict[str, Step] = {
    "nothing": lambda store, _: store.pauses(at(20)),
    "seen again": lambda store, _: report(store, seen(observed_at=at(55))),
    "other nodes fit": lambda store, _: report(store, seen(observed_at=at(56), nodes_fitting=3)),
    "saved": lambda store, key: store.save_states({key: STATE}),
    "saved again": lambda store, key: store.save_states({key: replace(STATE, state=b"2", foreign=4)}),
    "paused": lambda store, _: store.pause(
        Pause(cluster=CLUSTER, until=at(900), set_by="eve", why="", set_at=at(33)), who="eve", origin="", now=at(33)
    ),
    "nodes seen": lambda store, _: store.record_observations(
        CLUSTER, (), _nodes(*[NodeState.UP] * 4, second=34), complete=False, now=at(34)
    ),
    "a node is down": lambda store, _: store.record_observations(
        CLUSTER, (), _nodes(NodeState.UP, NodeState.DOWN, second=35), complete=False, now=at(35)
    ),
    "another job fails on a node": _other_fails_on_node2,
    "a milestone": _milestone,
    "an agent": _agent,
    "a node excluded by hand": _order(OrderKind.EXCLUDE, "node3"),
    "a veto": _order(OrderKind.VETO),
    "a successor waits": lambda store, _: report(
        store, pending(attempt=1, submitted_at=at(90), observed_at=at(91)), complete=False
    ),
    "it failed": lambda store, _: report(
        store, seen(AttemptState.FAILED, observed_at=at(92), ended_at=at(89)), complete=False
    ),
    "forgotten": lambda store, _: store.record_observations(CLUSTER, (), (), complete=True, now=at(200)),
}


@pytest.mark.parametrize("who", ["itself", "another"])
async def test_memory_is_confirmed_by_the_database(store: Store, url: str, who: str) -> None:
    """After everything that can happen to an attempt, by this store or another one, a store that remembers loads what
    one that knows nothing does."""
    other, fresh = await Store.open(url), await Store.open(url)
    doer = store if who == "itself" else other
    try:
        key = await running(store, job_rules="")
        for name, step in STEPS.items():
            await store.load([key], now=at(50))
            await step(doer, key)
            fresh.forget()
            assert await store.load([key], now=at(50)) == await fresh.load([key], now=at(50)), name
    finally:
        await other.close()
        await fresh.close()


@pytest.mark.parametrize(
    ("change", "values"),
    [
        ("UPDATE node_states SET state = %s WHERE name = %s", ("drained", "down")),
        ("UPDATE implications SET weight = %s WHERE node = %s", (0.5, 0.25)),
    ],
)
async def test_nodes_are_anew_in_whatever_order_transactions_end(
    store: Store, url: str, change: str, values: tuple[Any, Any]
) -> None:
    """Of four that began one after the other the first and the last wrote what the other two then wrote over: the sum
    of their numbers is the same.
    """
    names, fresh = ("node2", "node3"), await Store.open(url)
    key = await running(store, job_rules="")
    await store.record_observations(CLUSTER, (), _nodes(*[NodeState.UP] * 4, second=34), complete=False, now=at(34))
    other, said = await running(store, job_id="9", user="bob"), decision()
    blamed = replace(said.attribution, implications=tuple(map(implication, names)))
    await store.commit_decision(record(other, decision=replace(said, attribution=blamed)))
    with begun_in_turn(url) as four:
        for value, writers in zip(values, ((four[0], four[3]), (four[1], four[2])), strict=True):
            for writer, name in zip(writers, names, strict=True):
                assert writer.execute(change, (value, name)).rowcount == 1
                writer.commit()
            fresh.forget()
            assert await store.load([key], now=at(50)) == await fresh.load([key], now=at(50))
    await fresh.close()


async def test_what_has_not_changed_is_not_read_again(store: Store) -> None:
    """A plain attempt that nobody wrote since, or only this store's own tick, costs three statements and gives the same
    values again."""
    key = await running(store, job_rules="")
    first = (await store.load([key], now=at(50)))[key]
    with statements() as sent:
        again = (await store.load([key], now=at(51)))[key]
    assert again is first
    assert len(sent) == 4, sent
    await store.save_states({key: STATE})
    with statements() as sent:
        saved = (await store.load([key], now=at(53)))[key]
    assert (saved.detector_state, saved.progress, saved.foreign) == (STATE.state, STATE.progress, STATE.foreign)
    assert len(sent) == 4, sent


async def test_whoever_asks_about_one_attempt_leaves_the_ticks_memory_alone(store: Store) -> None:
    """An order looks at its own attempt: the others, which the tick remembers, are not read anew for it."""
    keys = [await running(store, job_id=str(job), job_rules="") for job in (7, 8, 9)]
    first = await store.load(keys, now=at(50))
    assert await store.load_one(keys[0], now=at(50)) == first[keys[0]]
    wanted = OrderWanted(kind=OrderKind.EXCLUDE, key=keys[0], node="node3")
    await store.give_order(wanted, who="eve", why="so", origin="test", now=at(51))
    again = await store.load(keys, now=at(52))
    assert [again[key] is first[key] for key in keys] == [False, True, True]
    assert [order.node for order in again[keys[0]].orders] == ["node3"]
    assert await store.load_one(AttemptKey(job_key=keys[0].job_key, number=9), now=at(50)) is None


async def test_what_changed_before_a_load_that_failed_is_not_forgotten(store: Store, url: str) -> None:
    """A node that went down is seen by the next load, also where one in between lost its connection halfway."""
    key = await running(store, job_rules="")
    await store.record_observations(CLUSTER, (), _nodes(*[NodeState.UP] * 4, second=34), complete=False, now=at(34))
    await store.load([key], now=at(50))
    await STEPS["a node is down"](store, key)

    def lose(_connection: Any, _cursor: Any, statement: str, *_rest: Any) -> None:
        if "FROM implications" in statement:
            raise ConnectionResetError

    event.listen(Engine, "before_cursor_execute", lose)
    try:
        with pytest.raises(ConnectionResetError):
            await store.load([key], now=at(51))
    finally:
        event.remove(Engine, "before_cursor_execute", lose)
    nodes = (await store.load([key], now=at(52)))[key].nodes
    assert [node.state for node in nodes] == [NodeState.UP, NodeState.DOWN, NodeState.UP, NodeState.UP]


async def test_a_large_state_that_was_saved_last_is_not_read_again(store: Store, url: str) -> None:
    """Of a job of thousands of files, which fails; but what another replica has saved since then is."""
    key = await running(store)
    await report(store, seen(AttemptState.FAILED, observed_at=at(60), ended_at=at(59)))
    large = replace(STATE, state=b"\x01" * LARGE_BYTES)
    assert (await store.load([key], now=at(61)))[key].detector_state == b""
    await store.save_states({key: large})
    assert (await store.load([key], now=at(62)))[key].detector_state is large.state
    assert (await store.load([key], now=at(63)))[key].foreign == large.foreign
    other = await Store.open(url)
    await other.save_states({key: replace(large, state=b"another's")})
    await other.close()
    assert (await store.load([key], now=at(64)))[key].detector_state == b"another's"
    await store.save_states({key: large})
    store.forget()
    found = (await store.load([key], now=at(65)))[key].detector_state
    assert found == large.state
    assert found is not large.state


async def test_what_is_saved_while_another_incarnation_begins_is_read_anew(store: Store, url: str) -> None:
    """It was saved in the former one: the transaction that wrote it names another one there."""
    key = await running(store)
    await report(store, seen(AttemptState.FAILED, observed_at=at(60), ended_at=at(59)))
    large = replace(STATE, state=b"\x01" * LARGE_BYTES)
    await store.load([key], now=at(61))
    async with await AsyncConnection.connect(url.replace("+psycopg", "")) as other:
        await other.execute("LOCK TABLE detector_states")
        saving = asyncio.create_task(store.save_states({key: large}))
        waits = "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 'detector_states'::regclass"
        async with asyncio.timeout(10):
            while (await (await other.execute(waits)).fetchone()) == (0,):
                assert not saving.done()
                await asyncio.sleep(0)
        store.forget()  # as it does when another incarnation begins
    await saving
    found = (await store.load([key], now=at(62)))[key].detector_state
    assert found == large.state
    assert found is not large.state
