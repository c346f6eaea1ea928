"""What processes cost, which there are, and how one is ended: for the benchmarks that run whole programs."""

import contextlib
import os
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")


def cpu_seconds(pid: int) -> float:
    """User and system time of all its threads, ended ones too. Raises OSError when it is gone."""
    fields = _stat(pid)
    return (int(fields[11]) + int(fields[12])) / _TICKS


def cpu_seconds_of_living(pids: Sequence[int]) -> float:
    """Of those that are still there, all together."""
    total = 0.0
    for pid in pids:
        with contextlib.suppress(OSError):
            total += cpu_seconds(pid)
    return total


def memory_mb(pid: int, name: str = "VmRSS") -> float:
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith(f"{name}:"):
                return int(line.split()[1]) / 1024
    return 0.0


def children_of(pid: int) -> list[int]:
    return [child for child, parent in processes() if parent == pid]


def processes() -> Iterator[tuple[int, int]]:
    """(pid, parent's pid) of everything in this namespace."""
    for pid in [int(path.name) for path in Path("/proc").iterdir() if path.name.isdecimal()]:
        with contextlib.suppress(OSError):  # ended since it was listed
            yield pid, int(_stat(pid)[1])


def alive(pid: int) -> bool:
    """There, and not a zombie."""
    try:
        return _stat(pid)[0] != "Z"
    except OSError:
        return False


def end(process: "subprocess.Popen[bytes]", seconds: float) -> None:
    """SIGTERM, and SIGKILL when it has not ended by then."""
    process.terminate()
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _stat(pid: int) -> list[str]:
    """The fields from the state on: what is before it may hold anything."""
    return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
