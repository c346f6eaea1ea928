"""The outbox: every decision that is to be told is told once, whatever dies in between."""

import asyncio
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta

from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine

from advisor.core.model import Unavailable
from advisor.core.words import Mode, UnavailableReason
from advisor.notifying import Channel, Notifying
from advisor.ports import Notice, Undelivered
from advisor.store.notifications import CLAIM_SECONDS, GIVE_UP, Claimed
from advisor.store.records import AttemptKey
from advisor.store.store import Store
from tests.integration.store.worlds import at, decision, healthy, record, running

ACTIONS = ("restart", "stop")
REFUSED = Undelivered(unavailable=Unavailable(source="chat", reason=UnavailableReason.REFUSED, detail="no"))


class Told:
    """A channel that remembers, and answers as it is told."""

    name = "chat"

    def __init__(self) -> None:
        self.notices: list[Notice] = []
        self.heard = asyncio.Event()
        self.answer: Undelivered | None = None
        self.dies = False
        self.hangs = False

    async def send(self, notice: Notice) -> Undelivered | None:
        self.notices.append(notice)
        self.heard.set()
        if self.dies:
            raise KeyboardInterrupt  # what ends a process in the middle
        if self.hangs:
            await asyncio.Event().wait()
        return self.answer

    async def check(self) -> Unavailable | None:
        return None

    async def close(self) -> None: ...


class MovingClock:
    def __init__(self) -> None:
        self.at = at(30)

    def now(self) -> datetime:
        return self.at

    def monotonic(self) -> float:
        return self.at.timestamp()

    async def sleep(self, seconds: float) -> None:
        self.at += timedelta(seconds=seconds)
        await asyncio.sleep(0)


class World:
    def __init__(self, store: Store, per_minute: int = 10) -> None:
        self.store, self.clock, self.told = store, MovingClock(), Told()
        self.channel = Channel(
            notifier=self.told, actions=ACTIONS, messages_per_minute=per_minute, link="https://a.example/{decision}"
        )

    async def tell(self) -> float:
        """One look, as by a service that was just started."""
        notifying = Notifying(store=self.store, channels=[self.channel], clock=self.clock)
        await self.store.enqueue_notices("chat", actions=ACTIONS, since=at(0), now=self.clock.now())
        return await notifying.tell(self.channel)

    @property
    def jobs(self) -> list[list[str]]:
        return [[item.job_id for item in notice.items] for notice in self.told.notices]


async def commit(
    store: Store, job_id: str, generation: int = 0, key: AttemptKey | None = None, **changes: object
) -> str:
    key = key or await running(store, job_id=job_id)
    made = record(key, generation, decision=decision(explanation=f"{job_id}/{generation}"), **changes)
    return (await store.commit_decision(made)).decision_id


async def test_a_decision_is_told_once(store: Store) -> None:
    """However often anybody looks; a decision that is not to be told never is."""
    world = World(store)
    told = await commit(store, "1")
    await store.commit_decision(record(await running(store, job_id="2"), decision=healthy()))
    for _ in range(3):
        await world.tell()
    assert world.jobs == [["1"]]
    (item,) = world.told.notices[0].items
    assert (item.decision_id, item.link, item.update, item.user) == (told, f"https://a.example/{told}", 0, "ada")


async def test_each_channel_is_told(store: Store) -> None:
    """One that was told says nothing of another."""
    world = World(store)
    await commit(store, "1")
    await world.tell()
    assert await store.enqueue_notices("mail", actions=ACTIONS, since=at(0), now=at(40)) == 1


async def test_updates_count_and_the_newest_replaces_those_that_wait(store: Store) -> None:
    """One message per incident, then updates; what was overtaken before it could be told is not told."""
    world, key = World(store), await running(store, job_id="1")
    await commit(store, "1", key=key)
    await world.tell()
    for generation in (1, 2, 3):
        await commit(store, "1", generation, key)
    await world.tell()
    assert [(n.items[0].update, len(n.items)) for n in world.told.notices] == [(0, 1), (1, 1)]
    newest = await commit(store, "1", 4, key)
    await world.tell()
    assert (world.told.notices[-1].items[0].decision_id, world.told.notices[-1].items[0].update) == (newest, 2)
    assert len({notice.items[0].incident for notice in world.told.notices}) == 1


async def test_a_storm_is_few_messages(store: Store) -> None:
    """As many as the rate allows in a minute, the last of them with all others in it; later ones wait."""
    world = World(store, per_minute=3)
    for job in range(15):
        await commit(store, str(100 + job))
    await world.tell()
    assert [len(jobs) for jobs in world.jobs] == [1, 1, 13]
    await commit(store, "999")
    await world.tell()
    assert len(world.told.notices) == 3
    world.clock.at += timedelta(seconds=61)
    await world.tell()
    assert world.jobs[-1] == ["999"]
    assert sorted(job for jobs in world.jobs for job in jobs) == sorted([*(str(100 + n) for n in range(15)), "999"])


