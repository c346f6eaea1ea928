"""`python -I -m slurm_plugin.logreader --client advisor`: listen, and serve until SIGTERM. Needs root.

Errors on the way up end with one line and status 2.
"""

import argparse
import fcntl
import os
import pwd
import signal
import socket
import stat
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from slurm_plugin.logreader.journal import Journal
from slurm_plugin.logreader.server import Limits, Reader
from slurm_plugin.notice import alive

SOCKET = "/run/recovery-advisor-logreader/logreader.sock"  # `logs.root_reader` of the service names the same
SOCKET_BYTES_MAX = 107


class StartError(Exception):
    """The reader cannot start; the text is one line that says why."""


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="advisor-logreader",
        description="Opens job logs as the jobs' users and hands read-only descriptors to the advisor. Needs root.",
    )
    made.add_argument("--client", required=True, metavar="USER", help="the only account that is served: the advisor's")
    made.add_argument("--socket", default=SOCKET, metavar="PATH", help=f"where to listen ({SOCKET})")
    made.add_argument("--uid-min", type=int, default=1000, metavar="N", help="no files of users below (1000)")
    made.add_argument(
        "--under", action="append", default=[], metavar="FOLDER", help="only files below this folder; may be repeated"
    )
    made.add_argument("--files-per-second", type=float, default=20_000.0, metavar="N", help="at most (20000)")
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    try:
        limits = _limits(options)
        listening, lock = _listen(options.socket)
    except StartError as why:
        print(f"advisor-logreader: {why}", file=sys.stderr)
        return 2
    journal = Journal(lambda line: print(line, file=sys.stderr, flush=True), time.monotonic)
    reader = Reader(listening, limits, journal, on_turn=alive)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: reader.stop())
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    journal.tell("reader_started", socket=options.socket, client=limits.client_uid, uid_min=limits.uid_min)
    reader.serve()
    Path(options.socket).unlink(missing_ok=True)
    os.close(lock)
    return 0


def _limits(options: argparse.Namespace) -> Limits:
    if os.geteuid() != 0:
        raise StartError("it opens files as other users: run it as root")
    try:
        client = pwd.getpwnam(options.client).pw_uid
    except KeyError:
        raise StartError(f"--client: no user {options.client!r} on this host") from None
    if client == 0:
        raise StartError("--client: root needs no reader; name the advisor's own account")
    for folder in options.under:
        if not folder.startswith("/") or folder.rstrip("/") == "":
            raise StartError(f"--under: {folder!r} is no absolute path of a folder")
    if options.uid_min < 1 or options.files_per_second < 1:
        raise StartError("--uid-min and --files-per-second: give 1 or more")
    return Limits(
        client_uid=client,
        uid_min=options.uid_min,
        under=tuple(os.path.realpath(folder) for folder in options.under),
        files_per_second=options.files_per_second,
    )


def _listen(path: str) -> tuple[socket.socket, int]:
    """The listening socket, and the lock that keeps a second reader out."""
    if len(os.fsencode(path)) > SOCKET_BYTES_MAX:
        raise StartError(f"{path}: longer than the {SOCKET_BYTES_MAX} bytes that a socket's path may have")
    place = Path(path)
    try:
        lock = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if place.exists() and stat.S_ISSOCK(place.lstat().st_mode):
            place.unlink()
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
        listening.bind(path)
        place.chmod(0o666)  # who is heard is decided by the kernel's word on who asks
        listening.listen(16)
    except BlockingIOError:
        raise StartError(f"{path}: another reader serves it") from None
    except OSError as error:
        raise StartError(f"{path}: {error.strerror}") from None
    return listening, lock


if __name__ == "__main__":
    sys.exit(main())
