"""Slowdowns: against the attempt's own past, for long enough, and who it is."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta

import pytest

from advisor.core import codec
from advisor.core.course import Throughput
from advisor.core.decide import decide
from advisor.core.detection import detect
from advisor.core.model import Decision, Signal, Snapshot
from advisor.core.policy import Policy
from advisor.core.progress import combine
from advisor.core.scan import FileState
from advisor.core.straggler import NEW_NORMAL, SAMPLES, learn, printed_seconds, printed_wait, slowdown
from advisor.core.words import Action, AttemptState, IncidentKind, Reason, Trust
from tests.unit.core_detect.logs import NODES, NOON, RULES, SCANNER, context, snapshot

POLICY = Policy()
REPORT = (
    "0: INFO:megatron.core.utils:[2026-11-29 12:00:00] | MnRtt/Rnk: {low}ms/8 | MxRtt/Rnk: {high}ms/{rank} | "
    "MnPwr/Rnk: 601796W/8 | MxPwr/Rnk: 683801W/18 | MnDRtt/Rnk: 14.27ms/23 | MxDRtt/Rnk: 34.65ms/3 | "
    "MnEtpt/Rnk: 296.02TF/0 | MxEtpt/Rnk: 297.32TF/8"
)


class Job:
    """Steps on a clock of its own, one read each."""

    def __init__(self, line: str = "step {step} | loss 2.1") -> None:
        self.line, self.at, self.step = line, 0.0, 0
        self.state = FileState()
        self.signals: tuple[Signal, ...] = ()

    def say(self, text: str) -> "Job":
        seen_at = NOON + timedelta(seconds=self.at)
        data = (text + "\n").encode()
        found = SCANNER.scan(context(), self.state, data, fresh=False, final=False, seen_at=seen_at)
        self.state = found.state
        self.signals += found.signals
        return self

    def steps(self, count: int, seconds: float, **values: float) -> "Job":
        for _ in range(count):
            self.at += seconds
            self.step += 1
            self.say(self.line.format(step=self.step, seconds=seconds, ms=seconds * 1000, **values))
        return self

    def windows(self, count: int, seconds: float, **values: float) -> "Job":
        return self.steps(count * SAMPLES, seconds, **values)

    def world(self, ranks: Mapping[int, str] | None = None) -> Snapshot:
        world = snapshot(state=AttemptState.RUNNING, rank_nodes=ranks or {})
        return replace(world, signals=self.signals, progress=combine({"job.log": self.state.progress}))

    def decision(self, ranks: Mapping[int, str] | None = None) -> Decision:
        return decide(self.world(ranks), RULES, POLICY, NOON + timedelta(seconds=self.at + 1))


def test_a_sustained_loss_of_throughput_waits_for_the_next_checkpoint() -> None:
    """Named after three slow windows, and never a kill between two checkpoints."""
    job = Job().windows(10, 2.0).windows(2, 3.0)
    assert job.decision().incident.kind is IncidentKind.NONE
    decision = job.windows(2, 3.0).decision()
    assert decision.incident.kind is IncidentKind.STRAGGLER
    assert (decision.action, decision.reason) == (Action.NONE, Reason.NEXT_CHECKPOINT)
    assert "steps take 3 s instead of 2 s since step" in decision.attribution.root_cause
    assert "all ranks together" in decision.attribution.root_cause
    assert (decision.attribution.nodes, decision.isolation.exclude_for_job) == ((), ())


def test_a_slowdown_is_the_same_signal_while_it_lasts() -> None:
    """Further slow windows change no decision."""
    job = Job().windows(10, 2.0).windows(4, 3.0)
    first = job.decision().incident.signals
    assert job.windows(3, 3.1).decision().incident.signals == first


def test_two_slow_windows_are_nothing() -> None:
    """Three in a row are asked for."""
    job = Job().windows(10, 2.0)
    for _ in range(4):
        job.windows(2, 3.0).windows(1, 2.0)
    assert job.decision().incident.kind is IncidentKind.NONE


def test_it_ends_after_two_ordinary_windows() -> None:
    """Hysteresis: one good window, or windows that are only a little better, end nothing."""
    job = Job().windows(10, 2.0).windows(4, 3.0).windows(1, 2.0)
    assert job.decision().incident.kind is IncidentKind.STRAGGLER
    assert job.windows(3, 2.45).decision().incident.kind is IncidentKind.STRAGGLER
    assert job.windows(3, 2.0).decision().incident.kind is IncidentKind.NONE


def test_jitter_and_pauses_are_no_slowdown() -> None:
    """Uneven steps widen what is ordinary; a checkpoint is no step."""
    job = Job()
    for number in range(40 * SAMPLES):
        job.steps(1, (1.6, 2.4, 2.0, 2.9)[number * 7 % 4])
        if number % 50 == 49:
            job.at += 200.0
        assert job.decision().incident.kind is IncidentKind.NONE if number % 40 == 0 else True
    assert job.decision().incident.kind is IncidentKind.NONE


def test_what_stays_is_the_new_normal() -> None:
    """Longer sequences: an incident that never ends helps nobody."""
    job = Job().windows(10, 2.0).windows(NEW_NORMAL + 10, 3.0)
    assert job.decision().incident.kind is IncidentKind.NONE


def test_one_rank_that_reports_name_again_and_again() -> None:
    """Megatron's report names a slowest rank each time; only the same one, clearly slower, is a straggler."""
    job = Job().windows(10, 2.0)
    for _ in range(4):
        job.windows(1, 3.0).say(REPORT.format(low=2000.0, high=2900.0, rank=12))
    blame = job.decision().attribution
    assert blame.ranks == (12,)
    assert "rank 12" in blame.root_cause
    for rank in (3, 9, 12):
        job.windows(1, 3.0).say(REPORT.format(low=2000.0, high=2900.0, rank=rank))
    assert "all ranks together" in job.decision().attribution.root_cause
    for _ in range(3):
        job.windows(1, 3.0).say(REPORT.format(low=2000.0, high=2010.0, rank=12))
    assert "all ranks together" in job.decision().attribution.root_cause


def test_slow_ranks_of_one_node_are_that_node() -> None:
    """Named, and not excluded: a log's timing is no proof against a machine."""
    job = Job().windows(10, 2.0).windows(4, 3.0)
    job.say("STRAGGLER DETECTION WARNING: Some GPUs have worse relative performance. Affected ranks: [8, 9]")
    decision = job.decision({8: NODES[1], 9: NODES[1], 0: NODES[0]})
    assert decision.attribution.ranks == (8, 9)
    assert f"of {NODES[1]}" in decision.attribution.root_cause
    assert decision.isolation.exclude_for_job == ()


def test_waiting_for_input_is_told_apart() -> None:
    """Where the time for data is most of a step, no rank is slow."""
    job = Job("Train Epoch: 0 [{step:3d}/400000 (1%)] Data (t): {data:.3f} Batch (t): {seconds:.3f} Loss: 2.1")
    job.windows(10, 1.0, data=0.02).windows(4, 3.0, data=2.8)
    decision = job.decision()
    assert decision.incident.kind is IncidentKind.STRAGGLER
    assert "wait for input" in decision.attribution.root_cause


def test_a_healthy_report_alone_is_no_incident() -> None:
    """Every report names a slowest rank."""
    job = Job().windows(10, 2.0)
    for _ in range(4):
        job.say(REPORT.format(low=3453.08, high=3468.2, rank=0))
    assert detect(job.world(), RULES, POLICY, NOON).kind is IncidentKind.NONE


