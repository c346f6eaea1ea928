"""Operators' commands as processes: the live view in a terminal of its own, and one look for scripts."""

import fcntl
import json
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.service.programs import PROJECT, advisor, serving
from tests.integration.service.world import configuration, short_folder

pytestmark = pytest.mark.postgres
ENTERS, LEAVES, SHOWS_CURSOR = "\x1b[?1049h", "\x1b[?1049l", "\x1b[?25h"


@pytest.fixture
def folder() -> Iterator[Path]:
    with short_folder() as path:
        configuration(path)
        yield path


class Terminal:
    """A program in a terminal of its own; what it writes is kept."""

    def __init__(self, argv: list[str], columns: int, lines: int) -> None:
        self.master, slave = pty.openpty()
        self.resize(columns, lines)
        environment = {name: value for name, value in os.environ.items() if name not in {"COLUMNS", "LINES"}}
        environment |= {"TERM": "xterm-256color"}
        self.process = subprocess.Popen(argv, stdin=slave, stdout=slave, stderr=slave, cwd=PROJECT, env=environment)
        os.close(slave)
        self.text = ""
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()

    def resize(self, columns: int, lines: int) -> None:
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def _read(self) -> None:
        while True:
            try:
                data = os.read(self.master, 65_536)
            except OSError:
                return
            if not data:
                return
            self.text += data.decode("utf-8", "replace")

    def wait(self, text: str, after: int = 0, seconds: float = 20.0) -> int:
        until = time.monotonic() + seconds
        while text not in self.text[after:]:
            assert time.monotonic() < until, f"{text!r} not in {self.text[after:]!r}"
            time.sleep(0.05)
        return len(self.text)

    def end(self) -> int:
        self.process.send_signal(signal.SIGINT)
        code = self.process.wait(timeout=20)
        self._reading.join(timeout=5)
        os.close(self.master)
        return code


def test_the_live_view_follows_the_window_and_leaves_the_terminal_as_it_was(folder: Path) -> None:
    """Drawn in the other screen, anew after a resize, and gone after Ctrl-C; one look for scripts needs no terminal."""
    with serving(folder):
        argv = [sys.executable, "-m", "advisor", "watch", "--every", "30", "--config", str(folder / "advisor.toml")]
        terminal = Terminal(argv, 100, 30)
        try:
            seen = terminal.wait("no open incidents")
            terminal.resize(60, 12)
            terminal.wait("no open incidents", after=seen)
        finally:
            code = terminal.end()
        assert code == 0
        assert terminal.text.count(ENTERS) == terminal.text.count(LEAVES) == 1
        assert terminal.text.rindex(SHOWS_CURSOR) > terminal.text.index(ENTERS)
        assert "Traceback" not in terminal.text
        once = advisor(folder, "watch", "--once")
        assert (once.returncode, "\x1b" in once.stdout) == (0, False)
        assert "no open incidents" in once.stdout
        document = json.loads(advisor(folder, "watch", "--once", "--format", "jsonl").stdout)
        assert set(document) == {"at", "status", "incidents", "decisions", "pauses"}
        for command in (("incidents", "list"), ("attempts", "list"), ("actions", "list"), ("orders", "list")):
            listed = advisor(folder, *command, "--format", "jsonl")
            assert (listed.returncode, listed.stdout) == (0, ""), command
        nobody = advisor(folder, "explain", "4711")
        assert (nobody.returncode, nobody.stderr) == (1, "advisor: nothing is known of job 4711\n")
        said = advisor(folder, "audit", "list", "--format", "jsonl")
        assert said.returncode == 0, said.stderr
