"""The README's way from nothing to monitor mode, autonomous and back, by the README's own commands on a real Slurm.

Run as a program, inside a namespace of its own, this file follows the README; the test starts it there. `/etc`, `/opt`,
`/run`, `/var/lib` and `/var/log` are private to that namespace, so the shipped defaults are used as they are. Systemd's
blocks are left out in favour of those by hand; `pip install` is done as written only in the long test.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from advisor.demo.cluster import Cluster, Shape
from advisor.demo.namespace import Runtime, require
from advisor.demo.waiting import holds_for, wait_for

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = "/opt/recovery-advisor/bin"
SECTIONS = ("Monitor mode", "The shadow report", "Going autonomous", "Stop everything")
# The blocks that a plain `sh` or one of these words marks are commands to be run; `install` and `systemd` are not.
KINDS = {"", "path", "check", "user", "agent-and-watchdog", "shadow", "stop", "go", "back"}
SHADOW = (f"{PROGRAM}/advisor", "report", "shadow", "--format", "json")


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    section: str
    kind: str
    text: str


def blocks(readme: str) -> list[Block]:
    """The `sh` blocks of the sections on setting up, in order."""
    found = []
    for section in re.split(r"^## ", readme, flags=re.MULTILINE)[1:]:
        title = section.splitlines()[0]
        if title in SECTIONS:
            for kind, text in re.findall(r"^```sh ?([a-z-]*)\n(.*?)^```$", section, re.MULTILINE | re.DOTALL):
                found.append(Block(section=title, kind=kind, text=text))
    return found


def test_following_the_readme_leads_to_a_recovered_job() -> None:
    """Folders, configuration, hook, start, an opted-in job: watched only, then restarted, then watched only again."""
    _follow_in_a_namespace()


@pytest.mark.long
@pytest.mark.timeout(900)
def test_the_same_with_everything_installed_as_written() -> None:
    """The wheel and what it needs, from the package index: nothing of the checkout is needed at run time."""
    _follow_in_a_namespace("--install")


def _follow_in_a_namespace(*options: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "advisor.demo.namespace", "--", sys.executable, "-P", __file__, *options],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=800 if options else 240,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert done.stdout.splitlines()[-1] == "followed"


@dataclass(slots=True, kw_only=True)
class Reader:
    """Somebody who types what the README says, one block after the other."""

    runtime: Runtime
    cluster: Cluster
    path: str = "/usr/sbin:/usr/bin:/sbin:/bin"
    blocks: list[Block] = field(default_factory=lambda: blocks((ROOT / "README.md").read_text(encoding="utf-8")))

    def next(self, kind: str, *, holding: str) -> str:
        """Run the next runnable block, which must be of this kind and hold this text. Returns what it printed."""
        block = self.blocks.pop(0)
        while block.kind not in KINDS:
            block = self.blocks.pop(0)
        assert (block.kind, holding in block.text) == (kind, True), block
        return self.run(block)

    def run(self, block: Block, *, seconds: float = 60.0) -> str:
        print(f"--- {block.section}: sh {block.kind}\n{block.text}", flush=True)
        user = "alice" if block.kind == "user" else None
        done = subprocess.run(
            ["/bin/sh", "-e"],
            input=block.text,
            cwd=self.runtime.code,
            env={
                "PATH": self.path,
                "LANG": "C.UTF-8",
                "HOME": str(self.runtime.home(user)) if user else "/root",
                # Debian's slurm.conf would be found anyway; Slurm built elsewhere has another default.
                "SLURM_CONF": "/etc/slurm/slurm.conf",
                "SBATCH_PARTITION": "train",  # the reader's own is the one that the README takes for an example
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=seconds,
            umask=0o022,
            user=user,
            group=user,
            extra_groups=[] if user else None,
        )
        print(done.stdout, flush=True)
        assert done.returncode == 0, f"exit {done.returncode}"
        return done.stdout

    def ask(self, *argv: str) -> "subprocess.CompletedProcess[str]":
        environment = {"PATH": self.path, "SLURM_CONF": "/etc/slurm/slurm.conf", "LANG": "C.UTF-8"}
        return subprocess.run(argv, env=environment, capture_output=True, text=True, check=False, timeout=60)

    def decisions(self, job_id: int) -> list[dict[str, object]]:
        done = self.ask("/opt/recovery-advisor/bin/advisor", "decisions", "list", "--job", str(job_id), "--format=json")
        return list(json.loads(done.stdout)) if done.returncode == 0 else []

    def wait_well(self, agent_mode: str) -> None:
        """Until the doctor finds nothing wrong and the agent in this mode: the README gives the start some seconds."""

        def well() -> bool:
            done = self.ask(f"{PROGRAM}/advisor", "doctor")
            return done.returncode == 0 and agent_mode in done.stdout

        wait_for(f"the agent in {agent_mode}", well, seconds=60, every_seconds=0.5)

    def restart_agent_and_watchdog(self, block: Block) -> None:
        """By hand, as the README's block of systemd does it otherwise."""
        for folder in Path("/proc").iterdir():
            if folder.name.isdigit() and _is_agent_or_watchdog(folder):
                os.kill(int(folder.name), signal.SIGTERM)
        wait_for("their end", lambda: not any(map(_is_agent_or_watchdog, Path("/proc").iterdir())), seconds=20)
        self.run(block)

    def probe(self, block: Block) -> int:
        return int(self.run(block).split()[-1])


