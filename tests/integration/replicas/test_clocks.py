"""Clocks that are set while jobs run: the database's, and the advisor's host's. Real Postgres, a whole service."""

import asyncio
import json
import threading
import time
from collections.abc import Callable, MutableMapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import grpc
import pytest
from structlog.testing import capture_logs

from advisor.app import Service
from advisor.config import Config
from advisor.core.calm import calm_until
from advisor.core.model import Decision, Snapshot
from advisor.core.policy import Policy
from advisor.service.wire import stamp
from advisor.v1 import agent_pb2, common_pb2
from tests.integration.replicas.clocks import DatabaseClock
from tests.integration.replicas.fleet import FAILURE, Fleet
from tests.integration.replicas.serve import WrongClock
from tests.integration.service.world import CLUSTER, World, configuration, iteration, now, own_sources, world_of

pytestmark = pytest.mark.postgres

HOUR = 3600.0
HANG_SECONDS = 10.0
LINE_SECONDS = 4.0  # between two lines of a job: a silence that is judged within it, and none that is long
POLICY = f"""
hang_seconds = {HANG_SECONDS}
hang_startup_seconds = 120.0
trusted_fatal_grace_seconds = 5.0
"""


async def until(met: Callable[[], bool]) -> None:
    """The database tells nobody."""
    async with asyncio.timeout(30):
        while not met():  # noqa: ASYNC110
            await asyncio.sleep(0.05)


def over(folder: Path, url: str) -> Config:
    """A service's configuration with that database."""
    (folder / "dsn").write_text(url)
    (folder / "dsn").chmod(0o600)
    return configuration(folder, f'default_mode = "autonomous"\n[store]\ndsn_file = "{folder}/dsn"')


async def noticed(logs: Sequence[MutableMapping[str, Any]], times: int) -> None:
    """The service has seen its clock be set so often."""
    await until(lambda: sum(entry["event"] == "clock_set" for entry in logs) >= times)


@pytest.mark.parametrize("step", [HOUR, -HOUR], ids=["forward", "back"])
async def test_no_job_is_restarted_and_no_failure_lost_when_the_databases_clock_is_set(
    folder: Path, url: str, step: float
) -> None:
    """There, and back again; then a failure is advised on that was seen while it was off."""
    clock = DatabaseClock(url)
    with capture_logs() as logs:
        async with world_of(folder, over(folder, url)) as world:
            world.log().write_text("".join(map(iteration, range(1, 20))))
            await world.report(world.job("RUNNING"))
            await world.ticks(3)
            for times, off in enumerate((step, 0.0, step), 1):
                clock.set(off)
                await noticed(logs, times)
                await world.ticks(5)
                assert await world.decisions() == []
            await _failed(world)
            clock.set(0.0)
            await noticed(logs, 4)
            await _advised(world, 0.0, step)  # or it was just decided, by the clock as it was


