"""Our own Postgres is kept running for as long as the service lives, whatever it dies of."""

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from typing import cast

import pytest

from advisor.app import POSTGRES_MUTE_SECONDS, POSTGRES_PAUSE_SECONDS_MAX, Service
from advisor.config import Config
from advisor.store.embedded import EmbeddedPostgres
from advisor.store.errors import ServerLost


class Jumps:
    """A clock on which waiting takes no time; ends the guard's task after so many seconds."""

    def __init__(self, until: float) -> None:
        self.seconds, self._until = 0.0, until

    def now(self) -> datetime:
        return datetime(2026, 3, 1, tzinfo=UTC)

    def monotonic(self) -> float:
        return self.seconds

    async def sleep(self, seconds: float) -> None:
        self.seconds += seconds
        if self.seconds > self._until:
            raise asyncio.CancelledError
        await asyncio.sleep(0)


class Server:
    """Lives until `end`, or dies at once after every start; answers as it is told."""

    def __init__(self, clock: Jumps, *, dies: bool, answers: Callable[[], bool]) -> None:
        self._clock, self._dies, self.answers = clock, dies, answers
        self.alive = not dies
        self.ended: list[float] = []
        self.started: list[float] = []

    def check(self) -> None:
        if not self.alive:
            raise ServerLost("gone")

    def end(self) -> None:
        self.ended.append(self._clock.seconds)
        self.alive = False

    def start_again(self) -> None:
        self.started.append(self._clock.seconds)
        self.alive = not self._dies
        if len(self.started) % 2:
            raise OSError("no room")


async def _guarded(clock: Jumps, server: Server) -> None:
    service = Service(Config(), clock=clock)
    with pytest.raises(asyncio.CancelledError):
        await service._guard_postgres(cast(EmbeddedPostgres, server))


async def test_one_that_dies_again_and_again_is_started_more_and_more_slowly_and_never_given_up() -> None:
    """A full disk may last for long: a start every half minute in the end, also where it could not even be started."""
    clock = Jumps(900.0)
    server = Server(clock, dies=True, answers=lambda: False)
    await _guarded(clock, server)
    pauses = [after - before for before, after in zip(server.started, server.started[1:], strict=False)]
    assert pauses == sorted(pauses)
    assert pauses[0] < 3
    assert POSTGRES_PAUSE_SECONDS_MAX <= pauses[-1] <= POSTGRES_PAUSE_SECONDS_MAX + 1
    assert len(server.started) > 20


async def test_one_that_lives_and_answers_nobody_is_ended_and_started() -> None:
    """Ten minutes without an answer are no replay of a log any more; one that answers is left alone."""
    clock = Jumps(1.5 * POSTGRES_MUTE_SECONDS)
    stuck = Server(clock, dies=False, answers=lambda: False)
    await _guarded(clock, stuck)
    assert stuck.ended[0] >= POSTGRES_MUTE_SECONDS
    assert stuck.started
    well = Server(Jumps(1.5 * POSTGRES_MUTE_SECONDS), dies=False, answers=lambda: True)
    await _guarded(well._clock, well)
    assert not well.ended
