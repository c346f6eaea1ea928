"""Inotify as a hint: it comes soon, not too often, and is not needed."""

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from connectors.logs.files import JobFileLogs
from connectors.logs.news import SECONDS_MIN
from tests.contract.world import Harness, StandingClock, batch, job_harness, text


@pytest.fixture
def world(tmp_path: Path) -> Harness:
    return job_harness(tmp_path)


class Listener:
    def __init__(self) -> None:
        self.heard = asyncio.Event()
        self.times: list[float] = []

    def __call__(self) -> None:
        self.times.append(asyncio.get_running_loop().time())
        self.heard.set()

    async def again(self) -> float:
        async with asyncio.timeout(5):
            await self.heard.wait()
        self.heard.clear()
        return self.times[-1]


@pytest.fixture
async def source() -> AsyncIterator[JobFileLogs]:
    made = JobFileLogs(clock=StandingClock(), extra_files=("logs/rank%t.out",))
    yield made
    await made.close()


async def test_a_new_line_is_heard_of(world: Harness, source: JobFileLogs) -> None:
    """In the output's folder, and in the one that a pattern names; each time after a look."""
    listener = Listener()
    source.on_news(listener)
    (world.folder / "logs").mkdir()
    world.file.write_bytes(b"one\n")
    page = await batch(source, world.request())
    with world.file.open("ab") as out:
        out.write(b"two\n")
    await listener.again()
    page = await batch(source, world.request(page.cursor))
    assert text(page) == b"two\n"
    (world.folder / "logs" / "rank0.out").write_bytes(b"three\n")
    await listener.again()
    assert text(await batch(source, world.request(page.cursor))) == b"three\n"


async def test_hints_are_bounded_however_busy_the_folder_is(world: Harness, source: JobFileLogs) -> None:
    """One for each look at most, and not sooner than a quarter of a second after it began."""
    listener = Listener()
    source.on_news(listener)
    world.file.write_bytes(b"one\n")
    began = asyncio.get_running_loop().time()
    await batch(source, world.request())
    for number in range(2000):
        (world.folder / f"{number % 50}").write_bytes(b"x")
    assert await listener.again() - began >= SECONDS_MIN * 0.9
    assert len(listener.times) == 1


async def test_folders_that_cannot_be_watched_are_read_all_the_same(world: Harness, source: JobFileLogs) -> None:
    """A missing folder, and one that is a file."""
    source.on_news(Listener())
    world.file.write_bytes(b"one\n")
    paths = (str(world.file), str(world.folder / "nothing" / "x"), f"{world.file}/x")
    assert text(await batch(source, world.request(paths=paths))) == b"one\n"


async def test_closing_leaves_no_descriptor(world: Harness) -> None:
    """Neither the watch nor its task stay."""
    before = set(os.listdir("/proc/self/fd"))  # noqa: PTH208 - names are what is compared
    source = JobFileLogs(clock=StandingClock())
    source.on_news(Listener())
    world.file.write_bytes(b"one\n")
    await batch(source, world.request())
    await source.close()
    assert set(os.listdir("/proc/self/fd")) == before  # noqa: PTH208
