"""A real Slurm on this host: own munge, slurmctld as user `slurm`, several slurmd with eight pretended GPUs each.

Must run inside `advisor.demo.namespace`: the job users exist only there, and job steps that outlive their daemons end
with it. Daemons run in the foreground as our children, so they are stopped by the handle we hold, never by name.

What Slurm prints is read from columns that no user can write (docs/architecture.md, "Trust").
"""

import contextlib
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from advisor.demo.namespace import HOST_NAME, Runtime
from advisor.demo.squeue import FORMAT, JobRow, parse_rows
from advisor.demo.waiting import wait_for

CLUSTER_NAME = "demo"
SLURM_USER = "slurm"
GPUS_PER_NODE = 8

_START_SECONDS = 30.0


class ClusterError(Exception):
    """Slurm did not come up or refused a command; the text holds its own words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What kind of cluster. `cred_expire_seconds` + 1 is Slurm's delay between a requeue and the next start."""

    nodes: int = 4
    cred_expire_seconds: int = 5
    slurmd_timeout_seconds: int = 10
    min_job_age_seconds: int = 300
    kill_wait_seconds: int = 2
    extra: tuple[str, ...] = ()  # further lines of slurm.conf


@dataclass(slots=True, kw_only=True)
class Cluster:
    runtime: Runtime
    shape: Shape = Shape()
    hook: Path | None = None  # EpilogSlurmctld; copied to a place that slurm can traverse
    hook_socket: Path | None = None  # where the hook sends its notices
    before_controller: "Callable[[Cluster], None] | None" = None  # with munge up: accounting, say
    _daemons: "dict[str, subprocess.Popen[bytes]]" = field(default_factory=dict)

    @property
    def root(self) -> Path:
        return self.runtime.root / "slurm"

    @property
    def conf(self) -> Path:
        return self.root / "etc" / "slurm.conf"

    @property
    def nodes(self) -> tuple[str, ...]:
        return tuple(f"node{number}" for number in range(1, self.shape.nodes + 1))

    @property
    def jobcomp(self) -> Path:
        """Slurm's own record of ended attempts, one line each."""
        return self.root / "log" / "ctld" / "jobcomp.txt"

    @property
    def controller_log(self) -> Path:
        return self.root / "log" / "ctld" / "slurmctld.log"

    def kernel_log(self, node: str) -> Path:
        """Written by root only: the stand-in for a node's kernel log."""
        return self.runtime.root / "kernel" / f"{node}.log"

    @property
    def environment(self) -> dict[str, str]:
        return {**self.runtime.environment, "SLURM_CONF": str(self.conf), "SLURM_TIME_FORMAT": "%s"}

    # ---- life ----

    def start(self) -> None:
        """Write the configuration, start the daemons, and return when every node is idle."""
        self._check_installed()
        self._make_folders()
        self._write_configuration(_free_ports(self.shape.nodes + 1))
        key = self.root / "etc" / "munge.key"
        key.write_bytes(secrets.token_bytes(1024))
        key.chmod(0o400)
        self._start_munge()
        if self.before_controller is not None:
            self.before_controller(self)
        self.start_controller()
        for node in self.nodes:
            self.start_node(node)
        wait_for("all nodes idle", lambda: self.idle_nodes() == frozenset(self.nodes), seconds=_START_SECONDS)

    def stop(self) -> None:
        """End the daemons, newest first. Steps of running jobs end with the namespace."""
        for name in reversed(list(self._daemons)):
            self._end(name, signal.SIGTERM)

    def start_controller(self) -> None:
        self._daemons["slurmctld"] = self._spawn("slurmctld", "slurmctld", "-D", "-f", str(self.conf))

    def stop_controller(self) -> None:
        self._end("slurmctld", signal.SIGTERM)

    def kill_controller(self) -> None:
        """kill -9: what it had not saved yet is lost."""
        self._end("slurmctld", signal.SIGKILL)

    def pid(self, daemon: str) -> int:
        """Of `slurmctld`, or of a node's slurmd by the node's name."""
        return self._daemons[daemon].pid

    def start_node(self, node: str) -> None:
        self._daemons[node] = self._spawn(node, "slurmd", "-D", "-N", node, "-f", str(self.conf))

    def kill_node(self, node: str) -> None:
        """slurmd dies, as when a host crashes; its job steps stay, as nobody is there to end them."""
        self._end(node, signal.SIGKILL)

    def _spawn(self, name: str, *argv: str) -> "subprocess.Popen[bytes]":
        with (self.root / "log" / f"{name}.out").open("ab") as output:
            return subprocess.Popen(
                argv,
                cwd="/",
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,  # a terminal's Ctrl-C is for us, who then stop them in order
            )

    def _end(self, name: str, number: signal.Signals) -> None:
        process = self._daemons.pop(name, None)
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(number)
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _start_munge(self) -> None:
        run = self.root / "run"
        self._daemons["munged"] = self._spawn(
            "munged",
            *("munged", "--foreground", "--force", f"--key-file={self.root}/etc/munge.key"),
            *(f"--socket={run}/munge.socket", f"--pid-file={run}/munged.pid", f"--seed-file={run}/munged.seed"),
            f"--log-file={self.root}/log/munged.log",
        )
        wait_for("munge's socket", (run / "munge.socket").is_socket, seconds=_START_SECONDS, every_seconds=0.02)

    # ---- configuration ----

    def _check_installed(self) -> None:
        path = self.environment["PATH"]
        missing = [
            name for name in ("slurmctld", "slurmd", "sbatch", "munged") if shutil.which(name, path=path) is None
        ]
        if missing:
            raise ClusterError(f"Slurm is not installed ({', '.join(missing)} missing). Run: make packages")
        try:
            pwd.getpwnam(SLURM_USER)
        except KeyError:
            raise ClusterError(
                "There is no user `slurm`; Debian's package slurmctld makes it. Run: make packages"
            ) from None

    def _make_folders(self) -> None:
        for name in ("", "etc", "log", "spool", "run", "dev", "hooks"):
            (self.root / name).mkdir(mode=0o755, exist_ok=True)
        for name, mode in (("state", 0o700), ("run/ctld", 0o755), ("log/ctld", 0o755)):
            (self.root / name).mkdir(mode=mode, exist_ok=True)
            shutil.chown(self.root / name, SLURM_USER, SLURM_USER)
        (self.runtime.root / "kernel").mkdir(exist_ok=True)
        for node in self.nodes:
            self.kernel_log(node).touch(mode=0o644)
        for index in range(GPUS_PER_NODE):
            # slurmd insists on a device, and is content with one device under eight names.
            (self.root / "dev" / f"gpu{index}").symlink_to("/dev/null")
        if self.hook is not None:
            shutil.copy(self.hook, self._hook_path)
            self._hook_path.chmod(0o755)
            self._hook_path.with_name(self._hook_path.name + ".socket").write_text(
                f"{self.hook_socket or ''}\n", encoding="utf-8"
            )

    @property
    def _hook_path(self) -> Path:
        return self.root / "hooks" / "epilog_slurmctld"

    def _write_configuration(self, ports: Sequence[int]) -> None:
        root, shape = self.root, self.shape
        lines = [
            f"ClusterName={CLUSTER_NAME}",
            f"SlurmctldHost={HOST_NAME}(127.0.0.1)",
            f"SlurmctldPort={ports[0]}",
            f"SlurmUser={SLURM_USER}",
            "SlurmdUser=root",
            "MailProg=/bin/true",
            "AuthType=auth/munge",
            f"AuthInfo=socket={root}/run/munge.socket,cred_expire={shape.cred_expire_seconds}",
            "CredType=cred/munge",
            f"StateSaveLocation={root}/state",
            f"SlurmdSpoolDir={root}/spool/%n",
            f"SlurmctldPidFile={root}/run/ctld/slurmctld.pid",
            f"SlurmdPidFile={root}/run/slurmd.%n.pid",
            f"SlurmctldLogFile={self.controller_log}",
            f"SlurmdLogFile={root}/log/slurmd.%n.log",
            "SlurmctldDebug=verbose",
            "SlurmdDebug=verbose",
            "ProctrackType=proctrack/linuxproc",
            "TaskPlugin=task/none",
            "JobAcctGatherType=jobacct_gather/none",
            "SelectType=select/cons_tres",
            "SelectTypeParameters=CR_Core",
            "SchedulerType=sched/backfill",
            "SchedulerParameters=sched_interval=1,bf_interval=1,batch_sched_delay=0,sched_min_interval=0",
            "SlurmdParameters=config_overrides",
            "GresTypes=gpu",
            "MpiDefault=none",
            "ReturnToService=2",
            f"SlurmdTimeout={shape.slurmd_timeout_seconds}",
            f"MinJobAge={shape.min_job_age_seconds}",
            f"KillWait={shape.kill_wait_seconds}",
            "InactiveLimit=0",
            "MessageTimeout=10",
            "JobRequeue=1",
            "JobCompType=jobcomp/filetxt",
            f"JobCompLoc={self.jobcomp}",
            *(
                ["AccountingStorageType=accounting_storage/none"]
                if not any(line.startswith("AccountingStorageType=") for line in shape.extra)
                else []
            ),
            "SwitchType=switch/none",
            *([f"EpilogSlurmctld={self._hook_path}"] if self.hook is not None else []),
            *shape.extra,
            "NodeName=DEFAULT CPUs=16 Boards=1 SocketsPerBoard=2 CoresPerSocket=8 ThreadsPerCore=1 RealMemory=4000 "
            f"Gres=gpu:h200:{GPUS_PER_NODE} State=UNKNOWN",
            *(
                # By weight, lowest first, so that a story can tell beforehand which nodes a job gets.
                f"NodeName={node} NodeHostname={HOST_NAME} NodeAddr=127.0.0.1 Port={port} Weight={weight}"
                for weight, (node, port) in enumerate(zip(self.nodes, ports[1:], strict=True), 1)
            ),
            "PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=NO",
        ]
        self.conf.write_text("\n".join(lines) + "\n", encoding="utf-8")
        (self.root / "etc" / "gres.conf").write_text(
            f"NodeName=node[1-{shape.nodes}] Name=gpu Type=h200 File={root}/dev/gpu[0-{GPUS_PER_NODE - 1}]\n",
            encoding="utf-8",
        )

    # ---- asking and telling ----

    def command(
        self, *argv: str, user: str = "root", cwd: Path = Path("/"), text: str | None = None
    ) -> "subprocess.CompletedProcess[str]":
        """Run one of Slurm's tools as `user`, without a shell. Never raises for its exit status."""
        who = {} if user == "root" else {"user": user, "group": user, "extra_groups": []}
        return subprocess.run(  # type: ignore[call-overload,no-any-return]  # the overloads do not know **who
            argv,
            check=False,
            cwd=cwd,
            env={**self.environment, "USER": user, "HOME": str(self.runtime.home(user) if who else Path("/root"))},
            input=text,
            capture_output=True,
            encoding="utf-8",
            errors="surrogateescape",
            timeout=60,
            umask=0o022,
            **who,
        )

    def must(self, *argv: str, user: str = "root", cwd: Path = Path("/"), text: str | None = None) -> str:
        """Like `command`; raises `ClusterError` with Slurm's words when it fails."""
        done = self.command(*argv, user=user, cwd=cwd, text=text)
        if done.returncode != 0:
            raise ClusterError(f"{' '.join(argv)}: exit {done.returncode}: {done.stderr.strip()} {done.stdout.strip()}")
        return done.stdout

    def submit(self, user: str, script: str, *options: str) -> int:
        """sbatch as `user` from their home; returns the job id."""
        out = self.must("sbatch", "--parsable", *options, user=user, cwd=self.runtime.home(user), text=script)
        return int(out.strip().split(";")[0])

    def idle_nodes(self) -> frozenset[str]:
        """Those that answer: for a moment after a RESUME a node is `idle*`, and fits no job."""
        done = self.command("sinfo", "-h", "-N", "-o", "%N %T")
        found = (line.split() for line in done.stdout.splitlines()) if done.returncode == 0 else ()
        return frozenset(node for node, state in found if state == "idle")

    def come_to_rest(self, seconds: float = 60.0) -> None:
        """No job left, every node idle."""
        for job_id, row in self.jobs().items():
            if row.state in {"PENDING", "RUNNING", "COMPLETING", "SUSPENDED"}:
                self.command("scancel", str(job_id))
        wait_for("all nodes idle again", lambda: self.idle_nodes() == frozenset(self.nodes), seconds=seconds)

    def node_state(self, node: str) -> str:
        return self.must("sinfo", "-h", "-N", "-n", node, "-o", "%T").split()[0]

    def jobs(self) -> dict[int, JobRow]:
        """Every job Slurm remembers. Raises `ClusterError` when squeue fails or says anything on stderr."""
        listing = self.command("squeue", "-h", "-a", "-r", "-t", "all", "-O", FORMAT)
        exclusions = self.command("squeue", "-h", "-a", "-r", "-t", "all", "-o", "%A|%x")
        for done in (listing, exclusions):
            if done.returncode != 0 or done.stderr:
                raise ClusterError(f"squeue: {done.stderr.strip()}")
        return parse_rows(listing.stdout, exclusions.stdout)

    def job(self, job_id: int) -> JobRow:
        rows = self.jobs()
        if job_id not in rows:
            raise ClusterError(f"Slurm does not know job {job_id} (any more)")
        return rows[job_id]

    def wait_state(self, job_id: int, *states: str, seconds: float, restarts: int | None = None) -> JobRow:
        """Wait until the job shows one of `states` (and, if given, that restart count)."""

        def look() -> JobRow | None:
            row = self.job(job_id)
            return row if row.state in states and restarts in (None, row.restarts) else None

        what = f"job {job_id} {' or '.join(states)}" + ("" if restarts is None else f" with {restarts} restarts")
        return wait_for(what, look, seconds=seconds, every_seconds=0.1)

    def completions(self, job_id: int) -> list[str]:
        """JobState of each line that Slurm's completion log holds for a job, oldest first."""
        if not self.jobcomp.exists():
            return []
        lines = self.jobcomp.read_bytes().decode("utf-8", "surrogateescape").splitlines()
        mine = (line.split(" ") for line in lines if line.startswith(f"JobId={job_id} "))
        # The last JobState= of a line: a job name, which comes before it, may hold a forged one.
        return [[word.partition("=")[2] for word in words if word.startswith("JobState=")][-1] for words in mine]

    def expand(self, hostlist: str) -> tuple[str, ...]:
        return tuple(self.must("scontrol", "show", "hostnames", hostlist).split()) if hostlist else ()


def _free_ports(count: int) -> list[int]:
    """A block of ports that nobody uses, below the range from which the kernel picks for outgoing connections."""
    start = 15000 + secrets.randbelow(12000)
    for base in range(start, start + 4000, count):
        with contextlib.ExitStack() as stack:
            try:
                for port in range(base, base + count):
                    probe = stack.enter_context(socket.socket())
                    probe.bind(("", port))
            except OSError:
                continue
            return list(range(base, base + count))
    raise ClusterError("no free block of ports")
