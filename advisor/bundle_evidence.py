"""What a bundle holds beside logs: flight-recorder dumps and torchelastic's error files.

One broken file of many costs only itself: it is counted, and the rest is used.
"""

import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from advisor.bundle_facts import BundleError, open_regular
from advisor.core.flight_recorder import Dump, DumpError, rank_of_name, read_dump
from advisor.core.model import Signal, SourceReport
from advisor.core.primitive_pickle import BYTES_MAX
from advisor.core.scan import Scanner
from advisor.core.stalled import compare, signal_of
from advisor.core.words import Trust

RECORDER = "flight_recorder"
DUMPS_BYTES_MAX = 512 << 20  # of all dumps together
ERROR_FILE_BYTES_MAX = 4 << 20
_ERROR_FILE = re.compile(r"(?:^|[._-])error(?:[._-]?\d{1,7})?\.json$", re.IGNORECASE)


def recorder_evidence(
    files: Sequence[Path], world_size: int | None, scanner: Scanner, now: datetime
) -> tuple[tuple[Signal, ...], SourceReport]:
    """All dumps of a bundle compared, and what that says about the source itself.

    Broken dumps make the source incomplete (`capped`), never unavailable: the job's own log can still be read.
    """
    dumps: list[Dump] = []
    unreadable: list[int] = []
    broken = 0
    budget = DUMPS_BYTES_MAX
    for path in files:
        rank = rank_of_name(path.name)
        try:
            data = _bytes(path, min(BYTES_MAX, budget))
            budget -= len(data)
            dumps.append(read_dump(data, rank))
        except (DumpError, BundleError):
            broken += 1
            unreadable += () if rank is None else (rank,)
    finding = compare(dumps, world_size, unreadable)
    signal = signal_of(finding, scanner.by_id, source=RECORDER, seen_at=now) if finding is not None else None
    report = SourceReport(
        source=RECORDER,
        trust=Trust.LOG,
        newest_at=finding.since if finding is not None else None,
        lines=len(dumps),
        capped=broken > 0,
    )
    return (signal,) if signal is not None else (), report


def _bytes(path: Path, bytes_max: int) -> bytes:
    with os.fdopen(open_regular(path), "rb") as file:
        data = file.read(bytes_max + 1)
    if len(data) > bytes_max:
        raise DumpError("too large")
    return data


def is_error_file(name: str) -> bool:
    """The name that torchelastic gives to the file in which a failed child leaves its traceback."""
    return _ERROR_FILE.search(name) is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorFile:
    """A child's last words: its traceback as plain lines, and when."""

    text: bytes
    at: datetime | None


def read_error_file(path: Path) -> ErrorFile | None:
    """A torchelastic error file; None when it is something else, which is then read like any log."""
    with os.fdopen(open_regular(path), "rb") as file:
        data = file.read(ERROR_FILE_BYTES_MAX + 1)
    if len(data) > ERROR_FILE_BYTES_MAX:
        return None
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return None
    outer = value.get("message") if isinstance(value, dict) else None
    if isinstance(outer, str):
        return ErrorFile(text=_lines(outer), at=None)
    if not isinstance(outer, dict):
        return None
    info = outer.get("extraInfo")
    info = info if isinstance(info, dict) else {}
    text = info.get("py_callstack") or outer.get("message")
    return ErrorFile(text=_lines(text), at=_epoch(info.get("timestamp"))) if isinstance(text, str) else None


def _lines(text: str) -> bytes:
    return text.rstrip("\n").encode("utf-8", "replace") + b"\n"


def _epoch(value: Any) -> datetime | None:
    """Seconds since the epoch, as torchelastic writes them: as text."""
    text = str(value)
    return datetime.fromtimestamp(int(text), UTC) if re.fullmatch(r"[12]\d{9}", text) else None