def _is_agent_or_watchdog(folder: Path) -> bool:
    if not folder.name.isdigit():
        return False
    try:
        words = (folder / "cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    names = {Path(os.fsdecode(word)).name for word in words[:4]}
    return bool(names & {"slurm_plugin", "advisor-agent"}) or any(
        word.endswith(b"/watchdog/__main__.py") for word in words[1:4]
    )


def _make_private(runtime: Runtime, cluster: Cluster) -> None:
    """`/etc` as it is, but a copy; the other folders empty. Only this namespace sees it."""
    copy = runtime.root / "private-etc"
    subprocess.run(["cp", "-a", "/etc", str(copy)], check=True)
    subprocess.run(["mount", "--bind", str(copy), "/etc"], check=True)
    opt = runtime.root / "opt"  # what others have there stays visible
    opt.mkdir()
    subprocess.run(["mount", "--bind", "/opt", str(opt)], check=True)
    for folder in ("/opt", "/run", "/var/lib", "/var/log"):
        subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=0755", "tmpfs", folder], check=True)
    for others in opt.iterdir():
        if others.name != "recovery-advisor":
            Path("/opt", others.name).symlink_to(others)
    shutil.rmtree("/etc/recovery-advisor", ignore_errors=True)
    Path("/etc/slurm").mkdir(exist_ok=True)
    Path("/etc/slurm/slurm.conf").unlink(missing_ok=True)
    Path("/etc/slurm/slurm.conf").symlink_to(cluster.conf)


def _stand_in_for_pip(runtime: Runtime) -> None:
    """What `pip install` leaves behind, made of the environment that the tests run in."""
    folder = Path(PROGRAM)
    folder.mkdir(parents=True)
    for name, module in (("advisor", "advisor"), ("advisor-agent", "slurm_plugin"), ("advisor-watchdog", "watchdog")):
        program = folder / name
        program.write_text(
            f'#!/bin/sh\nPYTHONPATH={runtime.code} exec {runtime.python} -P -m {module} "$@"\n', encoding="utf-8"
        )
        program.chmod(0o755)
    (folder / "python").symlink_to(runtime.python)


def follow(*, install: bool) -> None:
    runtime = require()
    cluster = Cluster(runtime=runtime, shape=Shape(nodes=2, extra=("PartitionName=train Nodes=ALL State=UP",)))
    _make_private(runtime, cluster)
    reader = Reader(runtime=runtime, cluster=cluster)
    if install:
        reader.run(next(block for block in reader.blocks if block.kind == "install"), seconds=600)
    else:
        _stand_in_for_pip(runtime)
    cluster.start()
    try:
        _follow(reader, cluster)
    finally:
        for log in sorted(Path("/var/log/recovery-advisor").glob("*.log")):
            print(f"--- {log.name}", *log.read_text(encoding="utf-8").splitlines()[-12:], sep="\n")
        cluster.stop()
    print("followed")


def _follow(reader: Reader, cluster: Cluster) -> None:
    reader.next("", holding="cp -r watchdog")
    reader.next("path", holding=f"export PATH={PROGRAM}:$PATH")
    reader.path = f"{PROGRAM}:{reader.path}"
    reader.next("", holding="useradd")
    early = reader.ask("runuser", "-u", "slurm", "--", f"{PROGRAM}/advisor-agent", "check")
    assert early.returncode == 1
    assert "BAD  tick_file: there is no folder /run/recovery-advisor-agent" in early.stdout
    reader.next("", holding="install-hooks --apply")
    reader.next("", holding="advisor serve")
    agent_and_watchdog = next(block for block in reader.blocks if block.kind == "agent-and-watchdog")
    closed = Path("/run/recovery-advisor-agent")
    shutil.chown(closed, "root", "root")
    early = reader.ask("runuser", "-u", "slurm", "--", f"{PROGRAM}/advisor-agent", "check")
    assert f"BAD  tick_file: {closed} is not writable by slurm (root:root 0755)" in early.stdout, early
    shutil.chown(closed, "slurm", "slurm")
    wait_for(
        "the service",
        lambda: reader.ask(f"{PROGRAM}/advisor", "mode", "get").returncode == 0,
        seconds=60,
        every_seconds=0.5,
    )
    reader.next("agent-and-watchdog", holding="advisor-agent run")
    reader.wait_well("observe mode")
    checked = reader.next("check", holding="advisor doctor")
    assert "BAD" not in checked
    assert "observe mode" in checked
    assert re.search(r'^ok   watchdog: alive \d+\.\d s ago, in mode "observe"', checked, re.MULTILINE), checked
    assert "cannot write" not in Path("/var/log/recovery-advisor/watchdog.log").read_text(encoding="utf-8")
    as_root = reader.ask(f"{PROGRAM}/advisor-agent", "check")
    assert "user root may not act as the agent" in as_root.stdout, as_root

    opt_in = next(block for block in reader.blocks if block.kind == "user")
    job = int(reader.next("user", holding="sbatch").split()[-1])
    cluster.wait_state(job, "FAILED", seconds=30)
    wait_for("the decision", lambda: _restart_of(reader, job), seconds=30, every_seconds=0.5)
    assert str(job) in reader.next("", holding="decisions list")
    untouched = cluster.job(job)
    assert holds_for(lambda: cluster.job(job) == untouched, seconds=3)

    # A person does what was advised; the record in the README is about the first job of a new cluster, which this is.
    assert job == 1
    cluster.must("scontrol", "requeue", str(job))
    cluster.wait_state(job, "COMPLETED", seconds=60, restarts=1)
    wait_for("the shadow report", lambda: "agreed" in reader.ask(*SHADOW).stdout, seconds=30, every_seconds=0.5)
    assert "gpu_hardware" in reader.next("shadow", holding="report shadow")

    reader.next("", holding='mode = "act"')
    reader.restart_agent_and_watchdog(agent_and_watchdog)
    reader.wait_well("act mode")
    assert "train" in reader.next("", holding="mode set autonomous")
    checked = reader.ask("runuser", "-u", "slurm", "--", f"{PROGRAM}/advisor-agent", "check").stdout
    assert "BAD" not in checked
    assert re.search(r'^ok   watchdog: alive \d+\.\d s ago, in mode "act"', checked, re.MULTILINE), checked
    job = reader.probe(opt_in)
    cluster.wait_state(job, "COMPLETED", seconds=60, restarts=1)

    reader.next("stop", holding="/etc/recovery-advisor/stop")
    job = _untouched(reader, cluster, opt_in)
    assert "looking into something" in reader.ask(f"{PROGRAM}/advisor", "status").stdout
    reader.next("go", holding="rm /etc/recovery-advisor/stop")
    cluster.wait_state(job, "COMPLETED", seconds=60, restarts=1)

    reader.next("back", holding="mode set monitor")
    _untouched(reader, cluster, opt_in)
    assert not [block for block in reader.blocks if block.kind in KINDS], "commands that nobody ran"


def _untouched(reader: Reader, cluster: Cluster, opt_in: Block) -> int:
    """One more job that fails: its restart is decided, and nothing is done to it."""
    job = reader.probe(opt_in)
    cluster.wait_state(job, "FAILED", seconds=30)
    wait_for("the decision", lambda: _restart_of(reader, job), seconds=30, every_seconds=0.5)
    untouched = cluster.job(job)
    assert holds_for(lambda: cluster.job(job) == untouched, seconds=3)
    return job


def _restart_of(reader: Reader, job_id: int) -> bool:
    return any('"ACTION_RESTART"' in json.dumps(decision) for decision in reader.decisions(job_id))


if __name__ == "__main__":
    follow(install="--install" in sys.argv[1:])
