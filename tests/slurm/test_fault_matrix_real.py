"""The fault matrix on a real Slurm: at a step of the protocol something is killed or stopped, and all ends well.

The model (`tests/model/matrix.py`) has every step × fault; here are forty of them, and pairs, with the real programs.
Steps inside the agent's action are reached by a breakpoint in its `scontrol`, the others by what Slurm shows.
"""

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from advisor.demo.training import Training
from advisor.demo.waiting import wait_for
from advisor.demo.world import Run, World
from benchmarks._processes import children_of

_AWAY_SECONDS = {"kill -9": 4.0, "SIGSTOP": 7.0}
_REASON = "rma 4711, do not touch"
_BAD = "node2"
STEPS = (
    "attempt runs",
    "attempt ended",
    "before requeue",
    "after requeue",
    "before update",
    "after update",
    "waits with our mark",
    "next attempt runs",
)
TARGETS = ("advisor", "postgres", "agent", "watchdog", "slurmctld", "slurmd")
Fault = tuple[str, str]


def _forty() -> list[tuple[str, tuple[Fault, ...]]]:
    """Five single faults at each step, so that every fault comes three or four times; and two pairs of each half."""
    faults = [(target, kind) for kind in _AWAY_SECONDS for target in TARGETS]
    return [(step, (faults[(5 * at + more) % len(faults)],)) for at, step in enumerate(STEPS) for more in range(5)]


PAIRS: list[tuple[str, tuple[Fault, ...]]] = [
    ("after requeue", (("agent", "kill -9"), ("slurmctld", "kill -9"))),
    ("before requeue", (("advisor", "kill -9"), ("slurmctld", "SIGSTOP"))),
    ("attempt ended", (("postgres", "SIGSTOP"), ("agent", "kill -9"))),
    ("waits with our mark", (("watchdog", "SIGSTOP"), ("slurmctld", "SIGSTOP"))),
]
# slurmctld killed is among the long ones: that the job is saved first, and missed after, takes a minute by itself.
QUICK: list[tuple[str, tuple[Fault, ...]]] = [
    ("attempt ended", (("postgres", "kill -9"),)),
    ("attempt ended", (("advisor", "SIGSTOP"),)),
    ("before requeue", (("slurmctld", "SIGSTOP"),)),
    ("after requeue", (("advisor", "kill -9"),)),
    ("before update", (("agent", "kill -9"),)),
    ("after update", (("agent", "SIGSTOP"),)),
    ("waits with our mark", (("watchdog", "kill -9"),)),
    ("next attempt runs", (("slurmd", "SIGSTOP"),)),
]
LONG = [item for item in (*_forty(), *PAIRS) if item not in QUICK]


def _name(item: tuple[str, tuple[Fault, ...]]) -> str:
    return f"{item[0]} | {' + '.join(f'{kind} {target}' for target, kind in item[1])}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Others:
    """A held job and a drained node of other people."""

    world: World
    held: int

    def seen(self) -> tuple[object, ...]:
        row = self.world.cluster.job(self.held)
        node = self.world.cluster.must("sinfo", "-h", "-N", "-n", "node6", "-o", "%T %E").strip()
        node = node.replace("*", "")  # that it has not answered for a moment is nobody's doing
        return (row.state, row.priority, row.reason, row.restarts, row.excluded, row.admin_comment, node)


@pytest.fixture
def others(world: World) -> Iterator[Others]:
    cluster = world.cluster
    held = cluster.submit("bob", "#!/bin/sh\nsleep 1\n", "--hold", "-N1", "--output=/dev/null", "--exclude=node1")
    cluster.must("scontrol", "update", "NodeName=node6", "State=DRAIN", f"Reason={_REASON}")
    yield Others(world=world, held=held)
    cluster.must("scontrol", "update", "NodeName=node6", "State=RESUME")
    cluster.must("scancel", str(held))


def _pids(world: World, target: str) -> list[int]:
    """What is killed or stopped: a whole Postgres, one process of everything else."""
    match target:
        case "postgres":
            parent = world.stack.postgres_pid
            return [parent, *children_of(parent)]
        case "slurmctld":
            return [world.cluster.pid("slurmctld")]
        case "slurmd":
            return [world.cluster.pid("node1")]
        case _:
            return [getattr(world.stack, target).pid]