async def test_what_failed_is_tried_again_later_under_the_same_key(store: Store) -> None:
    """Longer and longer apart, and no repeat: it is certain that it did not arrive."""
    world = World(store)
    await commit(store, "1")
    world.told.answer = REFUSED
    waits = []
    for _ in range(4):
        before = len(world.told.notices)
        began = world.clock.at
        while len(world.told.notices) == before:
            await world.tell()
            world.clock.at += timedelta(seconds=1)
        waits.append((world.clock.at - began).total_seconds())
    assert waits[1] < waits[2] < waits[3]
    world.told.answer = None
    world.clock.at += timedelta(hours=1)
    await world.tell()
    await world.tell()
    assert len(world.told.notices) == 5
    assert {(notice.key, notice.repeat) for notice in world.told.notices} == {(world.told.notices[0].key, False)}


async def test_a_server_that_asks_for_time_gets_it(store: Store) -> None:
    """The channel as a whole is left alone."""
    world = World(store)
    await commit(store, "1")
    world.told.answer = replace(REFUSED, wait_seconds=300.0)
    assert await world.tell() == 300.0
    world.clock.at += timedelta(seconds=299)
    world.told.answer = None
    await world.tell()
    assert len(world.told.notices) == 1
    world.clock.at += timedelta(seconds=2)
    await world.tell()
    assert len(world.told.notices) == 2


async def test_a_service_that_dies_while_sending_loses_and_doubles_nothing(store: Store) -> None:
    """The next one sends the same message under the same key once the claim has ended, and says that it may repeat."""
    world = World(store)
    await commit(store, "1")
    world.told.dies = True
    with suppress(KeyboardInterrupt):
        await world.tell()
    world.told.dies = False
    await world.tell()
    assert len(world.told.notices) == 1  # still claimed
    world.clock.at += timedelta(seconds=CLAIM_SECONDS + 1)
    await world.tell()
    await world.tell()
    first, second = world.told.notices
    assert (second.key, second.items, first.repeat, second.repeat) == (first.key, first.items, False, True)


async def test_a_service_that_dies_between_commit_and_outbox_tells_it_later(store: Store, url: str) -> None:
    """The outbox is made from the decisions: nothing has to be remembered."""
    await commit(store, "1")
    await store.close()
    again = await Store.open(url)
    world = World(again)
    await world.tell()
    assert world.jobs == [["1"]]
    await again.close()


async def test_two_replicas_send_each_message_once(store: Store, url: str) -> None:
    """They take turns in claiming, and keep the rate together."""
    other = await Store.open(url)
    for job in range(12):
        await commit(store, str(job))
    await store.enqueue_notices("chat", actions=ACTIONS, since=at(0), now=at(30))
    claims = await asyncio.gather(
        *(side.claim_notice("chat", messages_per_minute=6, now=at(31)) for side in (store, other) * 10)
    )
    taken = [claim for claim in claims if isinstance(claim, Claimed)]
    assert len(taken) == 6
    told = [row.decision_id for claim in taken for row in claim.rows]
    assert len(told) == len(set(told)) == 12
    await other.close()


async def test_after_a_day_it_is_given_up(store: Store, url: str) -> None:
    """And says so in the database; a channel that works again is not flooded with what nobody needs any more."""
    world = World(store)
    await commit(store, "1")
    world.told.answer = REFUSED
    await world.tell()
    world.clock.at += GIVE_UP
    await world.tell()
    world.clock.at += timedelta(hours=1)
    world.told.answer = None
    await world.tell()
    assert len(world.told.notices) == 2
    engine = create_async_engine(url)
    async with engine.connect() as connection:
        row = (await connection.execute(text("SELECT state, error, tries FROM notifications"))).one()
    await engine.dispose()
    assert (row.state, row.error, row.tries) == ("given_up", "refused: no", 2)


async def test_the_loop_tells_what_comes_and_ends_when_told_to(store: Store) -> None:
    """One service from its start on: what was committed before it, and what comes while it runs."""
    world = World(store)
    await commit(store, "1")
    running_loop = asyncio.create_task(Notifying(store=store, channels=[world.channel], clock=world.clock).run())
    async with asyncio.timeout(10):
        await world.told.heard.wait()
        world.told.heard.clear()
        await commit(store, "2", created_at=world.clock.now())
        await world.told.heard.wait()
    running_loop.cancel()
    assert (await asyncio.gather(running_loop, return_exceptions=True))[0].__class__ is asyncio.CancelledError
    assert world.jobs == [["1"], ["2"]]


async def test_a_users_own_message_holds_nobody_elses_jobs(store: Store) -> None:
    """Where users are told, a full minute's message is of one user, and what is not done is not told."""
    for number, (user, mode) in enumerate([("ada", Mode.AUTONOMOUS), ("bob", Mode.AUTONOMOUS), ("eve", Mode.MONITOR)]):
        key = await running(store, job_id=str(40 + number), user=user)
        await store.commit_decision(record(key, decision=decision(mode=mode)))
    made = await store.enqueue_notices("users", actions=["restart"], since=at(0), now=at(60), acted_only=True)
    told = []
    for turn in range(3):
        moment = at(60 + 61 * turn)
        claimed = await store.claim_notice("users", messages_per_minute=1, now=moment, by_user=True)
        if claimed is not None:
            told.append([row.user for row in claimed.rows])
            await store.notice_sent(claimed.key, now=moment)
    assert (made, sorted(told)) == (2, [["ada"], ["bob"]])
