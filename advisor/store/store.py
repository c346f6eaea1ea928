"""The one door to the database: every query of the service goes through `Store`.

What replicas share is at `Store.replicas`, what people ask at `Store.audit`, and how the database is followed through
its life in `advisor.store.database`. Queries themselves are in a module for each thing that they are about.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from sqlalchemy import func, select

from advisor.core.autonomy import Earned
from advisor.core.model import Unavailable
from advisor.core.modes import ModeChange, ModeSetting, Pause
from advisor.core.node_isolation import Plan, Want
from advisor.core.people import Correction, Said, ShadowRules
from advisor.core.policy import Policy
from advisor.core.shadow import NodeAftermath
from advisor.core.words import IsolationEnd
from advisor.store import (
    agents,
    commit,
    corrections,
    due,
    isolations,
    loading,
    milestones,
    modes,
    notifications,
    observations,
    open_advice,
    orders,
    pauses,
    references,
    reliability_queries,
    shadow,
    shadow_queries,
    states,
    watching,
    writes,
)
from advisor.store.audit import Audit
from advisor.store.database import UNIT_SECONDS, Database
from advisor.store.due import Due, Settings
from advisor.store.forgotten_drains import Adopting
from advisor.store.history import History
from advisor.store.leases import Fence
from advisor.store.memory import Memory
from advisor.store.order_records import OrderGiven, OrderWanted, SinceOrder, StoredOrder
from advisor.store.records import (
    AdviceRow,
    AgentMode,
    AttemptKey,
    AttemptRef,
    CommittedDecision,
    DecisionRecord,
    DetectorState,
    Milestone,
    NodeReconciliation,
    ObservedJob,
    ObservedNode,
    Reconciliation,
    Recorded,
    StopFile,
    StoredAgent,
    StoredAttempt,
    StoredBreaker,
    StoredIsolation,
)
from advisor.store.reliability_queries import ReliabilityRows, ReliabilityWanted
from advisor.store.replicas import Replicas
from advisor.store.shadow_queries import Place, ShadowEvidence, ShadowWanted
from advisor.store.tables import incidents


class Store:
    """Queries and transactions over one Postgres. Safe to share between tasks of one event loop.

    Database errors pass through as SQLAlchemy raises them; statements' parameters are kept out of their text.
    """

    def __init__(self, database: Database, policy: Policy) -> None:
        self._database = database
        database.on_another = self._begin_anew
        self._door = database.door
        self._policy = policy
        self._memory = Memory()
        self._adopting = Adopting()
        self._reading_settings = asyncio.Lock()
        self._loading = asyncio.Lock()  # what is remembered is of one transaction
        self.replicas = Replicas(database, policy)
        self.audit = Audit(database.asking, policy)

    @classmethod
    async def open(
        cls,
        url: str,
        *,
        policy: Policy | None = None,
        read_url: Callable[[], str] | None = None,
        unit_seconds: float = UNIT_SECONDS,
        lease_seconds: float | None = None,
    ) -> "Store":
        """Connect to a migrated database. `policy` gives the history's half-life and window.

        `lease_seconds`: of this replica's leases; a transaction of ours that stands still ends well within one.
        `read_url`: asked for the DSN whenever a connection is made. `unit_seconds`: after which a transaction that has
        not come to its end is ended by cutting its connection. Raises `SchemaMismatch`, `NotPrimary` or
        SQLAlchemy's `OperationalError` when nobody answers.
        """
        database = Database(url, read_url=read_url, unit_seconds=unit_seconds, lease_seconds=lease_seconds)
        store = cls(database, policy or Policy())
        await database.open()
        return store

    def _begin_anew(self) -> None:
        """In another incarnation: what was known to be stored may not be any more."""
        self._adopting = Adopting()
        self.audit.forget()
        self.forget()

    def forget(self) -> None:
        """Read all of it anew the next time."""
        self._memory = Memory()

    async def close(self) -> None:
        await self._database.close()

    @property
    def incarnation(self) -> str:
        """Generations compare only within one."""
        return self._database.incarnation

    def history(self) -> History:
        """For the sealer and retention: what is only added to."""
        return History(self._database.unhurried, lambda: self.incarnation)

    # what agents report

    async def register_agent(
        self,
        *,
        cluster: str,
        host: str,
        version: str,
        mode: AgentMode,
        scheduler: str,
        requeue_delay: timedelta | None,
        job_memory: timedelta | None,
        missing_rights: Sequence[str],
        now: datetime,
    ) -> StoredAgent:
        """One agent per cluster and host; a new session replaces the old one."""
        async with self._door.begin() as connection:
            return await agents.register_agent(
                connection,
                cluster=cluster,
                host=host,
                version=version,
                mode=mode,
                scheduler=scheduler,
                requeue_delay=requeue_delay,
                job_memory=job_memory,
                missing_rights=missing_rights,
                now=now,
            )

    async def heartbeat(
        self, *, cluster: str, session: str, mode: AgentMode, now: datetime, stop_file: StopFile | None = None
    ) -> bool:
        """False: the session is not known (register again). No `stop_file`: it is not there, or no longer."""
        async with self._door.begin() as connection:
            return await agents.heartbeat(
                connection, cluster=cluster, session=session, mode=mode, now=now, stop_file=stop_file
            )

    async def agent_says(self, *, cluster: str, session: str, unavailable: Sequence[Unavailable]) -> None:
        """What it cannot read of its scheduler, for replicas that it is not connected to."""
        async with self._door.begin() as connection:
            await agents.says(connection, cluster=cluster, session=session, unavailable=unavailable)

    async def agent_views(self) -> tuple[tuple[StoredAgent, tuple[Unavailable, ...]], ...]:
        """Every agent, and what it said last that it cannot read."""
        async with self._door.look() as connection:
            return await agents.said(connection)

    async def agents(self) -> tuple[StoredAgent, ...]:
        async with self._door.connect() as connection:
            return await agents.list_agents(connection)

    async def record_observations(
        self,
        cluster: str,
        jobs: Sequence[ObservedJob],
        nodes: Sequence[ObservedNode],
        *,
        complete: bool,
        now: datetime,
        listed: Sequence[str] = (),
    ) -> Recorded:
        """Work a report in; idempotent. `complete`: `jobs` is all that the scheduler holds, others are forgotten.

        `listed`: jobs that it holds besides, by `identity.slot_of`: a long listing comes in several reports, and the
        last one is complete.
        """
        async with self._door.begin() as connection:
            nodes_known, jobs_known = self._memory.reported(cluster)
            recorded, learned = await observations.record_observations(
                connection,
                cluster,
                jobs,
                nodes,
                complete=complete,
                now=now,
                listed=listed,
                nodes_known=nodes_known,
                jobs_known=jobs_known,
            )
        jobs_known.keep(learned)
        return recorded

    async def resolve(self, refs: Sequence[AttemptRef]) -> tuple[AttemptKey | None, ...]:
        """The advisor's keys for the scheduler's names, in order; None where nothing is known."""
        async with self._door.connect() as connection:
            return await references.resolve_references(connection, refs)

    # the tick

    async def watched(self, now: datetime) -> tuple[AttemptKey, ...]:
        """Attempts to tick: not ended, or ended and not yet done with, for an hour at most."""
        async with self._door.begin() as connection:
            seen = await watching.watched(connection, now, patience=watching.Patience.of(self._policy))
        return tuple(item.key for item in seen)

    @property
    def policy(self) -> Policy:
        return self._policy

    async def load(self, keys: Sequence[AttemptKey], *, now: datetime) -> Mapping[AttemptKey, StoredAttempt]:
        """All that is known of each attempt, as of one moment; unknown keys are left out.

        For the tick: what is remembered until the next call is of these attempts, and of no others.
        """
        async with self._loading, self._door.moment() as connection:
            return await loading.load(connection, keys, policy=self._policy, now=now, remembered=self._memory.attempts)

    async def load_one(self, key: AttemptKey, *, now: datetime) -> StoredAttempt | None:
        """All that is known of one attempt, for whoever asks beside the tick: what that remembers is left alone."""
        async with self._door.moment() as connection:
            return (await loading.load(connection, [key], policy=self._policy, now=now)).get(key)

    async def save_states(
        self, states_by_key: Mapping[AttemptKey, DetectorState], *, fence: Fence | None = None
    ) -> None:
        """What the tick leaves for the next one, of all attempts in one transaction."""
        if not states_by_key:
            return
        remembered = self._memory.attempts  # of the incarnation that it is saved in: another may begin meanwhile
        async with self._door.begin() as connection:
            await self.replicas.hold(connection, fence, (key.job_key for key in states_by_key))
            writer = await states.save_states(connection, states_by_key)
        remembered.saved(states_by_key, writer)

    async def commit_decision(self, record: DecisionRecord) -> CommittedDecision:
        """All of it or nothing. Raises `Conflict` when the newest generation is not `record.seen_generation`."""
        (outcome,) = await self.commit_decisions([record])
        if not isinstance(outcome, CommittedDecision):
            raise outcome
        return outcome

    async def commit_decisions(
        self, records: Sequence[DecisionRecord], *, fence: Fence | None = None
    ) -> tuple[commit.Outcome, ...]:
        """Of different attempts, in one transaction. A conflict is one record's outcome; the others are committed.

        An error of the database or of a record's coding is raised: then none of them is committed.
        """
        while True:
            current, content = self.incarnation, self._memory.content
            batch = await asyncio.to_thread(commit.Batch.of, records, incarnation=current, known=content.of(records))
            async with self._door.begin() as connection:
                if current != self.incarnation:
                    continue  # settled just now: ids are made with it, and what is known to be stored is known no more
                await self.replicas.hold(connection, fence, (record.key.job_key for record in records))
                outcomes = await commit.commit_decisions(connection, batch, incarnation=current, fence=fence)
            content.keep(batch, outcomes)
            return outcomes

    async def due(self, now: datetime) -> Due:
        """Whether anything is past its time to live; once per tick. That the store still is what it was is seen to at
        the same time.
        """
        async with self._door.look() as connection:
            shown = await self._database.glimpse(connection)
            found = await due.due(connection, now)
        await self._database.seen(shown, now)
        return replace(found, isolations=found.isolations or self._adopting.is_due)

    async def settings(self) -> Settings:
        """Modes, pauses, and what categories earned."""
        async with self._reading_settings, self._door.look() as connection:
            return await self._memory.settings.read(connection)

    async def expire_advice(self, now: datetime, *, fence: Fence | None = None) -> int:
        """Close advice past its time to live as EXPIRED. Returns how many."""
        async with self._door.begin() as connection:
            await self.replicas.hold(connection, fence)
            shown = await self._database.glimpse(connection)
            expired = await open_advice.expire_advice(connection, now) if shown.incarnation is not None else 0
        await self._database.seen(shown, now)
        return expired

    async def open_advice(self, cluster: str, now: datetime) -> tuple[AdviceRow, ...]:
        """The newest generation of each attempt of the cluster, unless final or past its time to live."""
        async with self._door.connect() as connection:
            return await open_advice.open_advice(connection, cluster, now)

    async def record_reconciliation(self, advice_id: str, reconciliation: Reconciliation, *, who: str) -> AttemptKey:
        """Idempotent. Raises `NotFound` for an unknown advice id.

        An agent that has seen a higher generation than there is proves that the store has forgotten some.
        """
        async with self._door.begin() as connection:
            key = await open_advice.record_reconciliation(connection, advice_id, reconciliation, who=who)
            seen = open_advice.seen_by_agent(reconciliation)
            if not seen or seen <= await open_advice.newest_generation(connection, key):
                return key
        # Apart, so that attempts are locked before their advice, as by whoever commits meanwhile.
        await self._database.has_forgotten(key, advice_id=advice_id, seen=seen, who=who, now=reconciliation.at)
        return key

    async def record_milestones(
        self, reached: Mapping[AttemptKey, Sequence[Milestone]], *, fence: Fence | None = None
    ) -> None:
        """The first one of each kind stays. Raises IntegrityError for an attempt that does not exist.

        `fence` is of the replica that ticks an attempt; what it says of the one before is of the same job.
        """
        async with self._door.begin() as connection:
            await self.replicas.hold(connection, fence, (key.job_key for key in reached))
            await milestones.record_milestones(connection, reached)

    # nodes

    async def isolate(self, cluster: str, wants: Sequence[Want], *, now: datetime, fence: Fence | None = None) -> Plan:
        """Open what caps and breaker allow, with audit rows; idempotent while its node is held."""
        async with self._door.begin() as connection:
            await self.replicas.hold(connection, fence)
            return await isolations.isolate(connection, cluster, wants, policy=self._policy, now=now)

    async def isolate_by_hand(
        self, cluster: str, node: str, *, force: bool, who: str, why: str, origin: str, now: datetime
    ) -> tuple[StoredIsolation, bool]:
        """Whether anything changed. Raises `NotFound` and `TooLate`."""
        async with self._door.begin() as connection:
            return await isolations.isolate_by_hand(
                connection, cluster, node, force=force, who=who, why=why, origin=origin, policy=self._policy, now=now
            )

    async def expire_isolations(self, now: datetime, *, fence: Fence | None = None) -> tuple[StoredIsolation, ...]:
        """End what is past its time to live. In a new incarnation, also take over what the former one had isolated."""
        async with self._door.begin() as connection:
            await self.replicas.hold(connection, fence)
            await self._adopting.look(connection, policy=self._policy, now=now)
            return await isolations.expire(connection, now)

    async def open_isolations(self, cluster: str) -> tuple[StoredIsolation, ...]:
        async with self._door.connect() as connection:
            return await isolations.open_isolations(connection, cluster)

    async def isolations(
        self, *, cluster: str = "", node: str = "", ended: bool = False
    ) -> tuple[StoredIsolation, ...]:
        async with self._door.connect() as connection:
            return await isolations.list_isolations(connection, cluster=cluster, node=node, ended=ended)

    async def end_isolation(
        self, cluster: str, node: str, *, who: str, why: str, origin: str = "", now: datetime
    ) -> StoredIsolation:
        """By an operator. Raises `NotFound`."""
        async with self._door.begin() as connection:
            by = IsolationEnd.OPERATOR
            return await isolations.end(connection, cluster, node, by=by, who=who, why=why, origin=origin, now=now)

    async def record_node_reconciliation(
        self, isolation_id: str, news: NodeReconciliation, *, cluster: str, who: str
    ) -> StoredIsolation:
        """Idempotent; what is said of an older generation changes nothing. Raises `NotFound`."""
        async with self._door.begin() as connection:
            return await isolations.record(connection, isolation_id, news, cluster=cluster, who=who)

    async def record_probe(
        self, cluster: str, node: str, *, passed: bool, who: str, why: str, origin: str = "", now: datetime
    ) -> StoredIsolation:
        """What the site's own test of an isolated node said. Raises `NotFound`."""
        async with self._door.begin() as connection:
            return await isolations.record_probe(
                connection, cluster, node, passed=passed, who=who, why=why, origin=origin, policy=self._policy, now=now
            )

    async def orphaned_drains(self, *, cluster: str = "") -> tuple[tuple[str, str, str], ...]:
        """(cluster, node, reason) of nodes that carry our drain while no isolation of them is known."""
        async with self._door.connect() as connection:
            return await isolations.orphaned(connection, cluster)

    async def breakers(self) -> tuple[StoredBreaker, ...]:
        """Those that have tripped."""
        async with self._door.connect() as connection:
            return await isolations.breakers(connection)

    async def reset_breaker(
        self, cluster: str, *, who: str, why: str, origin: str = "", now: datetime
    ) -> StoredBreaker:
        """Raises `NotFound` when it has not tripped."""
        async with self._door.begin() as connection:
            return await isolations.reset_breaker(connection, cluster, who=who, why=why, origin=origin, now=now)

    # operators

    async def enqueue_notices(
        self, channel: str, *, actions: Sequence[str], since: datetime, now: datetime, acted_only: bool = False
    ) -> int:
        """How many decisions since then are to be told on this channel and were not known to be."""
        async with self._door.begin() as connection:
            return await notifications.enqueue(
                connection, channel, actions=actions, since=since, now=now, acted_only=acted_only
            )

    async def claim_notice(
        self, channel: str, *, messages_per_minute: int, now: datetime, by_user: bool = False
    ) -> notifications.Claimed | None:
        """The next message to send, ours for `notifications.CLAIM_SECONDS`."""
        async with self._door.begin() as connection:
            return await notifications.claim(
                connection, channel, messages_per_minute=messages_per_minute, now=now, by_user=by_user
            )

    async def notice_sent(self, key: str, *, now: datetime) -> None:
        async with self._door.begin() as connection:
            await notifications.sent(connection, key, now=now)

    async def notice_failed(self, key: str, *, error: str, uncertain: bool, due_at: datetime, now: datetime) -> bool:
        """True: it is not tried again."""
        async with self._door.begin() as connection:
            return await notifications.failed(connection, key, error=error, uncertain=uncertain, due_at=due_at, now=now)

    async def pauses(self, now: datetime) -> tuple[Pause, ...]:
        """Those in force."""
        async with self._door.look() as connection:
            return await pauses.list_pauses(connection, now)

    async def pause(self, wanted: Pause, *, who: str, origin: str, now: datetime) -> Pause:
        async with self._door.begin() as connection:
            return await pauses.pause(connection, wanted, who=who, origin=origin, now=now)

    async def resume(self, cluster: str, *, who: str, why: str, origin: str, now: datetime) -> Pause:
        """End the pause of exactly this cluster; "" is the one of all. Raises `NotFound`."""
        async with self._door.begin() as connection:
            return await pauses.resume(connection, cluster, who=who, why=why, origin=origin, now=now)

    async def modes(self) -> tuple[ModeSetting, ...]:
        async with self._door.look() as connection:
            return await modes.list_modes(connection)

    async def find_attempt(
        self, *, cluster: str = "", job_id: str = "", number: int | None = None, decision_id: str = ""
    ) -> tuple[AttemptKey, AttemptRef]:
        """That of a decision (its whole id), the one named, or the newest that has begun. Raises `NotFound`."""
        async with self._door.connect() as connection:
            return await orders.find_attempt(
                connection, cluster=cluster, job_id=job_id, number=number, decision_id=decision_id
            )

    async def give_order(self, wanted: OrderWanted, *, who: str, why: str, origin: str, now: datetime) -> OrderGiven:
        """Idempotent. Raises `NotFound`, and `TooLate` with what has happened already."""
        async with self._door.begin() as connection:
            return await orders.give(connection, wanted, who=who, why=why, origin=origin, now=now)

    async def lift_order(self, order_id: str, *, who: str, why: str, origin: str, now: datetime) -> OrderGiven:
        """Idempotent. Raises `NotFound`."""
        async with self._door.begin() as connection:
            return await orders.lift(connection, order_id, who=who, why=why, origin=origin, now=now)

    async def orders(
        self, *, now: datetime, cluster: str = "", job_id: str = "", lifted: bool = False
    ) -> tuple[StoredOrder, ...]:
        """Newest first. `lifted`: also those that hold no longer."""
        async with self._door.connect() as connection:
            return await orders.list_orders(connection, cluster=cluster, job_id=job_id, lifted=lifted, now=now)

    async def correct(
        self, decision_id: str, wanted: Correction, *, origin: str
    ) -> tuple[corrections.StoredCorrection, bool]:
        """What the right verdict would have been; whether it says anything new. Raises `NotFound`."""
        async with self._door.begin() as connection:
            return await corrections.correct(connection, decision_id, wanted, origin=origin)

    async def corrections(
        self, *, cluster: str = "", decision_id: str = "", since: datetime | None = None
    ) -> tuple[corrections.StoredCorrection, ...]:
        """The newest one of each decision, newest first."""
        async with self._door.connect() as connection:
            return await corrections.list_corrections(connection, cluster=cluster, decision_id=decision_id, since=since)

    async def since_order(self, key: AttemptKey, count: int) -> SinceOrder:
        """What became of an attempt since it had so many orders."""
        async with self._door.moment() as connection:
            return await orders.since(connection, key, count)

    async def set_mode(self, setting: ModeSetting, *, who: str, why: str, origin: str, now: datetime) -> ModeChange:
        """Set or replace the setting for exactly these fields, with audit rows. Monitor for everything is a stop."""
        async with self._door.begin() as connection:
            return await modes.set_mode(connection, setting, who=who, why=why, origin=origin, now=now)

    async def unset_mode(self, place: ModeSetting, *, who: str, why: str, origin: str, now: datetime) -> ModeChange:
        """Remove the setting for exactly these fields, with an audit row. Raises `NotFound`."""
        async with self._door.begin() as connection:
            return await modes.unset_mode(connection, place, who=who, why=why, origin=origin, now=now)

    async def ever_reported(self, *, cluster: str = "", partition: str = "", job_id: str = "") -> bool:
        """Whether an agent has shown such a job, or a node of such a partition."""
        async with self._door.connect() as connection:
            return await modes.ever_reported(connection, cluster=cluster, partition=partition, job_id=job_id)

    async def left_on_paper(self, setting: ModeSetting, now: datetime) -> tuple[str, ...]:
        """Jobs that failed in monitor mode, are done with, and that their scheduler could restart still."""
        async with self._door.connect() as connection:
            return await modes.left_on_paper(connection, setting, now)

    # reports and earned autonomy

    async def shadow_evidence(self, wanted: ShadowWanted, rules: ShadowRules) -> ShadowEvidence:
        """Attempts that something was wrong with, and all that bears on what people did about them."""
        async with self._door.moment() as connection:
            return await shadow_queries.load_watched(connection, wanted, rules)

    async def node_aftermaths(
        self, places: Mapping[Place, datetime], rules: ShadowRules
    ) -> Mapping[Place, NodeAftermath]:
        """What became of nodes after the moments given."""
        async with self._door.moment() as connection:
            return await shadow_queries.node_aftermaths(connection, places, rules)

    async def record_shadow(self, key: AttemptKey, said: Said, *, origin: str, now: datetime) -> str:
        """Keep what somebody says was done about an attempt. Raises `NotFound`."""
        async with self._door.begin() as connection:
            return await shadow.record(connection, key, said, origin=origin, now=now)

    async def earned(self) -> tuple[Earned, ...]:
        """Which categories became autonomous by themselves, or no longer are."""
        async with self._door.look() as connection:
            return await shadow.earned(connection)

    async def set_earned(self, changes: Sequence[Earned]) -> tuple[Earned, ...]:
        """Those that were really changed, with audit rows."""
        async with self._door.begin() as connection:
            return await shadow.set_earned(connection, changes)

    async def forget_earned(self, *, why: str, now: datetime) -> int:
        """Nothing is earned any more. Returns how many categories were autonomous by it."""
        async with self._door.begin() as connection:
            return await shadow.forget_earned(connection, why=why, now=now)

    async def reliability_rows(self, wanted: ReliabilityWanted) -> ReliabilityRows:
        """Attempts that ran within a window, as far as reliability figures ask."""
        async with self._door.moment() as connection:
            found = await reliability_queries.load_reliability(connection, wanted)
        return await asyncio.to_thread(reliability_queries.facts_of, *found)

    # how the store is

    async def ping(self) -> None:
        """Returns when the database answers."""
        async with self._door.connect() as connection:
            await connection.execute(select(1))

    async def write_refused(self) -> str:
        """Why the database would take no write, "" where it would."""
        async with self._door.begin() as connection:
            return await writes.refused(connection)

    async def open_incident_count(self) -> int:
        async with self._door.connect() as connection:
            found = await connection.execute(
                select(func.count()).select_from(incidents).where(incidents.c.closed_at.is_(None))
            )
            return found.scalar_one()
