"""The root log reader, as a process with the rights of its unit: no capability over files, so root reads as little as
over NFS with root_squash, and only being the user opens anything."""

import asyncio
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from advisor.core.model import Unavailable
from advisor.core.words import UnavailableReason
from connectors.logs.files import JobFileLogs
from connectors.logs.opening import RefusedError
from connectors.logs.root_reader import RootReader
from connectors.logs.source import ReadLimits
from tests.contract.world import StandingClock, job_harness

CLIENT = 65534  # nobody
ALICE, BOB, SYSTEM = 54_321, 54_322, 54  # no entry in any user database: who they are is the scheduler's word
ROOT = Path(__file__).resolve().parents[3]

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("setpriv") is None, reason="becoming another user needs root"
)


@dataclass
class World:
    folder: Path
    socket: str
    process: subprocess.Popen[bytes]
    journal: Path
    command: list[str]

    @property
    def home(self) -> Path:
        return self.folder / "home"

    def file(self, name: str, data: bytes = b"line\n", *, owner: int = ALICE, mode: int = 0o600) -> str:
        path = self.home / name
        path.write_bytes(data)
        path.chmod(mode)
        os.chown(path, owner, owner)
        return str(path)

    def lines(self) -> list[dict[str, object]]:
        return [json.loads(line) for line in self.journal.read_text().splitlines()]


@contextmanager
def as_client(uid: int = CLIENT) -> Iterator[None]:
    """The kernel remembers who connects."""
    os.seteuid(uid)
    try:
        yield
    finally:
        os.seteuid(0)


def start(world_folder: Path, *options: str) -> World:
    path, journal = str(world_folder / "reader.sock"), world_folder / "journal"
    command = ["setpriv", "--bounding-set=-all,+setuid,+setgid", "--no-new-privs", sys.executable, "-P"]
    command += ["-m", "slurm_plugin.logreader", "--client", "nobody", "--socket", path, *options]
    with journal.open("ab") as out:
        process = subprocess.Popen(command, cwd=ROOT, env={"PYTHONPATH": str(ROOT)}, stderr=out)
    world = World(world_folder, path, process, journal, command)
    wait_until(lambda: b"reader_started" in journal.read_bytes())
    return world


