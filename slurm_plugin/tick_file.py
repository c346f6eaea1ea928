"""The small file from which the watchdog learns whether the advisor lives. Written only from the advisor's own words.

`{"v":1, "written": epoch, "boot_monotonic": seconds, "tick_age": seconds, "ticks": n, "incarnation": text}`, replaced
atomically; `boot_monotonic` is CLOCK_BOOTTIME at writing, so that steps of the wall clock do not matter.
"""

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path


def write(path: Path, *, written: float, boot_monotonic: float, tick_age: float, ticks: int, incarnation: str) -> None:
    """Raises OSError. A reader sees the old file or the new one, never a part."""
    value = {
        "v": 1,
        "written": round(written, 3),
        # Never later than it was: what lies ahead of its reader is taken for a file from before this boot.
        "boot_monotonic": math.floor(boot_monotonic * 1000) / 1000,
        "tick_age": round(tick_age, 3),
        "ticks": ticks,
        "incarnation": incarnation,
    }
    replace(path, value)


def replace(path: Path, value: Mapping[str, object]) -> None:
    """A file that everybody may read, with this JSON in it. Raises OSError."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        beside.write_text(json.dumps(value) + "\n", encoding="utf-8")
        beside.chmod(0o644)
        beside.replace(path)
    except OSError:
        beside.unlink(missing_ok=True)
        raise
