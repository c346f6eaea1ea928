"""A dump is restored in place beside a service that runs: it goes through, and the service stands still at once."""

import asyncio
from pathlib import Path

import pytest

from advisor.commands import store as commands
from tests.integration.postgres_trouble.processes import scripted_agent, serving
from tests.integration.postgres_trouble.servers import Server

pytestmark = pytest.mark.postgres


async def test_a_service_that_runs_notices_the_backup_in_its_place(place: Path, primary: Server) -> None:
    """Agents are told the new incarnation within ticks, and everything is paused."""
    dsn = place / "restored-dsn"
    dsn.write_text(primary.url())
    dsn.chmod(0o600)
    with serving(place, primary.url().replace("+psycopg", "")):
        async with scripted_agent(place) as agent:
            await agent.say(agent.world.job("RUNNING", job="5"))
            await agent.until(lambda: bool(agent.incarnations))
            dump = place / "advisor.dump"
            await asyncio.to_thread(commands.dump, dump, dsn_file=dsn, configuration=None)
            await asyncio.to_thread(commands.restore, dump, yes=True, dsn_file=dsn, configuration=None)
            await agent.until(lambda: len(agent.incarnations) == 2)
            assert primary.query("SELECT set_by, cluster FROM pauses") == [("advisor", "")]
