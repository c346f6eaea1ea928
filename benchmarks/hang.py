"""Hang detection on generated runs: false alarms on healthy ones, and how soon silent hangs are found.

    python -m benchmarks.hang [--hours N] [--hangs N] [--seed N] [--json]

A run is a sequence of lines on a clock of its own: start-up, compilation, steps with jitter and stalls, checkpoints and
evaluations (announced, announced only when they are over, or silent), asynchronous saves, epochs, warnings, output that
arrives in blocks, restarts inside the job, and a service that does not read for a while. It is judged as the service
does it: what was written until a tick is read then, and `expected` says when the attempt is overdue. Between two reads
nothing changes, so that only the ticks before a read have to be asked.

Not generated, because nothing tells it from a hang: a first pause that no line announces, at a step that is not round,
longer than the learned limit; and silence beyond `hang_seconds` that no line announces, which the site asked to end.
"""

import argparse
import json
import math
import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from advisor.core import hang, progress
from advisor.core.course import Phase
from advisor.core.hang import quantile
from advisor.core.model import Attempt, Job, Snapshot
from advisor.core.policy import Policy
from advisor.core.scan import FileContext, FileState, Scanner
from advisor.core.words import AttemptState, Trust
from benchmarks._progress import now_at, telling

TICK_SECONDS = 2.0
EPOCH = datetime(2026, 11, 1, tzinfo=UTC)
POLICY = Policy()
LINE_BYTES = 60  # of a progress line, about
STALL_SECONDS_MAX = 45.0  # of shared storage, a garbage collection, a slow collective
SILENT_SECONDS_MAX = 0.4 * POLICY.hang_seconds  # two such pauses may follow each other before the next line


@dataclass(frozen=True, slots=True)
class Line:
    """One line. `kind`: step, other, crash, or the name of a mark of `advisor.core.progress`."""

    at: float
    kind: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """How one generated job behaves."""

    seed: int
    hours: float
    step_seconds: float
    log_every: int
    form: str
    stamped: bool
    checkpoint_every: int  # steps
    checkpoint_seconds: float
    checkpoint_style: str  # announced, own_words, silent, asynchronous
    evaluate_every: int
    evaluate_seconds: float
    evaluate_style: str  # announced, at_the_end, silent, bars
    epoch_steps: int
    warnings: float  # per progress line
    block_bytes: int  # output arrives in blocks of this size; 0: line by line
    restarts_inside: float  # per hour
    outages: float  # of the service, per hour
    first_step: int


def make_run(seed: int) -> Run:
    """The behaviour of run number `seed`."""
    rng = random.Random(seed)
    step = min(60.0, max(0.5, rng.lognormvariate(math.log(6.0), 1.0)))
    every = rng.choice([n for n in (1, 1, 5, 10) if n * step <= 200.0] or [1])
    round_steps = [n for n in (50, 100, 200, 250, 500, 1000, 2000) if n >= 5 * every]
    checkpoint_style = rng.choice(["announced", "announced", "own_words", "silent", "asynchronous"])
    evaluate_style = rng.choice(["announced", "announced", "at_the_end", "silent", "bars"])
    longest = {"announced": 1200.0, "bars": 1200.0}
    return Run(
        seed=seed,
        hours=rng.uniform(2.0, 22.0),
        step_seconds=step,
        log_every=every,
        form=rng.choice(["megatron", "step", "titan"]),
        stamped=rng.random() < 0.5,
        checkpoint_every=rng.choice(round_steps),
        checkpoint_seconds=rng.uniform(3.0, longest.get(checkpoint_style, SILENT_SECONDS_MAX)) * rng.random(),
        checkpoint_style=checkpoint_style,
        evaluate_every=rng.choice(round_steps),
        evaluate_seconds=rng.uniform(10.0, longest.get(evaluate_style, SILENT_SECONDS_MAX)) * rng.random(),
        evaluate_style=evaluate_style,
        epoch_steps=rng.randint(300, 9000),
        warnings=rng.choice([0.0, 0.0, 0.02, 0.5, 3.0]),
        # A block must not take as long as the ceiling.
        block_bytes=4096 if rng.random() < 0.15 and step * every * 120 < 95.0 else 0,
        restarts_inside=rng.choice([0.0, 0.0, 0.05, 0.2]),
        outages=rng.choice([0.0, 0.02, 0.1]),
        first_step=rng.choice([0, 0, rng.randint(1, 60_000)]),
    )


