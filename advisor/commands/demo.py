"""`advisor demo`: scenario a, live, on a real Slurm that leaves nothing behind."""

import os
import sys
from typing import Annotated

import typer

from advisor.commands.output import CommandError
from advisor.demo import namespace

INTERRUPTED = 130

app = typer.Typer(rich_markup_mode=None)


@app.command()
def demo(
    keep: Annotated[bool, typer.Option("--keep", help="Leave it running to play with, until Ctrl-C.")] = False,
) -> None:
    """Watch a real Slurm job fail on a bad node and be recovered. Needs root and Debian's Slurm packages.

    \b
    Examples:
      advisor demo --keep
    """
    command = [sys.executable, "-m", "advisor.demo.story", *(["--keep"] if keep else [])]
    if os.geteuid() != 0:
        raise CommandError("a real Slurm with several users needs root: run `sudo make demo`", code=2)
    try:
        code = namespace.run(command)
    except namespace.CannotEnterError as error:
        raise CommandError(" ".join(str(error).split()), code=2) from None
    if code == INTERRUPTED:
        print("interrupted; everything removed", file=sys.stderr)
        raise typer.Exit(INTERRUPTED)
    if code:
        raise CommandError("the demo did not end as it should", code=1)
