"""Rows of Slurm as observations of the contract. Pure, apart from the memory that it is given.

The memory holds what Slurm stops showing: the allocation of an attempt while COMPLETING (the list shrinks as nodes
are returned), and the submit time under which the current attempt ran. It can be rebuilt by looking; a fresh one only
knows less.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from advisor.v1 import agent_pb2, common_pb2
from slurm_plugin import capacity, dependencies, guard, holds, mark, scope, wire
from slurm_plugin.guard import Phase, phase_of
from slurm_plugin.squeue import JobDetails, JobRow, NodeRow
from slurm_plugin.stdout_paths import PatternValues, expand_path

NAME_CHARACTERS_MAX = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """Which attempt a row is about: a job being requeued shows the next count with the last submit time."""

    number: int
    submit: int


@dataclass(slots=True, kw_only=True)
class Memory:
    """What was seen of jobs that Slurm still holds. `forget` bounds it to those.

    `requeue_exit_hold`: the site's codes. Slurm shows the end of such an attempt only as the next one, held by Slurm
    itself; what waits is the failed attempt's successor, which starts when somebody releases it and not before.
    """

    requeue_exit_hold: tuple[int, ...] = ()
    attempts: dict[str, Attempt] = field(default_factory=dict)
    nodes: dict[tuple[str, Attempt], tuple[str, ...]] = field(default_factory=dict)

    def attempt_of(self, row: JobRow) -> Attempt:
        """The attempt whose processes the row shows."""
        submit, phase = row.submit or 0, phase_of(row.state)
        before = self.attempts.get(row.job_id)
        if before is not None and before.number == row.restarts - 1 and self.kept_by_slurm(row):
            return before
        if before == Attempt(number=row.restarts - 1, submit=submit) and (
            phase is Phase.COMPLETING or phase in guard.ENDED
        ):
            return before
        requeueing = phase is Phase.COMPLETING and row.end is None and row.restarts > 0
        if before is None and requeueing:
            return Attempt(number=row.restarts - 1, submit=submit)
        return Attempt(number=row.restarts, submit=submit)

    def kept_by_slurm(self, row: JobRow) -> bool:
        return holds.by_requeue_exit(row, self.requeue_exit_hold)

    def learn(self, row: JobRow) -> Attempt:
        attempt = self.attempt_of(row)
        self.attempts[row.job_id] = attempt
        if row.nodes and phase_of(row.state) is not Phase.COMPLETING:
            self.nodes[row.job_id, attempt] = row.nodes
        return attempt

    def allocation(self, row: JobRow, attempt: Attempt) -> tuple[str, ...] | None:
        """The whole allocation; None when only a part of it, or nothing, is known."""
        phase = phase_of(row.state)
        known = self.nodes.get((row.job_id, attempt))
        if phase in {Phase.PENDING, Phase.REQUEUE_HELD}:
            return () if attempt.number == row.restarts else known
        if known is not None:
            return known
        return None if phase is Phase.COMPLETING or not row.nodes else row.nodes

    def forget(self, rows: Sequence[JobRow]) -> None:
        held = {row.job_id for row in rows}
        for job_id in [job_id for job_id in self.attempts if job_id not in held]:
            del self.attempts[job_id]
        for key in [key for key in self.nodes if key[0] not in held]:
            del self.nodes[key]


def ref(cluster: str, row: JobRow, attempt: Attempt) -> common_pb2.AttemptRef:
    return common_pb2.AttemptRef(
        cluster=cluster,
        job_id=row.job_id,
        attempt=attempt.number,
        submitted_at=wire.stamp(attempt.submit) if attempt.submit else None,
        user=wire.clean(row.user, 200),
    )


def judge_scope(config: scope.ScopeConfig, row: JobRow, details: JobDetails | None) -> scope.Scope:
    """Outside while the job's comment could not be read."""
    if details is None:
        return scope.Scope(inside=False, reason="the job's comment could not be read yet")
    return scope.judge(config, comment=details.comment, partition=row.partition, user=row.user, account=details.account)


