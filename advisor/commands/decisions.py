"""`advisor decisions`: who decided what, why, from which evidence, and what came of it."""

import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any

import typer
from google.protobuf.json_format import MessageToDict
from google.protobuf.timestamp_pb2 import Timestamp

from advisor.client import Client, ClientError, action_name, milestone_name, mode_name, reason_name, status_name
from advisor.commands.job_ids import choose_job
from advisor.commands.listing import listed
from advisor.commands.options import ConfigOption, FormatOption, SocketOption, given, given_category, open_client
from advisor.commands.output import CommandError, Format, harmless, one_line, print_json
from advisor.commands.tables import terminal_columns
from advisor.core.amounts import many
from advisor.plain_text import seconds_text
from advisor.v1 import audit_pb2, common_pb2
from advisor.wording import OUTCOMES, TO_DO_ABOUT, to_do, who

app = typer.Typer(rich_markup_mode=None, help="Who decided what, why, and what came of it.")

EVIDENCE_SHOWN = 8
ACTIONS = ("restart", "stop", "none")
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}

DecisionArgument = Annotated[
    str, typer.Argument(metavar="DECISION_ID", help="As `decisions list` prints it, or the beginning.")
]


@app.command("list")
def list_decisions(
    job: Annotated[str | None, typer.Option(help="Only this job id.")] = None,
    user: Annotated[str | None, typer.Option(help="Only jobs of this user.")] = None,
    cluster: Annotated[str | None, typer.Option(help="Only this cluster.")] = None,
    partition: Annotated[str | None, typer.Option(help="Only this partition.")] = None,
    node: Annotated[str | None, typer.Option(help="Only decisions that exclude this node.")] = None,
    category: Annotated[str | None, typer.Option(help="Only this category, e.g. gpu_hardware.")] = None,
    action: Annotated[str, typer.Option(help="Only restart, stop or none.")] = "",
    since: Annotated[str, typer.Option(help="Not older than: 30m, 6h, 2d.")] = "",
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="How many at most.")] = 50,
    socket: SocketOption = None,
    configuration: ConfigOption = None,
    form: FormatOption = Format.TABLE,
) -> None:
    """List decisions, newest first: id, moment, job#attempt, action; user, category, reason, and what came of it.

    \b
    Examples:
      advisor decisions list --since 1d --action restart
      advisor decisions list --job 4711 --format json
    """
    if action and action not in ACTIONS:
        raise CommandError(f"--action {action}: choose one of {', '.join(ACTIONS)}", code=2)
    chosen = audit_pb2.Filter(
        user=given("--user", user),
        cluster=given("--cluster", cluster),
        partition=given("--partition", partition),
        node=given("--node", node),
        category=given_category(category),
    )
    choose_job(chosen, given("--job", job))
    if action:
        chosen.action = common_pb2.Action.Value(f"ACTION_{action.upper()}")
    if since:
        chosen.since.CopyFrom(ago(since))
    with connected(socket, configuration) as client:
        found = list(client.decisions(chosen, most=limit))
    if form is not Format.TABLE:
        print_json([as_document(decision) for decision in found], form)
        return
    if not found:
        print("no decisions")
    for line in listed(found, terminal_columns()):
        print(line)


@app.command()
def show(
    decision_id: DecisionArgument,
    socket: SocketOption = None,
    configuration: ConfigOption = None,
    form: FormatOption = Format.TABLE,
) -> None:
    """One decision: what happened, who, what to do, why, the evidence, what the agent did, and how long it took.

    \b
    Examples:
      advisor decisions show 01890c7e-…
    """
    with connected(socket, configuration) as client:
        decision = client.decision(decision_id)
    if form is not Format.TABLE:
        print_json(as_document(decision), form)
        return
    for line in verdict(decision):
        print(harmless(line))


class connected:  # noqa: N801 -- reads as a verb: with connected(...) as client
    """A client whose errors end the command in one line."""

    def __init__(self, socket: Path | None, configuration: Path | None) -> None:
        self._socket = socket
        self._configuration = configuration
        self._client: Client | None = None

    def __enter__(self) -> Client:
        try:
            self._client = open_client(self._socket, self._configuration)
        except ClientError as error:
            raise CommandError(str(error)) from None
        return self._client

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if self._client is not None:
            self._client.__exit__(None, None, None)
        if isinstance(error, ClientError):
            raise CommandError(str(error)) from None


def as_document(decision: audit_pb2.Decision) -> dict[str, Any]:
    """The message as JSON, its analysis unpacked."""
    document: dict[str, Any] = MessageToDict(decision, preserving_proto_field_name=True)
    document["analysis"] = json.loads(decision.analysis_json) if decision.analysis_json else None
    document.pop("analysis_json", None)
    return document


def verdict(decision: audit_pb2.Decision) -> Iterator[str]:
    """What a tired operator needs, most important first."""
    advice, ref = decision.advice, decision.advice.attempt
    analysis = json.loads(decision.analysis_json) if decision.analysis_json else {}
    attribution = analysis.get("attribution", {})
    nodes = ", ".join(advice.exclude_nodes)
    action = action_name(advice.action).upper() or "NONE"
    yield f"{action}  job {ref.job_id}, attempt {ref.attempt}, user {ref.user}, {decision.partition or ref.cluster}" + (
        f"  excluding {nodes}" if nodes else ""
    )
    yield f"decided  {advice.created_at.ToDatetime(UTC):%Y-%m-%d %H:%M:%S} UTC, as all times below"
    yield ""
    yield f"what     {one_line(str(attribution.get('root_cause') or 'nothing failed'))}"
    yield f"who      {one_line(who(attribution))}"
    yield f"to do    {one_line(to_do(decision))}"
    yield f"why      {one_line(advice.explanation or advice.reason)}  [{advice.reason}]"
    alternatives = attribution.get("alternatives") or []
    if alternatives:
        other = alternatives[0]
        lost = f": {other['why_not']}" if other.get("why_not") else ""
        yield f"not      {one_line(str(other.get('root_cause', '')))}{one_line(lost)}"
    yield from _evidence(advice)
    yield from _sources(attribution.get("sources") or {})
    yield from _agent(decision)
    yield from _milestones(decision)
    yield ""
    mode = mode_name(advice.mode)
    yield f"{advice.advice_id}  generation {advice.generation}, {mode} mode, build {decision.build}"


