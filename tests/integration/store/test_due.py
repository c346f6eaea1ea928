"""What a tick asks first: what is past its time, and settings that are read again only when somebody changed them."""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import timedelta

import psycopg
import pytest

from advisor.core.autonomy import Earned
from advisor.core.modes import ModeSetting, Pause
from advisor.core.words import Category, Mode
from advisor.store.due import Settings
from advisor.store.migrate import migrate
from advisor.store.store import Store
from tests.integration.store.test_isolations import isolated
from tests.integration.store.test_loading import statements
from tests.integration.store.worlds import CLUSTER, at, begun_in_turn, record, running

pytestmark = pytest.mark.postgres

HOUR = timedelta(hours=1)


async def test_what_is_past_its_time_is_due(store: Store, isolating: Store) -> None:
    """Advice and isolations apart, not before their time, and no longer once they are closed."""
    await isolating.expire_isolations(at(0))  # a new store looks for what a former one had isolated
    await store.expire_isolations(at(0))
    key = await running(store, job_id="8")
    await store.commit_decisions([record(key)])
    row = await isolated(isolating)
    assert not row.dry_run
    late, later = row.expires_at - timedelta(minutes=1), row.expires_at + HOUR
    found = await store.due(at(31))
    assert (found.advice, found.isolations) == (False, False)
    found = await store.due(late)
    assert (found.advice, found.isolations) == (True, False)
    found = await store.due(later)
    assert (found.advice, found.isolations) == (True, True)
    assert await store.expire_advice(later) == 1
    found = await store.due(later)
    assert (found.advice, found.isolations) == (False, True)
    assert [item.node for item in await store.expire_isolations(later)] == [row.node]
    found = await store.due(later)
    assert (found.advice, found.isolations) == (False, False)


async def test_a_new_store_looks_for_forgotten_isolations_now_and_then(store: Store) -> None:
    """Not in every tick: it is a write."""
    assert (await store.due(at(0))).isolations
    await store.expire_isolations(at(0))
    assert not (await store.due(at(1))).isolations


def _pause(why: str) -> Pause:
    return Pause(cluster=CLUSTER, until=at(900), set_by="eve", why=why, set_at=at(1))


def _earned(held: bool) -> Earned:
    return Earned(
        cluster=CLUSTER,
        category=Category.GPU_HARDWARE,
        held=held,
        agreed=30,
        counted=30,
        lower=0.9,
        since=at(2),
        why="so",
    )


_MODE = ModeSetting(mode=Mode.AUTONOMOUS, cluster=CLUSTER)
CHANGES: dict[str, Callable[[Store], Awaitable[object]]] = {
    "a mode": lambda store: store.set_mode(_MODE, who="eve", why="", origin="", now=at(1)),
    "the mode again": lambda store: store.set_mode(_MODE, who="bob", why="", origin="", now=at(2)),
    "the mode unset": lambda store: store.unset_mode(_MODE, who="eve", why="", origin="", now=at(3)),
    "a pause": lambda store: store.pause(_pause("a"), who="eve", origin="", now=at(4)),
    "the pause again": lambda store: store.pause(_pause("b"), who="eve", origin="", now=at(5)),
    "the pause over": lambda store: store.resume(CLUSTER, who="eve", why="", origin="", now=at(6)),
    "earned": lambda store: store.set_earned([_earned(True)]),
    "lost again": lambda store: store.set_earned([_earned(False)]),
}


async def test_settings_are_anew_after_every_change_by_whomever(store: Store, other: Store) -> None:
    """The same as what is read without memory."""
    for what, change in CHANGES.items():
        await change(other)
        found = await store.settings()
        whole = Settings(modes=await store.modes(), pauses=await store.pauses(at(10)), earned=await store.earned())
        assert found == whole, what


async def test_a_pause_that_a_clock_set_ahead_showed_to_be_over_is_still_known(store: Store) -> None:
    """Whoever pauses it looks at it by the time that it is."""
    await store.pause(_pause("a"), who="eve", origin="", now=at(1))
    assert await store.pauses(at(4000)) == ()
    await store.settings()
    assert (await store.settings()).pauses == await store.pauses(at(10)) != ()


async def test_settings_are_anew_in_whatever_order_transactions_end(store: Store, url: str) -> None:
    """Of four that began one after the other the first and the last wrote what the other two then wrote over: the sum
    of their numbers is the same.
    """
    for cluster in ("alps", "jura"):
        await store.pause(replace(_pause(""), cluster=cluster), who="eve", origin="", now=at(1))
    with begun_in_turn(url) as four:
        for why, writers in (("old", (four[0], four[3])), ("new", (four[1], four[2]))):
            for writer, cluster in zip(writers, ("alps", "jura"), strict=True):
                writer.execute("UPDATE pauses SET why = %s WHERE cluster = %s", (why, cluster))
                writer.commit()
            assert [item.why for item in (await store.settings()).pauses] == [why, why]


async def test_settings_that_nobody_changed_take_one_statement(store: Store) -> None:
    """Whatever their number."""
    await CHANGES["a mode"](store)
    await CHANGES["a pause"](store)
    before = await store.settings()
    with statements() as sent:
        assert await store.settings() is before
    assert len(sent) == 1


async def test_a_store_that_is_emptied_while_it_is_open_begins_anew_and_paused(store: Store, url: str) -> None:
    """Its modes and vetoes are gone, too; one that is opened for the first time has none to miss."""
    await store.due(at(0))
    assert await store.pauses(at(0)) == ()
    before = store.incarnation
    with psycopg.connect(url.replace("+psycopg", "")) as connection:
        connection.execute("DROP SCHEMA public CASCADE; CREATE SCHEMA public")
    await migrate(url)
    await store.due(at(1))
    assert store.incarnation != before
    (held,) = (await store.settings()).pauses
    assert (held.cluster, held.set_by) == ("", "advisor")
    assert held.why == "the store is empty, and was not before; what was ordered may be forgotten"
