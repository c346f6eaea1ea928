"""Chaos on a real Slurm and a real Postgres, beside this session's own: every failure is accounted for afterwards."""

import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[2]
pytestmark = [pytest.mark.long, pytest.mark.timeout(1500)]


@pytest.mark.parametrize(("minutes", "seed", "replicas"), [(5, 4, 1), (5, 5, 2)])
def test_everything_dies_and_every_failure_is_accounted_for(minutes: int, seed: int, replicas: int) -> None:
    """Kills, stops, partitions, clocks, full disks, broken logs, hostile jobs: no breach, one advisor or two."""
    command = [sys.executable, "-m", "benchmarks.chaos", "--minutes", str(minutes), "--seed", str(seed)]
    done = subprocess.run(
        [*command, "--replicas", str(replicas)], cwd=PROJECT, capture_output=True, text=True, check=False, timeout=1400
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert "**Breaches: 0**" in done.stdout
