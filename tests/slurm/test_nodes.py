"""Nodes, pauses and stops on a real Slurm: what we drain, whose drains we leave, and when we do nothing at all."""

import json
import re
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from advisor.client import reason_name, status_name
from advisor.demo.training import Training
from advisor.demo.waiting import holds_for, wait_for
from advisor.demo.world import Run, World
from advisor.v1 import operator_pb2

_ISOLATING = {
    "isolate": True,
    "isolate_dry_run": False,
    "isolations_max": 2,
    "isolations_percent_max": 50.0,
    "isolations_per_day_max": 50,
    "isolation_settle_seconds": 3.0,
}
_AGENT = '[isolation]\nmode = "act"\nnodes_max = 2\npercent_max = 50.0\n'
_OURS = re.compile(r"advisor: [0-9a-f-]{36} gpu_hardware")
_DRAINED = {"drained", "draining"}


def _fault(node: str) -> dict[str, object]:
    return {"kind": "xid79", "attempt": 0, "node": node, "step": 6}


def _reason(world: World, node: str) -> str:
    return world.cluster.must("sinfo", "-h", "-N", "-n", node, "-o", "%E").strip()


def _drained_by_us(world: World, node: str) -> bool:
    return world.cluster.node_state(node) in _DRAINED and bool(_OURS.fullmatch(_reason(world, node)))


def _isolations(world: World, node: str = "", *, ended: bool = False) -> list[operator_pb2.NodeIsolation]:
    with world.stack.client() as client:
        request = operator_pb2.ListIsolationsRequest(node=node or None, ended=ended)
        return list(client.isolations(request).isolations)


def _isolation(world: World, node: str) -> operator_pb2.NodeIsolation:
    return next(iter(_isolations(world, node, ended=True)), operator_pb2.NodeIsolation())


def _put_back(world: World) -> None:
    for item in _isolations(world):
        if not item.ended_by:
            world.stack.cli("nodes", "reinstate", item.node, "--why", "the scenario is over")
    wait_for("no isolation to be open", lambda: not _isolations(world), seconds=20)


def _resume_all(world: World) -> None:
    for node in world.cluster.nodes:
        if world.cluster.node_state(node) in _DRAINED:
            world.cluster.command("scontrol", "update", f"NodeName={node}", "State=RESUME")
    _put_back(world)
    idle = frozenset(world.cluster.nodes)
    # Slurm shows a node as idle, and places nothing on it, until it has heard from it.
    wait_for("all nodes in use", lambda: holds_for(lambda: world.cluster.idle_nodes() == idle, seconds=2), seconds=60)


@pytest.fixture
def isolating(world: World) -> Iterator[World]:
    """Both keys turned: the site's policy and the agent's own configuration isolate."""
    policy = world.stack.policy
    world.stack.restart_advisor({**policy, **_ISOLATING})
    world.stack.restart_agent(_AGENT)
    # What earlier scenarios did to a node isolates it now, in the first ticks: that is not what is looked at here.
    holds_for(lambda: not _isolations(world), seconds=3)
    _resume_all(world)
    yield world
    # First of all nothing is isolated any more: what the breaker had held back would be, as soon as it is reset.
    world.stack.restart_advisor(policy)
    world.stack.cli("nodes", "reset-breaker", "--why", "the scenario is over")
    _resume_all(world)
    world.stack.restart_agent("")


def _fail(world: World, node: str, name: str) -> Run:
    run = world.launch("alice", Training(name=name, steps=12, faults=[_fault(node)]))
    run.wait("PENDING", "RUNNING", "COMPLETED", restarts=1, seconds=60)
    return run


def test_a_bad_node_is_drained_until_an_administrator_puts_it_back(isolating: World) -> None:
    """Drained with our reason and verified; resumed by hand it stays so, and the history says that repair was seen."""
    run = _fail(isolating, "node2", "nodes-repair")
    wait_for("our drain", lambda: _drained_by_us(isolating, "node2"), seconds=20)
    row = wait_for("its verification", lambda: _verified(isolating, "node2"), seconds=20)
    assert (row.job_id, row.dry_run) == (str(run.job_id), False)
    run.wait("COMPLETED", restarts=1)
    isolating.cluster.must("scontrol", "update", "NodeName=node2", "State=RESUME")
    wait_for("the repair to be seen", lambda: _isolation(isolating, "node2").ended_by == "repair_seen", seconds=20)
    assert holds_for(lambda: isolating.cluster.node_state("node2") not in _DRAINED, seconds=5)


