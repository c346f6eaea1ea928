"""What operators order: `veto`, `withdraw`, `override`, `orders`, `exclusions`, `budget`.

All say what is so now, do nothing twice, and exit with 1 where it was too late, with what has happened already.
"""

from datetime import UTC
from enum import StrEnum
from typing import Annotated

import typer
from google.protobuf.json_format import MessageToDict

from advisor.client import Client, action_name
from advisor.commands.decisions import connected
from advisor.commands.job_ids import job_id, named, target
from advisor.commands.options import ConfigOption, FormatOption, SocketOption, given
from advisor.commands.output import CommandError, Format, complain, one_line, print_json, print_table, short_time
from advisor.v1 import common_pb2, operator_pb2

veto_app, withdraw_app, override_app = typer.Typer(), typer.Typer(), typer.Typer()
orders_app = typer.Typer(rich_markup_mode=None, help="What operators ordered about jobs: see and lift.")
exclusions_app = typer.Typer(rich_markup_mode=None, help="Nodes that a job avoids: see, add and clear by hand.")
budget_app = typer.Typer(rich_markup_mode=None, help="What a job may spend on restarts.")

TargetArgument = Annotated[
    str, typer.Argument(metavar="TARGET", help="A job (123, 123_4, 123+1), or a decision's id or its beginning.")
]
JobArgument = Annotated[str, typer.Argument(metavar="JOB", help="As Slurm prints it: 123, 123_4, 123+1.")]
WhyOption = Annotated[str, typer.Option(help="Why, kept with the order and in the audit. Required.")]
ClusterOption = Annotated[str | None, typer.Option(help="Whose job. Default: the only cluster there is.")]
AttemptOption = Annotated[
    int | None, typer.Option(min=0, help="Which attempt. Default: the newest that has begun.", show_default=False)
]


class Ordered(StrEnum):
    RESTART = "restart"
    STOP = "stop"


@veto_app.command()
def veto(
    what: TargetArgument,
    why: WhyOption = "",
    attempt: AttemptOption = None,
    cluster: ClusterOption = None,
    socket: SocketOption = None,
    configuration: ConfigOption = None,
    form: FormatOption = Format.TABLE,
) -> None:
    """Nothing is done about this attempt, whatever is decided later, until the veto is lifted.

    Also before anything has failed. It holds until the next attempt starts or Slurm has
    forgotten the job: the next one is judged anew.

    \b
    Examples:
      advisor veto 4711 --why "I am debugging it"
      advisor orders list --job 4711        # its id, to lift it again
      advisor orders lift 01890c7e --why done
    """
    _needs(why)
    with connected(socket, configuration) as client:
        about = target(client, what, given("--cluster", cluster), attempt)
        answer = client.call(client.operators.Veto, operator_pb2.VetoRequest(target=about, why=why))
    _tell(answer, form)


@withdraw_app.command()
def withdraw(
    what: TargetArgument,
    why: WhyOption = "",
    attempt: AttemptOption = None,
    cluster: ClusterOption = None,
    socket: SocketOption = None,
    configuration: ConfigOption = None,
    form: FormatOption = Format.TABLE,
) -> None:
    """Take back what is advised now: the same action for the same cause is not advised again.

    Other advice may follow, of another action or for another cause; a veto keeps all of it away. Of an override, what
    the advisor itself thinks holds again.

    \b
    Examples:
      advisor withdraw e3a382e8 --why "wrong node"
    """
    _needs(why)
    with connected(socket, configuration) as client:
        about = target(client, what, given("--cluster", cluster), attempt)
        answer = client.call(client.operators.Withdraw, operator_pb2.WithdrawRequest(target=about, why=why))
    _tell(answer, form)


