"""Telling people: from committed decisions through the outbox to the channels.

Each channel on its own: one that hangs or refuses holds up no other, and never the tick. What is claimed is sent within
its claim or tried again, later each time; what a crash broke off goes out again under the same key and says so.
"""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

import structlog
from sqlalchemy.exc import SQLAlchemyError

from advisor.instruments import Instruments
from advisor.ports import Clock, Notice, NoticeItem, Notifier
from advisor.store.notifications import CLAIM_SECONDS, Claimed, TellRow
from advisor.store.store import Store

log = structlog.get_logger(__name__)

LOOK_SECONDS = 1.0
BEFORE_START = timedelta(hours=1)  # decisions of a service that died before it told them
BEFORE_LOOK = timedelta(minutes=5)  # a decision is dated before it is committed
RETRY_SECONDS_MIN = 5.0
RETRY_SECONDS_MAX = 600.0
SEND_SECONDS_MAX = CLAIM_SECONDS / 2
BURST_MAX = 100  # messages of one look


@dataclass(frozen=True, slots=True, kw_only=True)
class Channel:
    """`link`: address of a decision, `{decision}` for its id; "" for none. `to_users`: each job's own user is told, of
    what is done about his jobs and of nothing else.
    """

    notifier: Notifier
    actions: tuple[str, ...]
    messages_per_minute: int
    link: str = ""
    to_users: bool = False


class Notifying:
    """One per service. Runs until cancelled."""

    def __init__(
        self, *, store: Store, channels: Sequence[Channel], clock: Clock, instruments: Instruments | None = None
    ) -> None:
        self._store, self._channels, self._clock = store, tuple(channels), clock
        self._instruments = instruments or Instruments(clock)
        for channel in self._channels:
            self._instruments.channel(channel.notifier.name)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for channel in self._channels:
                group.create_task(self._serve(channel))

    async def _serve(self, channel: Channel) -> None:
        since = self._clock.now() - BEFORE_START
        while True:
            began = self._clock.now()
            wait = LOOK_SECONDS
            try:
                await self._store.enqueue_notices(
                    channel.notifier.name,
                    actions=channel.actions,
                    since=since,
                    now=began,
                    acted_only=channel.to_users,
                )
                since = max(since, began - BEFORE_LOOK)
                wait = await self.tell(channel)
            except SQLAlchemyError as error:  # the tick says so, too; what is to be told waits in the database
                log.warning("notifications_failing", channel=channel.notifier.name, error=type(error).__name__)
            await self._clock.sleep(wait)

    async def tell(self, channel: Channel) -> float:
        """Send what is due. Returns for how long the channel is to be left alone."""
        name = channel.notifier.name
        for _ in range(BURST_MAX):
            now = self._clock.now()
            claimed = await self._store.claim_notice(
                name, messages_per_minute=channel.messages_per_minute, now=now, by_user=channel.to_users
            )
            if claimed is None:
                return LOOK_SECONDS
            wait = await self._send(channel, claimed)
            if wait > 0:
                return wait
        return LOOK_SECONDS

    async def _send(self, channel: Channel, claimed: Claimed) -> float:
        name = channel.notifier.name
        notice = notice_of(claimed, channel.link)
        uncertain, error, asked = True, f"no outcome within {SEND_SECONDS_MAX:g} s", 0.0
        try:
            async with asyncio.timeout(SEND_SECONDS_MAX):
                answer = await channel.notifier.send(notice)
        except TimeoutError:
            pass
        except Exception as failure:  # the boundary to a connector: its defect is not ours
            log.exception("notifier_failed", channel=name)
            error = f"the connector failed: {type(failure).__name__}"
        else:
            if answer is None:
                await self._store.notice_sent(claimed.key, now=self._clock.now())
                self._instruments.notified(name, "sent")
                log.info("notification_sent", channel=name, message=claimed.key, decisions=len(claimed.rows))
                return 0.0
            missing = answer.unavailable
            uncertain, error, asked = answer.uncertain, f"{missing.reason}: {missing.detail}", answer.wait_seconds
        wait = max(asked, min(RETRY_SECONDS_MAX, RETRY_SECONDS_MIN * 2 ** min(claimed.tries - 1, 10)))
        now = self._clock.now()
        over = await self._store.notice_failed(
            claimed.key, error=error, uncertain=uncertain, due_at=now + timedelta(seconds=wait), now=now
        )
        event = "notification_given_up" if over else "notification_failed"
        self._instruments.notified(name, "given_up" if over else "failed")
        log.warning(event, channel=name, message=claimed.key, error=error, tries=claimed.tries)
        return RETRY_SECONDS_MIN if asked == 0.0 else asked


def notice_of(claimed: Claimed, link: str) -> Notice:
    return Notice(key=claimed.key, items=tuple(_item(row, link) for row in claimed.rows), repeat=claimed.repeat)


def _item(row: TellRow, link: str) -> NoticeItem:
    analysis = json.loads(row.analysis)
    return NoticeItem(
        decision_id=row.decision_id,
        incident=f"{row.job_key}-{row.number}",
        update=row.update,
        cluster=row.cluster,
        job_id=row.job_id,
        attempt=row.number,
        user=row.user,
        partition=row.partition,
        category=row.category,
        action=row.action,
        reason=row.reason,
        mode=row.mode,
        nodes=row.nodes,
        root_cause=str(analysis.get("attribution", {}).get("root_cause", "")),
        explanation=str(analysis.get("advice", {}).get("explanation", "")),
        decided_at=row.created_at,
        link=link.replace("{decision}", row.decision_id),
    )
