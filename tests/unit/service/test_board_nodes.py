"""What the board shows of nodes: on paper under a stop, nothing while paused, and a canary's nodes as its jobs."""

from datetime import UTC, datetime, timedelta
from typing import cast

import pytest

from advisor.board import Board, OpenAdviceSource
from advisor.core.modes import ModeSetting, Pause, in_share
from advisor.core.words import IsolationEnd, Mode
from advisor.ports import Clock
from advisor.store.records import ReconciliationReason, ReconciliationStatus, StoredIsolation

NOW = datetime(2026, 5, 1, tzinfo=UTC)
INSIDE = next(f"job-{i}" for i in range(100) if in_share(f"job-{i}", 10))
OUTSIDE = next(f"job-{i}" for i in range(100) if not in_share(f"job-{i}", 10))
CANARY = ModeSetting(mode=Mode.AUTONOMOUS, cluster="c", percent=10)


class FixedClock:
    def now(self) -> datetime:
        return NOW

    def monotonic(self) -> float:
        return 0.0


class Source:
    """Nodes, settings and pauses as given; no advice."""

    def __init__(self, *nodes: StoredIsolation, modes: tuple[ModeSetting, ...] = (), pauses: tuple[Pause, ...] = ()):
        self._nodes, self._modes, self._pauses = nodes, modes, pauses

    @property
    def incarnation(self) -> str:
        return "first"

    async def open_advice(self, cluster: str, now: datetime) -> tuple[()]:
        return ()

    async def open_isolations(self, cluster: str) -> tuple[StoredIsolation, ...]:
        return self._nodes

    async def earned(self) -> tuple[()]:
        return ()

    async def modes(self) -> tuple[ModeSetting, ...]:
        return self._modes

    async def pauses(self, now: datetime) -> tuple[Pause, ...]:
        return self._pauses


def isolation(job_key: str = "k", *, ended: bool = False) -> StoredIsolation:
    return StoredIsolation(
        isolation_id="i",
        cluster="c",
        node="n1",
        generation=1,
        dry_run=False,
        category="gpu_hardware",
        why="its GPU fell off the bus",
        job_id="7",
        job_key=job_key,
        partition="train",
        account="physics",
        opened_at=NOW,
        expires_at=NOW + timedelta(hours=1),
        open=True,
        status=ReconciliationStatus.PENDING,
        reason=ReconciliationReason.UNSPECIFIED,
        ended_at=NOW if ended else None,
        ended_by=IsolationEnd.OPERATOR if ended else None,
    )


async def shown(source: Source) -> list[bool]:
    """Of each node whether it is on paper only."""
    board = Board(cast(OpenAdviceSource, source), cast(Clock, FixedClock()))
    return [item.dry_run for item in await board.nodes_for("c")]


@pytest.mark.parametrize(
    ("modes", "key", "on_paper"),
    [
        ((), "k", False),
        ((ModeSetting(mode=Mode.MONITOR),), "k", True),
        ((ModeSetting(mode=Mode.MONITOR, category="gpu_hardware"),), "k", True),
        ((ModeSetting(mode=Mode.MONITOR, category="storage"),), "k", False),
        ((ModeSetting(mode=Mode.MONITOR, partition="train"),), "k", True),
        ((ModeSetting(mode=Mode.MONITOR, account="physics"),), "k", True),
        ((ModeSetting(mode=Mode.MONITOR, partition="other"),), "k", False),
        ((ModeSetting(mode=Mode.MONITOR), ModeSetting(mode=Mode.AUTONOMOUS, partition="train")), "k", False),
        ((CANARY,), INSIDE, False),
        ((CANARY,), OUTSIDE, True),
    ],
)
async def test_where_an_operator_says_monitor_nothing_more_is_drained(
    modes: tuple[ModeSetting, ...], key: str, on_paper: bool
) -> None:
    """A stop, a stop for its kind of failure, and the share of a canary that its job is not in."""
    assert await shown(Source(isolation(key), modes=modes)) == [on_paper]


async def test_what_is_drained_is_put_back_under_a_stop_too() -> None:
    """Undoing ours is no new action."""
    assert await shown(Source(isolation(ended=True), modes=(ModeSetting(mode=Mode.MONITOR),))) == [False]


async def test_while_paused_nothing_is_wanted_of_nodes() -> None:
    """Neither a drain nor its end; another cluster's pause changes nothing here."""
    until = NOW + timedelta(hours=1)
    assert await shown(Source(isolation(), pauses=(Pause(cluster="c", until=until),))) == []
    assert await shown(Source(isolation(), pauses=(Pause(cluster="d", until=until),))) == [False]
