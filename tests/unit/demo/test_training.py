"""The training program's parts that need no Slurm."""

import os
import subprocess
import sys
from pathlib import Path

import advisor.demo.train as train_module

PROGRAM = Path(train_module.__file__)


def _environment(attempt: int = 0) -> dict[str, str]:
    return {
        "SLURM_JOB_ID": "7",
        "SLURM_STEP_ID": str(attempt),
        "SLURM_RESTART_COUNT": str(attempt),
        "SLURM_PROCID": "0",
        "SLURM_NTASKS": "1",
        "SLURMD_NODENAME": "localhost",
        "PATH": os.environ["PATH"],
    }


def _train(folder: Path, *arguments: str, attempt: int = 0) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-IS", str(PROGRAM), "--folder", str(folder), "--step-seconds", "0", *arguments],
        env=_environment(attempt),
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )


def test_it_saves_and_resumes(tmp_path: Path) -> None:
    """A second attempt goes on after the newest checkpoint, not from the start."""
    plan = tmp_path / "plan.json"
    plan.write_text('[{"kind": "exit", "attempt": 0, "step": 8, "code": 5}]')
    first = _train(tmp_path, "--steps", "12", "--plan", str(plan))
    assert first.returncode == 5
    assert "saving checkpoint at iteration       5" in first.stdout
    second = _train(tmp_path, "--steps", "12", "--plan", str(plan), attempt=1)
    assert second.returncode == 0
    assert f"loading checkpoint from {tmp_path} at iteration 5" in second.stdout
    assert "iteration        6/" in second.stdout
    assert "iteration        5/" not in second.stdout


def test_an_unknown_fault_is_refused(tmp_path: Path) -> None:
    """A plan with a typing error must not look like a healthy job."""
    plan = tmp_path / "plan.json"
    plan.write_text('[{"kind": "explode", "step": 2}]')
    done = _train(tmp_path, "--steps", "3", "--plan", str(plan))
    assert done.returncode == 1
    assert "unknown kind 'explode'" in done.stderr
