"""What a kernel's log tells of itself at its head: whose it is, and how far back it goes.

It goes back to the boot of its machine, and a job does not.

Where the scheduler's word on the start is missing, the job's own logs tell: nothing from long before their first line
can have ended it. Times without a zone (`dmesg -T`) are those of the node; logs that have none either are taken to be
of the same zone, and where only one of the two tells a zone the other is taken to be of this machine's; but only beyond
what zones may be apart is anything left out for that.

What somebody named by hand is doubted where nothing tells that it was in the job's time, or on its node. A doubted line
is no witness that is trusted: it still can be what happened, but it overrules nothing and excludes nobody.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path

from advisor.bundle_facts import JobFacts
from advisor.bundle_logs import READ_BYTES, opened_log
from advisor.bundle_parts import LogFile
from advisor.core.doubts import doubted, remarked
from advisor.core.model import Signal
from advisor.core.places import place_of
from advisor.core.times import LineTime, line_time

START_UP = timedelta(minutes=30)  # from a job's start to the first line of its log that has a time, at most
ZONES = timedelta(hours=14)  # that two clocks without a zone may be apart
UNDATED = "its lines do not tell when, so that it may be from before the job"
TIMELESS = "the job's log has no times, so that it may be from before the job"
UP_TO_THE_ZONE = "it is from before the job, unless their clocks are of different zones"
_LINES_MAX = 5_000  # of a file's head
_LINE_BYTES = 200
NAME_BYTES = 256  # of a host, at most


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """`since`: older lines are not read. `cut`: there are such. `zone_seconds`: to add to times without a zone.

    `sure`: older lines are of the job's time only by a zone that we do not know. `by_hand`: beside a job's logs, so
    that a line without a time may be of any time. `doubt`: of all its lines, why they may be none of the job's;
    `remark`: what only makes that likelier.
    """

    since: datetime | None = None
    cut: bool = False
    zone_seconds: float | None = None
    sure: datetime | None = None
    by_hand: bool = False
    doubt: str = ""
    remark: str = ""

    def placed(self, signal: Signal) -> Signal:
        """The signal of one of its lines, with what is doubtful about it."""
        doubt = self.doubt
        if not doubt and self.by_hand and signal.at is None:
            doubt = UNDATED
        elif not doubt and self.sure is not None and signal.at is not None and signal.at < self.sure:
            doubt = UP_TO_THE_ZONE
        if doubt:
            return doubted(signal, doubt)
        return remarked(signal, self.remark) if self.remark else signal


def first_time(path: Path, now: datetime) -> LineTime | None:
    """The first time in a file's head."""
    return next((told for line in _head(path) if (told := line_time(line, now)) is not None), None)


def other_host(file: LogFile) -> str:
    """The host that its lines name where that is not the node it was said to be of, else "". Slurm may call a node
    otherwise than it calls itself: a doubt, no proof.
    """
    named = (place_of(line) for line in _head(file.path) if " kernel:" in line)
    host = next((place.node for place in named if place.kernel and place.node), file.node)
    return host if host != file.node else ""


def names_asked(kernel: Iterable[LogFile]) -> re.Pattern[bytes] | None:
    """Whether a job's logs name the nodes that kernel logs are said to be of, and the hosts that those name."""
    names = {name for file in kernel if file.node for name in (file.node, other_host(file)) if name}
    each = b"|".join(re.escape(name.encode()) for name in sorted(names))
    return re.compile(rb"(?<![\w-])(?:%b)(?![\w-])" % each) if names else None


def _head(path: Path) -> list[str]:
    with opened_log(path) as file:
        data = file.read(READ_BYTES)
    lines = data.split(b"\n", _LINES_MAX)[:_LINES_MAX]
    return [line[:_LINE_BYTES].decode("utf-8", "replace") for line in lines]


def begin_of(logs: Iterable[LogFile], now: datetime) -> LineTime | None:
    """The earliest first line of a job's logs; zoned only if all are."""
    firsts = [first for file in logs if (first := first_time(file.path, now)) is not None]
    if not firsts:
        return None
    return LineTime(at=min(first.at for first in firsts), zoned=all(first.zoned for first in firsts))


def reach_of(file: LogFile, facts: JobFacts, begin: LineTime | None, now: datetime, *, beside: bool) -> Reach:
    """Of one kernel log. `begin`: of the job's logs; `beside`: there are such."""
    if facts.started_at is not None and not file.node:
        return Reach(since=facts.started_at)
    first = first_time(file.path, now)
    by_hand = beside and bool(file.node)
    if facts.started_at is not None:
        # Named by hand: `dmesg -T`, most likely, of a node whose zone is this machine's.
        own = facts.started_at.astimezone().utcoffset() or timedelta()
        zone = timedelta() if first is None or first.zoned else -own
        cut = first is not None and first.at + zone < facts.started_at
        return Reach(since=facts.started_at, cut=cut, zone_seconds=zone.total_seconds(), by_hand=by_hand)
    if begin is None or first is None:
        return Reach(by_hand=by_hand, doubt=TIMELESS if by_hand and begin is None else "")
    told: timedelta | None = None
    if begin.zoned != first.zoned:
        own = (begin if begin.zoned else first).at.astimezone().utcoffset() or timedelta()
        begin, told = (begin, -own) if begin.zoned else (replace(begin, at=begin.at - own), None)
        first = replace(first, at=first.at + (told or timedelta()))
    sure = begin.at - START_UP
    since = sure - (timedelta() if begin.zoned and first.zoned else ZONES)
    return Reach(
        since=since,
        cut=first.at < since,
        zone_seconds=None if told is None else told.total_seconds(),
        sure=sure if by_hand else None,
        by_hand=by_hand,
    )
