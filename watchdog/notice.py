"""Telling systemd that we live (sd_notify), with the standard library. Without systemd nothing is said to anybody.

And whether what we print goes into its journal, which keeps the time of each line.
"""

import os
import socket
import sys
from collections.abc import Mapping

READY, ALIVE, STOPPING = "READY=1", "WATCHDOG=1", "STOPPING=1"


class Notice:
    """`environment` is this process's; what cannot be told must not stop us from watching."""

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        address = environment.get("NOTIFY_SOCKET", "")
        self._address = f"\0{address[1:]}" if address.startswith("@") else address if address.startswith("/") else ""

    def tell(self, state: str) -> None:
        if not self._address:
            return
        kind = socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK
        try:
            with socket.socket(socket.AF_UNIX, kind) as channel:
                channel.sendto(state.encode(), self._address)
        except OSError:
            pass


def kept_by_journal(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether standard error is the journal's. The variable alone proves nothing: it is inherited behind a `2>file`."""
    try:
        status = os.fstat(sys.stderr.fileno())
    except (OSError, ValueError, AttributeError):
        return False
    return environment.get("JOURNAL_STREAM", "") == f"{status.st_dev}:{status.st_ino}"
