"""`advisor nodes`: nodes that are isolated or fail again and again, and what an operator does about them."""

import time
from datetime import UTC
from typing import Annotated

import typer
from google.protobuf.json_format import MessageToDict

from advisor.client import Client, reason_name, status_name
from advisor.commands.decisions import connected
from advisor.commands.events import print_events
from advisor.commands.options import ConfigOption, FormatOption, SocketOption, given
from advisor.commands.output import CommandError, Format, complain, one_line, print_json, print_table, short_time
from advisor.v1 import audit_pb2, operator_pb2
from advisor.wording import drain_withheld, isolation_state

app = typer.Typer(rich_markup_mode=None, help="Isolated nodes and lemons: see them, reinstate them, reset the breaker.")

EVIDENCE_SHOWN = 5
ANSWER_SECONDS = 5.0  # an agent that is there answers within a look at the scheduler
ANSWER_LOOK_SECONDS = 0.25

NodeArgument = Annotated[str, typer.Argument(help="The node's name, as the scheduler has it.")]
ClusterOption = Annotated[str | None, typer.Option(help="The cluster. Needed where more than one has agents.")]
WhyOption = Annotated[str, typer.Option(help="Why, kept with the isolation and in the audit. Required.")]


@app.command()
def isolations(
    cluster: ClusterOption = None,
    node: Annotated[str | None, typer.Option(help="Only this node.")] = None,
    ended: Annotated[bool, typer.Option("--ended", help="Also those that have ended.")] = False,
    socket: SocketOption = None,
    configuration: ConfigOption = None,
    form: FormatOption = Format.TABLE,
) -> None:
    """Which nodes are isolated, since when, why, and what the agent made of it. A tripped breaker comes first.

    \b
    Examples:
      advisor nodes isolations
      advisor nodes isolations --node gpu017 --ended
    """
    request = operator_pb2.ListIsolationsRequest(
        cluster=given("--cluster", cluster) or None, node=given("--node", node) or None, ended=ended
    )
    with connected(socket, configuration) as client:
        answer = client.isolations(request)
    if form is not Format.TABLE:
        print_json(
            {
                "isolations": [_document(item) for item in answer.isolations],
                "tripped": [_breaker(item) for item in answer.tripped],
                "orphaned": [
                    {"cluster": item.cluster, "node": item.node, "reason": item.reason} for item in answer.orphaned
                ],
            },
            form,
        )
        return
    for item in answer.tripped:
        print(one_line(f"breaker of {item.cluster} tripped {short_time(item.tripped_at.ToDatetime(UTC))}: {item.why}"))
        print(one_line(f"  → when you have looked: advisor nodes reset-breaker --cluster {item.cluster} --why …"))
    for orphan in answer.orphaned:
        print(one_line(f"{orphan.node} of {orphan.cluster} carries a drain of ours that is not known any more"))
    rows = (
        (
            item.node,
            item.cluster,
            isolation_state(item),
            item.category,
            short_time(item.opened_at.ToDatetime(UTC)),
            item.ended_by or f"until {short_time(item.expires_at.ToDatetime(UTC))}",
            f"{status_name(item.status)} {reason_name(item.reason)}".strip(),
            item.why,
        )
        for item in answer.isolations
    )
    columns = ("node", "cluster", "is", "category", "since", "ends", "agent says", "why")
    print_table(columns, rows, empty="no isolated nodes", least=("since", "agent says", "cluster"))


@app.command("lemons")
def list_lemons(
    cluster: Annotated[str | None, typer.Option(help="Only this cluster.")] = None,
    node: Annotated[str | None, typer.Option(help="Only this node.")] = None,
    failures: Annotated[int, typer.Option(min=1, max=1000, help="With at least so many failures.")] = 3,
    limit: Annotated[int, typer.Option(min=1, max=250, help="How many at most.")] = 50,
    socket: SocketOption = None,
    configuration: ConfigOption = None,
    form: FormatOption = Format.TABLE,
) -> None:
    """Nodes that fail again and again by their own hardware, worst first, with the evidence.

    Counted are failures that began on the node within the history window, of which the kernel, telemetry or the
    scheduler tells; several jobs that one failure takes down are one. The chance is of another failure within a week,
    from how repaired nodes did; any node's is 1.5 %.

    \b
    Examples:
      advisor nodes lemons
      advisor nodes lemons --failures 1 --node gpu017 --format json
    """
    request = audit_pb2.ListLemonsRequest(
        cluster=given("--cluster", cluster), node=given("--node", node), failures_min=failures, limit=limit
    )
    with connected(socket, configuration) as client:
        answer = client.lemons(request)
    if form is not Format.TABLE:
        print_json({"lemons": [_lemon(item) for item in answer.lemons], "capped": answer.capped}, form)
        return
    rows = (
        (
            item.name if at == 0 else "",
            item.cluster if at == 0 else "",
            f"{item.score:.2f}" if at == 0 else "",
            f"{len(item.failures)} of {item.jobs} jobs" if at == 0 else "",
            f"{item.fails_within_week:.0%}" if at == 0 and item.HasField("fails_within_week") else "",
            short_time(failure.at.ToDatetime(UTC)),
            failure.rule,
            failure.trust,
            f"{failure.attempt.job_id}#{failure.attempt.attempt}",
        )
        for item in answer.lemons
        for at, failure in enumerate(item.failures[:EVIDENCE_SHOWN])
    )
    columns = ("node", "cluster", "score", "failures", "in a week", "evidence", "rule", "told by", "job")
    print_table(columns, rows, empty="no lemons", least=("told by", "cluster", "job"))
    if answer.capped:
        print("there were more failures than are looked at: the oldest are left out")


