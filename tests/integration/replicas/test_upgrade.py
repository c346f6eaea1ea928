"""A rolling upgrade while jobs fail all the time: two builds with two schemas side by side, and nothing is lost."""

import asyncio
import contextlib
import shutil
import signal
from collections import Counter
from pathlib import Path

import grpc
import pytest

from advisor.store.migrate import newest_revision
from tests.integration.replicas.fleet import PROJECT, Fleet
from tests.integration.service.world import World

pytestmark = [pytest.mark.postgres, pytest.mark.long]

BETWEEN_SECONDS = 0.4  # one more job begins, and one fails

LATER = """
import sqlalchemy as sa
from alembic import op

revision = "9000"
down_revision = "{before}"
branch_labels = None
depends_on = None


def upgrade():
    op.add_column("jobs", sa.Column("later", sa.Text(), nullable=True))
"""


def next_build(folder: Path) -> Path:
    """A copy of this tree with one more column, and the migration that makes it."""
    tree = folder / "next"
    for name in ("advisor", "connectors", "slurm_plugin", "watchdog", "migrations", "tests/integration"):
        shutil.copytree(PROJECT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
    tables = tree / "advisor" / "store" / "tables.py"
    text = tables.read_text()
    assert text.count('    _whole("last_number"),\n') == 1
    tables.write_text(
        text.replace('    _whole("last_number"),\n', '    _whole("last_number"),\n    _text("later", nullable=True),\n')
    )
    migration = LATER.format(before=newest_revision())
    (tree / "migrations" / "versions" / "9000_later.py").write_text(migration)
    return tree


class Load:
    """Jobs begin and fail until told to stop; whatever replica answers is told."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.worlds: dict[str, World] = {}
        self.failed: list[str] = []
        self._stop = asyncio.Event()

    async def run(self) -> None:
        begun: list[str] = []
        while not self._stop.is_set() or begun:
            if not self._stop.is_set():
                begun.append(str(1000 + len(self.failed) + len(begun)))
                await self._told(begun[-1], fails=False)
            if len(begun) > 4 or self._stop.is_set():
                self.failed.append(begun.pop(0))
                await self._told(self.failed[-1], fails=True)
            await asyncio.sleep(BETWEEN_SECONDS)

    async def _told(self, job: str, *, fails: bool) -> None:
        """As an agent does: again, at the next replica, until one has taken it."""
        written = False
        while True:
            for name, world in list(self.worlds.items()):
                try:
                    if fails:
                        await self.fleet.fail(world, job) if not written else await world.report(
                            world.job("FAILED", job=job)
                        )
                    else:
                        await self.fleet.run_jobs(world, [job])
                except grpc.aio.AioRpcError:
                    written = True
                    self.worlds.pop(name, None)
                else:
                    return
            await asyncio.sleep(0.1)

    def stop(self) -> None:
        self._stop.set()


async def test_every_job_gets_one_advice_across_two_builds(fleet: Fleet) -> None:
    """New replicas join and migrate, old ones leave, one old one starts again on the new schema: one advice per job."""
    tree = next_build(fleet.folder)
    await fleet.start("a", "b")
    load = Load(fleet)
    for name in ("a", "b"):
        load.worlds[name] = await fleet.agent(name)
    running = asyncio.create_task(load.run())
    try:
        await asyncio.sleep(2)
        await fleet.start("c", tree=tree)
        load.worlds["c"] = await fleet.agent("c")
        assert await fleet.rows("SELECT version_num FROM alembic_version") == [("9000",)]
        schemas = await fleet.rows("SELECT DISTINCT schema FROM replicas WHERE ended_at IS NULL ORDER BY 1")
        assert len(schemas) == 2, "both build run at once"
        await _stopped(fleet, load, "a")
        await fleet.start("d", tree=tree)
        load.worlds["d"] = await fleet.agent("d")
        fleet.processes["b"].kill()
        load.worlds.pop("b")
        await fleet.start("e")
        load.worlds["e"] = await fleet.agent("e")
        await asyncio.sleep(2)
    finally:
        load.stop()
        with contextlib.suppress(asyncio.CancelledError):
            await running
    await fleet.advised(*load.failed)
    found = await fleet.check_decisions()
    assert len(load.failed) > 20
    assert Counter(row[0] for row in found) == Counter(load.failed), "one decision for each job"
    assert {row[3] for row in found} == {"restart"}
    assert len({row[4] for row in found}) >= 3, "all of them took part"


async def _stopped(fleet: Fleet, load: Load, name: str) -> None:
    load.worlds.pop(name)
    fleet.processes[name].signal(signal.SIGTERM)
    assert await asyncio.to_thread(fleet.processes[name].process.wait, 30) == 0
