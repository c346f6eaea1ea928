"""What the pipeline needs from the outside world, as Protocols. Connectors implement them; tests pass in fakes.

Errors: a connector raises nothing for what a source can do wrong; it returns `Unavailable` with a reason. It raises
only for programmer errors and cancellation.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol, runtime_checkable

from advisor.core.columns import Sample
from advisor.core.model import Attempt, Job, NodeFact, Unavailable
from advisor.core.words import Trust


class Clock(Protocol):
    """Wall time for records, monotonic time for durations."""

    def now(self) -> datetime:
        """Aware UTC."""
        ...

    def monotonic(self) -> float:
        """Seconds, never running backwards."""
        ...

    async def sleep(self, seconds: float) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LogRequest:
    """One attempt's wish: everything new since `cursor`. `paths` are chosen by the job's user: open them as such.

    `cursor` is what the last batch returned, "" at the attempt's beginning; opaque, small, JSON text.
    """

    key: str  # "job_key/attempt"
    job_id: str
    attempt: int
    user: str
    paths: tuple[str, ...]
    nodes: tuple[str, ...]
    started_at: datetime | None
    ended_at: datetime | None
    cursor: str
    bytes_max: int
    user_id: int | None = None  # the user's uid as the scheduler tells it; None = looked up by name on this host
    # The cursor with which reading the attempt before this one ended, "" when there was none. The next attempt writes
    # into the same file, truncating it or (`--open-mode=append`) after the last one's end: only this tells which.
    predecessor: str = ""
    whole: bool = False  # every line is wanted: sources that could leave out what no rule of ours speaks of must not


@dataclass(frozen=True, slots=True, kw_only=True)
class LogChunk:
    """Bytes of one file or stream, from `offset` on; lines may be cut at both ends.

    `fresh`: the file was truncated or replaced before these bytes: parser state from before does not apply.
    `node`: set when the transport (not the text) says which node wrote it.
    `backlog`: these bytes were there before our first look, and no truncation or cursor says since when. Only lines
    that carry their own wall time within the attempt count; lines without one do not.
    `skipped`: lines before these bytes that the source left out, since no rule speaks of them (`LogRequest.whole`).
    """

    file: str
    offset: int
    data: bytes
    fresh: bool = False
    node: str | None = None
    modified_at: datetime | None = None
    backlog: bool = False
    skipped: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LogBatch:
    chunks: tuple[LogChunk, ...]
    cursor: str
    more: bool = False  # bytes_max bit: ask again
    unavailable: tuple[Unavailable, ...] = ()  # parts that could not be read while others could
    final: bool = False  # the attempt has ended and all of its bytes were delivered: nothing more will come


class LogSource(Protocol):
    """Application or kernel logs. `trust` follows the transport, as configured."""

    name: str
    trust: Trust

    async def read(self, requests: Sequence[LogRequest]) -> Mapping[str, LogBatch | Unavailable]:
        """One answer per request key. Never blocks on a file, never follows into anything but regular files."""
        ...

    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsRequest:
    """One attempt's wish: the samples of its nodes (short names) from after `since` up to `until`."""

    key: str  # "job_key/attempt"
    nodes: tuple[str, ...]
    since: datetime
    until: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsBatch:
    """What a source has of an attempt's nodes, up to and including `until`; before the request's: ask again.
    It may be a little after it.

    `silent`: nodes of which the source had nothing at all at the end; `silent_why`: of some of them, why, in words.
    `problems`: what is wrong although it answered. `gpus`: GPUs' indices by `node/address` (bus and device, `3b:00`).
    """

    samples: tuple[Sample, ...]
    until: datetime
    silent: tuple[str, ...] = ()
    silent_why: Mapping[str, str] = field(default_factory=dict)
    problems: tuple[str, ...] = ()
    gpus: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsSeen:
    """What a metrics source has right now, for `doctor`. `interval_seconds`: between samples; None: not seen."""

    nodes: tuple[str, ...]
    gpus: int
    fields: frozenset[str]
    newest_at: datetime | None = None
    interval_seconds: float | None = None


