"""The sealer: adds to the chain what was committed since, and makes the months before they begin.

Nothing waits for it. Any number of replicas run one; the database lets one at a time write to the chain. What a crash
leaves unsealed is sealed by whoever comes next.
"""

import structlog
from sqlalchemy.exc import SQLAlchemyError

from advisor.core.codec import CodecError
from advisor.instruments import Instruments
from advisor.ports import Clock
from advisor.seals.keys import SealKey
from advisor.store.history import History

log = structlog.get_logger(__name__)

ROWS_MAX = 1_000  # of one table in one seal
WRITERS_SECONDS_MAX = 20.0  # how long transactions that write are waited for; the next round waits again
LOOK_SECONDS = 0.1
MONTHS_SECONDS = 3600.0


class Sealer:
    """One per service. Runs until cancelled; a database that fails is tried again."""

    def __init__(
        self,
        *,
        history: History,
        key: SealKey | None,
        clock: Clock,
        interval_seconds: float,
        instruments: Instruments | None = None,
    ) -> None:
        self._history, self._key, self._clock = history, key, clock
        self._instruments = instruments or Instruments(clock)
        self._interval_seconds = interval_seconds
        self._months_due = 0.0
        self._failing = False

    async def run(self) -> None:
        while True:
            try:
                await self.once()
                self._failing = False
            except (SQLAlchemyError, CodecError) as error:  # CodecError: somebody wrote into the chain
                self._instruments.seal_failed()
                if not self._failing:
                    log.warning("seal_failed", error=str(error).splitlines()[0])
                self._failing = True
            await self._clock.sleep(self._interval_seconds)

    async def once(self) -> int:
        """Seal all that can be sealed now. Returns how many rows."""
        if self._clock.monotonic() >= self._months_due:
            for name in await self._history.months_ahead(self._clock.now()):
                log.info("month_made", part=name)
            self._months_due = self._clock.monotonic() + MONTHS_SECONDS
        bounds = await self._history.bounds()
        if not await self._ended(bounds.writers):
            return 0
        rows = 0
        while True:
            written = await self._history.seal(bounds.highest, key=self._key, now=self._clock.now(), rows_max=ROWS_MAX)
            if written is None:
                return rows
            rows += written.rows
            self._instruments.sealed(written.rows)
            # Outside the database, too, it is then known what the chain ended with.
            log.info("seal_written", number=written.seal.number, digest=written.seal.digest, rows=written.rows)
            if not written.more:
                return rows

    async def _ended(self, writers: frozenset[str]) -> bool:
        deadline = self._clock.monotonic() + WRITERS_SECONDS_MAX
        while writers:
            if self._clock.monotonic() > deadline:
                log.info("seal_waits_for_writers", writers=len(writers))
                return False
            await self._clock.sleep(LOOK_SECONDS)
            writers = writers & await self._history.writers()
        return True
