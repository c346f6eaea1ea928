"""A bad node, and what must follow: scenarios a, b, e, i and k. Checked against Slurm's own record."""

import json
import shutil
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pytest

from advisor.client import Client
from advisor.demo.training import Training
from advisor.demo.waiting import holds_for, wait_for
from advisor.demo.world import Run, World
from advisor.v1 import audit_pb2

_VERIFIED = "RECONCILIATION_STATUS_VERIFIED"


def _xid79(node: str, attempt: int = 0, step: int = 12) -> dict[str, object]:
    return {"kind": "xid79", "attempt": attempt, "node": node, "step": step}


def _restart_of(attempt: int, *nodes: str) -> Any:
    def wanted(decision: dict[str, Any]) -> bool:
        advice = decision["advice"]
        return (
            advice["attempt"].get("attempt", 0) == attempt
            and advice["action"] == "ACTION_RESTART"
            and sorted(advice.get("exclude_nodes", [])) == sorted(nodes)
        )

    return wanted


def _verified(wanted: Any) -> Any:
    return lambda decision: wanted(decision) and decision.get("status") == _VERIFIED


def _milestones(decision: dict[str, Any]) -> set[str]:
    return {item["kind"].removeprefix("MILESTONE_KIND_") for item in decision.get("milestones", [])}


def test_a_a_job_with_a_bad_node_finishes_elsewhere(world: World, client: Client) -> None:
    """a: Xid 79 on node2: requeued once without node2 and nothing else, resumed, implication kept, replay identical."""
    run = world.launch("alice", Training(name="scenario-a", nodes=3, steps=20, faults=[_xid79("node2")]))
    run.wait("RUNNING", seconds=20)
    assert "node2" in run.nodes

    row = run.wait("COMPLETED", restarts=1)
    assert row.excluded == {"node2"}
    assert "node2" not in run.nodes
    assert "loading checkpoint from" in run.text
    assert "iteration       11/" in run.text
    assert "iteration       10/" not in run.text
    assert world.cluster.completions(run.job_id)[-1] == "COMPLETED"

    decision = run.wait_decision("a verified restart", _verified(_restart_of(0, "node2")))
    assert decision["advice"]["category"] == "gpu_hardware"
    assert any(item["trust"] == "kernel" and "79" in item["text"] for item in decision["advice"]["evidence"])
    decision_id = decision["advice"]["advice_id"]
    replay = world.stack.cli("replay", decision_id)
    assert replay.returncode == 0, replay.stderr

    nodes = {node.name: node for node in client.nodes(audit_pb2.Filter(), most=100)}
    ours = [item for item in nodes["node2"].implications if item.attempt.job_id == str(run.job_id)]
    assert [(item.category, item.trust, item.attempt.attempt) for item in ours] == [("gpu_hardware", "kernel", 0)]
    assert not any(
        item.attempt.job_id == str(run.job_id)
        for node in nodes.values()
        if node.name != "node2"
        for item in node.implications
    )
    expected = {"FAULT_VISIBLE", "DETECTED", "ADVISED", "REQUEUE_ACCEPTED", "UPDATE_ACCEPTED", "ELIGIBLE", "RUNNING"}
    wait_for("all milestones", lambda: expected <= _all_milestones(run), seconds=15, every_seconds=0.3)


def test_b_exclusions_grow_and_the_users_own_are_kept(world: World) -> None:
    """b: own ExcNodeList node1, failing on node2 and then on node3: in the end node1, node2 and node3 are excluded."""
    faults = [_xid79("node2", attempt=0), _xid79("node3", attempt=1, step=17)]
    run = world.launch("alice", Training(name="scenario-b", steps=24, faults=faults, options=("--exclude=node1",)))
    run.wait("RUNNING", seconds=20)
    assert run.nodes == ("node2", "node3")

    run.wait("RUNNING", restarts=1)
    assert run.row.excluded == {"node1", "node2"}
    assert "node3" in run.nodes
    row = run.wait("COMPLETED", restarts=2)
    assert row.excluded == {"node1", "node2", "node3"}
    assert set(run.nodes).isdisjoint(row.excluded)
    run.wait_decision("the second restart", _verified(_restart_of(1, "node2", "node3")))


