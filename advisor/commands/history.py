"""`advisor incidents`, `attempts`, `actions`, `timeline`: what the audit API knows, as lists for a terminal."""

from collections.abc import Iterator, Sequence
from datetime import UTC
from typing import Annotated, Any

import typer
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message

from advisor.client import action_name, milestone_name, reason_name, status_name
from advisor.commands.decisions import ago, connected
from advisor.commands.events import print_events
from advisor.commands.job_ids import attempt_of, choose_job, named
from advisor.commands.listing import short_ids
from advisor.commands.options import ConfigOption, FormatOption, SocketOption, given, given_category
from advisor.commands.output import Format, one_line, print_json, print_table, short_time
from advisor.plain_text import seconds_text
from advisor.v1 import audit_pb2, common_pb2

incidents_app = typer.Typer(rich_markup_mode=None, help="What went wrong, one incident per attempt.")
attempts_app = typer.Typer(rich_markup_mode=None, help="Executions of jobs, as the scheduler showed them.")
actions_app = typer.Typer(rich_markup_mode=None, help="What agents did about advice, and why not.")
timeline_app = typer.Typer()

JobOption = Annotated[str | None, typer.Option(help="Only this job: 123, 123_4, 123+1.")]
UserOption = Annotated[str | None, typer.Option(help="Only jobs of this user.")]
ClusterOption = Annotated[str | None, typer.Option(help="Only this cluster.")]
PartitionOption = Annotated[str | None, typer.Option(help="Only this partition.")]
CategoryOption = Annotated[str | None, typer.Option(help="Only this category, e.g. gpu_hardware.")]
NodeOption = Annotated[str | None, typer.Option(help="Only what this node is named in.")]
SinceOption = Annotated[str, typer.Option(help="Not older than: 30m, 6h, 2d.")]
LimitOption = Annotated[int, typer.Option(min=1, max=10_000, help="How many at most.")]
JobArgument = Annotated[str, typer.Argument(metavar="JOB", help="As Slurm prints it: 123, 123_4, 123+1.")]


def _chosen(
    *,
    job: str | None = None,
    user: str | None = None,
    cluster: str | None = None,
    partition: str | None = None,
    category: str | None = None,
    node: str | None = None,
    since: str = "",
) -> audit_pb2.Filter:
    chosen = audit_pb2.Filter(
        user=given("--user", user),
        cluster=given("--cluster", cluster),
        partition=given("--partition", partition),
        category=given_category(category),
        node=given("--node", node),
    )
    choose_job(chosen, given("--job", job))
    if since:
        chosen.since.CopyFrom(ago(since))
    return chosen


def documents(items: Sequence[Message]) -> list[dict[str, Any]]:
    return [MessageToDict(item, preserving_proto_field_name=True) for item in items]


@incidents_app.command("list")
def list_incidents(
    job: JobOption = None,
    user: UserOption = None,
    cluster: ClusterOption = None,
    partition: PartitionOption = None,
    node: NodeOption = None,
    category: CategoryOption = None,
    since: SinceOption = "",
    open_only: Annotated[bool, typer.Option("--open", help="Only those that have not ended.")] = False,
    limit: LimitOption = 50,
    socket: SocketOption = None,
    configuration: ConfigOption = None,
    form: FormatOption = Format.TABLE,
) -> None:
    """What went wrong, newest first: id, when, job#attempt, kind and category, the nodes to blame, the root cause.

    \b
    Examples:
      advisor incidents list --open
      advisor incidents list --since 7d --category gpu_hardware --format jsonl
    """
    chosen = _chosen(
        job=job, user=user, cluster=cluster, partition=partition, node=node, category=category, since=since
    )
    with connected(socket, configuration) as client:
        found = list(client.incidents(chosen, most=limit, open_only=open_only))
    if form is not Format.TABLE:
        print_json(documents(found), form)
        return
    short = short_ids([item.incident_id for item in found])
    rows = (
        (
            short[item.incident_id],
            short_time(item.opened_at.ToDatetime(UTC)),
            named(item.attempt),
            item.attempt.user,
            f"{item.kind}, {item.category}{'' if item.HasField('closed_at') else ', open'}",
            ",".join(item.implicated_nodes),
            item.root_cause,
        )
        for item in found
    )
    columns = ("id", "opened", "job", "user", "what", "nodes", "root cause")
    print_table(columns, rows, empty="no incidents", least=("user", "opened"))


