"""`advisor doctor`: look at the installation from outside, and say of each thing whether it is well and what to do."""

import asyncio
import os
import pwd
import shutil
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import typer

from advisor import config as configuration_module
from advisor.app import StartError, check_import_names
from advisor.client import Client, ClientError, Refused
from advisor.clock import SystemClock
from advisor.commands import doctor_access, doctor_kernel, doctor_metrics, doctor_seals, doctor_slurm
from advisor.commands.config import check_referenced
from advisor.commands.doctor_checks import Check, State, checks_of
from advisor.commands.doctor_service import look_at_service
from advisor.commands.options import ConfigOption, FormatOption, SocketOption, find_socket
from advisor.commands.output import CommandError, Format, harmless, print_json
from advisor.commands.service_user import account_of, how_to_give, kept_from
from advisor.config import Config, ConfigError
from advisor.configured import load_rulebook, open_channels, open_opinions, open_sources
from advisor.core.hostlist import short
from advisor.core.model import NodeFact, Unavailable
from advisor.core.policy import Policy
from advisor.core.words import NodeState, UnavailableReason
from advisor.log_stores import look_at_kernel_store, look_at_store
from advisor.metrics_sources import open_metrics
from advisor.ports import LogBatch, LogRequest, SchedulerReader
from advisor.schedulers import open_scheduler
from advisor.wording import TO_DO_ABOUT
from connectors.kernel.files import KernelFileLogs
from connectors.logs.root_reader import RootReader
from slurm_plugin import consequences, watchdog_alive
from slurm_plugin.clock import SystemClock as SlurmClock
from slurm_plugin.squeue import SlurmConfig

app = typer.Typer(rich_markup_mode=None)

DISK_BYTES_MIN = 1024**3
WATCHDOG_TAKE_OVER_SECONDS = 15.0  # its own default; it shares no code with us
NODES_LOOKED_AT = 64  # of which metrics are looked for

_TO_DO_SLURM = "run this where Slurm's tools work, and name a job that `squeue -t all` still shows"
_PROBE_BYTES = 64 * 1024


@app.command()
def doctor(
    job: Annotated[str, typer.Option(help="Also try to read this job's output and its nodes' kernel logs.")] = "",
    socket: SocketOption = None,
    configuration: ConfigOption = None,
    form: FormatOption = Format.TABLE,
) -> None:
    """Check configuration, folders, service, store, sources, agent and modes. Exit 1 when anything fails.

    \b
    Examples:
      advisor doctor
      advisor doctor --format json
      sudo -u advisor advisor doctor --job 4711
    """
    checks = list(examine(socket, configuration, job))
    if form is not Format.TABLE:
        print_json([{"name": c.name, "state": c.state, "found": c.found, "to_do": c.to_do} for c in checks], form)
    else:
        for check in checks:
            print(f"{check.state:<5} {check.name:<16} {harmless(check.found)}")
            if check.to_do:
                print(f"{'':<23}→ {harmless(check.to_do)}")
    if any(check.state is State.FAIL for check in checks):
        raise typer.Exit(1)


