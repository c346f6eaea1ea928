"""`advisor status`: whether the service ticks, who its agents are, and what its sources say, on a few lines."""

from datetime import UTC, datetime

import typer
from google.protobuf.json_format import MessageToDict

from advisor.clock import SystemClock
from advisor.commands.decisions import connected
from advisor.commands.options import ConfigOption, FormatOption, SocketOption
from advisor.commands.output import Format, one_line, print_json
from advisor.plain_text import seconds_text
from advisor.v1 import operator_pb2

app = typer.Typer()


@app.command()
def status(socket: SocketOption = None, configuration: ConfigOption = None, form: FormatOption = Format.TABLE) -> None:
    """Whether the service ticks, what it watches, who its agents are, and which sources answer.

    What is wrong, and what to do about it: advisor doctor.

    \b
    Examples:
      advisor status
      advisor status --format json
    """
    with connected(socket, configuration) as client:
        found = client.status()
    if form is not Format.TABLE:
        print_json(MessageToDict(found, preserving_proto_field_name=True), form)
        return
    for line in status_lines(found, SystemClock().now()):
        print(one_line(line))


def status_lines(found: operator_pb2.Status, now: datetime) -> list[str]:
    age = seconds_text(found.tick_age.ToTimedelta().total_seconds())
    lines = [
        f"advisor {found.version}: {_many(found.watched_jobs, 'attempt')} watched, "
        f"{_many(found.open_incidents, 'open incident')}, last tick {age} ago"
    ]
    for agent in found.agents:
        heard = seconds_text(max((now - agent.last_seen_at.ToDatetime(UTC)).total_seconds(), 0.0))
        missing = f", lacks: {'; '.join(agent.missing_rights)}" if agent.missing_rights else ""
        lines.append(f"agent of {agent.cluster} on {agent.host}: {agent.mode}, heard {heard} ago{missing}")
    for source in found.sources:
        state = "ok" if source.available else f"{source.reason}: {source.detail}"
        lines.append(f"source {source.name} ({source.kind}): {state}")
    return lines


def _many(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"
