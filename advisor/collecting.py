"""An incident bundle of a live or past job, from whoever still knows it.

Three may: Slurm (until it forgets the job), the running service (for ever: its stored snapshot has the evidence), and
the files themselves (until the next attempt truncates them). Each is asked, and what one could not give is said in
`collected.json` and to the caller. A file that cannot hold this attempt's lines any more is not taken: the evidence
that the service stored with its decision stands in for it, one line per signal.

Errors: `CollectError`: one line, when nothing is known of the job or the bundle cannot be written.
"""

import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from advisor.bundle import job_facts, write_bundle
from advisor.bundle_facts import BundleError, open_regular
from advisor.core.amounts import many
from advisor.core.hostlist import fold
from advisor.core.model import Attempt, PastAttempt, Snapshot, Unavailable
from advisor.core.words import AttemptState, Trust, UnavailableReason
from advisor.ports import Clock, LogRequest, LogSource, SchedulerJob, SchedulerReader
from advisor.redaction import Redactor

SCHEMA = "advisor.bundle/1"
SOURCE_BYTES_MAX = 256 * 1024 * 1024  # of one bundle, logs and kernel logs each
PAGE_BYTES = 8 * 1024 * 1024
_WAITING = frozenset({AttemptState.PENDING, AttemptState.REQUEUE_HELD})


class CollectError(Exception):
    """No bundle; the text is one line that says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """`attempt`: None is the newest one that has begun. `extra_logs`: files to take besides those Slurm names."""

    job_id: str
    attempt: int | None = None
    redact: bool = False
    extra_logs: tuple[Path, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Gathered:
    """A written bundle. `notes`: what could not be had, one line each."""

    folder: Path
    attempt: int
    notes: tuple[str, ...] = ()


@dataclass(slots=True, kw_only=True)
class _Parts:
    """What has been found so far."""

    snapshot: Snapshot
    name: str = ""
    live: SchedulerJob | None = None
    logs: dict[str, bytes] = field(default_factory=dict)
    kernel: dict[str, bytes] = field(default_factory=dict)
    sources: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    written_at: datetime | None = None  # when a file of the job was last written


async def gather_bundle(
    wanted: Wanted,
    folder: Path,
    *,
    stored: Sequence[Snapshot] | str,
    scheduler: SchedulerReader | None,
    outputs: LogSource,
    kernels: Sequence[LogSource],
    clock: Clock,
) -> Gathered:
    """Collect and write. `stored`: the service's snapshots of this job, newest first, or why there are none."""
    live = await _ask(scheduler, wanted.job_id)
    parts = _choose(wanted, stored, live)
    if parts.live is not None:
        await _outputs(parts, outputs, parts.live)
    for path in wanted.extra_logs:
        parts.logs[_plain(path.name, parts.logs)] = _read_file(path)
    for source in kernels:
        await _kernel(parts, source)
    _stand_in(parts)
    _note_lacks(parts, stored, live, kernels)
    _write(parts, folder, redact=wanted.redact, clock=clock)
    return Gathered(folder=folder, attempt=parts.snapshot.attempt.number, notes=tuple(parts.notes))


def _note_lacks(
    parts: _Parts, stored: Sequence[Snapshot] | str, live: SchedulerJob | str, kernels: Sequence[LogSource]
) -> None:
    """What no source complained about, because it was not there to be asked."""
    if isinstance(stored, str):
        parts.notes.append(f"service: {stored}")
    if isinstance(live, str):
        parts.notes.append(f"scheduler: {live}")
    if not kernels and not parts.kernel:
        parts.notes.append("kernel: no kernel log is configured: node faults rest on the job's own logs")
    if not parts.logs:
        parts.notes.append("logs: none could be had: add them with --log")


async def _ask(scheduler: SchedulerReader | None, job_id: str) -> SchedulerJob | str:
    if scheduler is None:
        return "not asked"
    answer = await scheduler.job(job_id)
    if answer is None:
        return "the scheduler knows no such job (any more)"
    return f"{answer.reason}: {answer.detail}" if isinstance(answer, Unavailable) else answer


