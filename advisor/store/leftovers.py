"""What a dead advisor or a dead Postgres leaves in a data folder, and how it goes away.

Postgres itself trusts the pid in postmaster.pid: a recycled pid of the same user, or a zombie that nobody reaps, keeps
it from starting for ever. We look at what matters instead: does any Postgres process work in this data folder. Each of
them has it as its working directory, a zombie has none, and a recycled pid is somewhere else. Only when there is
none are the pid files removed: a backend that outlived its postmaster still writes.
"""

import os
import signal
import time
from pathlib import Path

from advisor.store.errors import DataFolderRefused

_POLL_SECONDS = 0.05
_FAST_AFTER_SECONDS = 5.0
_IMMEDIATE_AFTER_SECONDS = 30.0
_GIVE_UP_AFTER_SECONDS = 45.0


def clear_leftovers(pgdata: Path, sockets: Path) -> None:
    """Wait until no Postgres works in `pgdata`, then remove its stale pid and socket files.

    A dead advisor's Postgres has been told by the kernel to shut down (PDEATHSIG) and is given time; after that it is
    told again, more firmly. A Postgres that somebody else started there is left alone: `DataFolderRefused`.
    """
    began = time.monotonic()
    while pids := servers_in(pgdata):
        foreign = [pid for pid in pids if not _ours(pid, pgdata, sockets)]
        waited = time.monotonic() - began
        if waited > _GIVE_UP_AFTER_SECONDS or (foreign and waited > _FAST_AFTER_SECONDS):
            raise DataFolderRefused(
                f"a Postgres that the advisor did not start works in {pgdata} (pid {(foreign or pids)[0]}): "
                "stop it, or choose another data folder"
            )
        if not foreign and waited > _FAST_AFTER_SECONDS:
            _tell(pids, signal.SIGQUIT if waited > _IMMEDIATE_AFTER_SECONDS else signal.SIGINT)
        time.sleep(_POLL_SECONDS)
    (pgdata / "postmaster.pid").unlink(missing_ok=True)
    for name in (".s.PGSQL.5432.lock", ".s.PGSQL.5432"):
        (sockets / name).unlink(missing_ok=True)


def servers_in(pgdata: Path) -> tuple[int, ...]:
    """Pids of Postgres processes whose working directory is `pgdata`. Zombies are not among them."""
    try:
        wanted = pgdata.stat()
    except FileNotFoundError:
        return ()
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            folder = (entry / "cwd").stat()
            program = (entry / "exe").readlink().name
        except OSError:
            continue  # gone meanwhile, a zombie, or another user's: then not ours to judge
        if (folder.st_dev, folder.st_ino) == (wanted.st_dev, wanted.st_ino) and program.startswith("postgres"):
            found.append(int(entry.name))
    return tuple(found)


def _ours(pid: int, pgdata: Path, sockets: Path) -> bool:
    # A postmaster shows the arguments we gave it; its children show a title ("postgres: advisor ...").
    try:
        arguments = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return True
    if arguments[0].startswith(b"postgres:"):
        return True
    return {os.fsencode(pgdata), os.fsencode(sockets)} <= set(arguments)


def _tell(pids: tuple[int, ...], number: signal.Signals) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue
