"""`advisor shadow`: say what was really done about a failed attempt."""

from enum import StrEnum
from typing import Annotated

import typer

from advisor.clock import SystemClock
from advisor.commands.decisions import connected
from advisor.commands.options import ConfigOption, SocketOption, given
from advisor.commands.output import CommandError, one_line
from advisor.commands.report import past, shadow
from advisor.v1 import report_pb2

app = typer.Typer(rich_markup_mode=None, help="Say what was really done about a failed attempt.")


class Done(StrEnum):
    REQUEUED = "requeued"
    RESUBMITTED = "resubmitted"
    CANCELLED = "cancelled"
    NOTHING = "nothing"
    OTHER = "other"


app.command("report", hidden=True)(shadow)  # `advisor report shadow`, by the words of who has just recorded something


@app.callback()
def _shadow() -> None:
    pass


@app.command()
def record(
    job: Annotated[str, typer.Argument(help="The job's id, for its newest attempt, or ID#ATTEMPT.")],
    did: Annotated[Done, typer.Option(help="What was done; other: something for a reason of its own.")],
    why: Annotated[str, typer.Option(help="Why, kept with the record and in the audit. Required.")] = "",
    at: Annotated[str, typer.Option(help="When: 20m or 2h ago, or a time. Default: now.")] = "",
    node: Annotated[list[str] | None, typer.Option(help="A node kept out of its way; may be repeated.")] = None,
    cluster: Annotated[str | None, typer.Option(help="The cluster, where several have such a job.")] = None,
    socket: SocketOption = None,
    configuration: ConfigOption = None,
) -> None:
    """Record what people did about an attempt. It wins over what is inferred; the newest record counts.

    \b
    Examples:
      advisor shadow record 4711 --did resubmitted --why "as llama-v2"
      advisor shadow record 4711#0 --did cancelled --at 20m --why "hung in NCCL"
    """
    if not why.strip():
        raise CommandError("say why: --why TEXT is kept", code=2)
    job_id, hash_sign, number = job.partition("#")
    if not job_id or (hash_sign and not (number.isascii() and number.isdigit() and len(number) < 9)):
        raise CommandError(f"{job}: write a job's id, or ID#ATTEMPT", code=2)
    request = report_pb2.RecordShadowRequest(
        cluster=given("--cluster", cluster),
        job_id=job_id,
        attempt=int(number) if hash_sign else None,
        did=did,
        nodes=node or [],
        why=why,
    )
    if at:
        request.did_at.FromDatetime(past("--at", at, SystemClock().now()))
    with connected(socket, configuration) as client:
        made = client.record_shadow(request)
    who = f"{made.attempt.job_id}#{made.attempt.attempt} of {made.attempt.user}"
    print(one_line(f"recorded: {who} was {_words(did)}, as {made.who} says"))


def _words(did: Done) -> str:
    return {Done.NOTHING: "left as it was", Done.OTHER: "dealt with otherwise"}.get(did, did.value)
