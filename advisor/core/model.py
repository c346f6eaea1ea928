"""Values that the core reads and returns. All frozen; times are aware UTC; sizes carry their unit.

The path of a fact: a line or a sample becomes a `Signal` (`scan`), the facts of one attempt become a `Snapshot`
(gathered by `advisor.pipeline`), and `decide(snapshot, rules, policy, now)` returns a `Decision`. Everything here
can be written as canonical JSON and read back to an equal value (`codec`): that is what `advisor replay` rests on.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from advisor.core.course import Numbers, Pace, Throughput
from advisor.core.words import (
    Action,
    AttemptState,
    Category,
    IncidentKind,
    Mode,
    NodeState,
    OrderKind,
    Reason,
    Role,
    Trust,
    UnavailableReason,
    WithheldReason,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Unavailable:
    """A source that did not answer. Never means healthy, finished, or progressing."""

    source: str
    reason: UnavailableReason
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceReport:
    """What one source gave for one attempt. `newest_at`: time of its newest fact, None if it had none."""

    source: str
    trust: Trust
    unavailable: Unavailable | None = None
    newest_at: datetime | None = None
    lines: int = 0
    foreign: int = 0  # facts that named nodes outside the allocation: dropped and counted
    capped: bool = False  # a bound bit: not everything was read
    problems: tuple[str, ...] = ()  # what is wrong with it although it answered


@dataclass(frozen=True, slots=True, kw_only=True)
class Signal:
    """One event that a rule recognised, or one fact from the scheduler.

    `at` is when it happened as far as the source tells (None: the line has no usable time), `seen_at` when we read it,
    `written_at` when its bytes could be read at the earliest that its source tells (None: not told).
    `rank` is a global rank. `nodes` are the nodes the event is about (not merely mentions), already folded to short
    names. `peers` are nodes named as the other end. `order` is the position within its source: earlier is smaller.
    """

    id: str  # content hash: the same line at the same place has the same id
    rule: str
    trust: Trust
    source: str
    seen_at: datetime
    written_at: datetime | None = None
    at: datetime | None = None
    rank: int | None = None
    gpu: int | None = None
    nodes: tuple[str, ...] = ()
    peers: tuple[str, ...] = ()
    file: str = ""
    line: int = 0
    text: str = ""  # normalised, capped
    role: Role = Role.SYMPTOM  # of the rule that made it, the Xid table applied
    category: Category = Category.UNKNOWN
    fields: Mapping[str, str] = field(default_factory=dict)  # named captures; "ranks": all ranks of a counted repeat
    count: int = 1  # lines alike (numbers masked) that this one stands for
    order: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far the attempt came, from its progress lines. Steps are the job's own numbers."""

    first_step: int | None = None
    last_step: int | None = None
    first_at: datetime | None = None
    last_at: datetime | None = None  # when the last step was seen
    interval_seconds: float | None = None  # usual time between steps, None with fewer than three
    checkpoint_step: int | None = None  # newest completed save or the one resumed from
    resumed_step: int | None = None  # what the first step followed, done by an earlier attempt or 0
    in_job_restarts: int = 0
    last_line_at: datetime | None = None  # any output at all
    news_at: datetime | None = None  # before the first step: output that is no repetition, to a minute
    quiet_seconds: float = 0.0  # offline: of nothing but chatter before the newest line
    finished: bool = False  # the job said that training is complete
    saving: bool = False  # a checkpoint save began and neither its end nor a later step was seen
    cleared_at: datetime | None = None  # what was read before was followed by at least two further steps
    cleared_lines: Mapping[str, int] = field(default_factory=dict)  # the same by file: lines up to this one
    broken: bool = False  # a crash line since the newest step
    pace: Pace = field(default_factory=Pace)  # how often progress lines come, and what was announced since the newest
    throughput: Throughput = field(default_factory=Throughput)
    numbers: Numbers = field(default_factory=Numbers)
    checkpoints: tuple[int, ...] = ()  # the newest known, oldest first


