"""`advisor serve`: run the service until SIGTERM or SIGINT."""

import asyncio
import logging
import os
import sys
from pathlib import Path

import structlog
import typer

from advisor.app import Running, StartError, check_import_names
from advisor.app import serve as serve_until_stopped
from advisor.commands.options import ConfigOption, load_config
from advisor.commands.output import CommandError
from advisor.config import Config, ConfigError, LogSection

app = typer.Typer(rich_markup_mode=None)

_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


@app.command()
def serve(configuration: ConfigOption = None) -> None:
    """Run the service. Without a configuration it listens on a Unix socket only and runs its own Postgres.

    Exit 2 when the configuration, or a file that it names, cannot be used; 1 when the service cannot start or go on.

    \b
    Examples:
      advisor serve
      advisor serve --config /etc/recovery-advisor/advisor.toml
    """
    loaded = load_config(configuration)
    set_up_logging(loaded.config.log)
    _tell_root(loaded.config)
    try:
        check_import_names()
        asyncio.run(serve_until_stopped(loaded.config, ready=lambda running: _tell(running, loaded.path)))
    except StartError as error:
        raise CommandError(str(error), code=2 if isinstance(error.__cause__, ConfigError) else 1) from None


def _tell_root(chosen: Config) -> None:
    """Root leaves files that the service's own user cannot use later."""
    folder = chosen.service.data_dir
    owner = folder.stat().st_uid if folder.is_dir() else 0
    if os.geteuid() == 0 and owner == 0 and chosen.store.dsn_file is None:
        why = "its files will be root's, and a service of another user cannot use them: chown -R first, then run as it"
        structlog.get_logger(__name__).warning("serving_as_root", data_dir=str(folder), why=why)


def _tell(running: Running, path: Path | None) -> None:
    structlog.get_logger(__name__).info("service_ready", socket=str(running.socket), config=str(path or "defaults"))


def set_up_logging(section: LogSection) -> None:
    """Our own events on standard error: JSON for machines, lines for a terminal. Libraries speak from warning on."""
    as_lines = section.format == "console" or (section.format == "auto" and sys.stderr.isatty())
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    rendering: list[structlog.typing.Processor] = (
        # The plain form: the rich one prints local variables, and those hold users' log lines.
        [structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback)]
        if as_lines
        else [structlog.processors.format_exc_info, structlog.processors.JSONRenderer(default=str)]
    )
    structlog.configure(
        processors=[*shared, *rendering],
        wrapper_class=structlog.make_filtering_bound_logger(_LEVELS[section.level]),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(name)s: %(message)s")