def examine(socket: Path | None, configuration: Path | None, job: str = "") -> Iterator[Check]:
    """All checks, each on its own: one that fails does not hide the others."""
    yield _installation()
    if os.environ.get("ADVISOR_SERVER"):
        found = f"{os.environ['ADVISOR_SERVER']} is not asked: all of this is about the host that you are on"
        yield Check(name="--server", state=State.WARN, found=found, to_do="run doctor on the service's host")
    loaded: Config | None = None
    try:
        path = configuration_module.find_file(configuration, os.environ)
        loaded = configuration_module.load(path, os.environ).config
        check_referenced(loaded)
        yield Check(name="configuration", state=State.OK, found=str(path or "defaults and environment"))
    except ConfigError as error:
        for problem in error.problems:
            yield Check(name="configuration", state=State.FAIL, found=str(problem), to_do="correct it, then restart")
    if loaded is None:
        return
    yield look_at_data_folder(loaded)
    yield from look_at_watchdog(loaded, (path or configuration_module.SYSTEM_FILE).parent)
    who = account_of(loaded.service)
    yield from look_at_dsn_file(loaded, who)
    for seen in doctor_access.look_at_access(loaded.service.listen, SystemClock().now(), who):
        state = State.FAIL if seen.broken else State.WARN if seen.to_do else State.OK
        yield Check(name=seen.name, state=state, found=seen.found, to_do=seen.to_do)
    for item in doctor_seals.look_at_seals(loaded, SystemClock().now()):
        state = State.WARN if item.to_do else State.OK
        yield Check(name="seals", state=state, found=item.found, to_do=item.to_do)
    slurm = open_scheduler(loaded.slurm)
    yield from asyncio.run(look_at_scheduler(loaded, slurm, job))
    yield from look_at_root_readers(loaded)
    yield from asyncio.run(_kernel_files(loaded, slurm, who))
    yield from asyncio.run(look_at_log_stores(loaded, slurm))
    yield from asyncio.run(look_at_opinions(loaded))
    yield from asyncio.run(look_at_channels(loaded))
    yield from asyncio.run(_metrics(loaded, slurm))
    settings = asyncio.run(slurm.settings())
    yield from look_at_settings(settings)
    if not isinstance(settings, Unavailable):
        well, found, to_do = asyncio.run(doctor_slurm.look_at_accounting(slurm))
        yield Check(name="accounting", state=State.OK if well else State.WARN, found=found, to_do=to_do)
    try:
        with Client(find_socket(socket, configuration)) as client:
            yield from look_at_service(client, loaded)
    except Refused as error:
        to_do = "run doctor as root, the service's user or an operator: the rest is not for everybody to see"
        yield Check(name="service", state=State.WARN, found=str(error), to_do=to_do)
    except (ClientError, CommandError) as error:
        yield Check(
            name="service",
            state=State.FAIL,
            found=str(error),
            to_do="start it (advisor serve), and run doctor where it runs",
        )


def _installation() -> Check:
    try:
        check_import_names()
    except StartError as error:
        return Check(name="installation", state=State.FAIL, found=str(error), to_do="use an environment of its own")
    return Check(name="installation", state=State.OK, found="import names are ours alone")


def look_at_data_folder(chosen: Config) -> Check:
    folder = chosen.service.data_dir
    if not folder.is_dir():
        if chosen.store.dsn_file is not None:
            return Check(name="data folder", state=State.OK, found="none, and none is needed: store.dsn_file is set")
        return Check(name="data folder", state=State.WARN, found=f"{folder} does not exist yet", to_do="serve makes it")
    free = shutil.disk_usage(folder).free
    if free < DISK_BYTES_MIN:
        text = f"{free // 1024**2} MiB free under {folder}"
        return Check(name="data folder", state=State.FAIL, found=text, to_do="free space: the database needs it")
    return Check(name="data folder", state=State.OK, found=f"{folder}, {free // 1024**3} GiB free")


def look_at_watchdog(chosen: Config, folder: Path) -> Iterator[Check]:
    """Whether a watchdog lives, and gives another replica the time to take over, where its file is here beside ours.

    Over the database that an advisor starts for itself there is no other. What else is wrong with that file it says
    itself (advisor-watchdog --check).
    """
    file = folder / "watchdog.toml"
    try:
        sections = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return
    alive_file = Path(str(sections.get("alive_file", watchdog_alive.ALIVE_FILE)))
    seen = watchdog_alive.look(alive_file, boot_now=SlurmClock().boot())
    state = State.OK if seen.alive else State.WARN
    to_do = f"{seen.to_do}; where none is meant to run, remove {file}" if seen.to_do else ""
    yield Check(name="watchdog", state=state, found=seen.said, to_do=to_do)
    if chosen.store.dsn_file is None:
        return
    arithmetic = sections.get("arithmetic")
    given = arithmetic.get("take_over_seconds") if isinstance(arithmetic, dict) else None
    lease, tick = chosen.replicas.lease_seconds, chosen.tick.interval_seconds
    taken = given if isinstance(given, int | float) else WATCHDOG_TAKE_OVER_SECONDS
    if taken < lease + tick:
        found = (
            f"{file} reckons with a take-over in {taken:g} s, and one takes replicas.lease_seconds and a tick: "
            f"{lease + tick:g} s"
        )
        to_do = f"set arithmetic.take_over_seconds to {lease + 2 * tick:g}, then advisor-watchdog --check"
        yield Check(name="watchdog", state=State.WARN, found=found, to_do=to_do)