@override_app.command()
def override(
    what: TargetArgument,
    action: Annotated[Ordered, typer.Argument(help="What is to be done instead.")],
    why: WhyOption = "",
    confirm: Annotated[
        bool, typer.Option("--confirm", help="A stop is meant; a live attempt may be ended for a restart.")
    ] = False,
    attempt: AttemptOption = None,
    cluster: ClusterOption = None,
    socket: SocketOption = None,
    configuration: ConfigOption = None,
    form: FormatOption = Format.TABLE,
) -> None:
    """Order a restart or a stop in place of what is advised: a new generation that names you.

    It is bound by what binds all advice: mode, scope, the agent's caps, the ceiling on restarts, and other people's
    cancels and holds. Without --confirm a restart waits for the attempt's own end.

    \b
    Examples:
      advisor override 4711 restart --why "the disk is fixed"
      advisor override 4711 stop --confirm --why "wrong data set"
    """
    _needs(why)
    if action is Ordered.STOP and not confirm:
        raise CommandError("a stop ends the job for good: --confirm says that it is meant", code=2)
    with connected(socket, configuration) as client:
        request = operator_pb2.OverrideRequest(
            target=target(client, what, given("--cluster", cluster), attempt),
            action=common_pb2.Action.Value(f"ACTION_{action.upper()}"),
            confirm=confirm,
            why=why,
        )
        answer = client.call(client.operators.Override, request)
    _tell(answer, form)


@orders_app.command("list")
def list_orders(
    job: Annotated[str | None, typer.Option(help="Only of this job.")] = None,
    cluster: Annotated[str | None, typer.Option(help="Only of this cluster.")] = None,
    lifted: Annotated[bool, typer.Option("--all", help="Also those that hold no longer.")] = False,
    socket: SocketOption = None,
    configuration: ConfigOption = None,
    form: FormatOption = Format.TABLE,
) -> None:
    """What operators ordered, while it holds, newest first: vetoes, overrides, withdrawals, exclusions, reset budgets.

    \b
    Examples:
      advisor orders list
      advisor orders list --job 4711 --all
    """
    with connected(socket, configuration) as client:
        found = _orders(client, given("--job", job), given("--cluster", cluster), lifted=lifted)
    if form is not Format.TABLE:
        print_json([_document(item) for item in found], form)
        return
    _table(found, "no orders")


@orders_app.command()
def lift(
    order_id: Annotated[str, typer.Argument(metavar="ORDER_ID", help="As `orders list` prints it, or its beginning.")],
    why: WhyOption = "",
    socket: SocketOption = None,
    configuration: ConfigOption = None,
    form: FormatOption = Format.TABLE,
) -> None:
    """An order holds no longer: what the advisor itself thinks holds again.

    \b
    Examples:
      advisor orders lift 01890c7e --why "done debugging"
    """
    _needs(why)
    with connected(socket, configuration) as client:
        known = [item.order_id for item in _orders(client, "", "", lifted=True) if item.order_id.startswith(order_id)]
        if len(known) > 1:
            raise CommandError(
                f"{order_id} is the beginning of several: {', '.join(known[:3])}: give more of it", code=2
            )
        request = operator_pb2.LiftOrderRequest(order_id=known[0] if known else order_id, why=why)
        answer = client.call(client.operators.LiftOrder, request)
    _tell(answer, form)


@exclusions_app.command("list")
def list_exclusions(
    job: Annotated[str | None, typer.Argument(metavar="[JOB]", help="Only of this job.")] = None,
    cluster: ClusterOption = None,
    socket: SocketOption = None,
    configuration: ConfigOption = None,
    form: FormatOption = Format.TABLE,
) -> None:
    """Exclusions that were added or cleared by hand. What evidence excludes: advisor decisions list --job JOB.

    \b
    Examples:
      advisor exclusions list 4711
    """
    with connected(socket, configuration) as client:
        found = _orders(client, given("JOB", job), given("--cluster", cluster), lifted=False)
    found = [item for item in found if item.kind in {"exclude", "spare"}]
    if form is not Format.TABLE:
        print_json([_document(item) for item in found], form)
        return
    _table(found, "no exclusions by hand")


@exclusions_app.command()
def add(
    job: JobArgument,
    node: Annotated[str, typer.Argument(help="The node that the job's next attempts avoid.")],
    why: WhyOption = "",
    cluster: ClusterOption = None,
    socket: SocketOption = None,
    configuration: ConfigOption = None,
    form: FormatOption = Format.TABLE,
) -> None:
    """The job's next attempts avoid a node, as far as its exclusions may cost it nodes.

    It reaches Slurm's ExcNodeList with the job's next restart, or at once while a restart of it waits, and survives
    every requeue. The user's own list is kept beside it.

    \b
    Examples:
      advisor exclusions add 4711 gpu017 --why "its fan is loud"
    """
    _needs(why)
    with connected(socket, configuration) as client:
        about = target(client, job_id(job).text, given("--cluster", cluster), None)
        answer = client.call(client.operators.Exclude, operator_pb2.ExcludeRequest(target=about, node=node, why=why))
    _tell(answer, form)


