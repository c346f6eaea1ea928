"""Job-defined rules over the life of one attempt: when their states begin, which bytes they see, what they tell.

An attempt may have several sets of rules (its own, its site's), each with a state of its own; all see the same lines.
What a set says becomes signals of the rules `job.fault`, `job.hang` and `job.slow`. They are made anew at every tick:
a hang or slowness that is over is gone by itself.
"""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from advisor.core.job_lines import Tail, due_at, settle, split
from advisor.core.job_rules import (
    JOB_FAULT,
    JOB_HANG,
    JOB_SLOW,
    LINES_MAX,
    OWN,
    Batch,
    JobRuleEvaluator,
    JobRulesState,
    LogState,
    RuleState,
    RuleVerdict,
    anew,
    describe,
    incident_kind,
    pause,
    resume,
)
from advisor.core.lines import cap
from advisor.core.model import Attempt, Job, Signal
from advisor.core.words import AttemptState, Category, IncidentKind, Role, Trust

SOURCE = "job-rules"


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """A set of rules that applies to an attempt. `of` is OWN or SITE, `digest` names its content."""

    of: str
    digest: str
    evaluator: JobRuleEvaluator


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What one set has seen. `restarts`: of the ranks inside the job, when its state was begun."""

    digest: str
    state: JobRulesState
    restarts: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    """What all sets of one attempt have seen, and where reading stands in each file."""

    tails: Mapping[str, Tail] = field(default_factory=dict)
    runs: Mapping[str, Run] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Bytes of one file. `fresh`: a new content of it begins here; `old`: written before the attempt was looked at.

    `line`: complete lines before them, None where that is not told.
    """

    file: str
    data: bytes
    fresh: bool = False
    old: bool = False
    line: int | None = None


def begun(
    watch: Watch, sets: Iterable[Applied], attempt: Attempt, restarts: int, now: datetime, *, unread: bool
) -> Watch:
    """With a state for each set. One whose rules have changed begins anew.

    `unread`: no line of the attempt was read yet, so that what rules await from its start can still come.
    """
    if attempt.started_at is None and not attempt.state.live:
        return watch
    runs = dict(watch.runs)
    for item in sets:
        known = watch.runs.get(item.of)
        if known is not None and known.digest == item.digest:
            continue
        late = known is not None or not unread
        since = now if late or attempt.started_at is None else min(attempt.started_at, now)
        state = item.evaluator.begin(since, late=late)
        runs[item.of] = Run(digest=item.digest, state=state, restarts=restarts)
    return watch if runs == watch.runs else replace(watch, runs=runs)


def without_others(watch: Watch, sets: Iterable[Applied]) -> Watch:
    """Without the states of sets that are not there (now), for lines came that they have not seen."""
    there = {item.of for item in sets}
    runs = {of: run for of, run in watch.runs.items() if of in there}
    return watch if len(runs) == len(watch.runs) else replace(watch, runs=runs)


def split_up(watch: Watch, pieces: Iterable[Piece], now: datetime) -> tuple[Watch, tuple[Batch, ...]]:
    """The lines that these bytes, read now, complete: batches to `fold` one after the other."""
    tails = dict(watch.tails)
    batches: list[Batch] = []
    for piece in pieces:
        tail = Tail() if piece.fresh else tails.get(piece.file, Tail())
        if piece.old:
            # Whose lines these are is not known. The next ones are ours, and what ours began with was missed.
            if piece.data:
                watch = _late(watch)
            tails[piece.file] = tail
            continue
        if piece.line is not None and not piece.fresh:
            tail = replace(tail, lines=piece.line)
        tails[piece.file], batch = split(tail, piece.data, now, file=piece.file)
        batches.extend(_bounded(batch))
    return replace(watch, tails=tails), tuple(batches)


def _bounded(batch: Batch) -> Iterable[Batch]:
    for at in range(0, len(batch.lines), LINES_MAX):
        yield replace(batch, lines=batch.lines[at : at + LINES_MAX], first=batch.first + at)


def _late(watch: Watch) -> Watch:
    runs = {of: replace(run, state=replace(run.state, late=True)) for of, run in watch.runs.items()}
    return replace(watch, runs=runs)


def waited(watch: Watch, now: datetime, *, final: bool) -> tuple[Watch, tuple[Batch, ...]]:
    """Unfinished lines that waited long enough, or all of them when nothing follows any more (`final`)."""
    tails = dict(watch.tails)
    batches: list[Batch] = []
    for file, tail in watch.tails.items():
        due = due_at(tail)
        if due is not None and (final or now >= due):
            tails[file], batch = settle(tail, now, file=file, final=final)
            batches.append(batch)
    return (replace(watch, tails=tails), tuple(batches)) if batches else (watch, ())


