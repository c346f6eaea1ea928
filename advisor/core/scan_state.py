"""What the scanner is told about a file, what it remembers of it, and what it gives back: frozen values only."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime

from advisor.core.model import Signal
from advisor.core.progress import FileProgress
from advisor.core.times import Boot
from advisor.core.words import Role, Trust

Weight = tuple[bool, bool, bool]


def _weight(trust: Trust, role: Role | None) -> Weight:
    """What can be a cause comes first: trusted, then initiating, teardown last."""
    return not trust.trusted, role is not Role.INITIATING, role is Role.TEARDOWN


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """Of an attempt that has as many signals as are kept (`ids`): the least of them, which a new one must outweigh."""

    ids: frozenset[str]
    least: Weight

    def holds(self, trust: Trust, role: Role | None, signal_id: str) -> bool:
        """`fold_signals` would keep it, or has it."""
        return _weight(trust, role) < self.least or signal_id in self.ids


def room_of(known: Collection[Signal], signals_max: int) -> Room | None:
    """None: there is room for any signal."""
    if len(known) < signals_max or not known:
        return None
    return Room(
        ids=frozenset(signal.id for signal in known), least=max(_weight(signal.trust, signal.role) for signal in known)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class FileContext:
    """What is known about a file before reading it. `node` comes from the transport, never from the text. `kin`: of
    files whose lines may be understood alike, those of one attempt; `room`: what signals are made for.
    """

    source: str
    trust: Trust
    file: str
    kin: str = ""
    room: Room | None = None
    node: str | None = None
    rank: int | None = None  # from the file's name
    nodes: tuple[str, ...] | None = None  # the allocation; None = not known
    started_at: datetime | None = None  # of the attempt: older kernel lines are not its business
    tasks_per_node: int | None = None
    world_size: int | None = None
    rank_nodes: Mapping[int, str] = field(default_factory=dict)
    live: bool = True  # False: read long after it was written, so only the lines' own times count
    written_at: datetime | None = None  # when its newest bytes were written, as its source tells
    looked_at: datetime | None = None  # what is read now was written since then; None: as soon as it was written


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeat:
    """One distinct error of a file. `key`: rule, place and masked text."""

    key: str
    id: str
    rule: str
    count: int = 1
    ranks: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileState:
    """Where scanning stands in one file. `tail` is the unfinished last line, bytes as Latin-1 text."""

    tail: str = ""
    recent: str = ""  # the end of what was scanned, for tracebacks that began before this read
    offset: int = 0
    line: int = 0  # complete lines so far
    last_time: datetime | None = None
    zone_seconds: float | None = None  # learned offset of times without a zone
    lag_seconds: float | None = None  # least time from a line's own time until it was there; below 0: its clock is fast
    boot: Boot | None = None  # of the kernel whose log it is, where a line told it
    progress: FileProgress = field(default_factory=FileProgress)
    repeats: tuple[Repeat, ...] = ()
    foreign: int = 0
    dropped: int = 0  # hits beyond the bounds: counted only
    block: Mapping[str, str] = field(default_factory=dict)  # an open torchelastic "Root Cause" block
    block_lines: int = 0
    gpus: Mapping[str, int] = field(default_factory=dict)  # `node/address` to index: see gpu_indices


@dataclass(frozen=True, slots=True, kw_only=True)
class Scanned:
    """`signals`: new ones, and newer counts of known ones under their old id (see `fold_signals`)."""

    state: FileState
    signals: tuple[Signal, ...] = ()
    repeats: tuple[Repeat, ...] = ()  # signals of earlier reads that were seen again
    foreign: int = 0
    lines: int = 0
    newest_at: datetime | None = None


def fold_signals(known: Iterable[Signal], scanned: Scanned, signals_max: int) -> tuple[Signal, ...]:
    """Known signals with what a read added: newer counts in place, new ones after them, within the bound.

    When the bound bites, what can be a cause stays: trusted first, then initiating, then the earliest.
    """
    by_id = {signal.id: signal for signal in known}
    for repeat in scanned.repeats:
        signal = by_id.get(repeat.id)
        if signal is not None:
            fields = {**signal.fields, "ranks": repeat.ranks} if repeat.ranks else signal.fields
            by_id[repeat.id] = replace(signal, count=repeat.count, fields=fields)
    for signal in scanned.signals:
        by_id[signal.id] = signal
    folded = tuple(by_id.values())
    if len(folded) <= signals_max:
        return folded
    ranked = sorted(
        enumerate(folded),
        key=lambda item: (_weight(item[1].trust, item[1].role), item[0]),
    )
    keep = sorted(index for index, _ in ranked[:signals_max])
    return tuple(folded[index] for index in keep)