def _evidence(advice: common_pb2.Advice) -> Iterator[str]:
    if not advice.evidence:
        return
    yield ""
    yield "evidence"
    for item in advice.evidence[:EVIDENCE_SHOWN]:
        when = _moment(item.at, advice) if item.HasField("at") else "--:--:--"
        at = f"{item.file}:{item.line}" if item.file else item.source
        who = " ".join(part for part in (item.node, f"rank {item.rank}" if item.HasField("rank") else "") if part)
        times = f"  ×{item.count}" if item.count > 1 else ""
        yield f"  {when}  {item.role:<10} {item.trust:<9} {one_line(who)}  {one_line(at)}{times}"
        if item.text:
            yield f"            {one_line(item.text)[:200]}"
    more = len(advice.evidence) - EVIDENCE_SHOWN
    if more > 0:
        yield f"  and {more} more: --format json"


def _moment(stamp: Timestamp, advice: common_pb2.Advice) -> str:
    """The time of day, with the date where it is not the decision's."""
    moment, decided = stamp.ToDatetime(UTC), advice.created_at.ToDatetime(UTC)
    return f"{moment:%H:%M:%S}" if moment.date() == decided.date() else f"{moment:%Y-%m-%d %H:%M:%S}"


def _sources(sources: dict[str, Any]) -> Iterator[str]:
    """Where evidence could have come from. What could not be read is told with what to do about it."""
    if not sources:
        return
    yield ""
    for at, (name, source) in enumerate(sources.items()):
        label = "sources  " if at == 0 else "         "
        if source.get("available", True):
            partly = "".join(
                f", {text}"
                for text in (
                    f"{many(source['foreign'], 'line')} of other nodes not counted" if source.get("foreign") else "",
                    "more was there than is read" if source.get("capped") else "",
                )
                if text
            )
            yield f"{label}{one_line(name)}: {many(source.get('lines', 0), 'line')}{partly}"
            continue
        reason = str(source.get("reason") or "unavailable")
        yield f"{label}{one_line(name)}: not available ({one_line(reason)})"
        advice = source.get("detail") or TO_DO_ABOUT.get(reason, "")
        if advice:
            yield f"           {one_line(str(advice))}"


def _outcome(item: audit_pb2.Reconciliation) -> str:
    status, reason = status_name(item.status), reason_name(item.reason)
    if status == "verified":
        status = "applied"
    told = OUTCOMES.get(reason, reason.replace("_", " "))
    return f"{status}; {told}" if told else status


def _agent(decision: audit_pb2.Decision) -> Iterator[str]:
    yield ""
    if not decision.reconciliations:
        yield "agent    has not answered yet"
        return
    said: tuple[str, ...] = ()
    for at, item in enumerate(decision.reconciliations):
        words = _outcome(item)
        if said == (said := (words, item.detail, *item.dropped_nodes)):
            continue  # what is applied is verified later: in our words that is the same
        detail = f"  {one_line(item.detail)}" if item.detail else ""
        dropped = f"  dropped {', '.join(item.dropped_nodes)}" if item.dropped_nodes else ""
        label = "agent    " if at == 0 else "         "
        yield f"{label}{_moment(item.at, decision.advice)}  {words}{detail}{one_line(dropped)}"


def _milestones(decision: audit_pb2.Decision) -> Iterator[str]:
    reached = sorted(decision.milestones, key=lambda item: (item.at.ToNanoseconds(), item.kind))
    if not reached:
        return
    yield ""
    first = reached[0].at.ToNanoseconds()
    before = first
    for at, item in enumerate(reached):
        now = item.at.ToNanoseconds()
        label = "times    " if at == 0 else "         "
        name = milestone_name(item.kind).replace("_", " ")
        step = "" if at == 0 else f"+{seconds_text((now - before) / 1e9):<9} {seconds_text((now - first) / 1e9)} in all"
        yield (
            f"{label}{_moment(item.at, decision.advice)}{item.at.ToDatetime(UTC):.%f}"[:-3]
            + f"  {name:<17} {step}".rstrip()
        )
        before = now


def moment_ago(text: str) -> datetime:
    """What `--since 2d` means. Ends the command when it means nothing."""
    moment: datetime = ago(text).ToDatetime(UTC)
    return moment


def ago(text: str) -> Timestamp:
    match = re.fullmatch(r"(\d{1,6})([smhd])", text)
    if match is None:
        raise CommandError(f"--since {text}: write a number and a unit, like 30m, 6h or 2d", code=2)
    stamp = Timestamp()
    stamp.GetCurrentTime()
    moment: datetime = stamp.ToDatetime(UTC) - timedelta(seconds=int(match[1]) * _UNITS[match[2]])
    stamp.FromDatetime(moment)
    return stamp
