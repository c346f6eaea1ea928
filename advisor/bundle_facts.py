"""A bundle's small files: job.json and attempts.jsonl. Each problem is one line that names the place.

Keys that we do not know are left alone (whoever wrote the bundle may know more); values of those we know are checked.
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

from advisor.core.hostlist import HostlistError, expand, short
from advisor.core.model import ExitStatus, PastAttempt
from advisor.core.words import Action, AttemptState, Category, Reason

FILE_BYTES_MAX = 4 << 30
JSON_BYTES_MAX = 32 << 20
YEARS = (1970, 9000)  # times are reckoned with, and the calendar ends
ATTEMPTS_MAX = 1_000
WORLD_SIZE_MAX = 1_000_000

# What Slurm prints where it has no value.
_NOTHING = ("", "(null)", "None", "None assigned", "N/A", "Unknown", "NONE")
STATES: Mapping[str, AttemptState] = {
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


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnRules:
    """A job's log rules as they were given, and where they stand: that locates what is wrong with them."""

    where: str
    data: bytes = b""
    problem: str = ""  # why there are none


@dataclass(slots=True, kw_only=True)
class JobFacts:
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
    rules: OwnRules | None = None


def open_regular(path: Path) -> int:
    """A descriptor of a regular file. Opened without following a link and without blocking, then checked."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise BundleError(f"{path}: a symbolic link, not a regular file") from error
        raise BundleError(f"{path}: {reason_of(error)}") from error
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        os.close(descriptor)
        raise BundleError(f"{path}: not a regular file")
    if status.st_size > FILE_BYTES_MAX:
        os.close(descriptor)
        raise BundleError(f"{path}: larger than {FILE_BYTES_MAX >> 30} GiB")
    return descriptor


def reason_of(error: OSError) -> str:
    return (error.strerror or "cannot be read").lower()


def _text(path: Path, bytes_max: int) -> str | None:
    """A small text file, None when it does not exist."""
    if not os.path.lexists(path):
        return None
    descriptor = open_regular(path)
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


def read_facts(path: Path) -> JobFacts | None:
    text = _text(path, JSON_BYTES_MAX)
    if text is None:
        return None
    value = _object(path, text, "")
    reader = _Reader(path, value)
    return JobFacts(
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
        rules=_own_rules(path, value.get("rules")),
    )


def _own_rules(path: Path, value: object) -> OwnRules | None:
    """Rules that stand in job.json itself, or in a file of the bundle that it names: no other file is opened."""
    if value is None:
        return None
    where = f"{path}: rules"
    if not isinstance(value, str):
        return OwnRules(where=where, data=json.dumps(value).encode())
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,200}", value):
        return OwnRules(where=where, problem="names no file of the bundle")
    file = path.parent / value
    text = _text(file, JSON_BYTES_MAX)
    if text is None:
        return OwnRules(where=where, problem=f"{value} is not in the bundle")
    return OwnRules(where=str(file), data=text.encode("utf-8", "surrogatepass"))


def given_rules(path: Path) -> OwnRules:
    """Rules from a file that somebody names by hand. Raises `BundleError`."""
    text = _text(path, JSON_BYTES_MAX)
    if text is None:
        raise BundleError(f"{path}: no such file")
    return OwnRules(where=str(path), data=text.encode("utf-8", "surrogatepass"))


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
        if value is None or value in _NOTHING:
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
        if value is None or value in _NOTHING:
            return None
        try:
            if isinstance(value, int | float) and not isinstance(value, bool):
                at = datetime.fromtimestamp(value, UTC)
            else:
                at = datetime.fromisoformat(value)
            at = at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC)
        except (ValueError, OverflowError, OSError, TypeError) as error:
            raise self._fail(key, "must be an ISO time or epoch seconds") from error
        if not YEARS[0] <= at.year <= YEARS[1]:
            raise self._fail(key, f"must be a time of the years {YEARS[0]} to {YEARS[1]}")
        return at


def _state(text: str) -> AttemptState | None:
    """Slurm's word, also as `CANCELLED by 1000` or with a suffix."""
    word = text.strip().upper().split(" ")[0].rstrip("+")
    return STATES.get(word, AttemptState.OTHER) if word else None


def _exit(path: Path, text: str) -> ExitStatus | None:
    if not text:
        return None
    code, _, signal = text.partition(":")
    if not re.fullmatch(r"\d{1,5}", code) or not re.fullmatch(r"\d{0,3}", signal):
        raise BundleError(f"{path}: exit_code: must be code:signal, like 1:0")
    return ExitStatus(code=int(code), signal=int(signal or 0))


def read_past(path: Path) -> tuple[PastAttempt, ...]:
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
                    started_at=reader.time("started_at"),
                    ended_at=reader.time("ended_at"),
                )
            )
        except ValueError as error:
            if isinstance(error, BundleError):
                raise BundleError(f"{error} (line {number})") from error
            raise BundleError(f"{path}: line {number}: {error}") from error
    return tuple(found)
