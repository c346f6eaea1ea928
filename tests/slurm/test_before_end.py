"""The end of a live attempt on a real Slurm: it is asked to save first, and a dead node does not keep it waiting."""

import json
from collections.abc import Iterator
from datetime import datetime

import pytest

from advisor.demo.training import Training
from advisor.demo.waiting import wait_for
from advisor.demo.world import World

OPT_IN = json.dumps({"advisor": {"enabled": True}})
_SAVE = '[before_kill]\ndump_signal = "USR1"\nsave_signal = "USR2"\ntarget = "batch"\nwait_seconds_max = 30.0\n'
_DOWN = '[isolation]\nmode = "act"\ndown_dead_nodes = true\ndown_after_seconds = 1.0\n'
# A trainer that hangs after step 30, and saves and dumps when it is asked to.
_SCRIPT = """#!/bin/bash
trap 'echo "dumping stacks"' USR1
trap 'echo "  successfully saved checkpoint from iteration      33 to /ckpt"' USR2
[ -n "$SLURM_RESTART_COUNT" ] && exit 0
for step in $(seq 1 30); do
  printf 'iteration %8d/     100 | elapsed time per iteration (ms): 100.0 | loss: 1.0\n' "$step"
  sleep 0.1
done
while :; do sleep 600 & wait $!; done
"""


@pytest.fixture
def saving(world: World) -> Iterator[World]:
    policy = world.stack.policy
    world.stack.restart_advisor({**policy, "save_wait_seconds": 25.0, "save_hung": True})
    world.stack.restart_agent(_SAVE)
    yield world
    world.stack.restart_advisor(policy)
    world.stack.restart_agent("")


def _hang(world: World, script: str, name: str) -> int:
    output = world.cluster.runtime.home("alice") / f"{name}.out"
    return world.cluster.submit(
        "alice", script, "-N1", f"--comment={OPT_IN}", f"--output={output}", "--open-mode=append", f"--job-name={name}"
    )


def test_a_hung_attempt_saves_before_its_end_and_no_time_is_lost(saving: World) -> None:
    """Asked to dump and to save, it does both; the checkpoint ends the wait long before its time is over."""
    job = _hang(saving, _SCRIPT, "before-end-saves")
    text = saving.cluster.runtime.home("alice") / "before-end-saves.out"
    wait_for(
        "both signals", lambda: "saved checkpoint from" in text.read_text() if text.exists() else False, seconds=60
    )
    row = saving.cluster.wait_state(job, "COMPLETED", seconds=60, restarts=1)
    assert "dumping stacks" in text.read_text()
    restart = [item for item in saving.stack.decisions(job) if item["advice"]["action"] == "ACTION_RESTART"]
    assert {item["advice"].get("resume_step") for item in restart} >= {"33"}
    done = saving.stack.agent.log.read_text()
    assert '"done": ["signal", "signal"]' in done
    asked, ended = _times(done, job)
    assert ended - asked < 15
    assert row.restarts == 1


@pytest.mark.long
def test_one_that_cannot_answer_is_ended_when_its_time_is_over(saving: World) -> None:
    """Nothing is saved: it waits for its time, no longer, and is then requeued."""
    deaf = _SCRIPT.replace("successfully saved checkpoint from iteration      33", "cannot save")
    job = _hang(saving, deaf, "before-end-deaf")
    saving.cluster.wait_state(job, "COMPLETED", seconds=100, restarts=1)
    asked, ended = _times(saving.stack.agent.log.read_text(), job)
    assert 20 < ended - asked < 30


def _times(log: str, job: int) -> tuple[float, float]:
    """When the agent asked, and when it requeued."""

    said = [json.loads(line) for line in log.splitlines() if line.startswith("{")]
    mine = [item for item in said if item.get("job") == str(job) and "done" in item]
    at = {
        verb: datetime.fromisoformat(item["timestamp"]).timestamp() for item in reversed(mine) for verb in item["done"]
    }
    return at["signal"], at["requeue_incomplete"]


@pytest.fixture
def freeing(world: World) -> Iterator[World]:
    policy = world.stack.policy
    # Longer than Slurm takes to notice: what it does not know yet cannot go down with the requeue.
    world.stack.restart_advisor({**policy, "node_down": True, "node_down_after_seconds": 1.0, "hang_seconds": 40.0})
    world.stack.restart_agent(_DOWN)
    yield world
    world.stack.restart_advisor(policy)
    world.stack.restart_agent("")


@pytest.mark.long
def test_a_dead_node_goes_down_behind_the_requeue_and_the_gpus_are_not_lost(freeing: World) -> None:
    """k, with GPUs: without this the attempt after it fails with "Invalid generic resource" on Slurm 22.05.8."""
    hang = {"kind": "hang", "attempt": 0, "node": "node2", "step": 8}
    run = freeing.launch("alice", Training(name="before-end-dead", steps=20, collective_seconds=600, faults=[hang]))
    run.wait_step(7)
    assert run.nodes == ("node1", "node2")
    freeing.cluster.kill_node("node2")
    try:
        row = run.wait("COMPLETED", "FAILED", restarts=1, seconds=100)
        assert (row.state, row.restarts) == ("COMPLETED", 1), run.text
        assert "node2" not in run.nodes
        assert "set DOWN: node2" in freeing.stack.agent.log.read_text()
    finally:
        freeing.cluster.start_node("node2")