def look_at_dsn_file(chosen: Config, service: pwd.struct_passwd | None) -> Iterator[Check]:
    """Whether the account that the service runs as can read it; that root can says nothing."""
    file = chosen.store.dsn_file
    if file is not None and service is not None and kept_from(service, file):
        found = f"{service.pw_name}, who the service runs as, cannot read {file}"
        yield Check(name="store", state=State.FAIL, found=found, to_do=how_to_give(service, file))


async def look_at_scheduler(chosen: Config, scheduler: SchedulerReader, job: str) -> list[Check]:
    """Slurm as this user sees it, and whether the files of one job can be read by this user."""
    who = _own_name()
    seen = await scheduler.version()
    if isinstance(seen, Unavailable):
        # Only the agent needs Slurm's tools; without them there is less to look at here.
        found = f"not reachable from here: {seen.detail or seen.reason}"
        to_do = "well where no Slurm is meant to be; else see slurm.conf, munge and slurmctld on this host"
        checks = [Check(name="scheduler", state=State.WARN, found=found, to_do=to_do)]
        return [*checks, Check(name="job", state=State.FAIL, found=found, to_do=_TO_DO_SLURM)] if job else checks
    checks = [Check(name="scheduler", state=State.OK, found=f"{seen} answers {who}")]
    if not job:
        return checks
    shown = await scheduler.job(job)
    if shown is None or isinstance(shown, Unavailable):
        text = f"{job}: Slurm does not know it (any more)" if shown is None else f"{job}: {shown.detail}"
        return [*checks, Check(name="job", state=State.FAIL, found=text, to_do=_TO_DO_SLURM)]
    request = LogRequest(
        key=f"{job}/{shown.attempt.number}",
        job_id=shown.job.job_id,
        attempt=shown.attempt.number,
        user=shown.job.user,
        paths=tuple(path for path in (shown.stdout_path, shown.stderr_path) if path),
        nodes=shown.attempt.nodes or (),
        started_at=shown.attempt.started_at,
        ended_at=shown.attempt.ended_at,
        cursor="",
        bytes_max=_PROBE_BYTES,
    )
    for source in open_sources(chosen, SystemClock(), by_hand=True):
        checks.append(_readable(source.name, f"job {job}", who, (await source.read([request]))[request.key]))
        await source.close()
    return checks


async def _nodes_of(scheduler: SchedulerReader) -> Sequence[NodeFact]:
    """All that Slurm knows; none where it is not reachable, which is told elsewhere."""
    facts = await scheduler.nodes()
    return () if isinstance(facts, Unavailable) else facts


async def _kernel_files(chosen: Config, scheduler: SchedulerReader, service: pwd.struct_passwd | None) -> list[Check]:
    """The kernel logs in files of every node that Slurm knows."""
    clock = SystemClock()
    sources = [item for item in open_sources(chosen, clock, by_hand=True) if isinstance(item, KernelFileLogs)]
    nodes = [short(fact.name) for fact in await _nodes_of(scheduler)] if sources else []
    findings = await doctor_kernel.look_at_kernel_files(sources, nodes, service, clock.now())
    for source in sources:
        await source.close()
    return checks_of("kernel log", findings)


async def _metrics(chosen: Config, scheduler: SchedulerReader) -> list[Check]:
    """Every metrics source asked for real, about some of the nodes that Slurm says are up."""
    if not chosen.metrics:
        return []
    known = await _nodes_of(scheduler)
    nodes = [short(fact.name) for fact in known if fact.state is NodeState.UP][:NODES_LOOKED_AT]
    try:
        policy = load_rulebook(chosen).policy
    except ConfigError:
        policy = Policy()  # what is wrong with the site's own is told elsewhere
    clock = SystemClock()
    sources = open_metrics(chosen, clock)
    findings = await doctor_metrics.look_at_metrics(sources, nodes, policy, clock.now())
    for source in sources:
        await source.close()
    return checks_of("metrics", findings)


