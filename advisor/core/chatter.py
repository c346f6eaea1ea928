"""Lines that only show that some process is alive: a metrics endpoint that is scraped, a client that still waits.

They keep a log growing behind a hang. What tells them from work in a format that nobody knows: apart from times and
addresses they say the same each time, and work counts.
"""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

SAME_LINES = 10  # as often, the same words are no news
QUIET_SECONDS = 1_800.0  # of nothing else, so that a long save beside a heartbeat is no hang
USUAL_FACTOR = 2.0  # × the longest time that it went without news before
_CHANGING = re.compile(r"\S*\d[:/-]\d\d\S*")  # times, dates, addresses with their port
_CHANGES = re.compile(rb"\d[:/-]\d\d")
_UNTIMED_MAX = 500
NEWS_BYTES = 2_048  # of what is new, that are looked at


@dataclass(frozen=True, slots=True, kw_only=True)
class Voice:
    """When one log last said something new (`news_at`) and anything at all (`line_at`), and the longest time between
    two news.
    """

    news_at: datetime
    line_at: datetime
    longest: timedelta


def voice(lines: Sequence[tuple[datetime, str]]) -> Voice | None:
    """Of the end of one log, oldest line first. None for a log without lines. One that is all chatter had its last news
    before its first line.
    """
    if not lines:
        return None
    said = [(at, _CHANGING.sub("", text)[:_UNTIMED_MAX].strip()) for at, text in lines]
    often = Counter(text for _, text in said)
    news_at, longest = said[0][0], timedelta(0)
    for at, text in said:
        if often[text] < SAME_LINES and at > news_at:
            longest, news_at = max(longest, at - news_at), at
    return Voice(news_at=news_at, line_at=max(at for at, _ in said), longest=longest)


def says_news(text: bytes, before: bytes) -> bool:
    """Of a log as it grows: a line of the end of `text` is another one than all of `before`, but for times and
    addresses.
    """
    end = text if len(text) <= NEWS_BYTES else text[-NEWS_BYTES:].partition(b"\n")[2] or text[-NEWS_BYTES:]
    known = set(map(_words, before.splitlines()))
    return any(words and words not in known for words in map(_words, end.splitlines()))


def _words(line: bytes) -> bytes:
    return b" ".join(word for word in line[:_UNTIMED_MAX].split() if not _CHANGES.search(word))


def quiet_seconds(logs: Sequence[Voice]) -> float:
    """How long there was nothing but chatter until the newest line of all logs; 0 where that may be how the job is."""
    if not logs:
        return 0.0
    quiet = (max(log.line_at for log in logs) - max(log.news_at for log in logs)).total_seconds()
    usual = max(log.longest for log in logs).total_seconds()
    return quiet if quiet >= max(QUIET_SECONDS, USUAL_FACTOR * usual) else 0.0
