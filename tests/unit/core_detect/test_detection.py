"""Incidents: what opens one, what does not, and what clears it."""

from dataclasses import replace
from datetime import timedelta

import pytest

from advisor.core.detection import detect
from advisor.core.model import NodeFact, SourceReport, Unavailable
from advisor.core.policy import Policy
from advisor.core.words import AttemptState, Category, IncidentKind, NodeState, Trust, UnavailableReason
from tests.unit.core_detect.logs import NOON, RULES, context, judge, kernel, snapshot

STEP = " iteration {:8d}/     100 | consumed samples: 1 | elapsed time per iteration (ms): 9.1 | lm loss: 2.0 |\n"
STEPS = "".join(STEP.format(number) for number in range(1, 6))
XID79 = "2026-11-29T11:59:00+00:00 node2 kernel: NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.\n"
XID13 = XID79.replace(" 79, GPU has fallen off the bus", " 13, pid=7, name=python3, Graphics Exception")
RUNNING = AttemptState.RUNNING


@pytest.mark.parametrize(
    ("state", "kind"),
    [
        (AttemptState.FAILED, IncidentKind.CRASH),
        (AttemptState.NODE_FAILURE, IncidentKind.CRASH),
        (AttemptState.PREEMPTED, IncidentKind.CRASH),
        (AttemptState.TIME_LIMIT, IncidentKind.CRASH),
        (AttemptState.OUT_OF_MEMORY, IncidentKind.CRASH),
        (AttemptState.COMPLETED, IncidentKind.NONE),
        (AttemptState.CANCELLED, IncidentKind.NONE),
        (AttemptState.RUNNING, IncidentKind.NONE),
        (AttemptState.PENDING, IncidentKind.NONE),
        (AttemptState.COMPLETING, IncidentKind.NONE),
        (AttemptState.OTHER, IncidentKind.NONE),
    ],
)
def test_the_state_alone(state: AttemptState, kind: IncidentKind) -> None:
    """With an empty log the scheduler's state decides; nothing is concluded from what is not visible."""
    assert judge(snapshot(state=state), NOON - timedelta(minutes=1))[0].kind is kind


def test_completed_steps_are_not_contradicted_by_teardown() -> None:
    """A completed job that prints errors while it ends has no incident."""
    world = snapshot((context(), "[rank3]: KeyError: 'x'\n"), state=AttemptState.COMPLETED)
    assert judge(world)[0].kind is IncidentKind.NONE


def test_errors_after_the_end_of_training_are_noise() -> None:
    """Whatever the exit code says, training was done."""
    text = STEPS + "[after training is done] datetime: 2026-11-29\n[rank1]: RuntimeError: pipe\n"
    assert judge(snapshot((context(), text)))[0].kind is IncidentKind.NONE


def test_a_trusted_fatal_xid_is_an_incident_at_once() -> None:
    """Before any rank has noticed."""
    incident, _ = judge(snapshot((context(), STEPS), (kernel("node2"), XID79), state=RUNNING))
    assert incident.kind is IncidentKind.CRASH
    assert not incident.ended


def test_an_application_xid_is_none() -> None:
    """Xid 13 of a running job says that a kernel of it faulted; the job will tell."""
    assert judge(snapshot((context(), STEPS), (kernel("node2"), XID13), state=RUNNING))[0].kind is IncidentKind.NONE


def test_progress_clears_an_error_in_the_log() -> None:
    """Two further steps and the crash line is history."""
    crash = "[rank3]: KeyError: 'x'\n"
    late = STEP.format(5)
    assert judge(snapshot((context(), STEPS + crash + late), state=RUNNING))[0].kind is IncidentKind.CRASH
    more = "".join(STEP.format(number) for number in (6, 7, 8))
    assert judge(snapshot((context(), STEPS + crash + late + more), state=RUNNING))[0].kind is IncidentKind.NONE


def test_a_collective_time_out_is_a_hang_unless_somebody_crashed() -> None:
    """The time-out is the symptom; a crash before it is the incident."""
    line = "[rank1]:[E P.cpp:1] [Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=9, OpType=X)\n"
    assert judge(snapshot((context(), STEPS + line), state=RUNNING))[0].kind is IncidentKind.HANG
    assert judge(snapshot((context(), STEPS + line)))[0].kind is IncidentKind.HANG
    crash = "[rank3]: KeyError: 'x'\n"
    assert judge(snapshot((context(), STEPS + crash + line)))[0].kind is IncidentKind.CRASH


