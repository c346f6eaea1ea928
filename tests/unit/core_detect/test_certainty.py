"""When a failure at start-up is sure to come again: the job's own arguments, build or input, no trace of a place."""

from datetime import timedelta
from typing import Any

import pytest

from advisor.core.attribution import attribute
from advisor.core.detection import detect
from advisor.core.model import Attribution
from advisor.core.policy import Policy
from tests.unit.core_detect.logs import NOON, RULES, context, snapshot

SUM = "RuntimeError: world_size (16) is not divisible by 6"
GLIBC = "ImportError: /lib64/libm.so.6: version `GLIBC_2.38' not found (required by /opt/env/fused.so)"
FULL = "OSError: [Errno 28] No space left on device"
CUT = "RuntimeError: [enforce fail at inline_container.cc:664] . unexpected pos 1408 vs 1302"
MISSING = "ValueError: File data/mixture.json not found."
OLD = "RuntimeError: The NVIDIA driver on your system is too old (found version 11040)."


def blamed(text: str, *, minutes: float = 5) -> Attribution:
    """Of an attempt on two nodes, eight ranks on each, that began so long before it failed."""
    two: dict[str, Any] = {"nodes": ("node1", "node2"), "world_size": 16}
    world = snapshot((context(**two), text), started_at=NOON - timedelta(minutes=minutes), **two)
    return attribute(world, detect(world, RULES, Policy(), NOON), RULES, Policy(), NOON)


def said(message: str, *ranks: int) -> str:
    return "".join(f"[rank{rank}]: {message}\n" for rank in ranks)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(said(SUM, 0, 9), id="a sum over all ranks does not come out"),
        pytest.param(
            said("AssertionError: heads (30) must be divisible by tensor size (4)", 3, 8), id="over arguments"
        ),
        pytest.param(GLIBC + "\n", id="built for another library"),
        pytest.param(said(MISSING, 3, 12, 5), id="the same file of its own folder"),
        pytest.param(
            said("but OMPI was not built with SLURM's PMI support and therefore cannot", 0, 8), id="no way to start"
        ),
        pytest.param(said(OLD, 0, 9), id="a driver too old on both nodes"),
        pytest.param(said(FULL, 2, 9) + said(CUT, 4, 12), id="a checkpoint that does not fit"),
        pytest.param(
            f"step: 10 loss: 2.1\nstep: 20 loss: 2.0\n{said(FULL, 2, 9)}{said(CUT, 4)}", id="nor one after steps"
        ),
    ],
)
def test_what_the_job_brought_along_is_certain(text: str) -> None:
    """No other try changes it, and no machine is to blame."""
    found = blamed(text)
    assert found.certain
    assert found.nodes == ()


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(said(SUM, 9), id="one node of two"),
        pytest.param(said("RuntimeError: world_size (15) is not divisible by 4", 0, 9), id="ranks are missing"),
        pytest.param(said("RuntimeError: 15 GPUs found: is not divisible by 4", 0, 9), id="devices are missing"),
        pytest.param(said(GLIBC, 9), id="one node has another library"),
        pytest.param(said(MISSING, 3), id="one rank misses a file"),
        pytest.param(said(MISSING, 3, 12) + said("KeyError: 'x'", 5), id="another rank fails otherwise"),
        pytest.param(said("ValueError: File /mnt/set/a.json not found.", 3, 12), id="a mount may be away"),
        pytest.param(said("ValueError: File checkpoints/a.json not found.", 3, 12), id="a rank may write it yet"),
        pytest.param(said(OLD, 9), id="a driver too old on one node"),
        pytest.param(said("ImportError: /opt/x.so: undefined symbol: cuMemMap", 0, 9), id="a symbol of the driver"),
        pytest.param(f"step: 10 loss: 2.1\nstep: 20 loss: 2.0\n{said(SUM, 0, 9)}", id="after steps"),
        pytest.param(said(FULL, 2, 9), id="full, and nothing says what was written"),
        pytest.param(said(FULL, 2, 5) + said(CUT, 4), id="a disk of one node may be full"),
        pytest.param(said(FULL, 2) + said(CUT, 4, 12), id="one rank met the full disk"),
        pytest.param(
            f"[rank3]: OSError: [Errno 116] Stale file handle\n{said(MISSING, 3, 12)}", id="storage is away too"
        ),
    ],
)
def test_what_a_machine_or_a_moment_may_explain_is_not_certain(text: str) -> None:
    """A restart costs little, a false stop a night."""
    assert not blamed(text).certain


def test_a_driver_too_old_on_one_node_excludes_that_node() -> None:
    """Where only one node says it, that node is behind."""
    behind = said(OLD, 9) + "srun: error: node2: task 9: Exited with exit code 1\n"
    assert blamed(behind).nodes == ("node2",)


def test_what_comes_long_after_the_start_is_not_certain() -> None:
    """The job may have taken steps that it prints in a way we do not know."""
    text = f"2026-11-29 11:59:00 {SUM}\n"
    assert blamed(text, minutes=5).certain
    assert not blamed(text, minutes=120).certain
