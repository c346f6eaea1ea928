"""What one verdict is made from: a bundle's files, a bare log, or several files that somebody says are of one job.

A kernel log that is named by hand is believed as one in a bundle's kernel/ is: whoever names it says that root
collected it, and from which node. Nothing in its text can say that.
"""

import os
import re
import stat
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from advisor.bundle_facts import BundleError, JobFacts, read_facts, read_past, reason_of
from advisor.bundle_logs import require_text
from advisor.core.hostlist import fold, short
from advisor.core.model import PastAttempt
from advisor.core.words import Trust

FILES_MAX = 5_000

_RANK_NAME = re.compile(r"(?:^|[._-])rank[._-]?(\d{1,7})(?=[._-]|$)", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogFile:
    """`label`: what signals call it, unique among the parts. `node`: whose kernel log it is, where somebody said so."""

    path: Path
    label: str
    node: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """The files and facts of one attempt. `name`: what it is called where no job id is known."""

    name: str
    facts: JobFacts
    logs: tuple[LogFile, ...] = ()
    kernel: tuple[LogFile, ...] = ()
    past: tuple[PastAttempt, ...] = ()
    dumps: tuple[Path, ...] = ()
    metrics: Path | None = None


def parts_of(path: Path) -> Parts:
    """Of a bundle folder or a bare log file, which must hold text. Raises `BundleError`."""
    if not _is_folder(path):
        require_text(path)
        return Parts(name=path.name, facts=JobFacts(), logs=(LogFile(path=path, label=path.name),))
    logs, kernel = _files(path / "logs"), _files(path / "kernel")
    facts = read_facts(path / "job.json")
    past = read_past(path / "attempts.jsonl")
    metrics = path / "metrics.json"
    if not logs and not kernel and facts is None and not metrics.is_file():
        raise BundleError(
            f"{path}: neither logs/ nor kernel/ nor job.json: not a bundle. Name its files, or put them into logs/"
        )
    return Parts(
        name=path.name,
        facts=facts or JobFacts(),
        logs=tuple(LogFile(path=item, label=str(item.relative_to(path))) for item in logs),
        kernel=tuple(LogFile(path=item, label=str(item.relative_to(path))) for item in kernel),
        past=past,
        dumps=tuple(_files(path / "flight_recorder")),
        metrics=metrics,
    )


def parts_together(paths: Sequence[Path], kernel: Sequence[tuple[str, Path]] = ()) -> Parts:
    """Of files that are all of one job: at most one bundle, any number of logs, and kernel logs with the node that each
    is of. Raises `BundleError`.
    """
    bundles = [path for path in paths if _is_folder(path)]
    if len(bundles) > 1:
        raise BundleError(f"{bundles[1]}: a second bundle: each is of a job of its own")
    logs = [path for path in paths if path not in bundles]
    of_kernel = [path for _, path in kernel]
    named = [*logs, *of_kernel]
    for path in named:
        require_text(path)
    begun = parts_of(bundles[0]) if bundles else Parts(name=named[0].name, facts=JobFacts())
    _require_allocated(begun.facts, kernel)
    told = zip(_labelled(of_kernel), kernel, strict=True)
    parts = replace(
        begun,
        logs=(*begun.logs, *_labelled(logs)),
        kernel=(*begun.kernel, *(replace(file, node=short(node)) for file, (node, _) in told)),
    )
    labels: set[str] = set()
    for file in (*parts.logs, *parts.kernel):
        if file.label in labels:
            raise BundleError(f"{file.path}: named twice")
        labels.add(file.label)
    return parts


def _labelled(paths: Sequence[Path]) -> list[LogFile]:
    """By their names, or by their paths where two have one name."""
    names = [path.name for path in paths]
    return [LogFile(path=path, label=path.name if names.count(path.name) == 1 else str(path)) for path in paths]


def _require_allocated(facts: JobFacts, kernel: Iterable[tuple[str, Path]]) -> None:
    if facts.nodes is None:
        return
    for node, path in kernel:
        if short(node) not in facts.nodes:
            raise BundleError(f"{path}: {node} is no node of this job, which ran on {fold(facts.nodes)}")


def rank_of_name(path: Path) -> int | None:
    """Of a log that is named after its rank."""
    match = _RANK_NAME.search(path.stem) or re.fullmatch(
        r"(?:log|out|err|stdout|stderr|task)[._-]?(\d{1,7})", path.stem
    )
    return int(match[1]) if match else None


def node_of_file(file: LogFile, nodes: tuple[str, ...] | None, trust: Trust) -> str | None:
    """A bundle's kernel log is named after its node. A log may be, when the allocation has such a node."""
    if file.node:
        return file.node
    stem = file.path.name
    for suffix in (".log", ".out", ".err", ".txt", ".kern", ".dmesg"):
        stem = stem.removesuffix(suffix)
    if nodes is not None:
        return next((node for node in nodes if re.search(rf"(?:^|[._-]){re.escape(node)}(?:$|[._-])", stem)), None)
    return short(stem) if trust is Trust.KERNEL else None


def _is_folder(path: Path) -> bool:
    try:
        mode = path.stat().st_mode
    except OSError as error:
        raise BundleError(f"{path}: {reason_of(error)}") from error
    if not stat.S_ISDIR(mode) and not stat.S_ISREG(mode):
        raise BundleError(f"{path}: neither a folder nor a regular file")
    return stat.S_ISDIR(mode)


def _files(folder: Path) -> list[Path]:
    """Regular files directly in a folder, by name; links and others are left out. A missing folder has none."""
    try:
        with os.scandir(folder) as entries:
            names = []
            for entry in entries:
                if entry.is_file(follow_symlinks=False):
                    names.append(entry.name)
                if len(names) > FILES_MAX:
                    raise BundleError(f"{folder}: more than {FILES_MAX} files")
    except FileNotFoundError:
        return []
    except OSError as error:
        raise BundleError(f"{folder}: {reason_of(error)}") from error
    return [folder / name for name in sorted(names)]
