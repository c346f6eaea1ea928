"""`advisor slurm install-hooks` and `uninstall-hooks`, which `advisor-agent` has by the same names."""

import argparse
import os
import sys
from datetime import UTC, datetime
from pathlib import Path

from slurm_plugin.config import AgentConfig
from slurm_plugin.install import carrying_out, plan
from slurm_plugin.install.plan import Exclude, Plan, RefusedError, Wanted
from slurm_plugin.squeue import Slurm, SlurmConfig, SlurmError, first_line

DEFAULT_CONF = "/etc/slurm/slurm.conf"
NAMES = ("install-hooks", "uninstall-hooks")
_NEXT = """\
Nothing was reconfigured. So that slurmctld takes notice (where slurm.conf is copied to other hosts, copy it first):
  scontrol reconfigure"""
_FIRST = """\
slurmctld had no EpilogSlurmctld before. A reconfigure alone does not make it call its first one: restart it once. Until
then ends of jobs are noticed by polling; job_submit.lua works at once."""
_RESTART = """\
slurmctld had no EpilogSlurmctld before. After a reconfigure it goes on logging "run_command: no script specified" for
each job until it is restarted; jobs run as always."""


def add_options(command: argparse.ArgumentParser) -> None:
    how = command.add_mutually_exclusive_group(required=True)
    how.add_argument("--dry-run", action="store_true", help="show what would be changed, as diffs; touch nothing")
    how.add_argument("--apply", action="store_true", help="show it, keep copies, and change it")
    command.add_argument("--slurm-conf", type=Path, metavar="FILE", help="default: the one that slurmctld reads")
    command.add_argument("--reconfigure", action="store_true", help="afterwards also run `scontrol reconfigure`")
    command.add_argument("--offline", action="store_true", help="slurmctld is stopped: do not ask it anything")
    if command.prog.endswith(" install-hooks"):
        command.add_argument("--no-epilog", action="store_true", help="leave EpilogSlurmctld alone")
        command.add_argument("--no-job-submit", action="store_true", help="leave job_submit.lua alone")
        command.add_argument("--no-tag", action="store_true", help="do not tag jobs that opt in or out in AdminComment")
        command.add_argument(
            "--exclude-isolated",
            choices=[item.value for item in Exclude],
            default=Exclude.NONE.value,
            help="whose jobs avoid, from submission on, nodes that the advisor has isolated",
        )
        command.add_argument("--plugin-dir", type=Path, metavar="FOLDER", help="where job_submit_lua.so lies")


def run(config: AgentConfig, slurm: Slurm, options: argparse.Namespace) -> int:
    """Exit 0: done, or nothing to do. 1: refused; one line says where and why."""
    installing = options.command == NAMES[0]
    try:
        settings = None if options.offline else _settings(slurm)
        wanted = _wanted(config, settings, options)
        made = plan.install(wanted) if installing else plan.uninstall(wanted, in_use=_in_use(wanted, settings))
        for line in carrying_out.shown(made):
            print(line)
        if not made.changes:
            print("nothing to do" if not made.notes else "nothing to do now")
            return 0
        if options.dry_run:
            print(f"\nfiles that would be changed: {len(made.changes)}; --apply does it")
            return 0
        print()
        for line in carrying_out.carry_out(made, _now()):
            print(line)
        return _afterwards(slurm, made, wanted, settings, options)
    except (RefusedError, SlurmError) as error:
        print(f"advisor-agent: {options.command}: {error}", file=sys.stderr)
        return 1


def _now() -> datetime:
    return datetime.now(UTC)  # noqa: TID251 - names the copies that are kept, decides nothing


def _settings(slurm: Slurm) -> SlurmConfig:
    try:
        return slurm.config()
    except SlurmError as error:
        raise RefusedError(f"slurmctld does not say what it reads ({error}); if it is stopped: --offline") from None


def _wanted(config: AgentConfig, settings: SlurmConfig | None, options: argparse.Namespace) -> Wanted:
    given = options.slurm_conf or config.slurm.conf or (settings.conf_file if settings else "")
    conf = Path(given or os.environ.get("SLURM_CONF", "") or DEFAULT_CONF)
    if not conf.is_absolute():
        conf = Path.cwd() / conf
    chosen = getattr(options, "plugin_dir", None)
    known = tuple(Path(part) for part in settings.plugin_dir.split(":") if part) if settings else ()
    return Wanted(
        conf=conf,
        hook_socket=config.hook_socket,
        isolated_file=str(config.isolated_path),
        epilog=not getattr(options, "no_epilog", False),
        job_submit=not getattr(options, "no_job_submit", False),
        tag=not getattr(options, "no_tag", False),
        exclude=Exclude(getattr(options, "exclude_isolated", Exclude.NONE.value)),
        plugin_dirs=(chosen,) if chosen else known,
    )


def _in_use(wanted: Wanted, settings: SlurmConfig | None) -> bool:
    return settings is not None and settings.epilog_slurmctld.startswith(f"{wanted.folder}/")


def _afterwards(
    slurm: Slurm, made: Plan, wanted: Wanted, settings: SlurmConfig | None, options: argparse.Namespace
) -> int:
    installing = options.command == NAMES[0]
    confs = [change for change in made.changes if change.path.suffix != ".lua" and change.path.parent != wanted.folder]
    if not confs or options.offline:
        return 0
    if not options.reconfigure:
        print(f"\n{_NEXT}")
    else:
        out = slurm.tool("scontrol", "reconfigure")
        if out.returncode != 0:
            raise RefusedError(f"scontrol reconfigure: {first_line(out.stderr)}")
        print("slurmctld has read slurm.conf again")
        if not installing:
            # What it called until now had to stay; whether it still does is asked, not assumed.
            rest = plan.uninstall(wanted, in_use=_in_use(wanted, _settings(slurm)))
            for line in (*carrying_out.carry_out(rest, _now()), *(f"note: {note}" for note in rest.notes)):
                print(line)
    named = plan.epilog_of(wanted)
    if installing and named and settings is not None and not settings.epilog_slurmctld:
        print(f"\n{_FIRST}")
    if not installing and named is None:
        print(f"\n{_RESTART}")
    return 0
