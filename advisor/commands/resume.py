"""`advisor resume`: the end of a pause before its time."""

from typing import Annotated

import typer
from google.protobuf.json_format import MessageToDict

from advisor.commands.decisions import connected
from advisor.commands.options import ConfigOption, FormatOption, SocketOption, given
from advisor.commands.output import CommandError, Format, one_line, print_json
from advisor.v1 import operator_pb2

app = typer.Typer(rich_markup_mode=None)


@app.command()
def resume(
    reason: Annotated[str, typer.Option("--why", "--reason", help="Why, kept in the audit. Required.")] = "",
    cluster: Annotated[str | None, typer.Option(help="The cluster that was named when pausing.")] = None,
    socket: SocketOption = None,
    configuration: ConfigOption = None,
    form: FormatOption = Format.TABLE,
) -> None:
    """End a pause: with the next tick advice is acted on again.

    \b
    Examples:
      advisor resume --why "maintenance is over"
    """
    if not reason.strip():
        raise CommandError("say why: --why TEXT is kept", code=2)
    request = operator_pb2.ResumeRequest(cluster=given("--cluster", cluster) or None, why=reason)
    with connected(socket, configuration) as client:
        ended = client.resume(request)
    if form is not Format.TABLE:
        print_json(MessageToDict(ended, preserving_proto_field_name=True), form)
        return
    print(one_line(f"resumed: {ended.cluster or 'all clusters'}"))
