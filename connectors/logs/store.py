"""What a log store is asked and what it answers: the port between the reader of stores and each kind of store.

Times are whole nanoseconds since 1970: both stores keep them, and a `datetime` would lose the last three digits.
"""

import zlib
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from advisor.core.words import UnavailableReason
from connectors.web.server import AskError

NS = 1_000_000_000
NAME_CHARS_MAX = 200

# Nanosecond, text without its newline, and what tells it from another line of the same text and nanosecond.
Line = tuple[int, bytes, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Labels:
    """How a site names what the lines of its store are about; "" where it does not.

    `indexed`: the job's id is a label (Loki: of the stream; else structured metadata). `constant`: label values that
    hold for all lines of this source, and so distinguish none. `sequence` numbers lines of one nanosecond. `proof`:
    name and value of a label or field that every line must carry: what else the store has does not exist for us.
    """

    job: str = "job_id"
    node: str = ""
    rank: str = ""
    sequence: str = ""
    indexed: bool = True
    constant: frozenset[str] = frozenset()
    proof: tuple[str, str] | None = None

    @property
    def subject(self) -> str:
        """What lines are counted by: the job, or the node where they are of no job."""
        return self.job or self.node


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """Lines of some jobs with `start_ns` <= time < `end_ns`. `whole`: also those that the filter would leave out.
    Without jobs: all lines of the selector.

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
    """Lines of one stream of one job, by time. `name` tells the job's streams apart.

    A column each for nanosecond, text and mark: an object per line costs more than decoding what the server sent.
    """

    job: str
    name: str
    node: str | None
    times: list[int] = field(default_factory=list)
    texts: list[bytes] = field(default_factory=list)
    marks: list[int] = field(default_factory=list)

    @property
    def lines(self) -> list[Line]:
        return list(zip(self.times, self.texts, self.marks, strict=True))

    def add(self, times: Sequence[int], texts: Sequence[bytes], marks: Sequence[int]) -> None:
        self.times += times
        self.texts += texts
        self.marks += marks

    def chosen(self, places: Sequence[int]) -> "Stream":
        """Only the lines at these places, in this order."""
        return replace(
            self,
            times=[self.times[at] for at in places],
            texts=[self.texts[at] for at in places],
            marks=[self.marks[at] for at in places],
        )

    def between(self, first_ns: int, last_ns: int) -> "Stream":
        """Only lines with `first_ns` <= time < `last_ns`, of lines that are in order."""
        low, high = bisect_left(self.times, first_ns), bisect_left(self.times, last_ns)
        if high - low == len(self.times):
            return self
        return replace(self, times=self.times[low:high], texts=self.texts[low:high], marks=self.marks[low:high])

    def without_repeats(self) -> "Stream":
        """Each line only where it came first."""
        lines = self.lines
        first = dict(zip(reversed(lines), range(len(lines) - 1, -1, -1), strict=True))
        return self.chosen(sorted(first.values()))

    def in_order(self) -> "Stream":
        """By time; lines of one nanosecond as they came."""
        if self.times == sorted(self.times):
            return self
        return self.chosen(sorted(range(len(self.times)), key=self.times.__getitem__))


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Everything that the store has of the time before `until_ns`. `gaps`: what it has and did not give, in words."""

    streams: Sequence[Stream]
    until_ns: int
    gaps: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What a store says when doctor looks: how many streams and lines, of how many jobs, and how old the newest is.

    `of_job`, `of_node`: how many of `lines` carry the label. `page_lines`: how many it gives at once, where that is
    bounded. `notes`: what does not fit our configuration.
    """

    streams: int
    lines: int
    jobs: int
    nodes: int
    newest_ns: int | None
    of_job: int = 0
    of_node: int = 0
    page_lines: int | None = None
    notes: tuple[str, ...] = ()


class LogStore(Protocol):
    """Raises `connectors.web.server.AskError` for everything that a server can do wrong.

    `filters`: lines are left out of answers that are not `whole`.
    """

    filters: bool

    async def lines(self, ask: Ask) -> Answer: ...

    async def counts(self, jobs: Sequence[str], start_ns: int, end_ns: int) -> Mapping[str, int]:
        """How many lines each job has, whatever the filter; jobs without any are left out. Without jobs: by
        `Labels.subject`, whichever there are.
        """
        ...

    async def anything(self, start_ns: int, end_ns: int) -> bool:
        """Whether the store has any line of any job: where not, tenant or selector may be wrong."""
        ...

    async def look(self, start_ns: int, end_ns: int) -> Seen: ...

    async def close(self) -> None: ...


def proved(value: str, proof: tuple[str, str]) -> None:
    """A line without the proof was not asked for: nothing of such an answer counts. Raises `AskError`."""
    if value != proof[1]:
        text = f"the store answers lines whose {proof[0]} is not {proof[1]!r}: it does not keep to what it is asked"
        raise AskError(UnavailableReason.GARBLED, text)


def stream_name(labels: Mapping[str, str], chosen: Labels) -> str:
    """A name for people, the same whichever replica reads: what distinguishes a stream from the job's others."""
    left_out = chosen.constant | {chosen.job, chosen.sequence}
    name = " ".join(f"{key}={value}" for key, value in sorted(labels.items()) if key not in left_out)
    if len(name) > NAME_CHARS_MAX:
        return f"{name[:NAME_CHARS_MAX]}… {zlib.crc32(name.encode()):08x}"
    return name or "output"
