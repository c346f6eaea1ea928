"""Earned autonomy, carried out: looks at the shadow evidence from time to time and writes what changed.

What is decided is `core.autonomy`; the rows it writes are read by every tick. Nothing here acts on any job, and no cap,
pause or stop file is touched: advice of an autonomous category meets them all like any other.
"""

import structlog
from sqlalchemy.exc import SQLAlchemyError

from advisor.board import Board
from advisor.core.autonomy import Earned, EarningRules, judge
from advisor.core.reliability import window_of_days
from advisor.core.shadow import Case, evidence_for_autonomy
from advisor.core.words import Category
from advisor.ports import Clock
from advisor.reporting import Reporting
from advisor.store.shadow_queries import ShadowWanted
from advisor.store.store import Store

log = structlog.get_logger(__name__)

SWITCHED_OFF = "earned autonomy is not enabled in the configuration"


class Earning:
    """One per service, where the configuration enables it. Runs until cancelled."""

    def __init__(
        self,
        *,
        store: Store,
        reporting: Reporting,
        board: Board,
        clock: Clock,
        rules: EarningRules,
        window_days: float,
        interval_seconds: float,
    ) -> None:
        self._store, self._reporting, self._board, self._clock = store, reporting, board, clock
        self._rules = rules
        self._window_days = window_days
        self._interval_seconds = interval_seconds

    async def run(self) -> None:
        while True:
            try:
                await self.look()
            except SQLAlchemyError as error:  # the tick says so, too; what holds goes on holding
                log.warning("autonomy_not_judged", error=type(error).__name__)
            await self._clock.sleep(self._interval_seconds)

    async def look(self) -> tuple[Earned, ...]:
        """Judge every category of every cluster once; returns what changed."""
        now = self._clock.now()
        window = window_of_days(self._window_days, now)
        cases, capped = await self._reporting.cases(ShadowWanted(since=window.since, until=window.until), now)
        known = {(item.cluster, item.category): item for item in await self._store.earned()}
        places = sorted(
            {(case.cluster, category) for case in cases for category in self._rules.categories} | set(known)
        )
        changes = []
        for cluster, category in places:
            own = _of(cases, cluster, category)
            evidence = evidence_for_autonomy(own, with_stop=self._rules.with_stop)
            change = judge(cluster, category, evidence, known.get((cluster, category)), self._rules, now)
            if change is not None:
                changes.append(change)
        done = await self._store.set_earned(changes) if changes else ()
        for item in done:
            event = "autonomy_earned" if item.held else "autonomy_lost"
            log.warning(event, cluster=item.cluster, category=item.category, why=item.why, capped=capped)
        if done:
            await self._board.refresh()
            self._board.stir()
        return done


def _of(cases: tuple[Case, ...], cluster: str, category: Category) -> tuple[Case, ...]:
    return tuple(case for case in cases if case.cluster == cluster and case.category is category)
