"""How one more observation changes what is known of an attempt. Pure.

An attempt only moves forward: pending, running, completing, ended. An ended state is final; a hook's notice brings the
end's time and exit before the outcome is visible, and never changes an outcome that is. What is not known in an
observation never erases what was known. Only where the scheduler has forgotten the attempt after it, as when it was
killed unsaved, is an attempt set back to what is shown of it.
"""

from dataclasses import dataclass, fields, replace
from datetime import datetime, timedelta

from advisor.core.words import AttemptState
from advisor.store.records import Notice, ObservedJob

# An observation this much older than the last one was delivered late. One that is older still is not: no report is
# under way for so long, so the observer's clock was set back, and ignoring it would blind us for as long as that.
LATE_AT_MOST = timedelta(seconds=120)

_OVER = AttemptState.COMPLETING


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptFacts:
    """What the scheduler showed of one attempt; named like the columns."""

    state: AttemptState
    submitted_at: datetime
    observed_at: datetime
    job_id: str = ""  # an array's task is split off under an id of its own
    partition: str = ""
    eligible_at: datetime | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None
    exit_code: int | None = None
    exit_signal: int | None = None
    nodes: tuple[str, ...] | None = None
    tasks: int | None = None
    excluded_nodes: tuple[str, ...] = ()
    our_excluded_nodes: tuple[str, ...] = ()
    held: bool = False
    pending_reason: str = ""
    stdout_path: str = ""
    stderr_path: str = ""
    job_rules: str = ""
    nodes_fitting: int | None = None
    gpus: int | None = None
    marked_generation: int = 0
    marked_attempt: int = 0
    withdrawn_generation: int | None = None  # not None: see the column
    over_seen_at: datetime | None = None  # when we first knew that it is over, by our clock


# A change of these is worth a look at once; the others change with every listing of a busy cluster.
_WAKING = tuple(
    item.name
    for item in fields(AttemptFacts)
    if item.name not in {"observed_at", "pending_reason", "nodes_fitting", "gpus", "tasks", "over_seen_at"}
)


def stage(state: AttemptState) -> int:
    """How far an attempt is: 0 waiting, 1 running, 2 ending, 3 ended. OTHER tells nothing: -1."""
    match state:
        case AttemptState.PENDING | AttemptState.REQUEUE_HELD:
            return 0
        case AttemptState.RUNNING | AttemptState.SUSPENDED:
            return 1
        case AttemptState.COMPLETING:
            return 2
        case AttemptState.OTHER:
            return -1
        case _:
            return 3


def first_facts(job: ObservedJob, submitted_at: datetime) -> AttemptFacts:
    """Of an attempt that is seen for the first time, or under its own submit time for the first time."""
    return _forward(AttemptFacts(state=job.state, submitted_at=submitted_at, observed_at=job.observed_at), job)


def without_predecessors(job: ObservedJob, predecessor: AttemptFacts | None) -> ObservedJob:
    """`job` without what belongs to the attempt before: until its allocation is gone, Slurm shows that one's nodes
    and times under the next attempt's number (see `identity`)."""
    if job.state is not AttemptState.COMPLETING or predecessor is None:
        return job
    if job.submitted_at != predecessor.submitted_at:
        return job
    return replace(job, nodes=None, started_at=None, ended_at=None, eligible_at=None, exit=None)


def merge(known: AttemptFacts, job: ObservedJob) -> AttemptFacts:
    """What is known after `job` was seen as well."""
    if job.notice is Notice.HOOK:
        return _hook(known, job)
    if known.state.ended:
        return _fill(known, job)
    late = is_late(known, job)
    if stage(job.state) < max(stage(known.state), 0) and job.state is not AttemptState.OTHER:
        return known
    if late and stage(job.state) <= stage(known.state):
        return known
    return _forward(known, job)


def shown_again(known: AttemptFacts, job: ObservedJob) -> AttemptFacts:
    """What is known after `job` was seen of an attempt whose successor the scheduler has forgotten, and its end with
    that, unless it is shown."""
    if job.state.ended or job.state is AttemptState.OTHER:
        return merge(known, job)
    before = replace(known, state=job.state, ended_at=None, exit_code=None, exit_signal=None, over_seen_at=None)
    if stage(job.state) == 0:
        before = replace(before, started_at=None, nodes=None)
    return _forward(before, job)


