"""`squeue --json` (and `scontrol show job --json`) of every version from 22.05 on, as rows and details. Stdlib only.

The shape moved: numbers became `{set, infinite, number}`, a state became a list of a base state and its flags, an exit
became an object, and the version moved from `meta.Slurm` to `meta.slurm`, from numbers to text. Strings are quoted
by Slurm, so nothing a user writes can forge a record; a byte that is no UTF-8 stays one bad byte in one string.

The agent reads its rows from columns (`squeue.py`) and only details from here: for why, docs/slurm.md, "Which way of
reading". Both ways give equal rows, and the tests compare them on real Slurm.
"""

import json
import re
from collections.abc import Mapping
from typing import cast

from slurm_plugin.hostlist import HostlistError, expand
from slurm_plugin.records import TIME_END, JobDetails, JobRow, SlurmError
from slurm_plugin.stdout_paths import expand_rest

# Slurm tells these beside a base state; the first that applies is the one that squeue's State column shows.
_FLAGS = (
    *("COMPLETING", "STAGE_OUT", "CONFIGURING", "RESIZING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD"),
    *("SPECIAL_EXIT", "STOPPED", "REVOKED", "RESV_DEL_HOLD", "SIGNALING"),
)
# Where `standard_output` is expanded, but for `%J %s %n %t`. Later on it is as given, with `stdout_expanded` beside it.
_EXPANDED_SINCE, _EXPANDED_UNTIL = (23, 2), (24, 11)
_EXPANDED = {"output": "stdout_expanded", "error": "stderr_expanded"}
Record = Mapping[str, object]


def parse_details(raw: bytes) -> dict[tuple[str, int], JobDetails]:
    """What users wrote, by (job id, submit time)."""
    jobs, version = _jobs(raw)
    found = (_details(job, version) for job in jobs)
    return {(details.job_id, details.submit): details for details in found}


def parse_rows(raw: bytes) -> tuple[JobRow, ...]:
    """The rows of the cheap listing, from JSON. Tasks of an array that are not split off yet are left out, as there."""
    rows = (_row(job) for job in _jobs(raw)[0])
    return tuple(row for row in rows if row is not None)


def version_of(raw: bytes) -> tuple[int, int]:
    """(major, minor) as the document itself says; (0, 0) where it does not."""
    return _jobs(raw)[1]


def _jobs(raw: bytes) -> tuple[list[Record], tuple[int, int]]:
    try:
        document = json.loads(raw.decode("utf-8", "surrogateescape"))
    except (ValueError, RecursionError):
        raise SlurmError("garbled", "squeue --json: not JSON") from None
    jobs = document.get("jobs") if isinstance(document, dict) else None
    if not isinstance(jobs, list):
        raise SlurmError("garbled", "squeue --json: no list of jobs")
    if not all(isinstance(job, dict) for job in jobs):
        raise SlurmError("garbled", "squeue --json: a job is not an object")
    return jobs, _version(document)


def _version(document: Record) -> tuple[int, int]:
    meta = document.get("meta")
    slurm = (meta.get("slurm") or meta.get("Slurm")) if isinstance(meta, dict) else None
    release = str(slurm.get("release", "")) if isinstance(slurm, dict) else ""
    hit = re.match(r"(\d{1,4})\.(\d{1,4})", release, re.ASCII)
    return (int(hit.group(1)), int(hit.group(2))) if hit else (0, 0)


def _text(job: Record, key: str) -> str:
    value = job.get(key)
    return value if isinstance(value, str) else ""


def _set(job: Record, key: str) -> int | None:
    """A number, bare or in its object; None where it is not set, infinite, no number or one that no message holds."""
    value = job.get(key)
    if isinstance(value, dict):
        value = value.get("number") if value.get("set", True) and not value.get("infinite") else None
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63 else None


def _number(job: Record, key: str) -> int:
    return _set(job, key) or 0


def _output(job: Record, name: str, version: tuple[int, int]) -> tuple[str, bool]:
    """(path or pattern, whether Slurm has expanded it)."""
    given, done = _text(job, f"standard_{name}"), _text(job, _EXPANDED[name])
    if done:
        return done, True
    if given and _EXPANDED_SINCE <= version <= _EXPANDED_UNTIL:
        return expand_rest(given, str(_number(job, "job_id"))), True
    return given, False


