"""Slurm through its command-line tools, read by the agent's own reader (docs/decisions/0002-one-slurm-reader.md).

For `bundle`, `analyze --job` and `doctor`, which look at one job now and then; the tick is fed by the agent's reports.
Each answer is what Slurm shows at that moment, without memory; of a job that slurmctld has forgotten, what accounting
has, where there is any. Hence two limits, both said as absence, not as a guess: of a COMPLETING job the allocation is
not known (Slurm shows only nodes not yet returned), and so is who cancelled it.
"""

import asyncio
import re
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import TypeVar

from advisor.core.model import Attempt, ExitStatus, Job, NodeFact, Unavailable
from advisor.core.words import AttemptState, NodeState, UnavailableReason
from advisor.ports import SchedulerJob
from slurm_plugin import sacct, squeue
from slurm_plugin.guard import phase_of
from slurm_plugin.squeue import JobDetails, JobRow, NodeRow, Run, Slurm, SlurmConfig, SlurmError
from slurm_plugin.stdout_paths import PatternValues, expand_path

T = TypeVar("T")
_NO_ACCOUNTING = frozenset({"not_configured", "missing"})

# "17", "19_2" (array task), "27+1" (het component).
JOB_ID = re.compile(r"[0-9]{1,10}(?:[_+][0-9]{1,7})?", re.ASCII)

_NODE_STATES = {
    "down": NodeState.DOWN,
    "fail": NodeState.DOWN,
    "failing": NodeState.DOWN,
    "error": NodeState.DOWN,
    "powered_down": NodeState.DOWN,
    "powering_down": NodeState.DOWN,
    "draining": NodeState.DRAINING,
    "drained": NodeState.DRAINED,
    **dict.fromkeys(
        ("idle", "allocated", "mixed", "completing", "planned", "reserved", "maint", "blocked"), NodeState.UP
    ),
}


class SlurmCli:
    """Implements `SchedulerReader`. `conf` is a slurm.conf, `bin_dir` the tools' folder; "" = found as usual."""

    def __init__(
        self,
        *,
        name: str = "slurm",
        conf: str = "",
        bin_dir: str = "",
        timeout_seconds: float = 10.0,
        run: Run = squeue.run_process,
        listing: str = "columns",
    ) -> None:
        self.name = name
        self._slurm = Slurm(conf=conf, bin_dir=bin_dir, timeout_seconds=timeout_seconds, run=run, listing=listing)

    async def version(self) -> str | Unavailable:
        config = await self._ask(self._slurm.config)
        return config if isinstance(config, Unavailable) else f"slurm {config.version}"

    async def settings(self) -> SlurmConfig | Unavailable:
        """For the doctor: what slurm.conf says, beyond what the port asks for."""
        return await self._ask(self._slurm.config)

    async def requeue_delay_seconds(self) -> float | Unavailable:
        config = await self._ask(self._slurm.config)
        return config if isinstance(config, Unavailable) else float(config.requeue_delay_seconds)

    async def nodes(self) -> tuple[NodeFact, ...] | Unavailable:
        rows = await self._ask(self._slurm.nodes)
        if isinstance(rows, Unavailable):
            return rows
        if not rows:
            return Unavailable(
                source=self.name, reason=UnavailableReason.GARBLED, detail="sinfo printed no node at all"
            )
        return tuple(NodeFact(name=row.name, state=_node_state(row)) for row in rows)

    async def job(self, job_id: str) -> SchedulerJob | Unavailable | None:
        if not JOB_ID.fullmatch(job_id):
            text = f"job id {job_id[:40]!r}: expected a number, or an array task like 19_2, or a component like 27+1"
            return Unavailable(source=self.name, reason=UnavailableReason.REFUSED, detail=text)
        return await self._ask(lambda: self._look(job_id))

    def _look(self, job_id: str) -> SchedulerJob | None:
        """In a thread: three tools, one after the other. Raises `SlurmError`."""
        rows = self._slurm.jobs(job_id)
        row = next((row for row in rows if row.shown_id == job_id), rows[0] if len(rows) == 1 else None)
        if not rows:
            return self._look_back(job_id)
        if row is None:
            some = ", ".join(row.shown_id for row in rows[:5])
            raise SlurmError("refused", f"{job_id} names {len(rows)} jobs ({some}, …): name one of them")
        details = self._slurm.details(row.job_id).get((row.job_id, row.submit or 0))
        return scheduler_job(row, details, self._slurm.config())

    def _look_back(self, job_id: str) -> SchedulerJob | None:
        """What slurmctld has forgotten, accounting may remember: the newest attempt, without its output's path."""
        number = job_id.partition("+")[0] if "+" in job_id else job_id
        try:
            found = sacct.newest(sacct.of_jobs(self._slurm, number), job_id)
        except SlurmError as error:
            if error.problem in _NO_ACCOUNTING:
                return None
            raise
        if found is None:
            return None
        known = scheduler_job(found.row, found.details, self._slurm.config())
        return replace(known, stdout_path="", stderr_path="")

    async def accounting(self) -> str | Unavailable:
        """For the doctor: whether accounting answers; `not_configured` where a site has none."""
        answer = await self._ask(lambda: sacct.of_jobs(self._slurm, "1"))
        return answer if isinstance(answer, Unavailable) else "slurmdbd answers"

    async def _ask(self, question: Callable[[], T]) -> T | Unavailable:
        """Slurm's tools are killed when they take too long, so the thread always comes back."""
        try:
            return await asyncio.to_thread(question)
        except SlurmError as error:
            return Unavailable(source=self.name, reason=UnavailableReason(error.problem), detail=error.detail)


