"""A database that is slow or does not answer: what comes in is bounded, what is said is true, and it goes on."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import psycopg
import pytest

from advisor.v1 import agent_pb2, audit_pb2
from tests.integration.postgres_trouble.servers import Gate, Server
from tests.integration.service.world import CLUSTER, World, configuration, world_of

pytestmark = pytest.mark.postgres


@asynccontextmanager
async def world_behind(place: Path, server: Server, gate: Gate | None = None) -> AsyncIterator[World]:
    """A service whose database is `server`, behind `gate`."""
    dsn = place / "dsn"
    dsn.write_text(server.url(port=gate.port if gate is not None else 0).replace("+psycopg", ""))
    dsn.chmod(0o600)
    async with world_of(place, configuration(place, f'[store]\ndsn_file = "{dsn}"')) as world:
        yield world


async def _told(call: Awaitable[object]) -> grpc.StatusCode | None:
    try:
        await call
    except grpc.aio.AioRpcError as error:
        return error.code()
    return None


_ABSENT = {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED}


async def test_reports_to_a_database_that_does_not_answer_are_sent_away(place: Path, server: Server) -> None:
    """Few wait, the others hear at once to come again; agents hear how old the tick is; afterwards all is as before."""
    async with Gate(server.port) as gate, world_behind(place, server, gate) as world:
        world.log().write_text("")
        await world.report(world.job("RUNNING"))
        await world.ticks(1)
        stream = world.agent.WatchAdvice(agent_pb2.WatchAdviceRequest(cluster=CLUSTER, session=world.session))
        await stream.read()
        gate.hold()
        reports = [asyncio.ensure_future(_told(world.report(world.job("RUNNING")))) for _ in range(40)]
        async with asyncio.timeout(20):
            while sum(report.done() for report in reports) < 35:  # noqa: ASYNC110 -- of many, some
                await asyncio.sleep(0.02)
            age = 0.0
            while age < 1.0:
                message = await stream.read()
                assert isinstance(message, agent_pb2.WatchAdviceResponse)
                age = message.tick_age.ToNanoseconds() / 1e9
        assert {report.result() for report in reports if report.done()} == {grpc.StatusCode.RESOURCE_EXHAUSTED}
        gate.release()
        codes = await asyncio.gather(*reports)
        assert codes.count(None) == 5
        await world.ticks(2)
        stream.cancel()
        await world.report(world.job("RUNNING"))


async def test_questions_that_wait_leave_the_tick_alone(place: Path, server: Server) -> None:
    """What people ask hangs on a lock, on all connections that there are for it: ticks and reports do not notice."""
    async with world_behind(place, server) as world:
        world.log().write_text("")
        await world.report(world.job("RUNNING"))
        await world.ticks(1)
        with psycopg.connect(server.url().replace("+psycopg", "")) as holder:
            holder.execute("LOCK TABLE audit IN ACCESS EXCLUSIVE MODE")
            held = True

            async def ask_on() -> set[grpc.StatusCode | None]:
                """Ask, and ask again once sent away, so that somebody waits for as long as the lock is held."""
                told = set()
                while held:
                    told.add(await _told(world.audit.ListAudit(audit_pb2.ListAuditRequest())))
                return told

            asking = [asyncio.ensure_future(ask_on()) for _ in range(12)]
            await world.ticks(5)
            assert world.running.board.pulse.age_seconds < 5
            await world.report(world.job("RUNNING"))
            held = False
        assert set().union(*await asyncio.gather(*asking)) <= {None, *_ABSENT}


@pytest.mark.long
async def test_half_a_minute_of_locks_and_a_slow_way_leave_nothing_behind(place: Path, server: Server) -> None:
    """Longer than a wait for a lock may be, behind a way of 40 ms: calls fail clearly, and no connection is lost."""
    async with Gate(server.port) as gate, world_behind(place, server, gate) as world:
        world.log().write_text("")
        await world.report(world.job("RUNNING"))
        gate.delay_seconds = 0.02
        with psycopg.connect(server.url().replace("+psycopg", "")) as holder:
            holder.execute("LOCK TABLE decisions, attempts IN ACCESS EXCLUSIVE MODE")
            began = time.monotonic()
            told = set()
            while time.monotonic() < began + 30:
                told.add(await _told(asyncio.ensure_future(world.report(world.job("FAILED")))))
            assert told <= _ABSENT
            age = world.running.board.pulse.age_seconds
        began = time.monotonic()
        await world.report(world.job("FAILED"))
        await world.advice_where(lambda found: len(found) == 1, 60)
        print(f"tick age {age:.0f} s at the end of the lock; decided {time.monotonic() - began:.1f} s after it")
        assert age > 25
        (held,) = server.query(f"SELECT count(*) FROM pg_stat_activity WHERE datname = '{server.database}'")
        assert int(str(held[0])) <= 16


async def test_a_lock_that_somebody_holds_delays_and_loses_nothing(place: Path, server: Server) -> None:
    """Somebody locks the decisions for a while: the tick grows old, and what failed meanwhile is decided afterwards."""
    async with world_behind(place, server) as world:
        world.log().write_text("")
        await world.report(world.job("RUNNING"))
        await world.ticks(1)
        with psycopg.connect(server.url().replace("+psycopg", "")) as holder:
            holder.execute("LOCK TABLE decisions, attempts IN ACCESS EXCLUSIVE MODE")
            failing = asyncio.create_task(world.report(world.job("FAILED")))
            async with asyncio.timeout(10):
                while world.running.board.pulse.age_seconds < 1.5:  # noqa: ASYNC110 -- nobody tells of age
                    await asyncio.sleep(0.05)
            assert not failing.done()
        await failing
        (advice,) = await world.advice_where(lambda found: len(found) == 1)
        assert advice.generation == 1
