"""`advisor`, the command line. Only the command that is asked for is imported, so that `--help` answers at once."""

import importlib
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from advisor.commands.output import CommandError, complain
from advisor.commands.remote import take_out

INTERRUPTED = 130  # as a shell tells of Ctrl-C
NEEDS_SERVER = "the service and its command line need: pip install 'recovery-advisor[server]'"
try:
    import typer
except KeyboardInterrupt:
    raise SystemExit(INTERRUPTED) from None
except ModuleNotFoundError:
    if sys.argv[1:2] == ["slurm"]:
        from slurm_plugin import cli

        raise SystemExit(cli.main(sys.argv[2:])) from None
    # The base install is the agent's: it has this entry point, and not what else is behind it.
    complain(NEEDS_SERVER)
    raise SystemExit(2) from None

HELP = "Keeps distributed training on Slurm running: what failed, why, which nodes to avoid, and what happens next."
EXAMPLES = (
    "advisor analyze slurm-4711.out        why a job failed, from its log alone; needs no service",
    "advisor demo                          a real Slurm job fails on a bad node and recovers",
    "advisor status                        whether the service on this host ticks",
    "advisor decisions list --since 1d     what was decided, and what came of it",
    "advisor explain 4711                  one job, in plain sentences",
    "advisor decisions --help              what else there is below a command",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One command: the module whose `app` is it, and the line that --help shows."""

    module: str
    summary: str
    app: str = "app"  # its name in the module
    examples: tuple[str, ...] = ()  # of a group; each of its commands has its own


COMMANDS = {
    "serve": Entry(module="advisor.commands.serve", summary="Run the service."),
    "demo": Entry(module="advisor.commands.demo", summary="Watch a real Slurm job fail on a bad node and recover."),
    "analyze": Entry(module="advisor.commands.analyze", summary="Say why a job failed, from a bundle or log files."),
    "bundle": Entry(module="advisor.commands.bundle", summary="Write a job's logs and facts into one folder."),
    "decisions": Entry(module="advisor.commands.decisions", summary="Who decided what, why, and what came of it."),
    "explain": Entry(module="advisor.commands.explain", summary="What happened to a job, in plain sentences."),
    "watch": Entry(module="advisor.commands.watch", summary="A live view of incidents and decisions."),
    "status": Entry(module="advisor.commands.status", summary="Whether it ticks; agents and sources."),
    "incidents": Entry(
        module="advisor.commands.history", app="incidents_app", summary="What went wrong, one per attempt."
    ),
    "attempts": Entry(
        module="advisor.commands.history", app="attempts_app", summary="Executions of jobs, and how far they came."
    ),
    "actions": Entry(
        module="advisor.commands.history", app="actions_app", summary="What agents did about advice, and why not."
    ),
    "timeline": Entry(
        module="advisor.commands.history", app="timeline_app", summary="All that happened to a job, oldest first."
    ),
    "veto": Entry(module="advisor.commands.orders", app="veto_app", summary="Do nothing about an attempt."),
    "withdraw": Entry(module="advisor.commands.orders", app="withdraw_app", summary="Take back what is advised now."),
    "override": Entry(
        module="advisor.commands.orders", app="override_app", summary="Order a restart or a stop instead."
    ),
    "orders": Entry(module="advisor.commands.orders", app="orders_app", summary="What operators ordered: see, lift."),
    "exclusions": Entry(
        module="advisor.commands.orders", app="exclusions_app", summary="Nodes that a job avoids: add and clear."
    ),
    "budget": Entry(
        module="advisor.commands.orders", app="budget_app", summary="What a job may spend on restarts: reset it."
    ),
    "correct": Entry(
        module="advisor.commands.corrections", app="correct_app", summary="Say what the right verdict had been."
    ),
    "corrections": Entry(
        module="advisor.commands.corrections", app="corrections_app", summary="Corrected verdicts, as test cases too."
    ),
    "replay": Entry(module="advisor.commands.replay", summary="Reproduce a decision from its stored inputs."),
    "audit": Entry(module="advisor.commands.audit", summary="Who did what; is the history what it was?"),
    "store": Entry(
        module="advisor.commands.store",
        summary="Back up, restore, migrate, and the database's lives.",
        examples=(
            "advisor store dump /var/backups/advisor-2026-12-01.dump",
            "advisor store restore /var/backups/advisor-2026-12-01.dump --yes",
            "advisor store incarnations",
            "sudo -u advisor advisor store dump /var/lib/recovery-advisor/today.dump",
        ),
    ),
    "backtest": Entry(module="advisor.commands.backtest", summary="Try another policy on decisions of the past."),
    "simulate": Entry(module="advisor.commands.simulate", summary="What recovery is worth, in seeded worlds."),
    "mode": Entry(module="advisor.commands.mode", summary="Monitor or autonomous: see and set."),
    "report": Entry(module="advisor.commands.report", summary="What advice is worth; how reliable the cluster is."),
    "shadow": Entry(module="advisor.commands.shadow", summary="Say what was really done about a failed attempt."),
    "slurm": Entry(module="advisor.commands.slurm", summary="Put our hooks into slurm.conf, and take them out."),
    "pause": Entry(module="advisor.commands.pause", summary="Act on nothing until a given time."),
    "resume": Entry(module="advisor.commands.resume", summary="End a pause."),
    "nodes": Entry(module="advisor.commands.nodes", summary="Nodes: their past, lemons, isolate and reinstate."),
    "rules": Entry(module="advisor.commands.rules", summary="Look at, check and run detection rules."),
    "config": Entry(module="advisor.commands.config", summary="Check and show the configuration."),
    "dashboard": Entry(module="advisor.commands.dashboard", summary="Show the dashboard on 127.0.0.1, to you alone."),
    "token": Entry(module="advisor.commands.token", summary="Static tokens for callers from afar."),
    "doctor": Entry(module="advisor.commands.doctor", summary="Check the installation and say what to do."),
    "completion": Entry(module="advisor.commands.completion", summary="Make your shell complete this command."),
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point. Exit 0 done, 1 failed, 2 wrong usage or unusable input, 130 interrupted before it began."""
    # Children (Postgres) are started beside gRPC's threads; its fork handlers only warn about that.
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        given = take_out(given, os.environ)
        if os.environ.get("ADVISOR_SERVER"):
            # What it says of a handshake that failed is said better, once, by the error.
            os.environ.setdefault("GRPC_VERBOSITY", "NONE")
        application(_typed_so_far() or given)(args=given, prog_name="advisor")
    except CommandError as error:
        complain(str(error))
        raise SystemExit(error.code) from None
    except KeyboardInterrupt:  # while modules were read; what runs ends by itself
        raise SystemExit(INTERRUPTED) from None
    except BrokenPipeError:
        # `advisor decisions list | head`: the reader has what it wanted.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(0) from None


def _typed_so_far() -> list[str]:
    """While a shell asks for completions: the words of its line behind `advisor`. The script it got asks this way."""
    if "_ADVISOR_COMPLETE" not in os.environ:
        return []
    from typer._completion_classes import completion_init

    completion_init()
    return (os.environ.get("_TYPER_COMPLETE_ARGS") or os.environ.get("COMP_WORDS") or "").split()[1:]


def application(arguments: Sequence[str]) -> typer.Typer:
    """The whole command tree, with only the command named in `arguments` imported."""
    app = typer.Typer(
        name="advisor",
        help=_with_examples(HELP, EXAMPLES),
        no_args_is_help=True,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        add_completion=False,
    )
    app.callback()(_root)
    named = next((argument for argument in arguments if not argument.startswith("-")), None)
    for name, entry in COMMANDS.items():
        if name == named:
            _add(app, name, entry)
        else:
            app.command(name, help=entry.summary)(_not_asked_for)
    app.command("version", hidden=True)(_version)  # as other programs are asked for it
    return app


def _print_version(asked: bool) -> None:
    if not asked:
        return
    from importlib.metadata import PackageNotFoundError, version

    try:
        typer.echo(f"advisor {version('recovery-advisor')}")
    except PackageNotFoundError:
        typer.echo("advisor (not installed: run from its source folder)")
    raise typer.Exit


def _version() -> None:
    _print_version(True)


def _root(
    version: bool = typer.Option(
        False, "--version", help="Print the version and exit.", is_eager=True, callback=_print_version
    ),
    server: str = typer.Option(
        "", help="Ask the advisor at host:port over TLS instead of the one on this host. Anywhere on the line."
    ),
    token_file: str = typer.Option("", help="With --server: the file that holds your token."),
    ca_file: str = typer.Option("", help="With --server: who signed its certificate. Default: the system's."),
    client_certificate: str = typer.Option("", help="With --server: a certificate instead of a token."),
    client_key: str = typer.Option("", help="With --client-certificate: its key."),
) -> None:
    """The options of another host are here to be shown: `take_out` has read them by now."""


def _not_asked_for() -> None:
    raise AssertionError("only the command that was named is run")


def _add(app: typer.Typer, name: str, entry: Entry) -> None:
    try:
        module = importlib.import_module(entry.module)
    except ModuleNotFoundError as error:
        if error.name == entry.module:
            raise CommandError(f"{name}: not part of this installation", code=2) from None
        raise CommandError(f"{name}: there is no Python module {error.name}: {NEEDS_SERVER}", code=2) from None
    commands: typer.Typer = getattr(module, entry.app)
    single = _single(commands)
    if single is not None:
        app.command(name, help=single.__doc__ or entry.summary)(single)
    else:
        app.add_typer(commands, name=name, help=_with_examples(entry.summary, entry.examples), no_args_is_help=True)


def _with_examples(summary: str, examples: Sequence[str]) -> str:
    """As a command's docstring has them: one a line, never folded."""
    return "\n".join([summary, "", "\b", "Examples:", *(f"  {line}" for line in examples)]) if examples else summary


def _single(commands: typer.Typer) -> Callable[..., Any] | None:
    """The one function of a module whose command has no subcommands."""
    if commands.registered_callback is None and not commands.registered_groups:
        registered = commands.registered_commands
        if len(registered) == 1:
            return registered[0].callback
    return None