@pytest.mark.long
def test_a_node_that_passes_its_probe_is_put_back_by_us(isolating: World) -> None:
    """A failed probe changes nothing but its time; a passed one undoes our drain, and a dead agent delays it only."""
    _fail(isolating, "node2", "nodes-probe")
    wait_for("its verification", lambda: _verified(isolating, "node2"), seconds=30)
    failed = isolating.stack.cli("nodes", "probe-result", "node2", "--failed", "--why", "dcgmi diag: memory")
    assert "stays isolated" in failed.stdout, failed.stderr
    assert holds_for(lambda: _drained_by_us(isolating, "node2"), seconds=3)
    isolating.stack.agent.kill()
    passed = isolating.stack.cli("nodes", "probe-result", "node2", "--passed", "--why", "dcgmi diag -r 3")
    assert "is reinstated" in passed.stdout, passed.stderr
    assert _drained_by_us(isolating, "node2")
    isolating.stack.agent.start()
    wait_for("node2 in service", lambda: isolating.cluster.node_state("node2") not in _DRAINED, seconds=20)
    wait_for("it to be done with", lambda: not _isolations(isolating, "node2"), seconds=20)
    assert _isolation(isolating, "node2").ended_by == "probe_passed"


@pytest.mark.long
def test_the_drain_of_others_keeps_its_reason(isolating: World) -> None:
    """Made theirs by another reason it is not undone when ours ends; a node that is theirs is never made ours."""
    _fail(isolating, "node2", "nodes-others")
    wait_for("its verification", lambda: _verified(isolating, "node2"), seconds=30)
    isolating.cluster.must("scontrol", "update", "NodeName=node2", "State=DRAIN", "Reason=RMA 4711")
    wait_for("it to be theirs", lambda: _isolation(isolating, "node2").ended_by == "taken_over", seconds=20)
    assert holds_for(
        lambda: isolating.cluster.node_state("node2") in _DRAINED and _reason(isolating, "node2") == "RMA 4711",
        seconds=5,
    )


@pytest.mark.long
def test_the_agents_own_cap_holds_whatever_the_advisor_wants(isolating: World) -> None:
    """Its configuration allows no node: none is drained, and both sides say why."""
    isolating.stack.restart_agent('[isolation]\nmode = "act"\nnodes_max = 0\n')
    _fail(isolating, "node2", "nodes-cap")
    wait_for("its refusal", lambda: reason_name(_isolation(isolating, "node2").reason) == "cap_nodes", seconds=30)
    assert isolating.cluster.node_state("node2") not in _DRAINED
    assert "at most 0" in isolating.stack.agent.last_words()


@pytest.mark.long
def test_the_breaker_trips_and_holds_until_it_is_reset(isolating: World) -> None:
    """A second node where only one may be: none besides the first, and the breaker is loud until somebody resets it."""
    isolating.stack.restart_advisor({**isolating.stack.policy, **_ISOLATING, "isolations_max": 1})
    _fail(isolating, "node2", "nodes-breaker-1")
    wait_for("our drain", lambda: _drained_by_us(isolating, "node2"), seconds=30)
    _fail(isolating, "node3", "nodes-breaker-2")
    wait_for("the breaker", lambda: isolating.stack.ask("nodes", "isolations")["tripped"], seconds=30)
    assert "isolation_breaker_tripped" in isolating.stack.advisor.log.read_text(encoding="utf-8")
    doctor = isolating.stack.cli("doctor")
    assert "breaker" in doctor.stdout
    assert holds_for(lambda: isolating.cluster.node_state("node3") not in _DRAINED, seconds=5)


@pytest.mark.long
def test_on_paper_nothing_is_drained(isolating: World) -> None:
    """The policy's dry run: recorded and shown, and the node stays in service."""
    isolating.stack.restart_advisor({**isolating.stack.policy, **_ISOLATING, "isolate_dry_run": True})
    _fail(isolating, "node2", "nodes-paper")
    wait_for("the record", lambda: reason_name(_isolation(isolating, "node2").reason) == "dry_run", seconds=30)
    assert isolating.cluster.node_state("node2") not in _DRAINED


