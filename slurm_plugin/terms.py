"""What the guard is asked with and what it answers: advice, limits, steps, outcomes. Plain values, stdlib only."""

from dataclasses import dataclass

from slurm_plugin.records import JobRow
from slurm_plugin.words import Action, Reason, Status


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """One advice as the guard needs it. Times are epoch seconds, except `expires_monotonic` (CLOCK_MONOTONIC).

    `exclude` is ordered, most certain first. `incarnation`: generations of another one do not compare.
    """

    advice_id: str
    incarnation: str
    job_key: str
    job_id: str
    attempt: int
    submitted_at: int
    user: str
    generation: int
    action: Action
    exclude: tuple[str, ...] = ()
    autonomous: bool = False
    may_end_live_attempt: bool = False
    start_not_before: int | None = None
    decision_deadline: int | None = None
    delay_until: int | None = None
    paused: bool = False
    save_until: int | None = None
    dead_nodes: tuple[str, ...] = ()
    resume_step: int | None = None
    cause: str = ""  # the advisor's word for why
    explanation: str = ""  # its sentence, for people
    expires_monotonic: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The agent's own configuration and what it knows besides: the caps that no advisor can exceed.

    `scope_known`: False while the job's comment could not be read; then `in_scope` says nothing.
    `fitting`: up nodes that fit the job, busy ones counted, exclusions not subtracted; None when not known.
    `known`: those of the advice's nodes that the scheduler has; None when not known.
    `stopped`, `maintenance`: why nothing may be done now, "" when it may.
    `requeue_exit_hold`: exit codes after which Slurm requeues and holds by itself. `nodes_together`: what all
    components of a heterogeneous job ask for, 0 for any other job. `required`: nodes that the job asks for by name.
    `dead`: nodes of the job that may be set DOWN. `saving`: "ask" or "wait" while a live attempt is given time to save
    (see `saving`), with `signals` sent to the batch script or to its steps.
    """

    act: bool
    in_scope: bool
    scope_known: bool = True
    scope_reason: str = ""
    exclusions_per_job: int = 8
    requeues_left: int = 1
    lease_seconds_max: float = 600.0
    requeue_delay_seconds: int = 121
    fitting: tuple[str, ...] | None = None
    known: tuple[str, ...] | None = None
    stopped: str = ""
    maintenance: str = ""
    requeue_exit_hold: tuple[int, ...] = ()
    nodes_together: int = 0
    required: tuple[str, ...] = ()
    dead: tuple[str, ...] = ()
    saving: str = ""
    signals: tuple[str, ...] = ()
    signal_batch: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Around:
    """Other jobs at the same moment. `components`: all of the heterogeneous job that this one is of, itself too.
    `released`: who waited for this one's end and no longer does, so that it must not be started beside them.
    """

    components: tuple[JobRow, ...] = ()
    released: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RequeueEnded:
    """`scontrol requeue`: the attempt has ended and was not cancelled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequeueLive:
    """`scontrol requeue incomplete`: ends a live attempt, leaves a finished or cancelled one alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """`scontrol update`. `start_time` None leaves StartTime alone."""

    excluded: tuple[str, ...]
    admin_comment: str
    start_time: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancel:
    """`scancel --state`: only while the job is in the state that was read."""

    state: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """`scontrol release`: only of the hold that Slurm's RequeueExitHold placed (see `holds`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Signal:
    """`scancel --signal`: asks the live attempt to save, or to print where it is. Ends nothing by itself."""

    name: str
    batch: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Down:
    """`State=DOWN` of nodes that still do not answer, so that the requeued job need not wait for them."""

    nodes: tuple[str, ...]
    job_id: str


Step = RequeueEnded | RequeueLive | Update | Release | Cancel | Signal | Down


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """What to do, in order. `dropped`: wanted exclusions left out, least certain first, for `dropped_reason`."""

    steps: tuple[Step, ...]
    dropped: tuple[str, ...] = ()
    dropped_reason: Reason | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Withheld:
    """Nothing is done. `status` is WITHHELD, EXPIRED, SUPERSEDED or ABANDONED."""

    reason: Reason
    detail: str = ""
    status: Status = Status.WITHHELD


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """Nothing yet: look again."""

    reason: Reason
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Satisfied:
    """Slurm shows what the advice wants. `by_us`: our mark of this generation is on the job."""

    reason: Reason
    by_us: bool = False
    detail: str = ""


Outcome = Steps | Withheld | Wait | Satisfied
