"""Stands between two programs and passes bytes on, late, or not at all.

    python relay.py LISTEN TARGET CONTROL

LISTEN and TARGET are `unix:PATH` or `tcp:PORT` (on 127.0.0.1). CONTROL is a file that is read ten times a second:
`pass`, `delay SECONDS`, `hold` (bytes are kept, connections stay, as in a partition), `cut` (connections are ended).
It runs as the user of the program that connects, so that the kernel's word on who calls stays true;
from a copy, since that user may not see this checkout. It imports nothing of ours.
"""

import asyncio
import contextlib
import sys
from pathlib import Path

PIECE_BYTES = 1 << 16
LOOK_SECONDS = 0.1
Pair = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Relay:
    def __init__(self, target: str, control: Path) -> None:
        self._target = target
        self._control = control
        self._passing = asyncio.Event()
        self._passing.set()
        self._delay = 0.0
        self._refuse = False
        self._writers: set[asyncio.StreamWriter] = set()

    async def obey(self) -> None:
        """Read what to do, for ever."""
        while True:
            with contextlib.suppress(OSError, ValueError, IndexError):
                words = self._control.read_text(encoding="ascii").split()
                self._delay = float(words[1]) if words[0] == "delay" else 0.0
                (self._passing.clear if words[0] == "hold" else self._passing.set)()
                self._refuse = words[0] == "cut"
                if self._refuse:
                    for writer in self._writers:
                        writer.close()
            await asyncio.sleep(LOOK_SECONDS)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with contextlib.AsyncExitStack() as stack:
            self._keep(stack, writer)
            if self._refuse:
                return
            try:
                there_reader, there_writer = await connect(self._target)
            except OSError:
                return
            self._keep(stack, there_writer)
            ways = (self._pass(reader, there_writer), self._pass(there_reader, writer))
            tasks = [asyncio.create_task(way) for way in ways]
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _keep(self, stack: contextlib.AsyncExitStack, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        stack.callback(self._writers.discard, writer)
        stack.callback(writer.close)

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while piece := await reader.read(PIECE_BYTES):
                await self._passing.wait()
                if self._delay:
                    await asyncio.sleep(self._delay)
                writer.write(piece)
                await writer.drain()


async def connect(address: str) -> Pair:
    kind, _, place = address.partition(":")
    if kind == "unix":
        return await asyncio.open_unix_connection(place)
    return await asyncio.open_connection("127.0.0.1", int(place))


async def main(listen: str, target: str, control: str) -> None:
    relay = Relay(target, Path(control))
    kind, _, place = listen.partition(":")
    if kind == "unix":
        Path(place).unlink(missing_ok=True)  # noqa: ASYNC240 - before anybody is served
        server = await asyncio.start_unix_server(relay.serve, place)
    else:
        server = await asyncio.start_server(relay.serve, "127.0.0.1", int(place))
    async with server:
        await relay.obey()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:4]))
