"""Job ids in every form that Slurm prints: 123, 123_4 (a task of an array), 123+1 (a part of a heterogeneous job)."""

import re
from dataclasses import dataclass

from advisor.client import Client, ClientError
from advisor.commands.output import CommandError
from advisor.v1 import audit_pb2, common_pb2, operator_pb2

_JOB = re.compile(r"(?P<job>[0-9]{1,10})(?:_(?P<task>[0-9]{1,10})|\+(?P<offset>[0-9]{1,6}))?")
_DECISION = re.compile(r"[0-9a-fA-F][0-9a-fA-F-]{3,35}")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobId:
    """`text` as it was given; `task` of an array, `offset` of a heterogeneous job."""

    text: str
    job: str
    task: int | None = None
    offset: int | None = None

    def choose(self, chosen: audit_pb2.Filter) -> None:
        """Only what concerns it. Slurm numbers the parts of a heterogeneous job in a row."""
        if self.task is not None:
            chosen.array_job_id, chosen.array_task = self.job, self.task
        else:
            chosen.job_id = str(int(self.job) + (self.offset or 0))


def job_id(text: str, what: str = "JOB") -> JobId:
    """Raises `CommandError` for anything that Slurm would not print."""
    found = _JOB.fullmatch(text.strip())
    if found is None:
        raise CommandError(f"{what} {text}: give it as Slurm prints it, 123, 123_4 or 123+1", code=2)
    task, offset = found["task"], found["offset"]
    return JobId(
        text=text.strip(),
        job=found["job"],
        task=int(task) if task is not None else None,
        offset=int(offset) if offset is not None else None,
    )


def choose_job(chosen: audit_pb2.Filter, text: str) -> None:
    """`--job` of the lists."""
    if text:
        job_id(text, "--job").choose(chosen)


def attempt_of(client: Client, text: str, cluster: str, attempt: int | None = None) -> audit_pb2.Attempt:
    """The attempt that was named, else the newest of the job that has the id now and was not forgotten again."""
    chosen = audit_pb2.Filter(cluster=cluster)
    job_id(text).choose(chosen)
    found = list(client.attempts(chosen, most=100))
    newest = found[0].attempt.job_key if found else ""
    for item in found:
        meant = not item.requeue_forgotten if attempt is None else item.attempt.attempt == attempt
        if item.attempt.job_key == newest and meant:
            return item
    what = f"attempt {attempt} of job {text}" if attempt is not None else f"job {text}"
    raise ClientError(f"nothing is known of {what}")


def target(client: Client, text: str, cluster: str, attempt: int | None) -> operator_pb2.JobTarget:
    """What an order is about: a job as Slurm prints it, or a decision's id or its beginning."""
    if _JOB.fullmatch(text.strip()) is None and _DECISION.fullmatch(text.strip()):
        if attempt is not None:
            raise CommandError("--attempt goes with a job: a decision is about one attempt anyway", code=2)
        return operator_pb2.JobTarget(decision_id=text.strip())
    return operator_pb2.JobTarget(
        cluster=client.cluster_or_only(cluster), job_id=job_id(text, "TARGET").text, attempt=attempt
    )


def named(ref: common_pb2.AttemptRef) -> str:
    """`17#2`: attempt 2 of job 17."""
    return f"{ref.job_id}#{ref.attempt}"
