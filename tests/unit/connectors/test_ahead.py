"""What is asked of a store ahead of time: the very next of the past, once, and nothing else."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import pytest

from advisor.core.words import UnavailableReason
from connectors.logs.ahead import Ahead
from connectors.logs.store import Answer, Ask, Seen
from connectors.web.server import AskError

PAST = Ask(jobs=("7",), start_ns=0, end_ns=100, whole=False, bytes_max=1, urgent=False)


@dataclass
class Windows:
    """Answers ten nanoseconds at a time. `failing`: where it fails; `cancelled`: where somebody gave up."""

    filters: bool = False
    asked: list[int] = field(default_factory=list)
    failing: frozenset[int] = frozenset()
    cancelled: list[int] = field(default_factory=list)
    gate: asyncio.Event | None = None

    async def lines(self, ask: Ask) -> Answer:
        self.asked.append(ask.start_ns)
        try:
            await asyncio.sleep(0)
            if self.gate is not None:
                await self.gate.wait()
        except asyncio.CancelledError:
            self.cancelled.append(ask.start_ns)
            raise
        if ask.start_ns in self.failing:
            raise AskError(UnavailableReason.TIMEOUT, "too slow")
        return Answer(streams=(), until_ns=min(ask.end_ns, ask.start_ns + 10))

    async def counts(self, jobs: Sequence[str], start_ns: int, end_ns: int) -> Mapping[str, int]:
        raise NotImplementedError

    async def anything(self, start_ns: int, end_ns: int) -> bool:
        raise NotImplementedError

    async def look(self, start_ns: int, end_ns: int) -> Seen:
        raise NotImplementedError

    async def close(self) -> None:
        raise NotImplementedError


async def settled() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_the_next_is_asked_for_while_this_one_is_looked_at_and_only_once() -> None:
    """Reading to the end asks each window once; after the last nothing is asked."""
    store = Windows()
    ahead, at = Ahead(store), 0
    while at < 100:
        at = (await ahead.lines(replace(PAST, start_ns=at))).until_ns
        await settled()
        assert store.asked[-1] == min(at, 90)
    assert store.asked == list(range(0, 100, 10))
    await ahead.close()


async def test_nothing_is_asked_ahead_about_the_present() -> None:
    """There the next window is not there yet."""
    store = Windows()
    ahead = Ahead(store)
    await ahead.lines(replace(PAST, urgent=True))
    await settled()
    assert store.asked == [0]
    await ahead.close()


@pytest.mark.parametrize("other", [replace(PAST, jobs=("8",)), replace(PAST, whole=True), replace(PAST, start_ns=15)])
async def test_another_question_is_not_answered_with_what_was_asked_ahead(other: Ask) -> None:
    """What nobody wants any more is given up, and the store is asked anew."""
    store = Windows()
    ahead = Ahead(store)
    await ahead.lines(PAST)
    store.gate = asyncio.Event()
    await settled()
    answer = asyncio.create_task(ahead.lines(other))
    await settled()
    assert store.cancelled == [10]
    store.gate.set()
    assert (await answer).until_ns == other.start_ns + 10
    await ahead.close()


async def test_what_failed_ahead_fails_when_it_is_asked_for_and_not_before() -> None:
    """The failure is the question's own; the next try is a new question."""
    store = Windows(failing=frozenset({10}))
    ahead = Ahead(store)
    await ahead.lines(PAST)
    await settled()
    with pytest.raises(AskError, match="too slow"):
        await ahead.lines(replace(PAST, start_ns=10))
    store.failing = frozenset()
    assert (await ahead.lines(replace(PAST, start_ns=10))).until_ns == 20
    assert store.asked[:3] == [0, 10, 10]
    await ahead.close()


async def test_closing_gives_up_what_is_on_its_way() -> None:
    """Nothing runs on."""
    store = Windows()
    ahead = Ahead(store)
    await ahead.lines(PAST)
    store.gate = asyncio.Event()
    await settled()
    await ahead.close()
    assert store.cancelled == [10]
