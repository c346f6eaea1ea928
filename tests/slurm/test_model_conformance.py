"""The model of Slurm (`tests/model/slurm.py`) against the real one: the same verbs, the same answers and states."""

import random
import time
from dataclasses import dataclass

import pytest

from advisor.demo.cluster import Cluster
from advisor.demo.squeue import JobRow
from advisor.demo.waiting import TookTooLongError, wait_for
from tests.model.slurm import ModelJob, ModelSlurm

JOBS = 4  # side by side, a node each
AGREE_SECONDS = 20.0
_ENVIRONMENT = {"SLURM_TIME_FORMAT": "%s"}
_SCRIPT = """#!/bin/sh
while [ ! -e "$HOME/end-$SLURM_JOB_ID-${SLURM_RESTART_COUNT:-0}" ]; do sleep 0.1; done
exit 5
"""
VERBS = (
    ("scontrol", "requeue", "{job}"),
    ("scontrol", "requeue", "incomplete", "{job}"),
    ("scontrol", "update", "JobId={job}", "ExcNodeList=node1", "AdminComment=one"),
    ("scontrol", "update", "JobId={job}", "ExcNodeList=node2,node3"),
    ("scontrol", "update", "JobId={job}", "ExcNodeList="),
    ("scontrol", "hold", "{job}"),
    ("scontrol", "release", "{job}"),
    ("scancel", "{job}"),
    ("scancel", "--state=PENDING", "{job}"),
    ("scancel", "--state=RUNNING", "{job}"),
    ("end",),
    ("end",),
    ("wait",),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Twins:
    """One job here and there, and what was done to both so far."""

    cluster: Cluster
    model: ModelSlurm
    job_id: int
    done: list[str]

    def do(self, verb: tuple[str, ...]) -> None:
        job = self.model.job(str(self.job_id))
        self.done.append(" ".join(verb))
        match verb:
            case ("end",):
                if job.state == "RUNNING":
                    flag = self.cluster.runtime.home("alice") / f"end-{self.job_id}-{job.restarts}"
                    flag.touch()
                    job.ends_at = time.time()  # noqa: TID251 - the model follows real time here
            case ("wait",):
                pass
            case _:
                argv = [part.format(job=self.job_id) for part in verb]
                real = self.cluster.command(*argv)
                self.model.now = time.time()  # noqa: TID251
                said = self.model(argv, _ENVIRONMENT, 5.0)
                # scancel's status says whether it found something to end, which nobody of ours looks at.
                if argv[0] == "scontrol":
                    assert (real.returncode == 0) == (said.returncode == 0), (self.done, real.stderr, said.stderr)

    def agree(self, row: JobRow) -> bool:
        job = self.model.job(str(self.job_id))
        here = (job.state, job.restarts, {*filter(None, job.excluded.split(","))}, job.priority == 0)
        there = (row.state, row.restarts, set(row.excluded), row.priority == 0)
        held_counts = job.state == "PENDING"
        return here[: 3 + held_counts] == there[: 3 + held_counts] and job.state != "COMPLETING"


def _run(cluster: Cluster, seed: int, length: int) -> None:
    """`length` random verbs on each of JOBS jobs; after each, both sides come to the same state."""
    chance = random.Random(seed)
    delay = cluster.shape.cred_expire_seconds + 1
    model = ModelSlurm(delay=delay, nodes=dict.fromkeys(cluster.nodes, "idle"))
    options = ("-N1", "--exclusive", "--output=/dev/null", f"-Jtwin{seed}")
    twins = [
        Twins(cluster=cluster, model=model, job_id=cluster.submit("alice", _SCRIPT, *options), done=[])
        for _ in range(JOBS)
    ]
    for twin in twins:
        model.add(ModelJob(job_id=str(twin.job_id), nodes_wanted=1, submit=int(time.time()), eligible=0))  # noqa: TID251
    try:
        _settle(cluster, model, twins)
        for _ in range(length):
            verbs = [chance.choice(VERBS) for _ in twins]
            for twin, verb in zip(twins, verbs, strict=True):
                twin.do(verb)
            _settle(cluster, model, twins)
            waiting = [twin for twin, verb in zip(twins, verbs, strict=True) if verb == ("wait",)]
            _settle(cluster, model, waiting, started=True)
    finally:
        for twin in twins:
            cluster.command("scancel", str(twin.job_id))
        wait_for("idle nodes", lambda: cluster.idle_nodes() == frozenset(cluster.nodes), seconds=60)


def _settle(cluster: Cluster, model: ModelSlurm, twins: list[Twins], *, started: bool = False) -> None:
    """Until both sides agree; with `started`, about jobs that nobody holds, that they have started."""

    def all_agree() -> bool:
        model.advance(time.time())  # noqa: TID251
        rows = cluster.jobs()
        return all(
            twin.agree(rows[twin.job_id])
            and not (started and rows[twin.job_id].state == "PENDING" and rows[twin.job_id].priority)
            for twin in twins
        )

    try:
        wait_for("agreement", all_agree, seconds=AGREE_SECONDS, every_seconds=0.2)
    except TookTooLongError:
        rows = cluster.jobs()
        told = [
            f"{twin.done}: model {model.job(str(twin.job_id))}, Slurm {rows[twin.job_id]}"
            for twin in twins
            if not twin.agree(rows[twin.job_id])
        ]
        pytest.fail("\n".join(told))


def test_random_verbs(bare: tuple[Cluster, object]) -> None:
    """Four jobs, six verbs each: the same answers, states, counts, exclusions and holds."""
    _run(bare[0], seed=1, length=6)


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(2, 8))
def test_more_random_verbs(bare: tuple[Cluster, object], seed: int) -> None:
    """The same, longer and with other seeds."""
    _run(bare[0], seed=seed, length=12)
