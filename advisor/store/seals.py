"""Writing the chain of seals: one sealer at a time, whatever the number of replicas."""

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from sqlalchemy import func, insert, select, text
from sqlalchemy.ext.asyncio import AsyncConnection

from advisor.seals import documents
from advisor.seals.documents import DroppedRows, SealDocument, StoredSeal, TableSeal
from advisor.seals.keys import SealKey
from advisor.seals.leaves import digest_of, pack
from advisor.store.seal_rows import columns_of, leaves
from advisor.store.tables import SEALED, audit, seal_leaves, seals

_LOCK = "advisor seals"
_PAGE = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """A new seal, and whether a table has more rows than it took."""

    seal: StoredSeal
    rows: int
    more: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SealStatus:
    """What the last seal says. `number` 0: there is none."""

    number: int = 0
    at: datetime | None = None
    key: str = ""
    heads: Mapping[str, int] | None = None


async def hold(connection: AsyncConnection, *, wait: bool = False) -> bool:
    """Become the one who writes to the chain, until the transaction ends. False: another one is."""
    key = func.hashtextextended(_LOCK, 0)
    if wait:
        await connection.execute(select(func.pg_advisory_xact_lock(key)))
        return True
    return bool((await connection.execute(select(func.pg_try_advisory_xact_lock(key)))).scalar_one())


async def newest(connection: AsyncConnection) -> StoredSeal | None:
    found = (await connection.execute(select(seals).order_by(seals.c.number.desc()).limit(1))).one_or_none()
    return (
        None if found is None else StoredSeal(number=found.number, document=found.document, signature=found.signature)
    )


async def status(connection: AsyncConnection) -> SealStatus:
    last = await newest(connection)
    if last is None:
        return SealStatus()
    document = documents.read(last.document)
    return SealStatus(number=last.number, at=document.at, key=document.key, heads=document.heads)


async def waiting_since(connection: AsyncConnection, status: SealStatus) -> datetime | None:
    """When the first row of the audit was written that is in no seal: every change of something comes with one."""
    upto = (status.heads or {}).get("audit", 0)
    found = await connection.execute(select(func.min(audit.c.at)).where(audit.c.seq > upto))
    oldest: datetime | None = found.scalar_one_or_none()
    return oldest


async def seal_rows(
    connection: AsyncConnection,
    highest: Mapping[str, int],
    *,
    key: SealKey | None,
    incarnation: str,
    now: datetime,
    rows_max: int,
) -> Written | None:
    """Seal what is not yet, up to `highest` of each table. None: nothing to seal, or another one is at it."""
    if not await hold(connection):
        return None
    last = await newest(connection)
    before = documents.read(last.document) if last is not None else None
    heads = dict(before.heads) if before is not None else {}
    sealed: dict[str, TableSeal] = {}
    packed: dict[str, bytes] = {}
    more = False
    for table in SEALED:
        after = heads.get(table, 0)
        if highest.get(table, 0) <= after:
            continue
        columns = columns_of(table)
        found = [
            leaf async for leaf in leaves(connection, table, columns, after=after, upto=highest[table], most=rows_max)
        ]
        if not found:
            continue
        more = more or len(found) == rows_max
        heads[table] = found[-1].seq
        packed[table] = pack(found)
        sealed[table] = TableSeal(
            after=after, upto=found[-1].seq, rows=len(found), columns=columns, digest=digest_of(packed[table])
        )
    if not sealed:
        return None
    document = SealDocument(
        number=last.number + 1 if last is not None else 1,
        previous=last.digest if last is not None else "",
        at=now,
        incarnation=incarnation,
        tables=sealed,
        heads=heads,
    )
    written = await append(connection, document, key=key, former=before.key if before is not None else "")
    await connection.execute(
        insert(seal_leaves),
        [
            {
                "number": written.number,
                "table_name": table,
                "after": sealed[table].after,
                "upto": sealed[table].upto,
                "leaves": data,
            }
            for table, data in packed.items()
        ],
    )
    return Written(seal=written, rows=sum(rows.rows for rows in sealed.values()), more=more)


