"""Numbers that went bad for good, what is none of it, and whether it moves with a node."""

import math
from dataclasses import replace
from datetime import timedelta

import pytest

from advisor.core.decide import decide
from advisor.core.detection import detect
from advisor.core.divergence import FAR, NOT_FINITE, printed_values, suspects
from advisor.core.model import NodeFact, PastAttempt, Signal, Snapshot
from advisor.core.policy import Policy
from advisor.core.progress import combine
from advisor.core.scan import FileState
from advisor.core.words import AttemptState, Category, IncidentKind, NodeState
from tests.unit.core_detect.logs import NODES, NOON, RULES, SCANNER, context, snapshot

POLICY = Policy()
STEP = (
    " iteration {step:8d}/ 1000000 | consumed samples: 1 | lm loss: {loss:.6E} | loss scale: 1.0 |"
    " grad norm: {norm:.3f} |"
    " number of skipped iterations: {skipped:3d} | number of nan iterations:   0 |"
)


class Job:
    """Steps with values, one read each."""

    def __init__(self, first: int = 1) -> None:
        self.step, self.at = first - 1, 0.0
        self.state = FileState()
        self.signals: tuple[Signal, ...] = ()

    def say(self, text: str) -> "Job":
        seen_at = NOON + timedelta(seconds=self.at)
        data = (text + "\n").encode()
        found = SCANNER.scan(context(), self.state, data, fresh=False, final=False, seen_at=seen_at)
        self.state = found.state
        self.signals += tuple(s for s in found.signals if s.rule != "numerics.loss_nan")
        return self

    def steps(self, count: int, loss: float = 2.0, norm: float = 1.0, skipped: int = 0) -> "Job":
        for number in range(count):
            self.step += 1
            self.at += 2.0
            self.say(STEP.format(step=self.step, loss=loss + 0.01 * (number % 5), norm=norm, skipped=skipped))
        return self

    def world(self, state: AttemptState = AttemptState.RUNNING, nodes: tuple[str, ...] = NODES) -> Snapshot:
        world = snapshot(state=state, nodes=nodes)
        return replace(world, signals=self.signals, progress=combine({"job.log": self.state.progress}))

    def kind(self) -> IncidentKind:
        return detect(self.world(), RULES, POLICY, NOON + timedelta(seconds=self.at + 1)).kind


def test_a_loss_that_stays_nan_is_divergence() -> None:
    """With the step at which it began; a few lines are not enough."""
    job = Job().steps(50).steps(NOT_FINITE - 1, loss=math.nan)
    assert job.kind() is IncidentKind.NONE
    job.steps(3, loss=math.nan)
    incident = detect(job.world(), RULES, POLICY, NOON + timedelta(seconds=job.at + 1))
    assert incident.kind is IncidentKind.DIVERGENCE
    assert any("not finite since step 50" in signal.text for signal in incident.signals)


def test_it_is_the_same_signal_at_every_tick() -> None:
    """More bad lines change no decision."""
    job = Job().steps(50).steps(NOT_FINITE, loss=math.nan)
    first = detect(job.world(), RULES, POLICY, NOON).signals
    assert detect(job.steps(9, loss=math.nan).world(), RULES, POLICY, NOON).signals == first


def test_nan_steps_that_heal_are_nothing() -> None:
    """However many there were, one at a time."""
    job = Job()
    for _ in range(20):
        job.steps(10).steps(2, loss=math.nan)
    assert job.steps(1).kind() is IncidentKind.NONE


def test_nan_lines_that_were_followed_by_finite_ones_are_healed() -> None:
    """Also where the lines themselves were counted as signals."""
    nan = STEP.format(step=6, loss=math.nan, norm=1.0, skipped=0).replace("NAN", "nan")
    lines = [STEP.format(step=number, loss=2.0, norm=1.0, skipped=0) for number in range(1, 6)]
    text = "\n".join([*lines, *[nan] * 5]) + "\n"
    bad = snapshot((context(), text), state=AttemptState.RUNNING)
    assert detect(bad, RULES, POLICY, NOON).kind is IncidentKind.DIVERGENCE
    healed = text + STEP.format(step=7, loss=2.0, norm=1.0, skipped=0) + "\n"
    world = snapshot((context(), healed), state=AttemptState.RUNNING)
    assert detect(world, RULES, POLICY, NOON).kind is IncidentKind.NONE


def test_skipped_steps_of_loss_scaling_are_nothing() -> None:
    """Overflow is how fp16 finds its scale."""
    job = Job().steps(50)
    for _ in range(60):
        job.steps(1, loss=math.inf, norm=math.inf, skipped=1)
        job.say("[deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 65536, reducing to 32768")
    assert job.kind() is IncidentKind.NONE


def test_a_spike_counts_when_it_stays() -> None:
    """Most heal; one that does not, in the loss or the gradient norm, is an incident until it does."""
    job = Job().steps(50).steps(FAR - 2, loss=7.0)
    assert job.kind() is IncidentKind.NONE
    assert job.steps(3, loss=7.0).kind() is IncidentKind.DIVERGENCE
    assert job.steps(2).kind() is IncidentKind.NONE
    job.steps(FAR, norm=300.0)
    assert job.kind() is IncidentKind.DIVERGENCE


