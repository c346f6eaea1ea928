"""What operators order, on a real Slurm: nothing of it is done too late, and what was too late is said so."""

import json
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from advisor.demo.squeue import JobRow
from advisor.demo.training import Training
from advisor.demo.waiting import holds_for, wait_for
from advisor.demo.world import World
from advisor.v1 import audit_pb2

RESTART, STOP = "ACTION_RESTART", "ACTION_STOP"
OPT_IN = json.dumps({"advisor": {"enabled": True}})
# Runs until it is told to fail, and fails with nothing that names a node; a next attempt ends well.
SCRIPT = """#!/bin/sh
[ -z "$SLURM_RESTART_COUNT" ] || exit 0
while [ ! -e "$GO" ]; do sleep 0.2; done
echo broken
exit 1
"""


@dataclass(frozen=True)
class Waiting:
    """A job that fails when it is told to: things happen in one order, however long each of them takes."""

    world: World
    job_id: int
    go: Path

    @classmethod
    def submit(cls, world: World, *options: str) -> "Waiting":
        folder = Path(tempfile.mkdtemp(dir=world.cluster.runtime.home("alice")))
        shutil.chown(folder, "alice", "alice")
        told = (f"--comment={OPT_IN}", f"--output={folder}/out", f"--export=ALL,GO={folder}/go")
        job_id = world.cluster.submit("alice", SCRIPT, "-N2", *told, *options)
        world.cluster.wait_state(job_id, "RUNNING", seconds=60)
        of_it = audit_pb2.Filter(job_id=str(job_id))
        with world.stack.client() as client:
            wait_for("the advisor to know of it", lambda: any(client.attempts(of_it, most=1)), seconds=60)
        return cls(world, job_id, folder / "go")

    def fail(self) -> None:
        self.go.touch()
        self.world.cluster.wait_state(self.job_id, "FAILED", restarts=0, seconds=60)

    @property
    def row(self) -> JobRow:
        return self.world.cluster.job(self.job_id)

    def advised(self, action: str, **more: str) -> dict[str, Any]:
        def found() -> dict[str, Any] | None:
            for item in reversed(self.world.stack.decisions(self.job_id)):
                advice = item["advice"]
                if advice["action"] == action and all(advice.get(name) == value for name, value in more.items()):
                    return item
            return None

        return wait_for(f"advice to {action}", found, seconds=90, every_seconds=0.3)

    def stays_failed(self) -> bool:
        return holds_for(lambda: (self.row.state, self.row.restarts) == ("FAILED", 0), seconds=5)


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


def test_a_vetoed_attempt_is_not_requeued_until_the_veto_is_lifted(world: World) -> None:
    """Vetoed while it ran: it fails and stays as it is; lifted while Slurm remembers it, it is restarted."""
    job = Waiting.submit(world)
    vetoed = order(world, "veto", str(job.job_id), "--why", "debugging")
    job.fail()
    job.advised("ACTION_NONE", reason="vetoed")
    assert job.stays_failed()
    order(world, "orders", "lift", vetoed["order"]["order_id"], "--why", "done")
    world.cluster.wait_state(job.job_id, "COMPLETED", restarts=1, seconds=60)


def test_advice_withdrawn_while_the_agent_holds_it_is_never_applied(world: World) -> None:
    """The agent confirms that it let go; when it may act again, nothing happens; doing it twice changes nothing."""
    job = Waiting.submit(world)
    with paused(world):
        job.fail()
        held = job.advised(RESTART)
        answer = order(world, "withdraw", held["advice"]["advice_id"], "--why", "wrong")
        assert answer["effect"] in {"in_force", "unconfirmed"}  # on a busy machine the agent may take its time
        assert answer["action"] == "ACTION_NONE"
        again = order(world, "withdraw", str(job.job_id), "--why", "wrong")
        assert again["effect"] == "unchanged"
    assert job.stays_failed()


def test_a_restart_that_is_overridden_by_a_stop_is_not_made(world: World) -> None:
    """Only with --confirm; the job has ended, so that it is stopped already; and the decision names its author."""
    job = Waiting.submit(world)
    with paused(world):
        job.fail()
        job.advised(RESTART)
        unsure = world.stack.cli("override", str(job.job_id), "stop", "--why", "enough")
        assert (unsure.returncode, "--confirm" in unsure.stderr) == (2, True)
        order(world, "override", str(job.job_id), "stop", "--confirm", "--why", "enough")
    stopped = job.advised(STOP, reason="operator")
    assert "ordered by root (enough)" in stopped["advice"]["explanation"]
    assert job.stays_failed()
    assert world.stack.cli("replay", stopped["advice"]["advice_id"]).returncode == 0