class MetricsSource(Protocol):
    """Measurements that only root can feed. A value may be `blur_seconds` older than the time that it carries."""

    name: str
    trust: Trust
    interval_seconds: float
    blur_seconds: float

    async def read(self, requests: Sequence[MetricsRequest]) -> Mapping[str, MetricsBatch | Unavailable]:
        """One answer per request key. No node that is silent is told to be well."""
        ...

    async def look(self, nodes: Sequence[str]) -> MetricsSeen | Unavailable:
        """What there is now, for people. `nodes`: some that there are, where the source does not know any itself."""
        ...

    async def close(self) -> None: ...


@runtime_checkable
class Newsworthy(Protocol):
    """A source that can tell, unasked, that there may be something new. A hint: it may be wrong or missing."""

    def on_news(self, call: Callable[[], None]) -> None:
        """`call` is made in the event loop, at a rate that the source bounds."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RulesRequest:
    """A file of log rules that a job names. `path` is chosen by the job's user: open it as such."""

    key: str
    user: str
    path: str
    bytes_max: int
    user_id: int | None = None


class RulesReader(Protocol):
    """Files of job-defined log rules."""

    async def read(self, requests: Sequence[RulesRequest]) -> Mapping[str, bytes | Unavailable]:
        """One answer per request key: the whole content. Never blocks on a file, never opens but regular ones."""
        ...

    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class OpinionRequest:
    """Another program is asked what it thinks of one attempt that has failed. `path`: of its output; chosen by its
    user."""

    key: str  # "job_key/attempt"
    job_id: str
    attempt: int
    user: str
    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Opinion:
    """What it answered. `action`: what it would do, as it spells it. `texts`: what it says is wrong; hostile."""

    action: str
    texts: tuple[str, ...] = ()
    told_by: str = ""


class OpinionSource(Protocol):
    """Attribution by another program. `budget_seconds`: after that nobody waits for an answer any more."""

    name: str
    trust: Trust
    budget_seconds: float

    async def ask(self, request: OpinionRequest) -> Opinion | Unavailable:
        """Its final word, however long that takes: whoever asks bounds it by cancelling."""
        ...

    async def check(self) -> Unavailable | None:
        """Whether it is there, for people."""
        ...

    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerJob:
    """A job as the scheduler shows it now, for `bundle`, `analyze --job` and `doctor`."""

    job: Job
    attempt: Attempt
    name: str
    stdout_path: str
    stderr_path: str
    work_dir: str
    excluded_nodes: tuple[str, ...]


class SchedulerReader(Protocol):
    name: str

    async def version(self) -> str | Unavailable: ...

    async def job(self, job_id: str) -> SchedulerJob | Unavailable | None:
        """None: the scheduler answered that it knows no such job."""
        ...

    async def nodes(self) -> tuple[NodeFact, ...] | Unavailable: ...

    async def requeue_delay_seconds(self) -> float | Unavailable:
        """From a requeue to the earliest legal start (Slurm: cred_expire + 1)."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class NoticeItem:
    """One decision of a notice. `update`: 0 for an incident's first message, then counting. Texts may be hostile."""

    decision_id: str
    incident: str  # the same for all decisions about one attempt
    update: int
    cluster: str
    job_id: str
    attempt: int
    user: str
    partition: str
    category: str
    action: str
    reason: str
    mode: str
    nodes: tuple[str, ...]
    root_cause: str
    explanation: str
    decided_at: datetime
    link: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """One message. `key` stays the same however often it is tried: receivers that can, take each key once.

    `repeat`: an earlier try broke off, and nobody knows whether it arrived.
    """

    key: str
    items: tuple[NoticeItem, ...]
    repeat: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Undelivered:
    """Why a notice did not get out. `uncertain`: it may have arrived all the same. `wait_seconds`: its wish."""

    unavailable: Unavailable
    uncertain: bool = False
    wait_seconds: float = 0.0


class Notifier(Protocol):
    """A channel to people or their tools."""

    name: str

    async def send(self, notice: Notice) -> Undelivered | None:
        """None: the server took it. Bounded in time."""
        ...

    async def check(self) -> Unavailable | None:
        """Whether a notice would get out, without sending one."""
        ...

    async def close(self) -> None: ...