@incidents_app.command("show")
def show_incident(
    incident_id: Annotated[
        str, typer.Argument(metavar="INCIDENT_ID", help="As `incidents list` prints it, or the beginning.")
    ],
    socket: SocketOption = None,
    configuration: ConfigOption = None,
    form: FormatOption = Format.TABLE,
) -> None:
    """One incident with all its evidence.

    \b
    Examples:
      advisor incidents list --job 4711
      advisor incidents show 5a1f0e52
    """
    with connected(socket, configuration) as client:
        item = client.call(client.audit.GetIncident, audit_pb2.GetIncidentRequest(incident_id=incident_id))
    if form is not Format.TABLE:
        print_json(MessageToDict(item, preserving_proto_field_name=True), form)
        return
    print(one_line(f"{item.kind} of {named(item.attempt)}, user {item.attempt.user}: {item.category}"))
    print(one_line(f"  {item.root_cause}"))
    for evidence in item.evidence:
        at = short_time(evidence.at.ToDatetime(UTC)) if evidence.HasField("at") else "(no time)"
        place = f"{evidence.file}:{evidence.line}" if evidence.file else evidence.source
        print(one_line(f"{at}  {evidence.role}  {evidence.trust}  {evidence.node}  {place}"))
        if evidence.text:
            print(one_line(f"    {evidence.text}"))


@attempts_app.command("list")
def list_attempts(
    job: JobOption = None,
    user: UserOption = None,
    cluster: ClusterOption = None,
    partition: PartitionOption = None,
    node: NodeOption = None,
    since: SinceOption = "",
    limit: LimitOption = 50,
    socket: SocketOption = None,
    configuration: ConfigOption = None,
    form: FormatOption = Format.TABLE,
) -> None:
    """Executions of jobs, newest first: job#attempt, state, when and how far it came.

    \b
    Examples:
      advisor attempts list --job 4711
      advisor attempts list --node gpu017 --since 7d
    """
    chosen = _chosen(job=job, user=user, cluster=cluster, partition=partition, node=node, since=since)
    with connected(socket, configuration) as client:
        found = list(client.attempts(chosen, most=limit))
    if form is not Format.TABLE:
        print_json(documents(found), form)
        return
    rows = (
        (
            named(item.attempt),
            item.attempt.user,
            _state(item),
            short_time(item.started_at.ToDatetime(UTC)) if item.HasField("started_at") else "",
            _lasted(item),
            f"{item.last_step}" if item.HasField("last_step") else "",
            f"{len(item.nodes)}",
        )
        for item in found
    )
    columns = ("job", "user", "state", "started", "lasted", "step", "nodes")
    print_table(columns, rows, empty="no attempts", least=("step",))


@attempts_app.command("show")
def show_attempt(
    job: JobArgument,
    attempt: Annotated[int | None, typer.Option(min=0, help="Default: the newest.", show_default=False)] = None,
    cluster: ClusterOption = None,
    socket: SocketOption = None,
    configuration: ConfigOption = None,
    form: FormatOption = Format.TABLE,
) -> None:
    """One execution of a job: where it ran, how far it came, and the moments of its recovery.

    \b
    Examples:
      advisor attempts show 4711
      advisor attempts show 4711_3 --attempt 0
    """
    with connected(socket, configuration) as client:
        item = attempt_of(client, job, given("--cluster", cluster), attempt)
    if form is not Format.TABLE:
        print_json(MessageToDict(item, preserving_proto_field_name=True), form)
        return
    for line in attempt_lines(item):
        print(one_line(line))


