"""Every sealed row against its seal: changed, missing, or never sealed where all were.

Reads only, in one transaction that sees one moment, with bounded memory but for forty bytes per seal and table.
"""

from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import column, func, select, table, text
from sqlalchemy.ext.asyncio import AsyncConnection

from advisor.seals.chain import Chain, Finding, Sealed, Wrong, within
from advisor.seals.leaves import Leaf, digest_of, unpack
from advisor.store import seals
from advisor.store.seal_rows import given_out, leaves
from advisor.store.tables import SEALED, metadata

ROWS_TOGETHER = 5_000
# Rows are sealed within seconds of their commit; by these columns it is seen when they were not.
_WRITTEN_AT = {"attempt_states": "recorded_at", "audit": "at", "blobs": "created_at", "decisions": "created_at"}
Told = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """Rows that no seal covers yet. `oldest` where the table knows when its rows were written."""

    table: str
    rows: int
    oldest: datetime | None


async def read_chain(connection: AsyncConnection, chain: Chain) -> AsyncIterator[Finding]:
    """All seals, from the first to the last."""
    async for seal in seals.stored(connection):
        for finding in chain.read(seal):
            yield finding
    for finding in chain.end():
        yield finding


async def check_rows(connection: AsyncConnection, chain: Chain, *, told: Told) -> AsyncIterator[Finding]:
    """After `read_chain`. `told(table, done, all)` as it goes on, in rows."""
    for name in SEALED:
        entries = chain.sealed.get(name, [])
        total, done = sum(item.rows.rows for item in entries), 0
        told(name, 0, total)
        if entries:
            async for leaf in leaves(connection, name, ("seq",), after=None, upto=entries[0].rows.after):
                yield _inserted(name, leaf.seq, None)
        for group in _together(entries):
            async for finding in _check_group(connection, chain, name, group):
                yield finding
            done += sum(item.rows.rows for item in group)
            told(name, done, total)
    async for finding in _never_given_out(connection):
        yield finding


async def _never_given_out(connection: AsyncConnection) -> AsyncIterator[Finding]:
    """Rows with numbers that are still to come: no seal would ever reach them. Numbers last: they only grow."""
    for name, highest in (await given_out(connection)).items():
        if highest is None:
            continue
        async for leaf in leaves(connection, name, ("seq",), after=highest, upto=None):
            detail = f"{highest} is the last number that was given out: it was not written by the service"
            yield Finding(wrong=Wrong.ROW_INSERTED, table=name, row=leaf.seq, detail=detail)


async def waiting(connection: AsyncConnection, chain: Chain) -> tuple[Waiting, ...]:
    found = []
    for name in SEALED:
        entries = chain.sealed.get(name, [])
        upto = entries[-1].rows.upto if entries else 0
        rows = table(name, column("seq"), *([column(_WRITTEN_AT[name])] if name in _WRITTEN_AT else []))
        oldest = func.min(rows.c[_WRITTEN_AT[name]]) if name in _WRITTEN_AT else text("NULL")
        counted = (
            await connection.execute(select(func.count(), oldest).select_from(rows).where(rows.c.seq > upto))
        ).one()
        if counted[0]:
            found.append(Waiting(table=name, rows=counted[0], oldest=counted[1]))
    return tuple(found)


def overdue(rows: Iterable[Waiting], chain: Chain, *, now: datetime, after: timedelta) -> list[Finding]:
    """Rows that should have been sealed long ago: the service does not run, or its seals were taken away.

    While seals are being written, old dates are those of what was told late.
    """
    if chain.last_at is not None and abs(now - chain.last_at) <= after:
        return []
    return [
        Finding(
            wrong=Wrong.ROWS_UNSEALED,
            table=item.table,
            detail=f"{item.rows} rows since {item.oldest:%Y-%m-%d %H:%M:%S} UTC are in no seal: the service does not "
            "seal, or the end of the chain was cut off",
        )
        for item in rows
        if item.oldest is not None and now - item.oldest > after
    ]


def _together(entries: Sequence[Sealed]) -> Iterable[list[Sealed]]:
    """Neighbours of the same columns, as many as make one question worth its while."""
    group: list[Sealed] = []
    rows = 0
    for item in entries:
        if group and (rows + item.rows.rows > ROWS_TOGETHER or item.rows.columns != group[0].rows.columns):
            yield group
            group, rows = [], 0
        group.append(item)
        rows += item.rows.rows
    if group:
        yield group


async def _check_group(
    connection: AsyncConnection, chain: Chain, name: str, group: Sequence[Sealed]
) -> AsyncIterator[Finding]:
    columns, first, last = group[0].rows.columns, group[0].rows.after, group[-1].rows.upto
    unknown = [item for item in columns if item not in metadata.tables[name].columns]
    if unknown:
        detail = f"this build knows no column {', '.join(unknown)} that was sealed: verify with the build that wrote it"
        yield Finding(wrong=Wrong.SEAL_CHANGED, seal=group[0].seal, table=name, detail=detail)
        return
    expected: dict[int, tuple[bytes, int]] = {}
    unreadable = False
    lists = await seals.leaves_of(connection, name, [item.seal for item in group])
    dropped = chain.dropped.get(name, [])
    for item in group:
        packed = lists.get(item.seal)
        if packed is None:
            if not within(item.seal, chain.emptied.get(name, [])):
                unreadable = True
                detail = f"the digests of its {item.rows.rows} rows are not there"
                yield Finding(wrong=Wrong.LEAVES_MISSING, seal=item.seal, table=name, detail=detail)
        elif digest_of(packed) != item.rows.digest:
            unreadable = True
            detail = f"the digests of its {item.rows.rows} rows are not those that were sealed"
            yield Finding(wrong=Wrong.LEAVES_CHANGED, seal=item.seal, table=name, detail=detail)
        else:
            kept = (leaf for leaf in unpack(packed) if not within(leaf.seq, dropped))
            expected.update((leaf.seq, (leaf.digest, item.seal)) for leaf in kept)
    async for leaf in leaves(connection, name, columns, after=first, upto=last):
        finding = _compared(name, leaf, expected, known=not unreadable)
        if finding is not None:
            yield finding
    for seq, (_, seal) in sorted(expected.items()):
        yield Finding(wrong=Wrong.ROW_MISSING, seal=seal, table=name, row=seq, detail="it was sealed and is not there")


def _compared(name: str, leaf: Leaf, expected: dict[int, tuple[bytes, int]], *, known: bool) -> Finding | None:
    """`known`: every leaf of the group is; else nothing is said of rows that have none."""
    sealed = expected.pop(leaf.seq, None)
    if sealed is None:
        return _inserted(name, leaf.seq, None) if known else None
    if sealed[0] != leaf.digest:
        return Finding(
            wrong=Wrong.ROW_CHANGED, seal=sealed[1], table=name, row=leaf.seq, detail="it is not what was sealed"
        )
    return None


def _inserted(name: str, seq: int, seal: int | None) -> Finding:
    detail = "it stands among sealed rows and is in no seal, or was dropped and is back"
    return Finding(wrong=Wrong.ROW_INSERTED, seal=seal, table=name, row=seq, detail=detail)
