"""What operators order, on a real Slurm: nothing of it is done too late, and what was too late is said so."""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from advisor.demo.training import Training
from advisor.demo.waiting import holds_for, wait_for
from advisor.demo.world import Run, World

RESTART, STOP = "ACTION_RESTART", "ACTION_STOP"


def xid79(node: str = "node2", step: int = 6) -> dict[str, object]:
    return {"kind": "xid79", "attempt": 0, "node": node, "step": step}


def order(world: World, *argv: str) -> dict[str, Any]:
    """The answer to one order of an operator's."""
    done = world.stack.cli(*argv, "--format", "json")
    assert done.returncode == 0, (argv, done.stdout, done.stderr)
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


@contextmanager
def paused(world: World) -> Iterator[None]:
    """The agent hears advice and holds it."""
    order(world, "pause", "--until", "10m", "--why", "test")
    yield
    order(world, "resume", "--why", "test")


def advised(run: Run, action: str, **more: str) -> dict[str, Any]:
    def fits(item: dict[str, Any]) -> bool:
        advice = item["advice"]
        return advice["action"] == action and all(advice.get(name) == value for name, value in more.items())

    return run.wait_decision(f"advice to {action}", fits, seconds=40)


def test_a_vetoed_attempt_is_not_requeued_until_the_veto_is_lifted(world: World) -> None:
    """Vetoed while it ran: it fails and stays as it is; lifted within MinJobAge, it is restarted without the node."""
    run = world.launch("alice", Training(name="veto", steps=20, faults=[xid79()]))
    run.wait("RUNNING", seconds=20)
    vetoed = order(world, "veto", str(run.job_id), "--why", "debugging")
    run.wait("FAILED", restarts=0, seconds=40)
    advised(run, "ACTION_NONE", reason="vetoed")
    assert holds_for(lambda: (run.row.state, run.row.restarts) == ("FAILED", 0), seconds=5)
    order(world, "orders", "lift", vetoed["order"]["order_id"], "--why", "done")
    row = run.wait("COMPLETED", restarts=1)
    assert row.excluded == {"node2"}


def test_advice_withdrawn_while_the_agent_holds_it_is_never_applied(world: World) -> None:
    """The agent confirms that it let go; when it may act again, nothing happens; doing it twice changes nothing."""
    run = world.launch("alice", Training(name="withdraw", steps=20, faults=[xid79()]))
    with paused(world):
        run.wait("FAILED", restarts=0, seconds=60)
        held = advised(run, RESTART)
        answer = order(world, "withdraw", held["advice"]["advice_id"], "--why", "wrong node")
        assert (answer["effect"], answer["action"]) == ("in_force", "ACTION_NONE")
        again = order(world, "withdraw", str(run.job_id), "--why", "wrong node")
        assert again["effect"] == "unchanged"
    assert holds_for(lambda: (run.row.state, run.row.restarts) == ("FAILED", 0), seconds=6)


def test_a_restart_that_is_overridden_by_a_stop_is_not_made(world: World) -> None:
    """Only with --confirm; the job has ended, so that it is stopped already; what is too late then is refused."""
    run = world.launch("alice", Training(name="to-stop", steps=20, faults=[xid79()]))
    with paused(world):
        run.wait("FAILED", restarts=0, seconds=60)
        advised(run, RESTART)
        unsure = world.stack.cli("override", str(run.job_id), "stop", "--why", "enough")
        assert (unsure.returncode, "--confirm" in unsure.stderr) == (2, True)
        answer = order(world, "override", str(run.job_id), "stop", "--confirm", "--why", "enough")
        assert answer["action"] == STOP
    stopped = run.wait_decision(
        "a stop that is in force", lambda item: item.get("status", "").endswith("ALREADY_SATISFIED"), seconds=20
    )
    assert stopped["advice"]["reason"] == "operator"
    assert "ordered by root (enough)" in stopped["advice"]["explanation"]
    assert holds_for(lambda: (run.row.state, run.row.restarts) == ("FAILED", 0), seconds=5)
    assert world.stack.cli("replay", stopped["advice"]["advice_id"]).returncode == 0


