"""`advisor pause` and `advisor resume`: for maintenance, say. No advice is acted on, and none is lost."""

import re
from datetime import UTC, datetime, timedelta
from typing import Annotated

import typer
from google.protobuf.json_format import MessageToDict

from advisor.clock import SystemClock
from advisor.commands.decisions import connected
from advisor.commands.options import ConfigOption, FormatOption, SocketOption, given
from advisor.commands.output import CommandError, Format, complain, one_line, print_json, short_time
from advisor.v1 import operator_pb2

app = typer.Typer(rich_markup_mode=None)
_SPAN = re.compile(r"(\d{1,5})([mhd])", re.ASCII)
_UNITS = {"m": "minutes", "h": "hours", "d": "days"}


@app.command()
def pause(
    until: Annotated[str, typer.Option(help="2h, 30m, 1d, or a time: 2026-05-01T06:00 (yours), …Z, …+02:00.")],
    reason: Annotated[str, typer.Option("--why", "--reason", help="Why, kept in the audit. Required.")] = "",
    cluster: Annotated[str | None, typer.Option(help="Only this cluster.")] = None,
    socket: SocketOption = None,
    configuration: ConfigOption = None,
    form: FormatOption = Format.TABLE,
) -> None:
    """Act on nothing until then. What is decided meanwhile waits, and is acted on afterwards if it still can be.

    A job that ended during the pause can be restarted only while Slurm remembers it (MinJobAge).

    \b
    Examples:
      advisor pause --until 4h --why "firmware update of rack 7"
      advisor pause --until 2026-05-01T06:00 --cluster prod --why maintenance
      advisor resume --why done
    """
    if not reason.strip():
        raise CommandError("say why: --why TEXT is kept", code=2)
    request = operator_pb2.PauseRequest(cluster=given("--cluster", cluster) or None, why=reason)
    request.until.FromDatetime(when(until, SystemClock().now()))
    with connected(socket, configuration) as client:
        made = client.pause(request)
    for note in made.notes:
        complain(note)
    if form is not Format.TABLE:
        print_json(MessageToDict(made, preserving_proto_field_name=True), form)
        return
    print(one_line(f"paused until {short_time(made.until.ToDatetime(UTC))}: {made.cluster or 'all clusters'}"))


def when(text: str, now: datetime, option: str = "--until") -> datetime:
    """A moment from now on, or as given; without a zone it is in this host's."""
    span = _SPAN.fullmatch(text.strip())
    if span:
        return now + timedelta(**{_UNITS[span.group(2)]: int(span.group(1))})
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        raise CommandError(f"{option} {text}: give 30m, 2h, 1d or a time such as 2026-05-01T06:00", code=2) from None
    return moment.astimezone(UTC)