def wait_until(condition: object, seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline
        time.sleep(0.005)


@contextmanager
def running(*options: str) -> Iterator[World]:
    folder = Path(tempfile.mkdtemp(prefix="ra-reader-", dir="/tmp"))
    folder.chmod(0o755)
    home = folder / "home"
    home.mkdir()
    home.chmod(0o700)
    os.chown(home, ALICE, ALICE)
    world = start(folder, *options)
    try:
        yield world
    finally:
        world.process.kill()
        world.process.wait()
        shutil.rmtree(folder)


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with running() as made:
        yield made


@contextmanager
def client(world: World, **options: float) -> Iterator[RootReader]:
    reader = RootReader(world.socket, **options)
    try:
        yield reader
    finally:
        reader.close()


def ask(world: World, *paths: str, uid: int = ALICE, reader: RootReader | None = None) -> list[bytes | str]:
    """Of each path what is in it, or the reason why not."""
    with as_client():
        if reader is not None:
            answers = reader.ask(uid, "main/7", paths)
        else:
            with client(world) as own:
                answers = own.ask(uid, "main/7", paths)
    found: list[bytes | str] = []
    for answer in answers:
        if isinstance(answer, RefusedError):
            found.append(answer.reason.value)
        else:
            found.append(os.pread(answer, 1000, 0))
            os.close(answer)
    return found


def test_a_private_file_of_the_user_is_handed_over_for_reading_only(world: World) -> None:
    """0600 in a folder of 0700: nobody but the user opens it, and the descriptor can neither write nor truncate."""
    path = world.file("private.log")
    with as_client(), client(world) as reader:
        (fd,) = reader.ask(ALICE, "main/7", [path])
    assert isinstance(fd, int), fd
    assert os.pread(fd, 100, 0) == b"line\n"
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.write(fd, b"x")
    os.close(fd)


def test_only_the_jobs_user_counts(world: World) -> None:
    """Another user's file, one that all may read, a link to it and a hard link to it: none is handed over."""
    others = world.folder / "shared"
    others.mkdir(exist_ok=True)
    (others / "bob").write_bytes(b"bob's\n")
    (others / "bob").chmod(0o644)
    os.chown(others / "bob", BOB, BOB)
    (world.home / "link").unlink(missing_ok=True)
    (world.home / "link").symlink_to(others / "bob")
    (world.home / "hard").unlink(missing_ok=True)
    os.link(others / "bob", world.home / "hard")
    private = world.file("bobs", owner=BOB)
    shadow = world.home / "shadow"
    shadow.unlink(missing_ok=True)
    shadow.symlink_to("/etc/shadow")
    paths = [str(others / "bob"), str(world.home / "link"), str(world.home / "hard"), private, str(shadow)]
    assert ask(world, *paths, "/etc/shadow", "/etc/passwd") == ["permission"] * 7
    assert ask(world, world.file("alice"), uid=BOB) == ["permission"]


def test_links_to_own_files_are_followed(world: World) -> None:
    """Runs live behind links to scratch folders; what counts is whose file they lead to."""
    target = world.file("target")
    link = world.home / "to-target"
    link.unlink(missing_ok=True)
    link.symlink_to(target)
    assert ask(world, str(link)) == [b"line\n"]


def test_what_is_no_file_is_neither_opened_nor_waited_for(world: World) -> None:
    """FIFOs, devices, sockets, folders, the kernel's own files; a FIFO is not even noticed by who would write it."""
    fifo = world.home / "fifo"
    if not fifo.exists():
        os.mkfifo(fifo)
        os.chown(fifo, ALICE, ALICE)
    listening = socket.socket(socket.AF_UNIX)
    (world.home / "sock").unlink(missing_ok=True)
    listening.bind(str(world.home / "sock"))
    began = time.monotonic()
    paths = [str(fifo), str(world.home), str(world.home / "sock"), "/dev/null", "/dev/zero"]
    assert ask(world, *paths) == ["not_regular"] * 5
    assert time.monotonic() - began < 1
    listening.close()
    with pytest.raises(OSError, match="No such device or address"):
        os.open(fifo, os.O_WRONLY | os.O_NONBLOCK)  # nobody has it open for reading


def test_the_kernels_own_files_are_refused(world: World) -> None:
    """A process of the user has files in /proc that are regular and the user's; they are no log."""
    process = subprocess.Popen(["sleep", "30"], user=ALICE, group=ALICE, extra_groups=[])
    try:
        wait_until(lambda: Path(f"/proc/{process.pid}/comm").read_text() == "sleep\n")
        link = world.home / "environ"
        link.unlink(missing_ok=True)
        link.symlink_to(f"/proc/{process.pid}/environ")
        assert ask(world, f"/proc/{process.pid}/environ", str(link)) == ["not_regular"] * 2
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize(
    "path", ["relative", "/a/../etc/passwd", "/tmp/two\nlines", "/tmp/nul\0", "/" + "x" * 4096, "/tmp/\x7f", "\ud800"]
)
def test_what_no_scheduler_hands_out_is_refused(world: World, path: str) -> None:
    """Before the file system hears of it."""
    assert ask(world, path) == ["refused"]


def test_missing_files_and_odd_names(world: World) -> None:
    """A name that is no UTF-8 is a name; one that is not there is missing."""
    odd = os.fsdecode(os.fsencode(str(world.home)) + b"/\xff\xfe name")
    world.file("\udcff\udcfe name")
    assert ask(world, odd, str(world.home / "nothing")) == [b"line\n", "missing"]


def test_system_users_are_never_served(world: World) -> None:
    """Root and users below --uid-min have no jobs."""
    path = world.file("system", owner=SYSTEM)
    for uid in (0, SYSTEM, CLIENT):
        assert ask(world, path, "/etc/shadow", uid=uid) == ["permission"] * 2


@pytest.mark.parametrize("uid", [0, ALICE])
def test_only_the_advisors_user_is_served(world: World, uid: int) -> None:
    """Anybody may connect; the kernel says who does. Not even root is served: it needs no reader."""
    path = world.file("private.log")
    with as_client(uid), client(world) as reader:
        (answer,) = reader.ask(ALICE, "main/7", [path])
    assert isinstance(answer, RefusedError)
    assert answer.reason is UnavailableReason.PERMISSION
    assert "--client" in answer.detail
    assert {"event": "client_refused", "uid": uid} in [
        {key: line[key] for key in ("event", "uid")} for line in world.lines() if "uid" in line
    ]


def test_a_link_that_is_swapped_all_the_time_never_gives_another_file(world: World) -> None:
    """Between looking and opening there is no second look-up of the name."""
    own, link = world.file("own", b"own\n"), world.home / "swapped"
    others = world.folder / "bobs"
    others.write_bytes(b"bob's\n")
    others.chmod(0o644)
    os.chown(others, BOB, BOB)
    over = threading.Event()

    def swap() -> None:
        while not over.is_set():
            for target in (own, others):
                new = world.home / "new"
                new.symlink_to(target)
                new.rename(link)

    swapping = threading.Thread(target=swap)
    reader = RootReader(world.socket)
    seen = set()
    assert ask(world, own, reader=reader) == [b"own\n"]  # connected: from here on we need not be the client any more
    swapping.start()
    try:
        for _ in range(30):
            for answer in reader.ask(ALICE, "main/7", [str(link)] * 32):
                seen.add(os.pread(answer, 100, 0) if isinstance(answer, int) else answer.reason.value)
                if isinstance(answer, int):
                    os.close(answer)
    finally:
        over.set()
        swapping.join()
        reader.close()
    assert seen <= {b"own\n", "permission", "missing"}
    assert {b"own\n", "permission"} <= seen


@pytest.mark.parametrize(
    "packet",
    [
        b"garbage",
        b"[" * 10_000,
        b'{"v":1}',
        b'{"v":2,"n":1,"uid":54321,"job":"","paths":["/x"]}',
        b'{"v":1,"n":1,"uid":true,"job":"","paths":["/x"]}',
        b'{"v":1,"n":1,"uid":-1,"job":"","paths":["/x"]}',
        b'{"v":1,"n":1,"uid":4294967295,"job":"","paths":["/x"]}',
        b'{"v":1,"n":1,"uid":54321,"job":"two\\nlines","paths":["/x"]}',
        b'{"v":1,"n":1,"uid":54321,"job":"","paths":[]}',
        b'{"v":1,"n":1,"uid":54321,"job":"","paths":[1]}',
        json.dumps({"v": 1, "n": 1, "uid": 54321, "job": "", "paths": ["/x"] * 65}).encode(),
        b"x" * 150_000,
    ],
)
def test_garbage_ends_the_connection_and_nothing_else(world: World, packet: bytes) -> None:
    """Malformed, endless or huge questions get no answer, and the next client gets one."""
    with as_client(), socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.settimeout(5)
        connection.connect(world.socket)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 400_000)
        connection.send(packet)
        assert connection.recv(1000) == b""
    assert ask(world, world.file("private.log")) == [b"line\n"]


