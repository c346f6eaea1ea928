"""The primary dies while jobs fail, a standby is promoted: the service goes on by itself, nothing old is acted on."""

import asyncio
import time
from pathlib import Path

import pytest

from tests.integration.postgres_trouble.processes import ScriptedAgent, scripted_agent, serving
from tests.integration.postgres_trouble.servers import Server

pytestmark = pytest.mark.postgres

JOBS = 12


def _both(first: Server, second: Server) -> str:
    hosts = f"host=127.0.0.1:{first.port}&host=127.0.0.1:{second.port}"
    return f"postgresql://advisor@/advisor?{hosts}&target_session_attrs=read-write"


async def _fail(agent: ScriptedAgent, *names: str) -> None:
    for name in names:
        agent.world.log(name).write_text("RuntimeError: something broke\n")
        await agent.say(agent.world.job("RUNNING", job=name))
        await agent.say(agent.world.job("FAILED", job=name))


def _jobs(agent: ScriptedAgent) -> set[str]:
    return {advice.attempt.job_id for advice in agent.open}


def _twice(server: Server) -> object:
    """Attempts that have two decisions of one generation, and open advice that is not its attempt's newest."""
    return server.query(
        "SELECT (SELECT count(*) FROM "
        "(SELECT 1 FROM decisions GROUP BY job_key, number, generation HAVING count(*) > 1)), "
        "(SELECT count(*) FROM advice a JOIN attempts t USING (job_key, number) "
        "WHERE a.open AND a.generation <> t.generation)"
    )


async def test_a_synchronous_standby_takes_over_and_nothing_is_lost(
    place: Path, primary: Server, standby: Server
) -> None:
    """kill -9 of the primary in the middle of commits: every decision that was ever published is there, and once."""
    primary.query("ALTER SYSTEM SET synchronous_standby_names = 'standby'")
    primary.query("SELECT pg_reload_conf()")
    primary.wait(lambda: primary.query("SELECT sync_state FROM pg_stat_replication") == [("sync",)])
    with serving(place, _both(primary, standby)):
        async with scripted_agent(place) as agent:
            names = [f"{100 + at}" for at in range(JOBS)]
            storm = asyncio.create_task(_fail(agent, *names))
            await agent.until(lambda: len(_jobs(agent)) >= 3)
            await asyncio.to_thread(primary.kill)
            published = {advice.advice_id for _, advice in agent.heard}
            await asyncio.to_thread(standby.promote)
            began = time.monotonic()
            await agent.until(lambda: len(agent.incarnations) == 2)
            seconds = time.monotonic() - began
            await storm
            await agent.until(lambda: _jobs(agent) == set(names))
            second = agent.incarnations[1]
            assert {advice.incarnation for incarnation, advice in agent.heard if incarnation == second} == {second}
            stored = {str(row[0]) for row in standby.query("SELECT id FROM decisions")}
            assert published <= stored
            assert _twice(standby) == [(0, 0)]
            print(f"promoted standby in use after {seconds:.2f} s; {agent.failures} calls told to come again")
            assert seconds < 20


@pytest.mark.long
async def test_an_asynchronous_standby_forgets_and_nobody_acts_on_that(
    place: Path, primary: Server, standby: Server
) -> None:
    """The newest rows are lost: jobs are told and decided anew, and nothing old is shown under the new name."""
    with serving(place, _both(primary, standby)):
        async with scripted_agent(place) as agent:
            names = [f"{100 + at}" for at in range(JOBS)]
            await _fail(agent, *names[:3])
            await agent.until(lambda: _jobs(agent) == set(names[:3]))
            primary.wait(
                lambda: primary.query("SELECT pg_current_wal_lsn() <= replay_lsn FROM pg_stat_replication") == [(True,)]
            )
            standby.kill()
            await _fail(agent, *names[3:])
            await agent.until(lambda: _jobs(agent) == set(names))
            await asyncio.to_thread(primary.kill)
            standby.start()
            await asyncio.to_thread(standby.promote)
            began = time.monotonic()
            await agent.until(lambda: len(agent.incarnations) == 2)
            seconds = time.monotonic() - began
            await agent.until(lambda: _jobs(agent) == set(names))
            first, second = agent.incarnations
            lost = {a.advice_id for i, a in agent.heard if i == first} - {
                str(row[0]) for row in standby.query("SELECT id FROM decisions")
            }
            assert lost
            assert not lost & {advice.advice_id for incarnation, advice in agent.heard if incarnation == second}
            assert _twice(standby) == [(0, 0)]
            print(f"in use after {seconds:.2f} s; {len(lost)} decisions forgotten, all jobs decided anew")
            assert seconds < 20
