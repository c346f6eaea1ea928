"""Bring a database to the schema of this build. Any number may try at once: one migrates, the others wait.

The migrations lie in `migrations/` of a checkout and in `advisor/store/migrations` of an installed wheel (a top-level
folder of that name in site-packages would belong to several distributions).
"""

import asyncio
import sys
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, text
from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine

from advisor.store.errors import STANDBY, NotPrimary, SchemaMismatch

# Parts of a table share its serial numbers from here on.
POSTGRES_MIN = 17
# Any constant will do as long as nothing else in this database uses it.
_LOCK = 0x61647669736F72


def migrations_folder() -> Path:
    """Where the migrations are, in a wheel or a checkout."""
    shipped = Path(__file__).resolve().parent / "migrations"
    return shipped if shipped.is_dir() else Path(__file__).resolve().parents[2] / "migrations"


def alembic_config(connection: Connection | None = None) -> Config:
    config = Config()
    config.set_main_option("script_location", str(migrations_folder()).replace("%", "%%"))
    config.attributes["connection"] = connection
    return config


async def migrate(url: str) -> None:
    """Upgrade to the newest revision, under an advisory lock that dies with the connection.

    Raises `SchemaMismatch` for a server that is too old, `NotPrimary` for a standby.
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
                await connection.run_sync(lambda plain: command.upgrade(alembic_config(plain), "head"))
                await connection.commit()
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


def newest_revision() -> str:
    """The schema that this code was made for."""
    return ScriptDirectory.from_config(alembic_config()).get_current_head() or ""


async def require_current_schema(connection: AsyncConnection) -> None:
    """Raises `SchemaMismatch` unless the database is at this build's revision."""
    wanted = newest_revision()
    found = await connection.run_sync(lambda plain: MigrationContext.configure(plain).get_current_revision())
    if found != wanted:
        raise SchemaMismatch(
            f"the database is at revision {found or 'none'}, and this build needs {wanted}: "
            + ("run the migrations" if found is None else "migrate it, or run the build that it belongs to")
        )


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit("usage: python -m advisor.store.migrate URL")
    asyncio.run(migrate(sys.argv[1]))
