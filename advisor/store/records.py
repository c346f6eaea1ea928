"""Values that go into the store and come out of it. All frozen; times are aware UTC.

What the core reads is in `advisor.core.model`; these carry it to and from the tables, and hold what only the service
and the agent talk about (observations, reconciliations, milestones).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Generic, NamedTuple, TypeVar

from advisor.core.model import (
    Attempt,
    Decision,
    ExitStatus,
    Job,
    NodeFact,
    OpenAdvice,
    Order,
    OurStop,
    PastAttempt,
    Progress,
    Signal,
    Successor,
)
from advisor.core.words import Action, AttemptState, IsolationEnd, Mode, NodeState

Row = TypeVar("Row")

PAGE_SIZE_MAX = 250
PAGE_SIZE_DEFAULT = 100


class Notice(StrEnum):
    """Which path an observation came by. HOOK: the attempt has ended, its outcome may not be visible yet. ACCOUNTING:
    it is over, and the scheduler does not show it any more.
    """

    POLL = "poll"
    HOOK = "hook"
    ACCOUNTING = "accounting"


class AgentMode(StrEnum):
    OBSERVE = "observe"
    ACT = "act"


class ReconciliationStatus(StrEnum):
    """What came of an advice; values as in the contract, lower case."""

    PENDING = "pending"
    APPLIED = "applied"
    VERIFIED = "verified"
    SUPERSEDED = "superseded"
    EXPIRED = "expired"
    ABANDONED = "abandoned"
    WITHHELD = "withheld"
    ALREADY_SATISFIED = "already_satisfied"


class ReconciliationReason(StrEnum):
    """Why a reconciliation has its status; values as in the contract, lower case."""

    UNSPECIFIED = "unspecified"
    NOTHING_TO_DO = "nothing_to_do"
    MONITOR_MODE = "monitor_mode"
    AGENT_OBSERVES = "agent_observes"
    OUT_OF_SCOPE = "out_of_scope"
    CANCELLED = "cancelled"
    ATTEMPT_MOVED_ON = "attempt_moved_on"
    OTHER_JOB = "other_job"
    GONE = "gone"
    HELD = "held"
    NOT_REQUEUEABLE = "not_requeueable"
    NOT_BATCH = "not_batch"
    STILL_COMPLETING = "still_completing"
    CAP_REQUEUES = "cap_requeues"
    CAP_EXCLUSIONS = "cap_exclusions"
    CAPACITY = "capacity"
    TOO_LATE = "too_late"
    SCHEDULER_REFUSED = "scheduler_refused"
    SCHEDULER_UNAVAILABLE = "scheduler_unavailable"
    PERMISSION = "permission"
    OBSERVED = "observed"
    NEWER_GENERATION = "newer_generation"
    TIME_TO_LIVE = "time_to_live"
    ALREADY_REQUEUED = "already_requeued"
    ALREADY_STOPPED = "already_stopped"
    IN_JOB_RESTART = "in_job_restart"
    LIVE_ATTEMPT = "live_attempt"
    PAUSED = "paused"
    MAINTENANCE = "maintenance"
    STOP_FILE = "stop_file"
    SAVING = "saving"
    DRY_RUN = "dry_run"
    CAP_NODES = "cap_nodes"
    DRAINED_BY_OTHERS = "drained_by_others"
    REPAIR_SEEN = "repair_seen"
    DEPENDENT_RELEASED = "dependent_released"
    OPERATOR = "operator"
    STOP_UNREPORTED = "stop_unreported"


class MilestoneKind(StrEnum):
    """Moments of one recovery, each recorded at most once per attempt; values as in the contract, lower case."""

    FAULT_VISIBLE = "fault_visible"
    DETECTED = "detected"
    ADVISED = "advised"
    REQUEUE_ACCEPTED = "requeue_accepted"
    UPDATE_ACCEPTED = "update_accepted"
    NODES_RELEASED = "nodes_released"
    ELIGIBLE = "eligible"
    RUNNING = "running"
    FIRST_PROGRESS = "first_progress"
    CAUGHT_UP = "caught_up"


class AttemptKey(NamedTuple):
    """One attempt by the advisor's own names. A tuple: a tick hashes tens of thousands of them, fast."""

    job_key: str
    number: int

    def __str__(self) -> str:
        return f"{self.job_key}/{self.number}"


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptRef:
    """One attempt by the scheduler's names. `submitted_at` None: not known to whoever speaks (a hook)."""

    cluster: str
    job_id: str
    number: int
    user: str
    submitted_at: datetime | None = None
    job_key: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedJob:
    """One job as an agent saw it at `observed_at`. Unset fields are not known, never "none"."""

    job_id: str
    attempt: int
    submitted_at: datetime | None
    user: str
    state: AttemptState
    observed_at: datetime
    notice: Notice = Notice.POLL
    eligible_at: datetime | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None
    exit: ExitStatus | None = None
    nodes: tuple[str, ...] | None = None
    nodes_requested: int | None = None
    tasks: int | None = None
    excluded_nodes: tuple[str, ...] = ()
    our_excluded_nodes: tuple[str, ...] = ()
    partition: str = ""
    account: str = ""
    name: str = ""
    array_job_id: str = ""
    array_task: int | None = None
    het_job_id: str = ""
    het_offset: int | None = None
    requeueable: bool | None = None
    batch: bool | None = None
    held: bool = False
    pending_reason: str = ""
    stdout_path: str = ""
    stderr_path: str = ""
    job_rules: str = ""  # a path, or JSON
    in_scope: bool = False
    scope_reason: str = ""
    restarts_max: int | None = None
    marked_generation: int = 0
    marked_attempt: int = 0
    nodes_fitting: int | None = None
    user_id: int | None = None
    waits_for: tuple[str, ...] = ()  # jobs beside which it must not run: ids, ARRAY_TASK, ARRAY_*
    singleton: bool = False  # likewise all others of its user and name
    gpus: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedNode:
    name: str
    state: NodeState
    observed_at: datetime
    reason: str = ""
    partitions: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """What a report changed: attempts worth looking at now, and one line per refused observation. `withdrawn`: those
    whose requeue the scheduler has forgotten."""

    changed: tuple[AttemptKey, ...] = ()
    withdrawn: tuple[AttemptKey, ...] = ()
    refused: tuple[str, ...] = ()
    accepted: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StopFile:
    """On an agent's host: while it is there, the agent acts on nothing. `since` is None where it could not tell."""

    why: str
    since: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredAgent:
    cluster: str
    host: str
    session: str
    version: str
    mode: AgentMode
    scheduler: str
    requeue_delay: timedelta | None
    job_memory: timedelta | None
    missing_rights: tuple[str, ...]
    registered_at: datetime
    last_seen_at: datetime
    stop_file: StopFile | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredAttempt:
    """All that a Snapshot needs except logs. `job.mode` is left at monitor: the mode depends on the category."""

    key: AttemptKey
    job: Job
    attempt: Attempt
    successor: Successor | None = None
    past: tuple[PastAttempt, ...] = ()
    nodes: tuple[NodeFact, ...] = ()
    advice: OpenAdvice | None = None
    advice_expires_at: datetime | None = None
    remembered_until: datetime | None = None  # by its scheduler; None while it has not ended
    generation: int = 0  # newest one committed; pass it to commit_decision
    user_excluded: tuple[str, ...] = ()
    other_nodes: tuple[NodeFact, ...] = ()  # outside the allocation, named by exclusions
    dependents_running: bool = False
    nodes_fitting: int | None = None
    job_name: str = ""
    user_id: int | None = None
    stdout_path: str = ""
    stderr_path: str = ""
    job_rules: str = ""  # by the job's comment: a path, chosen by its user, or JSON
    detector_state: bytes = b""  # b"": none saved yet
    predecessor_state: bytes = b""  # of attempt number - 1, b"" when there is none
    signals: tuple[Signal, ...] = ()
    progress: Progress = field(default_factory=Progress)
    foreign: int = 0
    milestones: Mapping[MilestoneKind, datetime] = field(default_factory=dict)
    orders: tuple[Order, ...] = ()  # of operators, in force for this attempt
    orders_count: int = 0  # given and lifted so far; pass it to commit_decision
    ordered: bool = False  # there were some since the newest decision
    stop: OurStop | None = None  # of this attempt, or of the one before
    observed_at: datetime | None = None
    forgotten: bool = False  # the scheduler no longer knows the job
    undone: bool = False  # what came of the newest decision: the scheduler has forgotten the requeue


