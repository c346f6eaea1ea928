"""What every tick asks, in one row each: is anything past its time, and is what people set as it was?"""

from dataclasses import dataclass, field
from datetime import datetime
from functools import cache
from typing import Any

from sqlalchemy import Numeric, Select, Text, cast, func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from advisor.core.autonomy import Earned
from advisor.core.modes import ModeSetting, Pause
from advisor.store.modes import list_modes
from advisor.store.pauses import all_pauses
from advisor.store.shadow import earned
from advisor.store.sql import hash_of, time_given
from advisor.store.tables import advice, earned_autonomy, isolations, mode_settings, pauses


@dataclass(frozen=True, slots=True, kw_only=True)
class Due:
    """Whether some are open past their time to live."""

    advice: bool
    isolations: bool


async def due(connection: AsyncConnection, now: datetime) -> Due:
    row = (await connection.execute(_due(), {"now": now})).one()
    return Due(advice=row.advice, isolations=row.isolations)


@cache
def _due() -> Select[*tuple[Any, ...]]:
    now = time_given("now")
    told = select(advice.c.decision_id).where(advice.c.open, advice.c.expires_at <= now)
    held = select(isolations.c.id).where(
        isolations.c.open, isolations.c.ended_at.is_(None), isolations.c.expires_at <= now
    )
    return select(told.exists().label("advice"), held.exists().label("isolations"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What people set and what categories earned. `pauses`: also those that are over."""

    modes: tuple[ModeSetting, ...] = ()
    pauses: tuple[Pause, ...] = ()
    earned: tuple[Earned, ...] = ()


@dataclass(slots=True)
class SettingsBook:
    """Settings, kept for as long as the database says the same of them."""

    _seen: str = ""
    _settings: Settings = field(default_factory=Settings)

    async def read(self, connection: AsyncConnection) -> Settings:
        stamp = str((await connection.execute(_stamp())).scalar_one())
        if stamp != self._seen:
            # Read after the stamp: what is newer than it is read once more.
            self._settings = Settings(
                modes=await list_modes(connection),
                pauses=await all_pauses(connection),
                earned=await earned(connection),
            )
            self._seen = stamp
        return self._settings


@cache
def _stamp() -> Select[*tuple[Any, ...]]:
    # By what rows say, not by who wrote them: transactions end in another order than they began in, and begin anew
    # from a lower number where a data folder was copied back.
    stamps = [
        select(func.concat(func.count(), " ", func.sum(cast(hash_of(table.c), Numeric()))))
        .select_from(table)
        .scalar_subquery()
        for table in (mode_settings, pauses, earned_autonomy)
    ]
    return select(func.concat_ws(" | ", *stamps, type_=Text()))