def fold(watch: Watch, item: Applied, batch: Batch, now: datetime) -> Watch:
    """One set's state after these lines."""
    run = watch.runs.get(item.of)
    if run is None or run.digest != item.digest:
        return watch
    state = item.evaluator.read(run.state, batch, now)
    return watch if state == run.state else replace(watch, runs={**watch.runs, item.of: replace(run, state=state)})


def passed(watch: Watch, attempt: Attempt, restarts: int, now: datetime) -> Watch:
    """After a tick: pauses of the attempt, and restarts of its ranks."""
    suspended = attempt.state is AttemptState.SUSPENDED
    runs = {of: _passed(run, restarts, now, suspended=suspended) for of, run in watch.runs.items()}
    return watch if runs == watch.runs else replace(watch, runs=runs)


def _passed(run: Run, restarts: int, now: datetime, *, suspended: bool) -> Run:
    state = run.state
    if restarts > run.restarts:
        # It shows when the new ranks take steps: what a rule awaits from a start has come among lines already read.
        state = JobRulesState(begun_at=now, rules=(RuleState(),) * len(state.rules), late=True)
    state = pause(state, now) if suspended else resume(state, now)
    return run if state is run.state else replace(run, state=state, restarts=max(restarts, run.restarts))


def since_set(watch: Watch, set_at: datetime | None, now: datetime) -> Watch:
    """With silence that begins anew where the clock was set at `set_at` (None: never), as in `core.steady`.

    What was begun since stays as it is: doing so twice is doing so once.
    """
    if set_at is None:
        return watch
    runs = {
        of: run if set_at <= run.state.begun_at <= now else replace(run, state=anew(run.state, set_at, now))
        for of, run in watch.runs.items()
    }
    tails = {
        file: tail if tail.partial_at is None or set_at <= tail.partial_at <= now else replace(tail, partial_at=set_at)
        for file, tail in watch.tails.items()
    }
    return watch if (runs, tails) == (watch.runs, watch.tails) else replace(watch, runs=runs, tails=tails)


def signals(
    watch: Watch, sets: Iterable[Applied], job: Job, attempt: Attempt, now: datetime, *, readable: bool
) -> tuple[Signal, ...]:
    """What the sets say of the attempt now. `readable`: all its output was read; else nothing is taken for silence.

    The clock of an attempt stops at its end: that the dead are silent is no hang.
    """
    until = now if attempt.ended_at is None else min(now, attempt.ended_at)
    found: list[Signal] = []
    for item in sets:
        run = watch.runs.get(item.of)
        if run is None or run.digest != item.digest:
            continue
        for verdict in item.evaluator.verdicts(run.state, until):
            hanging = verdict.state is LogState.HANGING
            if (hanging and not readable) or (verdict.state is LogState.SLOW and not attempt.state.live):
                continue
            made = _signal(item, run.state, verdict, job, attempt)
            if made is not None:
                found.append(made)
    return tuple(found)


_RULES = {
    IncidentKind.CRASH: (JOB_FAULT, Role.INITIATING),
    IncidentKind.HANG: (JOB_HANG, Role.SYMPTOM),
    IncidentKind.STRAGGLER: (JOB_SLOW, Role.SYMPTOM),
}


def _signal(item: Applied, state: JobRulesState, verdict: RuleVerdict, job: Job, attempt: Attempt) -> Signal | None:
    kind = incident_kind(verdict.rule, verdict.state)
    if kind not in _RULES:
        return None
    name, role = _RULES[kind]
    seen = verdict.seen
    hangs_since = _hangs_since(state, verdict)
    at = hangs_since or seen.last_at or state.begun_at
    place = (job.key, str(attempt.number), name, item.of, item.digest, str(verdict.rule.number))
    whose = "the job's" if item.of == OWN else "the site's"
    line = f": {seen.last_line}" if seen.last_line and hangs_since is None else ""
    return Signal(
        id=hashlib.sha256("|".join(place).encode()).hexdigest()[:24],
        rule=name,
        trust=Trust.LOG,
        source=SOURCE,
        seen_at=at,
        at=hangs_since,
        file=seen.last_file,
        line=seen.last_number,
        text=cap(f"{whose} {describe(verdict)}{line}"),
        role=role,
        category=Category.UNKNOWN,
        fields={"name": verdict.rule.name, "of": item.of},
        order=seen.last_number,
    )


def _hangs_since(state: JobRulesState, verdict: RuleVerdict) -> datetime | None:
    """When the limit passed: the same at every tick, as long as the same hang lasts."""
    if verdict.state is not LogState.HANGING:
        return None
    rule, seen = verdict.rule, verdict.seen
    limit = rule.start_cutoff_seconds if seen.matched is None else rule.recurring_seconds
    try:
        passed_by = timedelta(seconds=max(limit or 0.0, 0.0))
        return state.begun_at + state.paused + (seen.matched or timedelta(0)) + passed_by
    except OverflowError:
        return None
