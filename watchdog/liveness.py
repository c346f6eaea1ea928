"""Does the advisor live? Judged from the tick file alone. Pure.

The file says how old the advisor's last completed tick was when the agent wrote it, and CLOCK_BOOTTIME at that moment;
only that clock is used, so steps of the wall clock change nothing. No file, an unreadable one, one from before the
last boot or one too old: assume dead.
"""

import json
from dataclasses import dataclass
from typing import TypeGuard

FILE_BYTES_MAX = 65536


@dataclass(frozen=True, slots=True, kw_only=True)
class Liveness:
    """`reason` is for the journal. `age_seconds`: since the last completed tick, None when not known."""

    alive: bool
    reason: str
    age_seconds: float | None = None


def judge(raw: bytes | None, *, boot_now: float, dead_after_seconds: float) -> Liveness:
    """`raw`: what the tick file holds, None when it could not be read. `boot_now`: CLOCK_BOOTTIME."""
    if raw is None:
        return Liveness(alive=False, reason="there is no tick file")
    if len(raw) > FILE_BYTES_MAX:
        return Liveness(alive=False, reason="the tick file is too large to be one")
    try:
        value = json.loads(raw)
    except (ValueError, RecursionError):
        return Liveness(alive=False, reason="the tick file is not JSON")
    if not isinstance(value, dict) or value.get("v") != 1:
        return Liveness(alive=False, reason="the tick file is of another version")
    written, tick_age = value.get("boot_monotonic"), value.get("tick_age")
    if not _is_seconds(written) or not _is_seconds(tick_age):
        return Liveness(alive=False, reason="the tick file holds no usable times")
    since = boot_now - written
    if since < 0:
        return Liveness(alive=False, reason="the tick file is from before this boot")
    age = since + tick_age
    if age > dead_after_seconds:
        return Liveness(alive=False, reason=f"the last tick is {age:.0f} s old", age_seconds=age)
    return Liveness(alive=True, reason=f"the last tick is {age:.1f} s old", age_seconds=age)


def _is_seconds(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e12