def scheduler_job(row: JobRow, details: JobDetails | None, config: SlurmConfig) -> SchedulerJob:
    """One row as the advisor's values. Without details what users wrote about the job is empty."""
    state = AttemptState(phase_of(row.state).value)
    nodes = _allocation(row, state)
    values = PatternValues(
        job_id=row.job_id,
        array_job_id=row.array_job_id,
        array_task=row.array_task,
        name=details.name if details else "",
        user=row.user,
        batch_host=nodes[0] if nodes else "",
        work_dir=details.work_dir if details else "",
    )
    return SchedulerJob(
        job=Job(
            key="",
            cluster=config.cluster,
            job_id=row.job_id,
            user=row.user,
            partition=row.partition,
            account=details.account if details else "",
            batch=row.batch,
            requeueable=row.requeueable,
            nodes_requested=row.nodes_wanted,
        ),
        attempt=Attempt(
            number=_number(row, state),
            state=state,
            nodes=nodes,
            exit=_exit(row, state),
            submitted_at=_time(row.submit),
            started_at=_time(row.start) if state not in _WAITING else None,
            ended_at=_time(row.end) if state.ended or state is AttemptState.COMPLETING else None,
            held=row.held,
            pending_reason=row.reason,
        ),
        name=details.name if details else "",
        stdout_path=expand_path(details.stdout, values, expanded=details.expanded) if details else "",
        stderr_path=(
            expand_path(details.stderr or details.stdout, values, expanded=details.expanded) if details else ""
        ),
        work_dir=details.work_dir if details else "",
        excluded_nodes=row.excluded or (),
    )


_WAITING = frozenset({AttemptState.PENDING, AttemptState.REQUEUE_HELD})


def _number(row: JobRow, state: AttemptState) -> int:
    """A job that is being requeued shows the next attempt's count while the processes are still the last one's."""
    requeueing = state is AttemptState.COMPLETING and row.end is None and row.restarts > 0
    return row.restarts - 1 if requeueing else row.restarts


def _allocation(row: JobRow, state: AttemptState) -> tuple[str, ...] | None:
    if state in _WAITING:
        return ()
    return row.nodes if row.nodes and state is not AttemptState.COMPLETING else None


def _exit(row: JobRow, state: AttemptState) -> ExitStatus | None:
    """Only of an attempt that ended: a cancelled job keeps the exit code of its last attempt."""
    if not state.ended or state is AttemptState.CANCELLED:
        return None
    return ExitStatus(code=row.exit_status >> 8 & 0xFF, signal=row.exit_status & 0x7F)


def _time(epoch: int | None) -> datetime | None:
    return None if epoch is None else datetime.fromtimestamp(min(epoch, 2**33), UTC)


def _node_state(row: NodeRow) -> NodeState:
    """Down wins over not responding: a node that Slurm has given up is not merely silent."""
    state = _NODE_STATES.get(row.state, NodeState.OTHER)
    return NodeState.NOT_RESPONDING if not row.responding and state is not NodeState.DOWN else state
