"""The real programs on top of a cluster: advisor, agent and watchdog, each its own process as its own user.

The advisor runs as an ordinary service user with its embedded Postgres; agent and watchdog run as SlurmUser, as they
do on a real site. Each can be stopped, killed, frozen and started again alone.
"""

import contextlib
import json
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from advisor.client import Client, ClientError
from advisor.commands.decisions import as_document
from advisor.demo.cluster import CLUSTER_NAME, SLURM_USER, Cluster
from advisor.demo.namespace import SERVICE_USER, Runtime
from advisor.demo.waiting import wait_for
from advisor.store.embedded import running_url
from advisor.v1 import audit_pb2, common_pb2, operator_pb2

READY_SECONDS = 60.0
_DECISIONS_MAX = 50


def hook_socket(runtime: Runtime) -> Path:
    """Where the agent listens for the hook; Slurm is configured with it before the agent exists."""
    return runtime.root / "agent" / "hook.sock"


class StackError(Exception):
    """One of our programs did not do what it had to; the text holds its last words."""


@dataclass(slots=True, kw_only=True)
class Program:
    """One of our programs. `log` collects what it prints, over all its lives."""

    name: str
    argv: Sequence[str]
    user: str
    environment: Mapping[str, str]
    log: Path
    _process: "subprocess.Popen[bytes] | None" = None

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        return self._live().pid

    def _live(self) -> "subprocess.Popen[bytes]":
        if self._process is None or self._process.poll() is not None:
            raise StackError(f"{self.name} is not running:\n{self.last_words()}")
        return self._process

    def start(self) -> None:
        if self.running:
            return
        with self.log.open("ab") as output:
            self._process = subprocess.Popen(
                self.argv,
                cwd="/",
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                user=self.user,
                group=self.user,
                extra_groups=[],
                umask=0o022,
                start_new_session=True,
            )

    def stop(self, seconds: float = 15.0) -> int | None:
        """SIGTERM, and what the program makes of it; SIGKILL when it does not end."""
        if self._process is None:
            return None
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGCONT)
            self._process.terminate()
        try:
            return self._process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            return None

    def kill(self) -> None:
        """kill -9: no last words."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def freeze(self) -> None:
        self._live().send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._live().send_signal(signal.SIGCONT)

    def last_words(self, lines: int = 25) -> str:
        if not self.log.exists():
            return f"{self.name} printed nothing"
        return "\n".join(self.log.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:])


@dataclass(slots=True, kw_only=True)
class Stack:
    """Advisor, agent and watchdog for one cluster. `policy` holds overrides of the policy's numbers, by their names."""

    cluster: Cluster
    mode: str = "autonomous"
    agent_mode: str = "act"
    watchdog_mode: str = "act"
    policy: Mapping[str, object] = field(default_factory=dict)
    watchdog_dead_after_seconds: float = 10.0  # since the last completed tick
    agent_sections: str = ""  # more of the agent's configuration, as TOML
    other_sockets: tuple[Path, ...] = ()  # of more advisors, which the agent asks first
    slurm_bin: Path | None = None  # a folder of Slurm's tools for the agent, instead of PATH
    advisor: Program = field(init=False)
    agent: Program = field(init=False)
    watchdog: Program = field(init=False)

    @property
    def root(self) -> Path:
        return self.cluster.runtime.root

    @property
    def socket(self) -> Path:
        return self.root / "advisor" / "advisor.sock"

    @property
    def config_file(self) -> Path:
        return self.root / "etc" / "advisor.toml"

    @property
    def tick_file(self) -> Path:
        return self.root / "agent" / "tick.json"

    @property
    def stop_file(self) -> Path:
        return self.root / "agent" / "stop"

    @property
    def postgres_pid(self) -> int:
        """Of the advisor's embedded Postgres."""
        file = self.root / "advisor" / "data" / "postgres" / "data" / "postmaster.pid"
        return int(file.read_text(encoding="ascii").splitlines()[0])

    @property
    def programs(self) -> tuple[Program, ...]:
        return self.advisor, self.agent, self.watchdog

    def prepare(self) -> None:
        """Folders, configuration files and command lines. Starts nothing."""
        for name, user in (("advisor", SERVICE_USER), ("agent", SLURM_USER)):
            (self.root / name).mkdir(exist_ok=True)
            shutil.chown(self.root / name, user, user)
        (self.root / "log").mkdir(exist_ok=True)
        self._policy_file.write_text(_toml(self.policy), encoding="utf-8")
        self.config_file.write_text(self._advisor_toml(), encoding="utf-8")
        self._agent_file.write_text(self._agent_toml(), encoding="utf-8")
        self._watchdog_file.write_text(self._watchdog_toml(), encoding="utf-8")
        python = str(self.cluster.runtime.python)
        self.advisor = self._program(
            "advisor", SERVICE_USER, [python, "-m", "advisor", "serve", "--config", str(self.config_file)]
        )
        self.agent = self._program(
            "agent", SLURM_USER, [python, "-m", "slurm_plugin", "run", "--config", str(self._agent_file)]
        )
        self.watchdog = self._program(
            "watchdog", SLURM_USER, [python, "-m", "watchdog", "--config", str(self._watchdog_file)]
        )

    def start(self) -> None:
        """Start all three and return when the agent has written its first tick."""
        self.advisor.start()
        self.wait_ready()
        self.agent.start()
        self.watchdog.start()
        self._wait_program(self.agent, "the agent's tick file", self.tick_file.exists)

    def restart_advisor(self, policy: Mapping[str, object]) -> None:
        """Start the advisor again with another policy."""
        self.advisor.stop()
        self._policy_file.write_text(_toml(policy), encoding="utf-8")
        self.advisor.start()
        self.wait_ready()

    def another_advisor(self, name: str, *, lease_seconds: float) -> Program:
        """One more over the first one's database, with a socket of its own in `name`. Started by whoever asks."""
        folder = self.root / name
        folder.mkdir(exist_ok=True)
        dsn, config = folder / "dsn", folder / "advisor.toml"
        dsn.write_text(running_url(self.root / "advisor" / "data")[0], encoding="utf-8")
        dsn.chmod(0o600)
        own = self._advisor_toml().replace(f'"{self.root}/advisor/', f'"{folder}/')
        more = f'[store]\ndsn_file = "{dsn}"\n[replicas]\nlease_seconds = {lease_seconds}\n'
        config.write_text(own + more, encoding="utf-8")
        for path in (folder, dsn, config):
            shutil.chown(path, SERVICE_USER, SERVICE_USER)
        argv = [str(self.cluster.runtime.python), "-m", "advisor", "serve", "--config", str(config)]
        return self._program(name, SERVICE_USER, argv)

    def restart_agent(self, sections: str) -> None:
        """Start the agent again with other sections in its configuration."""
        self.agent.stop()
        self.agent_sections = sections
        self._agent_file.write_text(self._agent_toml(), encoding="utf-8")
        self.agent.start()

    def wait_ready(self) -> None:
        """Until the advisor answers on its socket."""
        self._wait_program(self.advisor, "the advisor's answer", self._answers)

    def stop(self) -> None:
        for program in (self.watchdog, self.agent, self.advisor):
            program.stop()

    # ---- asking, as an operator would ----

    def cli(self, *argv: str) -> "subprocess.CompletedProcess[str]":
        """`advisor ARGV...` as root, who is an operator here."""
        return subprocess.run(
            [str(self.cluster.runtime.python), "-m", "advisor", *argv],
            cwd="/",
            env={**self.cluster.runtime.environment, "ADVISOR_CONFIG": str(self.config_file)},
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )

    def ask(self, *argv: str) -> Any:
        """The command's JSON. Raises `StackError` with its complaint."""
        done = self.cli(*argv, "--format", "json")
        if done.returncode != 0:
            raise StackError(f"advisor {' '.join(argv)}: exit {done.returncode}: {done.stderr.strip()}")
        return json.loads(done.stdout)

    @contextlib.contextmanager
    def client(self) -> Iterator[Client]:
        """As `cli`, without a process for each question: whoever waits asks often. Raises `StackError`."""
        try:
            with Client(self.socket) as client:
                yield client
        except ClientError as error:
            raise StackError(str(error)) from error

    def decisions(self, job_id: int) -> list[dict[str, Any]]:
        """Decisions for one job, oldest first."""
        with self.client() as client:
            found = list(client.decisions(audit_pb2.Filter(job_id=str(job_id)), most=_DECISIONS_MAX))
        return [as_document(decision) for decision in reversed(found)]

    def set_mode(self, mode: str, *, cluster: str = "", job_id: str = "") -> None:
        value = common_pb2.Mode.Value(f"MODE_{mode.upper()}")
        with self.client() as client:
            client.set_mode(
                operator_pb2.ModeSetting(mode=value, why="demo", cluster=cluster or None, job_id=job_id or None)
            )

    # ---- parts ----

    @property
    def _policy_file(self) -> Path:
        return self.root / "etc" / "policy.toml"

    @property
    def _agent_file(self) -> Path:
        return self.root / "etc" / "agent.toml"

    @property
    def _watchdog_file(self) -> Path:
        return self.root / "etc" / "watchdog.toml"

    @property
    def _hook_socket(self) -> Path:
        return hook_socket(self.cluster.runtime)

    def _program(self, name: str, user: str, argv: Sequence[str]) -> Program:
        environment = {**self.cluster.runtime.environment, "HOME": str(self.root / name), "USER": user}
        return Program(name=name, argv=argv, user=user, environment=environment, log=self.root / "log" / f"{name}.log")

    def _answers(self) -> bool:
        if not self.socket.is_socket():
            return False
        try:
            with self.client() as client:
                client.modes()
        except StackError:
            return False
        return True

    def _wait_program(self, program: Program, what: str, condition: Any) -> None:
        def look() -> bool:
            if not program.running:
                raise StackError(f"{program.name} ended:\n{program.last_words()}")
            return bool(condition())

        wait_for(what, look, seconds=READY_SECONDS)

    def _advisor_toml(self) -> str:
        return (
            f'default_mode = "{self.mode}"\n'
            f'policy_file = "{self._policy_file}"\n'
            "[service]\n"
            f'socket = "{self.socket}"\n'
            f'data_dir = "{self.root}/advisor/data"\n'
            f'agent_users = ["{SLURM_USER}"]\n'
            'operator_users = ["root"]\n'
            "[tick]\n"
            "interval_seconds = 1.0\n"
            "[[logs]]\n"
            'kind = "files"\n'
            'name = "job-output"\n'
            "[[kernel]]\n"
            'kind = "files"\n'
            'name = "kernel"\n'
            f'path = "{self.root}/kernel/%n.log"\n'
        )

    def _agent_toml(self) -> str:
        return (
            f'cluster = "{CLUSTER_NAME}"\n'
            f"socket = {json.dumps([str(path) for path in (*self.other_sockets, self.socket)])}\n"
            f'mode = "{self.agent_mode}"\n'
            f'tick_file = "{self.tick_file}"\n'
            f'hook_socket = "{self._hook_socket}"\n'
            "poll_seconds = 0.5\n"
            f'stop_file = "{self.stop_file}"\n'
            f'[slurm]\nconf = "{self.cluster.conf}"\nbin = "{self.slurm_bin or ""}"\n'
            f"{self.agent_sections}"
        )

    def _watchdog_toml(self) -> str:
        return (
            f'mode = "{self.watchdog_mode}"\n'
            f'tick_file = "{self.tick_file}"\n'
            f'alive_file = "{self.tick_file.with_name("alive.json")}"\n'
            "poll_seconds = 1.0\n"
            f"dead_after_seconds = {self.watchdog_dead_after_seconds}\n"
            f'[slurm]\nconf = "{self.cluster.conf}"\n'
            "[arithmetic]\ntake_over_seconds = 1.0\n"  # there is one advisor: nobody takes over
        )


def _toml(values: Mapping[str, object]) -> str:
    return "".join(f"{key} = {_toml_value(value)}\n" for key, value in values.items())


def _toml_value(value: object) -> str:
    """Numbers, booleans and text, which JSON and TOML write alike, and tables of them."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key} = {_toml_value(inner)}" for key, inner in value.items()) + "}"
    return json.dumps(value)
