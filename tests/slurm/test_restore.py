"""The whole drill on a real Slurm: a backup of a live store, a disaster, a restore; and nothing old is acted on."""

import shutil
from pathlib import Path

import pytest

from advisor.demo.training import Training
from advisor.demo.waiting import holds_for, wait_for
from advisor.demo.world import World

pytestmark = [pytest.mark.long, pytest.mark.postgres, pytest.mark.timeout(900)]

_FAULT = {"kind": "xid79", "attempt": 0, "node": "node2", "step": 6}


def _lose(world: World) -> None:
    """The machine with the database burns down: service and Postgres end at once, and the data is gone."""
    postgres = world.stack.postgres_pid
    world.stack.advisor.kill()
    wait_for("the end of Postgres", lambda: not Path(f"/proc/{postgres}/cwd").exists(), seconds=30)
    shutil.rmtree(world.stack.root / "advisor" / "data" / "postgres" / "data")


def test_a_restored_backup_acts_on_nothing_old_and_goes_on(world: World, tmp_path: Path) -> None:
    """Restarted before and after the backup: neither is restarted again; who fails afterwards is, once resumed."""
    stack = world.stack
    first = world.launch("alice", Training(name="drill-1", steps=12, faults=[_FAULT]))
    first.wait("COMPLETED", restarts=1, seconds=90)
    live = world.launch("alice", Training(name="drill-2", steps=260, faults=[{**_FAULT, "step": 200}]))
    live.wait_step(3)
    dump = tmp_path / "advisor.dump"
    done = stack.cli("store", "dump", str(dump))
    assert done.returncode == 0, done.stderr
    before = stack.ask("store", "incarnations")[0]["incarnation"]
    # Decided and acted on after the backup: the store that comes back knows nothing of it.
    row = live.wait("PENDING", "RUNNING", "COMPLETED", restarts=1, seconds=120)
    assert row.excluded == {"node2"}
    forgotten = {item["advice"]["advice_id"] for item in live.decisions()}
    # What is in no seal yet is not missed afterwards.
    unsealed = "wait for the next seal"
    wait_for("all of it sealed", lambda: unsealed not in stack.cli("audit", "verify").stdout, seconds=120)
    seals = tmp_path / "seals.jsonl"
    assert stack.cli("audit", "seals", "--export", str(seals)).returncode == 0
    kept = {item["advice"]["advice_id"] for item in first.decisions()}

    _lose(world)
    late = world.launch(
        "bob",
        Training(name="drill-3", nodes=1, steps=12, faults=[{"kind": "sigkill", "attempt": 0, "rank": 1, "step": 3}]),
    )
    late.wait("FAILED", seconds=60)
    stack.stop_file.touch()  # an empty store knows of no mode, pause or veto: nobody acts on its word
    stack.advisor.start()
    stack.wait_ready()
    done = stack.cli("store", "restore", str(dump), "--yes")
    assert done.returncode == 0, done.stderr

    wait_for("a new incarnation", lambda: stack.ask("store", "incarnations")[0]["incarnation"] != before, seconds=30)
    newest = stack.ask("store", "incarnations")[0]
    assert "restored" in newest["why"]
    (paused,) = [check for check in stack.ask("doctor") if check["name"] == "pause"]
    assert "advisor" in paused["found"]
    stack.stop_file.unlink()
    assert holds_for(lambda: live.row.restarts == 1 and first.row.restarts == 1, seconds=10)
    assert late.row.state == "FAILED"
    assert stack.cli("resume", "--why", "modes looked at").returncode == 0
    late.wait("COMPLETED", restarts=1, seconds=90)
    live.wait("COMPLETED", restarts=1, seconds=120)
    assert holds_for(lambda: (live.row.restarts, first.row.restarts, late.row.restarts) == (1, 1, 1), seconds=5)

    # What is there is what was sealed; what is missing is said; what was decided can be decided again.
    assert stack.cli("audit", "verify").returncode == 0
    against = stack.cli("audit", "verify", "--against", str(seals))
    assert against.returncode == 1
    assert kept <= {item["advice"]["advice_id"] for item in first.decisions()}
    assert not forgotten & {item["advice"]["advice_id"] for item in live.decisions()}
    for decision in kept:
        replayed = stack.cli("replay", decision)
        assert replayed.returncode == 0, replayed.stderr
    print(against.stdout)
