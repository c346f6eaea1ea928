"""A Slurm that is slow, away, or prints nonsense: nothing is concluded, nobody storms it, nothing is done twice."""

import os
import shutil
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from advisor.demo.cluster import SLURM_USER, Cluster
from advisor.demo.waiting import holds_for, wait_for
from tests.slurm.scripted import Bench, scripted_agents

pytestmark = pytest.mark.long
_OPT_IN = '--comment={"advisor": {"enabled": true}}'
_TOOL = """#!/bin/sh
echo {name} >> {folder}/calls
case "$(/bin/cat {folder}/trouble 2>/dev/null)" in
partial) /usr/bin/{name} "$@" | /usr/bin/head -c 150;;
nothing) ;;
timeout) echo 'slurm_load_jobs error: Socket timed out on send/recv operation' >&2; exit 1;;
complaint) /usr/bin/{name} "$@"; echo 'error: something odd' >&2;;
*) exec /usr/bin/{name} "$@";;
esac
"""


@dataclass(frozen=True)
class Tools:
    """Slurm's tools for the agent: each call is counted, and troubled on demand."""

    folder: Path

    def trouble(self, kind: str = "") -> None:
        (self.folder / "trouble").write_text(kind)

    @property
    def calls(self) -> int:
        return len((self.folder / "calls").read_bytes().splitlines())

    def rate(self, seconds: float) -> float:
        """Calls per second from now on."""
        before, began = self.calls, time.monotonic()
        time.sleep(seconds)
        return (self.calls - before) / (time.monotonic() - began)


@pytest.fixture
def tools(cluster: Cluster) -> Iterator[Tools]:
    folder = cluster.runtime.root / "counted"
    folder.mkdir()
    for name in ("squeue", "sinfo", "scontrol", "scancel"):
        (folder / name).write_text(_TOOL.format(name=name, folder=folder))
        (folder / name).chmod(0o755)
    for name in ("calls", "trouble"):
        (folder / name).touch()
        shutil.chown(folder / name, SLURM_USER, SLURM_USER)
    yield Tools(folder)
    shutil.rmtree(folder)


def failed(cluster: Cluster) -> int:
    script = '#!/bin/sh\n[ "${SLURM_RESTART_COUNT:-0}" != 0 ] || exit 3\nsleep 2\n'
    job = cluster.submit("alice", script, "-N1", "--output=/dev/null", _OPT_IN)
    cluster.wait_state(job, "FAILED", seconds=20)
    return job


def untouched(bench: Bench, job: int) -> bool:
    row = bench.cluster.job(job)
    return (row.state, row.restarts) == ("FAILED", 0)


@pytest.mark.parametrize("kind", ["partial", "nothing", "timeout", "complaint"])
def test_nothing_is_concluded_from_a_bad_answer(cluster: Cluster, tools: Tools, kind: str) -> None:
    """Half a listing, none, a time-out, a word on stderr: told as unavailable, never as gone; nothing is done."""
    with scripted_agents(cluster, bin_dir=str(tools.folder)) as bench:
        job = failed(cluster)
        wait_for("the job to be told", lambda: bench.advisor.seen(job), seconds=10)
        tools.trouble(kind)
        time.sleep(1.5)
        told = len(bench.advisor.reports)
        advice = bench.advisor.restart(cluster.job(job), "node1")
        assert holds_for(partial(untouched, bench, job), seconds=5)
        since = bench.advisor.reports[told:]
        assert not any(report.complete for report in since)
        if kind != "nothing":
            assert any(report.unavailable for report in since)
        assert {status for status, _ in bench.advisor.reasons(advice)} <= {"PENDING"}
        tools.trouble()
        bench.advisor.wait_said(advice, "VERIFIED", "OBSERVED")
        assert cluster.wait_state(job, "COMPLETED", seconds=30).restarts == 1


@pytest.mark.parametrize("how", ["stopped", "away"])
def test_no_storm_on_a_controller_that_hangs_or_is_away(cluster: Cluster, tools: Tools, how: str) -> None:
    """Ever rarer questions while it gives no answer, the usual rate when it is back, and one requeue."""
    with scripted_agents(cluster, bin_dir=str(tools.folder)) as bench:
        jobs = [failed(cluster) for _ in range(8)]
        rows = [cluster.job(job) for job in jobs]
        usual = tools.rate(4.0)
        if how == "stopped":
            pid = cluster.pid("slurmctld")
            os.kill(pid, signal.SIGSTOP)
        else:
            cluster.stop_controller()  # in order: a killed one forgets jobs that it had not saved, up to 5 s
        try:
            advice = [bench.advisor.restart(row, "node1") for row in rows]
            during = tools.rate(12.0)
        finally:
            if how == "stopped":
                os.kill(pid, signal.SIGCONT)
            else:
                cluster.start_controller()
        after = max(tools.rate(1.0) for _ in range(12))
        print(
            f"calls per second: usual {usual:.1f}, while {how} {during:.1f}, at most {after:.1f} in a second after it"
        )
        assert during <= 1.5
        assert after <= 45
        for item in advice:
            bench.advisor.wait_said(item, "VERIFIED", "OBSERVED", seconds=60)
        for job in jobs:
            assert cluster.wait_state(job, "COMPLETED", seconds=60).restarts == 1