def _details(job: Record, version: tuple[int, int]) -> JobDetails:
    (stdout, expanded), (stderr, _) = _output(job, "output", version), _output(job, "error", version)
    cpus = max(_number(job, "minimum_cpus_per_node"), _number(job, "cpus_per_task") * _per_node(job), 1)
    return JobDetails(
        job_id=str(_number(job, "job_id")),
        submit=_number(job, "submit_time"),
        name=_text(job, "name"),
        comment=_text(job, "comment"),
        account=_text(job, "account"),
        work_dir=_text(job, "current_working_directory"),
        stdout=stdout,
        stderr=stderr,
        expanded=expanded,
        features=_text(job, "features"),
        cpus_per_node=cpus,
        memory_mb_per_node=max(_number(job, "memory_per_node"), _number(job, "memory_per_cpu") * cpus),
        gres_per_node=_text(job, "tres_per_node"),
        nodes_required=_text(job, "required_nodes"),
        reservation=_text(job, "resv_name"),
        gres_per_job=_text(job, "tres_per_job"),
        gres_per_task=_text(job, "tres_per_task"),
    )


def _per_node(job: Record) -> int:
    return max(_number(job, "tasks_per_node"), 1)


def _row(job: Record) -> JobRow | None:
    number, user_id = _set(job, "job_id"), _set(job, "user_id")
    if not number or user_id is None:
        raise SlurmError("garbled", f"squeue --json: not a job record: {str(job.get('job_id'))[:40]!r}")
    job_id, tasks = str(number), _text(job, "array_task_string")
    array, task = _number(job, "array_job_id"), _set(job, "array_task_id") if _number(job, "array_job_id") else None
    if array and task is None:
        if not (tasks.isascii() and tasks.isdigit()):
            return None
        task = int(tasks)  # the last one of an array keeps the array's own record
    leader = _number(job, "het_job_id")
    offset = _number(job, "het_job_offset") if leader else None
    shown = f"{array}_{task}" if array else f"{leader}+{offset}" if leader else job_id
    excluded = _nodes(job, "excluded_nodes")
    state = _state(job)
    return JobRow(
        job_id=job_id,
        shown_id=shown,
        array_job_id=str(array) if array else "",
        array_task=task,
        het_job_id=str(leader) if leader else "",
        het_offset=offset,
        state=state,
        restarts=_number(job, "restart_cnt"),
        submit=_time(job, "submit_time"),
        eligible=_time(job, "eligible_time"),
        start=_time(job, "start_time"),
        end=_time(job, "end_time"),
        exit_status=_exit_status(job.get("exit_code")),
        priority=_number(job, "priority"),
        reason="" if _text(job, "state_reason") == "None" else _text(job, "state_reason"),
        user=_text(job, "user_name"),
        user_id=user_id,
        partition=_text(job, "partition"),
        nodes_wanted=_number(job, "node_count"),
        tasks=_number(job, "tasks"),
        batch=job.get("batch_flag") is True,
        requeueable=job.get("requeue") is True,
        dependency=_text(job, "dependency"),
        nodes=_nodes(job, "nodes"),
        excluded=excluded,
        admin_comment=_text(job, "admin_comment"),
    )


def _state(job: Record) -> str:
    value = job.get("job_state")
    words = [value] if isinstance(value, str) else value if isinstance(value, list) else []
    if not words or not all(isinstance(word, str) for word in words):
        raise SlurmError("garbled", f"squeue --json: job {job.get('job_id')} has no state")
    known = cast(list[str], words)
    return next((flag for flag in _FLAGS if flag in known), known[0])


def _exit_status(value: object) -> int:
    """A wait status, from a bare one (22.05) or from `{status, return_code, signal}`."""
    if isinstance(value, dict):
        code, signal = _number(value, "return_code"), value.get("signal")
        number = _number(signal, "id") or _number(signal, "signal_id") if isinstance(signal, dict) else 0
        return (code & 0xFF) << 8 | number & 0x7F
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**16 else 0


def _time(job: Record, key: str) -> int | None:
    value = _set(job, key)
    return value if value is not None and 0 < value < TIME_END else None


def _nodes(job: Record, key: str) -> tuple[str, ...]:
    try:
        return expand(_text(job, key))
    except HostlistError as error:
        raise SlurmError("garbled", f"squeue --json: {error}") from None
