"""Several processes of the service over one database: sharing, death, being stopped, and what is never done twice."""

import asyncio
import signal
from collections.abc import Sequence

import pytest

from advisor.client import connect
from advisor.v1 import agent_pb2, common_pb2, operator_pb2
from slurm_plugin.clock import SystemClock as AgentClock
from slurm_plugin.guard import Advice
from slurm_plugin.link import SILENT_SECONDS, Link, Pulse
from slurm_plugin.reach import Reach
from tests.integration.replicas.fleet import LEASE_SECONDS, Fleet
from tests.integration.service.world import CLUSTER, World

pytestmark = pytest.mark.postgres

JOBS = [str(100 + at) for at in range(12)]
# After a lease has run out somebody must come by, on a host that is busy with the other tests.
BUSY_SECONDS = 12.0


async def test_three_share_and_a_killed_ones_jobs_go_on_elsewhere(fleet: Fleet) -> None:
    """Fair shares as they join and leave; after kill -9 others decide within the lease, on evidence counted once."""
    await fleet.start("a")
    world = await fleet.agent("a")
    await fleet.run_jobs(world, JOBS)
    await fleet.shared(len(JOBS), "a")
    await fleet.start("b", "c")
    await fleet.shared(len(JOBS), "a", "b", "c")
    (victim, *_) = orphans = await fleet.jobs_of("b")
    assert await _lines_read(fleet, victim) == 9
    fleet.processes["b"].kill()
    fleet.write(world, victim, range(10, 14))
    await fleet.fail(world, victim)
    assert await fleet.advised(victim) < LEASE_SECONDS + BUSY_SECONDS
    await fleet.shared(len(JOBS), "a", "c")
    await _read(fleet, victim, 9 + 4 + 2)
    await fleet.fail(world, *orphans)
    await fleet.advised(*orphans)
    found = await fleet.check_decisions()
    assert [row[:4] for row in found if row[0] == victim] == [(victim, 0, 1, "restart")]
    assert await _lines_read(fleet, victim) == 9 + 4 + 2, "every line was counted once, over both replicas"
    fleet.processes["c"].signal(signal.SIGTERM)
    assert fleet.processes["c"].process.wait(timeout=30) == 0
    assert (await fleet.held()).keys() == {"a"}
    await fleet.until(lambda: _nobodys(fleet, 0))


@pytest.mark.long
async def test_what_one_has_no_room_for_is_decided_by_another(fleet: Fleet) -> None:
    """One that may watch two attempts holds two jobs, the other all the rest, and every failure is advised on."""
    await fleet.start("a", attempts_max=2)
    await fleet.start("b")
    world = await fleet.agent("b")
    jobs = [str(job) for job in range(17, 25)]
    await fleet.run_jobs(world, jobs)
    seen: dict[str, int] = {}

    async def shared() -> bool:
        nonlocal seen
        seen = await fleet.held()
        return seen == {"a": 2, "b": 6}

    await fleet.until(shared, lambda: f"{seen}")
    assert (await world.operator.GetStatus(operator_pb2.GetStatusRequest())).unwatched_jobs == 0
    await fleet.fail(world, *jobs)
    await fleet.advised(*jobs)
    await fleet.check_decisions()


async def test_status_names_each_with_where_it_answers_and_one_age_of_its_tick(fleet: Fleet) -> None:
    """Whoever is asked; what is said of the service is what is said of the one that answers, also without any job."""
    await fleet.start("a", "b")
    for name in ("a", "b"):
        world = await fleet.agent(name)
        status = await _one_age(fleet, world)
        sockets = {str(fleet.processes[each].socket): each == name for each in ("a", "b")}
        assert {item.address: item.answering for item in status.replicas} == sockets


async def test_a_frozen_one_cannot_write_when_it_wakes_up_and_takes_part_again(fleet: Fleet) -> None:
    """SIGSTOP for longer than the lease, SIGCONT: what it had in hand is dropped, and later it has its share again."""
    await fleet.start("a", "b")
    world = await fleet.agent("a")
    await fleet.run_jobs(world, JOBS)
    await fleet.shared(len(JOBS), "a", "b")
    (victim, *_) = theirs = await fleet.jobs_of("b")
    fleet.processes["b"].signal(signal.SIGSTOP)
    await fleet.fail(world, victim)
    await fleet.shared(len(JOBS), "a")
    await fleet.advised(victim)
    fleet.processes["b"].signal(signal.SIGCONT)
    await fleet.until(lambda: _said(fleet, "b", "replica_joined", times=2))
    await fleet.fail(world, *theirs)
    await fleet.advised(*theirs)
    await fleet.run_jobs(world, [f"2{job}" for job in JOBS])
    await fleet.until(lambda: _holds_some(fleet, "b"))
    found = await fleet.check_decisions()
    assert [row[:4] for row in found if row[0] == victim] == [(victim, 0, 1, "restart")]