class Writer:
    """Writes one run's lines."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.rng = random.Random(run.seed * 7 + 1)
        self.at = 0.0
        self.step = run.first_step
        self.saved = run.first_step
        gap = run.step_seconds * run.log_every
        limit = max(POLICY.hang_floor_seconds, POLICY.hang_factor * gap)
        # A stall adds to the wait for the block that it falls in.
        wait = max(gap, gap * run.block_bytes / LINE_BYTES)
        self.stall = max(0.0, min(STALL_SECONDS_MAX, limit - 1.5 * wait))

    def _line(self, kind: str, text: str) -> Line:
        return Line(self.at, kind, text)

    def _stamp(self) -> str:
        return f"[{EPOCH + timedelta(seconds=self.at):%Y-%m-%d %H:%M:%S}] " if self.run.stamped else ""

    def _progress(self) -> Line:
        step, stamp = self.step, self._stamp()
        loss = 2.0 + 8.0 / (step + 1)
        match self.run.form:
            case "megatron":
                text = f" {stamp}iteration {step:8d}/ 1000000 | consumed samples: 9 | lm loss: {loss:.6E} |"
            case "step":
                text = f"{stamp}step {step} | loss {loss:.4f} | lr 3.0e-04"
            case _:
                text = f"{stamp}[titan] root - INFO - step: {step:6d}  loss: {loss:8.4f}  memory: 71.2GiB  tps: 9,000"
        return self._line("step", text)

    def _other(self) -> Line:
        return self._line("other", self._stamp() + "UserWarning: the input has a shape that was not seen before")

    def write(self) -> Iterator[Line]:
        """All lines, in time order."""
        rng, run = self.rng, self.run
        end = run.hours * 3600.0
        yield self._line("other", "Loading the data set")
        self.at += rng.uniform(20.0, 1700.0)
        yield from self._resume()
        crash_at = self._next(run.restarts_inside)
        while self.at < end:
            yield from self._step()
            if self.at > crash_at and self._in_course:
                yield from self._restart()
                crash_at = self.at + self._next(run.restarts_inside)

    @property
    def _in_course(self) -> bool:
        """No pause came after the newest step: ranks that die during one have used up a part of the ceiling."""
        run = self.run
        return all(self.step % every for every in (run.checkpoint_every, run.evaluate_every, run.epoch_steps))

    def _next(self, per_hour: float) -> float:
        return self.rng.expovariate(per_hour / 3600.0) if per_hour else math.inf

    def _resume(self) -> Iterator[Line]:
        if self.saved:
            yield self._line("loaded", f"successfully loaded checkpoint from /ckpt at iteration {self.saved}")
        self.step = self.saved
        self.fresh = 0

    def _step(self) -> Iterator[Line]:
        rng, run = self.rng, self.run
        seconds = run.step_seconds * rng.lognormvariate(0.0, 0.06)
        if rng.random() < 0.01:
            seconds *= rng.uniform(1.0, 2.0)
        if rng.random() < 0.0005:
            seconds += rng.uniform(0.0, self.stall)
        if self.fresh < 3:
            # Compilation, caches, the first collective.
            if self.fresh == 0 and rng.random() < 0.5:
                yield self._line("compiling", "torch.compile: compiling the model, the first step may take a while")
            seconds += rng.uniform(0.0, 500.0) / (1 + 3 * self.fresh)
        self.fresh += 1
        self.at += seconds
        self.step += 1
        if self.step % run.log_every == 0:
            yield self._progress()
            for _ in range(int(run.warnings) + (rng.random() < run.warnings % 1.0)):
                yield self._other()
        if self.step % run.epoch_steps == 0:
            yield self._line("other", f"epoch {self.step // run.epoch_steps} is over, shuffling shards")
            yield self._line("other", "statistics of the epoch were written")
            yield from (self._other() for _ in range(8))
            self.at += rng.uniform(5.0, 0.1 * POLICY.hang_seconds)
        if self.step % run.checkpoint_every == 0:
            yield from self._checkpoint()
        if self.step % run.evaluate_every == 0:
            yield from self._evaluate()

    def _checkpoint(self) -> Iterator[Line]:
        rng, run = self.rng, self.run
        seconds = run.checkpoint_seconds * rng.lognormvariate(0.0, 0.15)
        silent = min(seconds, SILENT_SECONDS_MAX)
        done = self._saved_line()
        self.saved = self.step
        match run.checkpoint_style:
            case "announced":
                yield self._line("saving", f"saving checkpoint at iteration {self.step:7d} to /ckpt in torch format")
                self.at += seconds
                yield self._line(*done)
            case "own_words":
                yield from (self._line("other", f"writing shard {n} of the state to /ckpt") for n in range(40))
                self.at += silent
            case "asynchronous":
                yield self._line("saving", f"saving checkpoint at iteration {self.step:7d} in the background")
                self.at += rng.uniform(0.1, 5.0)
            case _:
                self.at += silent

    def _saved_line(self) -> tuple[str, str]:
        return "saved", f"  successfully saved checkpoint from iteration {self.step:7d} to /ckpt"

    def _evaluate(self) -> Iterator[Line]:
        rng, run = self.rng, self.run
        seconds = run.evaluate_seconds * rng.lognormvariate(0.0, 0.1)
        silent = min(seconds, SILENT_SECONDS_MAX)
        match run.evaluate_style:
            case "announced":
                yield self._line("evaluating", "***** Running evaluation *****")
                self.at += seconds
                yield self._line("evaluated", "{'eval_loss': 2.1, 'eval_runtime': 12.0}")
            case "bars":
                parts = rng.randint(2, 12)
                for part in range(parts):
                    yield self._line("evaluating", f"Validation DataLoader 0: {100 * part // parts}% done")
                    self.at += seconds / parts
            case "at_the_end":
                self.at += silent
                yield self._line("evaluated", f" validation loss at iteration {self.step} | lm loss value: 3.1E+00 |")
            case _:
                self.at += silent

    def _restart(self) -> Iterator[Line]:
        rng = self.rng
        yield self._line("crash", f"[rank{rng.randint(0, 63)}]: KeyError: 'position_ids'")
        self.at += rng.uniform(1.0, 300.0)
        yield self._line("starting", "[default0]: [agent] Restarting worker group")
        self.at += rng.uniform(30.0, 900.0)
        yield from self._resume()
        self.at += rng.uniform(5.0, 300.0)


def reads(run: Run, stop_at: float = math.inf) -> Iterator[tuple[float, float, list[Line]]]:
    """When a tick finds lines, when the tick before it was, and the lines; of those written until `stop_at`."""
    rng = random.Random(run.seed * 13 + 5)
    batch: list[Line] = []
    held: list[Line] = []
    size = 0
    when, before = 0.0, 0.0
    away_at = rng.expovariate(run.outages / 3600.0) if run.outages else math.inf
    back_at = gone_at = 0.0
    for line in Writer(run).write():
        if line.at > stop_at:
            break
        held.append(line)
        size += len(line.text) + 1
        if run.block_bytes and size < run.block_bytes and line.kind in {"step", "other"}:
            continue
        size = 0
        if line.at > away_at:
            gone_at = away_at
            back_at = line.at + rng.uniform(30.0, 900.0)
            away_at = back_at + rng.expovariate(run.outages / 3600.0)
        tick = math.ceil(max(line.at, back_at) / TICK_SECONDS) * TICK_SECONDS
        if batch and tick > when:
            yield when, before, batch
            batch = []
        # While the service is away it does not judge either.
        when, before = tick, gone_at if tick - TICK_SECONDS < back_at else tick - TICK_SECONDS
        batch.extend(held)
        held = []
    if batch:
        yield when, before, batch


class Reader:
    """Takes what a tick read into account, as a scan of the same bytes would; `through_scanner`: by such a scan."""

    def __init__(self, run: Run, scanner: Scanner | None = None) -> None:
        self.run = run
        self.scanner = scanner
        self.form = {"megatron": "megatron"}.get(run.form, "step")
        self.state = FileState()
        self.context = FileContext(source="logs", trust=Trust.LOG, file="job.log", live=True)
        self.number = 0
        self.now = EPOCH
        self.late = 0.0

    def take(self, at: float, asked: float, lines: list[Line]) -> progress.FileProgress:
        """Lines read at `at`, after a look at `asked` that found nothing more."""
        self.now = EPOCH + timedelta(seconds=at)
        self.late = at - asked
        if self.scanner is not None:
            data = "".join(line.text + "\n" for line in lines).encode()
            context = replace(self.context, looked_at=EPOCH + timedelta(seconds=asked))
            found = self.scanner.scan(context, self.state, data, fresh=False, final=False, seen_at=self.now)
            self.state = found.state
            return found.state.progress
        known = self.state.progress
        steps: list[Line] = []
        for line in lines:
            if line.kind in {"step", "other"}:
                steps.append(line)
                continue
            known = self._steps(known, steps)
            steps = []
            self.number += 1
            if line.kind == "crash":
                known = replace(known, broken=True)
            else:
                step = int(digits) if (digits := line.text.split("iteration")[-1].split()[0]).isdigit() else None
                known = progress.mark(known, line.kind, step, self.number, self.now, self.late)
        known = progress.read_on(self._steps(known, steps), self.number, self.now)
        self.state = replace(self.state, progress=known)
        return known

    def _steps(self, known: progress.FileProgress, lines: list[Line]) -> progress.FileProgress:
        if any(line.kind == "step" for line in lines):
            text = "\n".join(line.text for line in lines).encode()
            forms = (self.form,)
            first, more = self.number + 1, len(lines) - 1
            known = progress.observe(known, text, forms, first, more, self.now, self._printed, self.late)
        self.number += len(lines)
        return known

    def _printed(self, line: bytes) -> tuple[datetime | None, int | None]:
        if not self.run.stamped:
            return None, None
        text = line.decode()
        start = text.index("[") + 1
        return datetime.fromisoformat(text[start : start + 19]).replace(tzinfo=UTC), None


def snapshot_of(known: progress.FileProgress) -> Snapshot:
    """A running attempt with this progress and nothing else."""
    return Snapshot(
        job=Job(key="j", cluster="c", job_id="7", user="u"),
        attempt=Attempt(number=0, state=AttemptState.RUNNING, started_at=EPOCH),
        progress=progress.combine({"job.log": known}),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Alarm:
    """The attempt was called overdue. Seconds: on the run's clock."""

    seed: int
    at: float
    after: float  # the newest step was read so long before
    ends: bool  # and it would have been ended


