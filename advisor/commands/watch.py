"""`advisor watch`: a live view for a terminal, over ssh too: open incidents, what is advised, agents and sources.

Each look is a few calls; what is drawn is drawn in place, so that nothing flickers, and anew when the window changes
its size. Text of others is made harmless before it is drawn. Ctrl-C leaves the terminal as it was.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated

import typer
from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from advisor.client import Client, ClientError
from advisor.clock import SystemClock
from advisor.commands.decisions import as_document, connected
from advisor.commands.job_ids import named
from advisor.commands.options import ConfigOption, FormatOption, SocketOption, given
from advisor.commands.output import CommandError, Format, one_line, print_json, whole_document
from advisor.commands.status import status_lines
from advisor.commands.tables import terminal_columns
from advisor.plain_text import seconds_text
from advisor.v1 import audit_pb2, operator_pb2
from advisor.wording import outcome, what

app = typer.Typer()

INCIDENTS_MAX = 50
DECISIONS_MAX = 50
NARROW = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What there was to see at one moment; `problem` is why there is nothing newer."""

    at: datetime
    status: operator_pb2.Status
    incidents: tuple[audit_pb2.Incident, ...] = ()
    decisions: tuple[audit_pb2.Decision, ...] = ()
    pauses: tuple[operator_pb2.PauseInForce, ...] = ()
    problem: str = ""


@app.command()
def watch(
    seconds: Annotated[float, typer.Option("--every", min=0.5, max=3600.0, help="Seconds between looks.")] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="One look, for scripts and pipes.")] = False,
    cluster: Annotated[str | None, typer.Option(help="Only this cluster.")] = None,
    socket: SocketOption = None,
    configuration: ConfigOption = None,
    form: FormatOption = Format.TABLE,
) -> None:
    """A live view: open incidents, the newest decisions and what came of them, agents and sources. Ctrl-C ends it.

    \b
    Examples:
      advisor watch
      advisor watch --cluster prod --every 5
      advisor watch --once --format json
    """
    whose = given("--cluster", cluster)
    with connected(socket, configuration) as client:
        seen = look(client, whose)
        if form is not Format.TABLE:
            if not once:
                raise CommandError("--format json and jsonl go with --once", code=2)
            print_json(_document(seen), form)
            return
        console = Console(highlight=False, width=terminal_columns())
        if once or not console.is_terminal:
            console.print(drawn(seen, console.width, None))
            return
        _live(console, client, whose, seen, seconds)


def _live(console: Console, client: Client, cluster: str, seen: Look, seconds: float) -> None:
    with Live(console=console, screen=True, auto_refresh=False, transient=True) as live:
        try:
            while True:
                live.update(drawn(seen, console.width, console.height), refresh=True)
                seen = _again(client, cluster, seen, console, live, seconds)
        except KeyboardInterrupt:
            return


def _again(client: Client, cluster: str, seen: Look, console: Console, live: Live, seconds: float) -> Look:
    """The next look. Until then the window is drawn anew whenever its size changes."""
    size, until = console.size, time.monotonic() + seconds
    while time.monotonic() < until:
        time.sleep(0.1)
        if console.size != size:
            size = console.size
            live.update(drawn(seen, console.width, console.height), refresh=True)
    try:
        return look(client, cluster)
    except ClientError as error:
        return Look(
            at=seen.at,
            status=seen.status,
            incidents=seen.incidents,
            decisions=seen.decisions,
            pauses=seen.pauses,
            problem=str(error),
        )


def look(client: Client, cluster: str) -> Look:
    chosen = audit_pb2.Filter(cluster=cluster)
    return Look(
        at=SystemClock().now(),
        status=client.status(),
        incidents=tuple(client.incidents(chosen, most=INCIDENTS_MAX, open_only=True)),
        decisions=tuple(client.decisions(chosen, most=DECISIONS_MAX)),
        pauses=tuple(item for item in client.pauses() if cluster in {"", item.cluster} or not item.cluster),
    )


