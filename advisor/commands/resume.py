"""`advisor resume`: the end of a pause before its time."""

from typing import Annotated

import typer

from advisor.commands.decisions import connected
from advisor.commands.options import ConfigOption, SocketOption, given
from advisor.commands.output import CommandError, one_line
from advisor.v1 import operator_pb2

app = typer.Typer(rich_markup_mode=None)


@app.command()
def resume(
    reason: Annotated[str, typer.Option("--reason", "--why", help="Why, kept in the audit. Required.")] = "",
    cluster: Annotated[str | None, typer.Option(help="The cluster that was named when pausing.")] = None,
    socket: SocketOption = None,
    configuration: ConfigOption = None,
) -> None:
    """End a pause: with the next tick advice is acted on again.

    \b
    Examples:
      advisor resume --reason "maintenance is over"
    """
    if not reason.strip():
        raise CommandError("say why: --reason TEXT is kept", code=2)
    request = operator_pb2.ResumeRequest(cluster=given("--cluster", cluster) or None, why=reason)
    with connected(socket, configuration) as client:
        ended = client.resume(request)
    print(one_line(f"resumed: {ended.cluster or 'all clusters'}"))
