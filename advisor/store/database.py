"""The service's one database, followed through its life: connections for every purpose, and whose incarnation it is.

It may go away and come back, lead elsewhere (`engines.Dsn`), be emptied, or be restored from a backup. Until it is our
schema on a primary it is away, like one that does not answer; whenever another life answers (`advisor.store.lives`), an
incarnation of its own begins, and whoever remembers what is stored is told to forget.
"""

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

import structlog
from sqlalchemy import make_url
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine
from sqlalchemy.pool import QueuePool

from advisor.core.leases import idle_seconds
from advisor.store.engines import Door, Dsn, Lives, SchemaAbsentError, StandbyError, pooled_engine, single_engine
from advisor.store.errors import NotPrimary, SchemaMismatch
from advisor.store.incarnation import Incarnation, after_forgetting, current_incarnation, newest_incarnation
from advisor.store.lives import Life
from advisor.store.migrate import require_current_schema
from advisor.store.records import AttemptKey

_log = structlog.get_logger(__name__)

# A statement or a wait for a lock that takes this long has a cause that waiting does not cure.
_SESSION = (
    "-c timezone=UTC -c statement_timeout=30000 -c lock_timeout=10000 -c idle_in_transaction_session_timeout=60000"
)
# What people ask has connections of its own, so that no question keeps a tick waiting. Its plans are made for the
# values that are asked for (they are skewed), and never compiled: that takes longer than any page may.
_ASKING_SESSION = (
    "-c timezone=UTC -c statement_timeout=10000 -c lock_timeout=2000 -c idle_in_transaction_session_timeout=15000 "
    "-c default_transaction_read_only=on -c plan_cache_mode=force_custom_plan -c jit=off "
    "-c max_parallel_workers_per_gather=0"
)
_CONNECTIONS, _WAIT_SECONDS = 10, 30
_ASKING_CONNECTIONS, _ASKING_WAIT_SECONDS = 4, 10
# Of one unit of work, however many statements: then the server is taken for frozen, and its connection is cut.
UNIT_SECONDS = 60.0
_UNHURRIED_SECONDS = 1200.0  # of looking over a whole month, say
_RENEW_SECONDS = 5.0
_CLOSE_SECONDS = 2.0
_TELL_SECONDS = 60.0  # of each thing that keeps connections away, so often
_TOLD_MAX = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Glimpse:
    """What one connection shows of whose database it is. `incarnation` is None where that is to be settled anew."""

    life: Life | None
    incarnation: str | None


