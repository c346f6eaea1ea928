"""Connections to Postgres: made so that one that is lost, frozen, read-only or of another life is noticed and replaced.

* The DSN is read anew for every connection, and each second for those that there are: a fail-over, or whoever restores
  a backup, may have written another one. A connection to where the DSN no longer leads is not used again.
* A standby is refused (`StandbyError`): it is read-only and knows only what it was sent.
* A connection of another life (`advisor.store.lives`) is refused (`LifeChangedError`) until `Door` has settled that,
  which it cannot while the database has not our schema (`SchemaAbsentError`).
* Nobody waits for a server that is frozen: after `Door`'s limit the connection is cut from our side, and what waits
  fails like with any lost connection. (Cancelling the task would not do: psycopg then waits for the server's word.)
* A commit that was acknowledged is on the disk, whatever the server's default of `synchronous_commit` is.

What goes wrong is an `OperationalError` for all callers, also where psycopg calls it otherwise.
"""

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import psycopg
import structlog
from sqlalchemy import event, make_url
from sqlalchemy.engine.interfaces import ExceptionContext
from sqlalchemy.exc import DisconnectionError, OperationalError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine
from sqlalchemy.pool import ConnectionPoolEntry, NullPool

from advisor.store.errors import STANDBY
from advisor.store.lives import LOOK, Life, look_of

_log = structlog.get_logger(__name__)

_CONNECT_SECONDS = 10
_CONNECT_NEXT_SECONDS = 3  # a host that does not answer is given up for the next one of the DSN
# What libpq does about a peer that is gone without a word; a DSN that says otherwise is right.
_TRANSPORT = {
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 15_000,
}
_PING_AFTER_SECONDS = 1.0  # what was used a moment ago is not asked again whether it lives
_PING_SECONDS = 5.0
_FOLLOW_SECONDS = 1.0
_RECYCLE_SECONDS = 300  # who serves under our address may have changed while connections to the former one live on
# The server has become read-only, or has ended our transaction, which psycopg calls internal errors.
_AWAY_STATES = frozenset({"25006", "25P03"})
# A table or column of ours is gone: a backup comes in its place, or the schema is another release's.
_LACKING_STATES = frozenset({"42P01", "42703"})


class _Refused(OperationalError):  # noqa: N818 - never raised itself
    def __init__(self, text: str) -> None:
        super().__init__(None, None, _Said(text))


class StandbyError(_Refused):
    """The server that answers is a standby."""


class LifeChangedError(_Refused):
    """The server that answers may have forgotten what was committed; see `advisor.store.lives`."""


class SchemaAbsentError(_Refused):
    """The database that answers is empty, or of a schema that this build cannot use, or lacks a part of it: for now, as
    if none answered."""


class Dsn:
    """Where the database is, for all of its pools. `read`: whence it comes; errors are its own. None: it stays."""

    def __init__(self, url: str, read: Callable[[], str] | None = None) -> None:
        self.newest = url  # as read last
        self._read = read
        self._read_at = float("-inf")

    def read(self) -> str:
        if self._read is not None:
            self.newest, self._read_at = self._read(), _now()
        return self.newest

    def leads_to(self, url: object) -> bool:
        """Whether it still is the one that a connection was made with, as of a second ago at most."""
        return url == (self.newest if _now() - self._read_at < _FOLLOW_SECONDS else self.read())


@dataclass(slots=True, kw_only=True)
class Lives:
    """The life that connections must be of, and what to do when another one answers.

    `settle` is set by `Database`; it sets `life`. So is `tell_absent`, for what the database lacks. `doubted`: it has
    lacked something, so that its schema is looked at before it is asked again.
    """

    life: Life | None = None
    settle: Callable[[], Awaitable[None]] | None = None
    tell_absent: Callable[[str], None] = lambda _: None
    doubted: bool = False
    _settling: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def settled(self, before: Life | None) -> None:
        """`before`: the life that was found wanting. Somebody else may have settled it meanwhile."""
        async with self._settling:
            if self.life is before and self.settle is not None:
                await self.settle()


class Door:
    """Transactions over one engine, each for `seconds` at most."""

    def __init__(self, engine: AsyncEngine, lives: Lives, *, seconds: float) -> None:
        self._engine = engine
        self._lives = lives
        self._seconds = seconds

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[AsyncConnection]:
        """What is only read ends in a commit too: where anything is rolled back, the driver forgets all statements that
        it has prepared, and the server parses and plans the next ones anew."""
        async with AsyncExitStack() as stack:
            connection = await self._enter(stack)
            timer = asyncio.get_running_loop().call_later(self._seconds, _cut, _driver_of(connection))
            stack.callback(timer.cancel)
            yield connection
            await connection.commit()

    @asynccontextmanager
    async def begin(self) -> AsyncIterator[AsyncConnection]:
        async with self.connect() as connection, connection.begin():
            yield connection

    @asynccontextmanager
    async def look(self) -> AsyncIterator[AsyncConnection]:
        """For one statement that only reads: without a transaction around it, which is two questions more to the
        database than the statement itself.
        """
        async with self.connect() as connection:
            yield await connection.execution_options(isolation_level="AUTOCOMMIT")

    @asynccontextmanager
    async def moment(self) -> AsyncIterator[AsyncConnection]:
        """For several queries that see one moment."""
        async with self.connect() as connection:
            yield await connection.execution_options(isolation_level="REPEATABLE READ")

    async def _enter(self, stack: AsyncExitStack) -> AsyncConnection:
        before = self._lives.life
        if self._lives.doubted:
            await self._lives.settled(before)
        try:
            return await stack.enter_async_context(self._engine.connect())
        except LifeChangedError:
            await self._lives.settled(before)
        return await stack.enter_async_context(self._engine.connect())


