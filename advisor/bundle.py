"""Incident bundles: a folder with a job's logs and facts, read into a snapshot and written from one.

    logs/*            text; names may carry rank or node: rank12.log, node03.out
    job.json          what the scheduler knew (optional)
    kernel/*          one kernel log per node, named after it: trusted, since root collected it (optional)
    attempts.jsonl    earlier attempts with their fingerprints and progress (optional)
    metrics.json, flight_recorder/   (optional)

A bare log file is a bundle without facts. A bundle may come from anywhere: regular files only (a FIFO or a device is
never opened), everything bounded, and each problem is one line that names the place.

Errors:
    BundleError(ValueError)
"""

import errno
import json
import os
import re
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from advisor.core.hostlist import HostlistError, expand, fold, short
from advisor.core.model import (
    Attempt,
    ExitStatus,
    Job,
    PastAttempt,
    Signal,
    Snapshot,
    SourceReport,
    Unavailable,
)
from advisor.core.progress import combine
from advisor.core.scan import FileContext, FileState, Scanner, fold_signals
from advisor.core.words import Action, AttemptState, Category, Reason, Role, Trust, UnavailableReason

FILES_MAX = 5_000
FILE_BYTES_MAX = 4 << 30
JSON_BYTES_MAX = 32 << 20
READ_BYTES = 1 << 20
SIGNALS_MAX = 500
ATTEMPTS_MAX = 1_000
WORLD_SIZE_MAX = 1_000_000
HANG_SECONDS = 600.0  # silence beyond this in a bundle without a state: it was taken from a job that still ran

_RANK_NAME = re.compile(r"(?:^|[._-])rank[._-]?(\d{1,7})(?=[._-]|$)", re.IGNORECASE)
_JOB_KEYS = frozenset(
    "job_id user state exit_code nodes world_size tasks_per_node rank_to_node restarts start end silent_seconds "
    "cluster partition account name nodes_requested".split()
)
_STATES: Mapping[str, AttemptState] = {
    "PENDING": AttemptState.PENDING,
    "RUNNING": AttemptState.RUNNING,
    "COMPLETING": AttemptState.COMPLETING,
    "SUSPENDED": AttemptState.SUSPENDED,
    "COMPLETED": AttemptState.COMPLETED,
    "FAILED": AttemptState.FAILED,
    "CANCELLED": AttemptState.CANCELLED,
    "TIMEOUT": AttemptState.TIME_LIMIT,
    "DEADLINE": AttemptState.TIME_LIMIT,
    "NODE_FAIL": AttemptState.NODE_FAILURE,
    "PREEMPTED": AttemptState.PREEMPTED,
    "OUT_OF_MEMORY": AttemptState.OUT_OF_MEMORY,
    "BOOT_FAIL": AttemptState.LAUNCH_FAILURE,
    "SPECIAL_EXIT": AttemptState.REQUEUE_HELD,
    "REQUEUED": AttemptState.PENDING,
}


class BundleError(ValueError):
    """The input cannot be used. One line: place, then what is wrong."""


@dataclass(slots=True, kw_only=True)
class _Facts:
    """What job.json said, checked."""

    job_id: str = ""
    user: str = ""
    cluster: str = ""
    state: AttemptState | None = None
    exit: ExitStatus | None = None
    nodes: tuple[str, ...] | None = None
    world_size: int | None = None
    tasks_per_node: int | None = None
    rank_nodes: dict[int, str] = field(default_factory=dict)
    restarts: int = 0
    started_at: datetime | None = None
    ended_at: datetime | None = None
    silent_seconds: float | None = None


def read_bundle(path: Path, scanner: Scanner, now: datetime) -> Snapshot:
    """One bundle folder or log file as a snapshot (`offline`). Raises `BundleError`."""
    kind = _kind(path)
    if kind == "file":
        return _snapshot(path, _Facts(), [path], [], (), scanner, now)
    logs = _files(path / "logs")
    kernel = _files(path / "kernel")
    facts = _facts(path / "job.json")
    past = _past(path / "attempts.jsonl")
    if not logs and not kernel and facts is None:
        raise BundleError(f"{path}: neither logs/ nor kernel/ nor job.json: not a bundle")
    return _snapshot(path, facts or _Facts(), logs, kernel, past, scanner, now)


