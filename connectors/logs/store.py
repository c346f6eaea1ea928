"""What a log store is asked and what it answers: the port between the reader of stores and each kind of store.

Times are whole nanoseconds since 1970: both stores keep them, and a `datetime` would lose the last three digits.
"""

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

NS = 1_000_000_000
NAME_CHARS_MAX = 200

# Nanosecond, text without its newline, and what tells it from another line of the same text and nanosecond.
Line = tuple[int, bytes, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Labels:
    """How a site names what the lines of its store are about; "" where it does not.

    `indexed`: the job's id is a label (Loki: of the stream; else structured metadata). `constant`: label values that
    hold for all lines of this source, and so distinguish none. `sequence` numbers lines of one nanosecond.
    """

    job: str = "job_id"
    node: str = ""
    rank: str = ""
    sequence: str = ""
    indexed: bool = True
    constant: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """Lines of some jobs with `start_ns` <= time < `end_ns`. `whole`: also those that the filter would leave out.

    Answers hold at most about `bytes_max` of text; a longer one ends where that is reached. `urgent`: of the present,
    before which questions about the past give way.
    """

    jobs: tuple[str, ...]
    start_ns: int
    end_ns: int
    whole: bool
    bytes_max: int
    urgent: bool = True


@dataclass(slots=True)
class Stream:
    """Lines of one stream of one job, by time. `name` tells the job's streams apart."""

    job: str
    name: str
    node: str | None
    lines: list[Line] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Everything that the store has of the time before `until_ns`. `gaps`: what it has and did not give, in words."""

    streams: Sequence[Stream]
    until_ns: int
    gaps: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What a store says when doctor looks: how many streams and lines, of how many jobs, and how old the newest is.

    `page_lines`: how many it gives at once, where that is bounded. `notes`: what does not fit our configuration.
    """

    streams: int
    lines: int
    jobs: int
    nodes: int
    newest_ns: int | None
    page_lines: int | None = None
    notes: tuple[str, ...] = ()


class LogStore(Protocol):
    """Raises `connectors.web.server.AskError` for everything that a server can do wrong.

    `filters`: lines are left out of answers that are not `whole`.
    """

    filters: bool

    async def lines(self, ask: Ask) -> Answer: ...

    async def counts(self, jobs: Sequence[str], start_ns: int, end_ns: int) -> Mapping[str, int]:
        """How many lines each job has, whatever the filter; jobs without any are left out."""
        ...

    async def anything(self, start_ns: int, end_ns: int) -> bool:
        """Whether the store has any line of any job: where not, tenant or selector may be wrong."""
        ...

    async def look(self, start_ns: int, end_ns: int) -> Seen: ...

    async def close(self) -> None: ...


class ShapeError(ValueError):
    """An answer that is not of the documented shape; the message says where."""


def stream_name(labels: Mapping[str, str], chosen: Labels) -> str:
    """A name for people, the same whichever replica reads: what distinguishes a stream from the job's others."""
    left_out = chosen.constant | {chosen.job, chosen.sequence}
    name = " ".join(f"{key}={value}" for key, value in sorted(labels.items()) if key not in left_out)
    if len(name) > NAME_CHARS_MAX:
        return f"{name[:NAME_CHARS_MAX]}… {zlib.crc32(name.encode()):08x}"
    return name or "output"
