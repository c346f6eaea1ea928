"""Many connections at once, to see what else gets its turn meanwhile."""

import asyncio
import socket
from pathlib import Path

import pytest

CONNECTIONS = 100
ROUNDS_MAX = 10_000
SETTLING_ROUNDS = 1_000


async def accepted_together(path: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    """Of a hundred that wait at the socket: the most that were accepted in one round of the event loop."""
    accepted, real = 0, socket.socket.accept

    def counted(listener: socket.socket) -> tuple[socket.socket, object]:
        nonlocal accepted
        made = real(listener)
        accepted += 1
        return made

    monkeypatch.setattr(socket.socket, "accept", counted)
    clients = [socket.socket(socket.AF_UNIX) for _ in range(CONNECTIONS)]
    try:
        for client in clients:
            client.setblocking(False)
            client.connect(str(path))  # fails where not so many may wait
        most = 0
        for _ in range(ROUNDS_MAX):
            before = accepted
            await asyncio.sleep(0)
            most = max(most, accepted - before)
            if accepted == CONNECTIONS:
                return most
        raise AssertionError(f"{accepted} of {CONNECTIONS} were accepted")
    finally:
        for client in clients:
            client.close()
        for _ in range(SETTLING_ROUNDS):  # the server notices, and lets go of its ends
            await asyncio.sleep(0)