@pytest.mark.parametrize(
    ("line", "seconds"),
    [
        (" iteration 20/ 500 | elapsed time per iteration (ms): 4812.3 | lm loss: 9.7E+00 |", 4.8123),
        ("train_step=12 loss=8.912 step_time=1.26s", 1.26),
        ("iteration 120/4999 | train_step_timing in s: 4.81 | consumed_samples: 30976", 4.81),
        ("completed step: 12, seconds: 1.2, TFLOP/s/device: 300", 1.2),
        ("Train Epoch: 0 [ 12/400000 (1%)] Data (t): 0.102 Batch (t): 0.914", 0.914),
        (" 14%|#4        | 12/1891 [3:02:51<21:12:36, 46.79s/it]", None),
        ("step 12 | loss 2.113", None),
    ],
)
def test_a_lines_own_time_of_a_step(line: str, seconds: float | None) -> None:
    """Smoothed values of a bar lag behind and are left out."""
    assert printed_seconds(line) == pytest.approx(seconds)


def test_the_share_of_waiting() -> None:
    """Of lines that print both times."""
    assert printed_wait("Data (t): 0.457 Batch (t): 0.914") == pytest.approx(0.5)
    assert printed_wait("lr: 1e-4 eta: 1 day time: 0.80 data_time: 0.20 memory: 9") == pytest.approx(0.25)
    assert printed_wait("step 12 | loss 2.113") is None


def test_little_history_says_nothing() -> None:
    """Before some windows are known, nothing is slow."""
    known = Throughput()
    for number in range(5 * SAMPLES):
        known = learn(known, step=number, seconds=1.0 + number, wait=None, at=NOON)
    assert not known.sustained
    assert known.slow == ()


def told(job: Job, steps: int, seconds: Mapping[int, float], *, ranks: int = 16, usual: float = 1.2) -> Job:
    """Every rank prints how long its steps take; those named in `seconds` last."""
    for _ in range(steps):
        job.step += 1
        job.at += max(usual, *seconds.values(), usual)
        order = sorted(range(ranks), key=lambda rank: seconds.get(rank, usual))
        job.say("\n".join(f"[rank {rank}] step {job.step} took {seconds.get(rank, usual)}s" for rank in order))
    return job


def test_a_rank_that_takes_longer_than_the_others_is_named() -> None:
    """By what each rank prints of its own steps, slow from the first one on, after three windows."""
    job = told(Job(), 5, {12: 4.1})
    assert job.decision().incident.kind is IncidentKind.NONE
    decision = told(job, 6, {12: 4.1}).decision({12: NODES[3]})
    assert decision.incident.kind is IncidentKind.STRAGGLER
    assert (decision.action, decision.reason) == (Action.NONE, Reason.NEXT_CHECKPOINT)
    assert decision.attribution.ranks == (12,)
    assert f"rank 12 of {NODES[3]} slower than the others" in decision.attribution.root_cause
    assert decision.isolation.exclude_for_job == ()
    assert told(job, 30, {12: 4.4}).decision({12: NODES[3]}).incident.signals == decision.incident.signals


def test_ranks_are_placed_by_the_layout_where_no_map_is_known() -> None:
    """Eight tasks a node: ranks 8 to 11 are on the second one, and one slow node is told as one."""
    world = told(Job(), 16, dict.fromkeys((8, 9, 10, 11), 3.0)).world()
    world = replace(world, attempt=replace(world.attempt, tasks_per_node=8, nodes=NODES))
    found = slowdown(world, ())
    assert found is not None
    assert (found.node, found.ranks) == (NODES[1], (8, 9, 10, 11))


def test_ranks_that_are_slow_together_are_no_stragglers() -> None:
    """Half of all ranks, or all of them, are not the exception."""
    half = told(Job(), 40, dict.fromkeys(range(8), 3.0))
    assert half.world().progress.throughput.ranks.named == ()
    assert told(Job(), 40, {}, usual=9.0).decision().incident.kind is IncidentKind.NONE


def test_a_rank_that_is_slow_now_and_then_is_nothing() -> None:
    """Rank 0 saves a checkpoint; another one collects garbage every few steps."""
    job = Job()
    for _ in range(12):
        told(told(told(job, 1, {0: 60.0}), 2, {5: 2.0}), 6, {})
    assert job.decision().incident.kind is IncidentKind.NONE


