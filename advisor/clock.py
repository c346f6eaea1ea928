"""The clock of this host, as the Clock port."""

import asyncio
from datetime import UTC, datetime
from time import monotonic


class SystemClock:
    def now(self) -> datetime:
        return datetime.now(UTC)  # noqa: TID251 -- this is the Clock that everything else uses

    def monotonic(self) -> float:
        return monotonic()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
