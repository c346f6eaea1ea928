"""What Slurm's accounting remembers of attempts that slurmctld has forgotten. Standard library only.

`sacct -D` has a row per attempt. Its rows end with a line end, which a job's name or comment may hold too; so every
field ends with a delimiter drawn for the one call, and the last column is the first one again: a record is that many
fields, whatever is written in them. Asked is slurmdbd, not slurmctld, and only for what a start after a silence, or a
person, needs: never by the tick.

Errors: `SlurmError`, with the problem "not_configured" where the site keeps no accounting: nothing is wrong then.
"""

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from slurm_plugin.hostlist import HostlistError, expand
from slurm_plugin.records import TIME_END, JobDetails, JobRow, SlurmError, exit_status
from slurm_plugin.squeue import OUTPUT_BYTES_MAX, Slurm, first_line

# No user can write the first ones; what users write is kept apart by the delimiter alone.
COLUMNS = (
    *("JobIDRaw", "JobID", "State", "ExitCode", "Submit", "Eligible", "Start", "End", "NodeList", "User", "UID"),
    *("Partition", "NNodes", "Reason", "Account", "JobName", "WorkDir", "Comment", "AdminComment", "JobIDRaw"),
)
JOBS_MAX = 2000  # of one question
RECORDS_MAX = 50_000
_JOBS_PER_CALL = 200
_DISABLED = ("accounting storage is disabled", "slurmdbd is not configured", "accounting_storage/none")
_WHOLE = re.compile(r"\d{1,18}\Z", re.ASCII)
_STATE = re.compile(r"([A-Z_]+)(?: by (\d{1,10}))?\Z", re.ASCII)
_ID = re.compile(r"(?:(\d{1,10})[_+])?(\d{1,10})\Z", re.ASCII)
_REQUEUED = "REQUEUED"
_OVER = frozenset(
    {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "PREEMPTED", "OUT_OF_MEMORY", "BOOT_FAIL", "DEADLINE"}
)
# After these Slurm may go on with the same job; a row after any other is another job that was given the same id.
_MAY_GO_ON = frozenset({_REQUEUED, "NODE_FAIL", "PREEMPTED", "SPECIAL_EXIT", "BOOT_FAIL"})


@dataclass(frozen=True, slots=True, kw_only=True)
class PastAttempt:
    """One attempt as accounting has it. `row.restarts` is its number; `cancelled_by` the uid that cancelled it.

    `requeued`: it ended by being requeued; then its state is that of its exit, where there was one, else OTHER's.
    """

    row: JobRow
    details: JobDetails
    requeued: bool = False
    cancelled_by: int | None = None

    @property
    def over(self) -> bool:
        return self.row.end is not None and (self.row.state in _OVER)


def ended(slurm: Slurm, *, since: int, until: int) -> tuple[PastAttempt, ...]:
    """Every attempt of the jobs that ended between two epochs; at most JOBS_MAX jobs, the newest. Raises SlurmError.

    A job's rows are numbered from its first one, so they are asked for by id, whenever they began.
    """
    window = ("-S", f"uts{since}", "-E", f"uts{until}")
    raw = _answer(slurm, "-a", "-X", "-D", "-n", "-P", *window, "-o", "JobIDRaw")
    ids = list(dict.fromkeys(raw.decode("ascii", "replace").split()))
    if not all(map(_WHOLE.match, ids)):
        raise SlurmError("garbled", "sacct: not a list of job ids")
    ids = sorted(ids, key=int)[-JOBS_MAX:]
    found: list[PastAttempt] = []
    for at in range(0, len(ids), _JOBS_PER_CALL):
        found.extend(of_jobs(slurm, *ids[at : at + _JOBS_PER_CALL]))
    return tuple(past for past in found if past.row.end is not None and since <= past.row.end <= until)


def of_jobs(slurm: Slurm, *ids: str) -> tuple[PastAttempt, ...]:
    """Every attempt of the jobs named, each job's oldest first. Raises SlurmError."""
    delimiter = f"\x1f{os.urandom(8).hex()}"
    which = ("-a", "-X", "-D", "-n", "-P", f"--delimiter={delimiter}", "-j", ",".join(ids))
    return parse(_answer(slurm, *which, "-o", ",".join(COLUMNS)), delimiter=delimiter)


def _answer(slurm: Slurm, *arguments: str) -> bytes:
    out = slurm.tool("sacct", *arguments)
    said = first_line(out.stderr)
    if any(word in out.stderr.decode("utf-8", "replace").lower() for word in _DISABLED):
        raise SlurmError("not_configured", f"sacct: {said}")
    if out.returncode != 0 or out.stderr.strip():
        raise SlurmError("refused", f"sacct: status {out.returncode}: {said}")
    if len(out.stdout) > OUTPUT_BYTES_MAX:
        raise SlurmError("garbled", f"sacct: {len(out.stdout)} bytes are more than any listing")
    return out.stdout


