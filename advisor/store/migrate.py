"""Bring a database to the schema of this build. Any number may try at once: one migrates, the others wait.

The migrations lie in `migrations/` of a checkout and in `advisor/store/migrations` of an installed wheel (a top-level
folder of that name in site-packages would belong to several distributions).

Two builds may run side by side. Migrations expand: what an older build reads and writes stays, so that it runs on, and
even starts, on a newer schema. One that contracts says so by `oldest_code`, the oldest schema whose code may still run:
it is refused while an older replica lives, and older code is refused from then on (`schema_support`).
"""

from functools import cache
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, func, select, text, update
from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine

from advisor.store.errors import STANDBY, NotPrimary, SchemaMismatch
from advisor.store.tables import replicas, schema_support

# Parts of a table share its serial numbers from here on.
POSTGRES_MIN = 17
# Any constant will do as long as nothing else in this database uses it.
_LOCK = 0x61647669736F72


def migrations_folder() -> Path:
    """Where the migrations are, in a wheel or a checkout."""
    shipped = Path(__file__).resolve().parent / "migrations"
    return shipped if shipped.is_dir() else Path(__file__).resolve().parents[2] / "migrations"


def alembic_config(connection: Connection | None = None, folder: Path | None = None) -> Config:
    config = Config()
    config.set_main_option("script_location", str(folder or migrations_folder()).replace("%", "%%"))
    config.attributes["connection"] = connection
    return config


async def migrate(url: str, *, folder: Path | None = None) -> tuple[str | None, str | None]:
    """Upgrade to the newest revision, under an advisory lock that dies with the connection. Returns the revision that
    was there, None where there was none, and the one that is.

    A newer one that says that we may run on it is left as it is. Raises `SchemaMismatch` for one that does not, for a
    migration that replicas of an older schema stand in the way of, and for a server that is too old; `NotPrimary` for
    a standby. `folder`: with the migrations.
    """
    engine = create_async_engine(url, hide_parameters=True)
    try:
        async with engine.connect() as connection:
            await connection.execute(text("SELECT pg_advisory_lock(:lock)"), {"lock": _LOCK})
            await connection.commit()
            try:
                if await connection.scalar(text("SELECT pg_is_in_recovery()")):
                    raise NotPrimary(STANDBY)
                version = await connection.scalar(text("SHOW server_version_num"))
                require_server(int(version or 0))
                found = await _revision(connection)
                if not await _is_newer(connection, folder):
                    await _upgrade(connection, folder)
                await connection.commit()
                return found, await _revision(connection)
            finally:
                await connection.rollback()
                await connection.execute(text("SELECT pg_advisory_unlock(:lock)"), {"lock": _LOCK})
                await connection.commit()
    finally:
        await engine.dispose()


def require_server(version_number: int) -> None:
    """Raises `SchemaMismatch` for a Postgres that is too old; 170005 is 17.5."""
    if version_number < POSTGRES_MIN * 10_000:
        raise SchemaMismatch(f"this is Postgres {version_number // 10_000}, and {POSTGRES_MIN} or newer is needed")


def newest_revision(folder: Path | None = None) -> str:
    """The schema that this code was made for."""
    return _scripts(folder).get_current_head() or ""


@cache
def _scripts(folder: Path | None = None) -> ScriptDirectory:
    return ScriptDirectory.from_config(alembic_config(folder=folder))


async def _revision(connection: AsyncConnection) -> str | None:
    return await connection.run_sync(lambda plain: MigrationContext.configure(plain).get_current_revision())


async def _is_newer(connection: AsyncConnection, folder: Path | None = None) -> bool:
    """Whether the database is at a revision that a newer build made, on which we may run. Raises `SchemaMismatch`."""
    found, wanted = await _revision(connection), newest_revision(folder)
    known = {script.revision for script in _scripts(folder).walk_revisions()}
    if found is None or found in known:
        return False
    oldest = await connection.scalar(select(schema_support.c.oldest))
    if oldest is None or oldest > wanted:
        raise SchemaMismatch(
            f"the database is at revision {found}, for code of {oldest or 'no other'} or newer, and this build is of "
            f"{wanted}: run a newer build"
        )
    return True


async def _upgrade(connection: AsyncConnection, folder: Path | None) -> None:
    found = await _revision(connection)
    scripts = _scripts(folder)
    pending = [script for script in scripts.iterate_revisions("head", found or "base") if script.revision != found]
    oldest = max((getattr(script.module, "oldest_code", "") for script in pending), default="")
    if oldest:
        older = [replicas.c.schema < oldest, replicas.c.ended_at.is_(None)]
        living = await connection.execute(
            select(replicas.c.host, replicas.c.pid, replicas.c.schema).where(
                *older, replicas.c.until > func.clock_timestamp()
            )
        )
        names = [f"{row.host} (pid {row.pid}, schema {row.schema})" for row in living]
        if names:
            raise SchemaMismatch(
                f"replicas of an older build live, and cannot on the new schema: stop {', '.join(names)} first"
            )
        # One that is frozen has its end: when it wakes up it finds that it may not begin again.
        await connection.execute(update(replicas).where(*older).values(ended_at=func.clock_timestamp()))
    await connection.run_sync(lambda plain: command.upgrade(alembic_config(plain, folder), "head"))
    if oldest:
        await connection.execute(update(schema_support).values(oldest=func.greatest(schema_support.c.oldest, oldest)))


async def require_current_schema(connection: AsyncConnection) -> None:
    """Raises `SchemaMismatch` unless the database is at this build's revision, or at a newer one that is for it too."""
    wanted = newest_revision()
    found = await _revision(connection)
    if found != wanted and not await _is_newer(connection):
        if found is None:
            raise SchemaMismatch(
                "the database has no schema of ours: where it is the right one, `advisor store restore`, or `advisor "
                "store migrate` for an empty store"
            )
        what = "`advisor store migrate`, or run the build that it belongs to"
        raise SchemaMismatch(f"the database is at revision {found}, and this build needs {wanted}: {what}")
