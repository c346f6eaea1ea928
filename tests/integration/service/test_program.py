"""`advisor serve` as a process: how it starts, ends, and what it leaves behind."""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.service.programs import advisor, serving, wait_while_it_runs
from tests.integration.service.world import configuration, short_folder

pytestmark = pytest.mark.postgres


@pytest.fixture
def folder() -> Iterator[Path]:
    with short_folder() as path:
        configuration(path)
        yield path


def _postgres_pid(folder: Path) -> int:
    return int((folder / "data" / "postgres" / "data" / "postmaster.pid").read_text().splitlines()[0])


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_cleanly(folder: Path, number: signal.Signals) -> None:
    """Exit 0, no socket, no lock, no Postgres left."""
    with serving(folder) as process:
        postgres = _postgres_pid(folder)
        process.send_signal(number)
        assert process.wait(timeout=20) == 0
    assert not _alive(postgres)
    assert list((folder / "run").iterdir()) == []
    assert b"Traceback" not in (folder / "log").read_bytes()


def test_after_kill_9_the_next_start_takes_over(folder: Path) -> None:
    """A killed service leaves a stale socket and a closing Postgres; the next one starts all the same."""
    with serving(folder) as process:
        process.kill()
        process.wait()
    (folder / "log").unlink()
    with serving(folder):
        done = advisor(folder, "decisions", "list", "--format", "json")
        assert (done.returncode, json.loads(done.stdout)) == (0, [])


def test_a_second_one_is_refused_in_one_line(folder: Path) -> None:
    """The second `advisor serve` exits 1 and says why; the first one goes on."""
    with serving(folder) as process:
        done = advisor(folder, "serve")
        assert done.returncode == 1
        assert "served already" in done.stderr.splitlines()[-1]
        assert process.poll() is None


def test_the_service_outlives_its_database(folder: Path) -> None:
    """When Postgres is killed it is started again, and commands are answered."""
    with serving(folder) as process:
        postgres = _postgres_pid(folder)
        os.kill(postgres, signal.SIGKILL)
        wait_while_it_runs(lambda: b"postgres_lost" in (folder / "log").read_bytes(), process, folder)
        wait_while_it_runs(lambda: advisor(folder, "mode", "get", "--format", "json").returncode == 0, process, folder)
        assert _postgres_pid(folder) != postgres


def test_doctor_and_mode_work_against_a_running_service(folder: Path) -> None:
    """Doctor finds the service well and misses the agent; a mode can be set and read back under our account."""
    with serving(folder):
        done = advisor(folder, "doctor", "--format", "json")
        checks = {check["name"]: check for check in json.loads(done.stdout)}
        assert checks["service"]["state"] == "ok"
        assert checks["tick"]["state"] == "ok"
        assert checks["agent"]["state"] == "warn"
        assert "start advisor-agent" in checks["agent"]["to_do"]
        assert done.returncode == 0
        said = advisor(folder, "mode", "list").stdout.splitlines()
        assert said[0] == "no settings: everything is in monitor mode, the service's default_mode"
        assert said[-1] == "  advisor mode set autonomous --partition NAME --why TEXT"
        assert "there is nothing to compare" in advisor(folder, "shadow", "report").stdout
        assert advisor(folder, "mode", "set", "autonomous", "--partition", "train", "--why", "agreed").returncode == 0
        modes = json.loads(advisor(folder, "mode", "get", "--format", "json").stdout)
        assert [(item["mode"], item["partition"], item["why"]) for item in modes[:-1]] == [
            ("autonomous", "train", "agreed")
        ]
        assert modes[0]["set_by"]
        assert (modes[-1]["mode"], modes[-1]["set_by"]) == ("monitor", "default_mode")
        found = {
            check["name"]: check["found"] for check in json.loads(advisor(folder, "doctor", "--format", "json").stdout)
        }
        assert "autonomous: partition train" in found["modes"]
        stopped = advisor(folder, "mode", "set", "monitor", "--why", "stop")
        assert stopped.stdout.startswith("monitor for everything, set by ")
        assert stopped.stdout.endswith("; no longer autonomous: partition train\n")
        gone = advisor(folder, "mode", "unset", "--partition", "train", "--why", "over")
        assert (gone.returncode, gone.stderr) == (1, "advisor: setting: there is no setting for partition train\n")


def test_the_mode_that_is_told_is_that_of_the_service_that_was_asked(folder: Path) -> None:
    """Its own default_mode, whatever a configuration at hand says: over its socket, by status, mode get and doctor."""
    configuration(folder, 'default_mode = "autonomous"')
    with serving(folder):
        configuration(folder)  # edited, and the service not started anew
        assert "mode: autonomous everywhere (default_mode)" in advisor(folder, "status").stdout
        said = advisor(folder, "mode", "get").stdout
        assert said == "no settings: everything is in autonomous mode, the service's default_mode\n"
        assert "no settings: autonomous everywhere" in advisor(folder, "doctor").stdout
        assert advisor(folder, "mode", "set", "monitor", "--partition", "debug", "--why", "test").returncode == 0
        said = advisor(folder, "mode", "get").stdout
        assert said.endswith("where nothing fits: autonomous mode, the service's default_mode\n")
        assert advisor(folder, "mode", "set", "monitor", "--why", "stop").returncode == 0
        said = advisor(folder, "mode", "unset", "--why", "over").stdout
        assert said.startswith("removed: monitor for everything, which ")
        assert said.endswith(" had set; autonomous holds there now (default_mode); monitor for partition debug\n")


def test_doctor_without_a_service_says_what_to_do(folder: Path) -> None:
    """A service that does not run is a failure with the way to start it."""
    done = advisor(folder, "doctor")
    assert done.returncode == 1
    assert "fail  service" in done.stdout
    assert "advisor serve" in done.stdout
