"""Kinds of jobs that one requeue and one list of exclusions do not fit: heterogeneous, held by Slurm, waited for."""

import json
import time
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from advisor.client import Client
from advisor.demo.squeue import JobRow
from advisor.demo.waiting import holds_for, wait_for
from advisor.demo.world import World
from advisor.v1 import audit_pb2, common_pb2

_OPT_IN = '--comment={"advisor": {"enabled": true}}'
_NOWHERE = "--output=/dev/null"


class Flag:
    """Attempt 0 of a job runs until the flag is raised, and ends with `code`; later ones run for `then` seconds."""

    def __init__(self, world: World, name: str) -> None:
        self._path = world.cluster.runtime.root / "announce" / f"{name}.0.flag.raise"

    def script(self, code: int, *, then: int = 2, head: str = "") -> str:
        return (
            f'#!/bin/sh\n{head}if [ "${{SLURM_RESTART_COUNT:-0}}" = 0 ]; then\n'
            f"  while [ ! -e {self._path} ]; do sleep 0.05; done\n  exit {code}\nfi\nsleep {then}\n"
        )

    def up(self) -> None:
        self._path.touch()


def _row(world: World, job: int) -> JobRow:
    return world.cluster.job(job)


def _said(world: World, job: int) -> set[str]:
    """Every reason that the agent gave about this job."""
    return {
        item.get("reason", "").removeprefix("RECONCILIATION_REASON_")
        for decision in world.stack.decisions(job)
        for item in decision.get("reconciliations", [])
    }


def _wait_said(world: World, job: int, reason: str, seconds: float = 30.0) -> None:
    wait_for(f"{reason} about job {job}", lambda: reason in _said(world, job), seconds=seconds, every_seconds=0.4)


def _held(row: JobRow) -> tuple[object, ...]:
    return row.state, row.restarts, row.priority, row.reason, row.excluded, row.admin_comment


def _seen(client: Client, *jobs: int, state: str) -> None:
    """Wait until the advisor knows the jobs to be there."""
    wanted = common_pb2.AttemptState.Value(f"ATTEMPT_STATE_{state}")

    def known(job: int) -> bool:
        return any(item.state == wanted for item in client.attempts(audit_pb2.Filter(job_id=str(job)), most=10))

    wait_for(f"{state} in the store", lambda: all(known(job) for job in jobs), seconds=20)


def _waits(world: World, job: int, state: str, **changes: Any) -> JobRow:
    return world.cluster.wait_state(job, state, seconds=changes.pop("seconds", 60), **changes)


def _marks(rows: Iterable[JobRow]) -> list[dict[str, Any]]:
    return [json.loads(row.admin_comment)["advisor"] for row in rows]


def test_a_heterogeneous_job_is_requeued_once_and_avoids_the_bad_node_everywhere(world: World, client: Client) -> None:
    """Xid 79 under the second component: the leader is requeued, all components avoid the node, no second requeue."""
    flag = Flag(world, "het")
    head = f"#SBATCH -N1 --exclusive -Jhet {_NOWHERE}\n#SBATCH hetjob\n#SBATCH -N2 --exclusive\n"
    script = world.cluster.runtime.home("alice") / "het.sh"
    script.write_text(flag.script(1, head=head))
    leader = world.cluster.submit("alice", "", _OPT_IN, str(script))
    both = (leader, leader + 1)
    for job in both:
        _waits(world, job, "RUNNING")
    assert "node2" in world.cluster.expand(_row(world, leader + 1).nodes)
    _seen(client, *both, state="RUNNING")
    world.kernel.write("node2", 79, "GPU has fallen off the bus.")
    flag.up()
    for job in both:
        _waits(world, job, "PENDING", restarts=1)
    wait_for("both to avoid node2", lambda: all(_row(world, job).excluded == {"node2"} for job in both), seconds=20)
    assert all("node2" in mark["nodes"] for mark in _marks(_row(world, job) for job in both))
    rows = [_waits(world, job, "COMPLETED", restarts=1) for job in both]
    assert not any("node2" in world.cluster.expand(row.nodes) for row in rows)
    assert holds_for(lambda: all(_row(world, job).restarts == 1 for job in both), seconds=2)


@pytest.mark.parametrize("label", ["-l", ""], ids=["with srun's labels", "without"])
def test_a_launcher_that_cannot_start_on_one_node_is_tried_without_it(world: World, label: str) -> None:
    """A mount is missing on node2: one task on each node, which are no ranks."""
    log = world.cluster.runtime.home("alice") / f"mount{label}-%j.out"
    script = (
        f"#!/bin/sh\n#SBATCH --output={log}\n"
        f"srun {label} bash -c 'case $SLURMD_NODENAME in node2) exec /scratch/venv/bin/python;; *) sleep 4;; esac'\n"
    )
    job = world.cluster.submit("alice", script, "-N3", "--ntasks-per-node=1", "--exclusive", _OPT_IN)
    assert "node2" in world.cluster.expand(_waits(world, job, "RUNNING").nodes)
    row = _waits(world, job, "COMPLETED", restarts=1)
    assert row.excluded == {"node2"}
    said = world.stack.ask("explain", str(job), "--attempt", "0")
    assert "only node2 met it" in json.dumps(said)


