"""Two advisors over one database on a real Slurm: one is killed while it has a failing job in hand."""

from collections.abc import Iterator

import pytest

from advisor.client import Client
from advisor.demo.stack import Program
from advisor.demo.training import Training
from advisor.demo.waiting import wait_for
from advisor.demo.world import World

LEASE_SECONDS = 4.0


@pytest.fixture
def second(world: World) -> Iterator[Program]:
    """Another advisor, to which the agent is connected."""
    stack = world.stack
    program = stack.another_advisor("advisor2", lease_seconds=LEASE_SECONDS)
    socket = stack.root / "advisor2" / "advisor.sock"
    try:
        program.start()
        wait_for("the second advisor's socket", socket.is_socket, seconds=60)
        stack.other_sockets = (socket,)
        stack.restart_agent(stack.agent_sections)
        yield program
    finally:
        program.kill()
        stack.other_sockets = ()
        stack.restart_agent(stack.agent_sections)


@pytest.mark.long
def test_a_replica_is_killed_while_its_jobs_fail_and_every_job_is_recovered(world: World, second: Program) -> None:
    """kill -9 of the advisor that the agent talks to and that holds some of the jobs, as their nodes fail: each job is
    requeued once, without its bad node, and finishes."""
    bad = {"node1": "node2", "node3": "node4", "node5": "node6"}
    runs = []
    for first, node in bad.items():
        fault = {"kind": "xid79", "attempt": 0, "node": node, "step": 30}
        run = world.launch("alice", Training(name=f"beside-{first}", nodes=2, steps=36, faults=[fault]))
        run.wait("RUNNING", seconds=30)
        assert node in run.nodes
        runs.append(run)

    def held() -> bool:
        with Client(world.stack.socket) as client:
            return {item.pid: item.jobs for item in client.status().replicas if item.alive}.get(second.pid, 0) > 0

    wait_for("the second advisor's share", held, seconds=60, every_seconds=0.3)
    for run in runs:
        run.wait("FAILED", "COMPLETING", "PENDING", seconds=90)
        if second.running:
            second.kill()
    for run, node in zip(runs, bad.values(), strict=True):
        row = run.wait("COMPLETED", restarts=1, seconds=120)
        assert row.excluded == {node}
        assert world.cluster.completions(run.job_id)[-1] == "COMPLETED"
        restarts = [item for item in run.decisions() if item["advice"]["action"] == "ACTION_RESTART"]
        assert {item["advice"]["attempt"].get("attempt", 0) for item in restarts} == {0}
        generations = [int(item["advice"]["generation"]) for item in restarts]
        assert len(generations) == len(set(generations))
