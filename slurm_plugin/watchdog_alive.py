"""Whether a watchdog lives on this host, by the file that it writes again and again (watchdog/notice.py).

Standard library only. To some of its readers the file is another user's: bounded, never waited for, judged by type.
"""

import json
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import TypeGuard

ALIVE_FILE = "/run/recovery-advisor-watchdog/alive.json"  # the watchdog's own default
FILE_BYTES_MAX = 4096
WITHIN_SECONDS_MAX = 86_400.0
TO_DO = (
    "start it, as systemctl start recovery-advisor-watchdog does, and see what it says: nothing gives back what the "
    "agent leaves in Slurm when it dies"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """`said` is for people. `mode` is that of the process, "" where none lives. `to_do`: "" when all is well."""

    alive: bool
    said: str
    mode: str = ""
    to_do: str = ""


def look(path: Path, *, boot_now: float) -> Seen:
    """`boot_now`: CLOCK_BOOTTIME."""
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:  # noqa: PTH123 - a descriptor
            raw = file.read(FILE_BYTES_MAX + 1) if stat.S_ISREG(os.fstat(file.fileno()).st_mode) else b""
    except (FileNotFoundError, NotADirectoryError):
        return Seen(alive=False, said=f"no watchdog runs here: there is no {path}", to_do=TO_DO)
    except IsADirectoryError:
        raw = b""
    except OSError as error:
        to_do = "ask as root, or as the watchdog's user"
        return Seen(alive=False, said=f"whether one lives is not known: {path}: {error.strerror}", to_do=to_do)
    return judge(raw, path, boot_now=boot_now)


def judge(raw: bytes, path: Path, *, boot_now: float) -> Seen:
    """`raw`: what stands in the file."""
    foreign = Seen(alive=False, said=f"{path} is not what a watchdog writes", to_do=TO_DO)
    try:
        told = json.loads(raw) if len(raw) <= FILE_BYTES_MAX else None
    except (ValueError, RecursionError):
        return foreign
    if not isinstance(told, dict) or told.get("v") != 1 or told.get("mode") not in ("observe", "act"):
        return foreign
    written, within = told.get("boot_monotonic"), told.get("within")
    if not _is_seconds(written) or not _is_seconds(within) or within > WITHIN_SECONDS_MAX:
        return foreign
    age = boot_now - written
    if age < 0:
        return Seen(alive=False, said="no watchdog has been alive since this host was started", to_do=TO_DO)
    if age > within:
        return Seen(alive=False, said=f"no watchdog has been alive for {age:.0f} s ({path})", to_do=TO_DO)
    return Seen(alive=True, said=f'alive {age:.1f} s ago, in mode "{told["mode"]}"', mode=told["mode"])


def _is_seconds(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e12