@app.command("list")
def list_nodes(
    cluster: ClusterOption = None,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="How many at most.")] = 50,
    socket: SocketOption = None,
    configuration: ConfigOption = None,
    form: FormatOption = Format.TABLE,
) -> None:
    """Nodes that evidence has named, the last one named first, with their scores.

    \b
    Examples:
      advisor nodes list
      advisor nodes list --cluster prod --format jsonl
    """
    with connected(socket, configuration) as client:
        found = list(client.nodes(audit_pb2.Filter(cluster=given("--cluster", cluster)), most=limit))
    if form is not Format.TABLE:
        print_json([MessageToDict(item, preserving_proto_field_name=True) for item in found], form)
        return
    rows = (
        (
            item.name,
            item.cluster,
            f"{item.score:.2f}",
            "suspect" if item.suspect else "",
            short_time(item.last_implicated_at.ToDatetime(UTC)),
            f"{item.implications[0].category}: {item.implications[0].rule}" if item.implications else "",
        )
        for item in found
    )
    columns = ("node", "cluster", "score", "", "last named", "for")
    print_table(columns, rows, empty="no node was ever named", least=("cluster",))


@app.command()
def show(
    node: NodeArgument,
    limit: Annotated[int, typer.Option(min=1, max=250, help="How many events at most.")] = 30,
    cluster: ClusterOption = None,
    socket: SocketOption = None,
    configuration: ConfigOption = None,
    form: FormatOption = Format.TABLE,
) -> None:
    """One node: its score, and what happened to it, newest first.

    \b
    Examples:
      advisor nodes show gpu017
    """
    with connected(socket, configuration) as client:
        whose = client.cluster_or_only(given("--cluster", cluster))
        request = audit_pb2.GetNodeHistoryRequest(cluster=whose, name=node, page=audit_pb2.Page(page_size=limit))
        answer = client.call(client.audit.GetNodeHistory, request)
    if form is not Format.TABLE:
        print_json(MessageToDict(answer, preserving_proto_field_name=True), form)
        return
    suspect = ", suspect" if answer.node.suspect else ""
    print(one_line(f"{answer.node.name} of {answer.node.cluster}: score {answer.node.score:.2f}{suspect}"))
    print_events(answer.events, of_node=True)


@app.command()
def isolate(
    node: NodeArgument,
    why: WhyOption = "",
    force: Annotated[bool, typer.Option("--force", help="Beyond the caps. It is audited.")] = False,
    cluster: ClusterOption = None,
    socket: SocketOption = None,
    configuration: ConfigOption = None,
    form: FormatOption = Format.TABLE,
) -> None:
    """Have a node drained by hand, within the caps on isolated nodes. A drain of others is never touched.

    It is recorded, and the agent drains the node where agent.toml says mode = "act" and, under [isolation], mode =
    "act" (as shipped: "off"), within its own cap, until you reinstate the node or its time is over. What the agent
    answers within some seconds is shown. The caps are isolations_max and isolations_percent_max of the policy: with 2 %
    none of fewer than 50 nodes.

    \b
    Examples:
      advisor nodes isolate gpu017 --why "its fan is loud"
      advisor nodes isolate gpu017 --force --why "one of our 12 nodes, and it burns"
    """
    _needs(why)
    with connected(socket, configuration) as client:
        whose = client.cluster_or_only(given("--cluster", cluster))
        request = operator_pb2.IsolateNodeRequest(cluster=whose, node=node, why=why, force=force)
        made = _answered(client, client.call(client.operators.IsolateNode, request))
    if withheld := drain_withheld(made):
        complain(withheld)
    if form is not Format.TABLE:
        print_json(_document(made), form)
        return
    until = short_time(made.expires_at.ToDatetime(UTC))
    print(one_line(f"{made.node}: isolation is recorded, until {until}, by {made.opened_by}"))
    if isolation_state(made) == "drained":
        print("  the agent has drained it")
    elif not withheld:
        print("  the agent has not answered yet; how far it is: advisor nodes isolations")


def _answered(client: Client, made: operator_pb2.NodeIsolation) -> operator_pb2.NodeIsolation:
    """The isolation with what the agent says of it, if it says so soon."""
    request = operator_pb2.ListIsolationsRequest(cluster=made.cluster, node=made.node)
    until = time.monotonic() + ANSWER_SECONDS
    while not made.reason and time.monotonic() < until:
        time.sleep(ANSWER_LOOK_SECONDS)
        found = client.isolations(request).isolations
        made = next((item for item in found if item.isolation_id == made.isolation_id), made)
    return made