@dataclass(frozen=True, slots=True, kw_only=True)
class Milestone:
    kind: MilestoneKind
    at: datetime
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DetectorState:
    """What a tick leaves behind for the next one. Replaces what was there."""

    state: bytes
    progress: Progress = field(default_factory=Progress)
    signals: tuple[Signal, ...] = ()
    foreign: int = 0
    seen_over: bool = False  # the tick that leaves it knew that the attempt is over, and stored what it decided then


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionRecord:
    """A decision to be committed with the exact bytes it came from (canonical JSON of `advisor.core.codec`)."""

    key: AttemptKey
    seen_generation: int  # StoredAttempt.generation of the snapshot that was decided on
    decision: Decision
    analysis_json: str
    inputs: bytes
    rules: bytes
    policy: bytes
    build: str
    created_at: datetime
    time_to_live: timedelta
    milestones: tuple[Milestone, ...] = ()  # recorded in the same transaction; the first one of each kind stays
    seen_orders: int = 0  # StoredAttempt.orders_count of the snapshot
    who: str = "advisor"


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittedDecision:
    decision_id: str
    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Reconciliation:
    status: ReconciliationStatus
    reason: ReconciliationReason
    at: datetime
    detail: str = ""
    excluded_nodes: tuple[str, ...] = ()
    dropped_nodes: tuple[str, ...] = ()

    @property
    def final(self) -> bool:
        """True when nothing more will be tried for this advice."""
        match self.status:
            case ReconciliationStatus.PENDING | ReconciliationStatus.APPLIED:
                return False
            case ReconciliationStatus.WITHHELD:
                return self.reason not in _WITHHELD_FOR_NOW
            case _:
                return True


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeReconciliation:
    """What an agent says came of one generation of what is wanted of a node."""

    generation: int
    status: ReconciliationStatus
    reason: ReconciliationReason
    at: datetime
    detail: str = ""

    @property
    def final(self) -> bool:
        return self.status in {ReconciliationStatus.VERIFIED, ReconciliationStatus.ALREADY_SATISFIED}


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredIsolation:
    """One isolation of one node. Ended and still `open`: our drain is yet to be undone."""

    isolation_id: str
    cluster: str
    node: str
    generation: int
    dry_run: bool
    category: str
    why: str
    job_id: str
    job_key: str  # "" where somebody isolated it by hand
    opened_by: str = ""  # who did
    partition: str = ""  # of that job, and its account, for modes
    account: str = ""
    opened_at: datetime
    expires_at: datetime
    open: bool
    status: ReconciliationStatus
    reason: ReconciliationReason
    detail: str = ""
    drained_at: datetime | None = None  # first seen drained by us
    ended_at: datetime | None = None
    ended_by: IsolationEnd | None = None
    ended_why: str = ""
    probed_at: datetime | None = None
    probe_passed: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredBreaker:
    """A breaker that has tripped."""

    cluster: str
    tripped_at: datetime
    why: str


