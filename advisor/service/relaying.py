"""Passing a connection on to a server of ours behind a door, so that the server knows who is at the other end.

The servers listen in a folder that only we can enter. Each relay's own end has a name that nobody can guess, an
abstract socket address, which the server sees as its peer: by it `Peers` tells who that is.
"""

import asyncio
import contextlib
import secrets
import socket
from pathlib import Path

from advisor.service.callers import NOBODY, Caller

RELAY_BYTES = 64 * 1024


class Peers:
    """Who is behind each relayed connection, by the name of its end."""

    def __init__(self) -> None:
        self._callers: dict[str, Caller] = {}

    def add(self, name: str, caller: Caller) -> None:
        self._callers[name] = caller

    def remove(self, name: str) -> None:
        self._callers.pop(name, None)

    def find(self, name: str) -> Caller:
        """A connection that did not come through a door is nobody's."""
        return self._callers.get(name, NOBODY)


async def relay(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, to: Path, peers: Peers, caller: Caller
) -> None:
    """Pass bytes between a connection and the server at `to` until either side closes."""
    name = secrets.token_hex(16)
    inner = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    peers.add(name, caller)
    try:
        inner.setblocking(False)
        inner.bind(f"\0{name}")
        await asyncio.get_running_loop().sock_connect(inner, str(to))
        inner_reader, inner_writer = await asyncio.open_unix_connection(sock=inner)
        try:
            await _both(reader, writer, inner_reader, inner_writer)
        finally:
            inner_writer.close()
    finally:
        inner.close()
        peers.remove(name)


async def _both(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    inner_reader: asyncio.StreamReader,
    inner_writer: asyncio.StreamWriter,
) -> None:
    """Neither gRPC nor HTTP has a use for a half-open connection."""
    directions = [
        asyncio.create_task(_one(reader, inner_writer)),
        asyncio.create_task(_one(inner_reader, writer)),
    ]
    try:
        await asyncio.wait(directions, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in directions:
            task.cancel()
        await asyncio.gather(*directions, return_exceptions=True)


async def _one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(RELAY_BYTES):
            writer.write(data)
            await writer.drain()
