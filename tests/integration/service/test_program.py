"""`advisor serve` as a process: how it starts, ends, and what it leaves behind."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.integration.service.world import configuration, short_folder

pytestmark = pytest.mark.postgres

PROJECT = Path(__file__).resolve().parents[3]
START_SECONDS = 30.0


@pytest.fixture
def folder() -> Iterator[Path]:
    with short_folder() as path:
        configuration(path)
        yield path


def _advisor(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "advisor", *arguments, "--config", str(folder / "advisor.toml")],
        capture_output=True,
        text=True,
        cwd=PROJECT,
        timeout=60,
        check=False,
    )


@contextmanager
def _serving(folder: Path) -> Iterator["subprocess.Popen[bytes]"]:
    with (folder / "log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "advisor", "serve", "--config", str(folder / "advisor.toml")],
            cwd=PROJECT,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    try:
        _wait(lambda: b"service_ready" in (folder / "log").read_bytes(), process, folder)
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


def _wait(condition: "object", process: "subprocess.Popen[bytes]", folder: Path) -> None:
    assert callable(condition)
    deadline = time.monotonic() + START_SECONDS
    while not condition():
        assert process.poll() is None, (folder / "log").read_text()
        assert time.monotonic() < deadline, (folder / "log").read_text()
        time.sleep(0.05)


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
    with _serving(folder) as process:
        postgres = _postgres_pid(folder)
        process.send_signal(number)
        assert process.wait(timeout=20) == 0
    assert not _alive(postgres)
    assert list((folder / "run").iterdir()) == []
    assert b"Traceback" not in (folder / "log").read_bytes()


def test_after_kill_9_the_next_start_takes_over(folder: Path) -> None:
    """A killed service leaves a stale socket and a closing Postgres; the next one starts all the same."""
    with _serving(folder) as process:
        process.kill()
        process.wait()
    (folder / "log").unlink()
    with _serving(folder):
        done = _advisor(folder, "decisions", "list", "--format", "json")
        assert (done.returncode, json.loads(done.stdout)) == (0, [])


def test_a_second_one_is_refused_in_one_line(folder: Path) -> None:
    """The second `advisor serve` exits 1 and says why; the first one goes on."""
    with _serving(folder) as process:
        done = _advisor(folder, "serve")
        assert done.returncode == 1
        assert "served already" in done.stderr.splitlines()[-1]
        assert process.poll() is None


def test_the_service_outlives_its_database(folder: Path) -> None:
    """When Postgres is killed it is started again, and commands are answered."""
    with _serving(folder) as process:
        postgres = _postgres_pid(folder)
        os.kill(postgres, signal.SIGKILL)
        _wait(lambda: b"postgres_lost" in (folder / "log").read_bytes(), process, folder)
        _wait(lambda: _advisor(folder, "mode", "get", "--format", "json").returncode == 0, process, folder)
        assert _postgres_pid(folder) != postgres


def test_doctor_and_mode_work_against_a_running_service(folder: Path) -> None:
    """Doctor finds the service well and misses the agent; a mode can be set and read back under our account."""
    with _serving(folder):
        done = _advisor(folder, "doctor", "--format", "json")
        checks = {check["name"]: check for check in json.loads(done.stdout)}
        assert checks["service"]["state"] == "ok"
        assert checks["tick"]["state"] == "ok"
        assert checks["agent"]["state"] == "warn"
        assert "start advisor-agent" in checks["agent"]["to_do"]
        assert done.returncode == 0
        assert _advisor(folder, "mode", "set", "autonomous", "--partition", "train", "--why", "agreed").returncode == 0
        modes = json.loads(_advisor(folder, "mode", "get", "--format", "json").stdout)
        assert [(item["mode"], item["partition"], item["why"]) for item in modes] == [("autonomous", "train", "agreed")]
        assert modes[0]["set_by"]
        found = {
            check["name"]: check["found"] for check in json.loads(_advisor(folder, "doctor", "--format", "json").stdout)
        }
        assert "autonomous: partition train" in found["modes"]
        stopped = _advisor(folder, "mode", "set", "monitor", "--why", "stop")
        assert stopped.stdout.startswith("monitor for everything, set by ")
        assert stopped.stdout.endswith("; no longer autonomous: partition train\n")
        gone = _advisor(folder, "mode", "unset", "--partition", "train", "--why", "over")
        assert (gone.returncode, gone.stderr) == (1, "advisor: setting: there is no setting for partition train\n")


def test_doctor_without_a_service_says_what_to_do(folder: Path) -> None:
    """A service that does not run is a failure with the way to start it."""
    done = _advisor(folder, "doctor")
    assert done.returncode == 1
    assert "fail  service" in done.stdout
    assert "advisor serve" in done.stdout