def _kind(path: Path) -> str:
    try:
        mode = path.stat().st_mode
    except OSError as error:
        raise BundleError(f"{path}: {_why(error)}") from error
    if stat.S_ISDIR(mode):
        return "folder"
    if stat.S_ISREG(mode):
        return "file"
    raise BundleError(f"{path}: neither a folder nor a regular file")


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
        raise BundleError(f"{folder}: {_why(error)}") from error
    return [folder / name for name in sorted(names)]


def _open(path: Path) -> int:
    """A descriptor of a regular file. Opened without following a link and without blocking, then checked."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise BundleError(f"{path}: a symbolic link, not a regular file") from error
        raise BundleError(f"{path}: {_why(error)}") from error
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        os.close(descriptor)
        raise BundleError(f"{path}: not a regular file")
    if status.st_size > FILE_BYTES_MAX:
        os.close(descriptor)
        raise BundleError(f"{path}: larger than {FILE_BYTES_MAX >> 30} GiB")
    return descriptor


def _why(error: OSError) -> str:
    return (error.strerror or "cannot be read").lower()


def _text(path: Path, bytes_max: int) -> str | None:
    """A small text file, None when it does not exist."""
    if not os.path.lexists(path):
        return None
    descriptor = _open(path)
    with os.fdopen(descriptor, "rb") as file:
        data = file.read(bytes_max + 1)
    if len(data) > bytes_max:
        raise BundleError(f"{path}: larger than {bytes_max >> 20} MiB")
    return data.decode("utf-8", "replace")


def _object(path: Path, text: str, where: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BundleError(f"{path}: {where}not JSON: {str(error)[:120]}") from error
    if not isinstance(value, dict):
        raise BundleError(f"{path}: {where}must be a JSON object")
    return value


def _facts(path: Path) -> _Facts | None:
    text = _text(path, JSON_BYTES_MAX)
    if text is None:
        return None
    value = _object(path, text, "")
    reader = _Reader(path, value)
    unknown = sorted(set(value) - _JOB_KEYS)
    if unknown:
        raise BundleError(f"{path}: unknown key {unknown[0]!r}")
    facts = _Facts(
        job_id=str(value.get("job_id") or ""),
        user=str(value.get("user") or ""),
        cluster=str(value.get("cluster") or ""),
        state=_state(reader.text("state")),
        exit=_exit(path, reader.text("exit_code")),
        nodes=reader.hosts("nodes"),
        world_size=reader.count("world_size"),
        tasks_per_node=reader.count("tasks_per_node"),
        rank_nodes=reader.rank_nodes("rank_to_node"),
        restarts=reader.count("restarts") or 0,
        started_at=reader.time("start"),
        ended_at=reader.time("end"),
        silent_seconds=reader.seconds("silent_seconds"),
    )
    return facts


class _Reader:
    """Typed keys of job.json, with errors that name the key."""

    def __init__(self, path: Path, value: Mapping[str, Any]) -> None:
        self._path = path
        self._value = value

    def _fail(self, key: str, what: str) -> BundleError:
        return BundleError(f"{self._path}: {key}: {what}")

    def text(self, key: str) -> str:
        value = self._value.get(key)
        if value is None:
            return ""
        if not isinstance(value, str):
            raise self._fail(key, "must be text")
        return value

    def count(self, key: str) -> int | None:
        value = self._value.get(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= WORLD_SIZE_MAX:
            raise self._fail(key, f"must be a whole number from 0 to {WORLD_SIZE_MAX}")
        return value

    def seconds(self, key: str) -> float | None:
        value = self._value.get(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e9:
            raise self._fail(key, "must be a number of seconds")
        return float(value)

    def hosts(self, key: str) -> tuple[str, ...] | None:
        value = self._value.get(key)
        if value is None or value == "":
            return None
        text = ",".join(map(str, value)) if isinstance(value, list) else value
        if not isinstance(text, str):
            raise self._fail(key, "must be a Slurm hostlist")
        try:
            return tuple(dict.fromkeys(short(node) for node in expand(text)))
        except HostlistError as error:
            raise self._fail(key, str(error)) from error

    def rank_nodes(self, key: str) -> dict[int, str]:
        value = self._value.get(key)
        if value is None:
            return {}
        items: Sequence[tuple[Any, Any]]
        if isinstance(value, list):
            items = list(enumerate(value))
        elif isinstance(value, dict):
            items = list(value.items())
        else:
            raise self._fail(key, "must map ranks to nodes")
        found: dict[int, str] = {}
        for rank, node in items:
            if not str(rank).isdigit() or len(str(rank)) > 7 or not isinstance(node, str):
                raise self._fail(key, "must map ranks to nodes")
            found[int(rank)] = short(node)
        return found

    def time(self, key: str) -> datetime | None:
        value = self._value.get(key)
        if value is None:
            return None
        try:
            if isinstance(value, int | float) and not isinstance(value, bool):
                return datetime.fromtimestamp(value, UTC)
            at = datetime.fromisoformat(value)
        except (ValueError, OverflowError, OSError, TypeError) as error:
            raise self._fail(key, "must be an ISO time or epoch seconds") from error
        return at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC)


def _state(text: str) -> AttemptState | None:
    """Slurm's word, also as `CANCELLED by 1000` or with a suffix."""
    word = text.strip().upper().split(" ")[0].rstrip("+")
    return _STATES.get(word, AttemptState.OTHER) if word else None


