"""`advisor mode`: where the agent may act and where it only watches."""

from datetime import UTC
from typing import Annotated

import typer

from advisor.client import mode_name
from advisor.commands.decisions import connected
from advisor.commands.options import ConfigOption, FormatOption, SocketOption, load_config
from advisor.commands.output import CommandError, Format, print_json, print_table, short_time
from advisor.core.words import Category, Mode
from advisor.v1 import common_pb2, operator_pb2

app = typer.Typer(rich_markup_mode=None, help="Monitor or autonomous: see and set.")


@app.command()
def get(socket: SocketOption = None, configuration: ConfigOption = None, form: FormatOption = Format.TABLE) -> None:
    """All settings. The one with the most fields wins; at a tie, monitor wins. None fits: the default_mode configured.

    \b
    Examples:
      advisor mode get
    """
    with connected(socket, configuration) as client:
        settings = client.modes()
    if form is Format.JSON:
        print_json([_document(setting) for setting in settings])
        return
    rows = (
        (
            mode_name(item.mode),
            item.cluster or "any",
            item.partition or "any",
            item.job_id or "any",
            item.category or "any",
            item.set_by,
            short_time(item.set_at.ToDatetime(UTC)),
            item.why,
        )
        for item in settings
    )
    default = load_config(configuration).config.default_mode
    columns = ("mode", "cluster", "partition", "job", "category", "set by", "when", "why")
    print_table(columns, rows, empty=f"no settings: everything is in {default} mode, the default here")


@app.command("set")
def set_mode(
    mode: Annotated[Mode, typer.Argument(help="What holds from now on.")],
    why: Annotated[str, typer.Option(help="Why: kept with the setting.")] = "",
    cluster: Annotated[str, typer.Option(help="Only on this cluster.")] = "",
    partition: Annotated[str, typer.Option(help="Only in this partition.")] = "",
    job: Annotated[str, typer.Option(help="Only for this job id.")] = "",
    category: Annotated[str, typer.Option(help="Only for failures of this category.")] = "",
    socket: SocketOption = None,
    configuration: ConfigOption = None,
    form: FormatOption = Format.TABLE,
) -> None:
    """Set one mode. It takes effect with the next tick, and is audited with your account.

    \b
    Examples:
      advisor mode set autonomous --partition train --why "two weeks of monitor mode agreed with us"
      advisor mode set monitor --why "investigating"
    """
    if not why.strip():
        raise CommandError("say why: --why TEXT is kept with the setting", code=2)
    if category and category not in list(Category):
        raise CommandError(f"--category {category}: choose one of {', '.join(Category)}", code=2)
    wanted = operator_pb2.ModeSetting(
        cluster=cluster,
        partition=partition,
        job_id=job,
        category=category,
        mode=common_pb2.Mode.Value(f"MODE_{mode.upper()}"),
        why=why,
    )
    with connected(socket, configuration) as client:
        setting = client.set_mode(wanted)
    if form is Format.JSON:
        print_json(_document(setting))
        return
    named = (("cluster", cluster), ("partition", partition), ("job", job), ("category", category))
    where = ", ".join(f"{word} {value}" for word, value in named if value) or "everything"
    print(f"{mode} for {where}, set by {setting.set_by}")


def _document(item: operator_pb2.ModeSetting) -> dict[str, str]:
    return {
        "mode": mode_name(item.mode),
        "cluster": item.cluster,
        "partition": item.partition,
        "job_id": item.job_id,
        "category": item.category,
        "set_by": item.set_by,
        "set_at": item.set_at.ToJsonString() if item.HasField("set_at") else "",
        "why": item.why,
    }
