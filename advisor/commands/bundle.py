"""`advisor bundle`: a job's logs and facts in one folder, to look at, to send, to analyse elsewhere."""

import asyncio
import os
from pathlib import Path
from typing import Annotated

import typer

from advisor.client import ClientError
from advisor.clock import SystemClock
from advisor.collecting import CollectError, Gathered, Wanted, gather_bundle
from advisor.commands.options import ConfigOption, FormatOption, SocketOption, load_config, open_client
from advisor.commands.output import CommandError, Format, complain, harmless, print_json
from advisor.config import Config
from advisor.core import codec
from advisor.core.model import Snapshot
from advisor.log_stores import open_whole_store
from advisor.replay import Inputs
from advisor.schedulers import open_scheduler
from advisor.v1 import audit_pb2
from connectors.kernel.files import KernelFileLogs
from connectors.logs.files import JobFileLogs
from connectors.logs.source import ReadLimits
from connectors.logs.threads import ThreadLimits

app = typer.Typer(rich_markup_mode=None)

DECISIONS_MAX = 50
# An operator waits for a large file; a file system that hangs must still let go of him.
LIMITS = ReadLimits(threads=ThreadLimits(deadline_seconds=60.0, patience_seconds=20.0))

SlurmConfOption = Annotated[Path | None, typer.Option("--slurm-conf", help="Default: $SLURM_CONF, as Slurm's tools.")]
SlurmBinOption = Annotated[Path | None, typer.Option("--slurm-bin", help="Folder of Slurm's tools. Default: PATH.")]


@app.command()
def bundle(
    job_id: Annotated[str, typer.Argument(metavar="JOB_ID", help="As Slurm prints it: 17, or 19_2 for an array task.")],
    output: Annotated[
        Path | None,
        typer.Option(help="Folder to make. Default: job-ID, or job-ID-attempt-N with --attempt, in the current one."),
    ] = None,
    attempt: Annotated[int | None, typer.Option(min=0, help="Default: the newest that has begun.")] = None,
    redact: Annotated[bool, typer.Option("--redact", help="Replace users, hosts, paths and addresses.")] = False,
    logs: Annotated[list[Path] | None, typer.Option("--log", help="A log file to add; may be repeated.")] = None,
    slurm_conf: SlurmConfOption = None,
    slurm_bin: SlurmBinOption = None,
    socket: SocketOption = None,
    configuration: ConfigOption = None,
    form: FormatOption = Format.TABLE,
) -> None:
    """Write a job's logs and facts into one folder, for `advisor analyze` or for others.

    \b
    Examples:
      advisor bundle 4711
      advisor bundle 4711 --attempt 0 --redact --output /tmp/incident
    """
    wanted = Wanted(job_id=job_id, attempt=attempt, redact=redact, extra_logs=tuple(logs or ()))
    made = gather(
        wanted, output, socket=socket, configuration=configuration, slurm_conf=slurm_conf, slurm_bin=slurm_bin
    )
    for note in made.notes:
        complain(note)
    if form is not Format.TABLE:
        print_json(
            {"folder": str(made.folder), "attempt": made.attempt, "redacted": redact, "notes": list(made.notes)}, form
        )
    else:
        print(harmless(str(made.folder)))


def gather(
    wanted: Wanted,
    folder: Path | None,
    *,
    socket: Path | None = None,
    configuration: Path | None = None,
    slurm_conf: Path | None = None,
    slurm_bin: Path | None = None,
) -> Gathered:
    """Collect from the configured service, Slurm and files. Also what `analyze --job` uses. Raises `CommandError`."""
    config = load_config(configuration).config
    stored = stored_snapshots(wanted.job_id, socket, configuration)
    target = folder or Path(
        f"job-{wanted.job_id}" + (f"-attempt-{wanted.attempt}" if wanted.attempt is not None else "")
    )
    if target.exists():
        raise CommandError(f"{target} exists already: give another --output", code=2)
    before = os.umask(0o077)  # logs are their owner's business
    try:
        return asyncio.run(_gather(wanted, target, config, stored, slurm_conf, slurm_bin))
    except CollectError as error:
        raise CommandError(str(error)) from None
    finally:
        os.umask(before)


async def _gather(
    wanted: Wanted,
    target: Path,
    config: Config,
    stored: list[Snapshot] | str,
    slurm_conf: Path | None,
    slurm_bin: Path | None,
) -> Gathered:
    clock = SystemClock()
    stores = [item for item in config.logs if item.kind != "files"]
    only_stores = len(stores) == len(config.logs) > 0
    more = next((item.extra_files for item in config.logs if item.kind == "files"), ())
    outputs = (
        open_whole_store(stores[0], clock) if only_stores else JobFileLogs(clock=clock, extra_files=more, limits=LIMITS)
    )
    try:
        return await gather_bundle(
            wanted,
            target,
            stored=stored,
            scheduler=open_scheduler(config.slurm, conf=slurm_conf, bin_dir=slurm_bin),
            outputs=outputs,
            kernels=[KernelFileLogs(item.name, clock=clock, path=item.path, limits=LIMITS) for item in config.kernel],
            clock=clock,
        )
    finally:
        await outputs.close()


def stored_snapshots(job_id: str, socket: Path | None, configuration: Path | None) -> list[Snapshot] | str:
    """What the service stored with its decisions on this job, newest first; why not, when it cannot be asked."""
    try:
        with open_client(socket, configuration) as client:
            chosen = audit_pb2.Filter(job_id=job_id)
            found: dict[int, Snapshot] = {}
            key = ""
            for decision in client.decisions(chosen, most=DECISIONS_MAX):
                attempt = decision.advice.attempt
                key = key or attempt.job_key  # ids are reused: only the newest job of this id is meant
                if attempt.job_key == key and attempt.attempt not in found:
                    inputs = client.decision_inputs(decision.advice.advice_id)
                    found[attempt.attempt] = codec.decode(Inputs, inputs.inputs).snapshot
    except ClientError as error:
        return str(error)
    except codec.CodecError as error:
        return f"its stored decisions are of another version: {error}"
    return list(found.values())
