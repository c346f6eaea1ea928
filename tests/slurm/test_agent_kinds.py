"""Kinds of jobs and of requeues, on a real Slurm: what the agent does when told to restart each of them."""

import subprocess
import time
from collections.abc import Iterator
from functools import partial

import pytest

from advisor.demo.cluster import Cluster
from advisor.demo.squeue import JobRow
from advisor.demo.waiting import holds_for, wait_for
from advisor.v1 import common_pb2
from tests.slurm.scripted import Bench, scripted_agents

_OPT_IN = '--comment={"advisor": {"enabled": true}}'
_ONCE = 'if [ "${SLURM_RESTART_COUNT:-0}" = 0 ]; then sleep 1; exit %d; fi; sleep 2\n'


@pytest.fixture
def bench(cluster: Cluster) -> Iterator[Bench]:
    with scripted_agents(cluster) as made:
        yield made


def submit(cluster: Cluster, body: str, *options: str) -> int:
    return cluster.submit("alice", f"#!/bin/sh\n{body}", "-N1", "--output=/dev/null", _OPT_IN, *options)


def tasks(cluster: Cluster, array: int) -> dict[str, JobRow]:
    """Rows of an array's tasks that Slurm has split off, by task."""
    listing = cluster.must("squeue", "-h", "-a", "-r", "-t", "all", "-j", str(array), "-o", "%A %K")
    rows = cluster.jobs()
    pairs = [line.split() for line in listing.splitlines()]
    return {task: rows[int(job)] for job, task in pairs if sum(job == other for other, _ in pairs) == 1}


@pytest.mark.long
def test_a_task_of_a_throttled_array_is_restarted_alone(bench: Bench) -> None:
    """`0-3%2`: a middle task and the last one, which keeps the array's own id; the others run as if nothing were."""
    fails = f'case "$SLURM_ARRAY_TASK_ID" in 1|3) {_ONCE % 5};; *) sleep 2;; esac\n'
    array = submit(bench.cluster, fails, "--array=0-3%2")

    def failed(task: str) -> JobRow | None:
        row = tasks(bench.cluster, array).get(task)
        return row if row is not None and row.state == "FAILED" else None

    for task in ("1", "3"):
        row = wait_for(f"task {task} to fail", partial(failed, task), seconds=40)
        advice = bench.advisor.restart(row, "node1")
        bench.advisor.wait_said(advice, "VERIFIED", "OBSERVED")
    wait_for(
        "all tasks to be done",
        lambda: [row.state for row in tasks(bench.cluster, array).values()] == ["COMPLETED"] * 4,
        seconds=60,
    )
    done = tasks(bench.cluster, array)
    assert {task: (row.restarts, set(row.excluded)) for task, row in done.items()} == {
        "0": (0, set()),
        "1": (1, {"node1"}),
        "2": (0, set()),
        "3": (1, {"node1"}),
    }