def _exit(path: Path, text: str) -> ExitStatus | None:
    if not text:
        return None
    code, _, signal = text.partition(":")
    if not re.fullmatch(r"\d{1,5}", code) or not re.fullmatch(r"\d{0,3}", signal):
        raise BundleError(f"{path}: exit_code: must be code:signal, like 1:0")
    return ExitStatus(code=int(code), signal=int(signal or 0))


def _past(path: Path) -> tuple[PastAttempt, ...]:
    """Earlier attempts, oldest first, one JSON object a line."""
    text = _text(path, JSON_BYTES_MAX)
    if text is None:
        return ()
    found: list[PastAttempt] = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        if len(found) >= ATTEMPTS_MAX:
            raise BundleError(f"{path}: more than {ATTEMPTS_MAX} attempts")
        value = _object(path, line, f"line {number}: ")
        reader = _Reader(path, value)
        try:
            found.append(
                PastAttempt(
                    number=reader.count("number") or len(found),
                    category=Category(value.get("category", "unknown")),
                    fingerprint=reader.text("fingerprint"),
                    reason=Reason(value["reason"]) if value.get("reason") else None,
                    action=Action(value["action"]) if value.get("action") else None,
                    implicated_nodes=reader.hosts("implicated_nodes") or (),
                    excluded_nodes=reader.hosts("excluded_nodes") or (),
                    trusted=value.get("trusted") is True,
                    nodes=reader.hosts("nodes") or (),
                    first_step=reader.count("first_step"),
                    last_step=reader.count("last_step"),
                    checkpoint_step=reader.count("checkpoint_step"),
                    ended_at=reader.time("ended_at"),
                )
            )
        except ValueError as error:
            if isinstance(error, BundleError):
                raise BundleError(f"{error} (line {number})") from error
            raise BundleError(f"{path}: line {number}: {error}") from error
    return tuple(found)