async def test_a_hang_is_found_where_the_clock_was_set_back_while_attempts_were_judged(
    folder: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until when such an attempt needs no look was reckoned by the clock as it was: an hour too long."""
    (folder / "policy.toml").write_text(POLICY)
    config = over(folder, url).model_copy(update={"policy_file": folder / "policy.toml"})
    clock, setting = DatabaseClock(url), threading.Event()
    with capture_logs() as logs:

        def judged(snapshot: Snapshot, decision: Decision, policy: Policy) -> datetime | None:
            if setting.is_set():
                setting.clear()
                clock.set(-HOUR)
                while not any(entry["event"] == "clock_set" for entry in logs):
                    time.sleep(0.05)
            return calm_until(snapshot, decision, policy)

        monkeypatch.setattr("advisor.calm.calm_until", judged)
        async with world_of(folder, config) as world:
            world.log().write_text("".join(map(iteration, range(1, 20))))
            await world.report(world.job("RUNNING"))
            await world.ticks(3)
            setting.set()
            with world.log().open("a") as file:
                file.write(iteration(20))
            await noticed(logs, 1)
            async with asyncio.timeout(3 * HANG_SECONDS):
                while not await world.decisions():  # noqa: ASYNC110
                    await asyncio.sleep(0.2)


@pytest.mark.parametrize("step", [HOUR, -HOUR], ids=["forward", "back"])
async def test_log_rules_of_a_jobs_own_do_not_count_the_step_as_time(folder: Path, url: str, step: float) -> None:
    """A job whose line is due every minute is not ended for an hour that nobody waited."""
    rules = folder / "rules.json"
    steps = {"name": "steps", "logPattern": r".*iteration +\d+/", "expectedRecurringFrequencyInSeconds": 60}
    rules.write_text(json.dumps([steps]))
    clock = DatabaseClock(url)
    with capture_logs() as logs:
        async with world_of(folder, over(folder, url)) as world:
            world.log().write_text("".join(map(iteration, range(1, 20))))
            await world.report(world.job("RUNNING", job_rules=str(rules)))
            await world.ticks(3)
            for times, off in enumerate((step, 0.0, step), 1):
                clock.set(off)
                await noticed(logs, times)
                await world.ticks(5)
                assert await world.decisions() == []


@pytest.mark.parametrize("step", [HOUR, -HOUR], ids=["forward", "back"])
async def test_where_all_clocks_are_set_together_starts_and_ends_are_told_by_the_schedulers(
    folder: Path, url: str, step: float
) -> None:
    """One host for all: a job that has just started is not late with its first line, a failed one is restarted."""
    clock = DatabaseClock(url)
    with capture_logs() as logs:
        async with world_of(folder, over(folder, url)) as world:
            await _set_together(world, clock, logs, step)


async def _set_together(
    world: World, clock: DatabaseClock, logs: Sequence[MutableMapping[str, Any]], step: float
) -> None:
    await world.report(world.job("RUNNING", job="1"))
    clock.set(step)
    await noticed(logs, 1)
    world.log().write_text("starting\n")
    await _tell(world, "RUNNING", step, "started_at")
    await world.ticks(4)
    assert await world.decisions() == []
    await _tell(world, "FAILED", step, "ended_at")
    advice = await _advised(world, step)
    deadline = advice.decision_deadline.ToDatetime(tzinfo=now().tzinfo)
    assert abs(deadline - now() - timedelta(seconds=step)) < timedelta(minutes=5), "by the clock of whoever acts"


async def _tell(world: World, state: str, step: float, *moments: str) -> None:
    """What an agent says whose host's clock is off, as the scheduler's is, of what happens now."""
    there = stamp(now() + timedelta(seconds=step))
    job = world.job(state, **dict.fromkeys((*moments, "observed_at"), there))
    await world.agent.ReportObservations(
        agent_pb2.ReportObservationsRequest(cluster=CLUSTER, session=world.session, jobs=[job])
    )


async def _failed(world: World) -> None:
    with world.log().open("a") as file:
        file.write(FAILURE)
    await world.report(world.job("FAILED"))


async def _advised(world: World, *offs: float) -> common_pb2.Advice:
    """The failure is not lost, and its advice is of now, by a clock that is off by one of these, or by nothing."""

    def restart(seen: object) -> bool:
        return isinstance(seen, list) and [item.action for item in seen] == [common_pb2.ACTION_RESTART]

    (advice,) = await world.advice_where(restart)
    assert 200 < advice.time_to_live.ToTimedelta().total_seconds() <= 300
    created = advice.created_at.ToDatetime(tzinfo=now().tzinfo)
    assert any(abs(created - now() - timedelta(seconds=off)) < timedelta(seconds=30) for off in offs or (0.0,))
    return advice


async def test_nobody_is_heard_before_the_time_is_known(folder: Path, url: str) -> None:
    """On a host whose clock is an hour off nothing listens while the database is still asked for the time."""
    clock = DatabaseClock(url)
    config = over(folder, url)
    service = Service(config, clock=WrongClock(timedelta(seconds=HOUR)), make_sources=own_sources)

    async def run() -> None:
        async with service as running, grpc.aio.insecure_channel(f"unix:{running.socket}") as channel:
            world = World(folder=folder, running=running, channel=channel, submitted=now())
            await world.register()
            agents = await running.store.agents()
            assert [abs(agent.last_seen_at - now()) < timedelta(seconds=30) for agent in agents] == [True]

    with clock.nobody_joins():
        task = asyncio.create_task(run())
        await until(clock.waiting)
        assert not config.service.socket.exists()
        assert not config.service.http_path.exists()
    await task


@pytest.mark.long
async def test_real_hangs_are_found_and_others_go_on_over_steps_and_a_takeover(fleet: Fleet, url: str) -> None:
    """Two replicas, one on a host that is an hour off; steps both ways; the one that had the jobs is killed."""
    clock = DatabaseClock(url)
    policy = fleet.folder / "policy.toml"
    policy.write_text(POLICY)
    extra = f'policy_file = "{policy}"'
    fleet.spawn("a", extra=extra)
    fleet.spawn("b", extra=extra, skew=HOUR)
    for process in fleet.processes.values():
        await fleet.serving(process)
    world = await fleet.agent("a")
    jobs = ["1", "2", "3", "4"]
    await fleet.run_jobs(world, jobs)
    await fleet.shared(len(jobs), "a", "b")
    writing = asyncio.create_task(_go_on(fleet, world, alive := {*jobs}))
    try:
        for at, step in enumerate((HOUR, 0.0, -HOUR)):
            await asyncio.sleep(LINE_SECONDS)
            clock.set(step)
            await fleet_noticed(fleet, at + 1)
        assert await _restarted(fleet) == set()
        fleet.processes["b"].kill()
        await fleet.shared(len(jobs), "a")
        clock.set(HOUR)
        await asyncio.sleep(HANG_SECONDS)
        assert await _restarted(fleet) == set()
        alive.discard("2")
        silent_from = asyncio.get_running_loop().time()
        await fleet.advised("2")
        assert HANG_SECONDS - LINE_SECONDS - 1 < asyncio.get_running_loop().time() - silent_from < 3 * HANG_SECONDS
        assert await _restarted(fleet) == {"2"}
    finally:
        writing.cancel()


async def fleet_noticed(fleet: Fleet, times: int) -> None:
    """All have seen it."""
    await until(lambda: all(item.log.count("clock_set") >= times for item in fleet.processes.values()))


async def _go_on(fleet: Fleet, world: World, jobs: set[str]) -> None:
    """These jobs print a line of progress every few seconds."""
    for step in range(10, 10_000):
        for job in jobs:
            fleet.write(world, job, [step])
        await asyncio.sleep(LINE_SECONDS)


async def _restarted(fleet: Fleet) -> set[str]:
    return {row[0] for row in await fleet.decisions() if row[3] == "restart"}
