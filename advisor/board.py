"""The board between the tick and those who listen: all open advice per cluster, and the pulse of the tick.

Level-triggered: a listener is shown everything that is open, whenever anything changed; there is nothing to miss.
Neither the pipeline nor the service knows the other; both know the board.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Protocol

import structlog

from advisor.core.autonomy import Earned, taken_back
from advisor.core.model import Unavailable
from advisor.core.modes import ModeSetting, Pause, Subject, paused_until, withdrawn
from advisor.core.words import Mode
from advisor.plain_text import error_text
from advisor.ports import Clock
from advisor.store.hints import ADVICE, TICK
from advisor.store.records import AdviceRow, StoredIsolation

log = structlog.get_logger(__name__)

REFRESH_SECONDS = 0.1


class OpenAdviceSource(Protocol):
    @property
    def incarnation(self) -> str: ...

    async def open_advice(self, cluster: str, now: datetime) -> tuple[AdviceRow, ...]: ...

    async def open_isolations(self, cluster: str) -> tuple[StoredIsolation, ...]: ...

    async def modes(self) -> tuple[ModeSetting, ...]: ...

    async def earned(self) -> tuple[Earned, ...]: ...

    async def pauses(self, now: datetime) -> tuple[Pause, ...]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerView:
    """When a cluster's agent last spoke, and what it could not read of its scheduler by its last report."""

    heard_at: datetime
    unavailable: tuple[Unavailable, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Pulse:
    """How the tick is doing. `age_seconds`: since it last completed or got on, by the monotonic clock."""

    ticks: int
    age_seconds: float
    took_seconds: float
    watched: int
    failed_jobs: int  # attempts whose own tick failed, in the last tick
    unwatched: int = 0  # attempts that no replica has room to look at


@dataclass(frozen=True, slots=True, kw_only=True)
class Elsewhere:
    """How other replicas were when they were looked at, at that monotonic time. Ages go on growing until the next look.

    `tick_age_seconds`: the oldest of those that hold jobs, dead ones among them until their jobs are taken over.
    `free_seconds`: how long a job has been nobody's. `views`: what was heard of schedulers by anybody.
    """

    tick_age_seconds: float
    free_seconds: float
    seen_at: float
    views: Mapping[str, SchedulerView] = field(default_factory=dict)
    alone: bool = True


class Board:
    def __init__(self, source: OpenAdviceSource, clock: Clock) -> None:
        self._source = source
        self._clock = clock
        self._open: dict[str, tuple[AdviceRow, ...]] = {}
        self._nodes: dict[str, tuple[StoredIsolation, ...]] = {}
        self._of: dict[str, str] = {}  # the incarnation in which a cluster's part was read; of another, it is not known
        self._pauses: tuple[Pause, ...] = ()
        self._changed = asyncio.Condition()
        self._version = 0
        self._refreshing = asyncio.Lock()
        self._started = clock.monotonic()
        self._completed: float | None = None
        self._ticks = 0
        self._took = 0.0
        self._watched = 0
        self._failed = 0
        self._unwatched = 0
        self.failing = ""  # why no tick completes, while none does
        self.refused = ""  # why the database would take no write, where one was tried that nothing waits for
        self._due: set[str] = set()  # clusters whose open advice is to be read again
        self._soon: asyncio.Task[None] | None = None
        self._told: dict[str, tuple[str, tuple[Unavailable, ...]]] = {}  # by which session
        self._views: dict[str, SchedulerView] = {}  # per cluster; they enter every snapshot
        self.wake = asyncio.Event()  # set: something was reported, tick now
        self.hinted: Callable[[str], None] = lambda _what: None  # who tells other replicas
        self.elsewhere: Elsewhere | None = None
        self.replica_id = ""  # this process among those of the database
        self.holds = True  # this replica holds jobs: without, its tick keeps nobody waiting
        self.closed = False

    def heard(self, cluster: str, unavailable: tuple[Unavailable, ...] | None = None, session: str = "") -> bool:
        """The cluster's agent spoke; `unavailable` is None where it said nothing about its scheduler.

        True when that is news: other than what it said last in this session.
        """
        before = self._views.get(cluster)
        if unavailable is None:
            unavailable = before.unavailable if before is not None else ()
            self._views[cluster] = SchedulerView(heard_at=self._clock.now(), unavailable=unavailable)
            return False
        self._views[cluster] = SchedulerView(heard_at=self._clock.now(), unavailable=unavailable)
        told, self._told[cluster] = self._told.get(cluster), (session, unavailable)
        return told != (session, unavailable)

    def views(self) -> dict[str, SchedulerView]:
        """Of every cluster the newest, whichever replica heard it."""
        found = dict(self._views)
        for cluster, view in (self.elsewhere.views if self.elsewhere is not None else {}).items():
            if cluster not in found or found[cluster].heard_at < view.heard_at:
                found[cluster] = view
        return found

    def stir(self) -> None:
        """Something was reported or ordered: tick now, whoever holds the job."""
        self.wake.set()
        self.hinted(TICK)

    async def refresh(
        self, clusters: Iterable[str] | None = None, *, also: Iterable[str] = (), hint: bool = True
    ) -> None:
        """Read open advice again, for all known clusters and `also` by default; listeners are told if it differs.

        `hint`: so are other replicas.
        """
        async with self._refreshing:
            names = {*self._open, *also} if clusters is None else set(clusters)
            due = self._due & names  # what is asked for from now on needs another look
            self._due -= due
            try:
                changed = await self._read(sorted(names))
            except BaseException:
                self._due |= due
                raise
        if changed:
            await self.notify()
            if hint:
                self.hinted(ADVICE)

    async def _read(self, names: Sequence[str]) -> bool:
        settings, earned = await self._source.modes(), await self._source.earned()
        pauses = await self._source.pauses(self._clock.now())
        changed = pauses != self._pauses
        self._pauses = pauses
        for cluster in names:
            incarnation = self._source.incarnation
            changed |= self._of.get(cluster) != incarnation
            found = await self._source.open_advice(cluster, self._clock.now())
            rows = tuple(row for row in found if not _stopped(row, settings, earned))
            isolated = await self._source.open_isolations(cluster)
            nodes = tuple(_on_paper(item, settings) for item in isolated)
            changed |= rows != self._open.get(cluster) or nodes != self._nodes.get(cluster)
            self._open[cluster], self._nodes[cluster], self._of[cluster] = rows, nodes, incarnation
        return changed

    def refresh_soon(self, cluster: str) -> None:
        """For what comes often, as acknowledgements of a thousand restarts do: together, within REFRESH_SECONDS."""
        self._due.add(cluster)
        if self._soon is None or self._soon.done():
            self._soon = asyncio.create_task(self._refresh_due())

    def refresh_all_soon(self) -> None:
        """Another replica has changed something."""
        for cluster in self._open:
            self.refresh_soon(cluster)

    @property
    def due(self) -> bool:
        """What was to be read again could not be, so far."""
        return bool(self._due)

    async def _refresh_due(self) -> None:
        while self._due:
            await self._clock.sleep(REFRESH_SECONDS)
            try:
                await self.refresh(self._due)
            except Exception as error:  # the boundary of a task of its own: the tick tries again
                log.warning("board_not_refreshed", error=error_text(error))
                return

    async def open_for(self, cluster: str) -> tuple[AdviceRow, ...]:
        """All advice of the cluster that is open and not past its time to live."""
        await self._know(cluster)
        now = self._clock.now()
        return tuple(row for row in self._open[cluster] if row.expires_at > now)

    async def nodes_for(self, cluster: str) -> tuple[StoredIsolation, ...]:
        """What is wanted of the cluster's nodes; nothing while it is paused: neither drained nor put back."""
        await self._know(cluster)
        return () if self.paused_until(cluster) is not None else self._nodes[cluster]

    async def _know(self, cluster: str) -> None:
        while self._of.get(cluster) != self._source.incarnation:
            await self.refresh((cluster,))

    def paused_until(self, cluster: str) -> datetime | None:
        return paused_until(self._pauses, cluster, self._clock.now())

    async def notify(self) -> None:
        async with self._changed:
            self._version += 1
            self._changed.notify_all()

    @property
    def version(self) -> int:
        return self._version

    async def wait_beyond(self, version: int, seconds: float) -> None:
        """Until something changed since `version`, or `seconds` have passed."""
        try:
            async with asyncio.timeout(seconds), self._changed:
                await self._changed.wait_for(lambda: self._version != version or self.closed)
        except TimeoutError:
            pass

    async def close(self) -> None:
        """End every listener's wait."""
        self.closed = True
        if self._soon is not None:
            self._soon.cancel()
            await asyncio.gather(self._soon, return_exceptions=True)
        await self.notify()

    def tick_advanced(self) -> None:
        """A long tick has stored something: what is wrong when nothing moves is not wrong now."""
        self._completed = self._clock.monotonic()

    def tick_failed(self, why: str) -> None:
        """Said to whoever asks until one is completed again."""
        self.failing = why

    def tick_completed(self, *, took_seconds: float, watched: int, failed_jobs: int, unwatched: int = 0) -> None:
        self._completed = self._clock.monotonic()
        self._ticks += 1
        self._took = took_seconds
        self._watched = watched
        self._failed = failed_jobs
        self._unwatched = unwatched
        self.failing = ""

    @property
    def pulse(self) -> Pulse:
        since = self._started if self._completed is None else self._completed
        return Pulse(
            ticks=self._ticks,
            age_seconds=self._clock.monotonic() - since,
            took_seconds=self._took,
            watched=self._watched,
            failed_jobs=self._failed,
            unwatched=self._unwatched,
        )

    @property
    def tick_age_seconds(self) -> float:
        """For who must act when nothing decides: the age of the oldest tick that any job depends on."""
        other = self.elsewhere
        own = self.pulse.age_seconds if self.holds or other is None or other.alone else 0.0
        if other is None:
            return own
        since = self._clock.monotonic() - other.seen_at
        return max(own, *(age + since if age else 0.0 for age in (other.tick_age_seconds, other.free_seconds)))


def _stopped(row: AdviceRow, settings: Sequence[ModeSetting], earned: Sequence[Earned]) -> bool:
    """An operator's monitor takes autonomous advice back at once, also where no tick will decide about it again; so
    does the loss of what its category had earned.
    """
    if row.decision.mode is not Mode.AUTONOMOUS:
        return False
    where = row.attempt
    subject = Subject(
        cluster=where.cluster,
        partition=row.partition,
        account=row.account,
        job_id=where.job_id,
        job_key=where.job_key,
        category=row.decision.attribution.category,
    )
    return withdrawn(settings, subject) or taken_back(settings, earned, subject)


def _on_paper(item: StoredIsolation, settings: Sequence[ModeSetting]) -> StoredIsolation:
    """Under an operator's monitor nothing is drained any more, but what an operator isolated by name. What is drained
    may be put back all the same.
    """
    if item.opened_by:
        return item
    subject = Subject(
        cluster=item.cluster,
        partition=item.partition,
        account=item.account,
        job_id=item.job_id,
        job_key=item.job_key,
        category=item.category,
    )
    stopped = withdrawn(settings, subject)
    return replace(item, dry_run=True) if stopped and item.ended_at is None else item
