"""Commands that look at the database itself, not through the service: what they check must not come from it."""

import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from advisor.commands.output import CommandError
from advisor.config import Config, ConfigError, read_dsn
from advisor.core.codec import CodecError
from advisor.plain_text import said
from advisor.store.binaries import find_binaries
from advisor.store.embedded import running_url
from advisor.store.errors import StoreError
from advisor.store.migrate import require_current_schema
from advisor.store.server_user import ServerUser, choose_server_user

_SESSION = "-c timezone=UTC -c lock_timeout=10000"
_CONNECT_SECONDS = 10
NOT_YOURS = (
    "this reads the service's own database, which lets in root and the account that the service runs as only: "
    "run it as one of them, or give --dsn-file"
)


def database_url(config: Config, dsn_file: Path | None = None) -> str:
    """Of the file that was given, of the configured one, or of the service's own Postgres.

    That one lets in only the user that the service runs as: root becomes that user.
    """
    try:
        chosen = dsn_file if dsn_file is not None else config.store.dsn_file
        if chosen is not None:
            return read_dsn(chosen)
        url, uid = running_url(config.service.data_dir, user=config.store.postgres_user or None)
    except PermissionError:
        raise CommandError(NOT_YOURS, code=2) from None
    except (ConfigError, StoreError, OSError) as error:
        raise CommandError(f"the database cannot be reached: {error}", code=2) from None
    if os.geteuid() not in {0, uid}:
        raise CommandError(NOT_YOURS, code=2)
    if os.geteuid() != uid:
        os.seteuid(uid)
    return url


def postgres_programs(config: Config, *, ours: bool) -> Path:
    """The folder with pg_dump and the like that our own Postgres came with.

    `ours`: its user can run them; else whoever calls.
    """
    folder = config.service.data_dir
    try:
        user = choose_server_user(folder, config.store.postgres_user or None) if ours else _caller()
        return find_binaries(folder / "postgres", user).folder
    except (StoreError, OSError) as error:
        raise CommandError(f"Postgres' programs: {error}", code=2) from None


def _caller() -> ServerUser:
    return ServerUser(name="", uid=os.geteuid(), gid=os.getegid(), switch=False)


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[AsyncEngine]:
    """An engine to a database of this build's schema. Errors end the command in one line."""
    engine = create_async_engine(
        url, hide_parameters=True, connect_args={"options": _SESSION, "connect_timeout": _CONNECT_SECONDS}
    )
    try:
        with errors_told():
            async with engine.connect() as connection:
                await require_current_schema(connection)
            yield engine
    finally:
        await engine.dispose()


@contextmanager
def errors_told() -> Iterator[None]:
    """What the database or the store refuse ends the command in one line."""
    try:
        yield
    except StoreError as error:
        raise CommandError(str(error), code=2) from None
    except CodecError as error:
        raise CommandError(f"the newest seal cannot be read: {error}; run advisor audit verify") from None
    except SQLAlchemyError as error:
        raise CommandError(f"the database cannot be used: {_said(error)}", code=2) from None


def _said(error: SQLAlchemyError) -> str:
    """The database's own first line, without the names of the layers that passed it on."""
    text = said(error)
    return with_whom(text) if text else type(error).__name__


def with_whom(said: str) -> str:
    """What Postgres says, and as whom to run the command where it knows accounts by its socket and not this one."""
    if "Peer authentication failed" in said or 'role "root" does not exist' in said:
        return f"{said}; run this as the service's user: sudo -u advisor advisor …, with files that it may use"
    return said


@asynccontextmanager
async def one_moment(engine: AsyncEngine) -> AsyncIterator[AsyncConnection]:
    """Several questions that see the database as of one moment."""
    async with engine.connect() as plain:
        yield await plain.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)
