"""`python -m tests.integration.replicas.serve CONFIG [--skew SECONDS]`: one replica, on a host whose clock is wrong.

As `advisor serve`, but that this user may own kernel logs, and that the host's clock is off by so much.
"""

import argparse
import asyncio
import signal
import sys
from datetime import datetime, timedelta
from pathlib import Path

from advisor.app import Service, StartError
from advisor.clock import SystemClock
from advisor.config import load
from advisor.ports import Clock
from tests.integration.service.world import own_sources


class WrongClock:
    """A host's clock that nobody has set."""

    def __init__(self, off: timedelta) -> None:
        self._own: Clock = SystemClock()
        self._off = off

    def now(self) -> datetime:
        return self._own.now() + self._off

    def monotonic(self) -> float:
        return self._own.monotonic()

    async def sleep(self, seconds: float) -> None:
        await self._own.sleep(seconds)


async def main(config: Path, skew: float) -> None:
    service = Service(load(config, {}).config, clock=WrongClock(timedelta(seconds=skew)), make_sources=own_sources)
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, service.stop)
    async with service:
        print("serving", flush=True)
        await service.until_stopped()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("config", type=Path)
    parser.add_argument("--skew", type=float, default=0.0)
    arguments = parser.parse_args()
    try:
        asyncio.run(main(arguments.config, arguments.skew))
    except StartError as error:
        sys.exit(f"replica: {error}")
