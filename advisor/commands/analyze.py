"""`advisor analyze PATH...`: why a job failed, from bundles, bare log files or a job id, and what to do.

Each path is judged by itself, unless it is said that all are of one job (`--one-job`, `--kernel`): two files may be of
two jobs, and nothing in them tells. Exit 0 with a verdict for every path. What cannot be used is one line on standard
error and exit 2; the verdicts of the other paths are printed all the same.
"""

import json
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from advisor.bundle_facts import BundleError, given_rules
from advisor.bundle_logs import READ_BYTES
from advisor.bundle_parts import Parts, parts_of, parts_together
from advisor.bundle_rules import read_judged
from advisor.clock import SystemClock
from advisor.commands.options import ConfigOption, SocketOption, given
from advisor.commands.output import CommandError, complain, one_line
from advisor.commands.verdict import verdict_text
from advisor.core.decide import decide
from advisor.core.document import analysis_document
from advisor.core.model import Decision
from advisor.core.policy import Policy
from advisor.core.rules import RuleSet, rule_of
from advisor.core.scan import Scanner
from advisor.core.words import Trust
from advisor.rules.loader import RulesError, load_rules

app = typer.Typer()
STDIN_BYTES_MAX = 1 << 30
_STDIN = Path("-")
_NODE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,252}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """What one verdict is about: as it was asked for, and where its files are. `kernel`: a node and its log.

    `shown`: by what paths are known to who asked, where they are others.
    """

    name: str
    paths: tuple[Path, ...]
    kernel: tuple[tuple[str, Path], ...] = ()
    together: bool = False
    shown: Mapping[Path, str] = field(default_factory=dict)

    def parts(self) -> Parts:
        return parts_together(self.paths, self.kernel) if self.together else parts_of(self.paths[0])

    def asked_for(self, label: str) -> str | None:
        """By what path the file was asked for that signals call so; None for one of a bundle."""
        bare = (path for path in self.paths if label in {path.name, str(path)} and not path.is_dir())
        return next((self.shown.get(path, str(path)) for path in bare), None)


class AnalyzeFormat(StrEnum):
    TEXT = "text"
    JSON = "json"
    JSONL = "jsonl"


