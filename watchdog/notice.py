"""Telling that we live, with the standard library: systemd (sd_notify), where there is one, and whoever reads our file.

And whether what we print goes into its journal, which keeps the time of each line.
"""

import json
import math
import os
import socket
import sys
import time
from collections.abc import Callable, Mapping

READY, ALIVE, STOPPING = "READY=1", "WATCHDOG=1", "STOPPING=1"
FILE_SECONDS = 1.0  # the file is written at most so often


def boot_seconds() -> float:
    """CLOCK_BOOTTIME: steps of the wall clock change nothing."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class AliveFile:
    """From which `advisor-agent check` and `advisor doctor` learn that we live. They share no code with us:

    `{"v": 1, "boot_monotonic": CLOCK_BOOTTIME when written, "within": seconds, "mode", "pid"}`. It is written again
    before `within` has passed, which is 0 once we have stopped. Replaced as a whole; what cannot be written is said
    once and must not stop us from watching.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        mode: str,
        within_seconds: float,
        say: Callable[[str], None],
        boot: Callable[[], float] = boot_seconds,
    ) -> None:
        self._path, self._mode, self._within, self._say, self._boot = os.fspath(path), mode, within_seconds, say, boot
        self._written_at = -math.inf
        self._failed = False

    def tell(self) -> None:
        now = self._boot()
        if now - self._written_at >= FILE_SECONDS:
            self._write(now, self._within)

    def stopped(self) -> None:
        self._write(self._boot(), 0)

    def _write(self, now: float, within: float) -> None:
        self._written_at = now
        # Never later than it was: what lies ahead of its reader is taken for a file from before this boot.
        told = {"v": 1, "boot_monotonic": math.floor(now * 1000) / 1000, "within": within}
        raw = json.dumps(told | {"mode": self._mode, "pid": os.getpid()}) + "\n"
        beside = f"{self._path}.new"
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            file = os.open(beside, flags, 0o644)
            try:
                os.fchmod(file, 0o644)
                os.write(file, raw.encode())
            finally:
                os.close(file)
            os.replace(beside, self._path)  # noqa: PTH105 - no Path in what must always run
        except OSError as error:
            if not self._failed:
                reason = error.strerror or type(error).__name__
                self._say(f"cannot write {self._path}: {reason}: check and doctor do not see that the watchdog runs")
            self._failed = True
        else:
            self._failed = False


class Notice:
    """`environment` is this process's; what cannot be told must not stop us from watching."""

    def __init__(self, environment: Mapping[str, str] = os.environ, *, file: AliveFile | None = None) -> None:
        self._file = file
        address = environment.get("NOTIFY_SOCKET", "")
        self._address = f"\0{address[1:]}" if address.startswith("@") else address if address.startswith("/") else ""

    def tell(self, state: str) -> None:
        if self._file is not None and state == STOPPING:
            self._file.stopped()
        elif self._file is not None:
            self._file.tell()
        if not self._address:
            return
        kind = socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK
        try:
            with socket.socket(socket.AF_UNIX, kind) as channel:
                channel.sendto(state.encode(), self._address)
        except OSError:
            pass


def kept_by_journal(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether standard error is the journal's. The variable alone proves nothing: it is inherited behind a `2>file`."""
    try:
        status = os.fstat(sys.stderr.fileno())
    except (OSError, ValueError, AttributeError):
        return False
    return environment.get("JOURNAL_STREAM", "") == f"{status.st_dev}:{status.st_ino}"