def _snapshot(
    path: Path,
    facts: _Facts,
    logs: Sequence[Path],
    kernel: Sequence[Path],
    past: tuple[PastAttempt, ...],
    scanner: Scanner,
    now: datetime,
) -> Snapshot:
    if not facts.rank_nodes and logs:
        facts.rank_nodes = _labelled_hosts(logs[0], facts.nodes)
    files: dict[str, FileState] = {}
    signals: tuple[Signal, ...] = ()
    sources: list[SourceReport] = []
    for trust, paths in ((Trust.LOG, logs), (Trust.KERNEL, kernel)):
        name = "logs" if trust is Trust.LOG else "kernel"
        lines = foreign = 0
        newest: datetime | None = None
        dropped = 0
        for item in paths:
            state, found, seen = _scan_file(item, path, name, trust, facts, scanner, now, signals)
            signals = found
            files[_label(item, path)] = state
            lines += state.line
            foreign += state.foreign
            dropped += state.dropped
            newest = max((at for at in (newest, seen) if at is not None), default=None)
        missing = Unavailable(source=name, reason=UnavailableReason.MISSING) if not paths else None
        sources.append(
            SourceReport(
                source=name,
                trust=trust,
                unavailable=missing,
                newest_at=newest,
                lines=lines,
                foreign=foreign,
                capped=dropped > 0,
            )
        )
    progress = combine({name: state.progress for name, state in files.items()})
    state = facts.state or _likely_state(facts, signals, progress.finished)
    return Snapshot(
        job=Job(
            key=facts.job_id or path.name,
            cluster=facts.cluster,
            job_id=facts.job_id,
            user=facts.user,
            nodes_requested=len(facts.nodes) if facts.nodes else None,
        ),
        attempt=Attempt(
            number=facts.restarts,
            state=state,
            nodes=facts.nodes,
            exit=facts.exit,
            started_at=facts.started_at,
            ended_at=facts.ended_at,
            world_size=facts.world_size,
            tasks_per_node=facts.tasks_per_node,
            rank_nodes=facts.rank_nodes,
            silent_seconds=facts.silent_seconds,
        ),
        signals=signals,
        progress=progress,
        sources=tuple(sources),
        past=past,
        offline=True,
    )


def _likely_state(facts: _Facts, signals: Sequence[Signal], finished: bool) -> AttemptState:
    """The state of a job whose bundle does not give it: an exit code tells, then long silence, then what was printed."""
    if facts.exit is not None:
        return AttemptState.COMPLETED if (facts.exit.code, facts.exit.signal) == (0, 0) else AttemptState.FAILED
    if facts.silent_seconds is not None and facts.silent_seconds >= HANG_SECONDS:
        return AttemptState.RUNNING
    if finished:
        return AttemptState.COMPLETED
    telling = any(signal.role in {Role.INITIATING, Role.SYMPTOM, Role.CASCADE, Role.TEARDOWN} for signal in signals)
    return AttemptState.FAILED if telling else AttemptState.OTHER


def _scan_file(
    item: Path,
    root: Path,
    source: str,
    trust: Trust,
    facts: _Facts,
    scanner: Scanner,
    now: datetime,
    signals: tuple[Signal, ...],
) -> tuple[FileState, tuple[Signal, ...], datetime | None]:
    context = FileContext(
        source=source,
        trust=trust,
        file=_label(item, root),
        node=_node_of_name(item, facts.nodes, trust),
        rank=_rank_of_name(item) if trust is Trust.LOG else None,
        nodes=facts.nodes,
        started_at=facts.started_at,
        tasks_per_node=facts.tasks_per_node,
        world_size=facts.world_size,
        rank_nodes=facts.rank_nodes,
        live=False,
    )
    state = FileState()
    newest: datetime | None = None
    with os.fdopen(_open(item), "rb", buffering=0) as file:
        final = False
        while not final:
            data = file.read(READ_BYTES)
            final = not data
            scanned = scanner.scan(context, state, data, fresh=False, final=final, seen_at=now)
            state = scanned.state
            newest = scanned.newest_at or newest
            if scanned.signals or scanned.repeats:
                signals = fold_signals(signals, scanned, SIGNALS_MAX)
    return state, signals, newest if newest != now else None


