"""Replicas as they know of each other: their lives, their turns, and the fence behind which a tick writes."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta

from sqlalchemy.ext.asyncio import AsyncConnection

from advisor.core.policy import Policy
from advisor.store import hints, leases, open_advice, watching
from advisor.store.database import Database
from advisor.store.errors import LeaseLost
from advisor.store.leases import Fence, Newcomer, StoredReplica, Turn


class Replicas:
    """What `advisor.store.leases` does, on this database. A fence is of the incarnation that its turn was taken in."""

    def __init__(self, database: Database, policy: Policy) -> None:
        self._database = database
        self._door = database.door
        self._policy = policy

    async def join(self, newcomer: Newcomer, *, lease: timedelta) -> datetime:
        """Begin a replica's life. Returns the database's time."""
        async with self._door.begin() as connection:
            return await leases.join(connection, newcomer, lease=lease)

    async def renew(
        self, replica_id: str, *, lease: timedelta, tick_age: timedelta, stuck: bool, jobs_max: int | None = None
    ) -> datetime | None:
        """The database's time. None: that life is over."""
        async with self._database.renewing.begin() as connection:
            return await leases.renew(
                connection, replica_id, lease=lease, tick_age=tick_age, stuck=stuck, jobs_max=jobs_max
            )

    async def bury(self, replica_ids: Collection[str]) -> None:
        """These do not renew, and their leases seem to run for longer than any: others may have their jobs."""
        async with self._door.begin() as connection:
            await leases.bury(connection, replica_ids)

    async def leave(self, replica_id: str) -> None:
        """End a replica's life; its jobs are free at once."""
        async with self._door.begin() as connection:
            await leases.leave(connection, replica_id)

    async def take_turn(
        self,
        replica_id: str,
        known: Mapping[str, int],
        *,
        now: datetime,
        lease: timedelta,
        refused: Collection[str] = (),
        attempts_max: int | None = None,
    ) -> Turn:
        """What this replica may tick, none of `refused` and no more than `attempts_max`. Raises `LeaseLost`."""
        async with self._door.begin() as connection:
            turn = await leases.take_turn(
                connection,
                replica_id,
                known,
                now=now,
                patience=watching.Patience.of(self._policy),
                lease=lease,
                refused=refused,
                attempts_max=attempts_max,
            )
        return replace(turn, fence=replace(turn.fence, incarnation=self._database.incarnation))

    async def hold(self, connection: AsyncConnection, fence: Fence | None, jobs: Iterable[str] = ()) -> None:
        """Before anything else of a tick's transaction: nobody else may write it. Raises `LeaseLost`."""
        if fence is not None and fence.incarnation != self._database.incarnation:
            raise LeaseLost("the store is another one since, and may have forgotten who holds what")
        await leases.hold(connection, fence, jobs)

    async def known(self) -> tuple[StoredReplica, ...]:
        async with self._door.look() as connection:
            return await leases.list_replicas(connection)

    async def free_jobs(self, now: datetime) -> tuple[str, ...]:
        """Jobs with something to tick that no replica holds. A turn says so, too."""
        async with self._door.look() as connection:
            return await watching.free_jobs(connection, now)

    async def hint(self, what: str, name: str) -> None:
        """Tell other replicas where to look."""
        async with self._door.begin() as connection:
            await hints.hint(connection, what, name)

    async def board_token(self) -> str:
        """Differs when what agents are shown may have changed."""
        async with self._door.look() as connection:
            return await open_advice.token(connection)
