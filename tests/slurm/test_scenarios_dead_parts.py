"""Scenario g: parts of us die at the worst moment. One requeue each time, and no job waits on the dead."""

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from advisor.demo.training import Training
from advisor.demo.waiting import holds_for, wait_for
from advisor.demo.world import Run, World

_SETTLE_SECONDS = 30.0
_SLURM_DELAY_SECONDS = 6
_FAULT = {"kind": "xid79", "attempt": 0, "node": "node2", "step": 6}


def test_g_the_agent_dies_between_requeue_and_update(world: World, knife: Any) -> None:
    """g: killed in that very gap and started again: exclusions still arrive in time, and there is one requeue."""
    run = world.launch("alice", Training(name="scenario-g1", steps=12, faults=[_FAULT]))
    run.wait_step(3)
    knife.arm(world.stack.agent.pid)
    wait_for("the requeue that kills the agent", lambda: not world.stack.agent.running, seconds=40)
    assert knife.used
    row = run.wait("PENDING", restarts=1, seconds=10)
    assert row.excluded == frozenset()
    world.stack.agent.start()
    row = run.wait("COMPLETED", restarts=1)
    assert row.excluded == {"node2"}
    assert "node2" not in run.nodes
    assert holds_for(lambda: (run.row.state, run.row.restarts) == ("COMPLETED", 1), seconds=5)


def test_g_the_agent_dies_between_requeue_and_update_and_stays_dead(world: World, knife: Any) -> None:
    """g: nobody comes back: Slurm starts the job by itself, as no hold was ever placed."""
    run = world.launch("alice", Training(name="scenario-g2", steps=12, faults=[_FAULT]))
    run.wait_step(3)
    knife.arm(world.stack.agent.pid)
    wait_for("the requeue that kills the agent", lambda: not world.stack.agent.running, seconds=40)
    world.stack.advisor.kill()
    world.stack.watchdog.kill()
    row = run.wait("COMPLETED", restarts=1)
    assert row.excluded == frozenset()


def test_g_the_agent_dies_between_a_cancel_and_its_word(world: World, knife: Any) -> None:
    """g: an operator's stop was carried out, and nobody said so: not told as his, nor as the user's; it stays over."""
    run = world.launch("alice", Training(name="scenario-g9", steps=400))
    run.wait_step(3)
    knife.cancel.arm(world.stack.agent.pid)
    stop = ("override", str(run.job_id), "stop", "--confirm", "--why", "enough")
    # Until the agent has told of the job there is none to stop.
    wait_for("the stop", lambda: world.stack.cli(*stop).returncode == 0, seconds=30, every_seconds=0.5)
    wait_for("the cancel that kills the agent", lambda: not world.stack.agent.running, seconds=40)
    assert knife.cancel.used
    run.wait("CANCELLED", restarts=0, seconds=40)
    world.stack.agent.start()
    made = run.wait_decision(
        "what is known of it", lambda item: item["advice"]["reason"] == "stop_unreported", seconds=60
    )
    assert made["advice"]["action"] == "ACTION_NONE"
    assert "ended by it, or by somebody else; ordered by root (enough)" in made["advice"]["explanation"]
    told = world.stack.cli("explain", str(run.job_id)).stdout
    assert "was cancelled while our stop of it was out" in told
    assert "somebody cancelled it" not in told
    assert holds_for(lambda: (run.row.state, run.row.restarts) == ("CANCELLED", 0), seconds=5)


def test_g_the_advisor_dies_before_deciding(world: World) -> None:
    """g: killed before the failure and back within MinJobAge: one requeue, without the bad node."""
    run = world.launch("alice", Training(name="scenario-g3", steps=12, faults=[_FAULT]))
    run.wait_step(3)
    world.stack.advisor.kill()
    run.wait("FAILED", seconds=30)
    assert holds_for(lambda: run.row.state == "FAILED", seconds=5)
    world.stack.advisor.start()
    world.stack.wait_ready()
    row = run.wait("COMPLETED", restarts=1)
    assert row.excluded == {"node2"}
    assert holds_for(lambda: (run.row.state, run.row.restarts) == ("COMPLETED", 1), seconds=5)


def _saved(world: World) -> Path:
    """A copy of what slurmctld knows now, once it has saved that."""
    state, kept, since = (world.cluster.root / name for name in ("state", "state-before", "since"))
    since.touch()
    wait_for("it saved", lambda: (state / "job_state").stat().st_mtime > since.stat().st_mtime, seconds=30)
    subprocess.run(["cp", "-a", str(state), str(kept)], check=True)
    return kept


def _forget_since(world: World, kept: Path) -> None:
    """slurmctld is killed, and had saved nothing since."""
    world.cluster.kill_controller()
    shutil.rmtree(world.cluster.root / "state")
    kept.rename(world.cluster.root / "state")
    world.cluster.start_controller()


def test_g_slurmctld_forgets_a_requeue_that_was_verified(world: World) -> None:
    """g: killed within the seconds that it had not saved: its job has failed again, and is requeued once more."""
    run = world.launch("alice", Training(name="scenario-g8", steps=12, faults=[_FAULT]))
    run.wait_step(3)
    agent = world.stack.agent.pid
    os.kill(agent, signal.SIGSTOP)
    try:
        run.wait("FAILED", seconds=30)
        kept = _saved(world)
    finally:
        os.kill(agent, signal.SIGCONT)
    first = run.wait_decision("the requeue seen", lambda item: item["status"] == "RECONCILIATION_STATUS_VERIFIED")
    _forget_since(world, kept)
    again = run.wait_decision(
        "a newer one", lambda item: int(item["advice"]["generation"]) > int(first["advice"]["generation"]), seconds=60
    )
    assert again["advice"]["action"] == "ACTION_RESTART"
    row = run.wait("COMPLETED", restarts=1, seconds=60)
    assert row.excluded == {"node2"}
    assert "requeue_forgotten" in world.stack.cli("audit", "list").stdout
    assert holds_for(lambda: (run.row.state, run.row.restarts) == ("COMPLETED", 1), seconds=5)


