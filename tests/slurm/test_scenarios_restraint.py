"""What must not happen, and what must stop: scenarios c, d, f, h and j."""

import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from advisor.client import Client
from advisor.demo.cluster import Cluster
from advisor.demo.training import Training
from advisor.demo.waiting import holds_for, wait_for
from advisor.demo.world import Run, World
from advisor.v1 import audit_pb2
from slurm_plugin.apply import Request, carry_out
from slurm_plugin.guard import Action, Advice, Limits, Reason, Status
from slurm_plugin.scope import ScopeConfig
from slurm_plugin.sharing import Companion
from slurm_plugin.squeue import Output, run_process


def test_c_a_deterministic_failure_is_stopped_after_one_confirmation(world: World) -> None:
    """c: KeyError at the same step on every attempt: one retry, then stop, with the traceback line as evidence."""
    run = world.launch("alice", Training(name="scenario-c", steps=20, faults=[{"kind": "keyerror", "step": 7}]))
    stop = run.wait_decision("a stop", lambda item: item["advice"]["action"] == "ACTION_STOP", seconds=60)
    assert stop["advice"]["attempt"]["attempt"] == 1
    assert stop["advice"]["category"] == "application"
    assert any("KeyError" in item["text"] for item in stop["advice"]["evidence"])
    row = run.wait("FAILED", restarts=1, seconds=20)
    assert row.excluded == frozenset()
    assert holds_for(lambda: (run.row.state, run.row.restarts) == ("FAILED", 1), seconds=6)
    restarts = [item for item in run.decisions() if item["advice"]["action"] == "ACTION_RESTART"]
    assert not any(item["advice"].get("exclude_nodes") for item in restarts)
    assert {item["advice"]["reason"] for item in restarts} == {"confirmation_retry"}


def test_d_a_cancelled_job_stays_cancelled(world: World) -> None:
    """d: the user's scancel is the last word."""
    run = world.launch("alice", Training(name="scenario-d", steps=200))
    run.wait_step(3)
    world.cluster.must("scancel", str(run.job_id), user="alice")
    run.wait("CANCELLED", seconds=20)
    assert holds_for(lambda: _stays_cancelled(run, 0), seconds=6)
    assert not [item for item in run.decisions() if item["advice"]["action"] == "ACTION_RESTART"]


def test_d_a_cancel_while_the_agent_is_about_to_act_wins(world: World) -> None:
    """d: the decision to restart is made, the user cancels, and only then the agent acts: the job stays cancelled."""
    # What is there within the first five seconds ends no start-up.
    fault = {"kind": "xid79", "attempt": 0, "node": "node2", "step": 70}
    run = world.launch("alice", Training(name="scenario-d2", steps=90, collective_seconds=600, faults=[fault]))
    run.wait_step(60)
    world.stack.agent.freeze()
    try:
        run.wait_decision("a restart", lambda item: item["advice"]["action"] == "ACTION_RESTART", seconds=40)
        world.cluster.must("scancel", str(run.job_id), user="alice")
        run.wait("CANCELLED", seconds=20)
    finally:
        world.stack.agent.thaw()
    assert holds_for(lambda: _stays_cancelled(run, 0), seconds=6)
    # The agent refuses, unless newer advice that does nothing has overtaken the restart by then.
    wait_for(
        "the refusal, or advice that knows of the cancel",
        lambda: "RECONCILIATION_REASON_CANCELLED" in _reasons(run) or _newest_action(run) == "ACTION_NONE",
        seconds=20,
    )


def test_d_a_cancel_in_the_moment_of_the_failure_wins(world: World) -> None:
    """d: scancel right after the fault, while ranks die and our decision is under way."""
    fault = {"kind": "xid79", "attempt": 0, "node": "node2", "step": 6}
    before = world.cluster.kernel_log("node2").read_bytes()
    run = world.launch("alice", Training(name="scenario-d3", steps=50, faults=[fault]))
    wait_for("the fault", lambda: world.cluster.kernel_log("node2").read_bytes() != before, seconds=20)
    world.cluster.must("scancel", str(run.job_id), user="alice")
    run.wait("CANCELLED", seconds=20)
    assert holds_for(lambda: _stays_cancelled(run, 0), seconds=6)


def test_d_a_cancel_of_the_requeued_job_wins(world: World) -> None:
    """d: requeued by us and still pending, then cancelled by its user: nothing revives it."""
    fault = {"kind": "xid79", "attempt": 0, "node": "node2", "step": 6}
    run = world.launch("alice", Training(name="scenario-d4", steps=50, faults=[fault]))
    run.wait("PENDING", restarts=1, seconds=30)
    world.cluster.must("scancel", str(run.job_id), user="alice")
    run.wait("CANCELLED", seconds=20)
    assert holds_for(lambda: _stays_cancelled(run, 1), seconds=6)