def _choose(wanted: Wanted, stored: Sequence[Snapshot] | str, live: SchedulerJob | str) -> _Parts:
    """Which attempt, and the fullest account of it. The service's snapshot goes before Slurm's present view."""
    snapshots = () if isinstance(stored, str) else stored
    found = many(len(snapshots), "decision") if snapshots else "no decision on this job"
    service = stored if isinstance(stored, str) else found
    sources = {"service": service, "scheduler": live if isinstance(live, str) else "answered"}
    now = None if isinstance(live, str) else live
    if now is not None:
        snapshots = [snapshot for snapshot in snapshots if _same_job(snapshot, now)]
    number = wanted.attempt
    if number is None and now is not None:
        number = now.attempt.number - (now.attempt.state in _WAITING)
        if number < 0:
            raise CollectError(f"job {wanted.job_id} has not started yet: there is nothing to collect")
    elif number is None and snapshots:
        number = max(snapshot.attempt.number for snapshot in snapshots)
    snapshot = next((snapshot for snapshot in snapshots if snapshot.attempt.number == number), None)
    current = now is not None and now.attempt.number - (now.attempt.state in _WAITING) == number
    if snapshot is None and now is not None and current:
        past = snapshots[0].past if snapshots else ()
        snapshot = Snapshot(job=now.job, attempt=_begun(now.attempt), past=past, user_excluded=now.excluded_nodes)
    if snapshot is None:
        which = f"attempt {number} of job {wanted.job_id}" if number is not None else f"job {wanted.job_id}"
        raise CollectError(f"nothing is known of {which}: scheduler: {sources['scheduler']}; service: {service}")
    if now is not None and current and now.attempt.state.ended:  # what was decided early may have been incomplete
        seen = now.attempt
        snapshot = replace(snapshot, attempt=replace(snapshot.attempt, state=seen.state, exit=seen.exit))
    return _Parts(snapshot=snapshot, live=now if current else None, name=now.name if now else "", sources=sources)


def _same_job(snapshot: Snapshot, now: SchedulerJob) -> bool:
    """Ids are reused. An earlier attempt has a lower number and an earlier submit time; the same one has the same."""
    mine, shown = snapshot.attempt, now.attempt
    if snapshot.job.user != now.job.user or mine.number > shown.number:
        return False
    if mine.submitted_at is None or shown.submitted_at is None:
        return True
    same = mine.number == shown.number or shown.state is AttemptState.COMPLETING
    return mine.submitted_at == shown.submitted_at if same else mine.submitted_at < shown.submitted_at


def _begun(attempt: Attempt) -> Attempt:
    """The attempt whose output lies there: of a job that waits again, the one before, of which little is known."""
    if attempt.state not in _WAITING:
        return attempt
    return Attempt(number=attempt.number - 1, state=AttemptState.OTHER, ended_at=attempt.submitted_at)


async def _read(parts: _Parts, source: LogSource, paths: Sequence[str] = ()) -> dict[tuple[str, str], bytearray]:
    """All pages of one source by file and node, up to a bound that is said when it bites."""
    attempt, job = parts.snapshot.attempt, parts.snapshot.job
    found: dict[tuple[str, str], bytearray] = {}
    cursor, left = "", SOURCE_BYTES_MAX
    while left > 0:
        request = LogRequest(
            key=f"{job.job_id}/{attempt.number}",
            job_id=job.job_id,
            attempt=attempt.number,
            user=job.user,
            paths=tuple(paths),
            nodes=attempt.nodes or (),
            started_at=attempt.started_at,
            ended_at=attempt.ended_at,
            cursor=cursor,
            bytes_max=min(PAGE_BYTES, left),
        )
        answer = (await source.read([request]))[request.key]
        if isinstance(answer, Unavailable):
            _note(parts, source.name, (answer,))
            return found
        for chunk in answer.chunks:
            content = found.setdefault((chunk.file, chunk.node or ""), bytearray())
            if chunk.fresh:
                content.clear()
            content += chunk.data
            left -= len(chunk.data)
            if chunk.modified_at is not None and (parts.written_at is None or chunk.modified_at > parts.written_at):
                parts.written_at = chunk.modified_at
        if not answer.more or answer.cursor == cursor:
            _note(parts, source.name, answer.unavailable)
            return found
        cursor = answer.cursor
    limit = f"only the first {SOURCE_BYTES_MAX >> 20} MiB were taken"
    _note(parts, source.name, (Unavailable(source=source.name, reason=UnavailableReason.LIMIT, detail=limit),))
    return found