def test_g_slurmctld_forgets_the_end_of_an_attempt_with_its_requeue(world: World) -> None:
    """g: it shows the attempt running, which nobody runs: it is ended, and requeued without the bad node."""
    run = world.launch(
        "alice", Training(name="scenario-g10", steps=14, step_seconds=1.0, faults=[{**_FAULT, "step": 12}])
    )
    run.wait_step(2)
    kept = _saved(world)
    run.wait_decision("the requeue seen", lambda item: item["status"] == "RECONCILIATION_STATUS_VERIFIED", seconds=60)
    _forget_since(world, kept)
    wait_for("the end forgotten", lambda: run.row.state == "RUNNING" and run.row.restarts == 0, seconds=30)
    row = run.wait("COMPLETED", restarts=1, seconds=180)
    assert row.excluded == {"node2"}
    job = str(run.job_id)
    assert "attempt 1 never was: the scheduler forgot its requeue" in world.stack.cli("timeline", job).stdout
    assert "has forgotten an earlier requeue of it" in world.stack.cli("explain", job, "--attempt", "0").stdout
    assert holds_for(lambda: (run.row.state, run.row.restarts) == ("COMPLETED", 1), seconds=5)


@pytest.fixture
def leasing(world: World, request: pytest.FixtureRequest) -> Iterator[World]:
    """A policy under which exclusions may still change after Slurm's own delay, so that StartTime is leased."""
    seconds = getattr(request, "param", _SETTLE_SECONDS)
    world.stack.restart_advisor({**world.stack.policy, "settle_seconds": {"gpu_hardware": seconds}})
    yield world
    world.stack.restart_advisor(world.stack.policy)


@pytest.mark.parametrize("leasing", [15.0], indirect=True)
def test_g_a_leased_job_starts_by_its_deadline_with_all_of_us_dead(leasing: World) -> None:
    """g: everything of ours is dead while a lease keeps the job pending: Slurm starts it when the lease ends."""
    run = leasing.launch("alice", Training(name="scenario-g6", steps=12, faults=[_FAULT]))
    lease = wait_for("a lease", lambda: _lease_end(run), seconds=40)
    for program in leasing.stack.programs:
        program.kill()
    row = run.wait("RUNNING", "COMPLETED", restarts=1, seconds=_SETTLE_SECONDS + 20)
    assert row.start is not None
    assert lease - 1 <= row.start <= lease + 5
    assert run.wait("COMPLETED", restarts=1).excluded == {"node2"}


def test_g_the_watchdog_alone_ends_a_lease_early(leasing: World) -> None:
    """g: the same, and the watchdog alone comes back: it brings StartTime forward to what Slurm allows."""
    run = leasing.launch("alice", Training(name="scenario-g7", steps=12, faults=[_FAULT]))
    lease = wait_for("a lease", lambda: _lease_end(run), seconds=40)
    for program in leasing.stack.programs:
        program.kill()
    leasing.stack.watchdog.start()
    row = run.wait("RUNNING", "COMPLETED", restarts=1, seconds=_SETTLE_SECONDS + 20)
    assert row.start is not None
    assert row.start < lease - 3
    run.wait("COMPLETED", restarts=1)


def test_g_with_all_of_us_dead_the_watchdog_alone_gives_exclusions_back(world: World) -> None:
    """g: our exclusion keeps a pending job from starting and all of us are dead; the watchdog alone comes back."""
    run = world.launch(
        "alice",
        Training(name="scenario-g4", nodes=5, ranks_per_node=1, steps=12, faults=[_FAULT]),
    )
    wait_for("our exclusion", lambda: run.row.excluded == {"node2"}, seconds=40)
    for program in world.stack.programs:
        program.kill()
    world.cluster.must("scontrol", "update", "NodeName=node6", "State=DRAIN", "Reason=maintenance")
    try:
        assert holds_for(lambda: run.row.state == "PENDING", seconds=10)
        world.stack.watchdog.start()
        row = run.wait("RUNNING", "COMPLETED", restarts=1, seconds=60)
        assert row.excluded == frozenset()
        assert "node6" not in run.nodes
        run.wait("COMPLETED", restarts=1)
    finally:
        world.cluster.must("scontrol", "update", "NodeName=node6", "State=RESUME")
    assert "maintenance" in world.cluster.controller_log.read_text(errors="replace")


def test_g_after_a_restart_of_everything_nothing_is_done_twice(world: World) -> None:
    """g: all three killed right after the recovery and started again: the job is left as it is."""
    run = world.launch("alice", Training(name="scenario-g5", steps=60, faults=[_FAULT]))
    run.wait("RUNNING", restarts=1)
    for program in world.stack.programs:
        program.kill()
    world.stack.start()
    row = run.wait("COMPLETED", restarts=1)
    assert row.excluded == {"node2"}
    assert holds_for(lambda: _at_rest(run), seconds=6)


def _lease_end(run: Run) -> int | None:
    """When a leased job may start, epoch seconds; None while its start is only Slurm's own delay away."""
    row = run.row
    if row.state != "PENDING" or row.restarts != 1 or row.start is None or row.submitted is None:
        return None
    return row.start if row.start > row.submitted + _SLURM_DELAY_SECONDS + 5 and row.excluded else None


def _at_rest(run: Run) -> bool:
    row = run.row
    return row.state == "COMPLETED" and row.restarts == 1 and row.excluded == {"node2"}
