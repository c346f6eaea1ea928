"""A stand-in for /dev/kmsg: a socket that gives one record per read, as the device does."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass
class KernelLog:
    """`reading`: what the forwarder reads. Records are numbered as the kernel numbers them."""

    writing: socket.socket
    reading: socket.socket
    sequence: int = 0

    def say(self, text: str, *, uptime_us: int = 5_000_000, facility: int = 0, skip: int = 0) -> None:
        self.sequence += skip
        head = f"{facility << 3 | 4},{self.sequence},{uptime_us},-;{text}\n SUBSYSTEM=pci\n DEVICE=+pci:0000:3b:00.0\n"
        self.writing.send(head.encode())
        self.sequence += 1


@contextmanager
def kernel_log(sequence: int = 0) -> Iterator[KernelLog]:
    writing, reading = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    reading.setblocking(False)
    with writing, reading:
        yield KernelLog(writing, reading, sequence)
