"""`advisor config`: what is wrong with the configuration, and what is in force."""

import os

import typer

from advisor import config
from advisor.clock import SystemClock
from advisor.commands.options import ConfigOption, FormatOption, load_config
from advisor.commands.output import CommandError, Format, one_line, print_json, print_table
from advisor.configured import load_rulebook, load_seal_key, load_site_rules, open_sources

app = typer.Typer(rich_markup_mode=None, help="Check and show the configuration.")


@app.command()
def check(configuration: ConfigOption = None, form: FormatOption = Format.TABLE) -> None:
    """Read what the service would read and list the problems: all of the file, and where it has none, all of the files
    and folders that it names. Exit 0 when there are none, 2 otherwise.

    \b
    Examples:
      advisor config check --config /etc/recovery-advisor/advisor.toml
    """
    path = config.find_file(configuration, os.environ)
    problems: tuple[config.Problem, ...] = ()
    try:
        check_referenced(config.load(path, os.environ).config)
    except config.ConfigError as error:
        problems = error.problems
    if form is not Format.TABLE:
        found = [{"key": item.key, "message": item.message, "origin": item.origin} for item in problems]
        print_json({"path": str(path) if path else None, "ok": not problems, "problems": found}, form)
    else:
        for problem in problems:
            print(one_line(str(problem)))
        if not problems:
            print(f"{path or 'no file, defaults and environment'}: no problems")
    if problems:
        raise typer.Exit(2)


def check_referenced(chosen: config.Config) -> None:
    """Read the files that the configuration names. Raises `ConfigError` with all problems."""
    problems: list[config.Problem] = []
    for step in (
        lambda: load_rulebook(chosen),
        lambda: load_seal_key(chosen),
        lambda: _check_site_rules(chosen),
        lambda: open_sources(chosen, SystemClock(), by_hand=True),
        lambda: config.read_dsn(chosen.store.dsn_file) if chosen.store.dsn_file is not None else None,
        lambda: _check_data_folder(chosen) if chosen.store.dsn_file is None else None,
    ):
        try:
            step()
        except config.ConfigError as error:
            problems.extend(error.problems)
    if problems:
        raise config.ConfigError(tuple(problems))


def _check_data_folder(chosen: config.Config) -> None:
    """What nobody can make it of. Who may write there depends on whom the service runs as, and is not looked at."""
    folder = chosen.service.data_dir
    there = next(path for path in (folder, *folder.parents) if os.path.lexists(path))
    found = ""
    if not there.is_dir():
        found = f"{there} is not a folder"
    elif there.resolve().is_relative_to("/proc") or there.resolve().is_relative_to("/sys"):
        found = f"{there} is the kernel's and keeps no files: choose another folder"
    if found:
        raise config.ConfigError((config.Problem(key="service.data_dir", message=found, origin=str(there)),))


def _check_site_rules(chosen: config.Config) -> None:
    """The service starts without the rules that are wrong; who checks wants to know of them."""
    site = load_site_rules(chosen)
    if site is not None and site.problems:
        raise config.ConfigError(
            tuple(config.Problem(key="job_rules_file", message=text, origin="rules") for text in site.problems)
        )


@app.command()
def show(configuration: ConfigOption = None, form: FormatOption = Format.TABLE) -> None:
    """Print every key with its value in force and where the value comes from. Secrets live in files: none is shown.

    \b
    Examples:
      advisor config show --format json
    """
    loaded = load_config(configuration)
    if form is not Format.TABLE:
        print_json({"path": str(loaded.path) if loaded.path else None, "config": config.as_tree(loaded.config)}, form)
        return
    rows = [(key, value, config.origin_of(key, loaded)) for key, value in config.flattened(loaded.config)]
    if not rows:
        raise CommandError("the configuration is empty")
    print_table(("key", "value", "from"), rows, empty="")
