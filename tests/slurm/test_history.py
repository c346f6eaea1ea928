"""Accounting for real: MariaDB and slurmdbd from Debian, and what they remember when slurmctld has forgotten."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from advisor.client import Client
from advisor.core.model import ExitStatus, Unavailable
from advisor.core.words import AttemptState, UnavailableReason
from advisor.demo.cluster import Cluster, Shape
from advisor.demo.stack import Stack
from advisor.demo.waiting import wait_for
from advisor.ports import SchedulerJob
from advisor.v1 import audit_pb2, common_pb2
from connectors.scheduler.slurm_cli import SlurmCli
from slurm_plugin import sacct
from slurm_plugin.sacct import PastAttempt
from slurm_plugin.squeue import Slurm, SlurmError
from tests.slurm.accounting import Accounting, running_with_accounting

FORGETS_SECONDS = 5
FORGED = "x|y\n1|1|COMPLETED|0:0\n\x1f\x1e'\"\\"


@pytest.fixture(scope="module")
def accounted() -> Iterator[tuple[Cluster, Accounting]]:
    with running_with_accounting(Shape(nodes=3, min_job_age_seconds=FORGETS_SECONDS)) as parts:
        yield parts


@pytest.fixture
def books(accounted: tuple[Cluster, Accounting]) -> Cluster:
    return accounted[0]


def _slurm(cluster: Cluster) -> Slurm:
    return Slurm(conf=str(cluster.conf))


def _remembered(cluster: Cluster, job: int, attempts: int) -> list[PastAttempt]:
    """Until slurmdbd has them all, with their ends: slurmctld tells it a little later."""

    def look() -> list[PastAttempt] | None:
        found = list(sacct.of_jobs(_slurm(cluster), str(job)))
        return found if len(found) == attempts and all(past.row.end for past in found) else None

    return wait_for(f"{attempts} attempts of {job} in accounting", look, seconds=20, every_seconds=0.2)


def _forgotten(cluster: Cluster, job: int) -> None:
    wait_for("Slurm to forget", lambda: job not in cluster.jobs(), seconds=60, every_seconds=0.5)


def _attempt(stack: Stack, job: int) -> audit_pb2.Attempt | None:
    with Client(stack.socket) as client:
        return next(client.attempts(audit_pb2.Filter(job_id=str(job)), most=1), None)


def test_every_attempt_with_its_number_and_exact_exit(books: Cluster) -> None:
    """Requeued twice, with other exits each time and hostile texts: numbers are Slurm's own restart counts."""
    script = (
        "#!/bin/sh\n[ ${SLURM_RESTART_COUNT:-0} = 0 ] && exit 5\n[ $SLURM_RESTART_COUNT = 1 ] && kill -9 $$\nexit 77\n"
    )
    job = books.submit("alice", script, "-N2", "-J", FORGED, f"--comment={FORGED}")
    for restarts in (0, 1):
        books.wait_state(job, "FAILED", seconds=30, restarts=restarts)
        books.must("scontrol", "requeue", str(job))
    shown = books.wait_state(job, "FAILED", seconds=30, restarts=2)
    found = _remembered(books, job, 3)
    assert [(past.row.restarts, past.row.exit_status) for past in found] == [(0, 5 << 8), (1, 9), (2, 77 << 8)]
    assert [past.requeued for past in found] == [True, True, False]
    assert found[2].row.submit == shown.submitted
    assert all(len(past.row.nodes) == 2 and past.row.user == "alice" for past in found)
    assert found[0].details.name == FORGED.replace('"', "`")  # slurmctld's own doing, before slurmdbd hears it
    assert found[0].details.comment == FORGED


def test_tasks_components_and_who_cancelled(books: Cluster) -> None:
    """By their own names; a cancel tells the uid, root's or the user's."""
    array = books.submit("alice", "#!/bin/sh\nsleep 60\n", "--array=0-1", "-N1")
    het = books.submit("bob", "#!/bin/sh\n#SBATCH -N1\n#SBATCH hetjob\n#SBATCH -N1\nsleep 60\n")

    def running() -> bool:
        return sum(row.state == "RUNNING" for row in books.jobs().values()) >= 4

    wait_for("all of them", running, seconds=30)
    books.must("scancel", str(array), user="alice")
    books.must("scancel", str(het))

    def look() -> dict[str, PastAttempt] | None:
        found = {past.row.shown_id: past for past in sacct.of_jobs(_slurm(books), str(array), str(het))}
        return found if len(found) == 4 and all(past.over for past in found.values()) else None

    found = wait_for("their ends", look, seconds=30, every_seconds=0.2)
    assert found.keys() == {f"{array}_0", f"{array}_1", f"{het}+0", f"{het}+1"}
    assert {past.row.state for past in found.values()} == {"CANCELLED"}
    assert found[f"{array}_0"].cancelled_by == found[f"{array}_0"].row.user_id != 0
    assert found[f"{het}+1"].cancelled_by == 0


