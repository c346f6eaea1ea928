"""The program that asks pyslurm: what it makes of its jobs, and of what pyslurm cannot say."""

import json
from types import SimpleNamespace

from connectors.scheduler.pyslurm_jobs import record
from slurm_plugin.job_json import parse_details, parse_rows

NAMES = (
    *("id", "user_id", "user_name", "state", "requeue_count", "exit_code", "exit_code_signal", "priority"),
    *("state_reason", "partition", "num_nodes", "ntasks", "is_batch_job", "is_requeueable", "allocated_nodes"),
    *("excluded_nodes", "required_nodes", "admin_comment", "name", "comment", "account", "reservation"),
    *("working_directory", "standard_output", "standard_error", "array_tasks_waiting", "array_id", "array_task_id"),
    *("heterogeneous_id", "heterogeneous_offset", "submit_time", "eligible_time", "start_time", "end_time"),
)


class Job(SimpleNamespace):
    """One as pyslurm has it. `comment` may be undecodable, which pyslurm says when it is asked."""

    @property
    def comment(self) -> str:
        return bytes(self.raw_comment).decode()


def job(**values: object) -> Job:
    plain = dict.fromkeys(name for name in NAMES if name != "comment")
    return Job(**(plain | {"id": 7, "user_id": 1000, "state": "FAILED", "raw_comment": b"{}"} | values))


def document(*jobs: Job) -> tuple[bytes, list[str]]:
    problems: list[str] = []

    def told(read, name):  # type: ignore[no-untyped-def]  # the program's own type
        try:
            return read()
        except UnicodeDecodeError:
            problems.append(name)
            return None

    return json.dumps({"jobs": [record(item, told) for item in jobs]}).encode(), problems


def test_a_job_comes_out_as_the_row_that_it_is() -> None:
    """State, count, exit, nodes and times as the other ways have them."""
    known = {"requeue_count": 2, "exit_code": 5, "allocated_nodes": "node[1-2]", "submit_time": 77, "end_time": 99}
    (row,) = parse_rows(document(job(**known))[0])
    assert (row.job_id, row.state, row.restarts, row.exit_status, row.nodes) == (
        "7",
        "FAILED",
        2,
        1280,
        ("node1", "node2"),
    )
    assert (row.submit, row.end, row.start) == (77, 99, None)


def test_task_zero_is_a_task_and_what_waits_is_none() -> None:
    """pyslurm says None for both; only one of them still has tasks that wait."""
    running, waiting = job(array_id=7), job(id=8, array_id=7, array_tasks_waiting="1-9%2")
    found = parse_rows(document(running, waiting)[0])
    assert [(row.shown_id, row.array_task) for row in found] == [("7_0", 0)]


def test_a_comment_that_cannot_be_decoded_costs_that_comment_only() -> None:
    """And is told."""
    raw, problems = document(job(raw_comment=b"\xff", name="train"))
    (details,) = parse_details(raw).values()
    assert (details.comment, details.name, problems) == ("", "train", ["comment"])