def test_a_loss_that_falls_or_drifts_is_healthy() -> None:
    """From 11 to 2 and slowly up again."""
    job = Job()
    for number in range(200):
        job.steps(1, loss=2.0 + 9.0 / (1 + number / 10))
    for number in range(200):
        job.steps(1, loss=2.4 + number * 0.002)
    assert job.kind() is IncidentKind.NONE


@pytest.mark.parametrize(
    ("line", "values"),
    [
        (STEP.format(step=1, loss=2.5, norm=1.25, skipped=0), (2.5, 1.25)),
        ("{'loss': nan, 'grad_norm': nan, 'learning_rate': 0.0, 'epoch': 0.1}", (math.nan, math.nan)),
        ("step: 12  loss:  2.1000  grad_norm:  0.5000  memory: 10GiB", (2.1, 0.5)),
        ("step 12 | loss -0.25 | lr 1e-4", (-0.25, None)),
        ("reduced_train_loss: 6.123 | train_step_timing in s: 4.81", (6.123, None)),
        ("iteration 12 | val_loss: nan | loss scale: 65536", (None, None)),
        ("iteration 12 | number of nan iterations: 4 | loss scale: inf", (None, None)),
    ],
)
def test_the_values_of_a_line(line: str, values: tuple[float | None, float | None]) -> None:
    """Of the training loss and the gradient norm, and of nothing that merely looks so."""
    assert printed_values(line) == pytest.approx(values, nan_ok=True)


def past(number: int, step: int, nodes: tuple[str, ...], category: Category = Category.NUMERICS) -> PastAttempt:
    return PastAttempt(
        number=number, category=category, fingerprint="", reason=None, action=None, nodes=nodes, last_step=step
    )


def test_divergence_that_moves_with_a_node_makes_it_a_suspect() -> None:
    """Other steps, other nodes, and one that was always there."""
    job = Job(first=900).steps(5)
    world = replace(job.world(nodes=("node1", "node2")), past=(past(0, 300, ("node1", "node3")),))
    assert suspects(world) == ("node1",)
    cleared = past(1, 5000, ("node1", "node4"), Category.UNKNOWN)
    assert suspects(replace(world, past=(*world.past, cleared))) == ()


def test_the_same_step_or_the_same_nodes_are_no_suspicion() -> None:
    """The job brings it along, or nothing can be told apart."""
    job = Job(first=900).steps(5)
    here = job.world(nodes=("node1", "node2"))
    for step in (904, 911, 895):
        assert suspects(replace(here, past=(past(0, step, ("node1", "node3")),))) == (), step
    assert suspects(replace(here, past=(past(0, 300, ("node1", "node2")),))) == ()
    assert suspects(replace(here, past=())) == ()


def test_what_comes_at_the_same_step_again_is_the_jobs_own() -> None:
    """On whatever nodes; told some lines later each time, and the attempts ended when we or it ended them."""
    job = Job(first=900).steps(20)
    job.steps(9, loss=math.nan).say("[rank5]: RuntimeError: loss is not finite")
    world = job.world(AttemptState.FAILED, nodes=("node1", "node2"))
    for step, same in ((925, True), (940, True), (300, False)):
        earlier = past(3, step, ("node1", "node3"))
        decision = decide(replace(world, past=(earlier,)), RULES, POLICY, NOON + timedelta(hours=1))
        assert ("same step as attempt 3: the job itself or its data" in decision.attribution.root_cause) == same, step
        assert (decision.attribution.implications == ()) == same
        assert decision.isolation.exclude_for_job == ()


def test_suspected_corruption_implicates_and_excludes_only_with_history() -> None:
    """One job's loss is no proof against a machine; what other jobs saw there is the second kind of evidence."""
    job = Job(first=900).steps(20)
    job.steps(9, loss=math.nan).say("[rank5]: RuntimeError: loss is not finite")
    world = job.world(AttemptState.FAILED, nodes=("node1", "node2"))
    world = replace(world, past=(past(0, 300, ("node1", "node3")),))
    decision = decide(world, RULES, POLICY, NOON + timedelta(hours=1))
    assert decision.attribution.category is Category.NUMERICS
    assert "silent corruption is suspected" in decision.attribution.root_cause
    assert [item.node for item in decision.attribution.implications] == ["node1"]
    assert decision.isolation.exclude_for_job == ()
    known = NodeFact(name="node1", state=NodeState.UP, other_jobs=1, score=0.6)
    decision = decide(replace(world, nodes=(known,)), RULES, POLICY, NOON + timedelta(hours=1))
    assert decision.attribution.nodes == ("node1",)


def test_the_job_resumes_before_its_numbers_went_bad() -> None:
    """A checkpoint that was saved with NaN in it is not the one to go back to."""
    job = Job().steps(500).say("  successfully saved checkpoint from iteration     500 to /ckpt")
    job.steps(100).steps(300, loss=math.nan).say("  successfully saved checkpoint from iteration     900 to /ckpt")
    job.say("[rank5]: RuntimeError: loss is not finite")
    decision = decide(job.world(AttemptState.FAILED), RULES, POLICY, NOON + timedelta(hours=1))
    assert decision.attribution.category is Category.NUMERICS
    assert decision.resume_step == 500
