"""History that is only added to: sealing it, and dropping what is too old. One engine with `Store`, other callers."""

from collections.abc import Callable, Mapping
from datetime import datetime

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from advisor.seals.keys import SealKey
from advisor.store import months, retention, seal_rows, seals
from advisor.store.engines import Door
from advisor.store.retention import Droppable, Ground
from advisor.store.seal_rows import Bounds
from advisor.store.seals import SealStatus, Written

# Looking over a whole month takes longer than a statement of the service may; a lock on a big table must not be waited
# for long, as others then wait behind us.
_UNHURRIED = "SET LOCAL statement_timeout = '15min'; SET LOCAL lock_timeout = '2s'"


class History:
    """What the sealer and retention do in the database. Database errors pass through."""

    def __init__(self, engine: AsyncEngine | Door, incarnation: Callable[[], str]) -> None:
        """`incarnation`: the store's, which may change while it is open."""
        self._engine = engine
        self._incarnation = incarnation

    async def bounds(self) -> Bounds:
        async with self._engine.connect() as connection:
            return await seal_rows.bounds(connection)

    async def writers(self) -> frozenset[str]:
        async with self._engine.connect() as connection:
            return await seal_rows.writers(connection)

    async def seal(
        self, highest: Mapping[str, int], *, key: SealKey | None, now: datetime, rows_max: int
    ) -> Written | None:
        """The next seal, of rows up to `highest`. None: there is nothing to seal, or another replica is at it."""
        async with self._engine.begin() as connection:
            return await seals.seal_rows(
                connection, highest, key=key, incarnation=self._incarnation(), now=now, rows_max=rows_max
            )

    async def seal_status(self) -> SealStatus:
        async with self._engine.connect() as connection:
            return await seals.status(connection)

    async def months_ahead(self, now: datetime) -> tuple[str, ...]:
        """Make what is missing of this month and the next two. Returns the names of what was made."""
        async with self._engine.connect() as connection:
            wanted = await months.missing(connection, now)
        made = []
        for table, month in wanted:
            async with self._engine.begin() as connection:
                made.append(await months.make(connection, table, month))
        return tuple(name for name in made if name)

    async def too_old(self, *, months: int, now: datetime) -> tuple[Droppable, ...]:
        async with self._engine.connect() as connection:
            await connection.execute(text(_UNHURRIED))
            return await retention.plan(connection, months=months, now=now)

    async def drop(self, chosen: Droppable, ground: Ground) -> int:
        """Returns how many rows went. Raises `retention.TamperedError`."""
        async with self._engine.begin() as connection:
            await connection.execute(text(_UNHURRIED))
            return await retention.drop_part(connection, chosen.part, ground)

    async def sweep(self, *, months: int, ground: Ground) -> tuple[int, int]:
        """Content and milestones that only dropped decisions needed: how many of each went, a batch at most."""
        before = retention.horizon(months, ground.now)
        async with self._engine.connect() as connection:
            await connection.execute(text(_UNHURRIED))
            unused, decided = await retention.unreferred_blobs(connection, before)
            orphaned = await retention.orphaned_milestones(connection, before)
        blobs = milestones = 0
        if unused:
            async with self._engine.begin() as connection:
                blobs = await retention.drop_blobs(connection, unused, decided, ground)
        if orphaned:
            async with self._engine.begin() as connection:
                milestones = await retention.drop_milestones(connection, orphaned, ground)
        return blobs, milestones

    def ground(self, *, who: str, origin: str, why: str, key: SealKey | None, now: datetime) -> Ground:
        return Ground(who=who, origin=origin, why=why, key=key, incarnation=self._incarnation(), now=now)