def drawn(seen: Look, width: int, height: int | None) -> RenderableType:
    """As much as fits: half of the room for incidents, the rest for decisions. `height` None: all of it."""
    first, *others = status_lines(seen.status, seen.at)
    when = f"{seen.at:%Y-%m-%d %H:%M:%S} UTC"
    top = (f"{when}  {first}",) if cell_len(when) + 2 + cell_len(first) <= width else (when, first)
    head = [Text(one_line(line)) for line in (*top, *others)]
    head += [
        Text(one_line(f"paused{f' on {item.cluster}' if item.cluster else ''} by {item.set_by}: {item.why}"), "yellow")
        for item in seen.pauses
    ]
    if seen.problem:
        head.append(Text(one_line(f"not up to date: {seen.problem}"), "red"))
    for line in head:
        line.truncate(width, overflow="ellipsis")
    room = None if height is None else max(height - len(head) - 6, 4)
    incidents = _incidents(seen.incidents, seen.at, width)
    decisions = _decisions(seen.decisions, seen.at, width)
    if room is not None:
        incidents = _cut(incidents, max(room // 2, room - len(decisions)))
        decisions = _cut(decisions, room - len(incidents))
    return Group(
        *head,
        Text(""),
        Text("open incidents" if incidents else "no open incidents", "bold"),
        _grid(incidents, width),
        Text("newest decisions" if decisions else "no decisions", "bold"),
        _grid(decisions, width),
    )


def _incidents(found: Sequence[audit_pb2.Incident], now: datetime, width: int) -> list[tuple[str, ...]]:
    return [
        (
            _ago(item.opened_at.ToDatetime(UTC), now),
            named(item.attempt),
            item.attempt.user,
            f"{item.kind} {item.category}" if width >= NARROW else item.category,
            f"{','.join(item.implicated_nodes)} {item.root_cause}".strip(),
        )
        for item in found
    ]


def _decisions(found: Sequence[audit_pb2.Decision], now: datetime, width: int) -> list[tuple[str, ...]]:
    return [
        (
            _ago(item.advice.created_at.ToDatetime(UTC), now),
            named(item.advice.attempt),
            item.advice.attempt.user,
            what(item.advice),
            f"{item.advice.reason}; {outcome(item)}" if width >= NARROW else item.advice.reason,
        )
        for item in found
    ]


def _cut(rows: list[tuple[str, ...]], room: int) -> list[tuple[str, ...]]:
    if len(rows) <= room:
        return rows
    return [*rows[: max(room - 1, 0)], ("", f"… {len(rows) - max(room - 1, 0)} more", "", "", "")]


def _grid(rows: Sequence[tuple[str, ...]], width: int) -> Table:
    """One line each. When and which job are never cut where there is any room; the last column takes what is left."""
    table = Table.grid(padding=(0, 2, 0, 0))
    kept = 0
    for at in range(5):
        widest = max((cell_len(one_line(row[at])) for row in rows), default=0)
        most = max(width // (3 if at == 3 else 4), 8)
        if at == 4:
            table.add_column(no_wrap=True, overflow="ellipsis", width=max(min(widest, width - kept), 1))
            continue
        shown = min(widest, most)
        kept += shown + 2
        table.add_column(no_wrap=True, overflow="ellipsis", width=shown)
    for row in rows:
        table.add_row(*(Text(one_line(cell)) for cell in row))
    return table


def _ago(moment: datetime, now: datetime) -> str:
    return seconds_text(max((now - moment).total_seconds(), 0.0))


def _document(seen: Look) -> dict[str, object]:
    from google.protobuf.json_format import MessageToDict

    return {
        "at": seen.at.isoformat(),
        "status": whole_document(seen.status),
        "incidents": [MessageToDict(item, preserving_proto_field_name=True) for item in seen.incidents],
        "decisions": [as_document(item) for item in seen.decisions],
        "pauses": [MessageToDict(item, preserving_proto_field_name=True) for item in seen.pauses],
    }