def test_a_forgotten_job_is_still_found_by_its_id(books: Cluster) -> None:
    """What `bundle` and `analyze --job` ask: from accounting, when slurmctld knows no such job any more."""
    job = books.submit("bob", "#!/bin/sh\nexit 3\n", "-N1")
    books.wait_state(job, "FAILED", seconds=30)
    _remembered(books, job, 1)
    _forgotten(books, job)
    found = asyncio.run(SlurmCli(conf=str(books.conf)).job(str(job)))
    assert isinstance(found, SchedulerJob)
    assert (found.attempt.state, found.attempt.exit, found.job.user) == (AttemptState.FAILED, ExitStatus(code=3), "bob")
    assert found.attempt.ended_at is not None
    assert found.stdout_path == ""
    assert asyncio.run(SlurmCli(conf=str(books.conf)).job("99999")) is None


@pytest.mark.long
def test_what_ended_while_the_service_was_down_is_on_record_afterwards(books: Cluster) -> None:
    """Service stopped, a job fails, Slurm forgets it, service back: the job's end, exit and nodes are known."""
    stack = Stack(cluster=books, policy={}, mode="monitor")
    stack.prepare()
    try:
        stack.start()
        job = books.submit("alice", "#!/bin/sh\nexit 42\n", "-N2", '--comment={"advisor": {}}', "--begin=now+3")
        wait_for("the job at the advisor", lambda: _attempt(stack, job), seconds=30, every_seconds=0.2)
        stack.advisor.kill()
        books.wait_state(job, "FAILED", seconds=30)
        _remembered(books, job, 1)
        _forgotten(books, job)
        stack.advisor.start()
        stack.wait_ready()

        def ended() -> audit_pb2.Attempt | None:
            known = _attempt(stack, job)
            return known if known is not None and known.HasField("ended_at") else None

        known = wait_for("its end", ended, seconds=30, every_seconds=0.2)
        assert known.state == common_pb2.ATTEMPT_STATE_FAILED
        assert len(known.nodes) == 2
    finally:
        stack.stop()


@pytest.mark.long
def test_accounting_tells_that_a_stop_nobody_reported_was_ours(books: Cluster, knife: Any) -> None:
    """The agent is killed between its cancel and its word; the next one asks who cancelled, and that is its account."""
    stack = Stack(cluster=books, policy={}, mode="monitor", slurm_bin=knife.file.parent)
    stack.prepare()
    try:
        stack.start()
        stack.set_mode("autonomous", cluster="demo")
        opt_in = '--comment={"advisor": {"enabled": true}}'
        job = books.submit("alice", "#!/bin/sh\nexec sleep 600\n", "-N1", "--output=/dev/null", opt_in)
        books.wait_state(job, "RUNNING", seconds=30)
        wait_for("the job at the advisor", lambda: _attempt(stack, job), seconds=30, every_seconds=0.2)
        knife.cancel.arm(stack.agent.pid)
        ordered = stack.cli("override", str(job), "stop", "--confirm", "--why", "enough")
        assert ordered.returncode == 0, ordered.stderr
        wait_for("the cancel that kills the agent", lambda: not stack.agent.running, seconds=40)
        stack.agent.start()

        def verified() -> list[dict[str, Any]] | None:
            found = stack.decisions(job)
            return found if any(item["status"].endswith("VERIFIED") for item in found) else None

        found = wait_for("the agent's word", verified, seconds=60, every_seconds=0.3)
        assert found[-1]["advice"]["action"] == "ACTION_STOP"
        assert not {item["advice"]["reason"] for item in found} & {"stop_unreported", "user_cancelled"}
        assert "was stopped by order of root" in stack.cli("explain", str(job)).stdout
    finally:
        stack.stop()


def test_slurmdbd_away_and_no_accounting_at_all_are_two_things(accounted: tuple[Cluster, Accounting]) -> None:
    """One is refused, the other not configured; the listing of slurmctld goes on in both."""
    books, accounting = accounted
    accounting.stop_slurmdbd()
    try:
        with pytest.raises(SlurmError) as raised:
            sacct.of_jobs(_slurm(books), "1")
        assert raised.value.problem in {"refused", "timeout"}
        answer = asyncio.run(SlurmCli(conf=str(books.conf)).accounting())
        assert isinstance(answer, Unavailable)
        assert answer.reason is not UnavailableReason.NOT_CONFIGURED
    finally:
        accounting.start_slurmdbd()
    lines = books.conf.read_text().splitlines()
    without = Path(books.root) / "etc" / "without.conf"
    without.write_text("\n".join(line for line in lines if not line.startswith("AccountingStor")) + "\n")
    absent = asyncio.run(SlurmCli(conf=str(without)).accounting())
    assert isinstance(absent, Unavailable)
    assert absent.reason is UnavailableReason.NOT_CONFIGURED
    assert asyncio.run(SlurmCli(conf=str(books.conf)).accounting()) == "slurmdbd answers"
