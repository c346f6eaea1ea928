"""Real Postgres servers on loopback ports, to be killed, copied, promoted and frozen; and a door before one."""

import asyncio
import ctypes
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self, TypeAlias

import psycopg

from advisor.store.binaries import find_binaries
from advisor.store.server_user import choose_server_user

ANSWER_SECONDS = 30.0
_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None, use_errno=True)
_SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "dynamic_shared_memory_type": "mmap",
    "shared_buffers": "16MB",
    "max_connections": "60",
    "max_wal_senders": "4",
    "wal_level": "replica",
    "hot_standby": "on",
    "log_min_error_statement": "panic",
}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _end_with_us() -> None:
    _LIBC.prctl(_PR_SET_PDEATHSIG, int(signal.SIGQUIT), 0, 0, 0)


def _children(pid: int) -> tuple[int, ...]:
    with suppress(FileNotFoundError):
        return tuple(int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
    return ()


@dataclass(slots=True, kw_only=True)
class Server:
    """One server in one folder. Everybody on the loopback is trusted."""

    folder: Path
    port: int = field(default_factory=free_port)
    settings: dict[str, str] = field(default_factory=dict)
    process: "subprocess.Popen[bytes] | None" = None
    database: str = "advisor"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    @property
    def data(self) -> Path:
        return self.folder / "data"

    @property
    def address(self) -> tuple[str, ...]:
        """For Postgres' own programs."""
        return ("-h", "127.0.0.1", "-p", str(self.port), "-U", "advisor")

    def url(self, database: str = "", *, port: int = 0) -> str:
        """`port`: of a gate before it."""
        return f"postgresql+psycopg://advisor@127.0.0.1:{port or self.port}/{database or self.database}"

    def create(self) -> None:
        self._prepare_folder()
        arguments = ("-D", str(self.data), "-U", "advisor", "--auth=trust", "--encoding=UTF8", "--locale=C", "-N")
        self.run("initdb", *arguments)
        with (self.data / "pg_hba.conf").open("a") as rules:
            rules.write("host replication all 127.0.0.1/32 trust\n")

    def like(self, other: "Server") -> None:
        """A copy of the folder of a server that does not run."""
        self._prepare_folder()
        subprocess.run(["cp", "-a", f"{other.data}/.", str(self.data)], check=True, timeout=60)

    def copy_of(self, primary: "Server") -> None:
        """A standby of `primary`, streaming from a slot of its own under the name `standby`."""
        self._prepare_folder()
        source = f"host=127.0.0.1 port={primary.port} user=advisor application_name=standby"
        self.run(
            "pg_basebackup",
            "-D",
            str(self.data),
            "-d",
            source,
            "-R",
            "-X",
            "stream",
            "-C",
            "-S",
            "standby",
            "-c",
            "fast",
        )

    def start(self) -> None:
        """From the main thread: the kernel ends it when the thread that started it is gone, a killed test's too."""
        user = choose_server_user(self.folder, None)
        settings = {**_SETTINGS, "port": str(self.port), **self.settings}
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [self.program("postgres"), "-D", str(self.data), *options],
                cwd="/",
                env={"LC_ALL": "C", "TZ": "UTC"},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=_end_with_us,  # noqa: PLW1509 - one system call, after it has become its user
                user=user.switch_uid,
                group=user.switch_gid,
                extra_groups=user.switch_groups,
            )
        self.wait(lambda: self.query("SELECT 1", database="postgres") == [(1,)])

    def promote(self) -> None:
        self.query("SELECT pg_promote(true, 30)", database="postgres")

    def kill(self) -> None:
        """kill -9 of the server and every process of it, as a machine that loses its power."""
        if self.process is None:
            return
        self._signal(signal.SIGSTOP)  # none of them may start another, or say good-bye
        self._signal(signal.SIGKILL)
        self.process.wait()
        self.process = None

    def freeze(self, number: signal.Signals = signal.SIGSTOP) -> None:
        """And SIGCONT lets it go on."""
        self._signal(number)

    def _signal(self, number: signal.Signals) -> None:
        """To all its processes, the oldest first. Each backend is a session of its own."""
        assert self.process is not None
        for pid in (self.process.pid, *_children(self.process.pid)):
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def stop(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGINT)
        self.process.wait(30)
        self.process = None

    def end_all_connections(self) -> None:
        self.query(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            f"WHERE datname = '{self.database}' AND pid <> pg_backend_pid()"
        )

    def query(self, statement: str, *, database: str = "") -> Sequence[tuple[object, ...]]:
        address = self.url(database).replace("+psycopg", "")
        with psycopg.connect(address, autocommit=True, connect_timeout=5) as connection:
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description is not None else []

    def wait(self, condition: "object", seconds: float = ANSWER_SECONDS) -> None:
        assert callable(condition)
        deadline = time.monotonic() + seconds
        while True:
            with suppress(psycopg.OperationalError):
                if condition():
                    return
            assert time.monotonic() < deadline, (self.folder / "log").read_text()[-3000:]
            time.sleep(0.02)

    def program(self, name: str) -> str:
        return str(find_binaries(self.folder, choose_server_user(self.folder, None)).folder / name)

    def run(self, name: str, *arguments: str) -> bytes:
        """One of Postgres' programs, as the server's user."""
        user = choose_server_user(self.folder, None)
        done = subprocess.run(
            [self.program(name), *arguments],
            cwd="/",
            env={"LC_ALL": "C", "TZ": "UTC"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=120,
            check=False,
            user=user.switch_uid,
            group=user.switch_gid,
            extra_groups=user.switch_groups,
        )
        assert done.returncode == 0, done.stderr.decode("utf-8", "replace")
        return done.stdout

    def _prepare_folder(self) -> None:
        shutil.rmtree(self.data, ignore_errors=True)
        self.folder.mkdir(mode=0o755, exist_ok=True)
        self.data.mkdir(mode=0o700)
        user = choose_server_user(self.folder, None)
        if user.switch:
            os.chown(self.data, user.uid, user.gid)


Ends: TypeAlias = set[asyncio.StreamWriter]


class Gate:
    """A way to a server that can be cut, held or delayed. `async with Gate(server.port) as gate:` then `gate.port`."""

    def __init__(self, upstream: int) -> None:
        self._upstream = upstream
        self._server: asyncio.Server | None = None
        self._open = asyncio.Event()
        self._open.set()
        self._pipes: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        self.delay_seconds = 0.0
        self.connections = 0
        self.cuts = 0
        self._words: tuple[bytes, ...] = ()
        self._heard = False

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        self.cut_all()
        await asyncio.gather(*self._pipes, return_exceptions=True)

    @property
    def port(self) -> int:
        assert self._server is not None
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    def cut_at(self, *words: bytes, heard: bool) -> None:
        """End one connection, once, when these words were sent on it in this order.

        `heard`: the server hears the last one, and works on; its answer never arrives. Else it does not hear it.
        """
        self._words, self._heard = words, heard

    def hold(self) -> None:
        """Nothing passes any more, and nobody is told."""
        self._open.clear()

    def release(self) -> None:
        self._open.set()

    def cut_all(self) -> None:
        for writer in tuple(self._writers):
            writer.transport.abort()
        self._open.set()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        task = asyncio.current_task()
        assert task is not None
        self._pipes.add(task)
        try:
            up_reader, up_writer = await asyncio.open_connection("127.0.0.1", self._upstream)
        except OSError:
            writer.transport.abort()
            self._pipes.discard(task)
            return
        both = {writer, up_writer}
        self._writers |= both
        try:
            await asyncio.gather(self._ask(reader, up_writer, both), self._answer(up_reader, writer, both))
        finally:
            for end in both:
                end.transport.abort()
            self._writers -= both
            self._pipes.discard(task)

    async def _ask(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, both: set[asyncio.StreamWriter]
    ) -> None:
        said: list[bytes] = []
        with suppress(OSError):
            while data := await reader.read(65536):
                await self._pass()
                while len(said) < len(self._words) and self._words[len(said)] in data:
                    said.append(self._words[len(said)])
                cut = bool(self._words) and tuple(said) == self._words
                if cut:
                    self._words, self.cuts = (), self.cuts + 1
                if cut and not self._heard:
                    break
                writer.write(data)
                await writer.drain()
                if cut:
                    for end in both - {writer}:
                        end.transport.abort()  # towards us; the server works on, and answers to nobody
                    writer.write_eof()
                    return
        for end in both:
            end.transport.abort()

    async def _answer(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, both: set[asyncio.StreamWriter]
    ) -> None:
        with suppress(OSError):
            while data := await reader.read(65536):
                await self._pass()
                writer.write(data)
                await writer.drain()
        for end in both:
            end.transport.abort()

    async def _pass(self) -> None:
        if self.delay_seconds:
            await asyncio.sleep(self.delay_seconds)
        await self._open.wait()
