"""What `advisor doctor` says about the seals over the history: signed or not, and whether they keep up."""

import asyncio
import os
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

from advisor.commands.database import database_url, one_moment, opened
from advisor.commands.output import CommandError
from advisor.config import Config
from advisor.core.amounts import many
from advisor.store import seals
from advisor.store.seals import SealStatus

LATE = timedelta(minutes=10)  # what `advisor audit verify` calls overdue


@dataclass(frozen=True, slots=True, kw_only=True)
class SealFinding:
    """`to_do` is empty when all is well."""

    found: str
    to_do: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Looked:
    """The chain's end, and since when the oldest row waits for a seal; None: none does."""

    status: SealStatus
    waiting_since: datetime | None


def look_at_seals(chosen: Config, now: datetime) -> Iterator[SealFinding]:
    """The key as configured; the chain itself where this user may look into the database."""
    signs = chosen.seal.key_file is not None
    try:
        looked = _look(chosen)
    except CommandError as error:
        looked = None
        if error.code == 1:  # it could be asked, and what it holds is not in order
            yield SealFinding(found=str(error), to_do="find out who wrote into the chain")
    yield from judge(looked, signs=signs, now=now)


def judge(looked: Looked | None, *, signs: bool, now: datetime) -> Iterator[SealFinding]:
    if not signs:
        yield SealFinding(
            found="not signed: who can write to the database can rewrite the chain",
            to_do="advisor audit key new FILE, and name it as seal.key_file",
        )
    if looked is None:
        if signs:
            yield SealFinding(found="signed with seal.key_file; how far they are, root and the service's user can see")
        return
    status = looked.status
    silent = status.at is None or now - status.at > LATE
    if silent and looked.waiting_since is not None and now - looked.waiting_since > LATE:
        yield SealFinding(
            found=f"rows since {looked.waiting_since:%Y-%m-%d %H:%M:%S} UTC are not sealed",
            to_do="look for seal_failed in the service's log; then advisor audit verify",
        )
    elif signs and status.number and not status.key:
        yield SealFinding(found=f"seal {status.number} is not signed", to_do="restart the service: it has no key yet")
    elif signs:
        yield SealFinding(
            found=f"{many(status.number, 'seal')}, signed with key {status.key}" if status.number else "none yet"
        )


def _look(chosen: Config) -> Looked:
    user = os.geteuid()
    try:
        return asyncio.run(_asked(database_url(chosen)))
    finally:
        if os.geteuid() != user:
            os.seteuid(user)


async def _asked(url: str) -> Looked:
    async with opened(url) as engine, one_moment(engine) as connection:
        status = await seals.status(connection)
        return Looked(status=status, waiting_since=await seals.waiting_since(connection, status))