# The agent looks again while the advice lives: what withholds it now can pass.
_WITHHELD_FOR_NOW = frozenset(
    {
        ReconciliationReason.STILL_COMPLETING,
        ReconciliationReason.LIVE_ATTEMPT,
        ReconciliationReason.CAP_REQUEUES,
        ReconciliationReason.CAPACITY,
        ReconciliationReason.SCHEDULER_UNAVAILABLE,
        ReconciliationReason.PAUSED,
        ReconciliationReason.MAINTENANCE,
        ReconciliationReason.STOP_FILE,
        ReconciliationReason.SAVING,
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AdviceRow:
    """One advice as published: the newest generation of its attempt."""

    advice_id: str
    attempt: AttemptRef
    generation: int
    decision: Decision
    created_at: datetime
    expires_at: datetime
    status: ReconciliationStatus
    applied: bool
    partition: str = ""
    account: str = ""

    @property
    def key(self) -> AttemptKey:
        return AttemptKey(job_key=self.attempt.job_key, number=self.attempt.number)


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditFilter:
    """Unset = all. A list that cannot answer a field refuses it (`FilterRefused`), never ignores it."""

    cluster: str = ""
    job_id: str = ""
    job_key: str = ""
    user: str = ""
    partition: str = ""
    node: str = ""
    category: str = ""
    action: Action | None = None
    reason: str = ""
    mode: Mode | None = None
    status: ReconciliationStatus | None = None
    since: datetime | None = None
    until: datetime | None = None
    account: str = ""
    array_job_id: str = ""
    array_task: int | None = None  # of that array


@dataclass(frozen=True, slots=True, kw_only=True)
class SignalFilter:
    """Of what incidents, and which of their signals. Unset = all."""

    incidents: AuditFilter = AuditFilter()
    rule: str = ""
    trust: str = ""
    role: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class EventFilter:
    """Of the audit log. `everything`: also what the advisor and its agents write for every decision."""

    cluster: str = ""
    who: str = ""
    what: str = ""
    subject: str = ""
    since: datetime | None = None
    until: datetime | None = None
    everything: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """`size` 1..250; 0 = 100. `cursor`: what the last listing returned, "" for the first page."""

    size: int = 0
    cursor: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing(Generic[Row]):
    rows: tuple[Row, ...]
    next_cursor: str  # "" at the end


@dataclass(frozen=True, slots=True, kw_only=True)
class UnreadDecision:
    """A decision that another build wrote in a form that this one does not know: what its columns tell, as text."""

    why: str
    action: str
    reason: str
    category: str
    mode: str
    excluded_nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionRow:
    """A decision with what came of it."""

    decision_id: str
    attempt: AttemptRef
    partition: str
    generation: int
    decision: Decision | UnreadDecision
    analysis_json: str
    incident_id: str  # "" when nothing was wrong
    inputs_hash: str
    rules_hash: str
    policy_hash: str
    build: str
    created_at: datetime
    expires_at: datetime
    status: ReconciliationStatus
    reconciliations: tuple[Reconciliation, ...] = ()  # oldest first
    milestones: tuple[Milestone, ...] = ()  # of the attempt, by time
    in_scope: bool = False  # of its job, by now
    undone: bool = False  # the scheduler has forgotten what came of it


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionInputs:
    """What `advisor replay` needs, byte for byte."""

    decision_id: str
    inputs_hash: str
    inputs: bytes
    rules_hash: str
    rules: bytes  # b"" for a caller that holds them, by their hash; so with the policy
    policy_hash: str
    policy: bytes
    decision: bytes
    build: str


@dataclass(frozen=True, slots=True, kw_only=True)
class IncidentRow:
    incident_id: str
    attempt: AttemptRef
    kind: str
    category: str
    root_cause: str
    opened_at: datetime
    closed_at: datetime | None
    implicated_nodes: tuple[str, ...]
    signals: tuple[Signal, ...]  # the evidence, decisive first
    unreadable: str = ""  # why its signals cannot be read by this build


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditEvent:
    """Who did what, why, from where. Append-only."""

    at: datetime
    who: str
    what: str
    why: str = ""
    origin: str = ""
    cluster: str = ""
    subject: str = ""
    detail: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class SignalRow:
    incident_id: str
    attempt: AttemptRef
    partition: str
    signal: Signal


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionRow:
    """What came of one advice, as it was told once."""

    seq: int
    decision_id: str
    attempt: AttemptRef
    partition: str
    generation: int
    action: str
    category: str
    decision_reason: str
    mode: str
    decided_at: datetime
    outcome: Reconciliation


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditRecord:
    record_id: str
    event: AuditEvent


@dataclass(frozen=True, slots=True, kw_only=True)
class EventRow:
    """One moment in the life of a job or a node. `id` tells events of one moment and kind from each other."""

    at: datetime
    kind: str
    id: str
    word: str = ""
    reason: str = ""
    attempt: AttemptRef | None = None
    decision_id: str = ""
    incident_id: str = ""
    isolation_id: str = ""
    who: str = ""
    node: str = ""
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobTimeline:
    """Oldest first."""

    attempts: tuple["AttemptRow", ...]
    events: tuple[EventRow, ...]
    truncated: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeEvents:
    node: "NodeRow"
    events: tuple[EventRow, ...]  # newest first
    next_cursor: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptRow:
    attempt: AttemptRef
    state: AttemptState
    started_at: datetime | None
    ended_at: datetime | None
    nodes: tuple[str, ...]
    progress: Progress
    foreign: int
    partition: str
    job_name: str
    in_scope: bool
    milestones: tuple[Milestone, ...] = ()
    withdrawn: bool = False  # the scheduler has forgotten the requeue that made it
    remembered_until: datetime | None = None  # by its scheduler; None while it is not over


@dataclass(frozen=True, slots=True, kw_only=True)
class ImplicationRow:
    """One node named by one incident. `weight` 0: a later generation no longer names it."""

    node: str
    incident_id: str
    attempt: AttemptRef
    category: str
    rule: str
    trust: str
    role: str
    weight: float
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRow:
    cluster: str
    name: str
    state: NodeState
    state_since: datetime | None
    implications: tuple[ImplicationRow, ...]  # newest first, at most 100
    last_implicated_at: datetime | None
    score: float = 0.0  # decayed, now, over all jobs


@dataclass(frozen=True, slots=True, kw_only=True)
class LemonsWanted:
    cluster: str = ""
    node: str = ""
    failures_min: int = 3
    limit: int = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class LemonRow:
    """A node that fails again and again by itself. `fails_within_week`: a chance, None while it is not up."""

    cluster: str
    name: str
    score: float
    jobs: int
    users: int
    failures: tuple[ImplicationRow, ...]  # newest first, at most 100
    up_since: datetime | None
    fails_within_week: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Lemons:
    """Worst first. `capped`: the oldest failures within the window were not looked at."""

    rows: tuple[LemonRow, ...]
    capped: bool
