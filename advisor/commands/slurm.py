"""`advisor slurm`: what is done on slurmctld's host, by the agent's own program, which needs nothing of the service."""

import typer

from slurm_plugin import cli
from slurm_plugin.install.command import NAMES

app = typer.Typer(rich_markup_mode=None)


@app.callback()
def _group() -> None:
    """Put our hooks into slurm.conf and job_submit.lua, and take them out again."""


def _passed_on(name: str) -> None:
    def command(context: typer.Context) -> None:
        raise typer.Exit(cli.main([name, *context.args]))

    summary = "Name our hooks in slurm.conf, before what the site has." if name == NAMES[0] else "Take them out again."
    settings = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
    example = f"\b\nExamples:\n  advisor slurm {name} --dry-run"
    app.command(name, help=f"{summary} (--help shows the options)\n\n{example}", context_settings=settings)(command)


for _name in NAMES:
    _passed_on(_name)
