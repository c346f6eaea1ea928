"""The words of the domain, as closed enumerations.

Values are what is stored, printed and matched by scripts: changing one is a change of contract.
"""

from enum import StrEnum


class Category(StrEnum):
    """Why an attempt failed. `NONE` when nothing failed."""

    GPU_HARDWARE = "gpu_hardware"
    NODE_HARDWARE = "node_hardware"
    INTERCONNECT = "interconnect"
    STORAGE = "storage"
    SYSTEM_SOFTWARE = "system_software"
    SCHEDULER_EVENT = "scheduler_event"
    USER_CANCEL = "user_cancel"
    APPLICATION = "application"
    GPU_OUT_OF_MEMORY = "gpu_out_of_memory"
    HOST_OUT_OF_MEMORY = "host_out_of_memory"
    NUMERICS = "numerics"
    UNKNOWN = "unknown"
    NONE = "none"


class Role(StrEnum):
    """What part an event plays in a failure. Only `INITIATING` can be a root cause."""

    INITIATING = "initiating"
    CASCADE = "cascade"  # caused by another rank's or node's failure
    TEARDOWN = "teardown"  # printed because the job is being ended
    SYMPTOM = "symptom"  # seen by everyone, points at nobody (a collective time-out)
    BENIGN = "benign"  # looks alarming, means nothing


class Trust(StrEnum):
    """By which transport a fact came; see docs/architecture.md. `LOG` is anything a user can write, `EXTERNAL` what
    another program concluded, from logs at best: it supports or doubts, and decides nothing.
    """

    SCHEDULER = "scheduler"
    KERNEL = "kernel"
    TELEMETRY = "telemetry"
    LOG = "log"
    EXTERNAL = "external"

    @property
    def trusted(self) -> bool:
        """True for transports that only root can feed."""
        return self in {Trust.SCHEDULER, Trust.KERNEL, Trust.TELEMETRY}


class IncidentKind(StrEnum):
    CRASH = "crash"
    HANG = "hang"
    STRAGGLER = "straggler"
    DIVERGENCE = "divergence"
    NONE = "none"


class Action(StrEnum):
    RESTART = "restart"
    STOP = "stop"
    NONE = "none"


class OrderKind(StrEnum):
    """What an operator may say about a job. The first three are about one attempt, the others about all to come."""

    VETO = "veto"  # nothing is done about the attempt, whatever is decided, until it is lifted
    WITHDRAW = "withdraw"  # this advice is taken back: the same action for the same cause is not advised again
    OVERRIDE = "override"  # this is done instead
    EXCLUDE = "exclude"  # the job's next attempts avoid a node
    SPARE = "spare"  # the job's next attempts do not avoid a node, whatever evidence says
    RESET_BUDGET = "reset_budget"  # what was spent before the attempt does not count any more

    @property
    def of_attempt(self) -> bool:
        return self in {OrderKind.VETO, OrderKind.WITHDRAW, OrderKind.OVERRIDE}


class Mode(StrEnum):
    MONITOR = "monitor"
    AUTONOMOUS = "autonomous"


class AttemptState(StrEnum):
    """Scheduler state of one attempt. Nothing is concluded from `OTHER`."""

    PENDING = "pending"
    RUNNING = "running"
    COMPLETING = "completing"  # a cancelled and a requeued job look alike here
    SUSPENDED = "suspended"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    TIME_LIMIT = "time_limit"
    NODE_FAILURE = "node_failure"
    PREEMPTED = "preempted"
    OUT_OF_MEMORY = "out_of_memory"
    LAUNCH_FAILURE = "launch_failure"
    REQUEUE_HELD = "requeue_held"
    OTHER = "other"

    @property
    def ended(self) -> bool:
        """True when the attempt is over and its outcome is visible."""
        return self in _ENDED

    @property
    def live(self) -> bool:
        """True while the attempt's processes may still run."""
        return self in {AttemptState.RUNNING, AttemptState.SUSPENDED}


_ENDED = frozenset(
    {
        AttemptState.COMPLETED,
        AttemptState.FAILED,
        AttemptState.CANCELLED,
        AttemptState.TIME_LIMIT,
        AttemptState.NODE_FAILURE,
        AttemptState.PREEMPTED,
        AttemptState.OUT_OF_MEMORY,
        AttemptState.LAUNCH_FAILURE,
    }
)


