"""When a fault could be read: the beginning of what is measured as our own delay."""

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from advisor.core.detection import detect
from advisor.core.policy import Policy
from tests.unit.core_detect.logs import NOON, RULES, kernel, scan, snapshot

READ_AT = NOON + timedelta(seconds=10)
XID = "node2 kernel: NVRM: Xid (PCI:0000:1b:00): 79, pid=1, name=python3, GPU has fallen off the bus."


def visible_at(**changes: Any) -> datetime | None:
    """Of an incident with one kernel line that was read at `READ_AT`."""
    signals = tuple(
        replace(signal, seen_at=READ_AT, **changes) for signal in scan(XID, kernel("node2"), seen_at=READ_AT).signals
    )
    assert signals
    world = replace(snapshot(ended_at=READ_AT), signals=signals)
    return detect(world, RULES, Policy(), READ_AT + timedelta(seconds=1)).visible_at


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, 10.0),
        ({"written_at": NOON + timedelta(seconds=9)}, 9.0),
        ({"written_at": NOON + timedelta(seconds=9), "at": NOON + timedelta(seconds=8)}, 8.0),
        ({"written_at": NOON + timedelta(seconds=9), "at": NOON}, 9.0),
        ({"written_at": NOON + timedelta(seconds=99)}, 10.0),
    ],
    ids=["not told", "file time", "kernel's own time", "an old time in a new line", "a file time ahead of the clock"],
)
def test_a_fault_is_visible_when_its_bytes_were_written(changes: dict[str, object], expected: float) -> None:
    """Our delay counts from the writing, never from our own reading, and never from a time that cannot be."""
    assert visible_at(**changes) == NOON + timedelta(seconds=expected)


@pytest.mark.parametrize(("told", "expected"), [(None, None), (9, 9), (99, 10)], ids=["not told", "before", "ahead"])
def test_a_signal_carries_when_its_bytes_were_written(told: float | None, expected: float | None) -> None:
    """The scanner takes the time of writing from the file's source, and never one later than the reading."""
    written_at = None if told is None else NOON + timedelta(seconds=told)
    (signal,) = scan(XID, kernel("node2", written_at=written_at), seen_at=READ_AT).signals
    assert signal.written_at == (None if expected is None else NOON + timedelta(seconds=expected))
