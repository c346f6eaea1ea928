"""Retention: drops what is older than the configuration keeps, in the background and a piece at a time."""

from collections.abc import AsyncIterator
from dataclasses import dataclass

import structlog
from sqlalchemy.exc import SQLAlchemyError

from advisor.core.codec import CodecError
from advisor.ports import Clock
from advisor.seals.keys import SealKey
from advisor.store.history import History
from advisor.store.retention import Ground, TamperedError

log = structlog.get_logger(__name__)

ROUND_SECONDS = 3600.0
PAUSE_SECONDS = 0.2  # between pieces, for those who wait


@dataclass(frozen=True, slots=True, kw_only=True)
class Went:
    """One piece: a part of a table, or a batch of what only dropped rows needed. `refused`: why it stays."""

    what: str
    rows: int
    refused: str = ""


class Retention:
    """One per service with a limit. Runs until cancelled; what fails is tried again in the next round."""

    def __init__(
        self,
        *,
        history: History,
        key: SealKey | None,
        clock: Clock,
        months: int,
        who: str = "advisor",
        origin: str = "",
    ) -> None:
        self._history, self._key, self._clock, self._months = history, key, clock, months
        self._who, self._origin = who, origin

    async def run(self) -> None:
        while True:
            try:
                async for went in self.once():
                    if went.refused:
                        log.warning("history_kept", part=went.what, why=went.refused)
                    else:
                        log.info("history_dropped", part=went.what, rows=went.rows)
                    await self._clock.sleep(PAUSE_SECONDS)
            except (SQLAlchemyError, CodecError) as error:
                log.warning("retention_failed", error=str(error).splitlines()[0])
            await self._clock.sleep(ROUND_SECONDS)

    async def once(self) -> AsyncIterator[Went]:
        """All that is too old now."""
        for chosen in await self._history.too_old(months=self._months, now=self._clock.now()):
            if chosen.held_back:
                yield Went(what=chosen.part.name, rows=0, refused=chosen.held_back)
                continue
            try:
                rows = await self._history.drop(chosen, self._ground())
            except TamperedError as error:
                yield Went(what=chosen.part.name, rows=0, refused=f"{error}; run `advisor audit verify`")
            else:
                yield Went(what=chosen.part.name, rows=rows)
        while True:
            try:
                blobs, milestones = await self._history.sweep(months=self._months, ground=self._ground())
            except TamperedError as error:
                yield Went(what="what dropped decisions needed", rows=0, refused=f"{error}; run `advisor audit verify`")
                return
            if blobs:
                yield Went(what="blobs", rows=blobs)
            if milestones:
                yield Went(what="milestones", rows=milestones)
            if not blobs and not milestones:
                return

    def _ground(self) -> Ground:
        return self._history.ground(
            who=self._who,
            origin=self._origin,
            why=f"retention of {self._months} months",
            key=self._key,
            now=self._clock.now(),
        )
