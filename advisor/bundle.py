"""Incident bundles: a folder with a job's logs and facts, read into a snapshot and written from one.

    logs/*            text; names may carry rank or node: rank12.log, node03.out
    job.json          what the scheduler knew (optional)
    kernel/*          one kernel log per node, named after it: trusted, since root collected it (optional)
    attempts.jsonl    earlier attempts with their fingerprints and progress (optional)
    metrics.json, flight_recorder/   (optional)

A bare log file is a bundle without facts, and must hold text; logs that are gzip are unpacked. A bundle may come from
anywhere: regular files only (a FIFO or a device is never opened), everything bounded, and each problem is one line that
names the place.

Errors:
    BundleError(ValueError)   one line: place, then what is wrong
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from advisor.bundle_evidence import is_error_file, read_error_file, recorder_evidence, telemetry_evidence
from advisor.bundle_facts import STATES, BundleError, JobFacts, reason_of
from advisor.bundle_logs import READ_BYTES, opened_log
from advisor.bundle_parts import LogFile, Parts, node_of_file, parts_of, rank_of_name
from advisor.bundle_times import NAME_BYTES, Reach, begin_of, names_asked, other_host, reach_of
from advisor.core import excerpt
from advisor.core.chatter import Voice, quiet_seconds
from advisor.core.collectives import believed_world, worlds_told
from advisor.core.detection import CANCELLED
from advisor.core.doubts import doubt
from advisor.core.gpu_indices import with_indices
from advisor.core.hostlist import fold
from advisor.core.model import (
    Attempt,
    Job,
    Progress,
    Signal,
    Snapshot,
    SourceReport,
    Successor,
    Unavailable,
)
from advisor.core.paced import PACED_BYTES, paced, reads_of, voice_of
from advisor.core.progress import combine
from advisor.core.scan import FileContext, FileState, Scanned, Scanner, fold_signals
from advisor.core.words import AttemptState, Role, Trust, UnavailableReason
from advisor.core.wrapping import unwrap

__all__ = ["BundleError", "job_facts", "read_bundle", "read_parts", "write_bundle"]

SIGNALS_MAX = 500
EXCERPTS_MAX = 16  # logs whose steps are timed one by one
HANG_SECONDS = 600.0  # silence beyond this in a bundle without a state: it was taken from a job that still ran
PROBLEMS_MAX = 20
NAMES_MAX = 8


def read_bundle(path: Path, scanner: Scanner, now: datetime) -> Snapshot:
    """One bundle folder or log file as a snapshot (`offline`). Raises `BundleError`."""
    return read_parts(parts_of(path), scanner, now)


def read_parts(parts: Parts, scanner: Scanner, now: datetime) -> Snapshot:
    """Any files of one attempt as a snapshot (`offline`). Raises `BundleError`."""
    facts = parts.facts
    if not facts.rank_nodes and parts.logs:
        facts.rank_nodes = _labelled_hosts(parts.logs[0].path, facts.nodes)
    reading = _Reading(facts=facts, scanner=scanner, now=now, asked=names_asked(parts.kernel))
    sources = [
        reading.source("logs", Trust.LOG, parts.logs),
        reading.source("kernel", Trust.KERNEL, parts.kernel, _reaches(parts, now)),
    ]
    if parts.dumps:
        found, report = recorder_evidence(parts.dumps, facts.world_size, scanner, now)
        sources.append(report)
        reading.signals = (*reading.signals, *found)
    telemetry = telemetry_evidence(parts.metrics, facts, scanner, now) if parts.metrics is not None else None
    if telemetry is not None:
        sources.append(telemetry[1])
        reading.signals = (*reading.signals, *telemetry[0])
    progress = combine({name: held.progress for name, held in reading.files.items()})
    progress = replace(progress, quiet_seconds=reading.quiet_seconds())
    reading.signals = with_indices(reading.signals, (held.gpus for held in reading.files.values()))
    state, signals = facts.state, reading.signals
    if state is None:
        state, signals = _likely_state(facts, signals, progress, scanner)
    return Snapshot(
        job=Job(
            key=facts.job_id or parts.name,
            cluster=facts.cluster,
            job_id=facts.job_id,
            user=facts.user,
            nodes_requested=len(facts.nodes) if facts.nodes else None,
        ),
        attempt=Attempt(
            number=facts.restarts,
            state=state,
            nodes=facts.nodes,
            exit=facts.exit,
            started_at=facts.started_at,
            ended_at=facts.ended_at,
            world_size=facts.world_size or believed_world(frozenset(reading.worlds), reading.signals),
            tasks_per_node=facts.tasks_per_node,
            rank_nodes=facts.rank_nodes,
            silent_seconds=facts.silent_seconds,
        ),
        signals=signals,
        progress=progress,
        sources=tuple(sources),
        # What has run and waits again was requeued: the queue holds its next attempt.
        successor=Successor(number=facts.restarts + 1, state=AttemptState.PENDING, by_us=False)
        if facts.state is AttemptState.PENDING and parts.logs
        else None,
        past=parts.past,
        offline=True,
    )


def _reaches(parts: Parts, now: datetime) -> Mapping[str, Reach]:
    """By the label of each kernel log."""
    begin = begin_of(parts.logs, now) if parts.kernel and parts.facts.started_at is None else None
    beside = bool(parts.logs)
    return {file.label: reach_of(file, parts.facts, begin, now, beside=beside) for file in parts.kernel}


@dataclass(slots=True, kw_only=True)
class _Reading:
    """Scans a bundle's files one after the other."""

    facts: JobFacts
    scanner: Scanner
    now: datetime
    files: dict[str, FileState] = field(default_factory=dict)
    signals: tuple[Signal, ...] = ()
    excerpts: int = 0
    voices: list[Voice | None] = field(default_factory=list)  # of each log, where its end matters
    asked: re.Pattern[bytes] | None = None  # names of nodes that the job's logs may tell
    named: set[str] = field(default_factory=set)  # those that they do
    worlds: set[int] = field(default_factory=set)  # how many ranks there are, by the heads of the job's logs
    unended: set[str] = field(default_factory=set)  # files whose last line has no line end: it counts all the same

    def quiet_seconds(self) -> float:
        """How long the logs had nothing but chatter at their end. A log without times could hold anything."""
        known = [voice for voice in self.voices if voice is not None]
        return quiet_seconds(known) if len(known) == len(self.voices) else 0.0

    def source(
        self, name: str, trust: Trust, files: Sequence[LogFile], reaches: Mapping[str, Reach] | None = None
    ) -> SourceReport:
        """Read all files of one source. A folder that was not collected is unavailable, not empty."""
        newest: datetime | None = None
        labels = [item.label for item in files]
        problems: list[str] = []
        for item in files:
            reach = (reaches or {}).get(item.label, Reach(since=self.facts.started_at))
            if item.node:
                reach = self._whose(item, reach, problems)
            if reach.cut and reach.since is not None:
                problems.append(f"of {item.label} nothing from before {reach.since:%Y-%m-%d %H:%M:%S} UTC counts")
            seen = self._reached(item, name, trust, reach, problems)
            newest = max((at for at in (newest, seen) if at is not None), default=None)
        held = [self.files[label] for label in labels]
        return SourceReport(
            source=name,
            trust=trust,
            unavailable=None if files else Unavailable(source=name, reason=UnavailableReason.MISSING),
            newest_at=newest,
            lines=sum(state.line for state in held) + len(self.unended.intersection(labels)),
            foreign=sum(state.foreign for state in held),
            capped=any(state.dropped for state in held),
            problems=tuple(problems[:PROBLEMS_MAX]),
        )

    def _whose(self, file: LogFile, reach: Reach, problems: list[str]) -> Reach:
        """What speaks against the node that a kernel log was said to be of. Slurm may call a node otherwise than it
        calls itself; then the job's log calls it as Slurm does.
        """
        host = other_host(file)
        if host:
            said = f"the lines of {file.label} name {host}, not {file.node}"
            problems.append(said)
            sound = not reach.by_hand or (file.node in self.named and host not in self.named)
            return replace(reach, remark=said) if sound else replace(reach, doubt=said)
        others = sorted({node for s in self.signals if s.trust is Trust.LOG for node in s.nodes} - {file.node})
        if others and file.node not in self.named and self.facts.nodes is None:
            shown = ", ".join(others[:NAMES_MAX]) + (" …" if len(others) > NAMES_MAX else "")
            said = f"the job's log names {shown}, and never {file.node}"
            problems.append(said)
            return replace(reach, remark=said)
        return reach

    def _reached(self, file: LogFile, source: str, trust: Trust, reach: Reach, problems: list[str]) -> datetime | None:
        """Scan what is surely of the job's time; where that says nothing, what may be, with the doubt."""
        before = self.signals
        seen = self._file(file, source, trust, reach if reach.sure is None else replace(reach, since=reach.sure))
        if reach.sure is not None and reach.since != reach.sure and self.signals == before:
            seen = self._file(file, source, trust, reach)
        if trust is Trust.KERNEL:
            self.signals = tuple(reach.placed(s) if s.file == file.label else s for s in self.signals)
            doubts = dict.fromkeys(doubt(s) for s in self.signals if s.file == file.label and s.source == source)
            problems += [f"{file.label}: {why}" for why in doubts if why and why not in problems]
        return seen

    def _file(self, file: LogFile, source: str, trust: Trust, reach: Reach) -> datetime | None:
        """Scan one file; its newest time, where its lines have any."""
        facts, item = self.facts, file.path
        context = FileContext(
            source=source,
            trust=trust,
            file=file.label,
            node=node_of_file(file, facts.nodes, trust),
            rank=rank_of_name(item) if trust is Trust.LOG else None,
            nodes=facts.nodes,
            started_at=reach.since,
            tasks_per_node=facts.tasks_per_node,
            world_size=facts.world_size,
            rank_nodes=facts.rank_nodes,
            live=False,
        )
        state = FileState(zone_seconds=reach.zone_seconds)
        newest: datetime | None = None
        begin = head = tail = b""
        error = read_error_file(item) if trust is Trust.LOG and is_error_file(item.name) else None
        if error is not None:
            self.files[context.file] = self._scan(context, state, error.text, final=True, at=error.at).state
            if error.text and not error.text.endswith(b"\n"):
                self.unended.add(context.file)
            return error.at
        with opened_log(item) as text:
            final = False
            while not final:
                data = text.read(READ_BYTES)
                final = not data
                head = data if state.offset == 0 else head if final else b""
                begin = begin or data
                if self.asked is not None and trust is Trust.LOG:
                    self.named.update(name.decode() for name in self.asked.findall(tail[-NAME_BYTES:] + data))
                tail = (tail + data)[-PACED_BYTES:]
                scanned = self._scan(context, state, data, final=final)
                state = scanned.state
                newest = scanned.newest_at or newest
        if trust is Trust.LOG and state.progress.last_step is not None and self.excerpts < EXCERPTS_MAX:
            self.excerpts += 1
            reads = reads_of(tail, self.now) or [(self.now, tail.split(b"\n"))]
            steps = excerpt.throughput(reads, state.progress.form)
            if steps.sustained:
                scan = state.progress.throughput
                steps = replace(steps, ranks=scan.ranks, reports=scan.reports, wait_share=scan.wait_share)
                state = replace(state, progress=replace(state.progress, throughput=steps))
        if trust is Trust.LOG and facts.silent_seconds is not None:
            # How long a silence is too long, only the times of its lines tell: all of them are read now.
            reads = reads_of(tail, self.now)
            self.voices.append(voice_of(reads))
            as_written = paced(self.scanner, context, reads)
            if as_written is not None and as_written.last_step == state.progress.last_step:
                known = replace(
                    state.progress,
                    pace=as_written.pace,
                    last_at=as_written.last_at,
                    last_line_at=as_written.last_line_at,
                )
                state = replace(state, progress=known)
        self.files[context.file] = state
        if tail and not tail.endswith(b"\n"):
            self.unended.add(context.file)
        if begin and trust is Trust.LOG:
            self.worlds |= worlds_told(begin)
        if head and trust is Trust.LOG:
            self._wrapped(context, head)
        return newest if newest != self.now else None

    def _scan(
        self, context: FileContext, state: FileState, data: bytes, *, final: bool, at: datetime | None = None
    ) -> Scanned:
        """`at`: when all of it was written, where the lines themselves do not say."""
        scanned = self.scanner.scan(context, state, data, fresh=False, final=final, seen_at=self.now)
        if at is not None:
            scanned = replace(scanned, signals=tuple(replace(s, at=s.at or at) for s in scanned.signals))
        if scanned.signals or scanned.repeats:
            self.signals = fold_signals(self.signals, scanned, SIGNALS_MAX)
        return scanned

    def _wrapped(self, context: FileContext, data: bytes) -> None:
        """What only shows when hard-wrapped lines are joined again. For files that one read holds."""
        unwrapped = unwrap(data.replace(b"\r\n", b"\n"))
        if unwrapped is None:
            return
        text, numbers = unwrapped
        scanned = self.scanner.scan(context, FileState(), text, fresh=True, final=True, seen_at=self.now)
        known = {signal.rule for signal in self.signals if signal.file == context.file}
        more = [
            replace(signal, line=numbers[signal.line - 1], order=numbers[signal.line - 1])
            for signal in scanned.signals
            if signal.rule not in known
        ]
        self.signals = (*self.signals, *more)[:SIGNALS_MAX]