def _label(item: Path, root: Path) -> str:
    """The file's name inside its bundle; a bare file is called by its own."""
    return str(item.relative_to(root)) if item != root else item.name


def _rank_of_name(item: Path) -> int | None:
    match = _RANK_NAME.search(item.stem) or re.fullmatch(
        r"(?:log|out|err|stdout|stderr|task)[._-]?(\d{1,7})", item.stem
    )
    return int(match[1]) if match else None


def _node_of_name(item: Path, nodes: tuple[str, ...] | None, trust: Trust) -> str | None:
    """A kernel log is named after its node. A log may be, when the allocation has such a node."""
    stem = item.name
    for suffix in (".log", ".out", ".err", ".txt", ".kern", ".dmesg"):
        stem = stem.removesuffix(suffix)
    if nodes is not None:
        return next((node for node in nodes if re.search(rf"(?:^|[._-]){re.escape(node)}(?:$|[._-])", stem)), None)
    return short(stem) if trust is Trust.KERNEL else None


def _labelled_hosts(path: Path, nodes: tuple[str, ...] | None) -> dict[int, str]:
    """`2: worker-1` lines, as `srun --label hostname` prints them: which task runs where."""
    with os.fdopen(_open(path), "rb") as file:
        head = file.read(READ_BYTES)
    found: dict[int, str] = {}
    for match in re.finditer(rb"(?m)^ *(\d{1,7}) ?: ([A-Za-z][A-Za-z0-9-]{0,62}\d)(?:\.[\w.-]+)?\s*$", head):
        node = match[2].decode("ascii")
        if nodes is None or node in nodes:
            found.setdefault(int(match[1]), node)
    return found


def write_bundle(
    folder: Path, *, job: Mapping[str, Any], logs: Mapping[str, bytes], kernel: Mapping[str, bytes] | None = None
) -> None:
    """Write a bundle folder, which must not exist yet. `logs` and `kernel`: contents by plain file name.

    Raises `BundleError` for a name that is not plain and for what the file system refuses.
    """
    parts = {"logs": logs, "kernel": kernel or {}}
    for part, contents in parts.items():
        for name in contents:
            if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,200}", name):
                raise BundleError(f"{folder}: {part}/{name!r}: not a plain file name")
    try:
        folder.mkdir(parents=True)
        (folder / "job.json").write_text(json.dumps(dict(job), indent=1, ensure_ascii=True) + "\n", "utf-8")
        for part, contents in parts.items():
            if contents:
                (folder / part).mkdir()
            for name, data in contents.items():
                (folder / part / name).write_bytes(data)
    except OSError as error:
        raise BundleError(f"{folder}: {_why(error)}") from error


def job_facts(snapshot: Snapshot) -> dict[str, Any]:
    """A snapshot's job.json: what `read_bundle` needs to see the same attempt."""
    attempt, job = snapshot.attempt, snapshot.job
    names = {state: word for word, state in reversed(_STATES.items())}
    facts: dict[str, Any] = {"job_id": job.job_id, "user": job.user, "restarts": attempt.number}
    if attempt.state in names:
        facts["state"] = names[attempt.state]
    if attempt.exit is not None:
        facts["exit_code"] = f"{attempt.exit.code}:{attempt.exit.signal}"
    if attempt.nodes is not None:
        facts["nodes"] = fold(attempt.nodes)
    for key, value in (("world_size", attempt.world_size), ("tasks_per_node", attempt.tasks_per_node)):
        if value is not None:
            facts[key] = value
    if attempt.rank_nodes:
        facts["rank_to_node"] = {str(rank): node for rank, node in sorted(attempt.rank_nodes.items())}
    for key, at in (("start", attempt.started_at), ("end", attempt.ended_at)):
        if at is not None:
            facts[key] = at.isoformat()
    if snapshot.progress.last_line_at is not None and attempt.ended_at is None:
        silence = attempt.silent_seconds
        if silence is not None:
            facts["silent_seconds"] = silence
    return facts
