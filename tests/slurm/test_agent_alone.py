"""The agent on a real Slurm, told what a test wants: exclusions over time, two agents, a Slurm in trouble."""

from collections.abc import Iterator

import pytest

from advisor.demo.cluster import Cluster
from advisor.demo.squeue import JobRow
from advisor.demo.training import KernelLogWriter
from advisor.demo.waiting import holds_for, wait_for
from tests.slurm.scripted import Bench, scripted_agents

_OPT_IN = '--comment={"advisor": {"enabled": true}}'
_FAILS = '#!/bin/sh\n[ "${SLURM_RESTART_COUNT:-0}" != 0 ] || exit 3\nsleep 2\n'


@pytest.fixture
def bench(cluster: Cluster) -> Iterator[Bench]:
    cluster.come_to_rest()
    with scripted_agents(cluster) as made:
        yield made


def failed(cluster: Cluster, *options: str, script: str = _FAILS) -> JobRow:
    job = cluster.submit("alice", script, "-N1", "--output=/dev/null", _OPT_IN, *options)
    return cluster.wait_state(job, "FAILED", seconds=20)


def test_exclusions_are_refined_while_the_delay_runs_and_merged_with_the_users(bench: Bench) -> None:
    """Two generations within Slurm's own delay: one requeue, and the second list replaces ours, never the user's."""
    row = failed(bench.cluster, "--exclude=node6")
    first = bench.advisor.restart(row, "node1", "node2")
    bench.advisor.wait_said(first, "VERIFIED", "OBSERVED")
    assert bench.cluster.job(row.job_id).excluded == {"node6", "node1", "node2"}
    second = bench.advisor.restart(row, "node2", "node3", generation=2)
    bench.advisor.wait_said(second, "VERIFIED", "OBSERVED")
    waiting = bench.cluster.job(row.job_id)
    assert (waiting.state, waiting.restarts) == ("PENDING", 1)
    assert waiting.excluded == {"node6", "node2", "node3"}
    done = bench.cluster.wait_state(row.job_id, "COMPLETED", seconds=30)
    assert (done.restarts, done.nodes) == (1, "node1")


def test_a_job_that_could_no_longer_start_loses_the_least_certain_exclusion(bench: Bench) -> None:
    """Nodes are drained while it waits: as few of ours as will do are given back, and it says so."""
    row = failed(bench.cluster, "-N2", "--exclusive")
    advice = bench.advisor.restart(row, "node1", "node2", "node3")
    bench.advisor.wait_said(advice, "VERIFIED", "OBSERVED")
    try:
        bench.cluster.must("scontrol", "update", "NodeName=node[5-6]", "State=DRAIN", "Reason=test")
        bench.advisor.wait_said(advice, "VERIFIED", "CAPACITY")
        assert bench.cluster.job(row.job_id).excluded == {"node1", "node2"}
        assert [list(item.dropped_nodes) for item in bench.advisor.said if item.dropped_nodes] == [["node3"]]
        done = bench.cluster.wait_state(row.job_id, "COMPLETED", seconds=30)
        assert set(bench.cluster.expand(done.nodes)) == {"node3", "node4"}
    finally:
        bench.cluster.must("scontrol", "update", "NodeName=node[5-6]", "State=RESUME")


@pytest.mark.long
def test_not_left_in_bad_constraints(bench: Bench) -> None:
    """With what its user excludes besides, Slurm says BadConstraints: one of ours goes, and the job runs."""
    row = failed(bench.cluster, "-N2", "--exclusive")
    advice = bench.advisor.restart(row, "node1", "node2")
    bench.advisor.wait_said(advice, "VERIFIED", "OBSERVED")
    bench.agents[0].freeze()
    try:
        bench.cluster.must("scontrol", "update", f"JobId={row.job_id}", "ExcNodeList=node[1-5]", user="alice")
        wait_for("BadConstraints", lambda: bench.cluster.job(row.job_id).reason == "BadConstraints", seconds=20)
    finally:
        bench.agents[0].thaw()
    done = bench.cluster.wait_state(row.job_id, "COMPLETED", seconds=60)
    assert (done.restarts, set(done.excluded)) == (1, {"node1", "node3", "node4", "node5"})
    assert ("VERIFIED", "CAPACITY") in bench.advisor.reasons(advice)


@pytest.mark.long
def test_two_agents_on_one_cluster_requeue_once(cluster: Cluster, kernel: KernelLogWriter) -> None:
    """Both hear the same advice; one is stopped in the middle and goes on later: one requeue per attempt."""
    with scripted_agents(cluster, agents=2) as bench:
        rows = [failed(cluster) for _ in range(6)]
        advice = [bench.advisor.restart(row, "node1") for row in rows[:3]]
        for item in advice:
            bench.advisor.wait_said(item, "VERIFIED", "OBSERVED")
        bench.agents[0].freeze()
        more = [bench.advisor.restart(row, "node2") for row in rows[3:]]
        for item in more:
            bench.advisor.wait_said(item, "VERIFIED", "OBSERVED")
        for row in rows:
            cluster.wait_state(row.job_id, "RUNNING", "COMPLETED", seconds=30, restarts=1)
        bench.agents[0].thaw()
        assert holds_for(lambda: all(cluster.job(row.job_id).restarts == 1 for row in rows), seconds=5)
        for row in rows:
            cluster.wait_state(row.job_id, "COMPLETED", seconds=30, restarts=1)
