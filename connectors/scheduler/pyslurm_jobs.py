"""What `squeue --json` would print, from pyslurm: run as a program by the Python that has it. Imports nothing of ours.

A program of its own, since pyslurm is compiled for exactly one release of Slurm, and what goes wrong in C ends the
process (`Job.hold` of 25.11.2 does). Printed is 24.11's shape; a text that pyslurm cannot decode is left out.
"""

import json
import sys
from collections.abc import Callable
from datetime import UTC, datetime


def document() -> dict[str, object]:
    import pyslurm  # there or not: who runs this says which

    problems: list[str] = []

    def told(read: Callable[[], object], name: str) -> object:
        try:
            return read()
        except (UnicodeDecodeError, KeyError) as error:
            problems.append(f"{name}: {type(error).__name__}")
            return None

    jobs = [record(job, told) for job in pyslurm.Jobs.load().values()]
    release = ".".join(str(pyslurm.__version__).split(".")[:2])
    return {"meta": {"slurm": {"release": release}, "unreadable": problems[:100]}, "jobs": jobs}


def record(job: object, told: Callable[[Callable[[], object], str], object]) -> dict[str, object]:
    """One job. An attribute that this release of pyslurm does not have is an error, not a guess."""

    def get(name: str) -> object:
        return told(lambda: getattr(job, name), name)

    waiting = get("array_tasks_waiting")
    array, task = get("array_id"), get("array_task_id")
    if array and task is None and not waiting:
        task = 0  # pyslurm says None of task 0
    leader = get("heterogeneous_id")
    exited = {"return_code": get("exit_code") or 0, "signal": {"id": get("exit_code_signal") or 0}}
    return {
        "job_id": get("id"),
        "array_job_id": array or 0,
        "array_task_id": task,
        "array_task_string": waiting if isinstance(waiting, str) else "",
        "het_job_id": leader or 0,
        "het_job_offset": get("heterogeneous_offset") or 0,
        "job_state": get("state"),
        "restart_cnt": get("requeue_count") or 0,
        "exit_code": exited,
        "priority": get("priority") or 0,
        "state_reason": get("state_reason") or "None",
        "user_id": get("user_id"),
        "user_name": get("user_name") or "",
        "partition": get("partition") or "",
        "node_count": get("num_nodes") or 0,
        "tasks": get("ntasks") or 0,
        "batch_flag": bool(get("is_batch_job")),
        "requeue": bool(get("is_requeueable")),
        "nodes": get("allocated_nodes") or "",
        "excluded_nodes": get("excluded_nodes") or "",
        "required_nodes": get("required_nodes") or "",
        "admin_comment": get("admin_comment") or "",
        "name": get("name") or "",
        "comment": get("comment") or "",
        "account": get("account") or "",
        "resv_name": get("reservation") or "",
        "current_working_directory": get("working_directory") or "",
        "standard_output": get("standard_output") or "",
        "standard_error": get("standard_error") or "",
        **{f"{name}_time": seconds(get(f"{name}_time")) for name in ("submit", "eligible", "start", "end")},
    }


def seconds(value: object) -> int:
    """pyslurm tells times as seconds; earlier ones as dates."""
    if isinstance(value, datetime):
        return int(value.replace(tzinfo=value.tzinfo or UTC).timestamp())
    return value if isinstance(value, int) else 0


if __name__ == "__main__":
    json.dump(document(), sys.stdout)
