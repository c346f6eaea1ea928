"""Where a batch job's StdOut and StdErr are: Slurm's `%` patterns expanded by ourselves. Standard library only.

Slurm prints the expanded path only beside text that users can forge. The rules are those of sbatch(1), "filename
pattern", as run by 22.05.8 (docs/slurm.md): `%j %A %a %x %u %N %n %t %J %s %%`, a number before the letter pads numeric
values with zeros, `\\\\` anywhere switches patterns off, a relative path starts at the working directory, and with no
path given it is `slurm-%j.out` or, for an array task, `slurm-%A_%a.out`.
"""

import re
from dataclasses import dataclass

PATH_CHARACTERS_MAX = 4096
_PATTERN = re.compile(r"%(\d{0,2})([A-Za-z%])", re.ASCII)
_REST = re.compile(r"%(\d{0,2})([Jsnt])", re.ASCII)
_PADDING_MAX = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class PatternValues:
    """What the patterns stand for in a batch script, which is node 0, task 0 of its own step."""

    job_id: str
    array_job_id: str = ""
    array_task: int | None = None
    name: str = ""
    user: str = ""
    batch_host: str = ""
    work_dir: str = ""


def expand_path(pattern: str, values: PatternValues, *, expanded: bool = False) -> str:
    """An absolute path, or "" when none can be told. The result is the user's choice: open it as such.

    `expanded`: Slurm has done it already, and a `%` that is left is one of the file's own name.
    """
    if expanded and pattern:
        path = pattern
    elif not pattern:
        path = expand_path("slurm-%A_%a.out" if values.array_task is not None else "slurm-%j.out", values)
    elif "\\\\" in pattern:
        path = re.sub(r"\\(.)", r"\1", pattern, flags=re.DOTALL)
    else:
        path = _PATTERN.sub(lambda found: _value(found, values), pattern)
    if not path.startswith("/"):
        if not values.work_dir.startswith("/"):
            return ""
        path = f"{values.work_dir.rstrip('/')}/{path}"
    return path if len(path) <= PATH_CHARACTERS_MAX and "\x00" not in path else ""


def expand_rest(path: str, job_id: str) -> str:
    """What Slurm's own tools of 23.02 to 24.11 leave in a path and slurmd does not: `%J %s %n %t`.

    Not undone: with `\\\\` in it, which tells slurmd to leave patterns alone, these tools expand all the same.
    """
    values = PatternValues(job_id=job_id)
    return _REST.sub(lambda found: _value(found, values), path)


def _value(found: re.Match[str], values: PatternValues) -> str:
    width, letter = found.group(1), found.group(2)
    numbers = {
        "j": values.job_id,
        "A": values.array_job_id or values.job_id,
        "a": str(values.array_task) if values.array_task is not None else "4294967294",
        "n": "0",
        "t": "0",
        "J": values.job_id,
    }
    if letter in numbers:
        return numbers[letter].zfill(min(int(width or 0), _PADDING_MAX))
    texts = {
        "%": "%",
        "s": "batch",
        "x": values.name,
        "u": values.user,
        "N": values.batch_host.split(".", 1)[0],
    }
    return texts.get(letter, found.group(0))