class NodeState(StrEnum):
    UP = "up"
    NOT_RESPONDING = "not_responding"
    DOWN = "down"
    DRAINING = "draining"
    DRAINED = "drained"
    OTHER = "other"


class Implicates(StrEnum):
    """Whom a rule's hit points at."""

    NOBODY = "nobody"
    NODE = "node"  # the node that printed it, or that the line is about
    PEER = "peer"  # the node named as the other end
    RANK = "rank"  # the rank that printed it; its node only with further evidence
    CONDITIONAL = "conditional"  # the node, after a repeat by another job or with a second signal


class IsolationEnd(StrEnum):
    """Why a node's isolation has ended."""

    REPAIR_SEEN = "repair_seen"  # an administrator put the node back
    PROBE_PASSED = "probe_passed"  # the site's own test of the node
    TIME_TO_LIVE = "time_to_live"
    OPERATOR = "operator"
    TAKEN_OVER = "taken_over"  # somebody made the drain theirs: not ours to undo any more


class UnavailableReason(StrEnum):
    """Why a source could not answer. Never the same as an empty answer."""

    PERMISSION = "permission"
    MISSING = "missing"
    NOT_REGULAR = "not_regular"  # a FIFO, device, folder or link where a file was expected
    TIMEOUT = "timeout"
    REFUSED = "refused"
    GARBLED = "garbled"  # answered with something that cannot be what was asked for
    NOT_CONFIGURED = "not_configured"
    STALE = "stale"
    LIMIT = "limit"


class Reason(StrEnum):
    """Why `decide` chose what it chose: one per row of its table, in the table's order."""

    # nothing to do
    HEALTHY = "healthy"
    COMPLETED = "completed"
    USER_CANCELLED = "user_cancelled"
    STOPPED = "stopped"  # by us, while it waited: advice of the attempt before
    STOP_UNREPORTED = "stop_unreported"  # cancelled while our stop was out: by it, or by somebody else
    AWAITING_EXIT = "awaiting_exit"  # a crash in the log of a live attempt is not its end
    IN_JOB_RESTART = "in_job_restart"  # the job restarted its ranks itself
    OUTCOME_NOT_VISIBLE = "outcome_not_visible"  # completing, or evidence of the outcome is unavailable
    ALREADY_REQUEUED = "already_requeued"  # by the user, the application or the scheduler
    HELD_BY_OTHERS = "held_by_others"
    NOT_RESTARTABLE = "not_restartable"  # not a batch job, or requeue is switched off
    SUCCESSOR_RUNNING = "successor_running"
    TIME_LIMIT = "time_limit"  # where policy lets a job end there
    VETOED = "vetoed"  # by an operator, for this attempt
    WITHDRAWN = "withdrawn"  # an operator took this advice back
    # restart
    SCHEDULER_EVENT = "scheduler_event"  # spends no budget
    NODES_IMPLICATED = "nodes_implicated"
    STORAGE_DELAY = "storage_delay"
    CONFIRMATION_RETRY = "confirmation_retry"
    HANG = "hang"
    TRUSTED_FATAL = "trusted_fatal"
    WITHIN_BUDGET = "within_budget"
    NEXT_CHECKPOINT = "next_checkpoint"  # a straggler: wait for the checkpoint, do not kill now
    # stop
    CERTAIN_STARTUP_ERROR = "certain_startup_error"
    SAME_FAILURE_SAME_PROGRESS = "same_failure_same_progress"
    TIME_LIMIT_WITHOUT_PROGRESS = "time_limit_without_progress"
    BUDGET_EXHAUSTED = "budget_exhausted"
    RESTART_CEILING = "restart_ceiling"
    # either
    OPERATOR = "operator"  # an operator ordered it in place of what was advised


class WithheldReason(StrEnum):
    """Why a node that evidence names is not excluded or not isolated."""

    NOT_IN_ALLOCATION = "not_in_allocation"
    ALLOCATION_UNKNOWN = "allocation_unknown"
    UNTRUSTED_EVIDENCE = "untrusted_evidence"
    CAP_PER_JOB = "cap_per_job"
    CAP_CLUSTER = "cap_cluster"
    CAPACITY = "capacity"
    MANY_NODES = "many_nodes"  # many at once: the fabric or the file system, not the nodes
    NEEDS_REPEAT = "needs_repeat"
    OPERATOR = "operator"  # an operator says that the job need not avoid it