class Database:
    """`door` is for the service's transactions, `unhurried` for those over whole months, `asking` for what people ask
    (it only reads), and `renewing` for leases: they are renewed however many questions and reports wait.

    `on_another`: called in every incarnation that is another one than before, also the first.
    """

    def __init__(
        self,
        url: str,
        *,
        read_url: Callable[[], str] | None = None,
        unit_seconds: float = UNIT_SECONDS,
        lease_seconds: float | None = None,
    ) -> None:
        """The words are `Store.open`'s."""
        self._dsn = dsn = Dsn(url, read_url)
        self._lives = lives = Lives(settle=self._settle_again, tell_absent=self._tell_absent)
        self._pools = main, asking, renewing = (
            pooled_engine(dsn, _session_of(lease_seconds), lives, connections=_CONNECTIONS, wait_seconds=_WAIT_SECONDS),
            pooled_engine(
                dsn, _ASKING_SESSION, lives, connections=_ASKING_CONNECTIONS, wait_seconds=_ASKING_WAIT_SECONDS
            ),
            pooled_engine(dsn, _SESSION, lives, connections=1, wait_seconds=_RENEW_SECONDS),
        )
        self.door = Door(main, lives, seconds=unit_seconds)
        self.unhurried = Door(main, lives, seconds=_UNHURRIED_SECONDS)
        self.asking = Door(asking, lives, seconds=unit_seconds)
        self.renewing = Door(renewing, lives, seconds=_RENEW_SECONDS)
        self.on_another: Callable[[], None] = lambda: None
        self._incarnation = ""
        self._sure_at: datetime | None = None  # when the life was last seen to be the same
        self._told_absent: dict[str, float] = {}  # what, and when

    @property
    def incarnation(self) -> str:
        """Generations compare only within one."""
        return self._incarnation

    async def open(self) -> None:
        """Raises `SchemaMismatch`, `NotPrimary` or SQLAlchemy's `OperationalError` when nobody answers."""
        await self._settle()
        database = make_url(self._dsn.newest).render_as_string(hide_password=True)
        _log.info("store_opened", database=database, incarnation=self._incarnation)

    async def close(self) -> None:
        """Connections that calls still hold get a moment to come back: one that came later would never be closed."""
        for engine in reversed(self._pools):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_CLOSE_SECONDS):
                    while _held(engine):  # noqa: ASYNC110 -- a pool tells nobody when a connection comes back
                        await asyncio.sleep(0.01)
            await engine.dispose()

    async def glimpse(self, connection: AsyncConnection) -> Glimpse:
        """By one statement of a connection that is there for something else; to be followed by `seen`."""
        life = self._lives.life
        current = await newest_incarnation(connection, life) if life is not None else None
        return Glimpse(life=life, incarnation=current)

    async def seen(self, shown: Glimpse, now: datetime) -> None:
        """Go by what a connection showed, which has been given back."""
        if shown.incarnation is None:
            await self._lives.settled(shown.life)
        elif shown.life is self._lives.life:  # else another one was found meanwhile, and this answer is of before
            self._adopt(shown.incarnation)
            self._sure_at = now

    async def has_forgotten(self, key: AttemptKey, *, advice_id: str, seen: int, who: str, now: datetime) -> None:
        """An agent has seen a generation that is not there: a backup was restored, and nothing else shows it."""
        async with self.door.begin() as connection:
            began = await after_forgetting(connection, key, advice_id=advice_id, seen=seen, who=who, now=now)
        self._enter(began)

    async def _settle(self) -> None:
        """Find out whose life the database has now, and go on in it: a new incarnation, where it is another one."""
        engine = single_engine(self._dsn, _SESSION)
        try:
            async with engine.begin() as connection:
                await require_current_schema(connection)
                current = await current_incarnation(connection, sure_at=self._sure_at)
        finally:
            await engine.dispose()
        self._enter(current)

    async def _settle_again(self) -> None:
        """While it is open: what the database lacks may come, with a backup or a migration. Until then it is away."""
        try:
            await self._settle()
        except SchemaMismatch as error:
            self._tell_absent(str(error))
            raise SchemaAbsentError(str(error)) from error
        except NotPrimary as error:
            raise StandbyError(str(error)) from error
        if not self._lives.doubted:  # else whoever asks next finds whether it still lacks something
            self._told_absent.clear()
        self._lives.doubted = False

    def _tell_absent(self, why: str) -> None:
        """Where several things are lacking, each transaction meets the one that it asks for first."""
        now = asyncio.get_running_loop().time()
        if now - self._told_absent.get(why, float("-inf")) < _TELL_SECONDS:
            return
        if len(self._told_absent) >= _TOLD_MAX:
            self._told_absent.clear()
        self._told_absent[why] = now
        _log.error("schema_absent", why=why)

    def _enter(self, current: Incarnation) -> None:
        self._lives.life = current.life
        self._adopt(current.id)

    def _adopt(self, current: str) -> None:
        if current != self._incarnation:
            self._incarnation = current
            self.on_another()


def _session_of(lease_seconds: float | None) -> str:
    """A process that is stopped within a transaction keeps others from its jobs: for less than a lease."""
    if lease_seconds is None:
        return _SESSION
    return f"{_SESSION} -c idle_in_transaction_session_timeout={round(idle_seconds(lease_seconds) * 1000)}"


def _held(engine: AsyncEngine) -> bool:
    pool = engine.pool
    return isinstance(pool, QueuePool) and pool.checkedout() > 0
