"""Preempted by Slurm itself: it requeues the job, and nobody does so again."""

from collections.abc import Iterator
from functools import partial

import pytest

from advisor.demo.cluster import Cluster, Shape
from advisor.demo.namespace import Runtime
from advisor.demo.waiting import holds_for
from tests.slurm.scripted import cluster_beside, scripted_agents

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def tiered(runtime: Runtime) -> Iterator[Cluster]:
    """A partition that preempts the usual one by requeueing, beside the session's cluster."""
    high = "PartitionName=high Nodes=ALL PriorityTier=10 State=UP"
    shape = Shape(nodes=2, extra=("PreemptType=preempt/partition_prio", "PreemptMode=REQUEUE", high))
    with cluster_beside(runtime, "tiered", shape) as cluster:
        yield cluster


def test_a_preempted_job_is_not_requeued_again(tiered: Cluster) -> None:
    """Its successor waits already: late advice for the preempted attempt changes its exclusions and nothing else."""
    with scripted_agents(tiered) as bench:
        opt_in = '--comment={"advisor": {"enabled": true}}'
        body = '#!/bin/sh\n[ "${SLURM_RESTART_COUNT:-0}" != 0 ] || sleep 60\nsleep 2\n'
        job = tiered.submit("alice", body, "-N2", "--exclusive", "--output=/dev/null", opt_in)
        first = tiered.wait_state(job, "RUNNING", seconds=20)
        urgent = tiered.submit("bob", "#!/bin/sh\nsleep 8\n", "-N2", "--exclusive", "-phigh", "--output=/dev/null")
        tiered.wait_state(urgent, "RUNNING", seconds=40)
        tiered.wait_state(job, "PENDING", seconds=20, restarts=1)
        advice = bench.advisor.restart(first)
        bench.advisor.wait_said(advice, "ALREADY_SATISFIED", "ALREADY_REQUEUED")
        assert holds_for(partial(_once, tiered, job), seconds=3)
        assert tiered.wait_state(job, "COMPLETED", seconds=60).restarts == 1


def _once(cluster: Cluster, job: int) -> bool:
    return cluster.job(job).restarts == 1