def healthy(run: Run, scanner: Scanner | None = None) -> list[Alarm]:
    """All false alarms of one run."""
    reader = Reader(run, scanner)
    alarms = []
    due = hang.expected(snapshot_of(progress.FileProgress()), POLICY)
    known = progress.FileProgress()
    for at, asked, lines in reads(run):
        before = EPOCH + timedelta(seconds=asked)
        if due is not None and due.at <= before:
            since = known.last_at or EPOCH
            alarms.append(
                Alarm(seed=run.seed, at=at, after=(before - since).total_seconds(), ends=due.ends_at <= before)
            )
        known = reader.take(at, asked, lines)
        due = hang.expected(snapshot_of(known), POLICY)
    return alarms


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A silent hang that was found. `usual`: seconds between two progress lines, as read."""

    seed: int
    usual: float
    detected: float  # seconds after the newest step was read
    ended: float
    steady: bool  # in the course of steps, not during what was announced, nor in the first minutes
    plain: (
        bool  # and no pause could be meant: none is due by a schedule, nothing was announced, nothing unusual printed
    )


def silent_hang(run: Run) -> Found | None:
    """Stop all output at a random moment; None where the moment came before the first step."""
    stop_at = random.Random(run.seed * 31 + 3).uniform(0.1, 1.0) * run.hours * 3600.0
    reader = Reader(run)
    known = progress.FileProgress()
    for at, asked, lines in reads(run, stop_at):
        known = reader.take(at, asked, lines)
    snapshot = snapshot_of(known)
    if known.last_at is None:
        return None
    due = hang.expected(snapshot, POLICY)
    if due is None:
        raise AssertionError(f"run {run.seed}: nothing is expected of an attempt that took steps")
    pace = snapshot.progress.pace
    usual = quantile(pace.gaps, 0.5)
    began = pace.began_at or known.last_at
    steady = (
        due.phase.value == "step"
        and len(pace.gaps) >= hang.LEARNED
        and not known.broken
        and (known.last_at - began).total_seconds() >= POLICY.hang_learning_seconds
    )
    ticks = math.ceil(due.seconds / TICK_SECONDS) * TICK_SECONDS
    return Found(
        seed=run.seed,
        usual=usual,
        detected=ticks,
        ended=max(ticks, (due.ends_at - known.last_at).total_seconds()),
        steady=steady,
        plain=steady and pace.phase is Phase.STEP and pace.unusual_at is None and not hang.pause_due(snapshot.progress),
    )


def _spread(values: list[float]) -> dict[str, float]:
    if not values:
        return {"n": 0}
    return {
        "p50": round(quantile(values, 0.5), 2),
        "p95": round(quantile(values, 0.95), 2),
        "max": round(max(values), 2),
        "n": len(values),
    }


def measure(hours: float, hangs: int, seed: int) -> dict[str, object]:
    """Healthy runs of that many hours together, and as many runs that hang."""
    total, runs, alarms = 0.0, 0, []
    while total < hours:
        run = make_run(seed + runs)
        alarms += healthy(run)
        total += run.hours
        runs += 1
        now_at(f"healthy runs, {total:.0f} of {hours:g} job-hours")
    tried = []
    for number in range(hangs):
        now_at(f"silent hangs, {number} of {hangs}")
        tried.append(silent_hang(make_run(seed + 1_000_000 + number)))
    found = [item for item in tried if item is not None]
    steady = [item for item in found if item.steady]
    plain = [item for item in steady if item.plain]
    floor = POLICY.hang_floor_seconds
    return {
        "job_hours": round(total),
        "runs": runs,
        "false_alarms": len(alarms),
        "false_ends": sum(alarm.ends for alarm in alarms),
        "alarms": [f"run {a.seed} at {a.at:.0f} s, {a.after:.0f} s after the step" for a in alarms[:20]],
        "hangs": len(found),
        "found": sum(math.isfinite(item.detected) for item in found),
        "detected_seconds": _spread([item.detected for item in plain]),
        "detected_intervals": _spread([item.detected / item.usual for item in plain if 3 * item.usual >= floor]),
        "steady": len(steady),
        "within_three_intervals_or_floor": round(
            sum(item.detected <= max(floor, 3 * item.usual) + TICK_SECONDS for item in plain) / max(1, len(plain)), 4
        ),
        "detected_seconds_where_a_pause_may_be_meant": _spread([i.detected for i in steady if not i.plain]),
        "ended_seconds": _spread([item.ended for item in plain]),
        "detected_seconds_in_phases_and_start": _spread([item.detected for item in found if not item.steady]),
        "reference": "DLRover 600 s (first step, evaluation 7200 s); NVRx 300 s; HyperPod's guidance 2-3 x the step",
    }


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.hang", description=__doc__)
    parser.add_argument("--hours", type=float, default=1000.0)
    parser.add_argument("--hangs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    with telling():
        result = measure(options.hours, options.hangs, options.seed)
    if options.json:
        print(json.dumps(result))
    else:
        for name, value in result.items():
            print(f"{name:40} {value}")
    return 1 if result["false_alarms"] or result["found"] != result["hangs"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
