"""Hints between replicas, by NOTIFY: that there is something to tick, or that what is open has changed.

A hint says where to look and nothing else; one that is lost costs a second, for everybody looks by himself that often.
They are sent together and in transactions of their own, so that no commit of others waits for the queue's lock.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

import psycopg
import structlog
from sqlalchemy import func, make_url, select
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection

from advisor.plain_text import error_text

log = structlog.get_logger(__name__)

TICK, ADVICE = "tick", "advice"
CHANNEL = "advisor_hints"
GATHER_SECONDS = 0.03  # what comes within is told together
AGAIN_SECONDS = 1.0
_CONNECT_SECONDS = 10
_FOLLOW_SECONDS = 5.0


async def hint(connection: AsyncConnection, what: str, name: str) -> None:
    """`name`: whose hint it is; he does not hear it himself."""
    await connection.execute(select(func.pg_notify(CHANNEL, f"{what} {name}")))


class Hints:
    """`listen` and `send` run until cancelled; `tell` may be called at any time."""

    def __init__(self, url: Callable[[], str], name: str, send: Callable[[str, str], Awaitable[None]]) -> None:
        self._url = url
        self._name = name
        self._send = send
        self._due: set[str] = set()
        self._anything = asyncio.Event()

    def tell(self, what: str) -> None:
        self._due.add(what)
        self._anything.set()

    async def send(self) -> None:
        while True:
            await self._anything.wait()
            await asyncio.sleep(GATHER_SECONDS)
            self._anything.clear()
            due, self._due = sorted(self._due), set()
            try:
                for what in due:
                    await self._send(what, self._name)
            except (SQLAlchemyError, OSError) as error:
                log.info("hint_not_sent", error=error_text(error))

    async def listen(self, heard: Callable[[str], None]) -> None:
        failing = False
        while True:
            try:
                url = self._url()
                async with await self._connect(url) as connection:
                    await connection.execute(f"LISTEN {CHANNEL}")
                    failing = False
                    async for note in _notes(connection, lambda: self._url() == url):  # noqa: B023 - used up here
                        what, _, who = note.partition(" ")
                        if who != self._name:
                            heard(what)
            except (psycopg.Error, OSError) as error:
                if not failing:
                    log.info("hints_lost", error=error_text(error))
                failing = True
            await asyncio.sleep(AGAIN_SECONDS)

    @staticmethod
    async def _connect(url: str) -> "psycopg.AsyncConnection[tuple[object, ...]]":
        plain = make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)
        return await psycopg.AsyncConnection.connect(plain, autocommit=True, connect_timeout=_CONNECT_SECONDS)


async def _notes(
    connection: "psycopg.AsyncConnection[tuple[object, ...]]", holds: Callable[[], bool]
) -> AsyncIterator[str]:
    """What is told, as soon as it is there, for as long as the DSN `holds`. psycopg's own way of waiting looks ten
    times a second. Raises `psycopg.OperationalError` when the connection is lost.
    """
    loop, place = asyncio.get_running_loop(), connection.fileno()
    readable = asyncio.Event()
    loop.add_reader(place, readable.set)
    try:
        while holds():
            readable.clear()
            connection.pgconn.consume_input()
            while (note := connection.pgconn.notifies()) is not None:
                yield note.extra.decode("utf-8", "replace")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_FOLLOW_SECONDS):
                    await readable.wait()
    finally:
        loop.remove_reader(place)
