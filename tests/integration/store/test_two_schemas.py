"""Two builds side by side: what an older one may do on a schema that a newer one made."""

import shutil
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine

from advisor.store.errors import SchemaMismatch
from advisor.store.ids import new_id
from advisor.store.leases import Newcomer
from advisor.store.migrate import migrate, migrations_folder, newest_revision
from advisor.store.store import Store
from tests.integration.store.worlds import at, record, running

pytestmark = pytest.mark.postgres

LEASE = timedelta(seconds=60)
NEXT = """
import sqlalchemy as sa
from alembic import op

revision = "9000"
down_revision = "{before}"
branch_labels = None
depends_on = None
{contract}


def upgrade():
    op.add_column("jobs", sa.Column("later", sa.Text(), nullable=True))
"""


def newer(folder: Path, contract: str = "") -> Path:
    """The migrations of the next build."""
    made = folder / "migrations"
    shutil.copytree(migrations_folder(), made)
    text_of = NEXT.format(before=newest_revision(), contract=contract)
    (made / "versions" / "9000_later.py").write_text(text_of)
    return made


def newcomer(schema: str) -> Newcomer:
    return Newcomer(replica_id=new_id(at(0)), host="ctl1", pid=4711, place="", version="1", build="b", schema=schema)


async def test_an_expanded_schema_is_run_on_and_started_on_by_the_build_before(url: str, tmp_path: Path) -> None:
    """An open store goes on; another start of the older build leaves the schema alone and works."""
    store = await Store.open(url)
    key = await running(store)
    await migrate(url, folder=newer(tmp_path))
    await store.commit_decision(record(key))
    await store.close()
    await migrate(url)
    again = await Store.open(url)
    assert [item.generation for item in (await again.load([key], now=at(30))).values()] == [1]
    await again.replicas.join(newcomer(newest_revision()), lease=LEASE)
    await again.close()


async def test_a_contracting_migration_waits_for_older_replicas_and_then_refuses_them(url: str, tmp_path: Path) -> None:
    """It names who must be stopped; after it neither a start nor a replica that wakes up begins on the new schema."""
    store = await Store.open(url)
    old = newcomer(newest_revision())
    await store.replicas.join(old, lease=LEASE)
    folder = newer(tmp_path, 'oldest_code = "9000"')
    with pytest.raises(SchemaMismatch, match=r"stop ctl1 \(pid 4711, schema \d+\) first"):
        await migrate(url, folder=folder)
    engine = create_async_engine(url)
    async with engine.begin() as connection:
        await connection.execute(text("UPDATE replicas SET until = clock_timestamp()"))
    await engine.dispose()
    await migrate(url, folder=folder)
    assert await store.replicas.renew(old.replica_id, lease=LEASE, tick_age=timedelta(), stuck=False) is None
    with pytest.raises(SchemaMismatch, match="for builds of schema 9000 or newer"):
        await store.replicas.join(newcomer(newest_revision()), lease=LEASE)
    await store.close()
    for start in (migrate(url), Store.open(url)):
        with pytest.raises(SchemaMismatch, match="run a newer build"):
            await start


async def test_what_a_newer_build_wrote_stops_nothing_else(store: Store, url: str) -> None:
    """Advice and attempts in words that this build does not know are left to the newer one; all others are served."""
    keys = [await running(store, job_id=str(job)) for job in (7, 8, 9)]
    for key in keys:
        await store.commit_decision(record(key))
    engine = create_async_engine(url)
    async with engine.begin() as connection:
        await connection.execute(text("ALTER TABLE decisions DISABLE TRIGGER USER"))
        parts = await connection.execute(
            text("SELECT relname FROM pg_class WHERE relispartition AND relname LIKE 'decisions%' AND relkind = 'r'")
        )
        for part in parts.scalars().all():
            await connection.execute(text(f"ALTER TABLE {part} DISABLE TRIGGER USER"))
        await connection.execute(
            text("UPDATE decisions SET decision = 'later'::bytea WHERE job_key = :key"),
            {"key": keys[0].job_key},
        )
        await connection.execute(
            text("UPDATE decisions SET category = 'cosmic_rays' WHERE job_key = :key"), {"key": keys[1].job_key}
        )
    await engine.dispose()
    store.forget()
    shown = await store.open_advice("alps", at(30))
    assert {row.attempt.job_key for row in shown} == {keys[1].job_key, keys[2].job_key}
    assert set(await store.load(keys, now=at(30))) == {keys[0], keys[2]}