async def test_one_that_is_stopped_within_a_transaction_is_ended_by_the_database(fleet: Fleet) -> None:
    """Its half-made commit keeps others off for less than a lease; then it is undone, and another decides once."""
    await fleet.start("a", "b")
    world = await fleet.agent("a")
    await fleet.run_jobs(world, JOBS)
    await fleet.shared(len(JOBS), "a", "b")
    victim = (await fleet.jobs_of("b"))[0]
    pid = fleet.processes["b"].process.pid
    async with fleet.locked("LOCK TABLE decisions IN SHARE MODE"):
        await fleet.fail(world, victim)
        await fleet.until(lambda: _waits_to_decide(fleet))
        fleet.processes["b"].signal(signal.SIGSTOP)
    # Its insert goes through, and nobody is there to commit it.
    await fleet.until(lambda: _idle_within(fleet))
    replica = (await fleet.rows("SELECT id FROM replicas WHERE pid = :pid", pid=pid))[0][0]
    assert await fleet.advised(victim) < 2 * LEASE_SECONDS + BUSY_SECONDS
    fleet.processes["b"].signal(signal.SIGCONT)
    await fleet.until(lambda: _said(fleet, "b", "replica_joined", times=2))
    await fleet.until(lambda: _holds_some(fleet, "b"))
    found = await fleet.check_decisions()
    mine = [row for row in found if row[0] == victim]
    assert [row[:4] for row in mine] == [(victim, 0, 1, "restart")]
    assert mine[0][4] != str(replica)


@pytest.mark.long
async def test_hosts_whose_clocks_are_hours_apart_share_and_decide(fleet: Fleet) -> None:
    """An hour ahead and an hour behind: nothing expires early, advice shows everywhere and lives as long as ever."""
    fleet.spawn("ahead", skew=3600.0)
    fleet.spawn("behind", skew=-3600.0)
    for process in fleet.processes.values():
        await fleet.serving(process)
    world = await fleet.agent("ahead")
    other = await fleet.agent("behind")
    await fleet.run_jobs(world, JOBS)
    await fleet.shared(len(JOBS), "ahead", "behind")
    await fleet.fail(world, *JOBS)
    await fleet.advised(*JOBS)

    def all_open(seen: object) -> bool:
        return isinstance(seen, list) and len({advice.attempt.job_id for advice in seen}) == len(JOBS)

    for who in (world, other):
        for advice in await who.advice_where(all_open):
            assert 200 < advice.time_to_live.ToTimedelta().total_seconds() <= 300
    await asyncio.sleep(2 * LEASE_SECONDS)
    statuses = await fleet.rows("SELECT DISTINCT status, open FROM advice WHERE action = 'restart'")
    assert statuses == [("pending", True)]
    deciders = {row[4] for row in await fleet.check_decisions()}
    assert len(deciders) == 2
    times = await fleet.rows("SELECT max(abs(extract(epoch FROM clock_timestamp() - created_at))) FROM decisions")
    assert times[0][0] < 60


@pytest.mark.long
async def test_what_is_done_on_one_shows_on_the_other(fleet: Fleet) -> None:
    """Within about a second: advice, what an agent cannot read, a pause; and the age of a dead one's tick grows."""
    await fleet.start("a", "b")
    world, other = await fleet.agent("a"), await fleet.agent("b")
    await fleet.run_jobs(world, JOBS)
    await fleet.shared(len(JOBS), "a", "b")
    missing = common_pb2.Unavailable(source="scheduler", reason="timeout", detail="slurmctld")
    await other.report(unavailable=[missing])
    told = await fleet.rows("SELECT convert_from(unavailable, 'UTF8') FROM agents WHERE unavailable IS NOT NULL")
    assert any("slurmctld" in row[0] for row in told)
    await fleet.fail(world, *JOBS)
    took = [await _shown(who, JOBS) for who in (world, other)]
    assert max(took) < BUSY_SECONDS
    fleet.processes["a"].signal(signal.SIGSTOP)
    ages = []

    async def taken_over() -> bool:
        ages.append(await _tick_age(other))
        return not await fleet.jobs_of("a")

    await fleet.until(taken_over)
    assert max(ages) > 0.7 * LEASE_SECONDS, "its jobs wait for it, and nobody has them yet"
    await fleet.until(lambda: _young(other))
    fleet.processes["a"].signal(signal.SIGCONT)


