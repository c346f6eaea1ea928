"""The one door to the database: every query of the service goes through `Store`."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

from advisor.core.modes import ModeSetting
from advisor.core.policy import Policy
from advisor.store.records import (
    AdviceRow,
    AgentMode,
    AttemptKey,
    AttemptRef,
    AttemptRow,
    AuditEvent,
    AuditFilter,
    CommittedDecision,
    DecisionInputs,
    DecisionRecord,
    DecisionRow,
    DetectorState,
    IncidentRow,
    Listing,
    Milestone,
    NodeRow,
    ObservedJob,
    ObservedNode,
    Page,
    Reconciliation,
    Recorded,
    StoredAgent,
    StoredAttempt,
)


class Store:
    """Queries and transactions over one Postgres. Safe to share between tasks of one event loop."""

    incarnation: str

    @classmethod
    async def open(cls, url: str, *, policy: Policy | None = None) -> "Store":
        """Connect to a migrated database. `policy` gives the history's half-life and window."""
        raise NotImplementedError

    async def close(self) -> None:
        raise NotImplementedError

    async def new_incarnation(self, *, who: str, why: str, now: datetime) -> str:
        """After a restored backup: generations of the former incarnation no longer compare."""
        raise NotImplementedError

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
        raise NotImplementedError

    async def heartbeat(self, *, cluster: str, session: str, mode: AgentMode, now: datetime) -> bool:
        """False: the session is not known (register again)."""
        raise NotImplementedError

    async def agents(self) -> tuple[StoredAgent, ...]:
        raise NotImplementedError

    async def record_observations(
        self,
        cluster: str,
        jobs: Sequence[ObservedJob],
        nodes: Sequence[ObservedNode],
        *,
        complete: bool,
        now: datetime,
    ) -> Recorded:
        raise NotImplementedError

    async def resolve(self, refs: Sequence[AttemptRef]) -> tuple[AttemptKey | None, ...]:
        """The advisor's keys for the scheduler's names, in order; None where nothing is known."""
        raise NotImplementedError

    async def watched(self, now: datetime) -> tuple[AttemptKey, ...]:
        raise NotImplementedError

    async def load(self, keys: Sequence[AttemptKey], *, now: datetime) -> Mapping[AttemptKey, StoredAttempt]:
        raise NotImplementedError

    async def save_states(self, states: Mapping[AttemptKey, DetectorState], *, now: datetime) -> None:
        raise NotImplementedError

    async def commit_decision(self, record: DecisionRecord) -> CommittedDecision:
        """Raises `Conflict` when the newest generation is not `record.seen_generation`."""
        raise NotImplementedError

    async def expire_advice(self, now: datetime) -> int:
        """Close advice past its time to live as EXPIRED; once per tick. Returns how many."""
        raise NotImplementedError

    async def open_advice(self, cluster: str, now: datetime) -> tuple[AdviceRow, ...]:
        raise NotImplementedError

    async def record_reconciliation(self, advice_id: str, reconciliation: Reconciliation, *, who: str) -> AttemptKey:
        """Idempotent. Raises `NotFound` for an unknown advice id."""
        raise NotImplementedError

    async def record_milestones(self, milestones: Mapping[AttemptKey, Sequence[Milestone]]) -> None:
        """The first one of each kind stays."""
        raise NotImplementedError

    async def modes(self) -> tuple[ModeSetting, ...]:
        raise NotImplementedError

    async def set_mode(self, setting: ModeSetting, *, who: str, why: str, origin: str, now: datetime) -> ModeSetting:
        raise NotImplementedError

    async def decision(self, decision_id: str) -> DecisionRow | None:
        raise NotImplementedError

    async def decisions(self, wanted: AuditFilter, page: Page) -> Listing[DecisionRow]:
        raise NotImplementedError

    async def decision_inputs(self, decision_id: str) -> DecisionInputs | None:
        raise NotImplementedError

    async def incident(self, incident_id: str) -> IncidentRow | None:
        raise NotImplementedError

    async def incidents(self, wanted: AuditFilter, page: Page) -> Listing[IncidentRow]:
        raise NotImplementedError

    async def attempt(self, *, cluster: str, job_id: str, number: int, job_key: str = "") -> AttemptRow | None:
        """By `job_key` where given, else the newest job that had the id."""
        raise NotImplementedError

    async def attempts(self, wanted: AuditFilter, page: Page) -> Listing[AttemptRow]:
        raise NotImplementedError

    async def node(self, cluster: str, name: str, *, now: datetime) -> NodeRow | None:
        raise NotImplementedError

    async def nodes(self, wanted: AuditFilter, page: Page, *, now: datetime) -> Listing[NodeRow]:
        raise NotImplementedError

    async def append_audit(self, event: AuditEvent) -> None:
        raise NotImplementedError

    async def open_incident_count(self) -> int:
        raise NotImplementedError
