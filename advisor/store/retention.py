# ruff: noqa: S608 - names in SQL are ours or from the catalogue
"""Dropping history that is too old: whole months, and what only they referred to.

What goes is compared with its seals first: a row that was tampered with is evidence and keeps its month. In the same
transaction the chain says what went, how many rows and what they came to; so `seal_verify` knows that they are not
missing. Each part is dropped in a transaction of its own, which locks one big table only, and briefly.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from sqlalchemy import func, select, text
from sqlalchemy.ext.asyncio import AsyncConnection

from advisor.core.amounts import many
from advisor.seals.chain import within
from advisor.seals.documents import DroppedRows
from advisor.seals.keys import SealKey
from advisor.seals.leaves import Leaf, Ranges, digest_of, pack, unpack
from advisor.store import seals
from advisor.store.audit_log import append
from advisor.store.errors import StoreError
from advisor.store.months import Part, later, month_of, parts
from advisor.store.records import AuditEvent
from advisor.store.seal_rows import leaves
from advisor.store.sql import any_text
from advisor.store.tables import MONTHLY, audit, seal_leaves

SWEPT_TOGETHER = 1_000
SUMMARY_MAX = 500
_LISTS_TOGETHER = 20
_MONTHS_BACK = 240
# How many of what kind: kept when the rows are gone.
_KINDS = {
    "decisions": "category || ' ' || action || ' ' || mode",
    "reconciliations": "status || ' ' || reason",
    "attempt_states": "state",
    "audit": "what",
}


class TamperedError(StoreError):
    """What is to be dropped is not what was sealed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Droppable:
    """A part that is too old. `held_back`: why it stays all the same, "" when nothing keeps it."""

    part: Part
    rows: int
    size_bytes: int
    held_back: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """Who drops, how it is signed, and when."""

    who: str
    origin: str
    why: str
    key: SealKey | None
    incarnation: str
    now: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class _List:
    """Rows of one seal of which some go. `others`: those that do not, because they stay, or are gone already."""

    seal: int
    after: int
    upto: int
    others: tuple[int, ...]


@dataclass(slots=True)
class _Account:
    """Rows that go, as their seals have them."""

    rows: int = 0
    ranges: Ranges = field(default_factory=Ranges)
    lists: list["_List"] = field(default_factory=list)
    digest: "hashlib._Hash" = field(default_factory=hashlib.sha256)


def horizon(months: int, now: datetime) -> datetime:
    """What is before goes."""
    return later(month_of(now), -months)


async def plan(connection: AsyncConnection, *, months: int, now: datetime) -> tuple[Droppable, ...]:
    """Parts that are wholly too old."""
    until = horizon(months, now)
    heads = (await seals.status(connection)).heads or {}
    found = []
    for part in await parts(connection):
        if part.until is None or part.until > until:
            continue
        if not await _held(connection, part):
            continue  # another replica was first
        rows, size, last = (
            await connection.execute(
                text(f"SELECT count(*), pg_total_relation_size('{part.name}'), coalesce(max(seq), 0) FROM {part.name}")
            )
        ).one()
        held = ""
        if last > heads.get(part.table, 0):
            held = f"rows up to {last} are not sealed yet"
        elif part.table == "decisions" and (still := await _still_open(connection, part.name)):
            held = f"{many(still, 'attempt')} that it decided about still watched"
        found.append(Droppable(part=part, rows=rows, size_bytes=size, held_back=held))
    return tuple(found)


async def _held(connection: AsyncConnection, part: Part) -> bool:
    """Keep the part from being dropped while we look at it. False: it is gone already."""
    await connection.execute(
        text(
            f"DO $$ BEGIN LOCK TABLE {part.name} IN ACCESS SHARE MODE; EXCEPTION WHEN undefined_table THEN NULL; END $$"
        )
    )
    found = await connection.scalar(text("SELECT to_regclass(:name) IS NOT NULL"), {"name": part.name})
    return bool(found)


async def _still_open(connection: AsyncConnection, name: str) -> int:
    found = await connection.execute(
        text(
            f"SELECT count(*) FROM attempts a WHERE a.open AND EXISTS (SELECT FROM {name} d "
            "WHERE d.job_key = a.job_key AND d.number = a.number)"
        )
    )
    return int(found.scalar_one())