@exclusions_app.command()
def clear(
    job: JobArgument,
    node: Annotated[str, typer.Argument(help="The node that the job need not avoid.")],
    why: WhyOption = "",
    cluster: ClusterOption = None,
    socket: SocketOption = None,
    configuration: ConfigOption = None,
    form: FormatOption = Format.TABLE,
) -> None:
    """The job need not avoid a node, whatever evidence says: it is not excluded again. The user's own list is kept.

    \b
    Examples:
      advisor exclusions clear 4711 gpu017 --why "tested, it is fine"
    """
    _needs(why)
    with connected(socket, configuration) as client:
        about = target(client, job_id(job).text, given("--cluster", cluster), None)
        answer = client.call(client.operators.Spare, operator_pb2.SpareRequest(target=about, node=node, why=why))
    _tell(answer, form)


@budget_app.command()
def reset(
    job: JobArgument,
    ceiling: Annotated[bool, typer.Option("--ceiling", help="Also what counts towards the job's ceiling.")] = False,
    why: WhyOption = "",
    cluster: ClusterOption = None,
    socket: SocketOption = None,
    configuration: ConfigOption = None,
    form: FormatOption = Format.TABLE,
) -> None:
    """Restarts that the job has had count no more, so that it may be restarted again. Its ceiling only if named.

    A job that was given up for its budget and has ended is put into the queue again at once; the answer says so.

    \b
    Examples:
      advisor budget reset 4711 --why "the bug is fixed"
      advisor budget reset 4711 --ceiling --why "a long run; the fabric was bad for days"
    """
    _needs(why)
    with connected(socket, configuration) as client:
        about = target(client, job_id(job).text, given("--cluster", cluster), None)
        request = operator_pb2.ResetBudgetRequest(target=about, ceiling=ceiling, why=why)
        answer = client.call(client.operators.ResetBudget, request)
    _tell(answer, form)


@budget_app.callback()
def _budget() -> None:
    """What a job may spend on restarts."""


def _orders(client: Client, job: str, cluster: str, *, lifted: bool) -> list[operator_pb2.Order]:
    request = operator_pb2.ListOrdersRequest(lifted=lifted)
    if job:
        request.job_id = job_id(job, "--job").text
    if cluster:
        request.cluster = cluster
    return list(client.call(client.operators.ListOrders, request).orders)


def _needs(why: str) -> None:
    if not why.strip():
        raise CommandError("say why: --why TEXT is kept", code=2)


def _tell(answer: operator_pb2.OrderAnswer, form: Format) -> None:
    for note in answer.notes:
        complain(note)
    if form is not Format.TABLE:
        document = MessageToDict(answer, preserving_proto_field_name=True)
        document["effect"] = operator_pb2.OrderEffect.Name(answer.effect).removeprefix("ORDER_EFFECT_").lower()
        print_json(document, form)
    else:
        print(one_line(answer.says))
        if answer.decision_id:
            print(f"  advisor decisions show {answer.decision_id[:13]}")
        if answer.order.kind in {"veto", "override"} and not answer.order.HasField("lifted_at"):
            print(f"  taken back by: advisor orders lift {answer.order.order_id[:13]} --why …")
    if answer.effect == operator_pb2.ORDER_EFFECT_OVERTAKEN:
        raise typer.Exit(1)


def _table(found: list[operator_pb2.Order], empty: str) -> None:
    rows = (
        (
            item.order_id[:13],
            named(item.attempt),
            _said(item),
            item.set_by if not item.HasField("lifted_at") else f"{item.set_by}, lifted by {item.lifted_by}",
            short_time(item.set_at.ToDatetime(UTC)),
            item.why,
        )
        for item in found
    )
    print_table(("id", "job", "order", "by", "when", "why"), rows, empty=empty, least=("when",))


def _said(item: operator_pb2.Order) -> str:
    words = {
        "veto": "veto",
        "withdraw": f"no {action_name(item.action)} for {item.category}",
        "override": action_name(item.action),
        "exclude": f"avoid {item.node}",
        "spare": f"need not avoid {item.node}",
        "reset_budget": "budget and ceiling reset" if item.ceiling else "budget reset",
    }
    return words.get(item.kind, item.kind)


def _document(item: operator_pb2.Order) -> dict[str, object]:
    document: dict[str, object] = MessageToDict(item, preserving_proto_field_name=True)
    return document