@pytest.mark.parametrize("how", ["override", "budget"])
def test_a_stopped_job_restarts_when_an_operator_wants_it(world: World, how: str) -> None:
    """Certain to fail again by the table: overridden, or with its budget reset, it is requeued once more."""
    run = world.launch("alice", Training(name=f"again-{how}", steps=400, faults=[{"kind": "keyerror", "step": 7}]))
    run.wait("FAILED", restarts=1, seconds=90)
    advised(run, STOP)
    if how == "override":
        answer = order(world, "override", str(run.job_id), "restart", "--why", "the data is there now")
    else:
        answer = order(world, "budget", "reset", str(run.job_id), "--why", "the data is there now")
    run.wait("PENDING", "RUNNING", restarts=2, seconds=30)
    assert answer["order"]["set_by"] == "root"
    if how == "override":
        too_late = world.stack.cli("veto", str(run.job_id), "--attempt", "1", "--why", "no")
        assert (too_late.returncode, "too late" in too_late.stderr) == (1, True)
    world.cluster.must("scancel", str(run.job_id))


def test_an_exclusion_added_by_hand_reaches_slurm_and_one_cleared_leaves_it(world: World) -> None:
    """Beside what evidence excludes and what the user does; the user's own stays when all of ours is cleared."""
    run = world.launch("alice", Training(name="by-hand", steps=20, faults=[xid79()]))
    run.wait("RUNNING", seconds=20)
    order(world, "exclusions", "add", str(run.job_id), "node5", "--why", "smells")
    wait_for("both exclusions", lambda: run.row.restarts == 1 and run.row.excluded == {"node2", "node5"}, seconds=40)
    world.cluster.must("scontrol", "update", f"JobId={run.job_id}", "ExcNodeList=node2,node5,node6", user="alice")
    order(world, "exclusions", "clear", str(run.job_id), "node5", "--why", "aired")
    wait_for("node5 to be free again", lambda: run.row.excluded == {"node2", "node6"}, seconds=10)
    refused = world.stack.cli("exclusions", "clear", str(run.job_id), "node6", "--why", "not ours")
    assert (refused.returncode, "by the job's user" in refused.stderr) == (1, True)
    run.wait("COMPLETED", restarts=1)


def test_a_node_isolated_by_hand_is_drained_and_reinstated(world: World) -> None:
    """With our reason, and a drain of an administrator's is refused."""
    world.stack.restart_agent('[isolation]\nmode = "act"\nnodes_max = 2\npercent_max = 50.0\n')
    world.cluster.must("scontrol", "update", "NodeName=node6", "State=DRAIN", "Reason=bob: DIMM")
    wait_for(
        "it to be known", lambda: "bob" in world.stack.cli("nodes", "isolate", "node6", "--why", "x").stderr, seconds=10
    )
    world.cluster.must("scontrol", "update", "NodeName=node6", "State=RESUME")
    order(world, "nodes", "isolate", "node5", "--why", "fan", "--force")
    wait_for("our drain", lambda: "DRAIN" in world.cluster.node_state("node5").upper(), seconds=15)
    world.stack.cli("nodes", "reinstate", "node5", "--why", "done")
    wait_for("it to be back", lambda: "DRAIN" not in world.cluster.node_state("node5").upper(), seconds=15)
    world.stack.restart_agent("")


def test_a_jobs_user_is_told_by_the_job_and_may_ask(world: World) -> None:
    """In Comment and AdminComment; in plain sentences to the job's own user, and to nobody else's."""
    run = world.launch("alice", Training(name="told", steps=15, faults=[xid79()]))
    wait_for("our exclusion", lambda: run.row.restarts == 1 and "node2" in run.row.excluded, seconds=40)

    def shown() -> str:
        return world.cluster.must("scontrol", "-o", "show", "job", str(run.job_id), user="alice")

    line = wait_for("the line", lambda: next(iter(re.findall(r'"advisor_told": "([^"]*)"', shown())), None), seconds=10)
    assert line.startswith("attempt 0: Restart without node2")
    assert line.endswith(f"(advisor explain {run.job_id})")
    assert '"told":"attempt 0: Restart without node2' in shown()
    run.wait("COMPLETED", restarts=1)

    def ask(user: str) -> tuple[int, str]:
        python, socket = str(world.cluster.runtime.python), str(world.stack.socket)
        argv = [python, "-m", "advisor", "explain", str(run.job_id), "--attempt", "0", "--socket", socket]
        done = world.cluster.command(*argv, user=user)
        return done.returncode, done.stdout + done.stderr

    code, told = ask("alice")
    assert code == 0, told
    assert "What happened: Attempt 0 of job" in told
    assert "it was not your program (node2)" in told
    assert "will not run on node2" in told
    code, told = ask("bob")
    assert (code, "node2" in told) == (1, False), told
