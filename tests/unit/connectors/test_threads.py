"""Reads that hang: what they cost, and whom."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import pytest

from connectors.logs.threads import FileThreads, Mounts, Task, ThreadLimits, Unfinished

LIMITS = ThreadLimits(
    lanes=4, per_owner_max=2, per_mount_max=4, stuck_max=8, deadline_seconds=0.4, patience_seconds=0.05
)


class RealClock:
    def now(self) -> datetime:
        return datetime(2026, 1, 1, tzinfo=UTC)

    def monotonic(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


@pytest.fixture
def wall() -> Iterator[threading.Event]:
    """What hung reads wait for; it falls at the end, so that no thread outlives its test."""
    event = threading.Event()
    yield event
    event.set()


def hang(wall: threading.Event) -> Callable[[], str]:
    def call() -> str:
        wall.wait(30)
        return "late"

    return call


def task(call: Callable[[], str], *, mount: str = "/home", owner: str = "u") -> Task[str]:
    return Task(mount=mount, owner=owner, call=call)


async def settled(threads: FileThreads) -> None:
    for _ in range(500):
        if not threads.stuck:
            return
        await asyncio.sleep(0.01)
    raise AssertionError(f"{threads.stuck} reads never came back")


async def test_results_in_the_order_of_the_tasks() -> None:
    """Every task has its own result, whichever thread ran it."""
    threads = FileThreads(RealClock(), LIMITS)
    tasks = [task(partial(str, n), mount=f"/m{n % 3}", owner=f"u{n % 5}") for n in range(500)]
    assert await threads.run(tasks) == [str(n) for n in range(500)]


async def test_one_hung_owner_costs_two_threads_and_nobody_else(wall: threading.Event) -> None:
    """Of an owner's hanging reads two are tried; everybody else is served in the same call."""
    threads = FileThreads(RealClock(), LIMITS)
    tasks = [task(hang(wall)) for _ in range(10)] + [task(lambda: "ok", owner=f"o{n}") for n in range(50)]
    results = await threads.run(tasks)
    assert results[10:] == ["ok"] * 50
    assert sorted(str(r) for r in results[:10]) == ["stuck"] * 8 + ["timed_out"] * 2
    assert threads.stuck == 2


async def test_next_call_does_not_try_what_hangs(wall: threading.Event) -> None:
    """While reads of a group hang, more of it are refused at once, and others do not wait."""
    threads = FileThreads(RealClock(), LIMITS)
    await threads.run([task(hang(wall)) for _ in range(3)])
    began = time.monotonic()
    assert await threads.run([task(lambda: "ok"), task(lambda: "ok", owner="other")]) == [Unfinished.STUCK, "ok"]
    assert time.monotonic() - began < LIMITS.deadline_seconds / 2


async def test_mount_that_hangs_for_everybody_is_bounded(wall: threading.Event) -> None:
    """However many owners, a hung mount holds no more threads than its bound, and other mounts are served."""
    threads = FileThreads(RealClock(), LIMITS)
    for _ in range(3):
        tasks = [task(hang(wall), owner=f"u{n}") for n in range(20)] + [task(lambda: "ok", mount="/scratch")]
        results = await threads.run(tasks)
        assert results[-1] == "ok"
        assert "late" not in results
        assert threads.stuck == LIMITS.per_mount_max


async def test_all_mounts_together_are_bounded(wall: threading.Event) -> None:
    """There is a last bound over everything; beyond it reads are refused, not queued."""
    threads = FileThreads(RealClock(), LIMITS)
    for n in range(4):
        await threads.run([task(hang(wall), mount=f"/m{n}", owner=str(o)) for o in range(4)])
    assert threads.stuck <= LIMITS.stuck_max
    assert await threads.run([task(lambda: "ok", mount="/fine")]) == [Unfinished.STUCK]


async def test_recovers_when_the_file_system_answers_again(wall: threading.Event) -> None:
    """A thread that comes back is forgotten, its late result is dropped, and its group is served again."""
    threads = FileThreads(RealClock(), LIMITS)
    await threads.run([task(hang(wall)) for _ in range(3)])
    wall.set()
    await settled(threads)
    assert await threads.run([task(lambda: "ok")]) == ["ok"]


async def test_slow_is_not_stuck() -> None:
    """Reads slower than our patience and within the deadline give their results, one after the other."""
    threads = FileThreads(RealClock(), LIMITS)

    def slow() -> str:
        time.sleep(0.08)
        return "slow"

    assert await threads.run([task(slow) for _ in range(4)]) == ["slow"] * 4
    assert threads.stuck == 0


async def test_what_time_did_not_allow_is_said(wall: threading.Event) -> None:
    """A task that was not begun in time is told from one that hangs."""
    threads = FileThreads(RealClock(), LIMITS)

    def slow() -> str:
        time.sleep(0.15)
        return "slow"

    results = await threads.run([task(slow) for _ in range(30)])
    assert results[0] == "slow"
    assert results[-1] in {Unfinished.NOT_REACHED, Unfinished.STUCK}
    await settled(threads)


async def test_calls_at_the_same_time_share_and_wait() -> None:
    """An owner whose threads are busy for one call is not refused in another."""
    threads = FileThreads(RealClock(), LIMITS)

    def short() -> str:
        time.sleep(0.01)
        return "ok"

    answers = await asyncio.gather(*(threads.run([task(short), task(short)]) for _ in range(8)))
    assert answers == [["ok", "ok"]] * 8


async def test_cancelled_call_counts_what_still_runs(wall: threading.Event) -> None:
    """Cancelling a call does not lose count of the threads that hang for it."""
    threads = FileThreads(RealClock(), LIMITS)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.02):
            await threads.run([task(hang(wall)) for _ in range(2)])
    assert await threads.run([task(lambda: "ok")]) == [Unfinished.STUCK]
    assert threads.stuck == 2
    wall.set()
    await settled(threads)


async def test_cancelled_call_whose_reads_are_quick_is_forgotten() -> None:
    """A read that comes back soon after its call was cancelled keeps nobody waiting and refuses nobody."""
    threads = FileThreads(RealClock(), LIMITS)

    def short() -> str:
        time.sleep(0.02)
        return "ok"

    for _ in range(10):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.005):
                await threads.run([task(short), task(short)])
        assert await threads.run([task(short)]) == ["ok"]


async def test_programmers_error_is_raised_where_it_is_awaited() -> None:
    """A task that raises is a defect: it is not turned into a missing answer."""
    threads = FileThreads(RealClock(), LIMITS)

    def broken() -> str:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await threads.run([task(broken)])


def test_mount_by_longest_prefix(tmp_path: Path) -> None:
    """The mount of a path is told from the mount table alone, with its escapes, at folder boundaries."""
    table = tmp_path / "mountinfo"
    table.write_text(
        "1 0 8:1 / / rw - ext4 /dev/a rw\n"
        "2 1 0:5 / /home rw - nfs4 s:/h rw\n"
        "3 1 0:6 / /home/my\\040lab rw - nfs4 s:/l rw\n"
        "broken line\n"
    )
    mounts = Mounts(RealClock(), table=table)
    assert [mounts.of(p) for p in ("/home/u/x", "/homes/u", "/home/my lab/x", "/home", "/home/my")] == [
        "/home",
        "/",
        "/home/my lab",
        "/home",
        "/home",
    ]


def test_mount_table_that_cannot_be_read(tmp_path: Path) -> None:
    """Without a table everything counts as one mount."""
    assert Mounts(RealClock(), table=tmp_path / "absent").of("/home/u/x") == "/"