def _note(parts: _Parts, source: str, problems: Sequence[Unavailable]) -> None:
    parts.notes += [f"{source}: {problem.reason}: {problem.detail}" for problem in problems]
    parts.sources[source] = problems[0].reason.value if problems else "read"


async def _outputs(parts: _Parts, source: LogSource, live: SchedulerJob) -> None:
    """What the attempt wrote; the source knows which bytes of a file that attempts share are this one's."""
    names = {live.stdout_path: "stdout.log"} if live.stdout_path else {}
    if live.stderr_path:
        names.setdefault(live.stderr_path, "stderr.log")
    if not names:
        parts.notes.append(f"{source.name}: the scheduler does not say where the job writes")
        return
    for (path, _), content in (await _read(parts, source, tuple(names))).items():
        if content:
            parts.logs[_plain(names.get(path, Path(path).name), parts.logs)] = bytes(content)


async def _kernel(parts: _Parts, source: LogSource) -> None:
    """Kernel logs of the allocation, one file per node, named after it."""
    nodes = parts.snapshot.attempt.nodes or ()
    if not nodes:
        parts.notes.append(f"{source.name}: the allocation is not known")
        return
    for (_, node), content in (await _read(parts, source)).items():
        if node in nodes and content:
            name = f"{node}.log"
            parts.kernel[name] = parts.kernel.get(name, b"") + bytes(content)


def _plain(name: str, taken: Mapping[str, bytes]) -> str:
    """A file name that any system takes, rank or node in it kept; numbered when it is taken."""
    plain = re.sub(r"[^A-Za-z0-9_.-]", "_", name).lstrip(".-")[:150] or "log"
    return next(n for n in (plain, *(f"{k}-{plain}" for k in range(2, 10_000))) if n not in taken)


def _read_file(path: Path) -> bytes:
    try:
        with os.fdopen(open_regular(path), "rb") as file:
            return file.read(SOURCE_BYTES_MAX)
    except (BundleError, OSError) as error:
        raise CollectError(str(error)) from error


def _stand_in(parts: _Parts) -> None:
    """Where the lines themselves are gone, those that were kept as evidence."""
    signals = sorted(parts.snapshot.signals, key=lambda signal: (signal.source, signal.file, signal.order))
    if not parts.logs:
        lines = [signal.text for signal in signals if signal.trust is Trust.LOG and signal.text]
        if lines:
            parts.logs["evidence.log"] = _lines(lines)
            parts.notes.append("logs: gone; the lines stored as evidence stand in for them")
    if not parts.kernel:
        for signal in signals:
            if signal.trust is Trust.KERNEL and signal.text and signal.nodes:
                name = f"{signal.nodes[0]}.log"
                parts.kernel[name] = parts.kernel.get(name, b"") + _lines([signal.text])


def _lines(lines: Iterable[str]) -> bytes:
    return "".join(f"{line}\n" for line in lines).encode("utf-8", "surrogateescape")