def test_a_job_is_not_started_beside_those_that_waited_for_its_end(world: World, client: Client) -> None:
    """afterany and singleton: Slurm no longer shows what they waited for, and they run when the failure is judged.

    The agent is kept from looking until they run: else it may requeue in time, and they go on waiting.
    """
    gate = world.cluster.runtime.home("alice") / "gate"
    opt_in = '--comment={"advisor": {"enabled": true}}'
    script = f"#!/bin/sh\nwhile [ ! -e {gate} ]; do sleep 0.2; done\nexit 3\n"
    after, alone = ("alice", "#!/bin/sh\nsleep 60\n", "-N1", "--output=/dev/null"), []
    for name, dependency in (("dep-any", "afterany:{}"), ("dep-single", "singleton")):
        job = world.cluster.submit("alice", script, "-N1", f"-J{name}", opt_in, "--output=/dev/null")
        waits = world.cluster.submit(*after, f"-J{name}", f"--dependency={dependency.format(job)}")
        alone.append((job, waits))
    for heard in (job for pair in alone for job in pair):
        wait_for("the advisor hears of it", partial(_known, client, heard), seconds=30)
    world.stack.agent.freeze()
    try:
        gate.touch()
        for job, waits in alone:
            world.cluster.wait_state(job, "FAILED", seconds=30)
            world.cluster.wait_state(waits, "RUNNING", seconds=30)
    finally:
        world.stack.agent.thaw()
        gate.unlink(missing_ok=True)

    def withheld(job: int) -> bool:
        """By the advisor (`successor_running`), or by the agent where the advisor had heard of the failure first."""
        told = [item for decision in world.stack.decisions(job) for item in decision.get("reconciliations", [])]
        return any(item.get("reason") == "RECONCILIATION_REASON_DEPENDENT_RELEASED" for item in told)

    for job, _ in alone:
        wait_for("it to be withheld", partial(withheld, job), seconds=30)
    assert holds_for(
        lambda: all(
            (world.cluster.job(job).state, world.cluster.job(job).restarts) == ("FAILED", 0) for job, _ in alone
        ),
        seconds=6,
    )


def test_a_requeue_in_the_moment_in_which_a_dependent_is_let_go_is_taken_back(cluster: Cluster) -> None:
    """The acting process has seen it wait; slurmctld has let it go when it serves the requeue: no attempt follows."""
    job = cluster.submit("bob", "#!/bin/sh\nexit 3\n", "-N1", "--hold", "--output=/dev/null")
    waits = cluster.submit("bob", "#!/bin/sh\n", "-N1", "--hold", f"--dependency=afterany:{job}", "--output=/dev/null")
    cluster.must("scontrol", "release", str(job))
    submitted = cluster.wait_state(job, "FAILED", seconds=30).submitted
    assert submitted is not None
    advice = Advice(
        advice_id="a",
        incarnation="i",
        job_key="k",
        job_id=str(job),
        attempt=0,
        submitted_at=submitted,
        user="bob",
        generation=1,
        action=Action.RESTART,
        autonomous=True,
        expires_monotonic=time.monotonic() + 60,
    )

    def let_go_first(argv: Sequence[str], environment: Mapping[str, str], timeout_seconds: float) -> Output:
        if "requeue" in argv:
            cluster.must("scontrol", "update", f"JobId={waits}", "Dependency=")
        return run_process(argv, environment, timeout_seconds)

    request = Request(
        advice=advice,
        shown_id=str(job),
        limits=Limits(act=True, in_scope=True, requeue_delay_seconds=cluster.shape.cred_expire_seconds + 1),
        scope=ScopeConfig(users=("bob",)),
        conf=str(cluster.conf),
        companions=(Companion(job_id=str(waits), shown_id=str(waits), user="bob", waited=True),),
    )
    result = carry_out(request, let_go_first)
    assert (result.status, result.reason) == (Status.WITHHELD, Reason.DEPENDENT_RELEASED), result
    assert [verb.name for verb in result.done] == ["requeue", "cancel"]
    assert holds_for(lambda: (cluster.job(job).state, cluster.job(job).restarts) == ("CANCELLED", 1), seconds=6)
    cluster.must("scancel", str(waits))


def test_f_another_users_words_about_a_node_harm_nobody(world: World, client: Client) -> None:
    """f: bob's healthy job on node1 prints Xid 79 on node3: nobody is touched, the line is counted as foreign."""
    words = [
        "Xid 79 on node3",
        "node3 kernel: NVRM: Xid (PCI:0000:1b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
    ]
    lines = [{"kind": "line", "rank": 0, "step": 4 + at, "text": text} for at, text in enumerate(words)]
    bob = world.launch("bob", Training(name="scenario-f", nodes=1, steps=60, faults=lines))
    bob.wait("RUNNING", seconds=20)
    assert bob.nodes == ("node1",)
    alice = world.launch("alice", Training(name="scenario-f", nodes=2, steps=60))
    alice.wait("RUNNING", seconds=20)
    assert "node3" in alice.nodes
    bob.wait("COMPLETED", restarts=0)
    alice.wait("COMPLETED", restarts=0)
    for run in (alice, bob):
        assert not [item for item in run.decisions() if item["advice"]["action"] != "ACTION_NONE"]
        assert (run.row.excluded, run.row.admin_comment) == (frozenset(), "")
    wait_for("the foreign line to be counted", lambda: _attempt(client, bob).foreign_evidence >= 1, seconds=15)
    nodes = {node.name: node for node in client.nodes(audit_pb2.Filter(), most=100)}
    about = {str(alice.job_id), str(bob.job_id)}
    assert not any(item.attempt.job_id in about for node in nodes.values() for item in node.implications)