def test_what_only_one_node_met_at_start_up_is_confirmed_without_it(world: World) -> None:
    """A program that cannot start on node2, as where a mount is missing there: its one retry avoids node2, and ends."""
    fault = {"kind": "keyerror", "node": "node2", "step": 1}
    run = world.launch("alice", Training(name="scenario-mount", nodes=3, steps=15, faults=[fault]))
    row = run.wait("COMPLETED", restarts=1)
    assert row.excluded == {"node2"}
    decision = run.wait_decision("a verified restart", _verified(_restart_of(0, "node2")))
    assert decision["advice"]["reason"] == "confirmation_retry"
    assert "tried without node2, alone in this failure" in decision["advice"]["explanation"]
    assert world.cluster.completions(run.job_id)[-1] == "COMPLETED"


def test_e_monitor_mode_gives_the_same_advice_and_touches_nothing(world: World) -> None:
    """e: like a, in monitor mode: the advice is there, Slurm's record is as if we did not exist."""
    fault = _xid79("node2", step=30)
    run = world.launch("alice", Training(name="scenario-e", nodes=3, steps=40, faults=[fault]))
    world.stack.set_mode("monitor", job_id=str(run.job_id))
    assert "iteration       30/" not in run.text
    decision = run.wait_decision("advice", _restart_of(0, "node2"), seconds=40)
    assert decision["advice"]["mode"] == "MODE_MONITOR"
    assert decision["advice"]["category"] == "gpu_hardware"
    row = run.wait("FAILED", seconds=20)
    assert holds_for(lambda: _untouched(run), seconds=6)
    assert run.row == row
    assert world.cluster.completions(run.job_id) == ["FAILED"]


def test_i_a_job_out_of_scope_gets_advice_and_nothing_else(world: World) -> None:
    """i: neither opted in nor selected: what a would have had is recorded, and nothing is touched."""
    run = world.launch("alice", Training(name="scenario-i", nodes=3, steps=20, faults=[_xid79("node2")], opt_in=False))
    decision = run.wait_decision("advice", _restart_of(0, "node2"), seconds=40)
    run.wait("FAILED", seconds=20)
    assert holds_for(lambda: _untouched(run), seconds=6)
    assert world.cluster.completions(run.job_id) == ["FAILED"]
    shown = world.stack.ask("decisions", "show", decision["advice"]["advice_id"])
    assert shown.get("status") not in {"RECONCILIATION_STATUS_APPLIED", _VERIFIED}, json.dumps(shown, indent=1)


def test_k_a_dead_node_holding_a_hanging_job_is_left_behind(world: World) -> None:
    """k: node2's slurmd dies under a hanging job: requeued without node2, each stage reported as it is reached."""
    hang = {"kind": "hang", "attempt": 0, "node": "node2", "step": 8}
    # No GPUs: Slurm 22.05.8 loses count of a job's GPUs when it is requeued, its live nodes have let it go, and the
    # dead one goes DOWN after that: the next attempt gets "Invalid generic resource", whoever asked for the requeue.
    training = Training(name="scenario-k", steps=20, gpus_per_node=0, collective_seconds=600, faults=[hang])
    run = world.launch("alice", training)
    run.wait_step(7)
    assert run.nodes == ("node1", "node2")
    world.cluster.kill_node("node2")
    try:
        row = run.wait("COMPLETED", restarts=1, seconds=100)
        assert "node2" in row.excluded
        assert "node2" not in run.nodes
        expected = {"UPDATE_ACCEPTED", "NODES_RELEASED", "RUNNING"}
        wait_for("the milestones of k", lambda: expected <= _all_milestones(run), seconds=15, every_seconds=0.3)
        order = _times(run)
        assert order["UPDATE_ACCEPTED"] <= order["NODES_RELEASED"] <= order["RUNNING"]
    finally:
        world.cluster.start_node("node2")