async def drop_part(connection: AsyncConnection, part: Part, ground: Ground) -> int:
    """In the caller's transaction. Returns how many rows went. Raises `TamperedError`."""
    await seals.hold(connection, wait=True)
    if part not in await parts(connection):
        return 0  # another replica was first
    table, time = part.table, MONTHLY[part.table]
    # Nothing is dated so far back any more, or next to nothing: it waits, and then goes to the rest.
    await connection.execute(text(f"LOCK TABLE {part.name} IN SHARE ROW EXCLUSIVE MODE"))
    first, last, oldest, newest = (
        await connection.execute(text(f"SELECT min(seq), max(seq), min({time}), max({time}) FROM {part.name}"))
    ).one()
    account, summary = _Account(), dict[str, int]()
    if first is not None:
        account = await _account(connection, table, first=first, last=last, part=part.name)
        summary = await _summary(connection, part)
    if table == "decisions":
        for other in ("advice", "notifications"):
            await connection.execute(
                text(f"DELETE FROM {other} USING {part.name} AS d WHERE {other}.decision_id = d.id")
            )
    await connection.execute(text(f"DROP TABLE {part.name}"))
    if account.rows:
        await _say(connection, table, part.name, account, ground, summary=summary, oldest=oldest, newest=newest)
    return account.rows


async def _summary(connection: AsyncConnection, part: Part) -> dict[str, int]:
    found = await connection.execute(
        text(
            f"SELECT {_KINDS[part.table]} AS kind, count(*) AS rows FROM {part.name} "
            "GROUP BY 1 ORDER BY 2 DESC, 1 LIMIT :most"
        ),
        {"most": SUMMARY_MAX},
    )
    return {row.kind: row.rows for row in found}


async def _say(
    connection: AsyncConnection,
    table: str,
    part: str,
    account: _Account,
    ground: Ground,
    *,
    summary: Mapping[str, int],
    oldest: datetime | None = None,
    newest: datetime | None = None,
) -> None:
    """In the chain and in the audit. The rows are gone already."""
    emptied = Ranges()
    gone = []
    for item in account.lists:
        empty = not item.others or await _empty(connection, table, item, ground.now)
        emptied.add(item.seal, dropped=empty)
        if empty:
            gone.append(item.seal)
    dropped = DroppedRows(
        part=part,
        rows=account.rows,
        ranges=account.ranges.all(),
        emptied=emptied.all(),
        digest=account.digest.hexdigest(),
        oldest=oldest,
        newest=newest,
    )
    seal = await seals.seal_drop(
        connection, {table: dropped}, summary, key=ground.key, incarnation=ground.incarnation, now=ground.now
    )
    await seals.forget_leaves(connection, table, gone)
    await append(
        connection,
        AuditEvent(
            at=ground.now,
            who=ground.who,
            what="history_dropped",
            why=ground.why,
            origin=ground.origin,
            subject=part,
            detail={"table": table, "rows": str(account.rows), "seal": str(seal.number)},
        ),
    )


async def _empty(connection: AsyncConnection, table: str, item: _List, now: datetime) -> bool:
    """Nothing of it is left, and retention took all of it: of a row that is missing the digest stays, to tell."""
    found = await connection.execute(
        text(f"SELECT EXISTS (SELECT FROM {table} WHERE seq > :after AND seq <= :upto)"),
        {"after": item.after, "upto": item.upto},
    )
    return not found.scalar_one() and await _went_before(connection, table, item, now)


async def _went_before(connection: AsyncConnection, table: str, item: _List, now: datetime) -> bool:
    """Whether the chain says of all the others that they went. Seals that do are known from the audit; where that has
    forgotten them by now, digests are kept that could go.
    """
    month = month_of(now)
    parts_of = [table, f"{table}_old", *(f"{table}_{later(month, -back):%Y_%m}" for back in range(_MONTHS_BACK))]
    said = await connection.execute(
        select(audit.c.detail).where(audit.c.what == "history_dropped", audit.c.subject == any_text(parts_of))
    )
    numbers = sorted((_seal_named(detail) for detail in said.scalars()), reverse=True)
    left, at = set(item.others), 0
    while left and at < len(numbers) and numbers[at] > item.seal:
        for document in await seals.documents_of(connection, numbers[at : at + _LISTS_TOGETHER]):
            ranges = document.dropped[table].ranges if table in document.dropped else ()
            left = {number for number in left if not within(number, ranges)}
        at += _LISTS_TOGETHER
    return not left


def _seal_named(detail: str) -> int:
    """0 for what we did not write: it is before all seals."""
    try:
        return min(int(json.loads(detail)["seal"]), 2**63 - 1)
    except (ValueError, TypeError, KeyError):
        return 0


async def _account(
    connection: AsyncConnection,
    table: str,
    *,
    first: int,
    last: int,
    part: str | None = None,
    only: Sequence[int] | None = None,
) -> _Account:
    """Rows of the part, or those with these numbers, against the lists of leaves that hold any of them."""
    account = _Account()
    upto = first - 1
    while True:
        found = await connection.execute(
            select(seal_leaves)
            .where(seal_leaves.c.table_name == table, seal_leaves.c.upto > upto, seal_leaves.c.after < last)
            .order_by(seal_leaves.c.upto)
            .limit(_LISTS_TOGETHER)
        )
        lists = found.all()
        for row in lists:
            sealed = await seals.sealed_in(connection, row.number, table)
            if sealed is None or digest_of(row.leaves) != sealed.digest:
                raise TamperedError(f"seal {row.number} does not fit the digests of {table}: nothing is dropped")
            going = {
                leaf.seq: leaf.digest
                async for leaf in leaves(
                    connection, table, sealed.columns, after=sealed.after, upto=sealed.upto, part=part, only=only
                )
            }
            _take(account, table, row.number, list(unpack(row.leaves)), going, sealed.after, sealed.upto)
        if len(lists) < _LISTS_TOGETHER:
            break
        upto = lists[-1].upto
    return account


