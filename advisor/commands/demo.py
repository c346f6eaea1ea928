"""`advisor demo`: scenario a, live, on a real Slurm that leaves nothing behind."""

import sys
from typing import Annotated

import typer

from advisor.commands.output import CommandError
from advisor.demo import namespace

app = typer.Typer(rich_markup_mode=None)


@app.command()
def demo(
    keep: Annotated[bool, typer.Option("--keep", help="Leave it running to play with, until Ctrl-C.")] = False,
) -> None:
    """Watch a real Slurm job fail on a bad node and be recovered. Needs root and Debian's Slurm packages.

    Example: advisor demo --keep
    """
    command = [sys.executable, "-m", "advisor.demo.story", *(["--keep"] if keep else [])]
    try:
        code = namespace.run(command)
    except namespace.CannotEnterError as error:
        raise CommandError(str(error), code=2) from None
    if code:
        raise CommandError("the demo did not end as it should", code=1)
