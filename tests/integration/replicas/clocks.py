"""A database whose clock can be set: what answers `clock_timestamp()` there is Postgres' own, and so much more."""

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg

_SHOWN = """
    CREATE SCHEMA shown;
    CREATE TABLE shown.clock (off interval NOT NULL);
    INSERT INTO shown.clock VALUES ('0');
    CREATE FUNCTION shown.clock_timestamp() RETURNS timestamptz LANGUAGE sql VOLATILE
        AS 'SELECT pg_catalog.clock_timestamp() + off FROM shown.clock';
    CREATE FUNCTION shown.now() RETURNS timestamptz LANGUAGE sql VOLATILE
        AS 'SELECT pg_catalog.now() + off FROM shown.clock';
    DO $$ BEGIN
        EXECUTE format('ALTER DATABASE %I SET search_path = shown, pg_catalog, public', current_database());
    END $$
"""


class DatabaseClock:
    def __init__(self, url: str) -> None:
        self._url = url.replace("+psycopg", "")
        with self._connected() as connection:
            connection.execute(_SHOWN)

    @contextmanager
    def _connected(self) -> Iterator["psycopg.Connection[tuple[object, ...]]"]:
        with psycopg.connect(self._url, autocommit=True) as connection:
            yield connection

    def set(self, seconds: float) -> None:
        """It is off by so much from now on."""
        with self._connected() as connection:
            connection.execute("UPDATE shown.clock SET off = make_interval(secs => %s)", (seconds,))

    @contextmanager
    def nobody_joins(self) -> Iterator[None]:
        """Replicas that begin to live wait in the database."""
        with psycopg.connect(self._url) as connection:
            connection.execute("LOCK TABLE replicas IN SHARE MODE")
            yield

    def waiting(self) -> bool:
        with self._connected() as connection:
            row = connection.execute(
                "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 'replicas'::regclass"
            ).fetchone()
        return row is not None and row[0] != 0
