"""`advisor analyze PATH...`: why a job failed, from bundles, bare log files or a job id, and what to do.

Exit 0 with a verdict for every path. What cannot be used is one line on standard error and exit 2; the verdicts of the
other paths are printed all the same.
"""

import json
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from advisor.bundle_facts import BundleError, OwnRules, given_rules
from advisor.bundle_logs import READ_BYTES
from advisor.bundle_rules import read_judged
from advisor.clock import SystemClock
from advisor.commands.options import ConfigOption, SocketOption, given
from advisor.commands.output import CommandError, complain, one_line
from advisor.commands.verdict import verdict_text
from advisor.core.decide import decide
from advisor.core.document import analysis_document
from advisor.core.policy import Policy
from advisor.core.rules import RuleSet
from advisor.core.scan import Scanner
from advisor.rules.loader import RulesError, load_rules

app = typer.Typer()
STDIN_BYTES_MAX = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """One thing to analyse: as it was asked for, and where it is."""

    name: str
    path: Path


class AnalyzeFormat(StrEnum):
    TEXT = "text"
    JSON = "json"
    JSONL = "jsonl"


@app.command()
def analyze(
    paths: Annotated[
        list[Path] | None,
        typer.Argument(
            help="Bundle folders or log files; - is standard input.", metavar="[PATH...]", show_default=False
        ),
    ] = None,
    job: Annotated[
        str | None, typer.Option("--job", metavar="JOB_ID", help="A live or past job, as `advisor bundle` gathers it.")
    ] = None,
    output: Annotated[
        AnalyzeFormat, typer.Option("--format", help="text, json, or jsonl: one verdict a line.")
    ] = AnalyzeFormat.TEXT,
    rules_files: Annotated[
        list[Path] | None,
        typer.Option(
            "--rules",
            help="More signatures, as TOML (any number), or the job's own log rules, as JSON (one).",
            metavar="FILE",
        ),
    ] = None,
    socket: SocketOption = None,
    configuration: ConfigOption = None,
) -> None:
    """Say why a job failed, from bundles, log files, or a job id.

    \b
    Examples:
      advisor analyze slurm-4711.out
      advisor analyze /tmp/incident --format json
      advisor analyze --job 4711
      ssh ctl cat job.out | advisor analyze -
    """
    given("--job", job)
    if bool(paths) == (job is not None):
        raise CommandError("give either PATHs (bundle folders or log files) or --job JOB_ID", code=2)
    with _inputs(paths, job, socket, configuration) as inputs:
        complete = _print_verdicts(inputs, output, rules_files)
    if not complete:
        raise typer.Exit(2)


@contextmanager
def _inputs(
    paths: list[Path] | None, job: str | None, socket: Path | None, configuration: Path | None
) -> Iterator[list[Input]]:
    """What to analyse. What comes from a job or from standard input is put into a folder that goes away again."""
    if job is None:
        given_paths = list(paths or ())
        if Path("-") not in given_paths:
            yield [Input(name=str(path), path=path) for path in given_paths]
            return
        with tempfile.TemporaryDirectory(prefix="advisor-") as folder:
            copy = Path(folder) / "stdin"
            _save_standard_input(copy)
            yield [Input(name=str(path), path=copy if path == Path("-") else path) for path in given_paths]
        return
    from advisor.collecting import Wanted
    from advisor.commands.bundle import gather

    with tempfile.TemporaryDirectory(prefix="advisor-") as folder:
        gathered = gather(Wanted(job_id=job), Path(folder) / "bundle", socket=socket, configuration=configuration)
        for note in gathered.notes:
            complain(note)
        yield [Input(name=f"job {job}", path=gathered.folder)]


def _save_standard_input(copy: Path) -> None:
    """Read twice, as files are: once for what it is, once for what it says."""
    left = STDIN_BYTES_MAX
    with copy.open("xb") as file:
        while data := sys.stdin.buffer.read(READ_BYTES):
            left -= len(data)
            if left < 0:
                raise CommandError(f"-: longer than {STDIN_BYTES_MAX >> 30} GiB", code=2)
            file.write(data)


def _print_verdicts(inputs: list[Input], output: AnalyzeFormat, rules_files: list[Path] | None) -> bool:
    """Print the verdicts there are. False when an input could not be used: that is told on standard error."""
    now = SystemClock().now()
    own = [path for path in rules_files or () if path.suffix == ".json"]
    if len(own) > 1:
        raise CommandError("--rules: a job has one file of log rules (JSON)", code=2)
    try:
        own_rules = given_rules(own[0]) if own else None
        rules = load_rules(tuple(path for path in rules_files or () if path not in own))
    except BundleError as error:
        raise CommandError(str(error), code=2) from error
    except RulesError as error:
        more = f" (and {len(error.problems) - 1} more)" if len(error.problems) > 1 else ""
        raise CommandError(f"rules: {error.problems[0]}{more}", code=2) from error
    scanner = Scanner(rules)
    titles = {rule.id: rule.title for rule in rules.rules}
    documents: list[dict[str, Any]] = []
    for item in inputs:
        try:
            document = analyze_path(item.path, scanner, rules, Policy(), now, own_rules)
        except CommandError as error:
            complain(str(error).replace(str(item.path), item.name))
            continue
        document = {"schema": document["schema"], "input": item.name} | document
        if not any(source["lines"] for source in document["attribution"]["sources"].values()):
            complain(f"{item.name}: holds no logs to judge by")
        if output is AnalyzeFormat.JSONL:
            print(json.dumps(document, ensure_ascii=True), flush=True)
        elif output is AnalyzeFormat.TEXT:
            if len(inputs) > 1:
                print(f"== {one_line(item.name)}")
            print(verdict_text(document, titles), flush=True)
        documents.append(document)
    if output is AnalyzeFormat.JSON and documents:
        print(json.dumps(documents[0] if len(inputs) == 1 else documents, ensure_ascii=True, indent=2))
    return len(documents) == len(inputs)


def analyze_path(
    path: Path, scanner: Scanner, rules: RuleSet, policy: Policy, now: datetime, own_rules: OwnRules | None = None
) -> dict[str, Any]:
    """The analysis document of one bundle or file. Raises `CommandError` for unusable input."""
    try:
        snapshot = read_judged(path, scanner, now, own_rules)
    except BundleError as error:
        raise CommandError(str(error), code=2) from error
    return analysis_document(decide(snapshot, rules, policy, now), snapshot)
