"""Bytes of a growing file to the lines that job-defined rules are judged on.

As Python's text mode reads them, because the rules were written for that: `\\n`, `\\r\\n` and a lone `\\r` each end a
line (a progress bar's every redraw is one), nothing is taken out of a line, and colours stay. Unlike there, a line that
is only half written waits for its end: "ms: 1" may become "ms: 1234". When nothing more comes for a while, it counts
as it stands, since a bar waits for its next redraw and a dying process does not finish its last line; should it grow
after all, the whole line is judged once more.
"""

from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from advisor.core.job_rules import Batch

LINE_BYTES_MAX = 65_536  # longer lines are judged by their beginning
UNFINISHED_SECONDS = 5.0
_UNFINISHED = timedelta(seconds=UNFINISHED_SECONDS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tail:
    """Where reading stands in one file."""

    lines: int = 0  # complete ones so far
    partial: bytes = b""  # the unfinished last line
    partial_at: datetime | None = None  # when its newest byte came
    judged: bool = False  # the partial line was already given out as it stands
    after_return: bool = False  # the last byte was "\r": a "\n" that follows belongs to it


def split(tail: Tail, data: bytes, now: datetime, *, file: str = "") -> tuple[Tail, Batch]:
    """The lines that these bytes complete."""
    if not data:
        return tail, Batch(lines=(), file=file, first=tail.lines + 1)
    after_return = data.endswith(b"\r")
    if tail.after_return and data.startswith(b"\n"):
        data = data[1:]
    text = tail.partial + data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    *complete, partial = (line[:LINE_BYTES_MAX] for line in text.split(b"\n"))
    first = tail.lines + 1
    lines = tail.lines + len(complete)
    if complete and tail.judged and complete[0] == tail.partial:
        complete, first = complete[1:], first + 1
    # An over-long line grows without changing: what was judged of it stays judged.
    same = lines == tail.lines and partial == tail.partial
    kept = Tail(
        lines=lines,
        partial=partial,
        partial_at=now if partial else None,
        judged=tail.judged and same,
        after_return=after_return,
    )
    return kept, Batch(lines=tuple(complete), file=file, first=first)


def settle(tail: Tail, now: datetime, *, file: str = "", final: bool = False) -> tuple[Tail, Batch]:
    """The unfinished line, when it has waited long enough or (`final`) nothing can follow."""
    due = due_at(tail)
    if due is None or (now < due and not final):
        return tail, Batch(lines=(), file=file, first=tail.lines + 1)
    return replace(tail, judged=True), Batch(lines=(tail.partial,), file=file, first=tail.lines + 1)


def due_at(tail: Tail) -> datetime | None:
    """When `settle` will give out the unfinished line; None when there is none to give."""
    return None if tail.partial_at is None or tail.judged else tail.partial_at + _UNFINISHED
