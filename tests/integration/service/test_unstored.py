"""A failure whose decision the database would not take is decided later, by the same service or by the next one."""

import asyncio
from pathlib import Path

import pytest

from advisor.v1 import common_pb2
from tests.integration.service.world import WAIT_SECONDS, World, database, iteration, world_of

pytestmark = pytest.mark.postgres

REFUSE = """
CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'this one not'; END $$;
CREATE TRIGGER refuse BEFORE INSERT ON decisions FOR EACH ROW EXECUTE FUNCTION refuse();
"""
ACCEPT = "DROP FUNCTION refuse() CASCADE"


def sql(folder: Path, statement: str) -> list[tuple[object, ...]]:
    with database(folder) as connection:
        found = connection.execute(statement)
        return found.fetchall() if found.description else []


async def failed_unstored(world: World) -> None:
    """A job that had restarted its ranks, which was decided for good, fails while no decision can be stored."""
    lines = [*map(iteration, range(1, 21)), "Killed\n", *map(iteration, range(11, 16))]
    world.log().write_text("".join(lines))
    await world.report(world.job("RUNNING"))
    async with asyncio.timeout(WAIT_SECONDS):
        while [item.advice.reason for item in await world.decisions()] != ["in_job_restart"]:
            await world.ticks(1)
    sql(world.folder, REFUSE)
    with world.log().open("a") as file:
        file.write("[rank0]: RuntimeError: something of the job's own\n")
    await world.report(world.job("FAILED"))
    await world.ticks(3)


@pytest.mark.parametrize("who", ["itself", "the next"])
async def test_a_failure_that_could_not_be_stored_is_not_done_with(folder: Path, who: str) -> None:
    """It counts as failing and is looked at again with every tick, also after a restart: the restart is advised once
    the database takes it."""
    submitted = None
    async with world_of(folder) as world:
        submitted = world.submitted
        await failed_unstored(world)
        assert world.running.board.pulse.failed_jobs == 1
        assert sql(folder, "SELECT open FROM attempts") == [(True,)]
        if who == "itself":
            sql(folder, ACCEPT)
            await world.advice_where(lambda told: any(one.action == common_pb2.ACTION_RESTART for one in told))
            await world.ticks(3)
            assert sql(folder, "SELECT seen_over FROM detector_states") == [(True,)]
            return
    async with world_of(folder, submitted=submitted) as world:
        await world.ticks(2)
        sql(folder, ACCEPT)
        await world.advice_where(lambda told: any(one.action == common_pb2.ACTION_RESTART for one in told))
