"""`advisor bundle` on a real cluster: of the attempt that runs, and of the one whose log is gone."""

import json
from pathlib import Path
from typing import Any

from advisor.demo.training import Training
from advisor.demo.world import World


def _bundle(world: World, job_id: int, *options: str) -> dict[str, Any]:
    conf = str(world.cluster.conf)
    done = world.stack.cli("bundle", str(job_id), "--slurm-conf", conf, "--format", "json", *options)
    assert done.returncode == 0, done.stderr
    made: dict[str, Any] = json.loads(done.stdout)
    return made


def _verdict(world: World, folder: Path) -> dict[str, Any]:
    done = world.stack.cli("analyze", str(folder), "--format", "json")
    assert done.returncode == 0, done.stderr
    verdict: dict[str, Any] = json.loads(done.stdout)
    return verdict


def test_bundle_of_a_recovered_job(world: World, tmp_path: Path) -> None:
    """Attempt 1 comes from its output; attempt 0, truncated by it, from the stored evidence, and is still explained."""
    fault = {"kind": "xid79", "attempt": 0, "node": "node2", "step": 12}
    run = world.launch("alice", Training(name="to-bundle", nodes=3, steps=20, faults=[fault]))
    run.wait("COMPLETED", restarts=1)

    newest = _bundle(world, run.job_id, "--output", str(tmp_path / "newest"))
    assert newest["attempt"] == 1
    assert newest["notes"] == []
    assert (tmp_path / "newest" / "logs" / "stdout.log").read_text() == run.text
    assert json.loads((tmp_path / "newest" / "job.json").read_text())["state"] == "COMPLETED"

    first = _bundle(world, run.job_id, "--attempt", "0", "--output", str(tmp_path / "first"))
    assert first["attempt"] == 0
    assert (tmp_path / "first" / "logs" / "evidence.log").exists()
    verdict = _verdict(world, tmp_path / "first")
    assert verdict["attribution"]["category"] == "gpu_hardware"
    assert verdict["attribution"]["implicated"]["nodes"] == ["node2"]

    _bundle(world, run.job_id, "--attempt", "0", "--redact", "--output", str(tmp_path / "redacted"))
    redacted = _verdict(world, tmp_path / "redacted")
    assert redacted["attribution"]["category"] == "gpu_hardware"
    assert len(redacted["attribution"]["implicated"]["nodes"]) == 1
    texts = "".join(p.read_text() for p in (tmp_path / "redacted").rglob("*") if p.is_file())
    assert "alice" not in texts
    assert "node2" not in texts


def test_bundle_of_nothing(world: World, tmp_path: Path) -> None:
    """A job that nobody knows is one clear line and exit 1; a folder that exists is never written into."""
    done = world.stack.cli("bundle", "4000000", "--slurm-conf", str(world.cluster.conf))
    assert done.returncode == 1
    assert "nothing is known of job 4000000" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    done = world.stack.cli("bundle", "1", "--output", str(tmp_path))
    assert done.returncode == 2
    assert "exists already" in done.stderr