@pytest.mark.long
async def test_clients_and_agents_go_to_whoever_answers(fleet: Fleet) -> None:
    """A program's connection, and a real agent's link, over two replicas: one is killed, one is frozen, both go on."""
    await fleet.start("a", "b")
    sockets = [fleet.processes[name].socket for name in ("a", "b")]
    heard = Heard()
    link = Link(
        tuple(Reach(target=f"unix:{socket}") for socket in sockets),
        CLUSTER,
        lambda: agent_pb2.RegisterRequest(
            cluster=CLUSTER, host="ctl", version="1", mode=agent_pb2.AGENT_MODE_ACT, scheduler="slurm 22.05.8"
        ),
        heard,
        AgentClock(),
    )
    running = asyncio.create_task(link.run())
    try:
        with await asyncio.to_thread(connect, sockets) as advisor:
            (first,) = {
                item.pid for item in (await asyncio.to_thread(advisor.client.status)).replicas if item.answering
            }
            assert first == fleet.processes["a"].process.pid
            await fleet.until(lambda: _connections(heard, 1))
            fleet.processes["a"].kill()
            status = await asyncio.to_thread(advisor.client.status)
            (second,) = {item.pid for item in status.replicas if item.answering}
            assert second == fleet.processes["b"].process.pid
            await fleet.until(lambda: _connections(heard, 2))
        await fleet.start("a")
        fleet.processes["b"].signal(signal.SIGSTOP)
        frozen_for = await fleet.until(lambda: _connections(heard, 3))
        assert frozen_for < SILENT_SECONDS + BUSY_SECONDS
        with await asyncio.to_thread(connect, list(reversed(sockets))) as advisor:
            status = await asyncio.to_thread(advisor.client.status)
            assert {item.pid for item in status.replicas if item.answering} == {fleet.processes["a"].process.pid}
        assert heard.incarnations == {status.incarnation}
    finally:
        fleet.processes["b"].signal(signal.SIGCONT)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


class Heard:
    """What an agent's link tells: how often it connected, and to which store."""

    def __init__(self) -> None:
        self.connections = 0
        self.incarnations: set[str] = set()

    def connected(self) -> None:
        self.connections += 1

    def advice_heard(self, open_advice: Sequence[Advice]) -> None: ...

    def nodes_heard(self, nodes: Sequence[agent_pb2.NodeAdvice]) -> None: ...

    def pulse_heard(self, pulse: Pulse) -> None:
        self.incarnations.add(pulse.incarnation)


async def _connections(heard: Heard, count: int) -> bool:
    return heard.connections >= count


async def _shown(world: World, jobs: list[str]) -> float:
    began = asyncio.get_running_loop().time()
    await world.advice_where(lambda seen: {advice.attempt.job_id for advice in seen} >= set(jobs), seconds=60.0)
    return asyncio.get_running_loop().time() - began


async def _one_age(fleet: Fleet, world: World) -> operator_pb2.Status:
    """Wait until it has looked at others and knows that no job depends on a tick."""
    status = operator_pb2.Status()

    async def met() -> bool:
        nonlocal status
        status = await world.operator.GetStatus(operator_pb2.GetStatusRequest())
        return [item.tick_age for item in status.replicas if item.answering] == [status.tick_age]

    await fleet.until(met, lambda: f"{status}")
    return status


async def _tick_age(world: World) -> float:
    answer = await world.agent.Heartbeat(
        agent_pb2.HeartbeatRequest(
            cluster=CLUSTER,
            session=world.session,
            mode=agent_pb2.AGENT_MODE_ACT,
        )
    )
    return float(answer.tick_age.ToTimedelta().total_seconds())


async def _young(world: World) -> bool:
    return await _tick_age(world) < LEASE_SECONDS


async def _lines_read(fleet: Fleet, job: str) -> int:
    """Of the job's output, as the detector's state says."""
    found = await fleet.rows(
        "SELECT convert_from(s.state, 'UTF8')::json #>> '{sources,job-output,lines}' FROM detector_states s "
        "JOIN attempts a USING (job_key, number) WHERE a.job_id = :job",
        job=job,
    )
    return int(found[0][0] or 0) if found else 0


async def _read(fleet: Fleet, job: str, lines: int) -> None:
    async def met() -> bool:
        return await _lines_read(fleet, job) >= lines

    await fleet.until(met)


async def _said(fleet: Fleet, name: str, event: str, *, times: int = 1) -> bool:
    return fleet.processes[name].log.count(event) >= times


async def _holds_some(fleet: Fleet, name: str) -> bool:
    return (await fleet.held()).get(name, 0) > 0


async def _nobodys(fleet: Fleet, count: int) -> bool:
    found = await fleet.rows("SELECT count(*) FROM leases WHERE replica_id IS NULL")
    return bool(found[0][0] == count)


async def _waits_to_decide(fleet: Fleet) -> bool:
    found = await fleet.rows(
        "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE 'INSERT INTO decisions%'"
    )
    return bool(found[0][0])


async def _idle_within(fleet: Fleet) -> bool:
    found = await fleet.rows(
        "SELECT count(*) FROM pg_stat_activity WHERE state = 'idle in transaction' "
        "AND query LIKE 'INSERT INTO decisions%' AND datname = current_database()"
    )
    return bool(found[0][0])
