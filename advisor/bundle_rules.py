"""A job's own log rules over the logs of its bundle, on the clock that its lines show.

Live, a line's time is when it was read; here it is the one it carries, else that of the line before. Where no line has
one, only what does not need it is judged: faults, values, and the silence that the bundle itself tells of.
"""

import hashlib
import heapq
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import groupby
from operator import itemgetter
from pathlib import Path

from advisor.bundle import read_parts
from advisor.bundle_facts import JobFacts, OwnRules
from advisor.bundle_logs import READ_BYTES, opened_log
from advisor.bundle_parts import LogFile, Parts
from advisor.core import job_watch
from advisor.core.job_lines import Tail, settle, split
from advisor.core.job_rules import LINES_MAX, OWN, Batch, JobRuleEvaluator
from advisor.core.job_watch import Applied, Run, Watch
from advisor.core.lines import cap
from advisor.core.model import Snapshot, SourceReport
from advisor.core.scan import Scanner
from advisor.core.times import line_time
from advisor.core.words import Trust
from advisor.rules.job_rules import located, read_job_rules

FILE_BYTES_MAX = 64 << 20  # of one log: with a time for each line this takes a while
PROBLEMS_MAX = 20
_HEAD_BYTES = 256  # of a line, where its time stands
_PROBLEM_CHARS = 300
_ANY = datetime(2000, 1, 1, tzinfo=UTC)  # when a piece of a finished file was read does not matter


def read_judged(parts: Parts, scanner: Scanner, now: datetime, given: OwnRules | None = None) -> Snapshot:
    """Files of one attempt as a snapshot, with what the job's own log rules say: those given, else those it brings.

    Raises `BundleError`.
    """
    snapshot = read_parts(parts, scanner, now)
    rules = given or parts.facts.rules
    return snapshot if rules is None else _judged_by(snapshot, parts.facts, parts.logs, rules, now)


def _judged_by(
    snapshot: Snapshot, facts: JobFacts, logs: Sequence[LogFile], rules: OwnRules, now: datetime
) -> Snapshot:
    if rules.problem:
        report = SourceReport(source=job_watch.SOURCE, trust=Trust.LOG, problems=(f"{rules.where}: {rules.problem}",))
        return replace(snapshot, sources=(*snapshot.sources, report))
    read = read_job_rules(rules.data)
    problems = tuple(cap(line, _PROBLEM_CHARS) for line in located(read.problems[:PROBLEMS_MAX], rules.where))
    report = SourceReport(source=job_watch.SOURCE, trust=Trust.LOG, problems=problems)
    if not read.rules:
        return replace(snapshot, sources=(*snapshot.sources, report))
    item = Applied(of=OWN, digest=hashlib.sha256(rules.data).hexdigest()[:32], evaluator=JobRuleEvaluator(read.rules))
    clock = _Clock.of(facts, logs, now)
    watch = Watch(runs={OWN: Run(digest=item.digest, state=item.evaluator.begin(clock.begin))})
    lines = 0
    end = clock.begin
    for at, batch in clock.batches(logs):
        end = max(end, at)
        lines += len(batch.lines)
        watch = job_watch.fold(watch, item, batch, end)
    silence = timedelta(seconds=facts.silent_seconds or 0.0)
    until = facts.ended_at or end + silence
    found = job_watch.signals(watch, (item,), snapshot.job, snapshot.attempt, until, readable=True)
    return replace(
        snapshot,
        signals=(*snapshot.signals, *found),
        sources=(*snapshot.sources, replace(report, lines=lines)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Clock:
    """When the attempt began, as far as is told: what its rules count from. `near` settles a missing year."""

    begin: datetime
    near: datetime

    @classmethod
    def of(cls, facts: JobFacts, logs: Iterable[LogFile], now: datetime) -> "_Clock":
        near = facts.ended_at or now
        if facts.started_at is not None:
            return cls(begin=facts.started_at, near=near)
        first = [at for file in logs if (at := next(_times(file.path, near), None)) is not None]
        return cls(begin=min(first, default=now - timedelta(seconds=facts.silent_seconds or 0.0)), near=near)

    def batches(self, logs: Iterable[LogFile]) -> Iterator[tuple[datetime, Batch]]:
        """Lines of all files in the order of their times, those of one moment and file together."""
        merged = heapq.merge(*(_timed(file.label, file.path, self) for file in logs), key=itemgetter(0))
        for (at, name), group in groupby(merged, key=itemgetter(0, 1)):
            first, lines = 0, []
            for _, _, number, line in group:
                first = first or number
                lines.append(line)
                if len(lines) >= LINES_MAX:
                    yield at, Batch(lines=tuple(lines), file=name, first=first)
                    first, lines = 0, []
            if lines:
                yield at, Batch(lines=tuple(lines), file=name, first=first)


def _timed(name: str, path: Path, clock: _Clock) -> Iterator[tuple[datetime, str, int, bytes]]:
    """One file's lines with their numbers and times, which never run backwards."""
    at = clock.begin
    for number, line in _lines(path):
        told = line_time(line[:_HEAD_BYTES].decode("utf-8", "replace"), clock.near)
        if told is not None:
            at = max(at, told.at)
        yield at, name, number, line


def _times(path: Path, near: datetime) -> Iterator[datetime]:
    for _, line in _lines(path):
        told = line_time(line[:_HEAD_BYTES].decode("utf-8", "replace"), near)
        if told is not None:
            yield told.at


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Lines with their numbers from 1, as the rules are judged on them live."""
    tail, left, at = Tail(), FILE_BYTES_MAX, _ANY
    with opened_log(path) as file:
        while left > 0 and (data := file.read(min(READ_BYTES, left))):
            left -= len(data)
            tail, batch = split(tail, data, at)
            yield from enumerate(batch.lines, batch.first)
    _, batch = settle(tail, at, final=True)
    yield from enumerate(batch.lines, batch.first)
