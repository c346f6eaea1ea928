"""Slurm's default times, where fast test settings would hide a race."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.long
@pytest.mark.timeout(1500)
def test_the_main_scenarios_with_default_times() -> None:
    """A bad GPU, a cancel, ranks that ignore SIGTERM, a dead node, and one under a hung job: one requeue each."""
    inside = [sys.executable, "-m", "advisor.demo.namespace", "--"]
    done = subprocess.run(
        [*inside, sys.executable, "-m", "tests.slurm.default_times"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=1400,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert not [item for item in found.values() if "error" in item], found
    assert {key: found["xid"][key] for key in ("state", "restarts")} == {"state": "COMPLETED", "restarts": 1}
    assert found["xid"]["excluded"] == ["node2"]
    assert 120 <= found["xid"]["waited"] <= 180
    assert found["cancel"] == {"state": "CANCELLED", "restarts": 0, "excluded": [], "stays": True}
    assert (found["stubborn"]["state"], found["stubborn"]["restarts"]) == ("COMPLETED", 1)
    assert found["stubborn"]["completing_seconds"] > 20  # KillWait was really waited for
    assert (found["node"]["restarts"], found["node"]["excluded"]) == (1, ["node11"])
    assert "node11" not in found["node"]["nodes"]
    assert (found["dead_node"]["restarts"], found["dead_node"]["excluded"]) == (1, ["node14"])
    assert "node14" not in found["dead_node"]["nodes"]
