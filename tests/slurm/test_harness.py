"""The harness itself: what the scenarios rest on must be known to work without the advisor."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from advisor.demo.cluster import Cluster
from advisor.demo.namespace import Runtime
from advisor.demo.training import KernelLogWriter, Training, launch, output_file, work_folder
from advisor.demo.waiting import wait_for

_HOLD = """
import sys, time
from advisor.demo.cluster import Cluster
from advisor.demo.namespace import require
cluster = Cluster(runtime=require())
cluster.start()
job = cluster.submit("alice", "#!/bin/sh\\nsrun sleep 600\\n", "-N2", "--gpus-per-node=8")
cluster.wait_state(job, "RUNNING", seconds=20)
print(cluster.runtime.root, flush=True)
time.sleep(600)
"""


def test_jobs_of_two_ordinary_users_run_on_their_own_nodes(cluster: Cluster) -> None:
    """Jobs run as the user who submitted them, with eight GPUs on each node."""
    script = "#!/bin/sh\nid -un\nsrun sh -c 'echo \"$SLURMD_NODENAME $CUDA_VISIBLE_DEVICES\"'\n"
    jobs = {user: cluster.submit(user, script, "-N2", "--gpus-per-node=8", "-oid-%j") for user in ("alice", "bob")}
    for user, job in jobs.items():
        row = cluster.wait_state(job, "COMPLETED", seconds=20)
        lines = (cluster.runtime.home(user) / f"id-{job}").read_text().splitlines()
        assert lines[0] == row.user == user
        assert sorted(lines[1:]) == [f"{node} 0,1,2,3,4,5,6,7" for node in cluster.expand(row.nodes)]


def test_training_fails_on_the_faulty_node_and_resumes_from_its_checkpoint(
    cluster: Cluster, kernel: KernelLogWriter
) -> None:
    """Xid 79 on node2 ends the attempt; requeued by hand without node2 it goes on from step 10 and finishes."""
    fault = {"kind": "xid79", "attempt": 0, "node": "node2", "step": 12}
    training = Training(opt_in=False, name="by-hand", steps=20, faults=[fault], options=("--nodelist=node[1-2]",))
    job = launch(cluster, kernel, "alice", training)
    cluster.wait_state(job, "FAILED", seconds=30)
    first = output_file(cluster, "alice", training, job).read_text()
    assert "Watchdog caught collective operation timeout" in first
    assert "successfully saved checkpoint from iteration      10" in first
    assert "NVRM: Xid (PCI:0000:1b:00): 79" in cluster.kernel_log("node2").read_text()
    assert cluster.kernel_log("node1").read_text() == ""

    cluster.must("scontrol", "requeue", str(job), user="slurm")
    cluster.must("scontrol", "update", f"JobId={job}", "ReqNodeList=", "ExcNodeList=node2", user="slurm")
    row = cluster.wait_state(job, "COMPLETED", seconds=30, restarts=1)
    assert "node2" not in cluster.expand(row.nodes)
    second = output_file(cluster, "alice", training, job).read_text()
    assert "loading checkpoint from" in second
    assert "iteration       11/" in second
    assert "iteration       10/" not in second


def test_a_user_cannot_have_a_kernel_line_written(cluster: Cluster, kernel: KernelLogWriter) -> None:
    """An announcement that no plan of root's foresees leaves every kernel log as it is."""
    before = [cluster.kernel_log(node).read_bytes() for node in cluster.nodes]
    note = kernel.folder / "999.0.node3.0"
    done = cluster.command("touch", str(note), user="bob")
    assert done.returncode == 0
    done = cluster.command("sh", "-c", f"echo forged >> {cluster.kernel_log('node3')}", user="bob")
    assert done.returncode != 0
    training = Training(opt_in=False, name="healthy", steps=3, nodes=1)
    job = launch(cluster, kernel, "bob", training)
    cluster.wait_state(job, "COMPLETED", seconds=30)
    assert [cluster.kernel_log(node).read_bytes() for node in cluster.nodes] == before
    note.unlink()


