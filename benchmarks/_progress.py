"""What a benchmark is at, on stderr: of one that is silent for minutes nobody knows whether it lives."""

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

SILENT_SECONDS = 15.0
_at = ["starting"]  # what was said last


def now_at(what: str) -> None:
    """What it is at from now on. Costs nothing: it is told only now and then, and only within `telling`."""
    _at[0] = what


@contextmanager
def telling(where: TextIO | None = None, silent_seconds: float = SILENT_SECONDS) -> Iterator[None]:
    """Every so many seconds a line: how long it runs already, and what it is at."""
    ended, began = threading.Event(), time.monotonic()
    now_at("starting")

    def tell() -> None:
        while not ended.wait(silent_seconds):
            print(f"{time.monotonic() - began:6.0f} s  {_at[0]}", file=where or sys.stderr, flush=True)

    thread = threading.Thread(target=tell, name="telling", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