def _write(parts: _Parts, folder: Path, *, redact: bool, clock: Clock) -> None:
    snapshot, facts = parts.snapshot, job_facts(parts.snapshot)
    job = snapshot.job
    texts = {"cluster": job.cluster, "partition": job.partition, "account": job.account, "name": parts.name}
    facts |= {key: text for key, text in texts.items() if text}
    if job.nodes_requested:
        facts["nodes_requested"] = job.nodes_requested
    if snapshot.attempt.state.live and parts.written_at is not None:
        facts["silent_seconds"] = max(0.0, round((clock.now() - parts.written_at).total_seconds(), 1))
    logs, kernel, past = parts.logs, parts.kernel, [_past(attempt) for attempt in snapshot.past]
    if redact:
        hide = _redactor(parts)
        facts = _redacted_facts(facts, snapshot, hide)
        logs = {name if name in _OWN_NAMES else hide.file_name(name): hide.data(data) for name, data in logs.items()}
        kernel = {f"{hide.host(name.removesuffix('.log'))}.log": hide.data(data) for name, data in kernel.items()}
        past = [_redacted_past(attempt, hide) for attempt in past]
    collected = {
        "schema": SCHEMA,
        "at": clock.now().isoformat(),
        "redacted": redact,
        "sources": parts.sources if not redact else {name: hide.text(text) for name, text in parts.sources.items()},
        "notes": parts.notes if not redact else [hide.text(note) for note in parts.notes],
    }
    try:
        write_bundle(folder, job=facts, logs=logs, kernel=kernel)
        if past:
            (folder / "attempts.jsonl").write_text("".join(json.dumps(item) + "\n" for item in past), "utf-8")
        (folder / "collected.json").write_text(json.dumps(collected, indent=1) + "\n", "utf-8")
    except (BundleError, OSError) as error:
        raise CollectError(str(error)) from error


def _past(attempt: PastAttempt) -> dict[str, Any]:
    """One line of attempts.jsonl, as `advisor.bundle_facts.read_past` reads it."""
    return {
        "number": attempt.number,
        "category": attempt.category,
        "fingerprint": attempt.fingerprint,
        "reason": attempt.reason,
        "action": attempt.action,
        "implicated_nodes": list(attempt.implicated_nodes),
        "excluded_nodes": list(attempt.excluded_nodes),
        "trusted": attempt.trusted,
        "nodes": list(attempt.nodes),
        "first_step": attempt.first_step,
        "last_step": attempt.last_step,
        "checkpoint_step": attempt.checkpoint_step,
        "started_at": attempt.started_at.isoformat() if attempt.started_at else None,
        "ended_at": attempt.ended_at.isoformat() if attempt.ended_at else None,
    }


# Redaction

_OWN_NAMES = frozenset({"stdout.log", "stderr.log", "evidence.log"})
_WORD_CHARACTERS_MIN = 4
# Job names that are words of every log: replacing them would take the log apart and hide nothing.
_COMMON = frozenset(
    {"bash", "eval", "finetune", "main", "model", "pretrain", "python", "sbatch", "test", "train", "training"}
)


def _redactor(parts: _Parts) -> Redactor:
    snapshot = parts.snapshot
    hosts = [
        *(snapshot.attempt.nodes or ()),
        *(node for signal in snapshot.signals for node in (*signal.nodes, *signal.peers)),
        *(node for attempt in snapshot.past for node in (*attempt.nodes, *attempt.excluded_nodes)),
    ]
    words = (parts.name, snapshot.job.account, snapshot.job.cluster)
    telling = [word for word in words if len(word) >= _WORD_CHARACTERS_MIN and word.lower() not in _COMMON]
    return Redactor(hosts=dict.fromkeys(hosts), users=(snapshot.job.user,), words=telling)


def _redacted_facts(facts: Mapping[str, Any], snapshot: Snapshot, hide: Redactor) -> dict[str, Any]:
    known = dict(facts)
    for key in ("cluster", "account", "name"):
        if key in known:
            known[key] = hide.word(known[key])
    known["user"] = hide.user(snapshot.job.user)
    if snapshot.attempt.nodes is not None:
        known["nodes"] = fold(hide.host(node) for node in snapshot.attempt.nodes)
    if "rank_to_node" in known:
        known["rank_to_node"] = {rank: hide.host(node) for rank, node in known["rank_to_node"].items()}
    return known


def _redacted_past(attempt: Mapping[str, Any], hide: Redactor) -> dict[str, Any]:
    hosts = {key: [hide.host(node) for node in attempt[key]] for key in ("implicated_nodes", "excluded_nodes", "nodes")}
    return {**attempt, **hosts, "fingerprint": hide.text(attempt["fingerprint"])}
