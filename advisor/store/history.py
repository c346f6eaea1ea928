"""History that is only added to: sealing it, and dropping what is too old. One engine with `Store`, other callers."""

from collections.abc import Mapping
from datetime import datetime

from sqlalchemy.ext.asyncio import AsyncEngine

from advisor.seals.keys import SealKey
from advisor.store import months, seal_rows, seals
from advisor.store.seal_rows import Bounds
from advisor.store.seals import SealStatus, Written


class History:
    """What the sealer and retention do in the database. Database errors pass through."""

    def __init__(self, engine: AsyncEngine, incarnation: str) -> None:
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
                connection, highest, key=key, incarnation=self._incarnation, now=now, rows_max=rows_max
            )

    async def seal_status(self) -> SealStatus:
        async with self._engine.connect() as connection:
            return await seals.status(connection)

    async def months_ahead(self, now: datetime) -> tuple[str, ...]:
        """Make what is missing of this month and the next two. Returns the names of what was made."""
        async with self._engine.begin() as connection:
            return await months.ahead(connection, now)