def _state(pid: int) -> str:
    """`T` stopped, `Z` dead and not yet buried, "" gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def _strike(world: World, fault: Fault) -> Callable[[], None]:
    """Kill or stop; returns what brings it back. The fault is seen to have bitten."""
    target, kind = fault
    pids = _pids(world, target)
    assert all(_state(pid) not in {"", "Z", "T"} for pid in pids[:1]), f"{target} was not at work"
    if kind == "SIGSTOP":
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
        wait_for(f"{target} stopped", lambda: _state(pids[0]) == "T", seconds=2, every_seconds=0.01)

        def go_on() -> None:
            assert _state(pids[0]) == "T", f"{target} was to be stopped until now"
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)

        return go_on
    if target == "slurmctld":
        world.cluster.kill_controller()
    elif target == "slurmd":
        world.cluster.kill_node("node1")
    else:
        for pid in pids[:1]:
            os.kill(pid, signal.SIGKILL)
    wait_for(f"{target} dead", lambda: _state(pids[0]) in {"", "Z"}, seconds=3, every_seconds=0.01)

    def start() -> None:
        match target:
            case "slurmctld":
                world.cluster.start_controller()
            case "slurmd":
                world.cluster.start_node("node1")
            case "postgres":
                pass  # the advisor's child: its parent starts it again, or ends and is started by its supervisor
            case _:
                assert not getattr(world.stack, target).running
                getattr(world.stack, target).start()

    return start


def _supervised(world: World) -> None:
    """What systemd does: whoever has ended is started again."""
    for program in world.stack.programs:
        if not program.running:
            program.start()


def _play(world: World, others: Others, knife: Any, step: str, faults: tuple[Fault, ...]) -> Run:
    before = others.seen()
    if step.startswith(("before", "after")):
        knife.wait_at(*step.split())
    # Slurm saves a job some seconds after its submission; killed before, slurmctld has never heard of it.
    must_be_saved = ("slurmctld", "kill -9") in faults
    fails_at = 90 if must_be_saved else 40 if step == "attempt runs" else 6
    fault = {"kind": "xid79", "attempt": 0, "node": _BAD, "step": fails_at}
    name = _name((step, faults)).replace(" ", "-").replace("|", "at")
    run = world.launch("alice", Training(name=name, steps=fails_at + 3, faults=[fault]))
    launched = time.time()  # noqa: TID251 - compared with a file's time
    try:
        if must_be_saved:
            saved = world.cluster.root / "state" / "job_state"
            wait_for("the job saved", lambda: saved.exists() and saved.stat().st_mtime > launched + 1, seconds=30)
        _reach(run, knife, step)
        backs = [(_AWAY_SECONDS[item[1]], _strike(world, item)) for item in faults]
        knife.go()
        struck = time.monotonic()
        for away, back in sorted(backs, key=lambda item: item[0]):
            time.sleep(max(0.0, struck + away - time.monotonic()))
            back()
        _ends_well(run, seconds=160 if must_be_saved else 75)
    finally:
        knife.forget()
        knife.go()
    wait_for("what is others' as it was", lambda: others.seen() == before, seconds=5)
    return run


def _reach(run: Run, knife: Any, step: str) -> None:
    match step:
        case "attempt runs":
            run.wait_step(3)
        case "attempt ended":
            run.wait("COMPLETING", "FAILED", seconds=30)
        case "waits with our mark":
            wait_for("our mark", lambda: run.row.state == "PENDING" and run.row.admin_comment, seconds=40)
        case "next attempt runs":
            run.wait("RUNNING", restarts=1, seconds=40)
        case _:
            wait_for(step, lambda: knife.reached, seconds=40, every_seconds=0.01)


def _ends_well(run: Run, seconds: float) -> None:
    """A minute more where slurmctld forgot an attempt's end: so long it takes to see that nobody runs the job."""
    world = run.world

    def done() -> bool:
        _supervised(world)
        row = world.cluster.jobs().get(run.job_id)
        return row is not None and row.state == "COMPLETED"

    wait_for("the job's end", lambda: _quietly(done), seconds=seconds, every_seconds=0.5)
    row = run.row
    # A slurmd that is stopped while the next attempt is launched fails that one too: a failure of its own.
    failures = max(1, _failures(run))
    assert row.restarts == failures, f"{failures} failures, {row.restarts} restarts"
    only_bad = row.excluded == {_BAD} or (failures > 1 and _BAD in row.excluded)
    assert only_bad or _told_too_late(run), f"excluded {sorted(row.excluded)}, and nobody said why"
    wait_for("the advice's end on record", lambda: _quietly(lambda: _concluded(run)), seconds=30, every_seconds=0.5)


def _failures(run: Run) -> int:
    """How many of its attempts ended as failures, by Slurm's own completion log."""
    lines = run.world.cluster.jobcomp.read_text(encoding="utf-8", errors="replace").splitlines()
    return sum(line.startswith(f"JobId={run.job_id} ") and " JobState=FAILED " in line for line in lines)


def _quietly(look: Callable[[], bool]) -> bool:
    """Slurm and the advisor may not answer yet: then look again."""
    try:
        return look()
    except Exception:
        return False


def _statuses(run: Run) -> set[str]:
    return {
        f"{item['status']} {item.get('reason', '')}"
        for decision in run.decisions()
        if decision["advice"]["action"] == "ACTION_RESTART"
        for item in decision.get("reconciliations", [])
    }


def _concluded(run: Run) -> bool:
    final = ("VERIFIED", "ALREADY_SATISFIED", "SUPERSEDED", "WITHHELD", "ABANDONED")
    return any(status.split()[0].endswith(final) for status in _statuses(run))


def _told_too_late(run: Run) -> bool:
    return any("TOO_LATE" in status or "MOVED_ON" in status for status in _statuses(run))


def _check(world: World, others: Others, knife: Any, item: tuple[str, tuple[Fault, ...]]) -> None:
    world.stack.wait_ready()
    _play(world, others, knife, *item)


@pytest.mark.parametrize("item", QUICK, ids=_name)
def test_a_fault_at_a_step(world: World, others: Others, knife: Any, item: tuple[str, tuple[Fault, ...]]) -> None:
    """Eight of them: one requeue, in time, without the bad node, and nobody else's drain or hold changed."""
    _check(world, others, knife, item)


@pytest.mark.long
@pytest.mark.parametrize("item", LONG, ids=_name)
def test_more_faults_at_steps(world: World, others: Others, knife: Any, item: tuple[str, tuple[Fault, ...]]) -> None:
    """The rest of the forty, and pairs."""
    _check(world, others, knife, item)
