"""`python -I -m slurm_plugin.kmsg --file /shared/kernel/%n.log`: forward the kernel's records until SIGTERM.

Runs beside slurmd on each node, with the standard library only. Errors on the way up end with one line and status 2.
"""

import argparse
import fcntl
import os
import re
import signal
import socket
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from slurm_plugin.kmsg.forwarder import Device, forward, said
from slurm_plugin.kmsg.receivers import LokiStore, NodeFile, Receiver, StoreAccess, VictoriaLogsStore
from slurm_plugin.kmsg.records import Cap
from slurm_plugin.kmsg.spool import Spool, set_aside_if_broken
from slurm_plugin.notice import alive

DEVICE = "/dev/kmsg"
STATE = "/var/lib/recovery-advisor-kmsg"
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_NODE = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_-]{0,62})")
_LABEL = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,99}")


class StartError(Exception):
    """The forwarder cannot start; the text is one line that says why."""


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="advisor-kmsg",
        description="Forwards the kernel's own records of this node to a file, Loki or VictoriaLogs.",
    )
    made.add_argument("--file", metavar="PATH", help="append to this file; %%n is the node's name")
    made.add_argument("--loki", metavar="URL", help="push to Loki at this address")
    made.add_argument("--victorialogs", metavar="URL", help="push to VictoriaLogs at this address")
    made.add_argument("--label", action="append", default=[], metavar="NAME=VALUE", help="one more label of the stream")
    made.add_argument("--tenant", default="", help="Loki: X-Scope-OrgID; VictoriaLogs: AccountID:ProjectID")
    for name in ("token", "ca", "certificate", "key"):
        made.add_argument(f"--{name}-file", type=Path, metavar="PATH")
    made.add_argument("--node", default="", metavar="NAME", help="as Slurm calls it (the host's short name)")
    made.add_argument("--state", type=Path, default=Path(STATE), metavar="FOLDER", help=f"for the spool ({STATE})")
    made.add_argument("--spool-records", type=int, default=200_000, metavar="N", help="kept at most (200000)")
    made.add_argument("--records-per-second", type=float, default=200.0, metavar="N", help="at most, over time (200)")
    made.add_argument("--device", default=DEVICE, help=argparse.SUPPRESS)
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    try:
        node = options.node or socket.gethostname().partition(".")[0]
        receivers = receivers_of(options, node)
        boot = _boot()
        path = _spool_path(options.state)
        device = os.open(options.device, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except StartError as why:
        print(f"advisor-kmsg: {why}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"advisor-kmsg: {error.filename}: {error.strerror}", file=sys.stderr)
        return 2

    def tell(event: str, **fields: object) -> None:
        print(said(event, **fields), file=sys.stderr, flush=True)

    if set_aside_if_broken(path):
        tell("spool_broken", path=f"{path}.broken")
    spool = Spool(path, rows_max=options.spool_records)
    spool.register([receiver.name for receiver in receivers])
    cap = Cap(options.records_per_second, options.records_per_second * 10)
    tell("forwarder_started", node=node, boot=boot, receivers=[receiver.name for receiver in receivers])
    forward(
        Device(device, boot=boot, spool=spool, cap=cap),
        receivers,
        lambda: Spool(path, rows_max=options.spool_records),
        tell=tell,
        stopping=stopping,
        alive=alive,
    )
    return 0


def receivers_of(options: argparse.Namespace, node: str) -> list[Receiver]:
    """Raises `StartError`."""
    if not _NODE.fullmatch(node):
        raise StartError(f"--node: {node[:80]!r}: letters, digits, '-' and '_' are expected")
    labels = {"source": "kernel", "transport": "kernel", "host": node}
    for text in options.label:
        name, equals, value = text.partition("=")
        if not equals or not _LABEL.fullmatch(name) or name in labels:
            raise StartError(f"--label: {text!r}: NAME=VALUE is expected, NAME none of {', '.join(labels)}")
        labels[name] = value
    found: list[Receiver] = []
    if options.file:
        path = options.file.replace("%n", node)
        if not path.startswith("/") or "%n" not in Path(options.file).name:
            raise StartError("--file: an absolute path is expected whose last part holds %n, the node's name")
        found.append(NodeFile(Path(path), node))
    for kind, url in (("loki", options.loki), ("victorialogs", options.victorialogs)):
        if not url:
            continue
        secret = options.token_file is not None
        if not re.match(r"https://" if secret else r"https?://", url) and not re.match(
            r"http://(127\.|localhost)", url
        ):
            raise StartError(f"--{kind}: an address is expected, https:// where a token is sent")
        access = StoreAccess(
            url=url,
            headers=_tenant(kind, options.tenant),
            token_file=options.token_file,
            ca_file=options.ca_file,
            certificate_file=options.certificate_file,
            key_file=options.key_file,
        )
        found.append((LokiStore if kind == "loki" else VictoriaLogsStore)(access, labels))
    if not found:
        raise StartError("give --file, --loki or --victorialogs")
    return found


def _tenant(kind: str, tenant: str) -> dict[str, str]:
    if not tenant:
        return {}
    if kind == "loki":
        return {"X-Scope-OrgID": tenant}
    account, colon, project = tenant.partition(":")
    if not colon or not account.isdigit() or not project.isdigit():
        raise StartError("--tenant: AccountID:ProjectID is expected, both numbers")
    return {"AccountID": account, "ProjectID": project}


def _boot() -> str:
    return BOOT_ID.read_text("ascii").strip().replace("-", "")


def _spool_path(folder: Path) -> Path:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)  # held until the process ends
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise StartError(f"{folder}: another forwarder runs here") from None
    return folder / "spool.sqlite"


if __name__ == "__main__":
    sys.exit(main())
