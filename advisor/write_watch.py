"""Asks now and then whether the database would take a write, so that an idle service knows before there is one."""

import structlog
from sqlalchemy.exc import SQLAlchemyError

from advisor.board import Board
from advisor.ports import Clock
from advisor.store.errors import StoreError
from advisor.store.store import Store

log = structlog.get_logger(__name__)

ASK_SECONDS = 10.0


class WriteWatch:
    """What it finds is on the board, for who asks how the service is. Runs until cancelled."""

    def __init__(self, *, store: Store, board: Board, clock: Clock) -> None:
        self._store, self._board, self._clock = store, board, clock

    async def run(self) -> None:
        while True:
            try:
                why = await self._store.write_refused()
            except (SQLAlchemyError, StoreError, TimeoutError, OSError):
                why = ""  # it does not answer at all, which whoever asks finds himself
            if why and not self._board.refused:
                log.warning("store_refuses_writes", why=why)
            self._board.refused = why
            await self._clock.sleep(ASK_SECONDS)