def test_descriptors_that_a_client_sends_do_not_stay(world: World) -> None:
    """They would be a way to use up the reader's."""
    with as_client():
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        connection.connect(world.socket)
    with connection, Path(__file__).open("rb") as sent:
        connection.settimeout(5)
        question = b'{"v":1,"n":1,"uid":54321,"job":"","paths":["/x"]}'
        for _ in range(3):
            socket.send_fds(connection, [question], [sent.fileno()] * 20)
            assert b"missing" in connection.recv(1000)
        held = Path(f"/proc/{world.process.pid}/fd")
        assert [name for name in held.iterdir() if os.path.realpath(name) == __file__] == []


def test_clients_that_do_not_read_or_do_not_ask_hold_up_nobody(world: World) -> None:
    """A client stopped in the middle costs its connection; others are answered meanwhile."""
    path = world.file("private.log")
    slow = []
    question = json.dumps({"v": 1, "n": 1, "uid": ALICE, "job": "", "paths": [path] * 64}).encode()
    with as_client():
        for _ in range(6):
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            connection.connect(world.socket)
            connection.setblocking(False)
            slow.append(connection)
    for connection in slow[:3]:
        for _ in range(20):
            try:
                connection.send(question)
            except (BlockingIOError, BrokenPipeError, ConnectionResetError):
                break
    began = time.monotonic()
    assert ask(world, path) == [b"line\n"]
    assert time.monotonic() - began < 3
    for connection in slow:
        connection.close()


