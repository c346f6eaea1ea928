"""What people ask of the store, for the audit API, pages and reports."""

import asyncio
from collections.abc import Sequence
from datetime import datetime

from sqlalchemy.ext.asyncio import AsyncConnection

from advisor.core.policy import Policy
from advisor.store import action_queries, audit_queries, event_queries, months, node_map, node_queries, signal_queries
from advisor.store.audit_filters import Spans
from advisor.store.engines import Door
from advisor.store.records import (
    ActionRow,
    AttemptRow,
    AuditFilter,
    AuditRecord,
    DecisionInputs,
    DecisionRow,
    EventFilter,
    IncidentRow,
    JobTimeline,
    Lemons,
    LemonsWanted,
    Listing,
    NodeEvents,
    NodeRow,
    Page,
    SignalFilter,
    SignalRow,
)

_SPANS_SECONDS = 300


class Audit:
    """Each answer is of one moment, and is read on connections that keep no tick waiting (`Database.asking`).

    Lists raise `CursorRefused`, `FilterRefused` and `PageRefused`.
    """

    def __init__(self, door: Door, policy: Policy) -> None:
        self._door = door
        self._policy = policy
        self._known_spans: dict[str, tuple[float, Spans]] = {}

    def forget(self) -> None:
        """What was known of the database may be of another one."""
        self._known_spans = {}

    async def decision(self, decision_id: str) -> DecisionRow | None:
        async with self._door.moment() as connection:
            return await audit_queries.get_decision(connection, decision_id)

    async def decisions(self, wanted: AuditFilter, page: Page) -> Listing[DecisionRow]:
        async with self._door.moment() as connection:
            return await audit_queries.list_decisions(
                connection, wanted, page, await self._spans(connection, "decisions")
            )

    async def decision_inputs(self, decision_id: str, *, held: Sequence[str] = ()) -> DecisionInputs | None:
        async with self._door.moment() as connection:
            return await audit_queries.get_decision_inputs(connection, decision_id, held)

    async def incident(self, incident_id: str) -> IncidentRow | None:
        async with self._door.moment() as connection:
            return await audit_queries.get_incident(connection, incident_id)

    async def incidents(self, wanted: AuditFilter, page: Page, *, only_open: bool = False) -> Listing[IncidentRow]:
        async with self._door.moment() as connection:
            return await audit_queries.list_incidents(connection, wanted, page, only_open=only_open)

    async def attempt(self, *, cluster: str, job_id: str, number: int, job_key: str = "") -> AttemptRow | None:
        """By `job_key` where given, else of the job that had the id last."""
        async with self._door.moment() as connection:
            return await audit_queries.get_attempt(
                connection, cluster=cluster, job_id=job_id, number=number, job_key=job_key
            )

    async def attempts(self, wanted: AuditFilter, page: Page) -> Listing[AttemptRow]:
        async with self._door.moment() as connection:
            return await audit_queries.list_attempts(connection, wanted, page)

    async def node(self, cluster: str, name: str, *, now: datetime) -> NodeRow | None:
        async with self._door.moment() as connection:
            return await node_queries.get_node(connection, cluster, name, policy=self._policy, now=now)

    async def nodes(self, wanted: AuditFilter, page: Page, *, now: datetime) -> Listing[NodeRow]:
        """Nodes with a history, newest implication first."""
        async with self._door.moment() as connection:
            return await node_queries.list_nodes(connection, wanted, page, policy=self._policy, now=now)

    async def node_map(self, *, cluster: str = "", now: datetime) -> node_map.NodeMap:
        """Every node with its state, score and isolation."""
        async with self._door.moment() as connection:
            return await node_map.node_map(connection, cluster, policy=self._policy, now=now)

    async def lemons(self, wanted: LemonsWanted, *, now: datetime) -> Lemons:
        """Nodes that fail again and again by themselves, worst first."""
        async with self._door.moment() as connection:
            return await node_queries.list_lemons(connection, wanted, policy=self._policy, now=now)

    async def signals(self, wanted: SignalFilter, page: Page) -> Listing[SignalRow]:
        """Evidence of incidents, newest incident first. A page can be short while there is a cursor."""
        async with self._door.moment() as connection:
            return await signal_queries.list_signals(connection, wanted, page)

    async def actions(self, wanted: AuditFilter, page: Page) -> Listing[ActionRow]:
        """What came of advice, newest decision first. `status` and `reason` are those of what came of it."""
        async with self._door.moment() as connection:
            spans = await self._spans(connection, "reconciliations")
            return await action_queries.list_actions(connection, wanted, page, spans)

    async def records(self, wanted: EventFilter, page: Page) -> Listing[AuditRecord]:
        """Who did what, newest first."""
        async with self._door.moment() as connection:
            return await action_queries.list_audit(connection, wanted, page, await self._spans(connection, "audit"))

    async def job_timeline(
        self, *, cluster: str, job_id: str, job_key: str = "", attempts_max: int
    ) -> JobTimeline | None:
        """Of the newest attempts. By `job_key` where given, else of the job that had the id last."""
        async with self._door.moment() as connection:
            return await event_queries.job_timeline(
                connection, cluster=cluster, job_id=job_id, job_key=job_key, attempts_max=attempts_max
            )

    async def node_history(
        self, cluster: str, name: str, wanted: EventFilter, page: Page, *, now: datetime
    ) -> NodeEvents | None:
        """Everything that is known of it, newest first. Of `wanted`, the times count."""
        async with self._door.moment() as connection:
            return await event_queries.node_history(
                connection, cluster, name, wanted, page, policy=self._policy, now=now
            )

    async def _spans(self, connection: AsyncConnection, table: str) -> Spans:
        """As they were some minutes ago: a part that is new lies in the newest span, one that went is empty."""
        now = asyncio.get_running_loop().time()
        known = self._known_spans.get(table)
        if known is None or now - known[0] > _SPANS_SECONDS:
            known = now, await months.spans(connection, table)
            self._known_spans[table] = known
        return known[1]