@pytest.mark.parametrize(
    ("fault", "state", "shows"),
    [
        ({"kind": "exit", "rank": 1, "step": 2, "code": 7}, "FAILED", "Exited with exit code 7"),
        ({"kind": "keyerror", "step": 2}, "FAILED", "KeyError: 'labels'"),
        ({"kind": "sigkill", "rank": 3, "step": 2}, "FAILED", "Killed"),
        ({"kind": "line", "rank": 0, "step": 2, "text": "Xid 79 on node3"}, "COMPLETED", "Xid 79 on node3"),
        ({"kind": "silent", "step": 2}, "COMPLETED", "[after training is done]"),
    ],
)
def test_each_kind_of_fault_does_what_it_says(
    cluster: Cluster, kernel: KernelLogWriter, fault: dict[str, object], state: str, shows: str
) -> None:
    """The fault plan's kinds end the job, or do not, and leave their line in its output."""
    training = Training(opt_in=False, name=f"fault-{fault['kind']}", steps=4, collective_seconds=1, faults=[fault])
    job = launch(cluster, kernel, "alice", training)
    cluster.wait_state(job, state, seconds=30)
    assert shows in output_file(cluster, "alice", training, job).read_text()


def test_a_hanging_rank_keeps_the_job_running_without_progress(cluster: Cluster, kernel: KernelLogWriter) -> None:
    """With a long collective time-out nobody notices a rank that hangs: RUNNING, and no new line."""
    training = Training(
        opt_in=False, name="hanging", steps=9, collective_seconds=600, faults=[{"kind": "hang", "rank": 1, "step": 3}]
    )
    job = launch(cluster, kernel, "alice", training)
    log = output_file(cluster, "alice", training, job)
    wait_for("step 2", lambda: log.exists() and "iteration        2/" in log.read_text(), seconds=20)
    assert cluster.job(job).state == "RUNNING"
    assert "iteration        3/" not in log.read_text()
    cluster.must("scancel", str(job), user="alice")
    cluster.wait_state(job, "CANCELLED", seconds=20)


def test_a_script_that_restarts_its_ranks_goes_on_within_the_attempt(cluster: Cluster, kernel: KernelLogWriter) -> None:
    """`while ! srun`: the second step of the same attempt resumes from the checkpoint."""
    fault = {"kind": "exit", "rank": 2, "step": 7, "step_id": 0}
    training = Training(opt_in=False, name="loop", steps=10, collective_seconds=1, faults=[fault], loop=True)
    job = launch(cluster, kernel, "alice", training)
    assert cluster.wait_state(job, "COMPLETED", seconds=30).restarts == 0
    text = output_file(cluster, "alice", training, job).read_text()
    assert text.count("loading checkpoint from") == 1
    assert (work_folder(cluster, "alice", training) / "latest_checkpointed_iteration.txt").read_text() == "10"


def test_nothing_is_left_after_the_whole_run_is_killed(runtime: Runtime) -> None:
    """kill -9 of the outermost process ends daemons, steps and ranks; the next run removes the folder."""
    command = [sys.executable, "-m", "advisor.demo.namespace", "--", sys.executable, "-c", _HOLD]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as outer:
        assert outer.stdout is not None
        root = Path(outer.stdout.readline().strip())
        assert root.is_dir()
        assert root != runtime.root
        assert _processes_naming(root)
        outer.send_signal(signal.SIGKILL)
    wait_for("the end of everything in the namespace", lambda: not _processes_naming(root), seconds=10)
    assert root.is_dir()
    subprocess.run([sys.executable, "-m", "advisor.demo.namespace", "--", "true"], check=True)
    assert not root.exists()
    assert runtime.root.exists()


def test_the_demo_users_exist_only_inside(runtime: Runtime) -> None:
    """The host's own /etc/passwd, under our bind mount, has no alice."""
    names = [line.split(":")[0] for line in Path("/etc/passwd").read_text().splitlines()]
    assert {"alice", "bob", "advisor"} <= set(names)
    mounts = Path("/proc/self/mountinfo").read_text()
    assert f"{runtime.root}/etc/passwd /etc/passwd" in mounts or " /etc/passwd " in mounts


def _processes_naming(root: Path) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                text = (entry / "environ").read_bytes() + (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if str(root).encode() in text:
                found.append(int(entry.name))
    return found
