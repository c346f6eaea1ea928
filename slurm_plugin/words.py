"""The agent's words: those of the contract by name, and Slurm's states folded to what decides. Stdlib only."""

from enum import StrEnum


class Status(StrEnum):
    """Names are those of ReconciliationStatus in the contract."""

    PENDING = "pending"
    APPLIED = "applied"
    VERIFIED = "verified"
    SUPERSEDED = "superseded"
    EXPIRED = "expired"
    ABANDONED = "abandoned"
    WITHHELD = "withheld"
    ALREADY_SATISFIED = "already_satisfied"


class Reason(StrEnum):
    """Names are those of ReconciliationReason in the contract."""

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
    STOP_UNREPORTED = "stop_unreported"
    IN_JOB_RESTART = "in_job_restart"
    LIVE_ATTEMPT = "live_attempt"
    DEPENDENT_RELEASED = "dependent_released"
    PAUSED = "paused"
    MAINTENANCE = "maintenance"
    STOP_FILE = "stop_file"
    SAVING = "saving"
    DRY_RUN = "dry_run"
    CAP_NODES = "cap_nodes"
    DRAINED_BY_OTHERS = "drained_by_others"
    REPAIR_SEEN = "repair_seen"


class Action(StrEnum):
    RESTART = "restart"
    STOP = "stop"
    NONE = "none"


class Phase(StrEnum):
    """Slurm's many state words, folded to what decides. Nothing is concluded from OTHER."""

    PENDING = "pending"
    RUNNING = "running"
    COMPLETING = "completing"
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


_PHASES = {
    "PENDING": Phase.PENDING,
    "REQUEUED": Phase.PENDING,
    "RUNNING": Phase.RUNNING,
    "CONFIGURING": Phase.RUNNING,
    "RESIZING": Phase.RUNNING,
    "SIGNALING": Phase.RUNNING,
    "COMPLETING": Phase.COMPLETING,
    "STAGE_OUT": Phase.COMPLETING,
    "SUSPENDED": Phase.SUSPENDED,
    "STOPPED": Phase.SUSPENDED,
    "COMPLETED": Phase.COMPLETED,
    "FAILED": Phase.FAILED,
    "CANCELLED": Phase.CANCELLED,
    "TIMEOUT": Phase.TIME_LIMIT,
    "NODE_FAIL": Phase.NODE_FAILURE,
    "PREEMPTED": Phase.PREEMPTED,
    "OUT_OF_MEMORY": Phase.OUT_OF_MEMORY,
    "BOOT_FAIL": Phase.LAUNCH_FAILURE,
    "LAUNCH_FAILED": Phase.LAUNCH_FAILURE,
    "SPECIAL_EXIT": Phase.REQUEUE_HELD,
    "REQUEUE_HOLD": Phase.REQUEUE_HELD,
}
RESTARTABLE = frozenset(
    {
        Phase.FAILED,
        Phase.TIME_LIMIT,
        Phase.NODE_FAILURE,
        Phase.PREEMPTED,
        Phase.OUT_OF_MEMORY,
        Phase.LAUNCH_FAILURE,
    }
)
ENDED = RESTARTABLE | {Phase.COMPLETED, Phase.CANCELLED}


def phase_of(state: str) -> Phase:
    """The phase of one of Slurm's extended state words; OTHER for any that this version does not know."""
    return _PHASES.get(state.strip().upper(), Phase.OTHER)
