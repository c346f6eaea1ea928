"""The outbox of notices: what is to be told, what is being told, what was told.

A row for each decision and channel, made from the committed decisions themselves: a decision that is committed gets
its row, at the latest when the service runs again, and never two. Several rows may go out as one message. Its key is
made from the decisions in it and stored before it is sent, so that after a crash the same message goes out under the
same key. One replica at a time claims for a channel; a claim ends by itself.

`waiting` → `sending` (claimed, or to be tried again at `due_at`) → `sent`, or `given_up`; `superseded` when a newer
decision about the same attempt was there before the older one could be told.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import and_, distinct, func, literal, select, update
from sqlalchemy.dialects.postgresql import insert as upsert
from sqlalchemy.ext.asyncio import AsyncConnection

from advisor.core.words import Mode
from advisor.store.ids import content_id
from advisor.store.sql import AnyRow, any_text
from advisor.store.tables import decisions, notifications

CLAIM_SECONDS = 60.0  # longer than any channel takes
TOGETHER_MAX = 100  # decisions in one message
LOOKED_AT_MAX = 1_000
GIVE_UP = timedelta(hours=24)
_MINUTE = timedelta(minutes=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class TellRow:
    """A decision to be told. `update`: messages about the same attempt that went before."""

    decision_id: str
    job_key: str
    number: int
    cluster: str
    job_id: str
    user: str
    partition: str
    category: str
    action: str
    reason: str
    mode: str
    nodes: tuple[str, ...]
    analysis: str
    created_at: datetime
    update: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Claimed:
    """One message, ours to send until the claim ends. `repeat`: an earlier try may have arrived."""

    key: str
    rows: tuple[TellRow, ...]
    tries: int
    repeat: bool


async def enqueue(
    connection: AsyncConnection,
    channel: str,
    *,
    actions: Sequence[str],
    since: datetime,
    now: datetime,
    acted_only: bool = False,
) -> int:
    """A row for each decision since then that has none for this channel. Returns how many were made.

    `acted_only`: not those that are on paper only, in monitor mode.
    """
    known = select(notifications.c.decision_id).where(
        notifications.c.channel == channel, notifications.c.decision_id == decisions.c.id
    )
    wanted = select(
        literal(channel), decisions.c.id, decisions.c.job_key, decisions.c.number, literal(now), literal("waiting")
    ).where(decisions.c.created_at >= since, decisions.c.action == any_text(actions), ~known.exists())
    if acted_only:
        wanted = wanted.where(decisions.c.mode == Mode.AUTONOMOUS.value)
    columns = ["channel", "decision_id", "job_key", "number", "created_at", "state"]
    making = upsert(notifications).from_select(columns, wanted).on_conflict_do_nothing()
    return len((await connection.execute(making.returning(notifications.c.decision_id))).all())


async def claim(
    connection: AsyncConnection, channel: str, *, messages_per_minute: int, now: datetime, by_user: bool = False
) -> Claimed | None:
    """The next message of a channel: one whose claim ended or whose try is due, else a new one if the rate allows.

    `by_user`: nothing of two users' jobs goes into one message.
    """
    await connection.execute(select(func.pg_advisory_xact_lock(func.hashtextextended(f"notify:{channel}", 0))))
    again = await _again(connection, channel, now)
    return again or await _new(connection, channel, messages_per_minute, now, by_user=by_user)


async def _again(connection: AsyncConnection, channel: str, now: datetime) -> Claimed | None:
    due = (
        select(notifications.c.message_key)
        .where(
            notifications.c.channel == channel,
            notifications.c.state == "sending",
            notifications.c.due_at <= now,
        )
        .order_by(notifications.c.due_at)
        .limit(1)
    )
    key = (await connection.execute(due)).scalar_one_or_none()
    if key is None:
        return None
    found = await connection.execute(select(notifications).where(notifications.c.message_key == key))
    row = found.first()
    if row is None:
        return None
    # Set before each try and taken back by its outcome: still set means that nobody knows the outcome.
    return await _claimed(connection, channel, key, repeat=row.uncertain, now=now)


async def _new(
    connection: AsyncConnection, channel: str, per_minute: int, now: datetime, *, by_user: bool
) -> Claimed | None:
    lately = select(func.count(distinct(notifications.c.message_key))).where(
        notifications.c.channel == channel, notifications.c.claimed_at > now - _MINUTE
    )
    left = per_minute - int((await connection.execute(lately)).scalar_one())
    if left <= 0:
        return None
    mine = and_(notifications.c.channel == channel, notifications.c.state == "waiting")
    found = await connection.execute(
        select(
            notifications.c.decision_id,
            notifications.c.job_key,
            notifications.c.number,
            decisions.c.generation,
            decisions.c.user_name,
        )
        .join(decisions, decisions.c.id == notifications.c.decision_id)
        .where(mine)
        .order_by(notifications.c.created_at, notifications.c.decision_id)
        .limit(LOOKED_AT_MAX)
    )
    rows = found.all()
    newest: dict[tuple[str, int], AnyRow] = {}
    for row in rows:
        kept = newest.get((row.job_key, row.number))
        if kept is None or kept.generation < row.generation:
            newest[row.job_key, row.number] = row
    if not newest:
        return None
    old = {row.decision_id for row in rows} - {row.decision_id for row in newest.values()}
    await _set(connection, channel, old, state="superseded")
    chosen = list(newest.values())
    if by_user:
        chosen = [row for row in chosen if row.user_name == chosen[0].user_name]
    # What the rate leaves no room for goes out together, in the last message that it leaves room for.
    taken = chosen[:TOGETHER_MAX] if left == 1 and len(chosen) > 1 else chosen[:1]
    names = sorted(row.decision_id for row in taken)
    key = content_id("notice", channel, *names)
    await _set(connection, channel, set(names), state="sending", message_key=key, claimed_at=now)
    return await _claimed(connection, channel, key, repeat=False, now=now)


async def _set(connection: AsyncConnection, channel: str, names: set[str], **values: object) -> None:
    if names:
        where = and_(notifications.c.channel == channel, notifications.c.decision_id.in_(names))
        await connection.execute(update(notifications).where(where).values(**values))


async def _claimed(connection: AsyncConnection, channel: str, key: str, *, repeat: bool, now: datetime) -> Claimed:
    of_message = notifications.c.message_key == key
    await connection.execute(
        update(notifications)
        .where(of_message)
        .values(due_at=now + timedelta(seconds=CLAIM_SECONDS), uncertain=True, tries=notifications.c.tries + 1)
    )
    earlier = notifications.alias("earlier")
    before = (
        select(func.count())
        .select_from(earlier)
        .where(
            earlier.c.channel == channel,
            earlier.c.job_key == notifications.c.job_key,
            earlier.c.number == notifications.c.number,
            earlier.c.state == "sent",
        )
        .scalar_subquery()
    )
    found = await connection.execute(
        select(notifications.c.tries, before.label("before"), decisions)
        .join(decisions, decisions.c.id == notifications.c.decision_id)
        .where(of_message)
        .order_by(decisions.c.created_at, decisions.c.id)
    )
    rows = found.all()
    return Claimed(key=key, rows=tuple(_row(row) for row in rows), tries=rows[0].tries, repeat=repeat)


def _row(row: AnyRow) -> TellRow:
    return TellRow(
        decision_id=row.id,
        job_key=row.job_key,
        number=row.number,
        cluster=row.cluster,
        job_id=row.job_id,
        user=row.user_name,
        partition=row.partition,
        category=row.category,
        action=row.action,
        reason=row.reason,
        mode=row.mode,
        nodes=tuple(row.nodes),
        analysis=row.analysis,
        created_at=row.created_at,
        update=row.before,
    )


async def sent(connection: AsyncConnection, key: str, *, now: datetime) -> None:
    values = {"state": "sent", "sent_at": now, "uncertain": False, "error": ""}
    await connection.execute(update(notifications).where(notifications.c.message_key == key).values(**values))


async def failed(
    connection: AsyncConnection, key: str, *, error: str, uncertain: bool, due_at: datetime, now: datetime
) -> bool:
    """To be tried again then. True: it is given up, a day after it was to be told."""
    late = notifications.c.created_at <= now - GIVE_UP
    of_message = notifications.c.message_key == key
    await connection.execute(
        update(notifications).where(of_message).values(due_at=due_at, uncertain=uncertain, error=error[:500])
    )
    made = await connection.execute(update(notifications).where(of_message, late).values(state="given_up"))
    return made.rowcount > 0