@app.command()
def reinstate(
    node: NodeArgument,
    why: WhyOption = "",
    cluster: ClusterOption = None,
    socket: SocketOption = None,
    configuration: ConfigOption = None,
    form: FormatOption = Format.TABLE,
) -> None:
    """End a node's isolation: our drain is undone, nobody else's. Evidence from before now is spent.

    \b
    Examples:
      advisor nodes reinstate gpu017 --why "DIMM replaced"
    """
    _needs(why)
    with connected(socket, configuration) as client:
        whose = client.cluster_or_only(given("--cluster", cluster))
        ended = client.reinstate(operator_pb2.ReinstateRequest(cluster=whose, node=node, why=why))
    if form is not Format.TABLE:
        print_json(_document(ended), form)
        return
    print(one_line(f"{ended.node} is reinstated{': it was only on paper' if ended.dry_run else ''}"))


@app.command("probe-result")
def probe_result(
    node: NodeArgument,
    passed: Annotated[bool | None, typer.Option("--passed/--failed", help="What the test said.")] = None,
    why: WhyOption = "",
    cluster: ClusterOption = None,
    socket: SocketOption = None,
    configuration: ConfigOption = None,
    form: FormatOption = Format.TABLE,
) -> None:
    """Say what your own test of an isolated node found. Passed: it is reinstated. Failed: its time begins anew.

    \b
    Examples:
      dcgmi diag -r 3 && advisor nodes probe-result gpu017 --passed --why "dcgmi diag -r 3"
    """
    if passed is None:
        raise CommandError("say what it found: --passed or --failed", code=2)
    _needs(why)
    with connected(socket, configuration) as client:
        whose = client.cluster_or_only(given("--cluster", cluster))
        request = operator_pb2.ReportProbeRequest(cluster=whose, node=node, passed=passed, why=why)
        row = client.report_probe(request)
    if form is not Format.TABLE:
        print_json(_document(row), form)
        return
    until = short_time(row.expires_at.ToDatetime(UTC))
    print(one_line(f"{row.node} is reinstated" if passed else f"{row.node} stays isolated, until {until}"))


@app.command("reset-breaker")
def reset_breaker(
    why: WhyOption = "",
    cluster: ClusterOption = None,
    socket: SocketOption = None,
    configuration: ConfigOption = None,
    form: FormatOption = Format.TABLE,
) -> None:
    """Let nodes be isolated again after the breaker has tripped.

    \b
    Examples:
      advisor nodes reset-breaker --cluster prod --why "it was the switch, replaced"
    """
    _needs(why)
    with connected(socket, configuration) as client:
        whose = client.cluster_or_only(given("--cluster", cluster))
        reset = client.reset_breaker(operator_pb2.ResetBreakerRequest(cluster=whose, why=why))
    if form is not Format.TABLE:
        print_json(_breaker(reset), form)
        return
    print(one_line(f"{reset.cluster}: nodes may be isolated again; it had tripped because {reset.why}"))


def _needs(why: str) -> None:
    if not why.strip():
        raise CommandError("say why: --why TEXT is kept", code=2)


def _document(item: operator_pb2.NodeIsolation) -> dict[str, object]:
    def moment(name: str) -> str:
        return getattr(item, name).ToJsonString() if item.HasField(name) else ""  # type: ignore[arg-type]  # literals

    return {
        "isolation_id": item.isolation_id,
        "cluster": item.cluster,
        "node": item.node,
        "generation": item.generation,
        "dry_run": item.dry_run,
        "category": item.category,
        "why": item.why,
        "job_id": item.job_id,
        "status": status_name(item.status),
        "reason": reason_name(item.reason),
        "detail": item.detail,
        **{name: moment(name) for name in ("opened_at", "expires_at", "drained_at", "ended_at", "probed_at")},
        "ended_by": item.ended_by,
        "ended_why": item.ended_why,
        "probe_passed": item.probe_passed if item.HasField("probe_passed") else None,
        "opened_by": item.opened_by,
    }


def _breaker(item: operator_pb2.Breaker) -> dict[str, str]:
    return {"cluster": item.cluster, "tripped_at": item.tripped_at.ToJsonString(), "why": item.why}


def _lemon(item: audit_pb2.Lemon) -> dict[str, object]:
    return {
        "node": item.name,
        "cluster": item.cluster,
        "score": round(item.score, 3),
        "jobs": item.jobs,
        "users": item.users,
        "up_since": item.up_since.ToDatetime(UTC).isoformat() if item.HasField("up_since") else None,
        "fails_within_week": item.fails_within_week if item.HasField("fails_within_week") else None,
        "failures": [
            {
                "at": failure.at.ToDatetime(UTC).isoformat(),
                "incident": failure.incident_id,
                "job": failure.attempt.job_id,
                "attempt": failure.attempt.attempt,
                "user": failure.attempt.user,
                "category": failure.category,
                "rule": failure.rule,
                "trust": failure.trust,
                "weight": failure.weight,
            }
            for failure in item.failures
        ],
    }
