"""Timestamps of log lines: ISO and its relatives, glog, syslog, `dmesg -T`, Python logging, Slurm, seconds since 1970.

Many have no zone and some no year. `LineTime.zoned` says which; the scanner learns a source's offset from when lines
were read, and the year is the newest that is not in the future. The kernel's seconds since boot (`[87474.832736]`) are
no time by themselves: see `uptime` and `Boot`.
"""

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone

_HEAD_CHARS = 200
_AHEAD = timedelta(days=2)  # zones, and clocks that are fast; nothing is written longer before it is read
_MONTH_NAMES = "Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec"
_MONTHS = {name: number for number, name in enumerate(_MONTH_NAMES.split("|"), 1)}
_MONTH = f"(?P<mon>{_MONTH_NAMES})"
_MINUTES = r":(?P<m>[0-5]\d):(?P<s>[0-6]\d)"
_CLOCK = rf"(?P<h>[0-2]\d){_MINUTES}(?:[.,](?P<f>\d{{1,9}}))?"
_HOLDS_CLOCK = re.compile(_MINUTES)  # all of the patterns do; to look for each costs a hundred times as much
_PATTERNS = tuple(
    re.compile(pattern)
    for pattern in (
        # 2026-11-29T03:00:01.123456+00:00 · 2026-11-29 03:00:01,123 · 2023-10-24,10:01:02 · 2024/10/09 15:47:38
        rf"(?<!\d)(?P<y>(?:19|20)\d\d)[-/](?P<mo>[01]\d)[-/](?P<d>[0-3]\d)[T ,_]{_CLOCK}"
        r" ?(?P<z>Z\b|UTC\b|GMT\b|[+-]\d\d:?\d\d(?!\d))?",
        # glog and torch: E0410 01:50:33.889 · [E507 17:31:56.885473996
        rf"(?<![\w.])[IWEFD](?P<mo>1[0-2]|0?[1-9])(?P<d>[0-3]\d) {_CLOCK}",
        # glog since 0.5: I20261129 12:00:00.123456
        rf"(?<![\w.])[IWEFD](?P<y>(?:19|20)\d\d)(?P<mo>[01]\d)(?P<d>[0-3]\d) {_CLOCK}",
        # Hugging Face's examples, rich: 11/29/2026 12:00:00 · [11/29/26 12:00:00]
        rf"(?<![\d/])(?P<mo>[01]\d)/(?P<d>[0-3]\d)/(?P<y>(?:19|20)?\d\d) {_CLOCK}",
        # dmesg -T, asctime: Fri Aug 28 22:45:13 2026
        rf"(?<!\w)(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun) {_MONTH} +(?P<d>[0-3]?\d) {_CLOCK} (?P<y>(?:19|20)\d\d)(?!\d)",
        # syslog: Aug 26 15:28:16
        rf"(?<!\w){_MONTH} +(?P<d>[0-3]?\d) {_CLOCK}",
        # mmengine, absl: 06/17 19:51:16
        rf"(?<![\d/])(?P<mo>[01]\d)/(?P<d>[0-3]\d) {_CLOCK}",
        # vLLM: INFO 05-31 01:52:28
        rf"(?<![\d-])(?P<mo>[01]\d)-(?P<d>[0-3]\d) {_CLOCK}",
    )
)
# UCX: [1724425233.123456] · python-json-logger: "ts": 1724425233.1 · also in milli-, micro- and nanoseconds. Where a
# line begins, or by name: any other number of ten digits is something else.
_EPOCH = re.compile(
    r"(?:^ *(?:\d{1,7}: ?)?\[?|\b(?:ts|time|timestamp)\"?[=:] ?\"?)(?<![\d.])"
    r"(?P<s>1[4-9]\d{8}|2[0-3]\d{8})(?:\.(?P<f>\d{1,9})|(?P<digits>(?:\d{3}){1,3}))?(?![\w.])"
)
_YEARS_BACK = timedelta(days=3_660)
# Behind a priority as klogd keeps it, after what syslog puts before it, as journalctl -o short-monotonic prints it; and
# a record of /dev/kmsg.
_UPTIME = re.compile(
    r"^(?:\d{1,7}: )?(?:[^\[\n]{0,120}kernel: ?)?(?:<\d{1,3}>)?\[ *(?P<s>\d{1,9}\.\d{6})\]"
    r"|^\d{1,4},\d{1,12},(?P<us>\d{1,15}),[^;\n]{1,40};"
)
# Lines that tell both: where the kernel sets its clock, numbers audit records by the time, or syslog keeps its own.
_UP = r"\[ *(?P<up>\d{1,9}\.\d{6})\]"
_BOOT = tuple(
    (mark, re.compile(pattern))
    for mark, pattern in (
        (
            b": setting system clock to ",
            rf"^[^\[]{{0,120}}{_UP} [\w-]{{1,40}} [\w:.-]{{1,40}}: setting system clock to [^(]{{1,40}}"
            r"\((?P<epoch>\d{9,11})\)",
        ),
        (b"] audit: type=", rf"^[^\[]{{0,120}}{_UP} audit: type=\d{{1,5}} audit\((?P<epoch>\d{{9,11}}\.\d{{3}}):"),
        (b" kernel: [", rf"^(?P<wall>[^\[]{{0,60}}\d\d:\d\d:\d\d[^\[]{{0,60}}) kernel: ?{_UP}"),
    )
)
_BOOT_LINE_BYTES = 300
UPTIME_SPAN = timedelta(days=1)  # the kernel's own clock is off by 50 ppm at most: by 4 s then