def parse(raw: bytes, *, delimiter: str) -> tuple[PastAttempt, ...]:
    """Records of COLUMNS. Believed as a whole or not at all."""
    text = raw.decode("utf-8", "surrogateescape")
    if not text:
        return ()
    *fields, last = text.split(delimiter)
    width = len(COLUMNS) - 1
    if len(fields) % width or len(fields) // width > RECORDS_MAX or not last.endswith("\n"):
        raise SlurmError("garbled", f"sacct: {len(fields)} fields are no records of {width}, or the last one is cut")
    records: list[PastAttempt] = []
    expected = ""
    for at in range(0, len(fields), width):
        values = fields[at : at + width]
        if at:  # the last column of the record before, a line end, the first one of this
            ended_with, line_end, values[0] = values[0].partition("\n")
            if not line_end or ended_with != expected:
                raise SlurmError("garbled", f"sacct: not a record of job {expected}")
        expected = values[0]
        records.append(_past(dict(zip(COLUMNS, values, strict=False))))
    if last != f"{expected}\n":
        raise SlurmError("garbled", f"sacct: not a record of job {expected}")
    return tuple(_numbered(records))


def _past(value: Mapping[str, str]) -> PastAttempt:
    state, shown = _STATE.match(value["State"]), _ID.match(value["JobID"].replace("[", "").partition(".")[0])
    if not _WHOLE.match(value["JobIDRaw"]) or state is None or not _WHOLE.match(value["UID"]):
        raise SlurmError("garbled", f"sacct: not a job record: {value['JobIDRaw'][:40]!r}")
    job_id, word, status = value["JobIDRaw"], state.group(1), exit_status(value["ExitCode"])
    first, second = shown.groups() if shown else (None, job_id)
    component = first is not None and "+" in value["JobID"]
    requeued = word == _REQUEUED
    submit = _time(value["Submit"])
    return PastAttempt(
        row=JobRow(
            job_id=job_id,
            shown_id=value["JobID"],
            array_job_id=first or "" if not component else "",
            array_task=int(second) if first and not component else None,
            het_job_id=first or "" if component else "",
            het_offset=int(second) if component else None,
            state=("FAILED" if status else _REQUEUED) if requeued else word,
            restarts=0,
            submit=submit,
            eligible=_time(value["Eligible"]),
            start=_time(value["Start"]),
            end=_time(value["End"]),
            exit_status=status,
            reason="" if value["Reason"] in {"None", ""} else value["Reason"],
            user=value["User"],
            user_id=int(value["UID"]),
            partition=value["Partition"],
            nodes_wanted=int(value["NNodes"]) if _WHOLE.match(value["NNodes"]) else 0,
            batch=True,  # neither this nor the next is told, and nothing is done to what Slurm has forgotten
            requeueable=True,
            nodes=_nodes(value["NodeList"]),
        ),
        details=JobDetails(
            job_id=job_id,
            submit=submit or 0,
            name=value["JobName"],
            comment=value["Comment"],
            account=value["Account"],
            work_dir=value["WorkDir"],
            stdout="",
            stderr="",
            features="",
            cpus_per_node=1,
            memory_mb_per_node=0,
            gres_per_node="",
            nodes_required="",
        ),
        requeued=requeued,
        cancelled_by=int(state.group(2)) if state.group(2) else None,
    )


def _numbered(records: Iterable[PastAttempt]) -> list[PastAttempt]:
    """Slurm's restart count, which sacct does not print: rows of one job in the order of their submit times.

    Ids are reused: a row of another user, or one after an end that Slurm does not go on from, begins another job.
    """
    by_job: dict[str, list[PastAttempt]] = {}
    for past in records:
        by_job.setdefault(past.row.job_id, []).append(past)
    found: list[PastAttempt] = []
    for rows in by_job.values():
        number, before = 0, None
        for past in sorted(rows, key=lambda item: (item.row.submit or 0, item.row.start or 0)):
            same = before is not None and before.row.user_id == past.row.user_id and _goes_on(before)
            number = number + 1 if same else 0
            found.append(replace(past, row=replace(past.row, restarts=number)))
            before = past
    return found


def _goes_on(past: PastAttempt) -> bool:
    return past.requeued or past.row.state in _MAY_GO_ON


def newest(pasts: Sequence[PastAttempt], shown_id: str) -> PastAttempt | None:
    """The last attempt of the job of this name: its own id, an array's task, a component."""
    mine = [past for past in pasts if shown_id in {past.row.job_id, past.row.shown_id}]
    return max(mine, key=lambda past: (past.row.submit or 0, past.row.restarts), default=None)


def _nodes(text: str) -> tuple[str, ...]:
    try:
        return expand(text)
    except HostlistError as error:
        raise SlurmError("garbled", f"sacct: {error}") from None


def _time(text: str) -> int | None:
    return int(text) if _WHOLE.match(text) and 0 < int(text) < TIME_END else None