def observation(
    cluster: str,
    row: JobRow,
    *,
    memory: Memory,
    details: JobDetails | None,
    nodes: Sequence[NodeRow],
    scope_config: scope.ScopeConfig,
    at: float,
    leader: tuple[JobRow, JobDetails | None] | None = None,
) -> agent_pb2.JobObservation:
    """One row as the advisor hears it. `leader`: of its heterogeneous job, whose comment speaks for all components."""
    attempt = memory.learn(row)
    phase, held = phase_of(row.state), row.held and not memory.kept_by_slurm(row)
    failed = phase is Phase.REQUEUE_HELD and attempt.number < row.restarts
    if failed:
        phase = Phase.FAILED
    ended = row.submit if failed else row.end if phase in guard.ENDED or phase is Phase.COMPLETING else None
    ran = phase in {Phase.RUNNING, Phase.SUSPENDED, Phase.COMPLETING} or phase in guard.ENDED
    started = row.start if ran and not failed else None
    allocation = memory.allocation(row, attempt)
    ours = mark.find(row.admin_comment)
    leader_row, leader_details = leader or (row, details)
    judged = judge_scope(scope_config, leader_row, leader_details)
    fits = capacity.fitting(row, details, nodes)
    made = agent_pb2.JobObservation(
        attempt=ref(cluster, row, attempt),
        notice=agent_pb2.NOTICE_POLL,
        state=wire.state(phase),
        observed_at=wire.stamp(at),
        eligible_at=wire.stamp(row.eligible),
        started_at=wire.stamp(started),
        ended_at=wire.stamp(ended),
        nodes=allocation or (),
        nodes_known=allocation is not None,
        nodes_requested=row.nodes_wanted,
        tasks=row.tasks,
        excluded_nodes=row.excluded or (),
        our_excluded_nodes=[node for node in row.excluded or () if ours is not None and node in ours.nodes],
        partition=wire.clean(row.partition, 200),
        array_job_id=row.array_job_id,
        array_task=row.array_task,
        het_job_id=row.het_job_id,
        het_offset=row.het_offset,
        requeueable=row.requeueable,
        batch=row.batch,
        held=held,
        pending_reason=wire.clean(row.reason, 200),
        in_scope=judged.inside,
        scope_reason="; ".join(filter(None, (judged.reason, restart_impossible(row) if judged.inside else ""))),
        restarts_max=judged.restarts_max,
        marked_generation=ours.generation if ours is not None and ours.advised else 0,
        marked_attempt=ours.attempt if ours is not None and ours.advised else 0,
        nodes_fitting=len(fits) if fits is not None else None,
        user_id=row.user_id,
        gpus=capacity.gpus(details, nodes=len(allocation or ()) or row.nodes_wanted or 0, tasks=row.tasks or 0),
    )
    if phase in guard.ENDED and phase is not Phase.CANCELLED:
        made.exit.code, made.exit.signal = row.exit_status >> 8 & 0xFF, row.exit_status & 0x7F
    made.waits_for.extend(dependencies.waits_for(row.dependency))
    made.singleton = dependencies.is_singleton(row.dependency)
    if details is not None:
        _written_by_user(made, row, details, allocation)
    return made


def restart_impossible(row: JobRow) -> str:
    """For people, while something can still be done about it: why a failure of this job would not be followed by a
    restart; "" when it would.
    """
    if not row.batch:
        return "not a batch job: Slurm cannot requeue it, it is reported on only"
    if not row.requeueable:
        return (
            "submitted with --no-requeue: it will not be restarted; while it waits or runs, "
            f"`scontrol update JobId={row.shown_id} Requeue=1` changes that"
        )
    return ""


def _written_by_user(
    made: agent_pb2.JobObservation, row: JobRow, details: JobDetails, allocation: tuple[str, ...] | None
) -> None:
    values = PatternValues(
        job_id=row.job_id,
        array_job_id=row.array_job_id,
        array_task=row.array_task,
        name=details.name,
        user=row.user,
        batch_host=allocation[0] if allocation else "",
        work_dir=details.work_dir,
    )
    made.name = wire.clean(details.name, NAME_CHARACTERS_MAX)
    made.account = wire.clean(details.account, 200)
    made.stdout_path = _path(expand_path(details.stdout, values, expanded=details.expanded))
    made.stderr_path = _path(expand_path(details.stderr or details.stdout, values, expanded=details.expanded))
    made.job_rules = _path(scope.job_rules(details.comment))


def _path(path: str) -> str:
    """A path that a message can carry exactly, or none."""
    try:
        path.encode("utf-8")
    except UnicodeEncodeError:
        return ""
    return path


def hook_observation(known: agent_pb2.JobObservation, *, at: float) -> agent_pb2.JobObservation:
    """What a hook's notice means before anybody has looked: the attempt last seen has ended, outcome unknown."""
    made = agent_pb2.JobObservation()
    made.CopyFrom(known)
    made.notice = agent_pb2.NOTICE_HOOK
    made.state = common_pb2.ATTEMPT_STATE_COMPLETING
    made.observed_at.CopyFrom(wire.stamp(at) or made.observed_at)
    made.ended_at.CopyFrom(made.observed_at)
    return made


def node_observation(node: NodeRow, *, at: float) -> agent_pb2.NodeObservation:
    return agent_pb2.NodeObservation(
        name=node.name,
        state=wire.node_state(node),
        reason=wire.clean(node.reason, 1000),
        observed_at=wire.stamp(at),
        partitions=node.partitions,
    )


def same(left: agent_pb2.JobObservation | None, right: agent_pb2.JobObservation) -> bool:
    """True when nothing but the time of looking differs. StartTime of a pending job is an estimate that moves."""
    if left is None:
        return False
    before = agent_pb2.JobObservation()
    before.CopyFrom(left)
    before.observed_at.CopyFrom(right.observed_at)
    return before == right


def details_for(details: Mapping[str, JobDetails], row: JobRow) -> JobDetails | None:
    """Details read under this submit time, or under an earlier one of the same, since restarted, job."""
    found = details.get(row.job_id)
    if found is None or row.submit is None:
        return None
    same_job = found.submit == row.submit or (row.restarts > 0 and found.submit < row.submit)
    return found if same_job else None