def look_at_settings(settings: SlurmConfig | Unavailable) -> Iterator[Check]:
    """Which of Slurm's settings matter, and what follows. Where Slurm is not reachable that has been said already."""
    if isinstance(settings, Unavailable):
        return
    for found in consequences.of(settings):
        state = State.WARN if found.to_do else State.OK
        yield Check(name=found.setting, state=state, found=found.text, to_do=found.to_do)


def look_at_root_readers(chosen: Config) -> Iterator[Check]:
    """Whether the root log reader answers the user who asks; it serves none but the advisor's own."""
    for path in sorted({str(item.root_reader) for item in chosen.logs if item.root_reader is not None}):
        reader = RootReader(path)
        wrong = reader.check()
        reader.close()
        if not wrong:
            yield Check(name="root reader", state=State.OK, found=f"{path} answers {_own_name()}")
            continue
        to_do = "start recovery-advisor-logreader, and run doctor as the user that its --client names (docs/sources.md)"
        yield Check(name="root reader", state=State.FAIL, found=wrong, to_do=to_do)


async def look_at_log_stores(chosen: Config, scheduler: SchedulerReader) -> list[Check]:
    """A real question to each configured log store, and what it shows."""
    stores = [section for section in chosen.logs if section.kind != "files"]
    kernels = [section for section in chosen.kernel if section.kind != "files"]
    nodes = [short(fact.name) for fact in await _nodes_of(scheduler)] if kernels else []
    looks = [(item.name, item.kind, await look_at_store(item, SystemClock())) for item in stores]
    looks += [(item.name, item.kind, await look_at_kernel_store(item, nodes, SystemClock())) for item in kernels]
    return [
        Check(
            name="log store",
            state=State.FAIL if not look.answers else State.WARN if look.to_do else State.OK,
            found=f"{name} ({kind}): {look.found}",
            to_do=look.to_do,
        )
        for name, kind, look in looks
    ]


async def look_at_opinions(chosen: Config) -> list[Check]:
    """Whether the attribution services of others answer."""
    checks = []
    for source in open_opinions(chosen, SystemClock()):
        missing = await source.check()
        await source.close()
        found = "answers" if missing is None else f"{missing.reason}: {missing.detail}"
        to_do = "" if missing is None else "see url and the service; verdicts do without it meanwhile"
        state = State.OK if missing is None else State.WARN
        checks.append(Check(name="attribution", state=state, found=f"{source.name}: {found}", to_do=to_do))
    return checks


async def look_at_channels(chosen: Config) -> list[Check]:
    """Whether a notice would get out on each channel; none is sent."""
    checks = []
    for channel in open_channels(chosen, SystemClock()):
        missing = await channel.notifier.check()
        await channel.notifier.close()
        if missing is None:
            found = f"{channel.notifier.name}: a notice would get out"
            checks.append(Check(name="notifications", state=State.OK, found=found))
            continue
        found = f"{channel.notifier.name}: {missing.reason}: {missing.detail}"
        to_do = "correct this channel; what is to be told waits for a day and is sent then"
        checks.append(Check(name="notifications", state=State.FAIL, found=found, to_do=to_do))
    return checks


def _own_name() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return f"uid {os.geteuid()}"


def _readable(source: str, job: str, who: str, answer: LogBatch | Unavailable) -> Check:
    missing = answer if isinstance(answer, Unavailable) else next(iter(answer.unavailable), None)
    if missing is None:
        return Check(name="files", state=State.OK, found=f"{source}: {who} can read them")
    text = f"{source}: {job}: {who} cannot read all: {missing.reason}: {missing.detail}"
    # A FIFO or a device as output is the user's choice: nothing of the installation is wrong.
    state = State.WARN if missing.reason == UnavailableReason.NOT_REGULAR else State.FAIL
    return Check(name="files", state=state, found=text, to_do=TO_DO_ABOUT.get(missing.reason, ""))
