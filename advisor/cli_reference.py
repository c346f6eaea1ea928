"""docs/cli.md, made from the commands themselves: `python -m advisor.cli_reference > docs/cli.md`."""

import importlib
import os
from collections.abc import Iterator
from contextlib import redirect_stdout, suppress
from io import StringIO

from advisor.cli import COMMANDS, application

COLUMNS = 100
HEAD = """# Command line

Made from the commands' own `--help` by `make cli-reference`; a test holds both to each other.

**Whom it asks.** The service's Unix socket, as configured or `--socket`; the kernel tells who you are. What needs which
role is in [access.md](access.md). A job's own user may ask about his own jobs: `advisor explain JOB` first of all.

**How it prints.** `--format table` (the default) fits the terminal (a narrow one leaves columns out and names them) and
puts one thing on one line in a pipe; `--format json` is one document; `--format jsonl` is one line for each thing of a
list. Text of others (logs, job names, reasons) is printed with its control characters shown, never obeyed. All times
are UTC.

**Job ids** are given as Slurm prints them: `123`, `123_4` (a task of an array), `123+1` (a part of a heterogeneous
job). Decisions, incidents and orders by their id or enough of its beginning.

**Exit codes.** 0: done. 1: it could not be done; one line says why (the service does not answer, there is no such
thing, it is too late and what has happened already). 2: asked wrongly, or unusable input.

**Completion.** `source <(advisor completion bash)`; zsh and fish likewise.
"""


def reference() -> str:
    """The whole page."""
    sections = (f"## advisor {' '.join(path)}\n\n```text\n{help_of(path)}\n```\n" for path in paths())
    return "\n".join((HEAD, *sections))


def paths() -> Iterator[tuple[str, ...]]:
    """Every command by its words."""
    for name, entry in COMMANDS.items():
        app = getattr(importlib.import_module(entry.module), entry.app)
        if name == "slurm":  # its options are those of another program
            yield from ((name, item.name) for item in app.registered_commands)
        elif app.registered_groups or len(app.registered_commands) > 1 or app.registered_callback is not None:
            yield from ((name, *below) for below in _below(app))
        else:
            yield (name,)


def _below(app: object) -> Iterator[tuple[str, ...]]:
    for command in app.registered_commands:  # type: ignore[attr-defined]  # a Typer
        if command.hidden:  # another word for one that is told
            continue
        yield (command.name or command.callback.__name__.replace("_", "-"),)
    for group in app.registered_groups:  # type: ignore[attr-defined]  # as above
        yield from ((group.name, *below) for below in _below(group.typer_instance))


def help_of(path: tuple[str, ...]) -> str:
    """What `advisor PATH --help` prints, on so many columns, whatever terminal there is."""
    out, before = StringIO(), os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = str(COLUMNS)
    try:
        with redirect_stdout(out), suppress(SystemExit):
            application(path)(args=[*path, "--help"], prog_name="advisor")
    finally:
        if before is None:
            del os.environ["COLUMNS"]
        else:
            os.environ["COLUMNS"] = before
    return "\n".join(line.rstrip() for line in out.getvalue().strip("\n").splitlines())


if __name__ == "__main__":
    print(reference(), end="")
