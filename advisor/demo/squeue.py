"""Reading squeue without believing what users write: columns that no user can write, counted rather than searched for.

Written apart from the agent's own reader on purpose: the tests must not share its mistakes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_FIELD_END = "\x1f"
_COLUMNS = (
    *("JobID", "State", "RestartCnt", "SubmitTime", "EligibleTime", "StartTime", "PriorityLong", "Reason"),
    *("NodeList", "UserName", "exit_code", "admin_comment"),
)
FORMAT = ",".join(f"{name}:{_FIELD_END}" for name in _COLUMNS)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRow:
    """One job as squeue shows it. Times are epoch seconds, None where Slurm has none."""

    job_id: int
    state: str
    restarts: int
    submitted: int | None
    eligible: int | None
    start: int | None
    priority: int
    reason: str
    nodes: str
    user: str
    exit_code: str
    admin_comment: str
    excluded: frozenset[str] = frozenset()


def parse_rows(listing: str, exclusions: str) -> dict[int, JobRow]:
    """Rows by job id, from `squeue -O FORMAT` and `squeue -o '%A|%x'`. What the second did not show, as where slurmctld
    ended between the two, is left out: that nothing is excluded would be a guess.
    """
    excluded = dict(line.split("|", 1) for line in exclusions.splitlines() if "|" in line)
    rows = {}
    # A row may hold line ends in its last column, written by an administrator: count columns, not lines.
    cells = listing.split(_FIELD_END)
    for begin in range(0, len(cells) - len(_COLUMNS) + 1, len(_COLUMNS)):
        row = _row([cell.strip("\n") for cell in cells[begin : begin + len(_COLUMNS)]], excluded)
        if str(row.job_id) in excluded:
            rows[row.job_id] = row
    return rows


def _row(cells: Sequence[str], excluded: Mapping[str, str]) -> JobRow:
    values = dict(zip(_COLUMNS, cells, strict=True))
    comment = values["admin_comment"]
    return JobRow(
        job_id=int(values["JobID"]),
        state=values["State"],
        restarts=int(values["RestartCnt"]),
        submitted=_epoch(values["SubmitTime"]),
        eligible=_epoch(values["EligibleTime"]),
        start=_epoch(values["StartTime"]),
        priority=int(values["PriorityLong"]),
        reason=values["Reason"],
        nodes=values["NodeList"],
        user=values["UserName"],
        exit_code=values["exit_code"],
        admin_comment="" if comment == "(null)" else comment,
        excluded=frozenset(_expand_simple(excluded.get(values["JobID"], ""))),
    )


def _epoch(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() else None


def _expand_simple(hostlist: str) -> list[str]:
    """`node[1-2,4],other` as names. This cluster's names have one bracket at most."""
    if hostlist in ("", "(null)", "N/A"):
        return []
    names: list[str] = []
    for part in _split_outside_brackets(hostlist):
        prefix, bracket, inner = part.partition("[")
        if not bracket:
            names.append(part)
            continue
        for span in inner.rstrip("]").split(","):
            low, _, high = span.partition("-")
            names.extend(f"{prefix}{number}" for number in range(int(low), int(high or low) + 1))
    return names


def _split_outside_brackets(text: str) -> list[str]:
    parts, depth, current = [], 0, ""
    for character in text:
        if character == "," and depth == 0:
            parts.append(current)
            current = ""
            continue
        depth += (character == "[") - (character == "]")
        current += character
    return [*parts, current]
