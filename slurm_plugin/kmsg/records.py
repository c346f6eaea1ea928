"""Records of /dev/kmsg as values: what the kernel says, and nothing that others wrote there. Pure.

A record is `priority,sequence,microseconds,flags[,more];text`, then lines of properties that begin with a blank.
Whoever may open the device for writing can add records, but not with the kernel's own facility: that is 0 for the
kernel alone (Documentation/ABI/testing/dev-kmsg: what is written with facility 0 is given LOG_USER). So facility 0 is
the proof.
"""

import re
from collections import deque
from dataclasses import dataclass

_HEAD = re.compile(rb"(\d{1,10}),(\d{1,20}),(\d{1,20}),[^;]{1,100};")
_TELLING = re.compile(
    r"NVRM|Xid|[Mm]ce|MCE|EDAC|Hardware Error|AER|[Oo]ut of memory|oom|mlx|nvidia|I/O error|EXT4-fs|XFS|Lustre|"
    r"nfs|blocked for more than|panic|lockup|BUG|Oops|NVSwitch|link (?:is )?(?:[Dd]own|[Uu]p)|thermal|throttled"
)
SECOND_US = 1_000_000
LINE_CHARS_MAX = 8_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """`uptime_us`: by the kernel's own clock. `text`: one line, control characters as the kernel escapes them."""

    sequence: int
    uptime_us: int
    facility: int
    text: str

    @property
    def of_kernel(self) -> bool:
        return self.facility == 0

    @property
    def telling(self) -> bool:
        """May be about a failure: not left out for others that are many."""
        return _TELLING.search(self.text) is not None


def parse(data: bytes) -> Record | None:
    """One read of the device; None for what is no record."""
    found = _HEAD.match(data)
    if found is None:
        return None
    text = data[found.end() :].partition(b"\n")[0].decode("utf-8", "replace")
    return Record(
        sequence=int(found[2]), uptime_us=int(found[3]), facility=int(found[1]) >> 3, text=text[:LINE_CHARS_MAX]
    )


class KernelTime:
    """From the kernel's clock to wall time.

    The kernel's clock is near CLOCK_MONOTONIC, but nobody corrects it: over months it goes wrong by minutes. A record
    that is read at once tells by how much, so the least delay seen among the newest such records is taken off.
    """

    def __init__(self, last_ns: int = 0) -> None:
        self._lags: deque[int] = deque(maxlen=64)
        self.last_ns = last_ns

    def wall_ns(self, uptime_us: int, *, wall_ns: int, monotonic_ns: int, at_once: bool) -> int:
        """Nanoseconds since 1970, each later than the last: stores take lines of one text and moment for one line.

        `wall_ns`, `monotonic_ns`: now. `at_once`: the record was waited for, so that it is as old as its reading.
        """
        lag = monotonic_ns - uptime_us * 1_000
        if at_once:
            self._lags.append(lag)
        offset = min(self._lags, default=0)
        found = min(wall_ns, uptime_us * 1_000 + offset + wall_ns - monotonic_ns)
        if 0 <= self.last_ns - found < 1_000 * SECOND_US:
            found = self.last_ns + 1
        self.last_ns = found
        return found

    def next_ns(self) -> int:
        """The moment after the last one: for what comes beside it, and has an order all the same."""
        self.last_ns += 1
        return self.last_ns


class Cap:
    """So many records a second over time, and a burst. A flood of one kind leaves room for those that tell failures."""

    def __init__(self, per_second: float, burst: float) -> None:
        self._per_second = per_second
        self._burst = burst
        self._left = {True: burst, False: burst}
        self._at = 0.0
        self.left_out = 0

    def lets(self, record: Record, monotonic: float) -> bool:
        gained = max(0.0, monotonic - self._at) * self._per_second
        self._at = monotonic
        for kind, left in self._left.items():
            self._left[kind] = min(self._burst, left + gained)
        if self._left[record.telling] < 1:
            self.left_out += 1
            return False
        self._left[record.telling] -= 1
        return True

    def take_left_out(self) -> int:
        """How many were left out since this was asked last; 0 while it still goes on."""
        if not self.left_out or min(self._left.values()) < min(self._burst, self._per_second) / 2:
            return 0
        count, self.left_out = self.left_out, 0
        return count