def _take(
    account: _Account, table: str, seal: int, sealed: Sequence[Leaf], going: dict[int, bytes], after: int, upto: int
) -> None:
    taken = []
    for leaf in sealed:
        digest = going.pop(leaf.seq, None)
        if digest is not None and digest != leaf.digest:
            raise TamperedError(f"row {leaf.seq} of {table} is not what was sealed: nothing is dropped")
        account.ranges.add(leaf.seq, dropped=digest is not None)
        if digest is not None:
            taken.append(leaf)
    if going:
        raise TamperedError(f"row {min(going)} of {table} is in no seal: nothing is dropped")
    account.rows += len(taken)
    account.digest.update(pack(taken))
    if taken:
        numbers = {leaf.seq for leaf in taken}
        others = tuple(leaf.seq for leaf in sealed if leaf.seq not in numbers)
        account.lists.append(_List(seal=seal, after=after, upto=upto, others=others))


async def unreferred_blobs(connection: AsyncConnection, before: datetime) -> tuple[tuple[int, ...], int]:
    """Serial numbers of content that was sealed, is older, and that no decision refers to; and the last decision that
    was sealed by then: what refers to content since comes after it."""
    heads = (await seals.status(connection)).heads or {}
    unused = " ".join(
        f"AND NOT EXISTS (SELECT FROM decisions d WHERE d.{name}_hash = b.hash)"
        for name in ("inputs", "rules", "policy")
    )
    found = await connection.execute(
        text(
            f"SELECT b.seq FROM blobs b WHERE b.created_at < :before AND b.seq <= :head {unused} ORDER BY 1 LIMIT :most"
        ),
        {"before": before, "head": heads.get("blobs", 0), "most": SWEPT_TOGETHER},
    )
    return tuple(found.scalars()), heads.get("decisions", 0)


async def drop_blobs(connection: AsyncConnection, seqs: Sequence[int], decided: int, ground: Ground) -> int:
    """Delete them unless a decision after `decided` refers to one: then nothing, ask again.

    Every commit of a decision writes to `blobs` before it writes the decision, so that while the table is locked none
    is under way, and one that comes later finds the content gone and writes it again.
    """
    await seals.hold(connection, wait=True)
    account = await _account(connection, "blobs", first=min(seqs), last=max(seqs), only=seqs)
    await connection.execute(text("LOCK TABLE blobs IN SHARE ROW EXCLUSIVE MODE"))
    used = await connection.execute(
        text(
            "SELECT EXISTS (SELECT FROM decisions d JOIN blobs b "
            "ON b.hash IN (d.inputs_hash, d.rules_hash, d.policy_hash) WHERE d.seq > :decided AND b.seq = ANY(:seqs))"
        ),
        {"decided": decided, "seqs": list(seqs)},
    )
    if used.scalar_one():
        return 0
    return await _delete(connection, "blobs", seqs, account, ground)


async def orphaned_milestones(connection: AsyncConnection, before: datetime) -> tuple[int, ...]:
    """Of attempts that are over and of which no decision is left; sealed before then."""
    heads = await seals.heads_before(connection, before)
    found = await connection.execute(
        text(
            "SELECT m.seq FROM milestones m JOIN attempts a ON a.job_key = m.job_key AND a.number = m.number "
            "WHERE m.seq <= :head AND NOT a.open AND NOT EXISTS (SELECT FROM decisions d "
            "WHERE d.job_key = m.job_key AND d.number = m.number) ORDER BY 1 LIMIT :most"
        ),
        {"head": heads.get("milestones", 0), "most": SWEPT_TOGETHER},
    )
    return tuple(found.scalars())


async def drop_milestones(connection: AsyncConnection, seqs: Sequence[int], ground: Ground) -> int:
    await seals.hold(connection, wait=True)
    account = await _account(connection, "milestones", first=min(seqs), last=max(seqs), only=seqs)
    return await _delete(connection, "milestones", seqs, account, ground)


async def _delete(
    connection: AsyncConnection, table: str, seqs: Sequence[int], account: _Account, ground: Ground
) -> int:
    await connection.execute(select(func.set_config("advisor.dropping", table, True)))
    await connection.execute(text(f"DELETE FROM {table} WHERE seq = ANY(:seqs)"), {"seqs": list(seqs)})
    await connection.execute(select(func.set_config("advisor.dropping", "", True)))
    await _say(connection, table, table, account, ground, summary={})
    return account.rows