def pooled_engine(dsn: Dsn, session: str, lives: Lives, *, connections: int, wait_seconds: float) -> AsyncEngine:
    """`session`: libpq options."""
    engine = create_async_engine(
        dsn.newest,
        hide_parameters=True,
        pool_size=connections,
        max_overflow=0,
        pool_timeout=wait_seconds,
        pool_use_lifo=True,  # few are used often, and have their statements prepared
        pool_recycle=_RECYCLE_SECONDS,
    )
    event.listen(engine.sync_engine, "do_connect", _to(dsn, session))
    event.listen(engine.sync_engine, "connect", _first_look(lives))
    event.listen(engine.sync_engine, "checkout", _second_look(lives, engine.sync_engine.dialect, dsn))
    event.listen(engine.sync_engine, "handle_error", _as_absence(lives))
    return engine


def single_engine(dsn: Dsn, session: str) -> AsyncEngine:
    """Each connection new and for one use, of whatever life."""
    engine = create_async_engine(dsn.newest, hide_parameters=True, poolclass=NullPool)
    event.listen(engine.sync_engine, "do_connect", _to(dsn, session))
    return engine


def _arguments(url: str, session: str) -> dict[str, Any]:
    given = make_url(url).query
    hosts = given.get("host", "")
    several = not isinstance(hosts, str) or "," in hosts
    usual = {**_TRANSPORT, "connect_timeout": _CONNECT_NEXT_SECONDS if several else _CONNECT_SECONDS}
    return {"options": session, **{name: value for name, value in usual.items() if name not in given}}


def _to(dsn: Dsn, session: str) -> Callable[[Any, Any, object, dict[str, Any]], None]:
    def connecting(dialect: Any, record: Any, _arguments_before: object, parameters: dict[str, Any]) -> None:
        url = dsn.read()
        _, found = dialect.create_connect_args(make_url(url))
        parameters.clear()
        parameters.update(found)
        parameters.update(_arguments(url, session))
        if record is not None:
            record.info["url"] = url

    return connecting


def _first_look(lives: Lives) -> Callable[[Any, ConnectionPoolEntry], None]:
    def connected(connection: Any, record: ConnectionPoolEntry) -> None:
        try:
            with _cut_after(_PING_SECONDS, connection):
                cursor = connection.cursor()
                cursor.execute(LOOK)
                look = look_of(cursor.fetchone())
                if not look.waits_for_disk:
                    cursor.execute("SET synchronous_commit = on")
                cursor.close()
                connection.commit()
            _refuse_others(look.life, lives)
        except BaseException:
            connection.close()
            raise
        record.info["life"], record.info["used"] = look.life, _now()

    return connected


def _refuse_others(found: Life | None, lives: Lives) -> None:
    if found is None:
        raise StandbyError(STANDBY)
    if lives.life is not None and (found.table is None or not lives.life.same_as(found)):
        raise LifeChangedError(lives.life.change_to(found))


def _second_look(lives: Lives, dialect: Any, dsn: Dsn) -> Callable[[Any, ConnectionPoolEntry, object], None]:
    def taken(connection: Any, record: ConnectionPoolEntry, _proxy: object) -> None:
        used, now = record.info.get("used", 0.0), _now()
        life = record.info.get("life")
        if lives.life is not None and (life is None or not lives.life.same_as(life)):
            raise DisconnectionError("a connection of a former life")
        if not dsn.leads_to(record.info.get("url")):
            raise DisconnectionError("the DSN leads elsewhere now")
        if now - used > _PING_AFTER_SECONDS:
            try:
                with _cut_after(_PING_SECONDS, connection):
                    dialect.do_ping(connection)
            except dialect.loaded_dbapi.Error as error:
                lost = DisconnectionError(str(error))
                lost.invalidate_pool = True
                raise lost from error
        record.info["used"] = now

    return taken


def _as_absence(lives: Lives) -> Callable[[ExceptionContext], OperationalError | None]:
    def failed(context: ExceptionContext) -> OperationalError | None:
        error = context.original_exception
        state = getattr(error, "sqlstate", None)
        if state in _LACKING_STATES:
            context.is_disconnect = lives.doubted = True
            return _lacking(error, lives)
        if state not in _AWAY_STATES:
            return None
        context.is_disconnect = True  # the next connection finds who is the primary now
        return OperationalError(context.statement, None, error, hide_parameters=True)

    return failed


def _lacking(error: BaseException, lives: Lives) -> SchemaAbsentError:
    """Whose schema it is, where that is the reason, the next look says."""
    said = str(error).partition("\n")[0]
    text = f"the database lacks what this build asks for: {said}; `advisor store restore`, or `advisor store migrate`"
    lives.tell_absent(text)
    return SchemaAbsentError(text)


class _Said(Exception):  # noqa: N818 - SQLAlchemy wants an exception for the text of its own
    pass


def _now() -> float:
    return asyncio.get_running_loop().time()


@contextlib.contextmanager
def _cut_after(seconds: float, connection: Any) -> Any:
    timer = asyncio.get_running_loop().call_later(seconds, _cut, connection.driver_connection)
    try:
        yield
    finally:
        timer.cancel()


def _driver_of(connection: AsyncConnection) -> Any:
    held = connection.sync_connection
    return None if held is None else held.connection.driver_connection


def _cut(driver: Any) -> None:
    """End the connection from our side: whoever waits for the server hears that it is gone."""
    try:
        held = socket.socket(fileno=os.dup(driver.fileno()))
    except (OSError, psycopg.Error) as error:
        _log.debug("connection_gone_already", error=str(error))
        return
    with held:
        _log.warning("connection_cut", why="the database did not answer in time")
        with contextlib.suppress(OSError):
            held.shutdown(socket.SHUT_RDWR)