def test_what_a_time_out_leaves_behind_makes_no_crash_of_a_hang() -> None:
    """Processes that the watchdog ends print errors too."""
    line = "[rank1]:[E P.cpp:1] [Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=9, OpType=X)\n"
    after = "[rank1]: RuntimeError: the communicator is gone\n"
    assert judge(snapshot((context(), STEPS + line + after)))[0].kind is IncidentKind.HANG


def test_a_crash_that_never_ends_the_attempt_becomes_a_hang() -> None:
    """One rank is dead, the others wait: at the limit that is a hang, and the crash its cause."""
    world = snapshot((context(), STEPS + "[rank3]: KeyError: 'x'\n"), state=RUNNING)
    assert judge(world, NOON + timedelta(minutes=5))[0].kind is IncidentKind.CRASH
    incident, blame = judge(world, NOON + timedelta(minutes=11))
    assert (incident.kind, blame.ranks) == (IncidentKind.HANG, (3,))


@pytest.mark.parametrize(("minutes", "kind"), [(5, IncidentKind.NONE), (11, IncidentKind.HANG)])
def test_missing_progress_is_a_hang_after_the_limit(minutes: int, kind: IncidentKind) -> None:
    """Ten minutes in steady state by default."""
    world = snapshot((context(), STEPS), state=RUNNING)
    assert judge(world, NOON + timedelta(minutes=minutes))[0].kind is kind


def test_start_up_may_take_an_hour() -> None:
    """Before the first step the longer limit holds, counted from where the start was announced."""
    world = snapshot((context(), "loading checkpoint from /ckpt\n"), state=RUNNING)
    hour = timedelta(hours=1)
    assert judge(world, NOON + hour - timedelta(seconds=10))[0].kind is IncidentKind.NONE
    assert judge(world, NOON + hour + timedelta(seconds=10))[0].kind is IncidentKind.HANG


def test_a_log_that_cannot_be_read_is_not_a_silent_job() -> None:
    """Absence is a value: an unavailable source never means a hang."""
    gone = Unavailable(source="logs", reason=UnavailableReason.PERMISSION)
    world = replace(
        snapshot((context(), STEPS), state=RUNNING),
        sources=(SourceReport(source="logs", trust=Trust.LOG, unavailable=gone),),
    )
    assert judge(world, NOON + timedelta(hours=5))[0].kind is IncidentKind.NONE
    assert judge(replace(world, sources=()), NOON + timedelta(hours=5))[0].kind is IncidentKind.NONE


def test_a_hang_is_the_same_signal_at_every_tick() -> None:
    """Time going by alone changes no decision."""
    world = snapshot((context(), STEPS), state=RUNNING)
    first = judge(world, NOON + timedelta(minutes=11))[0]
    second = judge(world, NOON + timedelta(minutes=12))[0]
    assert first.signals == second.signals


def test_a_dead_node_under_a_running_job_is_an_incident() -> None:
    """The scheduler's word about a node of the allocation is trusted evidence."""
    fact = NodeFact(name="node2", state=NodeState.NOT_RESPONDING, since=NOON)
    incident, blame = judge(replace(snapshot((context(), STEPS), state=RUNNING), nodes=(fact,)))
    assert incident.kind is IncidentKind.CRASH
    assert (blame.nodes, blame.trusted) == (("node2",), True)


def test_nodes_of_others_and_nodes_that_fell_later_do_not_count() -> None:
    """A node outside the allocation, or one that went down long after the end, explains nothing."""
    foreign = NodeFact(name="node9", state=NodeState.DOWN, since=NOON)
    later = NodeFact(name="node2", state=NodeState.DOWN, since=NOON + timedelta(minutes=10))
    incident, _ = judge(replace(snapshot(state=AttemptState.FAILED), nodes=(foreign, later)))
    assert not any(signal.rule.startswith("scheduler.node") for signal in incident.signals)


class _Compared(str):
    """A name that counts how often it is compared."""

    __slots__ = ()
    times = 0

    def __eq__(self, other: object) -> bool:
        _Compared.times += 1
        return str.__eq__(self, other)

    __hash__ = str.__hash__


