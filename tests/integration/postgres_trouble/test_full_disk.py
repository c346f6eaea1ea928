"""A full disk under our own Postgres: the service stays and says what is true, and goes on when there is room again."""

import asyncio
import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import grpc
import psycopg
import pytest

from advisor.v1 import agent_pb2, operator_pb2
from tests.integration.service.world import CLUSTER, World, configuration, iteration, world_of

pytestmark = [
    pytest.mark.postgres,
    pytest.mark.skipif(os.geteuid() != 0, reason="a small disk is a mount, which needs root"),
]


@pytest.fixture
def disk(place: Path) -> Iterator[Path]:
    """The data folder, on a disk of 220 MB of its own."""
    folder = place / "data"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=220m,mode=755", "tmpfs", str(folder)], check=True)
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def _fill(disk: Path) -> Path:
    """Take all that is left."""
    ballast = disk / "ballast"
    with ballast.open("ab", buffering=0) as file:
        for size in (1 << 20, 1 << 12):
            try:
                while True:
                    file.write(b"\0" * size)
            except OSError:
                continue
    return ballast


async def _code(call: "asyncio.Future[object]") -> grpc.StatusCode | None:
    try:
        await asyncio.wait_for(call, 30)
    except grpc.aio.AioRpcError as error:
        return error.code()
    return None


async def _write_until_refused(world: World) -> grpc.StatusCode:
    """Jobs with much to say, until there is no room for one more."""
    for number in range(2_000):
        job = world.job("RUNNING", job=f"{1000 + number}", name="x" * 1000, stdout_path="/" + "y" * 4000)
        code = await _code(asyncio.ensure_future(world.report(job)))
        if code is not None:
            return code
    raise AssertionError("the disk never filled")


def _end_of_the_log(disk: Path) -> None:
    """Use up what is left of Postgres' own log; a new part of it finds no room, and the server goes down."""
    folder = disk / "postgres" / "sockets"
    with (
        suppress(psycopg.OperationalError),
        psycopg.connect(host=str(folder), user="advisor", dbname="advisor") as held,
    ):
        for number in range(100):
            held.execute("SELECT pg_switch_wal()")
            held.execute(f"COMMENT ON DATABASE advisor IS '{number}'".encode())
            held.commit()


async def test_an_idle_service_knows_of_a_full_disk(place: Path, disk: Path) -> None:
    """Nothing has to be written, and what renews the lease has its room: it is told all the same, until it is over."""
    async with world_of(place, configuration(place)) as world:
        await world.ticks(1)
        assert await _store_told(world) == []
        ballast = _fill(disk)
        told = await _told_when(world, 1)
        assert "pgsql_tmp" in told[0].detail  # what the watch tried: nothing else was to be written
        assert "No space left on device" in told[0].detail
        assert not told[0].available
        ballast.unlink()
        await _told_when(world, 0)


async def _told_when(world: World, count: int) -> list[operator_pb2.SourceStatus]:
    until = time.monotonic() + 60
    while len(told := await _store_told(world)) != count:
        assert time.monotonic() < until, told
        await asyncio.sleep(0.2)
    return told


async def _store_told(world: World) -> list[operator_pb2.SourceStatus]:
    status = await world.operator.GetStatus(operator_pb2.GetStatusRequest())
    return [source for source in status.sources if source.name == "store"]


@pytest.mark.parametrize("panics", [False, pytest.param(True, marks=pytest.mark.long)])
async def test_a_full_disk_is_said_and_outlived(place: Path, disk: Path, panics: bool) -> None:
    """Writers are told to come again, the tick grows old and listeners hear so; with room again all goes on.

    `panics`: Postgres itself goes down for want of room, and is tried again until there is some.
    """
    async with world_of(place, configuration(place)) as world:
        world.log().write_text(iteration(1))
        await world.report(world.job("RUNNING"))
        await world.ticks(1)
        stream = world.agent.WatchAdvice(agent_pb2.WatchAdviceRequest(cluster=CLUSTER, session=world.session))
        await stream.read()
        ballast = _fill(disk)
        if panics:
            await asyncio.to_thread(_end_of_the_log, disk)
        assert await _write_until_refused(world) is grpc.StatusCode.UNAVAILABLE
        if not panics:
            assert await world.decisions() == []  # reading goes on
        age = 0.0
        async with asyncio.timeout(30):
            while age < 2.0:
                message = await stream.read()
                assert isinstance(message, agent_pb2.WatchAdviceResponse)
                age = message.tick_age.ToNanoseconds() / 1e9
        stream.cancel()
        (absent,) = await _store_told(world)
        assert not absent.available
        assert panics or "No space left on device" in absent.detail
        ballast.unlink()
        began = time.monotonic()
        while await _code(asyncio.ensure_future(world.report(world.job("FAILED")))) is not None:
            assert time.monotonic() < began + 40, (disk / "postgres" / "log").read_text()[-6000:]
            await asyncio.sleep(0.2)
        (advice,) = await world.advice_where(lambda found: [item.attempt.job_id for item in found] == ["17"], 60)
        print(f"goes on {time.monotonic() - began:.1f} s after there was room")
        assert advice.generation == 1