def test_while_paused_nothing_is_done_and_nothing_is_lost(world: World) -> None:
    """A job fails during a pause: it stays as it is, the advice waits and says why; after `resume` it is restarted."""
    run = world.launch("alice", Training(name="nodes-pause", steps=12, faults=[_fault("node2")]))
    run.wait_step(2)
    paused = world.stack.cli("pause", "--until", "1h", "--reason", "firmware")
    assert paused.returncode == 0, paused.stderr
    try:
        run.wait("FAILED", seconds=60)
        run.wait_decision("a wait", lambda item: _says(item, "PAUSED"), seconds=30)
        assert holds_for(lambda: (run.row.state, run.row.restarts) == ("FAILED", 0), seconds=5)
    finally:
        world.stack.cli("resume", "--reason", "done")
    row = run.wait("COMPLETED", restarts=1)
    assert row.excluded == {"node2"}


@pytest.mark.parametrize("kind", ["partition", pytest.param("reservation", marks=pytest.mark.long)])
def test_in_maintenance_nothing_is_done(world: World, kind: str) -> None:
    """Its partition is drained, or its node is reserved for maintenance: the advice waits for the end, and says so."""
    run = world.launch("alice", Training(name=f"nodes-maint-{kind}", steps=12, faults=[_fault("node2")]))
    run.wait_step(2)
    if kind == "partition":
        begin, end = ("update", "PartitionName=main", "State=DRAIN"), ("update", "PartitionName=main", "State=UP")
    else:
        flags = ("Flags=maint,ignore_jobs", "Users=root", "StartTime=now", "Duration=60", "Nodes=node2")
        begin, end = ("create", "reservation", "ReservationName=fw", *flags), ("delete", "ReservationName=fw")
    world.cluster.must("scontrol", *begin)
    try:
        run.wait("FAILED", seconds=60)
        run.wait_decision("a wait", lambda item: _says(item, "MAINTENANCE"), seconds=30)
        assert holds_for(lambda: (run.row.state, run.row.restarts) == ("FAILED", 0), seconds=4)
    finally:
        world.cluster.must("scontrol", *end)
    assert run.wait("COMPLETED", restarts=1).excluded == {"node2"}


def test_the_stop_file_stops_with_everything_else_dead(world: World) -> None:
    """A file on the controller: nothing is done while it is there, although advisor and database died meanwhile."""
    world.stack.stop_file.write_text("something is odd\n", encoding="utf-8")
    run = world.launch("alice", Training(name="nodes-stop", steps=12, faults=[_fault("node2")]))
    try:
        run.wait("FAILED", seconds=60)
        run.wait_decision("a wait", lambda item: _says(item, "STOP_FILE"), seconds=30)
        world.stack.advisor.kill()
        assert holds_for(lambda: (run.row.state, run.row.restarts) == ("FAILED", 0), seconds=5)
    finally:
        world.stack.stop_file.unlink()
        world.stack.advisor.start()
        world.stack.wait_ready()
    assert run.wait("COMPLETED", restarts=1).excluded == {"node2"}


def _says(decision: dict[str, Any], reason: str) -> bool:
    found = decision.get("reconciliations", [])
    return bool(found) and found[-1]["reason"] == f"RECONCILIATION_REASON_{reason}"


def _verified(world: World, node: str) -> operator_pb2.NodeIsolation | None:
    row = _isolation(world, node)
    return row if status_name(row.status) == "verified" and not row.ended_by else None


@pytest.mark.parametrize("slurm", [True, False])
def test_a_kernel_log_that_others_may_write_is_found_before_a_job_meets_it(world: World, slurm: bool) -> None:
    """Doctor opens the files of all nodes, with Slurm's tools and without; nothing runs on any."""

    def told() -> list[dict[str, str]]:
        where = world.cluster.environment if slurm else world.cluster.runtime.environment
        done = subprocess.run(
            [str(world.cluster.runtime.python), "-m", "advisor", "doctor", "--format", "json"],
            cwd="/",
            env={**where, "ADVISOR_CONFIG": str(world.stack.config_file)},
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        checks: list[dict[str, str]] = json.loads(done.stdout)
        assert any(check["name"] == "scheduler" and check["state"] == "ok" for check in checks) == slurm
        return [check for check in checks if check["name"] == "kernel log"]

    (well,) = told()
    assert well["state"] == "ok", well
    assert f"the files of {len(world.cluster.nodes)} nodes can be read" in well["found"]
    file = world.cluster.kernel_log("node4")
    before = file.stat().st_mode
    file.chmod(0o666)
    try:
        (spoilt,) = told()
    finally:
        file.chmod(before)
    assert spoilt["state"] == "fail"
    assert f"refused: {file} is not trusted" in spoilt["found"]
    assert "nobody but root may write" in spoilt["to_do"]
