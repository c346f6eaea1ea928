"""`advisor status`: whether the service ticks, who its agents are, and what its sources say, on a few lines."""

from collections.abc import Sequence
from datetime import UTC, datetime

import typer

from advisor.client import mode_name
from advisor.client.errors import ClientError
from advisor.clock import SystemClock
from advisor.commands.decisions import connected
from advisor.commands.mode import NOT_TOLD, acts_by_default
from advisor.commands.options import ConfigOption, FormatOption, SocketOption
from advisor.commands.output import Format, one_line, print_json, short_time, whole_document
from advisor.core.amounts import many
from advisor.plain_text import seconds_text
from advisor.v1 import common_pb2, operator_pb2
from advisor.wording import own_tick_age, settled, stop_file_text

app = typer.Typer()

REPLICA_SILENT_SECONDS = 5.0  # it renews, with the age of its tick, every few


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
        try:
            held = held_lines(client.pauses(), client.modes())
        except ClientError:  # who may see only his own jobs may not see these
            held = []
    if form is not Format.TABLE:
        print_json(whole_document(found), form)
        return
    for line in (*status_lines(found, SystemClock().now()), *held):
        print(one_line(line))


def held_lines(pauses: Sequence[operator_pb2.PauseInForce], modes: operator_pb2.ListModesResponse) -> list[str]:
    """What is acted on, and what holds it up."""
    lines = [f"mode: {_acting(modes)}"]
    for item in pauses:
        where = item.cluster or "everywhere"
        lines.append(f"paused {where} until {item.until.ToDatetime(UTC):%Y-%m-%d %H:%M:%S} UTC: {item.why}")
    return lines


def _acting(modes: operator_pb2.ListModesResponse) -> str:
    settings, default = [*modes.settings, *modes.earned], mode_name(modes.default_mode)
    if not settings:
        return f"{default} everywhere (default_mode)" if default else f"default_mode everywhere; {NOT_TOLD}"
    acting = sum(setting.mode == common_pb2.MODE_AUTONOMOUS for setting in settings)
    parts = [f"{many(acting, 'setting')} autonomous"] if acting else []
    parts += ["everything else autonomous by default_mode"] if acts_by_default(modes) else []
    told = f"{', '.join(parts) or 'no setting is autonomous'} (advisor mode get)"
    return told if default or settled(modes) else f"{told}; everything else by default_mode; {NOT_TOLD}"


def status_lines(found: operator_pb2.Status, now: datetime) -> list[str]:
    age = seconds_text(own_tick_age(found).total_seconds())
    # One replica knows what it watches and ticks itself; incidents and agents are the database's.
    by, of = (" by this replica", " of this replica") if len(found.replicas) > 1 else ("", "")
    lines = [
        f"advisor {found.version}: {many(found.watched_jobs, 'attempt')} watched{by}, "
        f"{many(found.open_incidents, 'open incident')}, last tick{of} {age} ago"
    ]
    if waits := waiting_text(found):
        lines.append(waits)
    if found.unwatched_jobs:
        lines.append(f"{many(found.unwatched_jobs, 'attempt')} not watched: no room (tick.attempts_max)")
    if len(found.replicas) > 1:
        lines += [replica_line(item) for item in found.replicas]
    for agent in found.agents:
        heard = seconds_text(max((now - agent.last_seen_at.ToDatetime(UTC)).total_seconds(), 0.0))
        missing = f", lacks: {'; '.join(agent.missing_rights)}" if agent.missing_rights else ""
        lines.append(f"agent of {agent.cluster} on {agent.host}: {agent.mode}, heard {heard} ago{missing}")
        if stopped := stop_file_text(agent):
            lines.append(stopped)
    lines += [f"source {source.name} ({source.kind}): {_source_state(source)}" for source in found.sources]
    return lines


def _source_state(source: operator_pb2.SourceStatus) -> str:
    """Well is only what was asked: a source of logs or measurements is asked while an attempt is watched."""
    if not source.available:
        return f"{source.reason}: {source.detail}"
    part = f", but {source.reason}: {source.detail}" if source.reason else ""
    if source.HasField("newest_at"):
        return f"ok, last answered {short_time(source.newest_at.ToDatetime(UTC))}{part}"
    asked = source.kind.endswith("trusted") and not part
    return "not asked yet: no job is watched that it could tell of" if asked else f"ok{part}"


def waiting_text(found: operator_pb2.Status) -> str:
    """That a job has waited for long for a tick of another replica, or for one that takes it; or ""."""
    age = found.tick_age.ToTimedelta()
    if (age - own_tick_age(found)).total_seconds() <= REPLICA_SILENT_SECONDS:
        return ""
    return f"a job has waited for a tick for {seconds_text(age.total_seconds())}"


def replica_name(item: operator_pb2.ReplicaStatus) -> str:
    """Two on one host differ by where they answer."""
    return f"{item.host} pid {item.pid}{f' at {item.address}' if item.address else ''}"


def replica_line(item: operator_pb2.ReplicaStatus) -> str:
    """Of several; a single one is what all other lines are about."""
    age = seconds_text(item.tick_age.ToTimedelta().total_seconds())
    if item.HasField("lost_since"):
        since = item.lost_since.ToDatetime(UTC)
        return f"replica {replica_name(item)}: not heard since {since:%Y-%m-%d %H:%M:%S} UTC, others have its jobs"
    silent = item.tick_age.ToTimedelta().total_seconds() > REPLICA_SILENT_SECONDS
    state = (", stuck" if item.answering else f", silent for {age}") if silent else ""
    state = state if item.alive else ", dead: others take its jobs"
    this = " (answers this)" if item.answering else ""
    return (
        f"replica {replica_name(item)}{this}: {many(item.jobs, 'job')}, last tick {age} ago, "
        f"version {item.version}, schema {item.schema}{state}"
    )
