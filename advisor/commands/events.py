"""What happened, one line each: of a job's timeline, of a node's history."""

import textwrap
from collections.abc import Iterable, Iterator
from datetime import UTC

from advisor.commands.output import one_line
from advisor.commands.tables import terminal_columns
from advisor.v1 import audit_pb2

_INDENT = 21


def event_lines(events: Iterable[audit_pb2.Event], columns: int | None, *, of_node: bool = False) -> Iterator[str]:
    """The moment, what it was about, and a sentence; folded to the terminal's width. `of_node`: of many jobs."""
    for event in events:
        job = event.attempt.job_id if of_node else ""
        about = f"{job}#{event.attempt.attempt} " if event.HasField("attempt") else ""
        who = f" ({event.who})" if event.who else ""
        text = one_line(f"{event.at.ToDatetime(UTC):%Y-%m-%d %H:%M:%S}  {about}{event.text or event.kind}{who}")
        if columns is None:
            yield text
        else:
            yield from textwrap.wrap(text, columns, subsequent_indent=" " * _INDENT, break_on_hyphens=False) or [""]


def print_events(events: Iterable[audit_pb2.Event], *, of_node: bool = False) -> None:
    shown = False
    for line in event_lines(events, terminal_columns(), of_node=of_node):
        print(line)
        shown = True
    if not shown:
        print("nothing has happened")