@actions_app.command("list")
def list_actions(
    job: JobOption = None,
    user: UserOption = None,
    cluster: ClusterOption = None,
    since: SinceOption = "",
    limit: LimitOption = 50,
    socket: SocketOption = None,
    configuration: ConfigOption = None,
    form: FormatOption = Format.TABLE,
) -> None:
    """What agents did about advice, newest first: when, job#attempt, what was advised, what came of it.

    \b
    Examples:
      advisor actions list --since 1d
      advisor actions list --job 4711 --format jsonl
    """
    chosen = _chosen(job=job, user=user, cluster=cluster, since=since)
    with connected(socket, configuration) as client:
        found = list(client.actions(chosen, most=limit))
    if form is not Format.TABLE:
        print_json(documents(found), form)
        return
    rows = (
        (
            short_time(item.outcome.at.ToDatetime(UTC)),
            named(item.attempt),
            f"{action_name(item.action)} ({item.decision_reason})",
            f"{status_name(item.outcome.status)}: {reason_name(item.outcome.reason)}",
            item.outcome.detail,
        )
        for item in found
    )
    print_table(("when", "job", "advised", "came of it", "detail"), rows, empty="no actions")


@actions_app.callback()
def _actions() -> None:
    """What agents did about advice, and why not."""


@timeline_app.command()
def timeline(
    job: JobArgument,
    attempts: Annotated[int, typer.Option(min=1, max=100, help="How many of the newest attempts.")] = 20,
    cluster: ClusterOption = None,
    socket: SocketOption = None,
    configuration: ConfigOption = None,
    form: FormatOption = Format.TABLE,
) -> None:
    """Everything that happened to a job across its attempts, oldest first.

    \b
    Examples:
      advisor timeline 4711
      advisor timeline 4711_3 --attempts 2
    """
    with connected(socket, configuration) as client:
        ref = attempt_of(client, job, given("--cluster", cluster)).attempt
        request = audit_pb2.GetJobTimelineRequest(job_key=ref.job_key, attempts_max=attempts)
        answer = client.call(client.audit.GetJobTimeline, request)
    if form is not Format.TABLE:
        print_json(MessageToDict(answer, preserving_proto_field_name=True), form)
        return
    if answer.truncated:
        print("(what is older is left out: --attempts)")
    print_events(answer.events)


def state_name(state: int) -> str:
    name = next((name for name, number in common_pb2.AttemptState.items() if number == state), f"state {state}")
    return name.removeprefix("ATTEMPT_STATE_").lower()


def _state(item: audit_pb2.Attempt) -> str:
    """What it was last seen in means nothing where the scheduler has forgotten it."""
    return "requeue forgotten" if item.requeue_forgotten else state_name(item.state)


def _lasted(item: audit_pb2.Attempt) -> str:
    if not (item.HasField("started_at") and item.HasField("ended_at")):
        return ""
    return seconds_text(max((item.ended_at.ToDatetime(UTC) - item.started_at.ToDatetime(UTC)).total_seconds(), 0.0))


def attempt_lines(item: audit_pb2.Attempt) -> Iterator[str]:
    ref = item.attempt
    yield f"attempt {ref.attempt} of job {ref.job_id}, user {ref.user}, {item.partition or ref.cluster}"
    yield f"state    {_state(item)}{'' if item.in_scope else ' (not in scope: never acted on)'}"
    for word, name in (("started", "started_at"), ("ended", "ended_at")):
        if item.HasField(name):  # type: ignore[arg-type]  # two literals
            yield f"{word:8} {short_time(getattr(item, name).ToDatetime(UTC))}"
    yield f"nodes    {', '.join(item.nodes[:16])}{' …' if len(item.nodes) > 16 else ''}"
    if item.HasField("last_step"):
        first = f"{item.first_step} to " if item.HasField("first_step") else ""
        saved = f", checkpoint of step {item.checkpoint_step}" if item.HasField("checkpoint_step") else ""
        yield f"steps    {first}{item.last_step}{saved}"
    if item.in_job_restarts:
        yield f"restarts of its ranks by itself: {item.in_job_restarts}"
    for milestone in item.milestones:
        at = short_time(milestone.at.ToDatetime(UTC))
        yield f"{at}  {milestone_name(milestone.kind).replace('_', ' ')}  {milestone.detail}".rstrip()
