"""Waiting for a condition of the real world, always with a deadline."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class TookTooLongError(Exception):
    """A condition did not come true in time; the text says which and what was seen last."""


def wait_for(what: str, condition: Callable[[], T | None], *, seconds: float, every_seconds: float = 0.05) -> T:
    """Return the first value of `condition` that is neither None nor False; else raise `TookTooLongError`."""
    deadline = time.monotonic() + seconds
    while True:
        value = condition()
        if value is not None and value is not False:
            return value
        if time.monotonic() >= deadline:
            raise TookTooLongError(f"{what}: not within {seconds:g} s")
        time.sleep(every_seconds)


def holds_for(condition: Callable[[], bool], *, seconds: float, every_seconds: float = 0.1) -> bool:
    """True when `condition` was true each time it was looked at during `seconds`: for things that must not happen."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if not condition():
            return False
        time.sleep(every_seconds)
    return condition()