@dataclass(frozen=True, slots=True, kw_only=True)
class ExitStatus:
    code: int
    signal: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What does not change between attempts. `key` is the advisor's own key."""

    key: str
    cluster: str
    job_id: str
    user: str
    partition: str = ""
    account: str = ""
    batch: bool | None = None  # None = not known
    requeueable: bool | None = None
    in_scope: bool = False
    restarts_max: int | None = None  # the job's own limit
    mode: Mode = Mode.MONITOR
    nodes_requested: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One execution. `nodes` is None when the allocation is not known, which is not the same as empty."""

    number: int
    state: AttemptState
    nodes: tuple[str, ...] | None = None
    exit: ExitStatus | None = None
    submitted_at: datetime | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None  # also set by a hook while the outcome is not visible yet
    world_size: int | None = None
    tasks_per_node: int | None = None
    rank_nodes: Mapping[int, str] = field(default_factory=dict)
    silent_seconds: float | None = None  # since the last line; offline bundles only
    held: bool = False
    pending_reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Successor:
    """The next attempt, when the scheduler already shows it. `by_us`: our mark is on it."""

    number: int
    state: AttemptState
    by_us: bool
    eligible_at: datetime | None = None
    excluded_nodes: tuple[str, ...] = ()
    held: bool = False
    stopped: bool = False  # by its own advice of ours, or it may just be: its cancel is nobody else's


@dataclass(frozen=True, slots=True, kw_only=True)
class PastAttempt:
    """An earlier attempt of this job, as decided then."""

    number: int
    category: Category
    fingerprint: str  # of the root cause; equal for the same failure, "" when unknown
    reason: Reason | None
    action: Action | None
    implicated_nodes: tuple[str, ...] = ()
    excluded_nodes: tuple[str, ...] = ()
    trusted: bool = False  # nodes implicated by trusted evidence
    nodes: tuple[str, ...] = ()
    first_step: int | None = None
    last_step: int | None = None
    checkpoint_step: int | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFact:
    """What the scheduler and our history say about one node of the allocation, now."""

    name: str
    state: NodeState
    score: float = 0.0  # decayed implication score from *other* jobs
    other_jobs: int = 0  # distinct other jobs that implicated it within the history window
    units: tuple[str, ...] = ()  # the GPUs that all of them named; empty where one of them meant the node
    since: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenAdvice:
    """The newest advice already given for this attempt."""

    generation: int
    action: Action
    exclude_nodes: tuple[str, ...]
    category: Category
    reason: Reason
    created_at: datetime
    applied: bool  # the scheduler accepted the restart or stop


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What an operator said about this job and has not taken back."""

    id: str
    kind: OrderKind
    who: str
    at: datetime
    attempt: int  # that it is about; of a reset budget, the first whose spending counts
    why: str = ""
    action: Action | None = None  # override: to be done; withdraw: not to be done
    category: Category | None = None  # withdraw: for this cause
    node: str = ""  # exclude, spare
    ends_live: bool = False  # override: said knowing that a live attempt is ended
    ceiling: bool = False  # reset_budget: of the job's ceiling, too


@dataclass(frozen=True, slots=True, kw_only=True)
class OurStop:
    """A stop that we advised, which the scheduler accepted or an agent may be carrying out at this moment.

    `unreported`: it is closed, and nobody has said, or can say, whether it was carried out.
    """

    attempt: int  # that was advised on: the snapshot's, or the one before, whose restart by us was to be called off
    reason: Reason
    applied: bool  # the scheduler accepted it
    order: Order | None = None  # of the operator whose stop it is
    unreported: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """All that is known about one attempt at one moment: the only input of a decision beside rules and policy."""

    job: Job
    attempt: Attempt
    signals: tuple[Signal, ...] = ()
    progress: Progress = Progress()
    sources: tuple[SourceReport, ...] = ()
    successor: Successor | None = None
    past: tuple[PastAttempt, ...] = ()  # oldest first
    nodes: tuple[NodeFact, ...] = ()
    advice: OpenAdvice | None = None
    nodes_fitting: int | None = None  # up nodes that fit the job, exclusions not counted; None = not known
    user_excluded: tuple[str, ...] = ()  # the user's own ExcNodeList
    other_nodes: tuple[NodeFact, ...] = ()  # not of the allocation, as far as exclusions name them: their states
    dependents_running: bool = False  # a successor that must not run beside it runs
    orders: tuple[Order, ...] = ()  # of operators, in force for this attempt, oldest first
    offline: bool = False  # `analyze` on a bundle: an unknown allocation is taken from launcher and kernel prefixes
    stop: OurStop | None = None

    @property
    def stopped_by_us(self) -> bool:
        """The attempt was cancelled, and that was our doing, or may have been. The scheduler does not say whose."""
        return self.stop is not None and self.attempt.state is AttemptState.CANCELLED