@pytest.mark.parametrize("how", ["override", "budget"])
def test_a_stopped_job_restarts_when_an_operator_wants_it(world: World, how: str) -> None:
    """Certain to fail again by the table: overridden, or with its budget reset, it is requeued once more."""
    run = world.launch("alice", Training(name=f"again-{how}", steps=400, faults=[{"kind": "keyerror", "step": 7}]))
    run.wait("FAILED", restarts=1, seconds=120)
    run.wait_decision("a stop", lambda item: item["advice"]["action"] == STOP, seconds=60)
    if how == "override":
        answer = order(world, "override", str(run.job_id), "restart", "--why", "the data is there now")
    else:
        answer = order(world, "budget", "reset", str(run.job_id), "--why", "the data is there now")
    run.wait("PENDING", "RUNNING", restarts=2, seconds=60)
    assert answer["order"]["set_by"] == "root"
    if how == "override":
        too_late = world.stack.cli("veto", str(run.job_id), "--attempt", "1", "--why", "no")
        assert (too_late.returncode, "too late" in too_late.stderr) == (1, True)
    world.cluster.must("scancel", str(run.job_id))


def test_an_exclusion_added_by_hand_reaches_slurm_and_one_cleared_leaves_it(world: World) -> None:
    """Beside the user's own, which nobody else clears. Another user's jobs fill the cluster while ours waits."""
    job = Waiting.submit(world, "--exclude=node6", "--exclusive")
    fillers = [
        world.cluster.submit("bob", "#!/bin/sh\nsleep 600\n", f"-N{nodes}", "--exclusive", "--output=/dev/null")
        for nodes in (4, 2)
    ]
    try:
        order(world, "exclusions", "add", str(job.job_id), "node5", "--why", "smells")
        job.fail()
        wait_for("our exclusion", lambda: job.row.restarts == 1 and job.row.excluded == {"node5", "node6"}, seconds=60)
        order(world, "exclusions", "clear", str(job.job_id), "node5", "--why", "aired")
        wait_for("node5 to be free again", lambda: job.row.excluded == {"node6"}, seconds=60)
        refused = world.stack.cli("exclusions", "clear", str(job.job_id), "node6", "--why", "not ours")
        assert (refused.returncode, "by the job's user" in refused.stderr) == (1, True)
    finally:
        for filler in fillers:
            world.cluster.must("scancel", str(filler))
    world.cluster.wait_state(job.job_id, "COMPLETED", restarts=1, seconds=90)


def test_a_node_isolated_by_hand_is_drained_and_reinstated(world: World) -> None:
    """With our reason, and a drain of an administrator's is refused."""
    world.stack.restart_agent('[isolation]\nmode = "act"\nnodes_max = 2\npercent_max = 50.0\n')
    world.cluster.must("scontrol", "update", "NodeName=node6", "State=DRAIN", "Reason=bob: DIMM")
    wait_for(
        "it to be known", lambda: "bob" in world.stack.cli("nodes", "isolate", "node6", "--why", "x").stderr, seconds=60
    )
    world.cluster.must("scontrol", "update", "NodeName=node6", "State=RESUME")
    order(world, "nodes", "isolate", "node5", "--why", "fan", "--force")
    wait_for("our drain", lambda: "DRAIN" in world.cluster.node_state("node5").upper(), seconds=60)
    world.stack.cli("nodes", "reinstate", "node5", "--why", "done")
    wait_for("it to be back", lambda: "DRAIN" not in world.cluster.node_state("node5").upper(), seconds=60)
    world.stack.restart_agent("")


def xid79(node: str) -> dict[str, object]:
    return {"kind": "xid79", "attempt": 0, "node": node, "step": 6}


def test_a_jobs_user_is_told_by_the_job_and_may_ask(world: World) -> None:
    """In Comment and AdminComment; in plain sentences to the job's own user, and to nobody else's."""
    run = world.launch("alice", Training(name="told", steps=15, faults=[xid79("node2")]))
    wait_for("our exclusion", lambda: run.row.restarts == 1 and "node2" in run.row.excluded, seconds=90)

    def shown() -> str:
        return world.cluster.must("scontrol", "-o", "show", "job", str(run.job_id), user="alice")

    line = wait_for("the line", lambda: next(iter(re.findall(r'"advisor_told": "([^"]*)"', shown())), None), seconds=60)
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