def test_a_job_that_hangs_by_its_own_rule_is_requeued(world: World) -> None:
    """Its first step does not come in the time that its rules file allows: long before any limit of the policy."""
    rules = world.cluster.runtime.home("alice") / "own-rules.json"
    rules.write_text(
        json.dumps([{"name": "steps", "logPattern": r".*iteration +\d+/", "expectedStartCutOffInSeconds": 12}])
    )
    shutil.chown(rules, "alice", "alice")
    hang = {"kind": "hang", "attempt": 0, "step": 1}
    comment = json.dumps({"advisor": {"enabled": True, "rules": str(rules)}})
    training = Training(
        name="own-rule", steps=5, collective_seconds=600, faults=[hang], options=(f"--comment={comment}",)
    )
    run = world.launch("alice", training)
    row = run.wait("COMPLETED", restarts=1, seconds=90)
    assert not row.excluded
    run.wait_decision("a verified restart", _verified(_restart_of(0)))
    first = min(filter(_restart_of(0), run.decisions()), key=lambda decision: int(decision["advice"]["generation"]))
    assert [item["rule"] for item in first["advice"]["evidence"]] == ["job.hang"]
    assert "its first line has not come in 12 s" in first["advice"]["evidence"][0]["text"]


@pytest.fixture
def impatient(world: World) -> Iterator[World]:
    """A policy under which a job hangs after seconds, and may do so three times."""
    seconds = {
        "hang_seconds": 4.0,
        "hang_floor_seconds": 2.0,
        "hang_learning_seconds": 0.0,
        "trusted_fatal_grace_seconds": 2.0,
    }
    world.stack.restart_advisor({**world.stack.policy, **seconds, "restarts_unexplained": 3, "suspects_after": 0})
    yield world
    world.stack.restart_advisor(world.stack.policy)


def test_a_job_that_hangs_at_the_same_step_each_time_is_stopped(impatient: World) -> None:
    """What Slurm prints of each requeue, into the file that all attempts share, is no cause, and no count is lost."""
    world = impatient
    lines = 'for i in $(seq 1 20); do echo " iteration $i/ 100 | lm loss: 2.0 |"; sleep 0.1; done'
    script = f"#!/bin/sh\nsrun sh -c '{lines}; sleep 3000'\n"
    output = world.cluster.runtime.home("alice") / "hangs.out"
    options = ("-N1", f"--output={output}", "--open-mode=append", """--comment={"advisor": {"enabled": true}}""")
    job = str(world.cluster.submit("alice", script, *options))
    world.cluster.wait_state(int(job), "CANCELLED", seconds=150)
    assert world.cluster.job(int(job)).restarts == 3
    assert "DUE TO JOB REQUEUE" in output.read_text()
    decisions = world.stack.ask("decisions", "list", "--job", job, "--limit", "100")
    restarts = [item["advice"] for item in decisions if item["advice"]["action"] == "ACTION_RESTART"]
    assert {(item["category"], item["reason"]) for item in restarts} == {("unknown", "hang")}
    for number in range(3):
        told = world.stack.cli("explain", job, "--attempt", str(number)).stdout
        assert "was ended when its job was put back into the queue" in told
        assert "nothing is wrong with your program" not in told


def _untouched(run: Run) -> bool:
    row = run.row
    return row.state in {"COMPLETING", "FAILED"} and not row.restarts and not row.excluded and not row.admin_comment


def _all_milestones(run: Run) -> set[str]:
    return {kind for decision in run.decisions() for kind in _milestones(decision)}


def _times(run: Run) -> dict[str, datetime]:
    return {
        item["kind"].removeprefix("MILESTONE_KIND_"): datetime.fromisoformat(item["at"])
        for decision in run.decisions()
        for item in decision.get("milestones", [])
    }
