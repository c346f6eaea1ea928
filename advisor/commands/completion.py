"""`advisor completion SHELL`: what a shell needs to complete our commands, their options and their choices."""

from enum import StrEnum
from typing import Annotated

import typer

app = typer.Typer()
VARIABLE = "_ADVISOR_COMPLETE"


class Shell(StrEnum):
    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


@app.command()
def completion(shell: Annotated[Shell, typer.Argument(help="For which shell.")]) -> None:
    """Print what makes a shell complete `advisor`: commands, options and their choices.

    \b
    Examples:
      advisor completion bash > /etc/bash_completion.d/advisor
      source <(advisor completion bash)
      advisor completion zsh > "${fpath[1]}/_advisor"
      advisor completion fish > ~/.config/fish/completions/advisor.fish
    """
    from typer._completion_shared import get_completion_script

    print(get_completion_script(prog_name="advisor", complete_var=VARIABLE, shell=shell.value))