def test_more_files_than_allowed_in_a_second_are_refused() -> None:
    """The bound is said, and time lifts it."""
    with running("--files-per-second", "8") as world:
        path = world.file("private.log")
        reader = RootReader(world.socket)
        assert ask(world, *[path] * 8, reader=reader) == [b"line\n"] * 8
        assert ask(world, *[path] * 8, reader=reader) == ["limit"] * 8
        wait_until(lambda: ask(world, *[path] * 4, reader=reader) == [b"line\n"] * 4)
        reader.close()


def test_only_below_the_folders_that_are_named() -> None:
    """`--under` holds for where links lead, too."""
    with running("--under", "/nowhere") as world:
        assert ask(world, world.file("private.log")) == ["refused"]
    with running("--under", "/tmp") as world:
        assert ask(world, world.file("private.log")) == [b"line\n"]


def test_the_journal_tells_whose_file_was_opened_for_which_job(world: World) -> None:
    """Once for each file, as one line of JSON whatever the path holds."""
    path = world.file("audited \u2028 {}")
    ask(world, path, "/tmp/forged\n{}")
    ask(world, path)
    wait_until(lambda: any("audited" in str(line.get("path")) for line in world.lines()))
    told = [line for line in world.lines() if line.get("path") == path]
    assert told == [{"event": "file_opened", "uid": ALICE, "job": "main/7", "path": path, "outcome": "opened"}]
    assert any(line.get("path") == "/tmp/forged\n{}" and line["event"] == "file_refused" for line in world.lines())


def test_killed_and_started_again_the_reader_is_found_again() -> None:
    """While it is away files are `permission` and say what to do; then the same client object goes on."""
    with running() as world:
        path, reader = world.file("private.log"), RootReader(world.socket)
        assert ask(world, path, reader=reader) == [b"line\n"]
        world.process.kill()
        world.process.wait()
        with as_client():
            (away,) = reader.ask(ALICE, "main/7", [path])
        assert isinstance(away, RefusedError)
        assert away.reason is UnavailableReason.PERMISSION
        assert "systemctl status recovery-advisor-logreader" in away.detail
        world.journal.write_bytes(b"")
        world.process = start(world.folder).process
        assert ask(world, path, reader=reader) == [b"line\n"]
        reader.close()


def test_a_stopped_reader_costs_a_bounded_wait() -> None:
    """SIGSTOP: the question times out; after SIGCONT the late answer is not taken for another question's."""
    with running() as world:
        one, two = world.file("one", b"1"), world.file("two", b"2")
        reader = RootReader(world.socket, answer_seconds=0.3)
        assert ask(world, one, reader=reader) == [b"1"]
        world.process.send_signal(signal.SIGSTOP)
        began = time.monotonic()
        assert ask(world, one, reader=reader) == ["timeout"]
        assert time.monotonic() - began < 2
        world.process.send_signal(signal.SIGCONT)
        wait_until(lambda: ask(world, two, reader=reader) == [b"2"])
        reader.close()


