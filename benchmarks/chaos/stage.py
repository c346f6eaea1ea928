"""The programs of a site: Slurm, a Postgres of its own, replicas of the advisor, agent, watchdog; each can be lost.

Everything lives in the demo's namespaces and in a network namespace of its own, in which packets can be dropped.
Postgres, agent and advisor have small file systems of their own that can be filled. Whatever ends is started again, as
by a supervisor, unless it is to stay away. Clocks: time namespaces do not move the wall clock. Postgres is
shown another one by libfaketime, where that is installed; our own programs, which Python's subprocess makes unfit for
it, are started by `stepped.py`, which replaces the one place where they ask for the time.
"""

import contextlib
import json
import os
import secrets
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psycopg

from advisor.demo.cluster import CLUSTER_NAME, SLURM_USER, Cluster
from advisor.demo.namespace import SERVICE_USER, Runtime
from advisor.demo.stack import Program, hook_socket
from advisor.demo.waiting import wait_for
from advisor.store.binaries import find_binaries
from advisor.store.server_user import choose_server_user
from benchmarks._processes import alive, children_of

DATABASE_PORT, DATABASE_RELAY_PORT = 25432, 25433
LEASE_SECONDS = 6
FAKETIME = next(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"), Path("/usr/lib/faketime/libfaketimeMT.so.1"))
DISK_MB = {"postgres": 700, "agent": 4, "advisor": 16}
POLICY = {
    "hang_seconds": 25.0,
    "hang_startup_seconds": 90.0,
    "trusted_fatal_grace_seconds": 8.0,
}
_TEND_SECONDS = 0.3
_START_SECONDS = 60.0


@dataclass(slots=True, kw_only=True)
class Stage:
    cluster: Cluster
    replicas: int = 1
    programs: dict[str, Program] = field(default_factory=dict)
    away: dict[str, float] = field(default_factory=dict)  # until when it is not to be started again, monotonic
    gone: dict[str, int] = field(default_factory=dict)  # how often a program was found ended, and started again
    mounts: list[Path] = field(default_factory=list)
    _stop: threading.Event = field(default_factory=threading.Event)
    _keeper: threading.Thread | None = None
    _database: "subprocess.Popen[bytes] | None" = None
    _word: str = field(default_factory=lambda: secrets.token_hex(12))

    @property
    def runtime(self) -> Runtime:
        return self.cluster.runtime

    @property
    def root(self) -> Path:
        return self.runtime.root

    @property
    def etc(self) -> Path:
        return self.root / "etc"

    @property
    def advisors(self) -> tuple[str, ...]:
        return tuple(f"advisor{number}" for number in range(self.replicas))

    def config_file(self, replica: int = 0) -> Path:
        return self.etc / f"advisor{replica}.toml"

    def clock_file(self, name: str) -> Path:
        return self.etc / "clocks" / name

    def relay_file(self, name: str) -> Path:
        return self.etc / "relays" / name

    def disk(self, name: str) -> Path:
        return self.root / name

    # ---- life ----

    def start(self) -> None:
        """Everything up and answering; then each is kept up."""
        for name, user in (("postgres", SERVICE_USER), ("agent", SLURM_USER), ("advisor", SERVICE_USER)):
            self._mount(self.disk(name), DISK_MB[name], user)
        self._mount(self.runtime.home("mallory"), 1500, "mallory")
        for folder in ("clocks", "relays"):
            (self.etc / folder).mkdir()
        (self.root / "log").mkdir(exist_ok=True)
        self._prepare_database()
        self._write_configuration()
        for name, (user, argv) in self._commands().items():
            self.programs[name] = self._program(name, user, argv)
        self.start_database()
        for name, program in self.programs.items():
            if name in ("agent", "watchdog"):
                wait_for("an advisor's answer", lambda: self.cli("mode", "get").returncode == 0, seconds=_START_SECONDS)
            program.start()
        wait_for("the agent's tick file", (self.disk("agent") / "tick.json").exists, seconds=_START_SECONDS)
        self._keeper = threading.Thread(target=self._keep, name="keeper", daemon=True)
        self._keeper.start()

    def stop(self) -> None:
        self._stop.set()
        if self._keeper is not None:
            self._keeper.join(timeout=30)
        for name in ("watchdog", "agent", *self.advisors):
            if name in self.programs:
                self.programs[name].stop()
        for program in self.programs.values():
            program.stop(seconds=5)
        if self._database is not None:
            self._database.send_signal(signal.SIGCONT)
            self._database.send_signal(signal.SIGINT)
            try:
                self._database.wait(timeout=20)
            except subprocess.TimeoutExpired:
                self._database.kill()

    def unmount(self) -> None:
        for path in reversed(self.mounts):
            subprocess.run(["umount", "--lazy", str(path)], check=False)

    def pids(self, name: str) -> list[int]:
        """Of a program, of `slurmctld`, of a node's slurmd by its name; for postgres the server and its children."""
        if name == "postgres":
            parent = self._database.pid if self._database is not None and self._database.poll() is None else None
            return [] if parent is None else [parent, *children_of(parent)]
        if name in self.programs:
            return [self.programs[name].pid] if self.programs[name].running else []
        with contextlib.suppress(KeyError):
            pid = self.cluster.pid(name)
            return [pid] if alive(pid) else []
        return []

    def start_database(self) -> None:
        folder = self.disk("postgres")
        with (self.root / "log" / "postgres.log").open("ab") as log:
            self._database = subprocess.Popen(
                [self._postgres, "-D", str(folder / "data"), "-k", str(folder)],
                cwd="/",
                env={"LC_ALL": "C", "TZ": "UTC", **self._postgres_clock()},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                user=SERVICE_USER,
                group=SERVICE_USER,
                extra_groups=[],
            )

    def lose(self, name: str, seconds: float) -> None:
        """kill -9, and nobody starts it for so long."""
        self.away[name] = time.monotonic() + seconds
        if name == "slurmctld":
            self.cluster.kill_controller()
        elif name in self.cluster.nodes:
            self.cluster.kill_node(name)
        else:
            for pid in self.pids(name)[:1]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def _keep(self) -> None:
        while not self._stop.wait(_TEND_SECONDS):
            for name in ("postgres", "slurmctld", *self.cluster.nodes, *self.programs):
                if self.away.get(name, 0.0) > time.monotonic() or self.pids(name):
                    continue
                self.gone[name] = self.gone.get(name, 0) + 1
                self.away[name] = time.monotonic() + 1.0  # no faster than a supervisor
                self._start_again(name)

    def _start_again(self, name: str) -> None:
        match name:
            case "postgres":
                self.start_database()
            case "slurmctld":
                self.cluster.start_controller()
            case _ if name in self.cluster.nodes:
                self.cluster.start_node(name)
            case _:
                self.programs[name].start()

    # ---- asking ----

    def cli(self, *argv: str, replica: int = 0, seconds: float = 60.0) -> "subprocess.CompletedProcess[str]":
        """`advisor ARGV...` as root, who is an operator here."""
        environment = {**self.runtime.environment, "ADVISOR_CONFIG": str(self.config_file(replica))}
        return subprocess.run(
            [str(self.runtime.python), "-m", "advisor", *argv],
            cwd="/",
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=seconds,
        )

    # ---- parts ----

    def _mount(self, path: Path, megabytes: int, user: str) -> None:
        path.mkdir(exist_ok=True)
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={megabytes}m,mode=755", "chaos", str(path)], check=True)
        shutil.chown(path, user, user)
        self.mounts.append(path)

    @property
    def _postgres(self) -> str:
        folder = self.disk("postgres")
        return find_binaries(folder, choose_server_user(folder, SERVICE_USER)).postgres

    def _prepare_database(self) -> None:
        folder = self.disk("postgres")
        word = self.etc / "word"
        word.write_text(self._word, encoding="ascii")
        shutil.chown(word, SERVICE_USER, SERVICE_USER)
        initdb = find_binaries(folder, choose_server_user(folder, SERVICE_USER)).initdb
        subprocess.run(
            [
                *(initdb, "-D", str(folder / "data"), "-U", "advisor", "--encoding=UTF8", "--locale=C"),
                *("--data-checksums", "--auth=scram-sha-256", f"--pwfile={word}", "--no-instructions"),
            ],
            check=True,
            cwd="/",
            env={"LC_ALL": "C", "TZ": "UTC"},
            stdout=subprocess.DEVNULL,
            user=SERVICE_USER,
            group=SERVICE_USER,
            extra_groups=[],
        )
        with (folder / "data" / "postgresql.conf").open("a", encoding="ascii") as settings:
            settings.write(
                f"listen_addresses = '127.0.0.1'\nport = {DATABASE_PORT}\nmax_connections = {40 * self.replicas + 20}\n"
                "dynamic_shared_memory_type = mmap\nshared_buffers = 64MB\nmax_wal_size = 96MB\nmin_wal_size = 32MB\n"
                "timezone = UTC\nlog_timezone = UTC\n"
            )
        self.start_database()
        wait_for("the database", self._create_database, seconds=_START_SECONDS)
        dsn = self.etc / "dsn"
        dsn.write_text(f"postgresql://advisor:{self._word}@127.0.0.1:{DATABASE_RELAY_PORT}/advisor\n", encoding="ascii")
        dsn.chmod(0o640)
        shutil.chown(dsn, "root", SERVICE_USER)
        self.lose("postgres", 0.0)  # from here on with whatever clock it is shown
        wait_for("its end", lambda: self._database is not None and self._database.poll() is not None, seconds=10)

    def _create_database(self) -> bool:
        try:
            with psycopg.connect(
                host="127.0.0.1",
                port=DATABASE_PORT,
                user="advisor",
                password=self._word,
                dbname="postgres",
                autocommit=True,
            ) as connection:
                connection.execute("CREATE DATABASE advisor")
        except psycopg.OperationalError:
            return False
        return True

    def _write_configuration(self) -> None:
        (self.etc / "policy.toml").write_text("".join(f"{key} = {value}\n" for key, value in POLICY.items()))
        for number in range(self.replicas):
            self.config_file(number).write_text(self._advisor_toml(number), encoding="utf-8")
        (self.etc / "agent.toml").write_text(self._agent_toml(), encoding="utf-8")
        (self.etc / "watchdog.toml").write_text(
            f'mode = "act"\ntick_file = "{self.disk("agent")}/tick.json"\n'
            f'alive_file = "{self.disk("agent")}/alive.json"\n'
            "poll_seconds = 1.0\ndead_after_seconds = 20.0\npending_minutes = 2.0\n"
            f'[slurm]\nconf = "{self.cluster.conf}"\n'
            "[arithmetic]\ntake_over_seconds = 15.0\n",
            encoding="utf-8",
        )

    def _commands(self) -> Mapping[str, tuple[str, Sequence[str]]]:
        """In the order in which they are started."""
        python = str(self.runtime.python)
        relay = [python, str(shutil.copy(Path(__file__).with_name("relay.py"), self.etc / "relay.py"))]
        found: dict[str, tuple[str, Sequence[str]]] = {}
        found["relay-database"] = (
            SERVICE_USER,
            [*relay, f"tcp:{DATABASE_RELAY_PORT}", f"tcp:{DATABASE_PORT}", str(self.relay_file("database"))],
        )
        for number, name in enumerate(self.advisors):
            serve = ["serve", "--config", str(self.config_file(number))]
            found[name] = SERVICE_USER, self._stepped(name, "advisor", *serve)
            found[f"relay-agent{number}"] = (
                SLURM_USER,
                [
                    *relay,
                    f"unix:{self._agents_way(number)}",
                    f"unix:{self._socket(number)}",
                    str(self.relay_file(f"agent{number}")),
                ],
            )
        found["agent"] = SLURM_USER, [python, "-m", "slurm_plugin", "run", "--config", str(self.etc / "agent.toml")]
        config = str(self.etc / "watchdog.toml")
        found["watchdog"] = SLURM_USER, self._stepped("watchdog", "watchdog", "--config", config)
        return found

    def _socket(self, replica: int) -> Path:
        return self.disk("advisor") / f"{replica}.sock"

    def _agents_way(self, replica: int) -> Path:
        folder = self.root / "way"
        folder.mkdir(exist_ok=True)
        shutil.chown(folder, SLURM_USER, SLURM_USER)
        return folder / f"{replica}.sock"

    def _stepped(self, name: str, module: str, *arguments: str) -> list[str]:
        self.clock_file(name).write_text("+0", encoding="ascii")
        program = shutil.copy(Path(__file__).with_name("stepped.py"), self.etc / "stepped.py")
        return [str(self.runtime.python), str(program), str(self.clock_file(name)), module, *arguments]

    def _postgres_clock(self) -> dict[str, str]:
        if not FAKETIME.exists():
            return {}
        name = "postgres"
        if not self.clock_file(name).exists():
            self.clock_file(name).write_text("+0", encoding="ascii")
        return {
            "LD_PRELOAD": str(FAKETIME),
            "FAKETIME_TIMESTAMP_FILE": str(self.clock_file(name)),
            "FAKETIME_CACHE_DURATION": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "NO_FAKE_STAT": "1",
        }

    def _program(self, name: str, user: str, argv: Sequence[str]) -> Program:
        environment = {**self.runtime.environment, "HOME": str(self.root / name), "USER": user}
        return Program(name=name, argv=argv, user=user, environment=environment, log=self.root / "log" / f"{name}.log")

    def _advisor_toml(self, replica: int) -> str:
        return (
            'default_mode = "autonomous"\n'
            f'policy_file = "{self.etc}/policy.toml"\n'
            "[service]\n"
            f'socket = "{self._socket(replica)}"\n'
            f'http_socket = "{self.disk("advisor")}/{replica}-http.sock"\n'
            f'data_dir = "{self.disk("advisor")}/data{replica}"\n'
            f'agent_users = ["{SLURM_USER}"]\n'
            'operator_users = ["root"]\n'
            f'[store]\ndsn_file = "{self.etc}/dsn"\n'
            "[tick]\ninterval_seconds = 1.0\n"
            "[seal]\ninterval_seconds = 5\n"
            f"[replicas]\nlease_seconds = {LEASE_SECONDS}\n"
            '[[logs]]\nkind = "files"\nname = "job-output"\n'
            f'[[kernel]]\nkind = "files"\nname = "kernel"\npath = "{self.root}/kernel/%n.log"\n'
        )

    def _agent_toml(self) -> str:
        return (
            f'cluster = "{CLUSTER_NAME}"\n'
            f"socket = {json.dumps([str(self._agents_way(number)) for number in range(self.replicas)])}\n"
            'mode = "act"\n'
            f'tick_file = "{self.disk("agent")}/tick.json"\n'
            f'hook_socket = "{hook_socket(self.runtime)}"\n'
            "poll_seconds = 0.5\n"
            f'stop_file = "{self.disk("agent")}/stop"\n'
            f'[slurm]\nconf = "{self.cluster.conf}"\n'
        )