def test_what_slurm_itself_holds_is_released_by_advice_with_exclusions(world: World, client: Client) -> None:
    """RequeueExitHold: exit 112 after an Xid: excluded, released once, and run elsewhere."""
    flag = Flag(world, "kept")
    job = world.cluster.submit("alice", flag.script(112), "-N1", "--exclusive", _OPT_IN, _NOWHERE)
    bad = _waits(world, job, "RUNNING").nodes
    _seen(client, job, state="RUNNING")
    world.kernel.write(bad, 79, "GPU has fallen off the bus.")
    flag.up()
    row = _waits(world, job, "COMPLETED", restarts=1)
    assert row.excluded == {bad}
    assert row.nodes != bad
    _wait_said(world, job, "OBSERVED")


def test_a_job_whose_output_cannot_be_opened_is_told_why_and_tried_on_another_node(world: World) -> None:
    """Its folder is not there (0:53, no line of log): the verdict names it, the batch node is avoided, no node drained;
    once the folder is there the job runs. A file has its name meanwhile, for Slurm 24.11 makes missing folders.
    """
    folder = world.cluster.runtime.home("alice") / "comes-later"
    world.cluster.must("touch", str(folder), user="alice")
    script, where = "#!/bin/sh\nhostname\n", f"--output={folder}/%j.out"
    job = world.cluster.submit("alice", script, "-N2", "--exclusive", _OPT_IN, where)
    _waits(world, job, "PENDING", restarts=1)
    world.cluster.must("rm", str(folder), user="alice")
    world.cluster.must("mkdir", str(folder), user="alice")
    wait_for("an exclusion", lambda: _row(world, job).excluded, seconds=20)
    (batch,) = _row(world, job).excluded
    log = (world.cluster.root / "log" / f"slurmd.{batch}.log").read_text(errors="replace")
    assert f"[{job}.batch] error: Could not open stdout file" in log
    row = _waits(world, job, "COMPLETED", restarts=1)
    assert batch not in world.cluster.expand(row.nodes)
    causes = [each["analysis"]["attribution"]["root_cause"] for each in world.stack.decisions(job)]
    assert any("could not open the job's output" in cause for cause in causes), causes
    assert world.cluster.node_state(batch).lower() == "idle"


@pytest.mark.long
def test_other_peoples_holds_are_never_released(world: World) -> None:
    """An administrator's hold over Slurm's own, and a user's requeuehold after a failure, stay as they are."""
    flags = [Flag(world, name) for name in ("held-admin", "held-user")]
    world.stack.agent.freeze()
    try:
        admins, users = (
            world.cluster.submit("alice", flag.script(code), "-N1", _OPT_IN, _NOWHERE)
            for flag, code in zip(flags, (112, 5), strict=True)
        )
        for job, flag in zip((admins, users), flags, strict=True):
            _waits(world, job, "RUNNING")
            flag.up()
        _waits(world, admins, "SPECIAL_EXIT", restarts=1)
        world.cluster.must("scontrol", "hold", str(admins))
        _waits(world, users, "FAILED")
        world.cluster.must("scontrol", "requeuehold", "State=SpecialExit", str(users), user="alice")
    finally:
        world.stack.agent.thaw()
    before = [_held(_row(world, job)) for job in (admins, users)]
    assert {state for state, *_ in before} == {"SPECIAL_EXIT"}
    assert holds_for(lambda: [_held(_row(world, job)) for job in (admins, users)] == before, seconds=8)
    for job in (admins, users):
        world.cluster.must("scancel", str(job))


