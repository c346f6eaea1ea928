"""When a start-up error is the job's own: met on several nodes, about itself, and with nothing else wrong."""

from datetime import timedelta

import pytest

from advisor.core.attribution import attribute
from advisor.core.calibration import calibrated
from advisor.core.detection import detect
from advisor.core.model import Attribution
from advisor.core.policy import Policy
from advisor.core.scan import FileContext
from advisor.core.words import Category
from tests.unit.core_detect.logs import NOON, RULES, context, snapshot

WRONG = "TypeError: __init__() got an unexpected keyword argument 'rope_base'"


def blamed(*texts: str | tuple[FileContext, str]) -> Attribution:
    """Of an attempt that began five minutes before it failed."""
    parts = [(context(), text) if isinstance(text, str) else text for text in texts]
    world = snapshot(*parts, started_at=NOON - timedelta(minutes=5))
    return attribute(world, detect(world, RULES, Policy(), NOON), RULES, Policy(), NOON)


def said(message: str, *ranks: int) -> str:
    return "".join(f"[rank{rank}]: {message}\n" for rank in ranks)


def test_the_same_complaint_on_several_nodes_before_the_first_step_is_certain() -> None:
    """Ranks 0 and 9 are on different nodes, and both say that the call is wrong."""
    found = blamed(said(WRONG, 0, 9))
    assert found.category is Category.APPLICATION
    assert found.certain


def test_it_is_the_same_complaint_in_a_file_for_each_rank() -> None:
    """One file per rank gives one signal per rank."""
    assert blamed(*((context(file=f"rank{rank}.log", rank=rank), f"{WRONG}\n") for rank in (0, 9))).certain


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(said(WRONG, 8, 9, 10), id="one node"),
        pytest.param(said("ValueError: found 7 CUDA devices, need 8", 0, 9), id="about a machine"),
        pytest.param(said("FileNotFoundError: [Errno 2] No such file or directory: 'x'", 0, 9), id="a mount"),
        pytest.param(
            f"{said(WRONG, 0, 9)}[rank3]: OSError: [Errno 5] Input/output error\n", id="something else failed"
        ),
        pytest.param(f"step: 10 loss: 2.1\nstep: 20 loss: 2.0\n{said(WRONG, 0, 9)}", id="after steps"),
        pytest.param(f"Epoch 3/9: train loss 0.31 acc 0.9\n{said(WRONG, 0, 9)}", id="after an epoch"),
    ],
)
def test_what_may_be_a_machine_s_fault_is_not_certain(text: str) -> None:
    """A restart costs little, a false stop a night."""
    assert not blamed(text).certain


def test_a_container_that_starts_on_no_node_is_the_job_s_own() -> None:
    """On one node only it may be that node."""
    line = "slurmstepd: error: pyxis: container start failed with error code: 1\n"
    ends = [f"srun: error: node{n}: task {8 * n - 8}: Exited with exit code 1\n" for n in (1, 2)]
    assert blamed(line + "".join(ends)).certain
    assert not blamed(line + ends[0]).certain


def test_confidence_rises_with_the_score() -> None:
    """A better explanation is never said with less confidence, and nothing is certain."""
    values = [calibrated(number / 100) for number in range(-5, 106)]
    assert values == sorted(values)
    assert values[0] == 0.0
    assert values[-1] < 1.0
