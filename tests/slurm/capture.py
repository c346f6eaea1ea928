"""Golden output of the Slurm that is installed here: `python -m tests.slurm.capture FOLDER`, in the namespace.

A small zoo of jobs, each made to be hard to read, and what every tool that we run printed about it. What differs from
run to run (the runtime folder, the separator drawn for a call) is replaced; times and ids stay as Slurm gave them.
"""

import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from advisor.demo.cluster import Cluster, Shape
from advisor.demo.waiting import wait_for
from advisor.demo.world import running_cluster
from slurm_plugin import squeue
from slurm_plugin.records import RECORD
from slurm_plugin.squeue import Output, Slurm

FORGED = "x JobState=RUNNING Restarts=7\nJobId=1 JobName=evil JobState=RUNNING\x1f\x1e\nFAILED"
_WAIT = '#!/bin/sh\nwhile [ ! -e "$HOME/go" ]; do sleep 0.1; done\n'
_END = re.compile(rb"\x1e[0-9a-f]{16}")
_INDENT = re.compile(rb"\n +")  # half of what JSON holds; a line end within a text is escaped there


@dataclass(slots=True)
class Recorder:
    """Runs the real tools and keeps what they printed, by a name of ours."""

    kept: dict[str, bytes] = field(default_factory=dict)

    def __call__(self, argv: Sequence[str], environment: Mapping[str, str], timeout_seconds: float) -> Output:
        said = squeue.run_process(argv, environment, timeout_seconds)
        kind = next((name for name in ("--json", "-O", "%x") if any(name in item for item in argv)), "")
        name = {"--json": "squeue.json", "-O": "squeue.bin", "%x": "excluded.bin"}.get(kind, f"{argv[0]}.bin")
        if argv[1:3] == ("show", "config"):
            name = "config.txt"
        self.kept[name] = _END.sub(RECORD.encode(), said.stdout)
        return said


def make_zoo(cluster: Cluster) -> dict[str, int]:
    """Jobs by what is odd about them, each in the state that it is to be seen in."""
    made = {
        "forged": cluster.submit("alice", "#!/bin/sh\nexit 3\n", "-N2", "-J", FORGED, f"--comment={FORGED}"),
        "bytes": cluster.submit("bob", "#!/bin/sh\nexit 255\n", "-J", "b\udcff", "--comment=\udcff\udcfe \x01\t\"'"),
        "signal": cluster.submit("alice", "#!/bin/sh\nkill -9 $$\n", "-N1", "-o", "%u-%5j-%x.log"),
        "completed": cluster.submit("alice", "#!/bin/sh\nexit 0\n", "-N1"),
        "special": cluster.submit("bob", "#!/bin/sh\nexit 112\n", "-N1", "--requeue"),
        "requeued": cluster.submit("alice", "#!/bin/sh\nexit 5\n", "-N1", '--comment={"advisor": {}}'),
    }
    for name, state in (("forged", "FAILED"), ("bytes", "FAILED"), ("signal", "FAILED"), ("completed", "COMPLETED")):
        cluster.wait_state(made[name], state, seconds=30)
    cluster.wait_state(made["special"], "SPECIAL_EXIT", seconds=30)
    cluster.wait_state(made["requeued"], "FAILED", seconds=30)
    made |= {
        "running": cluster.submit("alice", _WAIT, "-N1", "-J", "train", "--gres=gpu:8", "--exclude=node[5-6]"),
        "array": cluster.submit("bob", _WAIT, "--array=0-9%1", "-N1", "-o", "%A-%a.log"),
        "held": cluster.submit("alice", _WAIT, "-H", "-N3", "--dependency=singleton", "-J", "(null)"),
        "cancelled": cluster.submit("alice", _WAIT, "-N1"),
        "dependent": cluster.submit("bob", _WAIT, "-N1", f"--dependency=afterany:{made['requeued'] + 1}", "-J", "N/A"),
        "listed": cluster.submit("alice", _WAIT, "-N1", "--nodelist=node4", "--no-requeue", "--mem=100", "-c2"),
        "long": cluster.submit("bob", _WAIT, "-N1", "--comment=" + '{"advisor": {"x": "' + "y" * 900 + '"}}', "-H"),
    }
    made["het"] = cluster.submit("alice", "#!/bin/sh\n#SBATCH -N1\n#SBATCH hetjob\n#SBATCH -N2 -J b\nsleep 60\n")
    cluster.wait_state(made["running"], "RUNNING", seconds=30)
    cluster.wait_state(made["cancelled"], "RUNNING", seconds=30)
    cluster.must("scancel", str(made["cancelled"]))
    cluster.wait_state(made["cancelled"], "CANCELLED", seconds=30)
    cluster.must("scontrol", "requeue", str(made["requeued"]))
    mark = 'of an admin\n\x1e {"advisor": {"v": 1}} \x1f'
    job = f"JobId={made['requeued']}"
    cluster.must("scontrol", "update", job, "ExcNodeList=node1,node[3-4]", f"AdminComment={mark}")
    cluster.must("scontrol", "update", "NodeName=node6", "State=DRAIN", "Reason=line one\nline \x1ftwo")
    return made


def capture(cluster: Cluster) -> dict[str, bytes]:
    """What our reader's own calls are answered with."""
    recorder = Recorder()
    slurm = Slurm(conf=str(cluster.conf), run=recorder)
    slurm.jobs(), slurm.details(), slurm.nodes(), slurm.config()
    root, quoted = str(cluster.runtime.root).encode(), str(cluster.runtime.root).replace("/", r"\/").encode()
    kept = {name: text.replace(root, b"/srv/ra").replace(quoted, rb"\/srv\/ra") for name, text in recorder.kept.items()}
    return {name: _INDENT.sub(b"\n", text) if name.endswith(".json") else text for name, text in kept.items()}


def main(folder: Path) -> None:
    with running_cluster(Shape(nodes=6, extra=("RequeueExitHold=112",))) as (cluster, _):
        made = make_zoo(cluster)
        wait_for("the drain", lambda: cluster.node_state("node6").startswith("drain"), seconds=10)
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in capture(cluster).items():
            (folder / name).write_bytes(text)
        (folder / "jobs.txt").write_text("".join(f"{name} {job}\n" for name, job in made.items()), encoding="utf-8")
        for job in made.values():
            cluster.command("scancel", str(job))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