def _likely_state(
    facts: JobFacts, signals: tuple[Signal, ...], progress: Progress, scanner: Scanner
) -> tuple[AttemptState, tuple[Signal, ...]]:
    """The state of a job whose bundle does not give it: by exit code, then long silence, then what was printed. With
    its signals, in which a cancel that is concluded from them is the cause.
    """
    if facts.exit is not None:
        clean = (facts.exit.code, facts.exit.signal) == (0, 0)
        return AttemptState.COMPLETED if clean else AttemptState.FAILED, signals
    if facts.silent_seconds is not None and facts.silent_seconds + progress.quiet_seconds >= HANG_SECONDS:
        return AttemptState.RUNNING, signals
    if progress.finished:
        return AttemptState.COMPLETED, signals
    telling = [
        signal
        for signal in signals
        if signal.role in {Role.INITIATING, Role.SYMPTOM, Role.CASCADE, Role.TEARDOWN}
        and signal.line > progress.cleared_lines.get(signal.file, 0)  # not what steps came after
        and not doubt(signal)
    ]
    cancel, rule = _cancel(telling), scanner.by_id.get(CANCELLED)
    if cancel is not None and rule is not None:
        cause = replace(cancel, rule=rule.id, role=rule.role, category=rule.category)
        return AttemptState.CANCELLED, tuple(cause if signal is cancel else signal for signal in signals)
    return AttemptState.FAILED if telling else AttemptState.OTHER, signals


