"""What a world's scheduler shows of its jobs and nodes, as the agent reports it."""

from advisor.core.model import ExitStatus
from advisor.core.words import AttemptState, NodeState
from advisor.simulate.cluster import Cluster, SimJob, SimNode
from advisor.simulate.printing import moment
from advisor.store.records import ObservedJob, ObservedNode


def observed_job(cluster: Cluster, job: SimJob, marks: tuple[int, int]) -> ObservedJob:
    """`marks`: our mark on it, the attempt advised on and the generation."""
    attempt, spec, name = job.last, job.spec, cluster.world.name_of
    marked_attempt, generation = marks
    fitting = sum(node.usable and node.index not in job.excluded for node in cluster.nodes)
    return ObservedJob(
        job_id=spec.job_id,
        attempt=attempt.number,
        submitted_at=moment(attempt.submitted_at),
        user=spec.user,
        state=attempt.state,
        observed_at=moment(cluster.now),
        eligible_at=moment(attempt.eligible_at),
        started_at=moment(attempt.started_at) if attempt.started_at is not None else None,
        ended_at=moment(attempt.ended_at) if attempt.ended_at is not None else None,
        exit=ExitStatus(code=attempt.exit_code, signal=0) if attempt.ended_at is not None else None,
        nodes=tuple(map(name, attempt.nodes)) if attempt.nodes else None,
        nodes_requested=spec.nodes,
        tasks=spec.nodes * cluster.world.scenario.gpus_per_node,
        excluded_nodes=tuple(map(name, sorted(job.excluded))),
        our_excluded_nodes=tuple(map(name, sorted(job.excluded - spec.avoids))),
        partition="gpu",
        array_job_id=spec.array_job_id,
        array_task=spec.array_task,
        name=f"train-{spec.job_id}",
        requeueable=True,
        batch=True,
        stdout_path=f"/world/{spec.job_id}.out",
        in_scope=True,
        marked_generation=generation if attempt.state is AttemptState.PENDING else 0,
        marked_attempt=marked_attempt if attempt.state is AttemptState.PENDING else 0,
        nodes_fitting=fitting,
        gpus=spec.nodes * cluster.world.scenario.gpus_per_node,
    )


def observed_node(cluster: Cluster, node: SimNode) -> ObservedNode:
    state = NodeState.UP
    if node.down:
        state = NodeState.DOWN
    elif node.silent:
        state = NodeState.NOT_RESPONDING
    elif node.drained:
        state = NodeState.DRAINING if node.job is not None else NodeState.DRAINED
    return ObservedNode(
        name=cluster.world.name_of(node.index),
        state=state,
        observed_at=moment(cluster.now),
        reason=node.drained,
        partitions=("gpu",),
    )
