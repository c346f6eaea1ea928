"""A site with two slurmctld: the first dies, the second takes over, and the agent's reader and verbs go on with it."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from advisor.demo.cluster import Cluster, Shape
from advisor.demo.namespace import HOST_NAME, require
from advisor.demo.waiting import wait_for
from advisor.demo.world import running_cluster
from slurm_plugin.squeue import JobRow, Slurm, SlurmError

BACKUP, ADDRESS = "advisor-backup", "127.0.0.2"
TAKE_OVER_SECONDS = 5
pytestmark = [pytest.mark.long, pytest.mark.timeout(240)]
# A host name of its own decides which of the two controllers a slurmctld is.
_AS_BACKUP = "import os, socket, sys; socket.sethostname(sys.argv[1]); os.execvp(sys.argv[2], sys.argv[2:])"


@pytest.fixture
def pair() -> Iterator[Cluster]:
    extra = (
        f"SlurmctldHost={BACKUP}({ADDRESS})",
        f"SlurmctldTimeout={TAKE_OVER_SECONDS}",
        "CommunicationParameters=NoCtldInAddrAny",  # each on its own address of this one host
    )
    with Path("/etc/hosts").open("a", encoding="ascii") as hosts:  # the namespace's own copy
        hosts.write(f"{ADDRESS} {BACKUP}\n")
    with running_cluster(Shape(nodes=3, extra=extra), runtime=require().apart("pair")) as (cluster, _):
        # The same configuration but for the pid file: a slurmctld ends the one whose number it finds in there.
        conf = cluster.conf.with_name("backup.conf")
        text = cluster.conf.read_text(encoding="utf-8")
        conf.write_text(text.replace("slurmctld.pid", "backup.pid").replace("slurmctld.log", "backup.log"))
        command = ["unshare", "--uts", sys.executable, "-c", _AS_BACKUP, BACKUP, "slurmctld", "-D", "-f", str(conf)]
        with (Path(cluster.root) / "log" / "backup.out").open("wb") as said:
            backup = subprocess.Popen(command, cwd="/", env=cluster.environment, stdout=said, stderr=said)
        try:
            wait_for(
                "both controllers", lambda: cluster.command("scontrol", "ping").stdout.count(" UP") == 2, seconds=30
            )
            yield cluster
        finally:
            backup.terminate()
            try:
                backup.wait(timeout=10)
            except subprocess.TimeoutExpired:
                backup.kill()
                backup.wait()


def test_the_second_controller_is_read_and_told_like_the_first(pair: Cluster) -> None:
    """While nobody answers it is unavailable, never empty; afterwards the same jobs, and a requeue with exclusions."""
    slurm = Slurm(conf=str(pair.conf), timeout_seconds=20)
    job = pair.submit("alice", "#!/bin/sh\nexit 3\n", "-N1")
    pair.wait_state(job, "FAILED", seconds=30)
    before = slurm.jobs(str(job))
    assert slurm.config().cluster == "demo"
    state = pair.root / "state" / "job_state"
    ended = before[0].end or 0
    wait_for("what it knows on disk", lambda: state.exists() and state.stat().st_mtime > ended + 2, seconds=30)
    pair.kill_controller()
    empty: list[tuple[JobRow, ...]] = []
    problems: set[str] = set()

    def answered() -> tuple[JobRow, ...] | None:
        try:
            found = slurm.jobs(str(job))
        except SlurmError as error:
            problems.add(error.problem)
            return None
        if not found:
            empty.append(found)
        return found or None

    after = wait_for("the second controller", answered, seconds=90, every_seconds=0.5)
    assert empty == []
    assert problems <= {"refused", "timeout"}
    assert after == before
    pair.must("scontrol", "requeue", str(job))
    pair.must("scontrol", "update", f"JobId={job}", "ExcNodeList=node1", "AdminComment=x")
    (row,) = slurm.jobs(str(job))
    assert (row.state, row.restarts, row.excluded) == ("PENDING", 1, ("node1",))
    assert HOST_NAME in pair.command("scontrol", "ping").stdout