def _cancel(telling: Sequence[Signal]) -> Signal | None:
    """Slurm's banner of a cancelled job, where it gives no reason and nothing had failed before it: a scancel. A step
    is cancelled for its own failure too.
    """
    banner = next((s for s in telling if s.rule == "slurm.cancelled" and "*** JOB " in s.text), None)
    if banner is None:
        return None
    before = (s for s in telling if s.role is not Role.TEARDOWN)
    failed = any(s.role is Role.INITIATING or s.file != banner.file or s.line < banner.line for s in before)
    return None if failed else banner


def _labelled_hosts(path: Path, nodes: tuple[str, ...] | None) -> dict[int, str]:
    """`2: worker-1` lines, as `srun --label hostname` prints them: which task runs where."""
    with opened_log(path) as file:
        head = file.read(READ_BYTES)
    found: dict[int, str] = {}
    for match in re.finditer(rb"(?m)^ *(\d{1,7}) ?: ([A-Za-z][A-Za-z0-9-]{0,62}\d)(?:\.[\w.-]+)?\s*$", head):
        node = match[2].decode("ascii")
        if nodes is None or node in nodes:
            found.setdefault(int(match[1]), node)
    return found


def write_bundle(
    folder: Path, *, job: Mapping[str, Any], logs: Mapping[str, bytes], kernel: Mapping[str, bytes] | None = None
) -> None:
    """Write a bundle folder, which must not exist yet. `logs` and `kernel`: contents by plain file name.

    Raises `BundleError` for a name that is not plain and for what the file system refuses.
    """
    parts = {"logs": logs, "kernel": kernel or {}}
    for part, contents in parts.items():
        for name in contents:
            if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,200}", name):
                raise BundleError(f"{folder}: {part}/{name!r}: not a plain file name")
    try:
        folder.mkdir(parents=True)
        (folder / "job.json").write_text(json.dumps(dict(job), indent=1, ensure_ascii=True) + "\n", "utf-8")
        for part, contents in parts.items():
            if contents:
                (folder / part).mkdir()
            for name, data in contents.items():
                (folder / part / name).write_bytes(data)
    except OSError as error:
        raise BundleError(f"{folder}: {reason_of(error)}") from error


