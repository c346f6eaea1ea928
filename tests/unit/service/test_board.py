"""The board under many acknowledgements: read together, and never forgotten."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import cast

import pytest

from advisor.board import Board, Elsewhere, OpenAdviceSource
from advisor.ports import Clock


class Steps:
    """A clock whose sleeps end when the test says so."""

    def __init__(self) -> None:
        self.gate = asyncio.Semaphore(0)
        self.seconds = 0.0

    def now(self) -> datetime:
        return datetime(2026, 3, 1, tzinfo=UTC)

    def monotonic(self) -> float:
        return self.seconds

    async def sleep(self, seconds: float) -> None:
        await self.gate.acquire()


class Source:
    """Counts readings; `during` is called while one is under way."""

    def __init__(self) -> None:
        self.read: list[str] = []
        self.away = False
        self.during: Callable[[], None] = lambda: None
        self.incarnation = "first"

    async def open_advice(self, cluster: str, now: datetime) -> tuple[()]:
        if self.away:
            raise OSError("no database")
        self.read.append(cluster)
        during, self.during = self.during, lambda: None
        during()
        return ()

    async def earned(self) -> tuple[()]:
        return ()

    async def open_isolations(self, cluster: str) -> tuple[()]:
        return ()

    async def modes(self) -> tuple[()]:
        return ()

    async def pauses(self, now: datetime) -> tuple[()]:
        return ()


async def _settled() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


@pytest.fixture
def source() -> Source:
    return Source()


async def test_many_acknowledgements_are_one_reading(source: Source) -> None:
    """A thousand at once; one that comes while they are read leads to another reading."""
    clock = Steps()
    board = Board(cast(OpenAdviceSource, source), cast(Clock, clock))
    source.during = lambda: board.refresh_soon("a")
    for _ in range(1000):
        board.refresh_soon("a")
    clock.gate.release()
    await _settled()
    assert (source.read, board.due) == (["a"], True)
    clock.gate.release()
    await _settled()
    assert (source.read, board.due) == (["a", "a"], False)
    await board.close()


async def test_what_could_not_be_read_is_still_due(source: Source) -> None:
    """The database was away: the next reading of everything, which the tick asks for, makes up for it."""
    clock = Steps()
    board = Board(cast(OpenAdviceSource, source), cast(Clock, clock))
    source.away = True
    board.refresh_soon("a")
    clock.gate.release()
    await _settled()
    assert board.due
    source.away = False
    await board.refresh(("a",))
    assert (source.read, board.due) == (["a"], False)
    await board.close()


async def test_what_was_read_in_a_former_incarnation_is_read_again(source: Source) -> None:
    """A listener is never shown advice of a store that may have forgotten it."""
    board = Board(cast(OpenAdviceSource, source), cast(Clock, Steps()))
    await board.open_for("a")
    await board.open_for("a")
    assert source.read == ["a"]
    source.incarnation = "second"
    before = board.version
    await board.nodes_for("a")
    assert source.read == ["a", "a"]
    assert board.version > before
    await board.open_for("a")
    assert source.read == ["a", "a"]
    await board.close()


async def test_a_store_that_begins_anew_while_it_is_read_is_read_once_more(source: Source) -> None:
    """What was asked for in one incarnation and answered in the next one is not taken for either."""
    board = Board(cast(OpenAdviceSource, source), cast(Clock, Steps()))
    source.during = lambda: setattr(source, "incarnation", "second")
    await board.open_for("a")
    assert source.read == ["a", "a"]
    await board.close()


async def test_the_age_that_the_watchdog_hears_is_that_of_the_oldest_tick(source: Source) -> None:
    """A replica that is dead, or a job that is nobody's, counts and grows older; our own only while it holds jobs."""
    clock = Steps()
    board = Board(cast(OpenAdviceSource, source), cast(Clock, clock))
    board.tick_completed(took_seconds=0.1, watched=3, failed_jobs=0)
    assert board.tick_age_seconds == 0
    board.elsewhere = Elsewhere(tick_age_seconds=7.0, free_seconds=0.0, seen_at=clock.monotonic(), alone=False)
    assert board.tick_age_seconds == 7.0
    clock.seconds += 5
    assert board.tick_age_seconds == 12.0, "nobody has looked since, and nothing says that it ticked"
    board.elsewhere = Elsewhere(tick_age_seconds=0.0, free_seconds=4.0, seen_at=clock.monotonic(), alone=False)
    board.holds = True
    assert board.tick_age_seconds == 5.0
    board.holds = False
    assert board.tick_age_seconds == 4.0
    board.elsewhere = replace(board.elsewhere, free_seconds=0.0)
    assert board.tick_age_seconds == 0.0
    board.elsewhere = replace(board.elsewhere, alone=True)
    assert board.tick_age_seconds == 5.0, "with nobody else there, our own tick is all there is"
