"""Which files beside StdOut and StdErr a job writes: patterns of the site, `logs/rank-%t.out`, found for one job.

`%j` job id, `%N` a node of the allocation, `%t` `%n` `%s` a number (task, relative node, step), `*` and `?` any
characters of a file's name. Numbers between `%` and the letter are allowed as in sbatch and mean nothing here. Folders
are relative to the one of StdOut, and hold no wildcards but `%j`. A pattern of `%j` and `%N` alone needs no right to
list the folder; for the others it is listed, and what keeps that from happening is told.
"""

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from advisor.core.words import UnavailableReason
from connectors.logs.opening import RefusedError, printable

LISTED_MAX = 20_000  # names looked at in one folder
FOUND_MAX = 8_192  # files of one job
PATTERN_CHARACTERS_MAX = 200
_TOKEN = re.compile(r"%(\d{0,2})([A-Za-z%])|([*?])", re.ASCII)
_NODE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,252}", re.ASCII)
_NUMBER = r"[0-9]{1,10}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    paths: tuple[str, ...] = ()
    refused: tuple[RefusedError, ...] = ()


def check_pattern(pattern: str) -> str:
    """What is wrong with it, "" when nothing is."""
    folder, _, name = pattern.rpartition("/")
    if not name or pattern.startswith("/") or len(pattern) > PATTERN_CHARACTERS_MAX:
        return f"give a file name, with folders below the one of StdOut, in {PATTERN_CHARACTERS_MAX} characters"
    if any(ord(character) < 0x20 or ord(character) == 0x7F for character in pattern) or ".." in pattern.split("/"):
        return "control characters and '..' have no place in it"
    for token in _TOKEN.finditer(folder):
        if token[2] not in {"j", "%"}:
            return f"{token[0]}: only %j may stand in a folder's name"
    for token in _TOKEN.finditer(name):
        if token[2] is not None and token[2] not in "jNtns%":
            return f"{token[0]}: known are %j %N %t %n %s %%"
    return ""


def find(stdout: str, patterns: Sequence[str], *, job_id: str, nodes: Iterable[str]) -> Found:
    """In a reading thread: it asks the file system."""
    base = stdout.rpartition("/")[0] or "/"
    hosts = [node for node in nodes if _NODE.fullmatch(node)]
    paths: dict[str, None] = {}
    refused: list[RefusedError] = []
    listed: dict[str, list[str]] = {}
    for pattern in patterns:
        below, _, name = pattern.rpartition("/")
        folder = f"{base.rstrip('/')}/{below.replace('%j', job_id).replace('%%', '%')}".rstrip("/")
        kinds = {token[2] or token[3] for token in _TOKEN.finditer(name)}
        if kinds <= {"j", "N", "%"}:
            named = _named(name, job_id, hosts)
        else:
            expression = re.compile(_expression(name, job_id, hosts), re.DOTALL)
            try:
                if folder not in listed:
                    listed[folder] = _names(folder)
            except RefusedError as why:
                refused.append(why)
                continue
            named = [found for found in listed[folder] if expression.fullmatch(found)]
            if len(listed[folder]) >= LISTED_MAX:
                refused.append(_limit(f"{printable(folder)}: only the first {LISTED_MAX} names were looked at"))
        paths |= dict.fromkeys(f"{folder}/{found}" for found in named)
    paths.pop(stdout, None)
    if len(paths) > FOUND_MAX:
        refused.append(_limit(f"{len(paths)} more files of this job, only {FOUND_MAX} are read"))
    return Found(paths=tuple(sorted(paths)[:FOUND_MAX]), refused=tuple(refused))


def _limit(text: str) -> RefusedError:
    return RefusedError(UnavailableReason.LIMIT, text)


def _named(name: str, job_id: str, hosts: Sequence[str]) -> list[str]:
    """The names themselves; those that are not there yet are no failure of the source."""
    if "N" not in {token[2] for token in _TOKEN.finditer(name)}:
        hosts = [""]
    values = {"j": job_id, "%": "%"}
    return [_TOKEN.sub(lambda token, host=host: values.get(token[2], host.split(".")[0]), name) for host in hosts]  # type: ignore[misc]  # mypy infers no type for a lambda with a default


def _expression(name: str, job_id: str, hosts: Sequence[str]) -> str:
    parts, place = [], 0
    for token in _TOKEN.finditer(name):
        parts.append(re.escape(name[place : token.start()]))
        place = token.end()
        match token[2] or token[3]:
            case "j":
                parts.append(re.escape(job_id))
            case "%":
                parts.append("%")
            case "N":
                parts.append(
                    "(?:" + "|".join(re.escape(host.split(".")[0]) for host in hosts) + ")" if hosts else "(?!)"
                )
            case "*":
                parts.append(".*")
            case "?":
                parts.append(".")
            case _:
                parts.append(_NUMBER)
    return "".join(parts) + re.escape(name[place:])


def _names(folder: str) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            return [entry.name for _, entry in zip(range(LISTED_MAX), entries, strict=False)]
    except FileNotFoundError:
        return []  # not there yet
    except PermissionError:
        text = (
            f"{printable(folder)} may not be listed, so files in it that a pattern names are not found: allow it with "
            "`setfacl -m u:USER:rx`, or use a pattern of %j and %N alone (docs/sources.md)"
        )
        raise RefusedError(UnavailableReason.PERMISSION, text) from None
    except OSError as error:
        raise RefusedError(UnavailableReason.REFUSED, f"{printable(folder)}: {error.strerror}") from None