@pytest.mark.long
def test_what_cannot_be_requeued_is_withheld_and_said_before(bench: Bench) -> None:
    """--no-requeue and srun: the advisor hears why while it runs, and nothing is done after the failure."""
    off = submit(bench.cluster, "sleep 3; exit 5\n", "--no-requeue")
    with subprocess.Popen(
        ["srun", "-N1", _OPT_IN, "sh", "-c", "sleep 4; exit 5"],
        user="alice",
        group="alice",
        extra_groups=[],
        cwd=bench.cluster.runtime.home("alice"),
        env=bench.cluster.environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as live:
        interactive = wait_for(
            "srun's job", lambda: next((key for key in bench.cluster.jobs() if key > off), None), seconds=10
        )
        for job, why in ((off, "--no-requeue"), (interactive, "not a batch job")):
            told = [item.scope_reason for item in bench.advisor.seen(job) if item.in_scope]
            wait_for(f"why {job} could not be restarted", partial(_told, bench, job, why), seconds=10)
            assert told == [] or all(why in text for text in told)
        live.wait(timeout=20)
    for job, reason in ((off, "NOT_REQUEUEABLE"), (interactive, "NOT_BATCH")):
        row = bench.cluster.wait_state(job, "FAILED", seconds=20)
        bench.advisor.wait_said(bench.advisor.restart(row, "node1"), "WITHHELD", reason)
        assert holds_for(partial(_untouched, bench, job), seconds=1)


def _untouched(bench: Bench, job: int) -> bool:
    return bench.cluster.job(job).restarts == 0


def _told(bench: Bench, job: int, why: str) -> bool:
    live = (common_pb2.ATTEMPT_STATE_RUNNING, common_pb2.ATTEMPT_STATE_PENDING)
    return any(why in item.scope_reason and item.state in live for item in bench.advisor.seen(job))


@pytest.mark.long
@pytest.mark.parametrize("who", ["user", "slurm", "application"])
def test_never_two_requeues_for_one_failure(bench: Bench, who: str) -> None:
    """Requeued by its user, by RequeueExit or by itself before the advice is heard: exclusions only."""
    itself = "sleep 2; until scontrol requeue $SLURM_JOB_ID; do sleep 0.2; done; sleep 30"  # it is seen to run before
    bodies = {
        "user": _ONCE % 5,
        "slurm": _ONCE % 111,
        "application": f'[ "${{SLURM_RESTART_COUNT:-0}}" != 0 ] || {{ {itself}; }}\nsleep 2\n',
    }
    job = submit(bench.cluster, bodies[who])
    first = bench.cluster.wait_state(job, "RUNNING", "COMPLETING", "FAILED", seconds=20)
    if who == "user":
        bench.cluster.wait_state(job, "FAILED", seconds=20)
        bench.cluster.must("scontrol", "requeue", str(job), user="alice")
    bench.cluster.wait_state(job, "PENDING", seconds=60, restarts=1)
    advice = bench.advisor.restart(first, "node1")
    bench.advisor.wait_said(advice, "VERIFIED", "OBSERVED")
    assert bench.cluster.job(job).excluded == {"node1"}
    done = bench.cluster.wait_state(job, "COMPLETED", seconds=40)
    assert done.restarts == 1


@pytest.mark.long
def test_a_node_failures_exclusion_is_there_before_slurm_starts_the_job_again(bench: Bench) -> None:
    """Slurm itself requeues after the node goes down: the successor's start is leased and the node excluded."""
    job = submit(bench.cluster, 'if [ "${SLURM_RESTART_COUNT:-0}" = 0 ]; then sleep 300; fi; sleep 2\n')
    first = bench.cluster.wait_state(job, "RUNNING", seconds=20)
    bench.cluster.kill_node(first.nodes)
    try:
        row = bench.cluster.wait_state(job, "PENDING", seconds=90, restarts=1)
        until = (row.submitted or 0) + 20
        advice = bench.advisor.restart(first, first.nodes, start_not_before=until, decision_deadline=until + 60)
        bench.advisor.wait_said(advice, "VERIFIED", "OBSERVED")
        row = bench.cluster.job(job)
        assert (row.state, set(row.excluded), row.eligible) == ("PENDING", {first.nodes}, until)
    finally:
        bench.cluster.start_node(first.nodes)
    done = bench.cluster.wait_state(job, "COMPLETED", seconds=60)
    assert (done.restarts, done.nodes != first.nodes) == (1, True)
    assert (done.start or 0) >= until


@pytest.mark.long
def test_what_a_job_insists_on_is_not_excluded(bench: Bench) -> None:
    """--nodelist: excluding that node would only keep the job from ever starting; it is left out and said."""
    job = submit(bench.cluster, _ONCE % 5, "--nodelist=node2")
    row = bench.cluster.wait_state(job, "FAILED", seconds=20)
    advice = bench.advisor.restart(row, "node2", "node3")
    bench.advisor.wait_said(advice, "APPLIED", "CAPACITY")
    assert [list(item.dropped_nodes) for item in bench.advisor.said if item.dropped_nodes] == [["node2"]]
    done = bench.cluster.wait_state(job, "COMPLETED", seconds=30)
    assert (done.nodes, set(done.excluded)) == ("node2", {"node3"})


@pytest.mark.long
def test_nodes_reserved_for_others_are_no_room(bench: Bench) -> None:
    """Two nodes wanted, six there, three reserved for bob: of three exclusions only one is affordable."""
    bench.cluster.must(
        "scontrol",
        "create",
        "reservation",
        "ReservationName=bobs",
        "Users=bob",
        "Nodes=node[4-6]",
        "StartTime=now",
        "Duration=30",
    )
    try:
        wait_for("the reservation", lambda: bench.cluster.node_state("node6") == "reserved", seconds=20)
        job = submit(bench.cluster, _ONCE % 5, "-N2", "--exclusive", "--time=5")
        row = bench.cluster.wait_state(job, "FAILED", seconds=20)
        wait_for("the agent's look at nodes", lambda: len(bench.advisor.seen(job)) > 0, seconds=5)
        time.sleep(2.5)
        advice = bench.advisor.restart(row, "node1", "node2")
        bench.advisor.wait_said(advice, "APPLIED", "CAPACITY")
        done = bench.cluster.wait_state(job, "COMPLETED", seconds=30)
        assert set(done.excluded) == {"node1"}
        assert set(bench.cluster.expand(done.nodes)) == {"node2", "node3"}
    finally:
        bench.cluster.must("scontrol", "delete", "ReservationName=bobs")