@app.command()
def analyze(
    paths: Annotated[
        list[Path] | None,
        typer.Argument(
            help="Bundle folders or log files; - is standard input. Each is judged by itself.",
            metavar="[PATH...]",
            show_default=False,
        ),
    ] = None,
    job: Annotated[
        str | None, typer.Option("--job", metavar="JOB_ID", help="A live or past job, as `advisor bundle` gathers it.")
    ] = None,
    kernel: Annotated[
        list[str] | None,
        typer.Option(
            "--kernel",
            help="A node's kernel log (dmesg -T, journalctl -k): evidence beside the PATHs, which are of one job then. "
            "Any number.",
            metavar="NODE=FILE",
        ),
    ] = None,
    one_job: Annotated[
        bool, typer.Option("--one-job", help="All PATHs are of one job: one verdict from all of them.")
    ] = False,
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
      advisor analyze slurm-4711.out --kernel node2=node2-dmesg.txt
      advisor analyze rank0.log rank1.log --one-job
      ssh ctl cat job.out | advisor analyze -
    """
    given("--job", job)
    if (bool(paths) and job is not None) or not (paths or kernel or job is not None):
        raise CommandError("give either PATHs (bundle folders or log files) or --job JOB_ID", code=2)
    named = tuple(_node_and_file(text) for text in kernel or ())
    with _inputs(paths, job, named, one_job, socket, configuration) as inputs:
        complete = _print_verdicts(inputs, output, rules_files)
    if not complete:
        raise typer.Exit(2)


def _node_and_file(text: str) -> tuple[str, Path]:
    node, _, file = text.partition("=")
    if not file or not _NODE.fullmatch(node):
        raise CommandError(f"--kernel {one_line(text)}: say whose log it is, as NODE=FILE", code=2)
    return node, Path(file)


@contextmanager
def _inputs(
    paths: list[Path] | None,
    job: str | None,
    kernel: tuple[tuple[str, Path], ...],
    one_job: bool,
    socket: Path | None,
    configuration: Path | None,
) -> Iterator[list[Input]]:
    """What to analyse. What comes from a job or from standard input is put into a folder that goes away again."""
    asked = [*(paths or ()), *(path for _, path in kernel)]
    if asked.count(_STDIN) > 1:
        raise CommandError("-: standard input is read once", code=2)
    with ExitStack() as stack:
        there = {path: path for path in asked}
        if job is not None or _STDIN in asked:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="advisor-")))
            if _STDIN in asked:
                there[_STDIN] = folder / "stdin"
                _save_standard_input(there[_STDIN])
        shown = {is_at: str(path) for path, is_at in there.items() if is_at != path}
        kernel = tuple((node, there[path]) for node, path in kernel)
        if job is not None:
            gathered = _gathered(job, folder / "bundle", socket, configuration)
            yield [Input(name=f"job {job}", paths=(gathered,), kernel=kernel, together=bool(kernel), shown=shown)]
        elif kernel or one_job:
            name = " ".join(map(str, asked))
            files = tuple(there[path] for path in paths or ())
            yield [Input(name=name, paths=files, kernel=kernel, together=True, shown=shown)]
        else:
            yield [Input(name=str(path), paths=(there[path],), shown=shown) for path in asked]


def _gathered(job: str, folder: Path, socket: Path | None, configuration: Path | None) -> Path:
    from advisor.collecting import Wanted
    from advisor.commands.bundle import gather

    gathered = gather(Wanted(job_id=job), folder, socket=socket, configuration=configuration)
    for note in gathered.notes:
        complain(note)
    return gathered.folder


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
    documents: list[dict[str, Any]] = []
    for item in inputs:
        try:
            snapshot = read_judged(item.parts(), scanner, now, own_rules)
        except BundleError as error:
            problem = str(error)
            for path, name in item.shown.items():
                problem = problem.replace(str(path), name)
            complain(problem)
            continue
        decision = decide(snapshot, rules, Policy(), now)
        document = analysis_document(decision, snapshot)
        document = {"schema": document["schema"], "input": item.name} | document
        if not any(source["lines"] for source in document["attribution"]["sources"].values()):
            complain(f"{item.name}: holds no logs to judge by")
        if output is AnalyzeFormat.JSONL:
            print(json.dumps(document, ensure_ascii=True), flush=True)
        elif output is AnalyzeFormat.TEXT:
            if len(inputs) > 1:
                print(f"== {one_line(item.name)}")
            _print_text(item, decision, document, rules)
        documents.append(document)
    files = [item for item in inputs if not item.paths[:1] or not item.paths[0].is_dir()]
    if output is AnalyzeFormat.TEXT and len(files) > 1 and len(documents) > 1:
        print("\nEach was judged by itself. One verdict from all: --one-job, and --kernel NODE=FILE for a kernel log.")
    if output is AnalyzeFormat.JSON and documents:
        print(json.dumps(documents[0] if len(inputs) == 1 else documents, ensure_ascii=True, indent=2))
    return len(documents) == len(inputs)


def _print_text(item: Input, decision: Decision, document: Mapping[str, Any], rules: RuleSet) -> None:
    index = rules.by_id()
    titles = {rule.id: rule.title for rule in rules.rules}
    for signal in decision.incident.signals:
        rule = rule_of(signal, rules, index)  # of an Xid, what its code means
        if rule is not None:
            titles[signal.id] = rule.title
    print(verdict_text(document, titles), flush=True)
    nameless = (signal["file"] for signal in document["incident"]["signals"] if _of_no_node(signal))
    file = next((asked for label in nameless if (asked := item.asked_for(label)) is not None), None)
    if file is not None:
        file = one_line(file)
        print(f"\n{file} holds lines of a kernel, and of which node is not said: --kernel NODE={file} says it.")


def _of_no_node(signal: Mapping[str, Any]) -> bool:
    """What a kernel says, in a file that nobody has said to be a node's kernel log."""
    return str(signal["rule"]).startswith("kernel.") and signal["trust"] == Trust.LOG and not signal["nodes"]