def test_who_waits_for_the_end_inherits_the_exclusions(world: World) -> None:
    """afterany and singleton, opted in: the bad node is avoided by them too. Not opted in, or another user's: not.

    The attempt hangs and is ended by us: one that ends by itself lets its dependents go in less than a second.
    """
    hangs = '#!/bin/sh\n[ "${SLURM_RESTART_COUNT:-0}" != 0 ] || exec sleep 600\nsleep 2\n'
    job = world.cluster.submit("alice", hangs, "-N1", "--exclusive", "-Jchain", _OPT_IN, _NOWHERE)
    bad = _waits(world, job, "RUNNING").nodes

    def waiting(user: str, *options: str) -> int:
        return world.cluster.submit(user, "#!/bin/sh\nsleep 1\n", "-N1", "--exclusive", _NOWHERE, *options)

    after = f"--dependency=afterany:{job}"
    own = waiting("alice", _OPT_IN, after, "--exclude=node6")
    single = waiting("alice", _OPT_IN, "-Jchain", "--dependency=singleton")
    others = (waiting("alice", after), waiting("bob", _OPT_IN, after))
    # Sooner, on a node that jobs of other tests have suffered from, it might be one of theirs.
    time.sleep(6)
    world.kernel.write(bad, 79, "GPU has fallen off the bus.")
    _waits(world, job, "PENDING", restarts=1)
    wait_for("the exclusions of own", lambda: _row(world, own).excluded == {"node6", bad}, seconds=20)
    wait_for("the exclusions of single", lambda: _row(world, single).excluded == {bad}, seconds=20)
    rows = {name: _waits(world, name, "COMPLETED", seconds=90) for name in (job, own, single, *others)}
    began = {name: row.start or 0 for name, row in rows.items()}
    assert min(began.values()) == began[job], "nobody ran before it had run again"
    assert all(not rows[name].excluded and not rows[name].admin_comment for name in others)
    assert bad not in {rows[name].nodes for name in (job, own, single)}


@pytest.mark.long
def test_a_job_is_not_started_beside_one_that_was_let_go_and_still_waits(world: World, client: Client) -> None:
    """Let go by the failure while the agent slept, but without nodes yet: withheld, and it inherits the exclusions."""
    flag = Flag(world, "let-go")
    job = world.cluster.submit("alice", flag.script(1), "-N1", "--exclusive", _OPT_IN, _NOWHERE)
    bad = _waits(world, job, "RUNNING").nodes
    _seen(client, job, state="RUNNING")
    fill = world.cluster.submit("bob", "#!/bin/sh\nsleep 25\n", "-N2", "--exclusive", _NOWHERE)
    _waits(world, fill, "RUNNING")
    wide = ("-N5", "--exclusive", _OPT_IN, _NOWHERE)
    after = world.cluster.submit("alice", "#!/bin/sh\nsleep 1\n", *wide, f"--dependency=afterany:{job}")
    _seen(client, after, state="PENDING")
    world.stack.agent.freeze()
    try:
        world.kernel.write(bad, 79, "GPU has fallen off the bus.")
        flag.up()
        _waits(world, job, "FAILED")
        wait_for("it to be let go", lambda: _row(world, after).reason in {"Resources", "Priority"}, seconds=20)
    finally:
        world.stack.agent.thaw()
    wait_for("its exclusions", lambda: _row(world, after).excluded == {bad}, seconds=20)
    _wait_said(world, job, "DEPENDENT_RELEASED")
    assert holds_for(_is(world, job, "FAILED", 0), seconds=3)
    row = _waits(world, after, "COMPLETED", seconds=60)
    assert bad not in world.cluster.expand(row.nodes)
    assert _is(world, job, "FAILED", 0)()


def _is(world: World, job: int, state: str, restarts: int) -> Callable[[], bool]:
    return lambda: (_row(world, job).state, _row(world, job).restarts) == (state, restarts)


@pytest.mark.long
def test_an_exclusion_ends_when_an_administrator_puts_the_node_back(world: World, client: Client) -> None:
    """Excluded after an Xid, drained, repaired and resumed: the next failure excludes its own node only."""
    folder = world.cluster.runtime.root / "announce"
    waits = f"while [ ! -e {folder}/aged.$n.flag.raise ]; do sleep 0.05; done; exit 1"
    script = f'#!/bin/sh\nn="${{SLURM_RESTART_COUNT:-0}}"\n[ $n = 2 ] || {{ {waits}; }}\n'
    job = world.cluster.submit("alice", script, "-N1", "--exclusive", _OPT_IN, _NOWHERE)

    def fails(attempt: int) -> str:
        bad = _waits(world, job, "RUNNING", restarts=attempt).nodes
        wait_for("it in the store", lambda: _runs(client, job, attempt), seconds=20)
        world.kernel.write(bad, 79, "GPU has fallen off the bus.")
        (folder / f"aged.{attempt}.flag.raise").touch()
        return bad

    first = fails(0)
    assert _waits(world, job, "RUNNING", restarts=1).excluded == {first}
    for change in (("State=DRAIN", "Reason=repair"), ("State=RESUME",)):
        world.cluster.must("scontrol", "update", f"NodeName={first}", *change)
        time.sleep(4)  # the agent looks at nodes every two seconds
    second = fails(1)
    row = _waits(world, job, "COMPLETED", restarts=2)
    assert first != second
    assert row.excluded == {second}


def _runs(client: Client, job: int, attempt: int) -> bool:
    found = client.attempts(audit_pb2.Filter(job_id=str(job)), most=10)
    return any((item.attempt.attempt, item.state) == (attempt, common_pb2.ATTEMPT_STATE_RUNNING) for item in found)