def is_late(known: AttemptFacts, job: ObservedJob) -> bool:
    """What `job` shows was so before what is known."""
    return timedelta(0) < known.observed_at - job.observed_at <= LATE_AT_MOST


def superseded(known: AttemptFacts, successor: AttemptFacts) -> AttemptFacts:
    """The attempt is over because the next one is there; how it ended may never have been visible.

    A requeue sets the submit time when the old allocation is gone: not exact, but the scheduler's own clock.
    """
    if known.state.ended:
        return known
    began = known.started_at or known.submitted_at
    ended_at = successor.submitted_at if successor.submitted_at > began else successor.observed_at
    return replace(known, state=_OVER, ended_at=known.ended_at or ended_at)


def worth_a_look(before: AttemptFacts, after: AttemptFacts) -> bool:
    return any(getattr(before, name) != getattr(after, name) for name in _WAKING)


def _forward(known: AttemptFacts, job: ObservedJob) -> AttemptFacts:
    state = known.state if job.state is AttemptState.OTHER and stage(known.state) > 0 else job.state
    running = stage(state) >= 1
    over = stage(state) >= stage(_OVER)
    # Before the end, the scheduler's end time is the time limit's and its start time may be an estimate.
    exit_known = over and job.exit is not None
    return replace(
        known,
        state=state,
        observed_at=job.observed_at,
        job_id=job.job_id,
        partition=job.partition or known.partition,
        eligible_at=job.eligible_at or known.eligible_at,
        # Of one that is being requeued Slurm shows the present moment as its start.
        started_at=(known.started_at if over else None) or (job.started_at if running else None) or known.started_at,
        ended_at=(job.ended_at if over else None) or known.ended_at,
        exit_code=job.exit.code if exit_known and job.exit is not None else known.exit_code,
        exit_signal=job.exit.signal if exit_known and job.exit is not None else known.exit_signal,
        nodes=_nodes(known, job),
        tasks=job.tasks if job.tasks is not None else known.tasks,
        excluded_nodes=job.excluded_nodes,
        our_excluded_nodes=job.our_excluded_nodes,
        held=job.held,
        pending_reason=job.pending_reason,
        stdout_path=job.stdout_path or known.stdout_path,
        stderr_path=job.stderr_path or known.stderr_path,
        job_rules=job.job_rules or known.job_rules,
        nodes_fitting=job.nodes_fitting if job.nodes_fitting is not None else known.nodes_fitting,
        gpus=job.gpus if job.gpus is not None else known.gpus,
        marked_generation=job.marked_generation,
        marked_attempt=job.marked_attempt,
    )


def _nodes(known: AttemptFacts, job: ObservedJob) -> tuple[str, ...] | None:
    # An ended job's node list is empty or gone; the allocation that it had is a fact that stays.
    return job.nodes if job.nodes or known.nodes is None else known.nodes


def _hook(known: AttemptFacts, job: ObservedJob) -> AttemptFacts:
    ended_at = known.ended_at or job.ended_at or job.observed_at
    if known.exit_code is not None or job.exit is None:
        return replace(known, ended_at=ended_at, nodes=_nodes(known, job))
    return replace(
        known, ended_at=ended_at, exit_code=job.exit.code, exit_signal=job.exit.signal, nodes=_nodes(known, job)
    )


def _fill(known: AttemptFacts, job: ObservedJob) -> AttemptFacts:
    if job.state is not known.state:
        return known
    marks = (job.excluded_nodes, job.our_excluded_nodes, job.marked_generation, job.marked_attempt)
    if known.observed_at - job.observed_at > timedelta(0):
        marks = (
            known.excluded_nodes,
            known.our_excluded_nodes,
            known.marked_generation,
            known.marked_attempt,
        )
    return replace(
        known,
        observed_at=max(known.observed_at, job.observed_at),
        started_at=known.started_at or job.started_at,
        ended_at=known.ended_at or job.ended_at,
        exit_code=known.exit_code if known.exit_code is not None or job.exit is None else job.exit.code,
        exit_signal=known.exit_signal if known.exit_signal is not None or job.exit is None else job.exit.signal,
        nodes=_nodes(known, job) if known.nodes is None else known.nodes,
        excluded_nodes=marks[0],
        our_excluded_nodes=marks[1],
        marked_generation=marks[2],
        marked_attempt=marks[3],
    )
