"""The service and its commands as processes of their own, by the configuration in one folder."""

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[3]
START_SECONDS = 60.0
_END_SECONDS = 20.0


def advisor(folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "advisor", *arguments, "--config", str(folder / "advisor.toml")],
        capture_output=True,
        text=True,
        cwd=PROJECT,
        timeout=60,
        check=False,
    )


@contextmanager
def serving(folder: Path, *, gently: bool = False) -> "Iterator[subprocess.Popen[bytes]]":
    """The service, once it is ready. Its output is `folder/log`. At the end it is killed, or told to stop before."""
    path = folder / "log"
    begun = path.stat().st_size if path.exists() else 0
    with path.open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "advisor", "serve", "--config", str(folder / "advisor.toml")],
            cwd=PROJECT,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    try:
        wait_while_it_runs(lambda: b"service_ready" in path.read_bytes()[begun:], process, folder)
        yield process
    finally:
        if gently and process.poll() is None:
            process.send_signal(signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                process.wait(_END_SECONDS)
        if process.poll() is None:
            process.kill()
        process.wait()


def wait_while_it_runs(condition: Callable[[], bool], process: "subprocess.Popen[bytes]", folder: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while not condition():
        assert process.poll() is None, (folder / "log").read_text()[-3000:]
        assert time.monotonic() < deadline, (folder / "log").read_text()[-3000:]
        time.sleep(0.05)
