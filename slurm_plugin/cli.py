"""`advisor-agent`: run, check, or look once."""

import argparse
import asyncio
import json
import logging
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

# gRPC would log about every Slurm tool we run; no fork handlers are needed, since we only ever exec.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

import structlog

from slurm_plugin import check, observe
from slurm_plugin.agent import Agent
from slurm_plugin.applier import apply_in_process
from slurm_plugin.config import AgentConfig, ConfigError, decode, load
from slurm_plugin.guard import phase_of
from slurm_plugin.hook_socket import HookSocketError
from slurm_plugin.install import command as install
from slurm_plugin.pace import Pace, paced
from slurm_plugin.squeue import Run, Slurm, SlurmError, run_process

DEFAULT_CONFIG = "/etc/recovery-advisor/agent.toml"
DEFAULT_WATCHDOG_CONFIG = "/etc/recovery-advisor/watchdog.toml"

_EXAMPLES = """\
examples:
  sudo -u slurm advisor-agent check         is all there that the agent needs?
  advisor-agent once --config agent.toml    what it sees, as JSON; tells nobody
  advisor-agent run --config agent.toml     until SIGTERM
  advisor-agent install-hooks --dry-run     what the hooks would change
"""


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="advisor-agent",
        description="The agent beside slurmctld: reports jobs and nodes, applies advice, verifies it.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = made.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, text in (
        ("run", "run until SIGTERM"),
        ("check", "say what `run` by this user would meet: Slurm's tools, rights, hook, files, advisor, watchdog"),
        ("once", "look once and print what would be reported"),
        ("install-hooks", "name our hooks in slurm.conf and job_submit.lua, before what the site has there"),
        ("uninstall-hooks", "take them out again"),
    ):
        command = commands.add_parser(name, help=text, description=text)
        command.add_argument(
            "--config", type=Path, default=Path(DEFAULT_CONFIG), metavar="FILE", help=f"default: {DEFAULT_CONFIG}"
        )
        if name == "run":
            command.add_argument("--log-level", default="info", choices=("debug", "info", "warning", "error"))
        if name == "check":
            command.add_argument(
                "--watchdog-config",
                type=Path,
                default=Path(DEFAULT_WATCHDOG_CONFIG),
                metavar="FILE",
                help=f"default: {DEFAULT_WATCHDOG_CONFIG}",
            )
        if name in install.NAMES:
            install.add_options(command)
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit 0: done. 1: something is missing. 2: unusable arguments or configuration."""
    options = parser().parse_args(arguments)
    try:
        config = _configuration(options)
    except ConfigError as error:
        for problem in error.problems:
            print(f"advisor-agent: {problem}", file=sys.stderr)
        return 2
    match options.command:
        case "run":
            return _run(config, options.log_level)
        case "check":
            return _check(config, options.watchdog_config)
        case "once":
            return _once(config)
        case _:
            return install.run(config, slurm_of(config), options)


def _configuration(options: argparse.Namespace) -> AgentConfig:
    """The hooks may be put in place before there is an agent.toml: then its defaults hold."""
    if options.command in install.NAMES and options.config == Path(DEFAULT_CONFIG) and not options.config.exists():
        return decode({"cluster": "none"}, os.environ)
    return load(options.config, os.environ)


def slurm_of(config: AgentConfig, run: Run = run_process) -> Slurm:
    where = config.slurm
    return Slurm(
        conf=where.conf, bin_dir=where.bin, timeout_seconds=where.timeout_seconds, run=run, listing=where.listing
    )


def _run(config: AgentConfig, level: str) -> int:
    _logging(level)
    log = structlog.get_logger("slurm_plugin")
    log.info(
        "agent_started", cluster=config.cluster, mode=config.mode, advisor=[reach.target for reach in config.reaches]
    )
    try:
        asyncio.run(_until_signal(config))
    except HookSocketError as error:
        log.error("hook_socket_unusable", problem=str(error))  # noqa: TRY400 - the line says it all
        return 1
    return 0


async def _until_signal(config: AgentConfig) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    pace = Pace(run_process, per_second=config.slurm.calls_per_second)
    agent = Agent(
        config,
        slurm_of(config, pace),
        accounting=slurm_of(config),
        apply=paced(apply_in_process, pace),
        scheduler_rpcs=lambda: pace.sent,
    )
    await agent.run(stop)


def _logging(level: str) -> None:
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
        logger_factory=structlog.WriteLoggerFactory(file=sys.stderr),
        cache_logger_on_first_use=True,
    )


def _once(config: AgentConfig) -> int:
    slurm = slurm_of(config)
    try:
        rows, details, nodes = slurm.jobs(), slurm.details(), slurm.nodes()
    except SlurmError as error:
        print(f"advisor-agent: {error}", file=sys.stderr)
        return 1
    by_id = {item.job_id: item for item in details.values()}
    jobs = []
    for row in rows:
        scope = observe.judge_scope(config.scope, row, observe.details_for(by_id, row))
        jobs.append(asdict(row) | {"phase": phase_of(row.state), "in_scope": scope.inside, "scope": scope.reason})
    print(json.dumps({"jobs": jobs, "nodes": [asdict(node) for node in nodes]}, indent=2))
    return 0


def _check(config: AgentConfig, watchdog_file: Path) -> int:
    """One line per finding. Exit 1 when the agent could not do its work."""
    bad = 0
    for finding in check.examine(config, slurm_of(config), watchdog_file):
        bad += finding.verdict is check.Verdict.BAD
        print(finding, flush=True)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