@dataclass(frozen=True, slots=True, kw_only=True)
class Incident:
    kind: IncidentKind
    signals: tuple[Signal, ...] = ()  # every relevant one in causal order, first cause first
    visible_at: datetime | None = None  # when the earliest evidence could be read
    detected_at: datetime | None = None
    ended: bool = False  # the attempt is over
    summary: str = ""
    trusted_fatal: bool = False  # trusted evidence that a GPU or a node is gone, whatever its ranks still think


@dataclass(frozen=True, slots=True, kw_only=True)
class Hypothesis:
    category: Category
    root_cause: str  # one sentence
    confidence: float  # 0..1
    nodes: tuple[str, ...] = ()
    ranks: tuple[int, ...] = ()
    gpus: tuple[str, ...] = ()  # "node:index"
    evidence: tuple[str, ...] = ()  # signal ids
    why_not: str = ""  # why it lost; empty for the winner


@dataclass(frozen=True, slots=True, kw_only=True)
class Implication:
    """One node named by one incident. weight = trust × role × confidence, 0..1."""

    node: str
    weight: float
    trust: Trust
    role: Role
    category: Category
    rule: str
    evidence: tuple[str, ...] = ()
    unit: str = ""  # the GPU that it is about, by index or PCI address; "" where the whole node is


@dataclass(frozen=True, slots=True, kw_only=True)
class Attribution:
    category: Category
    root_cause: str
    confidence: float
    nodes: tuple[str, ...] = ()  # most certain first
    ranks: tuple[int, ...] = ()
    gpus: tuple[str, ...] = ()
    evidence: tuple[str, ...] = ()  # signal ids, decisive first
    alternatives: tuple[Hypothesis, ...] = ()  # the runner-up first
    implications: tuple[Implication, ...] = ()
    trusted: bool = False  # nodes are implicated by trusted evidence
    certain: bool = False  # this exact failure will happen again (start-up configuration error on all ranks)
    deterministic: bool = False  # looks it: gets one confirmation retry
    transient_storage: bool = False  # shared storage is down: wait, exclude nobody
    fingerprint: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Withheld:
    node: str
    reason: WithheldReason
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Isolation:
    exclude_for_job: tuple[str, ...] = ()  # all that the next attempt avoids for our sake, most certain first
    isolate_for_cluster: tuple[str, ...] = ()
    suspects: tuple[str, ...] = ()  # visible and ranked, never isolated by themselves
    withheld: tuple[Withheld, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What should happen next with one attempt. Equal inputs give equal decisions, bit for bit."""

    action: Action
    reason: Reason
    incident: Incident
    attribution: Attribution
    isolation: Isolation
    mode: Mode = Mode.MONITOR
    free: bool = False  # spends no retry budget
    may_end_live_attempt: bool = False
    settled: bool = True  # False: exclusions may still be refined until `settles_at`
    settles_at: datetime | None = None
    start_not_before: datetime | None = None  # lease: while exclusions may be refined
    delay_until: datetime | None = None  # storage: wait
    decision_deadline: datetime | None = None
    resume_step: int | None = None
    in_job_restarts: int = 0
    save_until: datetime | None = None  # a live attempt is asked to save, and not ended before
    dead_nodes: tuple[str, ...] = ()  # that may be set DOWN to let the job go
    order: str = ""  # id of the operator's order that decided
    ordered_by: str = ""  # and whose it is
    explanation: str = ""