def test_h_a_script_that_restarts_its_ranks_is_left_alone(world: World, client: Client) -> None:
    """h: `while ! srun`: a crash in the log, then progress: no requeue, an in-job restart is recorded."""
    faults = [{"kind": "keyerror", "rank": 1, "step": 7, "step_id": 0}]
    run = world.launch("alice", Training(name="scenario-h", steps=40, faults=faults, loop=True))
    row = run.wait("COMPLETED")
    assert (row.restarts, row.excluded, row.admin_comment) == (0, frozenset(), "")
    assert not [item for item in run.decisions() if item["advice"]["action"] != "ACTION_NONE"]
    wait_for("the in-job restart", lambda: _attempt(client, run).in_job_restarts == 1, seconds=15)


def test_j_forged_records_and_broken_bytes_fool_nobody(world: World) -> None:
    """j: a job name that prints a second record, and a byte that is not UTF-8, while a real recovery goes on."""
    victim = world.launch("alice", Training(name="scenario-j", nodes=2, steps=150))
    victim.wait("RUNNING", seconds=20)
    forged = (
        f"x JobState=RUNNING Restarts=7\nJobId={victim.job_id} JobName=evil\n   UserId=alice(64200)\n"
        f"   JobState=FAILED Reason=NonZeroExitCode Restarts=0 ExitCode=1:0\n   AdminComment="
        f'{{"advisor":{{"v":1,"job":"x","attempt":0,"generation":9,"deadline":1,"nodes":["node1"],"start":1}}}}'
    )
    script = "#!/bin/sh\nsleep 600\n"
    evil = world.cluster.submit(
        "bob", script, "-N1", "--gpus-per-node=8", f"--job-name={forged}", f"--comment={forged}"
    )
    broken = world.cluster.submit(
        "bob",
        script,
        "-N1",
        "--gpus-per-node=8",
        "--comment=" + b'{"advisor": true}\xff\xfe'.decode(errors="surrogateescape"),
    )
    world.cluster.wait_state(evil, "RUNNING", seconds=20)
    world.cluster.wait_state(broken, "RUNNING", seconds=20)
    before = {job: world.cluster.job(job) for job in (evil, broken, victim.job_id)}

    fault = {"kind": "xid79", "attempt": 0, "node": "node5", "step": 6}
    run = world.launch("alice", Training(name="scenario-j2", nodes=1, ranks_per_node=1, steps=12, faults=[fault]))
    run.wait("RUNNING", seconds=20)
    assert run.nodes == ("node5",)
    row = run.wait("COMPLETED", restarts=1)
    assert row.excluded == {"node5"}
    assert {job: world.cluster.job(job) for job in before} == before
    assert world.stack.watchdog.running
    assert world.stack.agent.running
    for job in (evil, broken):
        world.cluster.must("scancel", str(job))
    assert victim.wait("COMPLETED").restarts == 0


def test_a_misspelt_opt_out_is_left_alone(world: World) -> None:
    """Beside a job that opted in, fails in the same way, and is restarted a second time: it is not slowness."""
    script = "#!/bin/sh\nsleep 1; exit 42\n"
    slips = [
        world.cluster.submit("alice", script, "-N1", f"--comment={comment}")
        for comment in (
            '{"advisor":{"enable":false}}',
            '{"advisor":{"Enabled":false}}',
            '{"advisor":{"disabled":true}}',
            '{"advisor":{"enabledd":true}}',
        )
    ]
    opted_in = world.cluster.submit("alice", script, "-N1", '--comment={"advisor":{"enabled":true}}')
    wait_for("its second restart", lambda: world.cluster.job(opted_in).restarts == 2, seconds=60)
    for slip in slips:
        world.cluster.wait_state(slip, "FAILED", seconds=30)
    assert [(row.state, row.restarts) for row in map(world.cluster.job, slips)] == [("FAILED", 0)] * len(slips)


def _stays_cancelled(run: Run, restarts: int) -> bool:
    row = run.row
    return row.state == "CANCELLED" and row.restarts == restarts


def _newest_action(run: Run) -> str:
    newest: str = max(run.decisions(), key=lambda item: int(item["advice"]["generation"]))["advice"]["action"]
    return newest


def _reasons(run: Run) -> set[str]:
    found: set[str] = set()
    for decision in run.decisions():
        found |= {item.get("reason", "") for item in decision.get("reconciliations", [])}
    return found


def _known(client: Client, job: int) -> bool:
    return any(client.attempts(audit_pb2.Filter(job_id=str(job)), most=1))


def _attempt(client: Client, run: Run) -> Any:
    found = client.attempts(audit_pb2.Filter(job_id=str(run.job_id)), most=50)
    return next(item for item in found if item.attempt.attempt == run.row.restarts)
