"""How words, times and numbers are written on pages. Times are UTC; what others wrote is made harmless."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from google.protobuf.timestamp_pb2 import Timestamp
from markupsafe import Markup, escape

from advisor.plain_text import harmless

LINE_CHARACTERS_MAX = 4096  # of one text of others on a page; the whole is in the export
_SPELLED = {"gpu": "GPU", "oom": "OOM", "id": "id"}


def time_of(message: Any, field: str) -> datetime | None:
    """A message's time, aware UTC; None when unset."""
    if not message.HasField(field):
        return None
    stamp: Timestamp = getattr(message, field)
    return stamp.ToDatetime(UTC)


def words(word: str) -> str:
    """An enumeration's value as people write it: gpu_hardware → GPU hardware."""
    return " ".join(_SPELLED.get(part, part) for part in str(word).split("_"))


def sentence(text: str) -> str:
    """Begin with a capital letter, as a sentence does."""
    return text[:1].upper() + text[1:]


def span_text(span: timedelta | float | None) -> str:
    """A duration as it is read at a glance; two units at most."""
    if span is None:
        return ""
    seconds = span.total_seconds() if isinstance(span, timedelta) else span
    if seconds < 0:
        return f"−{span_text(-seconds)}"
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 120:
        return f"{whole} s"
    minutes, hours, days = whole // 60, whole // 3600, whole // 86400
    if minutes < 120:
        return f"{minutes} min"
    if hours < 48:
        rest = minutes - 60 * hours
        return f"{hours} h {rest} min" if rest and hours < 10 else f"{hours} h"
    return f"{days} days"


def ago_text(moment: datetime, now: datetime) -> str:
    """How long ago, or in how long."""
    gap = (now - moment).total_seconds()
    if abs(gap) < 1:
        return "now"
    told = span_text(float(max(int(abs(gap)), 1))) if abs(gap) >= 10 else f"{int(abs(gap))} s"
    return f"{told} ago" if gap > 0 else f"in {told}"


def clock_text(moment: datetime, now: datetime, *, fine: bool = False) -> str:
    """The time of day, with the date unless it is today's."""
    clock = f"{moment:%H:%M:%S}" + (f".{moment.microsecond // 1000:03d}" if fine else "")
    if moment.date() == now.date():
        return clock
    return f"{moment:%Y-%m-%d} {clock}" if moment.year != now.year else f"{moment:%b} {moment.day} {clock}"


def time_html(moment: datetime | None, now: datetime, *, relative: bool = True, fine: bool = False) -> Markup:
    """A moment as a `time` element: its clock in UTC and how long ago; the script keeps the latter going."""
    if moment is None:
        return Markup('<span class="none">–</span>')
    whole = f"{moment:%Y-%m-%d %H:%M:%S} UTC"
    machine = f"{moment:%Y-%m-%dT%H:%M:%S}.{moment.microsecond // 1000:03d}Z"
    clock = Markup('<time datetime="{}" title="{}">{}</time>').format(
        machine, whole, clock_text(moment, now, fine=fine)
    )
    if not relative:
        return clock
    return clock + Markup(' <span class="ago" data-ago="{}">{}</span>').format(machine, ago_text(moment, now))


def number_text(value: float | None) -> str:
    """Thousands apart by a thin space, as steps and node counts are read."""
    if value is None:
        return "–"
    return f"{value:,.0f}".replace(",", "\N{NARROW NO-BREAK SPACE}")


def percent_text(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.0f}\N{NO-BREAK SPACE}%"


def text_html(text: str, limit: int = LINE_CHARACTERS_MAX) -> Markup:
    """A text of others: control characters, direction overrides and lone surrogates are shown, never obeyed."""
    whole = harmless(text)
    if len(whole) <= limit:
        return escape(whole)
    left = len(whole) - limit
    return escape(whole[:limit]) + Markup(' <span class="cut">… {} more characters</span>').format(number_text(left))


def line_html(text: str, limit: int = LINE_CHARACTERS_MAX) -> Markup:
    """The same on one line."""
    return text_html(text.replace("\n", "\\n"), limit)


def few(names: Iterable[str], most: int = 8) -> str:
    """Some of many names, and how many more there are."""
    listed = list(names)
    told = ", ".join(listed[:most])
    return f"{told} and {len(listed) - most} more" if len(listed) > most else told


def plural(count: int, one: str, many: str = "") -> str:
    return f"{number_text(count)} {one if count == 1 else many or one + 's'}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Chip:
    """A word with a tone: `good`, `bad`, `warn`, `info` or `plain`. The word says it too: colour never does alone."""

    text: str
    tone: str = "plain"
    title: str = ""
