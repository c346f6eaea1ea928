"""Whether a watchdog lives, read from a file that need not be one."""

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_plugin.watchdog_alive import ALIVE_FILE, FILE_BYTES_MAX, judge, look
from watchdog.monitor import Config
from watchdog.notice import AliveFile

NOW = 1000.0
TOLD = {"v": 1, "boot_monotonic": NOW - 2, "within": 15.0, "mode": "act", "pid": 7}


@pytest.mark.parametrize(
    ("changes", "now", "alive", "said"),
    [
        ({}, NOW, True, "alive 2.0 s ago"),
        ({}, NOW + 12.9, True, "alive 14.9 s ago"),
        ({}, NOW + 13.1, False, "no watchdog has been alive for 15 s"),
        ({}, NOW + 310, False, "no watchdog has been alive for 312 s"),
        ({"within": 0}, NOW, False, "no watchdog has been alive for 2 s"),
        ({"boot_monotonic": NOW + 5}, NOW, False, "no watchdog has been alive since this host was started"),
        ({"v": 2}, NOW, False, "is not what a watchdog writes"),
        ({"mode": "\x1b[2J"}, NOW, False, "is not what a watchdog writes"),
        ({"within": True}, NOW, False, "is not what a watchdog writes"),
        ({"within": 1e9}, NOW, False, "is not what a watchdog writes"),
        ({"boot_monotonic": None}, NOW, False, "is not what a watchdog writes"),
    ],
)
def test_it_lives_as_long_as_it_promised_to_tell(
    changes: dict[str, object], now: float, alive: bool, said: str
) -> None:
    """By the clock of this host since it was started; a promise without an end is none."""
    found = judge(json.dumps(TOLD | changes).encode(), Path("/run/a.json"), boot_now=now)
    assert (found.alive, said in found.said) == (alive, True), found
    assert found.mode == ("act" if alive else "")


def test_what_cannot_be_read_is_no_sign_of_life(tmp_path: Path) -> None:
    """Absent, a folder, a pipe that nobody writes into, endless."""
    file = tmp_path / "alive.json"
    assert look(file, boot_now=NOW).said == f"no watchdog runs here: there is no {file}"
    os.mkfifo(file)
    assert "is not what a watchdog writes" in look(file, boot_now=NOW).said
    file.unlink()
    file.mkdir()
    assert "is not what a watchdog writes" in look(file, boot_now=NOW).said
    file.rmdir()
    file.write_text(json.dumps(TOLD | {"x": "y" * FILE_BYTES_MAX}))
    assert "is not what a watchdog writes" in look(file, boot_now=NOW).said
    file.write_text(json.dumps(TOLD))
    assert look(file, boot_now=NOW).alive


@given(
    st.binary(max_size=200)
    | st.recursive(st.none() | st.integers() | st.text(), st.lists).map(json.dumps).map(str.encode)
)
def test_no_bytes_are_a_sign_of_life(raw: bytes) -> None:
    """Whatever stands there, nothing raises."""
    assert not judge(raw, Path("/run/a.json"), boot_now=NOW).alive


def test_what_the_watchdog_writes_is_understood(tmp_path: Path) -> None:
    """Both sides know the file, for the watchdog shares no code."""
    assert Config().alive_file == ALIVE_FILE
    now = NOW
    said: list[str] = []
    written = AliveFile(tmp_path / "a", mode="observe", within_seconds=15, say=said.append, boot=lambda: now)
    written.tell()
    assert look(tmp_path / "a", boot_now=now + 1) == judge(
        (tmp_path / "a").read_bytes(), tmp_path / "a", boot_now=now + 1
    )
    assert look(tmp_path / "a", boot_now=now + 1).mode == "observe"
    written.stopped()
    assert not look(tmp_path / "a", boot_now=now + 1).alive
    assert said == []
