"""What a bundle holds beside logs: GPU telemetry, flight-recorder dumps and torchelastic's error files.

One broken dump of many costs only itself: it is counted, and the rest is used. A broken `metrics.json` is an error.
"""

import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from advisor.bundle_facts import BundleError, JobFacts, open_regular
from advisor.core.flight_recorder import Dump, DumpError, rank_of_name, read_dump
from advisor.core.hostlist import short
from advisor.core.model import Signal, SourceReport
from advisor.core.primitive_pickle import BYTES_MAX
from advisor.core.scan import Scanner
from advisor.core.stalled import compare, signal_of
from advisor.core.telemetry import Sample, Span, telemetry_signals
from advisor.core.words import Trust

RECORDER = "flight_recorder"
DUMPS_BYTES_MAX = 512 << 20  # of all dumps together
ERROR_FILE_BYTES_MAX = 4 << 20
METRICS_BYTES_MAX = 64 << 20
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


def telemetry_evidence(
    path: Path, facts: JobFacts, scanner: Scanner, now: datetime
) -> tuple[tuple[Signal, ...], SourceReport] | None:
    """What `metrics.json` shows; None where the bundle has none. Raises `BundleError` with the sample's number."""
    if not os.path.lexists(path):
        return None
    samples = read_metrics(path)
    per_node = facts.tasks_per_node
    if facts.world_size and facts.nodes and facts.world_size % len(facts.nodes) == 0:
        per_node = facts.world_size // len(facts.nodes)
    span = Span(nodes=facts.nodes, started_at=facts.started_at, ended_at=facts.ended_at, ranks_per_node=per_node)
    signals, foreign = telemetry_signals(samples, scanner.by_id, scanner.xids, span, source=path.name, seen_at=now)
    newest = max((sample.at for sample in samples), default=None)
    return signals, SourceReport(
        source="metrics", trust=Trust.TELEMETRY, newest_at=newest, lines=len(samples), foreign=foreign
    )


def read_metrics(path: Path) -> list[Sample]:
    """DCGM samples, `[{"t":…, "node":…, "gpu":…, "field":"DCGM_FI_…", "value":…}]`; `t` in epoch seconds or ISO."""
    with os.fdopen(open_regular(path), "rb") as file:
        data = file.read(METRICS_BYTES_MAX + 1)
    if len(data) > METRICS_BYTES_MAX:
        raise BundleError(f"{path}: larger than {METRICS_BYTES_MAX >> 20} MiB")
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise BundleError(f"{path}: not JSON: {str(error)[:120]}") from error
    if not isinstance(value, list):
        raise BundleError(f"{path}: must be a JSON list of samples")
    samples = []
    for number, item in enumerate(value):
        try:
            found = _sample(item)
        except ValueError as error:
            raise BundleError(f"{path}: sample {number}: {error}") from error
        if found is not None:
            samples.append(found)
    return samples


def _sample(item: Any) -> Sample | None:
    """One sample; None for a field without a value. Raises `ValueError` that names the key."""
    if not isinstance(item, dict):
        raise ValueError("must be an object")  # noqa: TRY004 - a value of the file, not of a caller
    name, node, gpu, value = (item.get(key) for key in ("field", "node", "gpu", "value"))
    if not isinstance(name, str) or not isinstance(node, str) or not node:
        raise ValueError("field and node: must be text")
    if value is None:
        return None
    index = int(gpu) if isinstance(gpu, str) and re.fullmatch(r"\d{1,3}", gpu) else gpu
    if isinstance(index, bool) or not isinstance(index, int) or not 0 <= index < 1_000:
        raise ValueError("gpu: must be a small whole number")
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError("value: must be a number")  # noqa: TRY004 - a value of the file, not of a caller
    return Sample(at=_moment(item.get("t")), node=short(node[:253]), gpu=index, field=name, value=_float(value))


def _float(value: float) -> float:
    try:
        return float(value)
    except OverflowError:
        return float("inf")


def _moment(value: Any) -> datetime:
    try:
        if isinstance(value, int | float) and not isinstance(value, bool):
            return datetime.fromtimestamp(value, UTC)
        at = datetime.fromisoformat(value)
    except (ValueError, OverflowError, OSError, TypeError) as error:
        raise ValueError("t: must be epoch seconds or an ISO time") from error
    return at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC)


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