def test_an_open_that_hangs_is_ended_and_said(world: World) -> None:
    """As on a dead file server: its process is killed, without any right to kill, and others are served meanwhile."""
    path, over = world.file("private.log"), threading.Event()
    children = Path(f"/proc/{world.process.pid}/task/{world.process.pid}/children")

    def stop_all() -> None:
        while not over.is_set():
            for pid in children.read_text().split():
                with suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGSTOP)

    stopping = threading.Thread(target=stop_all)
    found: set[str] = set()
    with client(world) as reader, client(world) as other:
        ask(world, path, reader=reader)  # connected: root again, which alone may stop the process
        stopping.start()
        try:
            deadline = time.monotonic() + 20
            while "timeout" not in found:
                assert time.monotonic() < deadline
                answers = reader.ask(ALICE, "main/7", [path] * 64)
                found = {answer.reason.value for answer in answers if isinstance(answer, RefusedError)}
                for answer in answers:
                    if isinstance(answer, int):
                        os.close(answer)
        finally:
            over.set()
            stopping.join()
        assert found == {"timeout"}
        assert ask(world, path, reader=reader) == ask(world, path, reader=other) == [b"line\n"]
    wait_until(lambda: not children.read_text())


def test_sigterm_ends_it_and_takes_the_socket_away() -> None:
    """And a second reader on the same socket is refused while the first one lives."""
    with running() as world:
        again = subprocess.run(world.command, cwd=ROOT, env={"PYTHONPATH": str(ROOT)}, capture_output=True, check=False)
        assert (again.returncode, b"another reader" in again.stderr) == (2, True)
        world.process.terminate()
        assert world.process.wait(5) == 0
        assert not Path(world.socket).exists()


def test_a_log_source_reads_through_it(world: World) -> None:
    """Growth, truncation and rotation of files that only their user may open, many of them, with few descriptors."""
    paths = [Path(world.file(f"rank{n}.log", b"one %d\n" % n)) for n in range(150)]
    harness = job_harness(world.home)

    def read(cursor: str) -> tuple[dict[str, bytes], str]:
        before = set(os.listdir("/proc/self/fd"))  # noqa: PTH208 - names are what is compared
        with as_client(), client(world) as reader:
            source = JobFileLogs(clock=StandingClock(), root_reader=reader, limits=ReadLimits())
            answer = asyncio.run(source.read([harness.request(cursor, files=paths, user_id=ALICE)]))["job/0"]
        assert set(os.listdir("/proc/self/fd")) <= before  # noqa: PTH208 - others of an earlier test may go
        assert not isinstance(answer, Unavailable), answer
        assert answer.unavailable == ()
        found: dict[str, bytes] = {}
        for chunk in answer.chunks:
            name = Path(chunk.file).name
            found[name] = found.get(name, b"") + chunk.data
        return found, answer.cursor

    first, cursor = read("")
    assert first == {f"rank{n}.log": b"one %d\n" % n for n in range(150)}
    with paths[3].open("ab") as out:
        out.write(b"two\n")
    paths[4].write_bytes(b"anew\n")
    second, cursor = read(cursor)
    assert second == {"rank3.log": b"two\n", "rank4.log": b"anew\n"}
    with paths[5].open("ab") as out:
        out.write(b"unread\n")
    paths[5].rename(world.home / "rank5.log.1")
    world.file("rank5.log", b"new\n")
    assert read(cursor)[0] == {"rank5.log": b"unread\nnew\n"}


def test_the_reader_answers_doctors_question(world: World) -> None:
    """Without opening anything."""
    with as_client(), client(world) as reader:
        assert reader.check() == ""
        assert "does not answer" in RootReader(world.socket + "x").check()
