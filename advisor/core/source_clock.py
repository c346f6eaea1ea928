"""The clock of whoever wrote a file, learned from its lines and from when they could be read.

Zone: the newest line of a read that was written just before settles it. Skew: a line that claims to be from after the
moment at which it was there already comes from a clock that is ahead, by at least that much; such times are set back,
so that files of several machines compare. A clock that is behind cannot be told from bytes that came late: the least
lag is kept, and nothing is done about it. Lines of a kernel that tell only how long it had been up get their time from
lines that tell both, where such are near; otherwise their order is all that is known.
"""

import re
from datetime import datetime, timedelta

from advisor.core.lines import decode, shorten
from advisor.core.times import Boot, boot_told, learn_offset, line_time, uptime

_TAIL_BYTES = 1_024
_THOROUGH_BYTES = 8_192
_CLOCK = re.compile(rb"\d\d:\d\d:\d\d|(?m:^) *\[? *(?:1[4-9]\d{8}|\d{1,9}\.\d{6}\])")
_ALL_ALIKE = bytes.maketrans(b"123456789", b"000000000")
_SIGNS = (b"00:00:00", b"0000000000", b".000000]")  # one of them is in whatever `_CLOCK` finds
_BOOTED = b"[    0.000000] "
SKEW_MAX = timedelta(minutes=7, seconds=30)  # more than that is taken for a zone
_NOISE_SECONDS = 1.0  # of time stamps that are rounded, and of file systems


class SourceClock:
    """The mutable side of a file's clock during one call of the scanner. `there_at`: when the newest bytes were there,
    as well as it is known; `live`: they were read soon after.
    """

    def __init__(
        self,
        *,
        seen_at: datetime,
        there_at: datetime,
        live: bool,
        zone_seconds: float | None,
        lag_seconds: float | None,
        newest: datetime | None,
        boot: Boot | None = None,
    ) -> None:
        self._seen_at = seen_at
        self._there_at = min(there_at, seen_at)
        self._live = live
        self.zone_seconds = zone_seconds
        self.lag_seconds = lag_seconds
        self.newest = newest
        self.boot = boot
        self._boots = 0  # beginning in the middle of the piece that is looked at

    def look(self, text: bytes, *, thorough: bool) -> None:
        """Learn from the newest line of a piece that carries a time, if it stands near its end.

        `thorough`: times of its lines will be asked for.
        """
        if thorough:
            self._look_for_boot(text)
        at = _newest(text, _TAIL_BYTES)
        if at is None and thorough:
            at = _newest(text, _THOROUGH_BYTES)
        if at is None:
            return
        end = text.find(b"\n", at)
        line = decode(shorten(text[text.rfind(b"\n", 0, at) + 1 : end if end >= 0 else len(text)]))
        stamp = line_time(line, self._seen_at)
        if stamp is None:
            self.newest = self.by_ours(self.time_of(line)) or self.newest
            return
        if self._live and not stamp.zoned:
            learned = learn_offset(stamp.at, self._seen_at)
            if learned is not None:
                self.zone_seconds = learned.total_seconds()
        lag = self._there_at - stamp.at - timedelta(seconds=0.0 if stamp.zoned else self.zone_seconds or 0.0)
        if self._live and abs(lag) <= SKEW_MAX:
            self.lag_seconds = min(
                lag.total_seconds(), lag.total_seconds() if self.lag_seconds is None else self.lag_seconds
            )
        self.newest = self.by_ours(self.time_of(line))

    def _look_for_boot(self, text: bytes) -> None:
        """Within a piece in which a kernel begins anew nobody knows which of the two a line is from."""
        begins = text.rfind(_BOOTED)
        self._boots = max(0, text.rfind(b"\n", 0, max(begins, 0)))
        if begins >= 0:
            self.boot = None
        offset = timedelta(seconds=self.zone_seconds or 0.0)
        told = boot_told(text[begins:] if begins > 0 else text, self._seen_at, offset)
        self.boot = told or self.boot

    def time_of(self, text: str) -> datetime | None:
        """A line's time in UTC by its own clock, or None. Compares with others of this file."""
        stamp = line_time(text, self._seen_at)
        if stamp is None:
            up = uptime(text)
            return self.boot.time_of(up) if up is not None and self.boot is not None and not self._boots else None
        return stamp.at if stamp.zoned else stamp.at + timedelta(seconds=self.zone_seconds or 0.0)

    def by_ours(self, at: datetime | None) -> datetime | None:
        """That time by our clock. Compares with times of other files."""
        ahead = -(self.lag_seconds or 0.0)
        return at - timedelta(seconds=ahead) if at is not None and ahead > _NOISE_SECONDS else at


def _newest(text: bytes, size: int) -> int | None:
    """Where the newest clock time within the last bytes stands."""
    start = max(0, len(text) - size)
    digits = text[start:].translate(_ALL_ALIKE)
    if not any(sign in digits for sign in _SIGNS):  # mostly: matching costs twenty times as much
        return None
    found = [match.start() for match in _CLOCK.finditer(text, start)]
    return found[-1] if found else None
