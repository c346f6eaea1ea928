"""Old advice never reaches another job: ids that wrap around, purged records, a controller that lost its state."""

import shutil
from collections.abc import Iterator
from functools import partial

import pytest

from advisor.demo.cluster import Cluster, Shape
from advisor.demo.namespace import Runtime
from advisor.demo.squeue import JobRow
from advisor.demo.waiting import holds_for, wait_for
from tests.slurm.scripted import Bench, cluster_beside, scripted_agents

pytestmark = pytest.mark.long
_OPT_IN = '--comment={"advisor": {"enabled": true}}'
_FAILS = '#!/bin/sh\n[ "${SLURM_RESTART_COUNT:-0}" != 0 ] || exit 3\nsleep 1\n'


@pytest.fixture(scope="module")
def forgetful(runtime: Runtime) -> Iterator[Cluster]:
    """Four job ids, records purged after five seconds, beside the session's cluster."""
    shape = Shape(nodes=2, min_job_age_seconds=5, extra=("FirstJobId=1", "MaxJobId=4"))
    with cluster_beside(runtime, "forgetful", shape) as cluster:
        yield cluster


@pytest.fixture
def bench(forgetful: Cluster) -> Iterator[Bench]:
    with scripted_agents(forgetful) as made:
        yield made


def failed(cluster: Cluster) -> JobRow:
    job = cluster.submit("alice", _FAILS, "-N1", "-Jsame", "--output=/dev/null", _OPT_IN)
    return cluster.wait_state(job, "FAILED", seconds=20)


def gone(cluster: Cluster, job: int) -> bool:
    return job not in cluster.jobs()


def is_same(cluster: Cluster, row: JobRow) -> bool:
    now = cluster.job(row.job_id)
    return (now.state, now.restarts, now.submitted) == (row.state, row.restarts, row.submitted)


def test_the_same_user_name_and_id_again_with_no_restarts_both_times(bench: Bench) -> None:
    """After a purge and a wrap-around: advice on the first job does nothing to the second, which gets its own."""
    cluster = bench.cluster
    first = failed(cluster)
    wait_for("the purge", partial(gone, cluster, first.job_id), seconds=90)
    late = bench.advisor.restart(first, "node1")
    bench.advisor.wait_said(late, "ABANDONED", "GONE")
    second = failed(cluster)
    while second.job_id != first.job_id:
        second = failed(cluster)
    assert (second.user, second.restarts) == (first.user, 0)
    stale = bench.advisor.restart(first, "node1", generation=2)
    bench.advisor.wait_said(stale, "ABANDONED", "OTHER_JOB")
    assert holds_for(partial(is_same, cluster, second), seconds=3)
    own = bench.advisor.restart(second, "node2")
    bench.advisor.wait_said(own, "VERIFIED", "OBSERVED")
    done = cluster.wait_state(second.job_id, "COMPLETED", seconds=30)
    assert (done.restarts, set(done.excluded)) == (1, {"node2"})


def test_a_controller_that_lost_its_state(bench: Bench) -> None:
    """Ids begin anew: whoever has the id now is another job, whatever was advised before."""
    cluster = bench.cluster
    wait_for("an empty queue", lambda: not cluster.jobs(), seconds=90)
    before = failed(cluster)
    cluster.kill_controller()
    for item in (cluster.root / "state").iterdir():
        shutil.rmtree(item) if item.is_dir() else item.unlink()
    cluster.start_controller()
    wait_for("idle nodes", lambda: cluster.idle_nodes() == frozenset(cluster.nodes), seconds=60)
    after = failed(cluster)
    while after.job_id != before.job_id:
        after = failed(cluster)
    advice = bench.advisor.restart(before, "node1")
    bench.advisor.wait_said(advice, "ABANDONED", "OTHER_JOB", seconds=40)
    assert holds_for(partial(is_same, cluster, after), seconds=3)


def test_generations_of_a_restored_store_count_anew(bench: Bench) -> None:
    """A lower generation of another incarnation is heard, and what is requeued already is not requeued again."""
    row = failed(bench.cluster)
    first = bench.advisor.restart(row, "node1", generation=7)
    bench.advisor.wait_said(first, "VERIFIED", "OBSERVED")
    stale = bench.advisor.restart(row, "node2", generation=6)
    bench.advisor.wait_said(stale, "SUPERSEDED", "NEWER_GENERATION")
    assert bench.cluster.job(row.job_id).excluded == {"node1"}
    other = bench.advisor.restart(row, "node2", generation=1, incarnation="restored")
    bench.advisor.wait_said(other, "VERIFIED", "OBSERVED")
    now = bench.cluster.job(row.job_id)
    assert (now.restarts, set(now.excluded)) == (1, {"node2"})