async def seal_drop(
    connection: AsyncConnection,
    dropped: Mapping[str, DroppedRows],
    summary: Mapping[str, int],
    *,
    key: SealKey | None,
    incarnation: str,
    now: datetime,
) -> StoredSeal:
    """Say in the chain what retention takes away, in its transaction. The caller holds the chain."""
    last = await newest(connection)
    before = documents.read(last.document) if last is not None else None
    if last is None or before is None:
        raise ValueError("what was never sealed is not dropped")
    document = SealDocument(
        number=last.number + 1,
        previous=last.digest,
        at=now,
        incarnation=incarnation,
        heads=before.heads,
        dropped=dropped,
        summary=summary,
    )
    return await append(connection, document, key=key, former=before.key)


async def append(
    connection: AsyncConnection, document: SealDocument, *, key: SealKey | None, former: str
) -> StoredSeal:
    """Signed with `key`. `former`: the key of the seal before; another one is announced."""
    if key is not None:
        changed = key.public.fingerprint != former
        document = replace(document, key=key.public.fingerprint, new_key=key.notice if changed else None)
    data = documents.write(document)
    seal = StoredSeal(number=document.number, document=data, signature=key.sign(data) if key is not None else None)
    await connection.execute(insert(seals).values(number=seal.number, document=seal.document, signature=seal.signature))
    return seal


async def stored(connection: AsyncConnection, *, after: int = 0) -> AsyncIterator[StoredSeal]:
    """All seals with higher numbers, in order, page by page."""
    while True:
        found = await connection.execute(
            select(seals).where(seals.c.number > after).order_by(seals.c.number).limit(_PAGE)
        )
        rows = found.all()
        for row in rows:
            yield StoredSeal(number=row.number, document=row.document, signature=row.signature)
        if len(rows) < _PAGE:
            return
        after = rows[-1].number


async def leaves_of(connection: AsyncConnection, table: str, numbers: Sequence[int]) -> Mapping[int, bytes]:
    """The lists of leaves of these seals, by number; without those that are not there."""
    found = await connection.execute(
        select(seal_leaves.c.number, seal_leaves.c.leaves).where(
            seal_leaves.c.table_name == table, seal_leaves.c.number == func.any(list(numbers))
        )
    )
    return {row.number: row.leaves for row in found}


async def heads_before(connection: AsyncConnection, moment: datetime) -> Mapping[str, int]:
    """What had been sealed before then: the last row of each table. Found by halving, as seals are in time's order."""
    last = await newest(connection)
    low, high = 1, last.number if last is not None else 0
    heads: Mapping[str, int] = {}
    while low <= high:
        middle = (low + high) // 2
        data = (await connection.execute(select(seals.c.document).where(seals.c.number == middle))).scalar_one()
        document = documents.read(data)
        if document.at < moment:
            heads, low = document.heads, middle + 1
        else:
            high = middle - 1
    return heads


async def sealed_in(connection: AsyncConnection, number: int, table: str) -> TableSeal | None:
    found = await connection.execute(select(seals.c.document).where(seals.c.number == number))
    data = found.scalar_one_or_none()
    return None if data is None else documents.read(data).tables.get(table)


async def documents_of(connection: AsyncConnection, numbers: Sequence[int]) -> Sequence[SealDocument]:
    found = await connection.execute(select(seals.c.document).where(seals.c.number == func.any(list(numbers))))
    return [documents.read(data) for data in found.scalars()]


async def forget_leaves(connection: AsyncConnection, table: str, numbers: Sequence[int]) -> None:
    """Of seals of which no row of the table is left."""
    await connection.execute(text("SET LOCAL advisor.dropping = 'seal_leaves'"))
    await connection.execute(
        seal_leaves.delete().where(seal_leaves.c.table_name == table, seal_leaves.c.number == func.any(list(numbers)))
    )
    await connection.execute(text("SET LOCAL advisor.dropping = ''"))
