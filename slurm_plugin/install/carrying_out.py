"""A plan shown as diffs, and carried out: every file kept beside itself first, then replaced at once.

A file that no longer holds what the plan was made from stops everything that is still to come.
"""

import difflib
import os
import shutil
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

from slurm_plugin.install.plan import Change, Plan, RefusedError

COPIES_MAX = 10  # of one file within one second
OWN_LINES_MAX = 20  # a longer file of ours alone is named instead of printed


def shown(plan: Plan) -> Iterator[str]:
    """Lines to print: a diff per file, then the notes. Others' text is made printable; long files of ours are named."""
    for change in plan.changes:
        before, after = _lines(change.before), _lines(change.after)
        old = "/dev/null" if change.before is None else str(change.path)
        new = "/dev/null" if change.after is None else str(change.path)
        if change.ours and len(before or after) > OWN_LINES_MAX and not (before and after):
            gone = f"{_printable(str(change.path))}, {len(before or after)} lines"
            yield f"--- {gone}: ours, removed" if before else f"+++ {gone}: new, as it comes with slurm_plugin"
            continue
        yield from (_printable(line) for line in difflib.unified_diff(before, after, old, new, lineterm=""))
    yield from (f"note: {note}" for note in plan.notes)


def carry_out(plan: Plan, now: datetime) -> list[str]:
    """Make the changes, in order. Returns a line for each. Raises RefusedError, with what was done so far in place."""
    said = []
    for change in plan.changes:
        path = change.path.resolve()  # a link stays a link
        try:
            held = path.read_bytes() if path.exists() else None
            if held != change.before:
                raise RefusedError(f"{path} was changed in the meantime: start again")
            said.append(_one(path, change, now))
        except OSError as error:
            raise RefusedError(f"{error.filename}: {error.strerror}") from None
    return said


def _one(path: Path, change: Change, now: datetime) -> str:
    kept = None if change.ours or change.before is None else _kept(path, now)
    if change.after is None:
        path.unlink()
        if change.ours and not any(path.parent.iterdir()):
            path.parent.rmdir()
        return f"removed {path}" + (f" (kept as {kept})" if kept else "")
    path.parent.mkdir(mode=0o755, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with beside.open("xb") as file:
            file.write(change.after)
            file.flush()
            os.fsync(file.fileno())
        if change.before is None or change.ours:
            beside.chmod(change.mode)
        else:
            _like(path, beside)
            os.utime(beside)  # Slurm reads job_submit.lua again when its time has changed
        beside.replace(path)
    except OSError:
        beside.unlink(missing_ok=True)
        raise
    return f"wrote {path}" + (f" (kept as {kept})" if kept else "")


def _kept(path: Path, now: datetime) -> Path:
    name = f"{path.name}.before-recovery-advisor-{now:%Y%m%dT%H%M%SZ}"
    names = [name, *(f"{name}-{number}" for number in range(1, COPIES_MAX))]
    copy = next((path.with_name(item) for item in names if not os.path.lexists(path.with_name(item))), path)
    with copy.open("xb") as file:  # the folder may be SlurmUser's: no link of its own is followed
        file.write(path.read_bytes())
    _like(path, copy)
    return copy


def _like(path: Path, copy: Path) -> None:
    """Mode, times and owner of the original."""
    shutil.copystat(path, copy)
    owner = path.stat()
    os.chown(copy, owner.st_uid, owner.st_gid)


def _lines(raw: bytes | None) -> list[str]:
    return [] if raw is None else raw.decode("utf-8", "backslashreplace").split("\n")


def _printable(line: str) -> str:
    return "".join(char if char.isprintable() or char == "\t" else f"\\x{ord(char):02x}" for char in line)
