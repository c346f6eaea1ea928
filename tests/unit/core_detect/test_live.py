"""Whole attempts, read while they run: what the decision is at each point."""

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from advisor.core.decide import decide
from advisor.core.model import (
    Attempt,
    Decision,
    ExitStatus,
    Job,
    NodeFact,
    OpenAdvice,
    PastAttempt,
    Signal,
    Snapshot,
    SourceReport,
    Successor,
)
from advisor.core.policy import Policy
from advisor.core.progress import combine
from advisor.core.scan import FileContext, FileState, fold_signals
from advisor.core.words import Action, AttemptState, Category, IncidentKind, Mode, NodeState, Reason, Trust
from tests.unit.core_detect.logs import NOON, RULES, SCANNER

NODES = ("node1", "node2", "node3")
RANKS = 12


class Live:
    """An attempt on three nodes with four ranks each, told second by second what its sources show."""

    def __init__(self, *, nodes: tuple[str, ...] = NODES, past: tuple[PastAttempt, ...] = ()) -> None:
        self.now = NOON
        self.states: dict[str, FileState] = {}
        self.signals: tuple[Signal, ...] = ()
        self.foreign = 0
        job = Job(key="j", cluster="c", job_id="7", user="u", batch=True, requeueable=True, in_scope=True)
        self.world = Snapshot(
            job=replace(job, mode=Mode.AUTONOMOUS),
            attempt=Attempt(
                number=len(past),
                state=AttemptState.RUNNING,
                nodes=nodes,
                submitted_at=NOON,
                started_at=NOON,
                world_size=4 * len(nodes),
                tasks_per_node=4,
            ),
            sources=(SourceReport(source="logs", trust=Trust.LOG), SourceReport(source="kernel", trust=Trust.KERNEL)),
            past=past,
        )

    def read(self, text: str, *, kernel: str = "", file: str = "job.out") -> None:
        attempt = self.world.attempt
        context = FileContext(
            source="kernel" if kernel else "logs",
            trust=Trust.KERNEL if kernel else Trust.LOG,
            file=kernel or file,
            node=kernel or None,
            nodes=attempt.nodes,
            started_at=attempt.started_at,
            tasks_per_node=attempt.tasks_per_node,
            world_size=attempt.world_size,
        )
        state = self.states.get(context.file, FileState())
        scanned = SCANNER.scan(context, state, text.encode(), fresh=False, final=False, seen_at=self.now)
        self.states[context.file] = scanned.state
        self.signals = fold_signals(self.signals, scanned, 200)
        self.foreign += scanned.foreign

    def wait(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)

    def steps(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            self.wait(0.5)
            clock = f"{self.now:%Y-%m-%d %H:%M:%S}"
            self.read(
                f"11:  [{clock}] iteration {number:8d}/     100 | consumed samples: {number:12d} | elapsed time per "
                f"iteration (ms): 500.1 | lm loss: 2.0E+00 | number of nan iterations:   0 |\n"
            )

    def ends(self, state: AttemptState, code: int = 1) -> None:
        attempt = replace(self.world.attempt, state=state, ended_at=self.now, exit=ExitStatus(code=code))
        self.world = replace(self.world, attempt=attempt)

    def decide(self) -> Decision:
        states = {name: state.progress for name, state in self.states.items()}
        world = replace(self.world, signals=self.signals, progress=combine(states) if states else self.world.progress)
        return decide(world, RULES, Policy(), self.now)


def watchdogs(ranks: Iterable[int], at: datetime) -> str:
    return "".join(
        f"{rank}: [rank{rank}]:[E{at:%m%d %H:%M:%S}.000000000 ProcessGroupNCCL.cpp:616] [Rank {rank}] Watchdog caught "
        f"collective operation timeout: WorkNCCL(SeqNum=12, OpType=ALLREDUCE, NumelIn=1048576, NumelOut=1048576, "
        f"Timeout(ms)=10000) ran for 10007 milliseconds before timing out.\n"
        for rank in ranks
    )


def xid79(node: str, at: datetime) -> str:
    return (
        f"{at.isoformat()} {node} kernel: NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, name=python3, "
        f"GPU has fallen off the bus.\n"
    )


def test_a_gpu_falls_off_the_bus() -> None:
    """node2's kernel says so, its ranks die, the others time out: restarted without node2 and nothing else."""
    job = Live()
    job.steps(range(1, 13))
    job.wait(0.2)
    job.read(xid79("node2", job.now), kernel="node2")
    at_once = job.decide()
    assert at_once.incident.kind is IncidentKind.CRASH
    assert (at_once.action, at_once.reason) == (Action.NONE, Reason.AWAITING_EXIT)
    assert at_once.attribution.nodes == ("node2",)
    job.read("4: [rank4]: torch.AcceleratorError: CUDA error: unspecified launch failure\n")
    job.wait(10)
    job.read(watchdogs([0, 1, 2, 3, 8, 9, 10, 11], job.now))
    job.read("srun: error: node2: task 4: Exited with exit code 1\nsrun: error: node1: tasks 0-3: Aborted\n")
    job.ends(AttemptState.FAILED)
    decision = job.decide()
    assert (decision.action, decision.reason) == (Action.RESTART, Reason.NODES_IMPLICATED)
    assert decision.isolation.exclude_for_job == ("node2",)
    assert decision.attribution.category is Category.GPU_HARDWARE
    assert decision.attribution.trusted


def test_a_gpu_falls_off_the_bus_and_nobody_notices() -> None:
    """The ranks hang: after a grace without progress the attempt may be ended, long before the hang limit."""
    job = Live()
    job.steps(range(1, 13))
    job.read(xid79("node2", job.now), kernel="node2")
    job.wait(25)
    decision = job.decide()
    assert (decision.action, decision.reason) == (Action.RESTART, Reason.TRUSTED_FATAL)
    assert decision.may_end_live_attempt


def test_a_lost_gpu_that_nobody_notices_until_the_time_limit() -> None:
    """The limit ended it, the GPU caused it: the next attempt avoids the node, and no budget is spent."""
    job = Live()
    job.steps(range(1, 13))
    job.read(xid79("node2", job.now), kernel="node2")
    job.wait(15)
    job.read("slurmstepd: error: *** STEP 7.0 ON node1 CANCELLED AT 2026-11-29T12:00:21 DUE TO TIME LIMIT ***\n")
    job.ends(AttemptState.TIME_LIMIT, 0)
    job.wait(5)
    decision = job.decide()
    assert (decision.attribution.category, decision.attribution.nodes) == (Category.GPU_HARDWARE, ("node2",))
    assert (decision.action, decision.isolation.exclude_for_job) == (Action.RESTART, ("node2",))


def test_an_xid_that_the_job_survived_is_not_what_ended_it() -> None:
    """Hours of progress after it acquit the node, however trusted the kernel is."""
    job = Live()
    job.steps(range(1, 5))
    job.read(xid79("node2", job.now), kernel="node2")
    job.steps(range(5, 60))
    assert job.decide().incident.kind is IncidentKind.NONE
    job.read("6: KeyError: 'x'\nsrun: error: node2: task 6: Exited with exit code 1\n")
    job.ends(AttemptState.FAILED)
    job.wait(5)
    decision = job.decide()
    assert (decision.attribution.category, decision.attribution.nodes) == (Category.APPLICATION, ())


def test_the_same_key_error_again() -> None:
    """One confirmation retry, then a stop with the traceback as evidence and nobody excluded."""
    past: tuple[PastAttempt, ...] = ()
    wanted = [(Action.RESTART, Reason.CONFIRMATION_RETRY), (Action.STOP, Reason.SAME_FAILURE_SAME_PROGRESS)]
    for number, expected in enumerate(wanted):
        job = Live(past=past)
        job.steps(range(1, 8))
        job.read(
            "6: Traceback (most recent call last):\n6:   File \"train.py\", line 70, in step\n6: KeyError: 'x'\n"
            "srun: error: node2: task 6: Exited with exit code 1\n"
        )
        job.ends(AttemptState.FAILED)
        job.wait(5)
        decision = job.decide()
        assert (decision.action, decision.reason) == expected
        assert decision.isolation.exclude_for_job == ()
        blame = decision.attribution
        assert (blame.category, blame.ranks) == (Category.APPLICATION, (6,))
        evidence = [signal for signal in decision.incident.signals if signal.id in blame.evidence]
        assert evidence[0].text.endswith("KeyError: 'x'")
        past += (
            PastAttempt(
                number=number,
                category=blame.category,
                fingerprint=blame.fingerprint,
                reason=decision.reason,
                action=decision.action,
                nodes=NODES,
                first_step=1,
                last_step=7,
                ended_at=job.now,
            ),
        )


def test_a_line_about_another_users_node() -> None:
    """A healthy job that prints "Xid 79 on node3" changes nothing; the line is counted as foreign."""
    job = Live(nodes=("node1",))
    job.steps(range(1, 5))
    job.read("health: Xid 79 on node3\n" + xid79("node3", job.now))
    job.steps(range(5, 7))
    decision = job.decide()
    assert (decision.incident.kind, decision.action, decision.reason) == (
        IncidentKind.NONE,
        Action.NONE,
        Reason.HEALTHY,
    )
    assert decision.attribution.implications == ()
    assert job.foreign == 2


def test_ranks_that_are_restarted_inside_the_job() -> None:
    """`while ! srun`: a crash and a new start are no reason to requeue, and are recorded."""
    job = Live()
    job.steps(range(1, 13))
    job.read("5: RuntimeError: boom\nsrun: error: node2: task 5: Exited with exit code 1\n")
    assert job.decide().reason is Reason.AWAITING_EXIT
    job.wait(3)
    job.read("0:   successfully loaded checkpoint from /c [ t 0, p 0 ] at iteration 10\n")
    job.steps(range(11, 16))
    decision = job.decide()
    assert (decision.action, decision.reason) == (Action.NONE, Reason.IN_JOB_RESTART)
    assert decision.in_job_restarts == 1


def test_a_dead_slurmd_under_a_hanging_job() -> None:
    """The scheduler misses node2, and no step has come since: requeued without it while it still runs."""
    job = Live()
    job.steps(range(1, 13))
    fact = NodeFact(name="node2", state=NodeState.NOT_RESPONDING, since=job.now)
    job.world = replace(job.world, nodes=(fact,))
    assert job.decide().action is Action.NONE
    job.wait(30)
    decision = job.decide()
    assert (decision.action, decision.isolation.exclude_for_job) == (Action.RESTART, ("node2",))
    assert decision.may_end_live_attempt


def test_a_node_that_is_missed_while_the_job_goes_on() -> None:
    """Progress says that the node is well, whatever its slurmd does."""
    job = Live()
    job.steps(range(1, 5))
    since = job.now
    job.steps(range(5, 30))
    job.world = replace(job.world, nodes=(NodeFact(name="node2", state=NodeState.NOT_RESPONDING, since=since),))
    assert job.decide().incident.kind is IncidentKind.NONE


def test_a_cancel_is_nobodys_failure() -> None:
    """Whatever the ranks print while they are being ended."""
    job = Live()
    job.steps(range(1, 5))
    job.read("slurmstepd: error: *** STEP 7.0 ON node1 CANCELLED AT 2026-11-29T12:00:03 ***\n5: RuntimeError: bye\n")
    job.ends(AttemptState.CANCELLED, 0)
    job.wait(5)
    decision = job.decide()
    assert (decision.incident.kind, decision.reason) == (IncidentKind.NONE, Reason.USER_CANCELLED)


def test_local_times_of_the_log_do_not_disturb_the_order() -> None:
    """The log's clock is two hours off the kernel's, without a zone: learned from when lines were read."""
    job = Live()
    job.steps(range(1, 4))
    job.read(xid79("node2", job.now), kernel="node2")
    job.wait(10)
    job.read(watchdogs([0, 1], job.now + timedelta(hours=2)))
    job.ends(AttemptState.FAILED)
    first = job.decide().incident.signals[0]
    assert first.rule == "kernel.xid"


REQUEUED = "slurmstepd: error: *** JOB 7 ON node1 CANCELLED AT {at} DUE TO JOB REQUEUE ***\n"


def advised(job: Live, decision: Decision, *, applied: bool = False) -> None:
    """What was decided is out."""
    advice = OpenAdvice(
        generation=1,
        action=decision.action,
        exclude_nodes=(),
        category=decision.attribution.category,
        reason=decision.reason,
        created_at=job.now,
        applied=applied,
    )
    job.world = replace(job.world, advice=advice)


@pytest.mark.parametrize("steps", [60, 0])
def test_what_is_printed_when_we_end_a_hang_is_no_cause_of_it(steps: int) -> None:
    """Read before the report that tells of the end, with it, and after it: it hung, and the restart stands."""
    past = (PastAttempt(number=0, category=Category.UNKNOWN, fingerprint="", reason=None, action=None, last_step=9),)
    job = Live(past=() if steps else past)
    job.steps(range(1, steps + 1))
    job.wait(7200)
    hung = job.decide()
    assert (hung.action, hung.reason, hung.incident.kind) == (Action.RESTART, Reason.HANG, IncidentKind.HANG)
    advised(job, hung)
    job.wait(1)
    job.read(REQUEUED.format(at=f"{job.now:%Y-%m-%dT%H:%M:%S}"))
    job.wait(1)

    def stands() -> None:
        decision = job.decide()
        found = (decision.action, decision.reason, decision.incident.kind, decision.attribution.category)
        assert found == (Action.RESTART, Reason.HANG, IncidentKind.HANG, Category.UNKNOWN)

    stands()
    job.world = replace(job.world, attempt=replace(job.world.attempt, state=AttemptState.COMPLETING))
    job.wait(10)
    stands()
    successor = Successor(number=job.world.attempt.number + 1, state=AttemptState.PENDING, by_us=True)
    ended = replace(job.world.attempt, ended_at=job.now)
    job.world = replace(job.world, attempt=ended, successor=successor)
    job.wait(600)
    stands()


def test_a_hang_that_its_user_requeues_was_one() -> None:
    """In monitor mode, and before anything was advised; whoever requeues a job that steps has his reasons."""
    job = Live()
    job.steps(range(1, 61))
    job.wait(7200)
    requeue(job)
    assert (job.decide().incident.kind, job.decide().attribution.category) == (IncidentKind.HANG, Category.UNKNOWN)
    well = Live()
    well.steps(range(1, 61))
    requeue(well)
    well.wait(7200)
    assert well.decide().attribution.category is Category.SCHEDULER_EVENT


def requeue(job: Live) -> None:
    """By somebody else."""
    job.read(REQUEUED.format(at=f"{job.now:%Y-%m-%dT%H:%M:%S}"))
    job.wait(5)
    successor = Successor(number=job.world.attempt.number + 1, state=AttemptState.PENDING, by_us=False)
    ended = replace(job.world.attempt, state=AttemptState.COMPLETING, ended_at=job.now)
    job.world = replace(job.world, attempt=ended, successor=successor)
    assert (job.decide().action, job.decide().reason) == (Action.NONE, Reason.ALREADY_REQUEUED)
