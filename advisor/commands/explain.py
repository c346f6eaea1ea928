"""`advisor explain JOB`: what happened to a job, in plain sentences. Also for whoever's job it is."""

import textwrap
from typing import Annotated

import typer

from advisor.commands.decisions import connected
from advisor.commands.job_ids import attempt_of
from advisor.commands.options import ConfigOption, FormatOption, SocketOption, given
from advisor.commands.output import Format, one_line, print_json
from advisor.commands.tables import terminal_columns
from advisor.explaining import explain as sentences_of
from advisor.v1 import audit_pb2, common_pb2

app = typer.Typer()
DECISIONS_MAX = 100
ABOUT = {
    "happened": "What happened",
    "before": "Before that",
    "think": "What we think",
    "sure": "How sure",
    "done": "What was done",
    "lost": "What got lost",
    "do": "What you can do",
}
_WAITING = {common_pb2.ATTEMPT_STATE_PENDING, common_pb2.ATTEMPT_STATE_REQUEUE_HELD}


@app.command()
def explain(
    job: Annotated[str, typer.Argument(metavar="JOB", help="As Slurm prints it: 123, 123_4, 123+1.")],
    attempt: Annotated[
        int | None, typer.Option(min=0, help="Default: the newest that has begun.", show_default=False)
    ] = None,
    cluster: Annotated[str | None, typer.Option(help="Whose job, where there are several clusters.")] = None,
    socket: SocketOption = None,
    configuration: ConfigOption = None,
    form: FormatOption = Format.TABLE,
) -> None:
    """Say in plain sentences what happened to a job, why, what was done, and what you can do.

    Everybody may ask about his own jobs, where the site lets job users in (service.own_jobs).

    \b
    Examples:
      advisor explain 4711
      advisor explain 4711_3 --attempt 0
    """
    whose = given("--cluster", cluster)
    with connected(socket, configuration) as client:
        meant = attempt_of(client, job, whose, attempt)
        if attempt is None and meant.state in _WAITING and meant.attempt.attempt > 0:
            meant = attempt_of(client, job, whose, meant.attempt.attempt - 1)
        chosen = audit_pb2.Filter(job_key=meant.attempt.job_key)
        decisions = [
            item
            for item in client.decisions(chosen, most=DECISIONS_MAX)
            if item.advice.attempt.attempt == meant.attempt.attempt
        ]
        others = sorted(client.attempts(chosen, most=100), key=lambda item: item.attempt.attempt)
    after = next((item for item in others if item.attempt.attempt > meant.attempt.attempt), None)
    earlier = [item for item in others if item.attempt.attempt < meant.attempt.attempt]
    told = sentences_of(meant, decisions, after, earlier[-1] if earlier else None)
    line = next((one_line(item.text) for item in decisions[0].advice.evidence if item.text), "") if decisions else ""
    if form is not Format.TABLE:
        ref = meant.attempt
        document = {"cluster": ref.cluster, "job_id": ref.job_id, "attempt": ref.attempt, "user": ref.user}
        document |= {item.about: item.says for item in told} | {"line": line}
        print_json(document, form)
        return
    columns = terminal_columns()
    for item in told:
        text = one_line(f"{ABOUT[item.about]}: {item.says}")
        folded = textwrap.wrap(text, columns or len(text) + 1, subsequent_indent="  ", break_on_hyphens=False)
        print("\n".join(folded))
    if line:
        print(f"The line that tells most: {line}"[:columns])
