"""What people and their scripts do to a job between our steps is theirs: nothing of it is undone or doubled."""

import json

from advisor.client import Client
from advisor.core import codec
from advisor.demo.training import Training
from advisor.demo.waiting import holds_for, wait_for
from advisor.demo.world import Run, World
from advisor.replay import Packed, reproduce
from advisor.v1 import audit_pb2, common_pb2

OPT_IN = json.dumps({"advisor": {"enabled": True}})


def test_a_job_that_its_user_requeued_is_not_cancelled_by_a_stop(world: World, client: Client) -> None:
    """The stop is decided while the agent does not hear it, its user runs the job again, and only then it is heard."""
    fault = {"kind": "keyerror", "step": 7}
    run = world.launch("alice", Training(name="people-stop", steps=400, faults=[fault]))
    run.wait("RUNNING", restarts=1, seconds=60)
    run.wait("FAILED", restarts=1, seconds=60)
    wait_for("the failure to be known", lambda: _known_to_have_failed(client, run), seconds=20, every_seconds=0.05)
    world.stack.agent.freeze()
    try:
        run.wait_decision("a stop", lambda item: item["advice"]["action"] == "ACTION_STOP", seconds=20)
        world.cluster.must("scontrol", "requeue", str(run.job_id), user="alice")
        run.wait("PENDING", restarts=2, seconds=5)
    finally:
        world.stack.agent.thaw()
    run.wait("FAILED", restarts=2, seconds=40)
    assert holds_for(lambda: (run.row.state, run.row.restarts) == ("FAILED", 2), seconds=6)


def test_only_the_failed_task_of_an_array_is_requeued(world: World) -> None:
    """The last task of an array keeps the array's own id, which names all of them."""
    script = '#!/bin/sh\nsleep 2\n[ "$SLURM_ARRAY_TASK_ID" = 0 ] || [ -n "$SLURM_RESTART_COUNT" ] || exit 7\n'
    options = ("-N1", "--array=0-2", f"--comment={OPT_IN}", f"--output={world.cluster.runtime.home('alice')}/%A_%a.out")
    array = world.cluster.submit("alice", script, *options)
    ids = range(array, array + 3)

    def tasks() -> list[tuple[str, int]]:
        return sorted((row.state, row.restarts) for job, row in world.cluster.jobs().items() if job in ids)

    done = [("COMPLETED", 0), ("COMPLETED", 1), ("COMPLETED", 1)]
    wait_for("all tasks to complete", lambda: tasks() == done, seconds=60)
    assert holds_for(lambda: tasks() == done, seconds=5)


def test_a_script_that_requeues_itself_is_not_requeued_again(world: World) -> None:
    """Its own requeue looks like the end of the attempt; it is one restart, and no exclusion follows."""
    script = '#!/bin/sh\n[ -n "$SLURM_RESTART_COUNT" ] && exit 0\nsleep 2\nscontrol requeue "$SLURM_JOB_ID"\nsleep 60\n'
    job = world.cluster.submit("alice", script, "-N2", f"--comment={OPT_IN}", "--output=/dev/null")
    row = world.cluster.wait_state(job, "COMPLETED", seconds=60)
    assert (row.restarts, row.excluded, row.admin_comment) == (1, frozenset(), "")
    restarts = [i for i in world.stack.decisions(job) if i["advice"]["action"] == "ACTION_RESTART"]
    assert restarts == []


def test_what_a_user_edits_after_our_update_stays(world: World) -> None:
    """The user takes our exclusion out again and names another node: the job starts by the user's list."""
    fault = {"kind": "xid79", "attempt": 0, "node": "node2", "step": 6}
    run = world.launch("alice", Training(name="people-edit", steps=15, faults=[fault]))
    wait_for("our exclusion", lambda: run.row.restarts == 1 and "node2" in run.row.excluded, seconds=40)
    wait_for("our verification", lambda: run.row.state == "PENDING", seconds=10)
    world.cluster.must("scontrol", "update", f"JobId={run.job_id}", "ExcNodeList=node5", user="alice")
    row = run.wait("COMPLETED", restarts=1)
    assert row.excluded == {"node5"}


def test_every_decision_of_all_these_can_be_replayed(world: World) -> None:
    """Whatever was decided in this session, of every kind, gives the same bytes again."""
    with world.stack.client() as client:
        decisions = {
            item.advice.advice_id: item.advice.action for item in client.decisions(audit_pb2.Filter(), most=1000)
        }
        assert {common_pb2.ACTION_RESTART, common_pb2.ACTION_STOP, common_pb2.ACTION_NONE} <= set(decisions.values())
        for decision_id in decisions:
            stored = client.decision_inputs(decision_id)
            again = reproduce(Packed(inputs=stored.inputs, rules=stored.rules, policy=stored.policy))
            assert codec.encode(again) == stored.decision, decision_id


def _known_to_have_failed(client: Client, run: Run) -> bool:
    """The second attempt's end is known, and its stop waits for slower evidence."""
    attempts = client.attempts(audit_pb2.Filter(job_id=str(run.job_id)), most=10)
    return any((item.attempt.attempt, item.state) == (1, common_pb2.ATTEMPT_STATE_FAILED) for item in attempts)