def test_a_named_rank_is_named_until_two_windows_are_well() -> None:
    """Hysteresis: one good window ends nothing."""
    job = told(Job(), 12, {12: 4.1})
    assert told(job, 10, {}).decision().incident.kind is IncidentKind.STRAGGLER
    assert told(job, 20, {}).decision().incident.kind is IncidentKind.NONE


def test_an_excerpt_of_a_few_steps_tells_too() -> None:
    """Offline there may be no more: three steps, all of them slow on the same rank. Two are too few."""
    for steps, ranks in ((2, ()), (3, (12,)), (4, (12,))):
        job = told(Job(), steps, {12: 4.1})
        decision = decide(replace(job.world(), offline=True), RULES, POLICY, NOON)
        assert decision.attribution.ranks == ranks, steps
        assert (decision.incident.kind is IncidentKind.STRAGGLER) == bool(ranks)


def test_what_is_kept_of_many_ranks_is_small() -> None:
    """It is stored at every tick."""
    job = told(Job(), 30, {rank: 2.0 + rank / 1e4 for rank in range(200)}, ranks=512)
    assert len(codec.encode(job.world().progress.throughput.ranks)) < 6_000


@pytest.mark.parametrize(
    ("line", "seconds"),
    [
        ("[rank12]: step 340 took 4.1 s, loss 2.0", 4.1),
        ("12: iteration 340, step_time=1204 ms", 1.204),
        ("Rank 12: iter 340 elapsed (ms): 900.5 | tokens 8192", 0.9005),
        ("rank=12 step=340 time=0.7s", 0.7),
        ("[rank12] step 340 time 12:30:01", None),
        ("[rank12] step 340 loss 2.1", None),
        ("step 340 took 4.1s", None),
    ],
)
def test_what_ranks_print_about_their_steps(line: str, seconds: float | None) -> None:
    """Only with the rank: a time without one is everybody's."""
    found = Job().say(line).world().progress.throughput.ranks.open
    assert [item.slowest for item in found] == ([((12, seconds),)] if seconds is not None else [])


def differing(node: str, rank: int, trust: Trust = Trust.TELEMETRY) -> Signal:
    return Signal(
        id=f"low-{node}",
        rule="telemetry.low_clock",
        trust=trust,
        source="metrics",
        seen_at=NOON,
        at=NOON,
        rank=rank,
        gpu=3,
        nodes=(node,),
        text=f"{node}: GPU 3: clock 900 while busy, its peers 1980",
    )


def test_a_gpu_that_differs_from_its_peers_tells_who_it_is() -> None:
    """Only beside a loss, only from a source that no job writes to, and only where it is one node."""
    job = Job().windows(10, 2.0).windows(4, 3.0)

    def who(*signals: Signal) -> tuple[str | None, tuple[int, ...]]:
        found = slowdown(replace(job.world(), signals=signals), ())
        assert found is not None
        return found.node, found.ranks

    assert who(differing(NODES[1], 11)) == (NODES[1], (11,))
    assert who() == (None, ())
    assert who(differing(NODES[1], 11), differing(NODES[2], 19)) == (None, ())
    assert who(differing(NODES[1], 11, Trust.LOG)) == (None, ())
    assert slowdown(replace(Job().windows(14, 2.0).world(), signals=(differing(NODES[1], 11),)), ()) is None


def test_reports_that_show_ranks_waiting_for_their_batches() -> None:
    """Megatron prints the longest wait for data: where it is most of the step, no rank is slow."""
    job = Job().windows(10, 2.0)
    for _ in range(4):
        job.windows(1, 3.0).say(REPORT.format(low=2000.0, high=2900.0, rank=12).replace("34.65ms/3", "2100.5ms/3"))
    assert "wait for input" in job.decision().attribution.root_cause
