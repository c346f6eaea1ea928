"""What a kernel's log tells of itself at its head: whose it is, and how far back it goes.

It goes back to the boot of its machine, and a job does not.

Where the scheduler's word on the start is missing, the job's own logs tell: nothing from long before their first line
can have ended it. Times without a zone (`dmesg -T`) are those of the node; logs that have none either are taken to be
of the same zone, but only within what zones may be apart is anything left out for that.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from advisor.bundle_facts import JobFacts
from advisor.bundle_logs import READ_BYTES, opened_log
from advisor.bundle_parts import LogFile
from advisor.core.places import place_of
from advisor.core.times import LineTime, line_time

START_UP = timedelta(minutes=30)  # from a job's start to the first line of its log that has a time, at most
ZONES = timedelta(hours=14)  # that two clocks without a zone may be apart
_LINES_MAX = 5_000  # of a file's head
_LINE_BYTES = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """`since`: older lines are not read. `cut`: there are such. `zone_seconds`: to add to times without a zone."""

    since: datetime | None = None
    cut: bool = False
    zone_seconds: float | None = None


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


def reach_of(file: LogFile, facts: JobFacts, begin: LineTime | None, now: datetime) -> Reach:
    """Of one kernel log. `begin`: of the job's logs."""
    if facts.started_at is not None and not file.node:
        return Reach(since=facts.started_at)
    first = first_time(file.path, now)
    if facts.started_at is not None:
        # Named by hand: `dmesg -T`, most likely, of a node whose zone is this machine's.
        own = facts.started_at.astimezone().utcoffset() or timedelta()
        zone = timedelta() if first is None or first.zoned else -own
        cut = first is not None and first.at + zone < facts.started_at
        return Reach(since=facts.started_at, cut=cut, zone_seconds=zone.total_seconds())
    if begin is None or first is None:
        return Reach()
    since = begin.at - START_UP - (timedelta() if begin.zoned and first.zoned else ZONES)
    return Reach(since=since, cut=first.at < since)