def job_facts(snapshot: Snapshot) -> dict[str, Any]:
    """A snapshot's job.json: what `read_bundle` needs to see the same attempt."""
    attempt, job = snapshot.attempt, snapshot.job
    names = {state: word for word, state in reversed(list(STATES.items()))}
    facts: dict[str, Any] = {"job_id": job.job_id, "user": job.user, "restarts": attempt.number}
    if attempt.state in names:
        facts["state"] = names[attempt.state]
    if attempt.exit is not None:
        facts["exit_code"] = f"{attempt.exit.code}:{attempt.exit.signal}"
    if attempt.nodes is not None:
        facts["nodes"] = fold(attempt.nodes)
    sizes = {"world_size": attempt.world_size, "tasks_per_node": attempt.tasks_per_node}
    facts |= {key: value for key, value in sizes.items() if value is not None}
    if attempt.rank_nodes:
        facts["rank_to_node"] = {str(rank): node for rank, node in sorted(attempt.rank_nodes.items())}
    for key, at in (("start", attempt.started_at), ("end", attempt.ended_at)):
        if at is not None:
            facts[key] = at.isoformat()
    if snapshot.progress.last_line_at is not None and attempt.ended_at is None:
        silence = attempt.silent_seconds
        if silence is not None:
            facts["silent_seconds"] = silence
    return facts
