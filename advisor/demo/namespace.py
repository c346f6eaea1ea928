"""A place in which a whole cluster can live and of which nothing is left.

A real Slurm needs root, other users, daemons and process trees that outlive their parents. `run` therefore executes a
command in its own pid, mount and host-name namespaces: whatever ends it, kill -9 included, ends every process in it,
and the extra users exist only in there (bind-mounted copies of /etc/passwd and /etc/group).

Three processes: the *outer* one (caller of `run`) holds the runtime folder's lock and removes the folder at the end;
`unshare` dies with it and takes pid 1 along; the *inner* one is pid 1, prepares the mounts, starts the command and
reaps orphans. A runtime folder whose lock nobody holds belongs to a dead run and is removed by the next one.

Errors: `CannotEnterError` when this machine or user cannot do it; its text says what to do.
"""

import contextlib
import ctypes
import fcntl
import os
import shlex
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

RUNTIME_VARIABLE = "RECOVERY_ADVISOR_RUNTIME"
HOST_NAME = "advisor-demo"
ORDINARY_USERS = ("alice", "bob", "mallory")
SERVICE_USER = "advisor"

_PREFIX = "ra-"
_FIRST_FREE_UID = 64200
_NODES_IN_HOSTS = 32


class CannotEnterError(Exception):
    """The namespace cannot be made here; the text says what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Runtime:
    """The runtime folder as seen from inside. Every part of it can be traversed by every user.

    `python` runs our code as any user when `environment` is set; `code` is the read-only view of the source tree.
    """

    root: Path

    @property
    def python(self) -> Path:
        return self.root / "code" / ".venv" / "bin" / "python"

    @property
    def code(self) -> Path:
        return self.root / "code"

    def home(self, user: str) -> Path:
        return self.root / "home" / user

    def apart(self, name: str) -> "Runtime":
        """A place beside it for a second cluster, with everything of its own but code, users and their homes."""
        made = Runtime(root=self.root / name)
        made.root.mkdir(mode=0o755)
        for shared in ("code", "home", "bin"):
            (made.root / shared).symlink_to(self.root / shared)
        (made.root / "etc").mkdir()
        return made

    @property
    def environment(self) -> Mapping[str, str]:
        """The least that our programs need, whoever runs them."""
        return {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8", "PYTHONPATH": str(self.code)}


def inside() -> Runtime | None:
    """The runtime that this process lives in, or None on the plain host."""
    value = os.environ.get(RUNTIME_VARIABLE)
    return Runtime(root=Path(value)) if value else None


def require() -> Runtime:
    """Like `inside`, but raises `CannotEnterError` with the command that works."""
    runtime = inside()
    if runtime is None:
        raise CannotEnterError(
            "This needs the demo namespace (root, a real Slurm, extra users). Run it through\n"
            f"  {sys.executable} -m advisor.demo.namespace -- COMMAND...\n"
            "or simply `make test`."
        )
    return runtime


def run(argv: Sequence[str]) -> int:
    """Run `argv` in a fresh namespace and return its exit status. Afterwards nothing of it is left."""
    _check_possible(argv)
    _remove_stale()
    root, lock = _make_runtime_folder()
    try:
        return _supervise(root, lock, argv)
    finally:
        shutil.rmtree(root, ignore_errors=True)
        os.close(lock)


def _check_possible(argv: Sequence[str]) -> None:
    if os.geteuid() != 0:
        raise CannotEnterError(f"A real Slurm with several users needs root. Run:\n  sudo {shlex.join(argv)}")
    for program in ("unshare", "mount"):
        if shutil.which(program) is None:
            raise CannotEnterError(f"`{program}` is missing. Run: apt-get install -y util-linux mount")
    closed = _first_closed_folder(Path(sys.executable).resolve())
    if closed is not None:
        raise CannotEnterError(
            f"Python itself lies under {closed}, which other users cannot enter, so no job can run it.\n"
            "Build the environment with the system's Python: make venv PYTHON=/usr/bin/python3"
        )


def _first_closed_folder(path: Path) -> Path | None:
    for folder in reversed(path.parents):
        if not folder.stat().st_mode & stat.S_IXOTH:
            return folder
    return None


def _runtime_base() -> Path:
    # Short, because a Unix socket's path holds 107 bytes; never below a private home.
    return Path("/tmp")


def _make_runtime_folder() -> tuple[Path, int]:
    root = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=_runtime_base()))
    root.chmod(0o755)
    lock = os.open(root / ".lock", os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return root, lock


def _remove_stale() -> None:
    """Remove the folders of runs that were killed: those whose lock nobody holds."""
    for folder in _runtime_base().glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):
            if folder.is_symlink() or folder.stat().st_uid != os.geteuid():
                continue
            if not (folder / ".lock").exists():
                continue  # not ours, or so young that its lock is still to come
            lock = os.open(folder / ".lock", os.O_RDWR | os.O_NOFOLLOW)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if not _mounts_below(folder):
                    shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(lock)


def _mounts_below(folder: Path) -> bool:
    text = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape")
    return any(line.split()[4].startswith(f"{folder}/") for line in text.splitlines())


def _supervise(root: Path, lock: int, argv: Sequence[str]) -> int:
    command = [
        *("unshare", "--mount", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc"),
        *(sys.executable, "-P", "-m", "advisor.demo.namespace", "--inner", str(root), "--", *argv),
    ]
    environment = os.environ | {"PYTHONPATH": _source_root() + os.pathsep + os.environ.get("PYTHONPATH", "")}
    # preexec_fn is safe here: this process has one thread.
    arrange = _die_with_parent()
    child = subprocess.Popen(command, pass_fds=(lock,), env=environment, preexec_fn=arrange)  # noqa: PLW1509
    # A terminal's Ctrl-C reaches everybody in the foreground group by itself; the others are passed on to pid 1.
    previous = {
        signal.SIGINT: signal.signal(signal.SIGINT, signal.SIG_IGN),
        signal.SIGTERM: signal.signal(signal.SIGTERM, lambda *_: _signal_inner(child.pid, signal.SIGTERM)),
        signal.SIGHUP: signal.signal(signal.SIGHUP, lambda *_: _signal_inner(child.pid, signal.SIGTERM)),
    }
    try:
        _note_inner_pid(root, child)
        code = child.wait()
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
    return code if code >= 0 else 128 - code


def _die_with_parent() -> Callable[[], None]:
    """`unshare` must not outlive us: its own --kill-child then takes the whole namespace along."""
    libc = ctypes.CDLL(None, use_errno=True)
    parent = os.getpid()

    def arrange() -> None:
        libc.prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
        if os.getppid() != parent:
            os._exit(1)

    return arrange


def _inner_pid(unshare_pid: int) -> int | None:
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int(Path(f"/proc/{unshare_pid}/task/{unshare_pid}/children").read_text(encoding="ascii").split()[0])
    return None


def _signal_inner(unshare_pid: int, number: int) -> None:
    pid = _inner_pid(unshare_pid)
    if pid is not None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def _note_inner_pid(root: Path, child: "subprocess.Popen[bytes]") -> None:
    """Write a script with which a second terminal can look inside (`advisor demo --keep`)."""
    deadline = time.monotonic() + 10
    while (pid := _inner_pid(child.pid)) is None and child.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    if pid is None:
        return
    script = root / "enter"
    script.write_text(
        "#!/bin/sh\n# A shell inside the demo: its users, its processes, its Slurm.\n"
        f"exec nsenter --target {pid} --mount --uts --pid -- "
        f'env PATH="{root}/bin:$PATH" SLURM_CONF={root}/slurm/etc/slurm.conf ADVISOR_CONFIG={root}/etc/advisor.toml '
        f'{RUNTIME_VARIABLE}={root} ${{SHELL:-/bin/sh}} "$@"\n',
        encoding="utf-8",
    )
    script.chmod(0o755)


def _source_root() -> str:
    """The folder that holds the packages: a checkout, or the site-packages of an installed wheel."""
    return str(Path(__file__).resolve().parents[2])


# ---- inside, as pid 1 ---------------------------------------------------------------------------------------------


def _inner(root: Path, argv: Sequence[str]) -> int:
    socket.sethostname(HOST_NAME)
    _add_users(root)
    _add_hosts(root)
    _show_code(root)
    _show_programs(root)
    environment = os.environ | {RUNTIME_VARIABLE: str(root)}
    program = shutil.which(argv[0])
    if program is None:
        print(f"{argv[0]}: not found", file=sys.stderr)
        return 127
    child = os.posix_spawn(program, list(argv), environment)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the child has it from the terminal and decides
    signal.signal(signal.SIGTERM, lambda *_: os.kill(child, signal.SIGTERM))
    while True:
        pid, status = os.waitpid(-1, 0)
        if pid == child:
            # Leaving ends all that is left in the namespace.
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code


def _bind(source: Path, target: Path, *, read_only: bool = False) -> None:
    subprocess.run(["mount", "--bind", str(source), str(target)], check=True)
    if read_only:
        subprocess.run(["mount", "-o", "remount,bind,ro", str(target)], check=True)


def _add_users(root: Path) -> None:
    passwd = Path("/etc/passwd").read_text(encoding="utf-8")
    group = Path("/etc/group").read_text(encoding="utf-8")
    names = {line.split(":")[0] for text in (passwd, group) for line in text.splitlines()}
    numbers = {line.split(":")[2] for text in (passwd, group) for line in text.splitlines() if line.count(":") >= 3}
    uid = _FIRST_FREE_UID
    for user in (*ORDINARY_USERS, SERVICE_USER):
        while str(uid) in numbers:
            uid += 1
        home = root / "home" / user
        if user not in names:
            passwd += f"{user}:x:{uid}:{uid}:recovery-advisor demo:{home}:/bin/sh\n"
            group += f"{user}:x:{uid}:\n"
            numbers.add(str(uid))
    (root / "etc").mkdir()
    for name, text in (("passwd", passwd), ("group", group)):
        copy = root / "etc" / name
        copy.write_text(text, encoding="utf-8")
        copy.chmod(0o644)
        _bind(copy, Path("/etc") / name)
    for user in (*ORDINARY_USERS, SERVICE_USER):
        home = root / "home" / user
        home.mkdir(parents=True)
        shutil.chown(home, user, user)


def _add_hosts(root: Path) -> None:
    """Every node name resolves to this host: the daemons, srun and the training program then need no addresses."""
    nodes = " ".join(f"node{number}" for number in range(1, _NODES_IN_HOSTS + 1))
    copy = root / "etc" / "hosts"
    copy.write_text(f"127.0.0.1 localhost {HOST_NAME} {nodes}\n", encoding="utf-8")
    copy.chmod(0o644)
    if not Path("/etc/hosts").exists():
        Path("/etc/hosts").touch()
    _bind(copy, Path("/etc/hosts"))


def _show_code(root: Path) -> None:
    """Bind the source tree and the environment where every user can reach them, also from a home of mode 0700."""
    code = root / "code"
    code.mkdir()
    source = Path(_source_root())
    prefix = Path(sys.prefix)
    if prefix == source / ".venv":
        _bind(source, code, read_only=True)
        return
    # An installed wheel, or an environment elsewhere: only what is needed, under the same names.
    (code / ".venv").mkdir()
    _bind(prefix, code / ".venv", read_only=True)
    for package in ("advisor", "connectors", "slurm_plugin", "watchdog", "migrations"):
        if (source / package).is_dir():
            (code / package).mkdir()
            _bind(source / package, code / package, read_only=True)


def _show_programs(root: Path) -> None:
    """Our commands by their names, for every user: the environment's own may lie where only root can go."""
    runtime = Runtime(root=root)
    folder = root / "bin"
    folder.mkdir()
    for name, module in (("advisor", "advisor"), ("advisor-agent", "slurm_plugin"), ("advisor-watchdog", "watchdog")):
        program = folder / name
        program.write_text(
            f'#!/bin/sh\nPYTHONPATH={runtime.code} exec {runtime.python} -P -m {module} "$@"\n', encoding="utf-8"
        )
        program.chmod(0o755)


def main(arguments: Sequence[str]) -> int:
    """`-- COMMAND...` runs the command in a new namespace."""
    if len(arguments) >= 3 and arguments[0] == "--inner":
        return _inner(Path(arguments[1]), arguments[3:])
    if len(arguments) < 2 or arguments[0] != "--":
        print("usage: python -m advisor.demo.namespace -- COMMAND [ARGUMENT...]", file=sys.stderr)
        return 2
    try:
        return run(arguments[1:])
    except CannotEnterError as error:
        print(error, file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