def test_nodes_are_not_compared_each_with_each() -> None:
    """A tick asks about every node of a job of thousands, also while all are well, and when many are away."""
    names = [f"node{n}" for n in range(300)]
    job = snapshot(state=AttemptState.RUNNING, nodes=tuple(map(_Compared, names)))
    for state, found in ((NodeState.UP, IncidentKind.NONE), (NodeState.DOWN, IncidentKind.CRASH)):
        facts = tuple(NodeFact(name=_Compared(name), state=state, since=NOON) for name in names)
        _Compared.times = 0
        assert detect(replace(job, nodes=facts), RULES, Policy(), NOON + timedelta(minutes=1)).kind is found
        assert _Compared.times <= 20 * len(names)


def test_nan_is_divergence_only_when_it_stays() -> None:
    """One skipped step is nothing, a loss that stays NaN is."""
    nan = STEP.replace("lm loss: 2.0", "lm loss: nan")
    once = STEPS + nan.format(6) + STEP.format(7)
    assert judge(snapshot((context(), once), state=RUNNING))[0].kind is IncidentKind.NONE
    stays = STEPS + "".join(nan.format(number) for number in range(6, 12))
    assert judge(snapshot((context(), stays), state=RUNNING))[0].kind is IncidentKind.DIVERGENCE


def test_the_limits_are_policy() -> None:
    """A site's own limit is used."""
    world = snapshot((context(), STEPS), state=RUNNING)
    policy = Policy(hang_seconds=30.0)
    assert detect(world, RULES, policy, NOON + timedelta(seconds=31)).kind is IncidentKind.HANG


KILLED = "srun: error: node2: task 9: Killed\n"
TIMED_OUT = "[rank1]:[E P.cpp:1] [Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=9, OpType=X)\n"


def test_a_task_that_is_killed_first_is_the_crash_and_no_hang() -> None:
    """The others time out only because it is gone."""
    incident, blame = judge(snapshot((context(), STEPS + KILLED + TIMED_OUT)))
    assert (incident.kind, blame.category, blame.ranks) == (IncidentKind.CRASH, Category.HOST_OUT_OF_MEMORY, (9,))


@pytest.mark.parametrize(
    "before",
    [
        "srun: error: node1: task 3: Exited with exit code 1\n",
        "slurmstepd: error: *** STEP 7.0 ON node1 CANCELLED AT 2026-11-29T11:00:00 ***\n",
        "[rank3]: KeyError: 'x'\n",
    ],
)
def test_a_task_that_is_killed_with_its_step_tells_nothing(before: str) -> None:
    """Slurm kills what is left of a step."""
    incident, blame = judge(snapshot((context(), STEPS + before + KILLED)))
    assert "slurm.task_killed" not in {signal.rule for signal in incident.signals}
    assert blame.category is not Category.HOST_OUT_OF_MEMORY


@pytest.mark.parametrize(("seconds", "counts"), [(1, True), (3, False)])
def test_what_a_machine_reports_after_the_end_did_not_cause_it(seconds: int, counts: bool) -> None:
    """Beyond the skew of clocks."""
    world = snapshot((context(), STEPS), (kernel("node2"), XID79))
    ended = world.signals[0].at
    assert ended is not None
    attempt = replace(world.attempt, ended_at=ended - timedelta(seconds=seconds))
    incident, blame = judge(replace(world, attempt=attempt))
    assert (blame.nodes == ("node2",)) is counts
    assert ("kernel.xid" in {signal.rule for signal in incident.signals}) is counts


def test_an_end_of_training_that_is_not_saved_is_none() -> None:
    """What was trained last is lost, whatever the job says of itself; and a full disk is no noise of teardown."""
    saved = "saved checkpoint at step 3\n"
    done = "[after training is done] datetime: 2026-11-29\n"
    full = "[rank0]: OSError: [Errno 28] No space left on device: '/project/run/last'\n"
    assert judge(snapshot((context(), STEPS + saved + STEP.format(9) + done)))[0].kind is IncidentKind.CRASH
    assert judge(snapshot((context(), STEPS + saved.replace("3", "5") + done)))[0].kind is IncidentKind.NONE
    assert judge(snapshot((context(), STEPS + done + full)))[0].kind is IncidentKind.CRASH