@dataclass(frozen=True, slots=True, kw_only=True)
class Boot:
    """What one line tells of when a kernel was booted: the moment, by its clock `uptime` later."""

    at: datetime
    uptime: timedelta

    def time_of(self, uptime: timedelta) -> datetime | None:
        """Nothing where the kernel's clock may have drifted too far since."""
        return self.at + uptime if abs(uptime - self.uptime) <= UPTIME_SPAN else None


@dataclass(frozen=True, slots=True, kw_only=True)
class LineTime:
    at: datetime  # aware; without a zone in the text as if the text were UTC
    zoned: bool


def line_time(text: str, near: datetime) -> LineTime | None:
    """The first timestamp in the head of a line, or None. `near`: about when it was written; settles a missing year."""
    head = text[:_HEAD_CHARS]
    for pattern in _PATTERNS if _HOLDS_CLOCK.search(head) is not None else ():
        match = pattern.search(head)
        if match is not None:
            parsed = _build(match, near)
            if parsed is not None:
                return parsed
    return _epoch(head, near)


def _epoch(head: str, near: datetime) -> LineTime | None:
    match = _EPOCH.search(head)
    if match is None:
        return None
    fraction = (match["f"] or match["digits"] or "0")[:6].ljust(6, "0")
    at = datetime.fromtimestamp(int(match["s"]), UTC) + timedelta(microseconds=int(fraction))
    return LineTime(at=at, zoned=True) if near - _YEARS_BACK <= at <= near + _AHEAD else None


def uptime(text: str) -> timedelta | None:
    """How long the kernel that wrote a line had been up, where the line says that."""
    match = _UPTIME.match(text)
    if match is None:
        return None
    return timedelta(microseconds=int(match["us"])) if match["us"] else timedelta(seconds=float(match["s"]))


def boot_told(text: bytes, near: datetime, offset: timedelta) -> Boot | None:
    """When the kernel was booted, by the last line of many that carries both times. `offset`: of times without zone."""
    last: tuple[int, re.Match[str]] | None = None
    for mark, form in _BOOT:
        at = text.rfind(mark)
        if at < 0:
            continue
        start = text.rfind(b"\n", 0, at) + 1
        found = form.match(text[start : start + _BOOT_LINE_BYTES].decode("latin-1"))
        if found is not None and (last is None or at > last[0]):
            last = (at, found)
    if last is None:
        return None
    told = last[1].groupdict()
    if "epoch" in told:
        when = datetime.fromtimestamp(float(told["epoch"]), UTC)
    else:
        stamp = line_time(told["wall"], near)
        if stamp is None:
            return None
        when = stamp.at + (timedelta() if stamp.zoned else offset)
    up = timedelta(seconds=float(told["up"]))
    # A board whose battery is empty believes that it is 1970.
    return Boot(at=when - up, uptime=up) if near - _YEARS_BACK <= when <= near + _AHEAD else None


def _build(match: re.Match[str], near: datetime) -> LineTime | None:
    groups = match.groupdict()
    month = _MONTHS[groups["mon"]] if groups.get("mon") else int(groups["mo"])
    micro = int((groups["f"] or "0")[:6].ljust(6, "0"))
    clock = (int(groups["h"]), int(groups["m"]), min(int(groups["s"]), 59), micro)
    zone = _zone(groups.get("z"))
    year_text = groups.get("y") or ""
    years = (
        (int(year_text) + (2_000 if len(year_text) == 2 else 0),)
        if year_text
        else (near.year - 1, near.year, near.year + 1)
    )
    candidates: list[datetime] = []
    for year in years:
        try:
            candidates.append(datetime(year, month, int(groups["d"]), *clock, tzinfo=zone or UTC).astimezone(UTC))
        except (ValueError, OverflowError):
            continue
    if not candidates:
        return None
    past = [at for at in candidates if at <= near + _AHEAD]
    return LineTime(at=max(past) if past else min(candidates), zoned=zone is not None)


def _zone(text: str | None) -> timezone | None:
    if not text:
        return None
    if text in {"Z", "UTC", "GMT"}:
        return UTC
    hours, minutes = int(text[1:3]), int(text[-2:])
    if hours > 14 or minutes > 59:
        return None
    offset = timedelta(hours=hours, minutes=minutes)
    return timezone(-offset if text[0] == "-" else offset)


def learn_offset(naive: datetime, seen_at: datetime) -> timedelta | None:
    """Offset to add to a source's zone-less times, from one line and the moment it was read.

    Zones are multiples of 15 minutes. A line read up to a minute after it was written settles it, by a clock that is no
    more than two minutes ahead; an older one does not (None), since lag and zone cannot be told apart.
    """
    lag = seen_at - naive
    quarter = timedelta(minutes=15)
    steps = round(lag / quarter)
    offset = steps * quarter
    if abs(offset) > timedelta(hours=14) or not timedelta(seconds=-120) <= lag - offset <= timedelta(seconds=60):
        return None
    return offset
